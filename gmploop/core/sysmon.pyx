# cython: language_level=3, freethreading_compatible=True, binding=True
"""sysmon's thread, its settings, and what it says of a stall. What it does: sysmon.h.

What that is for: a callback that blocks delays its own G only; the others of its P go on after `retake_ns` and one nap.
One that computes, too, where there is no GIL; with it the others get their turns of 5 ms. Where more callbacks compute at
once than there are cores, nothing helps. Of a loop with a thread of its own, which has no P, stalls are counted and told.

The thread is there once a loop has run or a goroutine was made. fork() is done without it, so that no Python warns of
threads that hold nothing: it is ended before, and the next poll of a loop brings it back; at once, if there are Ms.
"""
import os
import sys
from cpython.object cimport PyObject
from gmploop.core.g cimport gl_g, gl_obj
from gmploop.core.handle cimport gl_lock, gl_unlock
from gmploop.core.sched cimport sched, gl_m, gl_sched, gl_watched, gl_now_ns, int64_t

cdef extern from *:
    """
    #include "sysmon.h"
    #ifdef __linux__
    #include <sys/prctl.h>
    #endif
    static gl_watch gl_the_watch;
    static gl_sched *gl_sched_watched;
    static struct { pthread_mutex_t lock; pthread_t thread; int running; } gl_life = { PTHREAD_MUTEX_INITIALIZER };
    static void gl_name(const char *name) {
    #if defined(__linux__)
        prctl(PR_SET_NAME, name, 0, 0, 0);
    #else
        (void)name;
    #endif
    }
    static void *gl_sysmon_thread(void *arg) {
        (void)arg;
        gl_name("gmploop-sysmon");
        gl_sysmon_run(gl_sched_watched, &gl_the_watch);
        return NULL;
    }

    /* Telling takes Python, for which others may have to wait long: a thread of its own does it, one at a time. */
    static struct { gl_turn turn; int64_t since_ns; int busy; } gl_story;
    static void (*gl_teller)(gl_turn *turn, int64_t since_ns);
    static void *gl_teller_thread(void *arg) {
        (void)arg;
        gl_name("gmploop-stall");
        if (!gl_load_acquire(&gl_sched_watched->stopping)) gl_teller(&gl_story.turn, gl_story.since_ns);
        gl_store_release(&gl_story.busy, 0);
        return NULL;
    }
    static int gl_tell(gl_turn turn, int64_t ns) {
        if (gl_exchange_acq_rel(&gl_story.busy, 1)) return 0;
        gl_story.turn = turn;
        gl_story.since_ns = gl_now_ns() - ns;
        if (gl_thread_start(gl_teller_thread, NULL, 1 << 20)) gl_store_release(&gl_story.busy, 0);
        return 1;
    }
    static int gl_telling(void) { return gl_load_acquire(&gl_story.busy); }

    /* Unless it runs: 0, or an errno. */
    static int gl_sysmon_start(gl_sched *S, void (*teller)(gl_turn *, int64_t)) {
        sigset_t all, before;
        int error = 0;
        pthread_mutex_lock(&gl_life.lock);
        if (!gl_life.running) {
            gl_sched_watched = S;
            gl_teller = teller;
            gl_the_watch.tell = gl_tell;
            gl_the_watch.n_orphans = 0;
            memset(gl_the_watch.offers, 0, sizeof gl_the_watch.offers);
            gl_store_relaxed(&S->unwatched, 0);
            sigfillset(&all);
            pthread_sigmask(SIG_SETMASK, &all, &before);
            error = pthread_create(&gl_life.thread, NULL, gl_sysmon_thread, NULL);
            pthread_sigmask(SIG_SETMASK, &before, NULL);
            gl_life.running = !error;
            if (error) gl_store_relaxed(&S->unwatched, 1);      /* a later poll tries again */
        }
        pthread_mutex_unlock(&gl_life.lock);
        return error;
    }
    /* Not with the GIL: the thread may want it, for a line in the log. */
    static void gl_sysmon_stop(gl_sched *S) {
        pthread_mutex_lock(&gl_life.lock);
        if (gl_life.running) {
            gl_store_release(&gl_the_watch.ending, 1);
            gl_note_wake(&S->sysmon);
            pthread_join(gl_life.thread, NULL);
            gl_store_relaxed(&gl_the_watch.ending, 0);
            gl_store_relaxed(&S->sysmon_parked, 0);
            gl_store_relaxed(&S->unwatched, 1);
            gl_life.running = 0;
        }
        pthread_mutex_unlock(&gl_life.lock);
    }
    static void gl_sysmon_after_fork(void) {
        pthread_mutex_init(&gl_life.lock, NULL);
        gl_life.running = 0;
        gl_the_watch.ending = 0;
        gl_story.busy = 0;                      /* whoever told in the parent is not here */
    }
    static void gl_rouse(gl_sched *S) {
        gl_store_relaxed(&S->unwatched, 0);
        gl_note_wake(&S->sysmon);
    }

    /* The loop's entry, if that turn goes on; under loops_lock. */
    static gl_watched *gl_find_loop(const gl_turn *t) {
        gl_watched *l = gl_sched_watched->loops;
        while (l && l != t->loop) l = l->next;
        return l && gl_load_relaxed(&l->beat) == t->turn ? l : NULL;
    }
    static void gl_loops(int lock) { lock ? gl_lock(&gl_sched_watched->loops_lock) : gl_unlock(&gl_sched_watched->loops_lock); }
    static int gl_same_turn(const gl_turn *t) {
        int same;
        if (t->mp) return gl_load_acquire(&t->mp->turns) == t->turn;
        gl_loops(1);
        same = gl_find_loop(t) != NULL;
        gl_loops(0);
        return same;
    }
    static void gl_tell_later(const gl_turn *t, int64_t at_ns) {
        gl_watched *l;
        if (t->mp) {
            gl_store_relaxed(&gl_the_watch.offers[t->mp->id - 1].at_ns, at_ns);
            return;
        }
        gl_loops(1);
        if ((l = gl_find_loop(t))) gl_store_relaxed(&l->offer.at_ns, at_ns);
        gl_loops(0);
        gl_note_wake(&gl_sched_watched->sysmon);        /* it may have gone to sleep: all seemed said */
    }
    /* The loop whose turn that is, a new reference, and its thread; NULL when it is over. */
    static PyObject *gl_loop_of(const gl_turn *t, unsigned long *ident) {
        gl_watched *l;
        PyObject *loop = NULL;
        gl_loops(1);
        if ((l = gl_find_loop(t))) {
            loop = Py_NewRef((PyObject *)l->loop);
            *ident = l->ident;
        }
        gl_loops(0);
        return loop;
    }
    static void gl_tell_from(int64_t ns) {
        int64_t old = gl_load_relaxed(&gl_the_watch.tell_ns);
        while ((!old || ns < old) && !__atomic_compare_exchange_n(&gl_the_watch.tell_ns, &old, ns, 0, __ATOMIC_RELAXED,
                                                                  __ATOMIC_RELAXED)) ;
    }
    static void gl_look_again(gl_sched *S) { gl_store_release(&S->unwatched, 1); }
    static gl_g *gl_curg(gl_m *mp) { return gl_load_relaxed(&mp->curg); }
    """
    ctypedef struct gl_turn:
        gl_m *mp
    ctypedef struct gl_watch:
        int64_t retake_ns, poll_ns, queue_ns, stall_ns, nap_min_ns, nap_max_ns, nap_full_ns, loop_nap_ns
        int64_t trace_ns, tell_ns
        int cpus
        int observe, detail, one_computing
    gl_watch gl_the_watch
    int gl_sysmon_start(gl_sched *, void (*)(gl_turn *, int64_t) noexcept nogil) nogil
    void gl_sysmon_stop(gl_sched *) nogil
    void gl_sysmon_after_fork()
    void gl_rouse(gl_sched *) nogil
    bint gl_telling() nogil
    bint gl_same_turn(gl_turn *) nogil
    void gl_tell_later(gl_turn *, int64_t) nogil
    PyObject *gl_loop_of(gl_turn *, unsigned long *)
    void gl_tell_from(int64_t) nogil
    void gl_look_again(gl_sched *) nogil
    gl_g *gl_curg(gl_m *) nogil
    enum: GL_LISTS

cdef extern from "Python.h":
    void Py_DECREF(PyObject *)

# Injected by gmploop.loop; see configure().
cdef object tell_stall = None
cdef bint only_stalls = False       # told is what is counted; else what a loop in debug mode finds slow
cdef tuple duties = None


def configure(on_stall):
    """Set what is called with (loop, frame, seconds) when a callback goes on for long, if anybody wants to be told; it
    returns None, or after how many seconds to ask again, as a float, or what tells, if the callback still goes on then. By
    a thread of its own."""
    global tell_stall
    tell_stall = on_stall


def set_duties(*, long long retake_ns, long long poll_ns, long long queue_ns, long long stall_ns, long long nap_min_ns,
               long long nap_max_ns, long long nap_full_ns, int cpus, long long loop_nap_ns, long long trace_ns,
               bint observe, bint detail, bint one_computing, bint stall_given):
    """How long each duty waits; 0 switches it off. stall_given: stall_ns says from when stalls are told, too. A thread
    that runs with others is ended; start() follows."""
    global only_stalls, duties
    wanted = (retake_ns, poll_ns, queue_ns, stall_ns, nap_min_ns, nap_max_ns, nap_full_ns, cpus, loop_nap_ns,
              trace_ns, observe, detail, one_computing, stall_given)
    gl_the_watch.tell_ns = 0
    if duties == wanted:
        return
    stop()
    gl_the_watch.retake_ns, gl_the_watch.poll_ns, gl_the_watch.queue_ns = retake_ns, poll_ns, queue_ns
    gl_the_watch.nap_min_ns, gl_the_watch.nap_max_ns, gl_the_watch.loop_nap_ns = nap_min_ns, nap_max_ns, loop_nap_ns
    gl_the_watch.nap_full_ns, gl_the_watch.cpus = nap_full_ns, cpus
    gl_the_watch.stall_ns, gl_the_watch.trace_ns = stall_ns, trace_ns
    gl_the_watch.observe, gl_the_watch.detail, gl_the_watch.one_computing = observe, detail, one_computing
    only_stalls = stall_given
    duties = wanted                             # last: who sees it may rely on the rest,
    gl_look_again(sched())                      # and who has come in between looks again


def has_duties():
    """Whether set_duties() was called."""
    return duties is not None


def told_from(double seconds):
    """From when on, in ns, a callback is told of to a loop in debug mode that finds slow what takes so long; 0: never."""
    return gl_the_watch.stall_ns if only_stalls else <long long>(min(max(seconds, 1e-9), 1e9) * 1e9)


def tell_from(double seconds):
    """A loop in debug mode finds slow what takes so long: from now on that is told of goroutines. From any thread."""
    gl_tell_from(told_from(seconds))


cdef object world_of(gl_turn *turn):
    """The world whose turn this is; None when it is over. A G in a list has a reference, the scheduler's, until it has
    left it: so its own can be taken under the list's lock."""
    cdef gl_g *gp = gl_curg(turn.mp)
    cdef gl_g *each
    cdef int i
    world = None
    for i in range(GL_LISTS):
        gl_lock(&sched().all[i].lock)
        each = sched().all[i].first
        while each != NULL and each != gp:
            each = each.all_next
        if each != NULL:
            world = <object>gl_obj(each)
        gl_unlock(&sched().all[i].lock)
        if world is not None:
            break
    return world if gl_same_turn(turn) else None


cdef object whose(gl_turn *turn, unsigned long *ident):
    """The loop whose turn this is, and its thread; None when it is over."""
    cdef PyObject *loop
    if turn.mp != NULL:
        ident[0] = turn.mp.ident
        return world_of(turn)
    loop = gl_loop_of(turn, ident)
    if loop == NULL:
        return None
    found = <object>loop
    Py_DECREF(loop)
    return found


cdef void tell(gl_turn *turn, int64_t since_ns) noexcept with gil:
    """By a thread of its own, while the callback goes on or not."""
    cdef unsigned long ident = 0
    try:
        loop = whose(turn, &ident)
        if loop is None:
            return
        frame = sys._current_frames().get(ident)
        if frame is None or not gl_same_turn(turn):
            return
        tells = tell_stall(loop, frame, (gl_now_ns() - since_ns) * 1e-9)
        if tells is None or not gl_same_turn(turn):     # else it would be told of the callback that came then
            return
        if type(tells) is float:
            gl_tell_later(turn, <long long>(min(<double>tells, 1e9) * 1e9))
        else:
            tells()
    except BaseException:
        sys.excepthook(*sys.exc_info())


def telling():
    """Whether a stall is being told at this moment. Who is told may do anything, wake a goroutine, say."""
    return gl_telling()


def start():
    """Start the thread, unless it runs, or all duties are off. RuntimeError if no thread is to be had."""
    cdef int error
    watch = &gl_the_watch
    if not (watch.retake_ns and not watch.observe or watch.poll_ns or watch.queue_ns or watch.stall_ns or watch.trace_ns):
        return
    with nogil:
        error = gl_sysmon_start(sched(), tell)
    if error != 0:
        raise RuntimeError(f"no thread can be had for sysmon, which watches goroutines: {os.strerror(error)}")


def watch_loops():
    """Wake the thread, or start it if it shall watch loops and can be had. By the loop that has found that nobody does."""
    cdef int error = 0
    gl_rouse(sched())
    if gl_the_watch.stall_ns:
        with nogil:
            error = gl_sysmon_start(sched(), tell)


def stop():
    """End the thread, if it runs; start() or the next poll of a loop starts it again. From any thread."""
    with nogil:
        gl_sysmon_stop(sched())


def goes_on():
    """In the parent of a fork: Ms need it."""
    if sched().nmlive:
        start()


def after_fork():
    gl_sysmon_after_fork()


os.register_at_fork(before=stop, after_in_parent=goes_on, after_in_child=after_fork)
