# cython: language_level=3, freethreading_compatible=True, binding=True
"""sysmon's thread, its settings, and what it says of a stall. What it does: sysmon.h.

What that is for: a callback that blocks delays its own G only; the others of its P go on after `retake_ns` and one nap.
One that computes, too, where there is no GIL; with it the others get their turns of 5 ms. Where more callbacks compute at
once than there are cores, nothing helps.
"""
import os
import sys
from gmploop.core.g cimport gl_g, gl_obj
from gmploop.core.handle cimport gl_lock, gl_unlock
from gmploop.core.sched cimport sched, gl_m, gl_sched, gl_now_ns, int64_t, uint32_t

cdef extern from *:
    """
    #include "sysmon.h"
    #ifdef __linux__
    #include <sys/prctl.h>
    #endif
    static gl_watch gl_the_watch;
    static gl_sched *gl_watched;
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
        gl_sysmon_run(gl_watched, &gl_the_watch);
        return NULL;
    }

    /* Telling takes Python, for which others may have to wait long: a thread of its own does it, one at a time. */
    static struct { gl_m *mp; uint32_t turn; int64_t since_ns; int busy; } gl_story;
    static void (*gl_teller)(gl_m *mp, uint32_t turn, int64_t since_ns);
    static void *gl_teller_thread(void *arg) {
        (void)arg;
        gl_name("gmploop-stall");
        if (!gl_load_acquire(&gl_watched->stopping)) gl_teller(gl_story.mp, gl_story.turn, gl_story.since_ns);
        gl_store_release(&gl_story.busy, 0);
        return NULL;
    }
    static int gl_tell(gl_m *mp, uint32_t turn, int64_t ns) {
        if (gl_exchange_acq_rel(&gl_story.busy, 1)) return 0;
        gl_story.mp = mp;
        gl_story.turn = turn;
        gl_story.since_ns = gl_now_ns() - ns;
        if (gl_thread_start(gl_teller_thread, NULL, 1 << 20)) gl_store_release(&gl_story.busy, 0);
        return 1;
    }

    static int gl_sysmon_start(gl_sched *S, void (*teller)(gl_m *, uint32_t, int64_t)) {
        gl_watched = S;
        gl_teller = teller;
        gl_the_watch.tell = gl_tell;
        gl_the_watch.n_orphans = 0;
        memset(gl_the_watch.offers, 0, sizeof gl_the_watch.offers);
        gl_story.busy = 0;                      /* whoever told in the parent of a fork is not here */
        return gl_thread_start(gl_sysmon_thread, NULL, 0);
    }
    static int gl_same_turn(gl_m *mp, uint32_t turn) { return gl_load_acquire(&mp->turns) == turn; }
    static void gl_tell_later(gl_m *mp, int64_t at_ns) {
        gl_store_relaxed(&gl_the_watch.offers[mp->id - 1].at_ns, at_ns);
    }
    static void gl_tell_from(int64_t ns) {
        int64_t old = gl_load_relaxed(&gl_the_watch.tell_ns);
        while ((!old || ns < old) && !__atomic_compare_exchange_n(&gl_the_watch.tell_ns, &old, ns, 0, __ATOMIC_RELAXED,
                                                                  __ATOMIC_RELAXED)) ;
    }
    static gl_g *gl_curg(gl_m *mp) { return gl_load_relaxed(&mp->curg); }
    """
    ctypedef struct gl_watch:
        int64_t retake_ns, poll_ns, queue_ns, stall_ns, nap_min_ns, nap_max_ns, trace_ns, tell_ns
        int observe, detail, one_computing
    gl_watch gl_the_watch
    int gl_sysmon_start(gl_sched *, void (*)(gl_m *, uint32_t, int64_t) noexcept nogil)
    bint gl_same_turn(gl_m *, uint32_t) nogil
    void gl_tell_later(gl_m *, int64_t) nogil
    void gl_tell_from(int64_t) nogil
    gl_g *gl_curg(gl_m *) nogil
    enum: GL_LISTS

# Injected by gmploop.world; see configure().
cdef object tell_stall = None
cdef bint only_stalls = False       # told is what is counted; else what a loop in debug mode finds slow


def configure(on_stall):
    """Set what is called with (world, frame, seconds) when a callback of a goroutine goes on for long, if anybody wants
    to be told; it returns None, or after how many seconds to ask again. By a thread of its own."""
    global tell_stall
    tell_stall = on_stall


def set_duties(*, long long retake_ns, long long poll_ns, long long queue_ns, long long stall_ns, long long nap_min_ns,
               long long nap_max_ns, long long trace_ns, bint observe, bint detail, bint one_computing, bint stall_given):
    """How long each duty waits; 0 switches it off. stall_given: stall_ns says from when stalls are told, too."""
    global only_stalls
    gl_the_watch.retake_ns, gl_the_watch.poll_ns, gl_the_watch.queue_ns = retake_ns, poll_ns, queue_ns
    gl_the_watch.nap_min_ns, gl_the_watch.nap_max_ns = nap_min_ns, nap_max_ns
    gl_the_watch.stall_ns, gl_the_watch.trace_ns = stall_ns, trace_ns
    gl_the_watch.observe, gl_the_watch.detail, gl_the_watch.one_computing = observe, detail, one_computing
    gl_the_watch.tell_ns = 0
    only_stalls = stall_given


def tell_from(double seconds):
    """A loop in debug mode finds slow what takes so long: from now on it is told. From any thread."""
    gl_tell_from(gl_the_watch.stall_ns if only_stalls else <long long>(min(max(seconds, 1e-9), 1e9) * 1e9))


cdef object world_of(gl_m *mp, uint32_t turn):
    """The world whose turn this is; None when it is over. A G in a list has a reference, the scheduler's, until it has
    left it: so its own can be taken under the list's lock."""
    cdef gl_g *gp = gl_curg(mp)
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
    return world if gl_same_turn(mp, turn) else None


cdef void tell(gl_m *mp, uint32_t turn, int64_t since_ns) noexcept with gil:
    """By a thread of its own, while the callback goes on or not."""
    try:
        world = world_of(mp, turn)
        if world is None:
            return
        frame = sys._current_frames().get(mp.ident)
        if frame is None or not gl_same_turn(mp, turn):
            return
        seconds = tell_stall(world, frame, (gl_now_ns() - since_ns) * 1e-9)
        if seconds is not None and gl_same_turn(mp, turn):
            gl_tell_later(mp, <long long>(min(<double>seconds, 1e9) * 1e9))
    except BaseException:
        sys.excepthook(*sys.exc_info())


cdef int runs_since = -1            # sched().forks when the thread was started


def start():
    """Start the thread, unless it runs, or all duties are off. RuntimeError if no thread is to be had."""
    global runs_since
    cdef int error
    watch = &gl_the_watch
    if runs_since == sched().forks or not (watch.retake_ns and not watch.observe or watch.poll_ns or watch.queue_ns
                                           or watch.stall_ns or watch.trace_ns):
        return
    error = gl_sysmon_start(sched(), tell)
    if error != 0:
        raise RuntimeError(f"no thread can be had for sysmon, which watches goroutines: {os.strerror(error)}")
    runs_since = sched().forks
