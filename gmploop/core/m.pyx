# cython: language_level=3, freethreading_compatible=True, binding=True
"""Ms: the threads that carry worlds which move.

An M is a native thread with a Python thread state for life. It is attached while it runs turns, and detached while it
looks for work, waits in the poller or is parked: so it holds no GIL then, and no stop of the world waits for it.
It loops: find a runnable G, run one turn of it, put it where it belongs. A turn runs with the P INCALL: sysmon, or the
callback itself (blocking()), may take the P away meanwhile, which is noticed by the CAS that goes back (gl_enter()).

What hangs on the thread and must follow the world: the running loop, set when the M enters another world, dropped
before it looks for work; the hooks of async generators (see AgenHook); the pool of handles. Ms block the signals that the
thread blocked which started the runtime, whoever starts them: what a callback starts as a process inherits that. The
kernel gives a process's signal to the main thread if that takes it.
"""
cimport cython
import asyncio
import os
import sys
import threading
from cpython.ref cimport Py_DECREF
from libc.stdlib cimport calloc
from gmploop.core.g cimport (
    G, gl_g, gl_obj, gl_pool, gl_g_cas, gl_g_set, gl_g_move, gl_load_acquire, G_IDLE, G_RUNNABLE, G_RUNNING, G_BLOCKED,
    G_DEAD)
from gmploop.core.batch cimport SharedBatch
from gmploop.core.handle cimport gl_timers_len
from gmploop.core.netpoll cimport dispatch
from gmploop.core.sched cimport *
from gmploop.core import netpoll, sched as sched_module, sysmon

cdef extern from *:
    """
    #include "scheduler.h"
    #ifdef __linux__
    #include <sys/prctl.h>
    #endif
    static void gl_name_thread(gl_m *mp) {
        char name[16];
        snprintf(name, sizeof name, "gmploop-M%d", mp->id);
    #if defined(__linux__)
        prctl(PR_SET_NAME, name, 0, 0, 0);
        mp->tid = (int)syscall(SYS_gettid);
    #elif defined(__APPLE__)
        pthread_setname_np(name);
    #endif
    }
    static void (*gl_m_main)(gl_m *mp);
    static sigset_t gl_usual_signals;
    static void gl_note_signals(void) { pthread_sigmask(SIG_BLOCK, NULL, &gl_usual_signals); }
    static void *gl_thread(void *arg) {
        pthread_sigmask(SIG_SETMASK, &gl_usual_signals, NULL);
        gl_name_thread((gl_m *)arg);
        gl_m_main((gl_m *)arg);
        return NULL;
    }
    static void (*gl_tell_refused)(int error);
    static int gl_m_start(gl_m *mp) {   /* with a stack as the main thread usually has */
        int error = gl_thread_start(gl_thread, mp, 8 << 20);
        if (error) gl_tell_refused(error);
        return error ? -1 : 0;
    }
    static void gl_add_u32(uint32_t *p) { gl_store_relaxed(p, *p + 1); }
    static void gl_add_u64(uint64_t *p) { gl_store_relaxed(p, *p + 1); }
    static void gl_set_owner(unsigned long *p, unsigned long v) { gl_store_relaxed(p, v); }
    static void gl_free_owner(unsigned long *p) { gl_store_release(p, 0UL); }     /* with purge() of runtime.pyx */
    #define GL_NOBODYS 1UL      /* GL_BETWEEN_MS of world.h */
    """
    int gl_m_start(gl_m *) noexcept nogil
    void gl_note_signals() noexcept nogil
    void gl_add_u32(uint32_t *) noexcept nogil
    void gl_add_u64(uint64_t *) noexcept nogil
    void gl_set_owner(unsigned long *, unsigned long) noexcept nogil
    void gl_free_owner(unsigned long *) noexcept nogil
    unsigned long GL_NOBODYS
    void (*gl_m_main)(gl_m *) noexcept nogil
    void (*gl_tell_refused)(int) noexcept nogil

cdef extern from "pythread.h":
    unsigned long PyThread_get_thread_ident()

cdef extern from "raised.h":
    object gl_take_exception()

cdef extern from "atomics.h" nogil:
    int load_int "gl_load_relaxed"(int *)
    void store_int "gl_store_relaxed"(int *, int)
    size_t load_size "gl_load_relaxed"(size_t *)
    gl_m *load_m "gl_load_acquire"(gl_m **)
    unsigned long load_ident "gl_load_relaxed"(unsigned long *)

cdef enum:
    TURNS = 61              # in a row without a look at the global queue and the poller; Go's schedtick interval
    TURN_IDLE = 0
    TURN_MORE = 1
    TURN_DEAD = 2

cdef gl_g *NOBODY = <gl_g *>1      # no G's address: the thread's running loop is a world that is over
cdef object set_running_loop = asyncio._set_running_loop
cdef gl_sched *S = sched()
S.start_thread = gl_m_start
cdef int refusals = 0, last_refusal = 0


cdef void tell_refused(int error) noexcept nogil:
    """Without the GIL where nothing is to be said: said once, by those that go on."""
    global refusals, last_refusal
    last_refusal = error
    if S.nmlive > 1:
        refusals += 1
        if refusals == 1:
            log_refusal(error)


cdef void log_refusal(int error) noexcept with gil:
    try:
        asyncio.log.logger.warning("goroutines go on with %d threads, another cannot be had: %s", S.nmlive - 1,
                                   os.strerror(error))
    except BaseException:
        sys.excepthook(*sys.exc_info())


gl_tell_refused = tell_refused

# Injected by gmploop.world: the number of Ps to begin with, and tunables.
cdef object prepare = None


def configure(before_start):
    """Set what is called before the first P is made; it returns how many there shall be."""
    global prepare
    prepare = before_start


def start_default():
    """Start the runtime with the default number of Ps, unless it runs."""
    start(None)


start_lock = threading.Lock()


def after_fork():
    global start_lock
    start_lock = threading.Lock()


os.register_at_fork(after_in_child=after_fork)


def start(procs):
    """Start the runtime with `procs` Ps (None: as configured), unless it runs; then change the number, if one is given.

    RuntimeError if no thread can be had for it: then it is not started.
    """
    with start_lock:
        if S.procs == 0:
            n = prepare(procs)
            gl_note_signals()
            netpoll.open_shared()
            sysmon.start()
            sched_module.set_procs(n)
            if gl_start_first(S) < 0:
                sched_module.set_procs(0)
                raise RuntimeError(f"no thread can be had for goroutines: {os.strerror(last_refusal)}")
        elif procs is not None and procs != S.procs:
            sched_module.set_procs(procs)


cdef void m_main(gl_m *mp) noexcept nogil:
    with gil:
        try:
            begin_thread(mp)
            try:
                run(mp)
            finally:
                flush(mp, True)
        except BaseException:
            sys.excepthook(*sys.exc_info())
        set_current_m(NULL)


gl_m_main = m_main


cdef int begin_thread(gl_m *mp) except -1:
    set_current_m(mp)
    gl_set_owner(&mp.ident, PyThread_get_thread_ident())
    mp.pool = calloc(1, sizeof(gl_pool))
    mp.p, mp.nextp = mp.nextp, NULL
    gl_m_set(mp, M_SPINNING if mp.spinning else M_RUNNING)
    threading.current_thread().name = f"gmploop-M{mp.id}"
    sys.set_asyncgen_hooks(firstiter=first_iteration)
    renew_hook(mp)
    if threading.gettrace() is not None:
        sys.settrace(threading.gettrace())
    if threading.getprofile() is not None:
        sys.setprofile(threading.getprofile())
    return 0


cdef int run(gl_m *mp) except -1:
    """Find and run Gs until the scheduler stops."""
    cdef gl_g *gp = NULL
    cdef int what, n = 0, forks = S.forks
    while S.forks == forks:                 # else its callback has forked, and this is the child: it ends here
        if mp.lockedg != NULL:
            flush(mp, False)
            drop_loop(mp)
            with nogil:
                gl_park_locked(S, mp)
            if mp.nextg == NULL:
                return 0                    # the scheduler stops
            gp, mp.nextg = mp.nextg, NULL
            execute(mp, gp)
            continue
        if mp.p != NULL and (mp.p.schedtick % TURNS == 0 or sends_are_due(mp)):
            flush(mp, False)
        if mp.p != NULL and mp.p.schedtick % TURNS == 0:
            n = gl_look_in_poller(S, mp)
            if n > 0:
                tell_worlds(mp, n)
        gp = NULL
        if mp.p != NULL and mp.p.id < load_int(&S.procs) and not load_int(&S.stopping):
            gp = gl_next(S, mp)
        if gp != NULL:
            gl_spin_found(S, mp)
        else:
            flush(mp, False)
            drop_loop(mp)
            with nogil:
                what = gl_find(S, mp, &gp, &n)
            if what == GL_STOP:
                return 0
            if what == GL_GOT_EVENTS:
                tell_worlds(mp, n)
                continue
        if gp.locked and mp.lockedg != gp:
            gl_give_to_locked(mp, gp)
            continue
        execute(mp, gp)
    return 0


cdef inline bint sends_are_due(gl_m *mp) noexcept:
    return mp.sends != NULL and load_int(&(<SharedBatch>mp.sends).b.due)


cdef int flush(gl_m *mp, bint last) except -1:
    """Send what the worlds that it has run have left to be sent. `last`: it ends."""
    if mp.sends == NULL or not last and (<SharedBatch>mp.sends).b.n == 0:
        return 0
    if mp.p != NULL and not last:
        gl_leave(mp, mp.p)              # it may drop a transport and its protocol, and run what these have to say
    try:
        (<SharedBatch>mp.sends).flush()
    except BaseException:
        sys.excepthook(*sys.exc_info())
    gl_add_u32(&mp.turns)               # it is over, should sysmon have taken the P
    if mp.p != NULL and not last:
        gl_enter(mp)
    if last:
        batch, mp.sends = <SharedBatch>mp.sends, NULL
        Py_DECREF(batch)
    return 0


cdef int drop_loop(gl_m *mp) except -1:
    """Nothing shall hold the last world while the thread waits."""
    if mp.last != NULL:
        mp.last = NULL
        set_running_loop(None)
    return 0


cdef int tell_worlds(gl_m *mp, int n) except -1:
    if mp.p != NULL:
        gl_leave(mp, mp.p)
    try:
        dispatch(mp, n)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    gl_add_u32(&mp.turns)
    if mp.p != NULL:
        gl_enter(mp)
    return 0


ctypedef int (*turner)(gl_m *mp, gl_g *gp) noexcept        # to call what raises without a `try`, which costs in each turn


cdef int turn(gl_m *mp, gl_g *gp) except -1:
    """One turn, and -1 with what is raised. The scheduler's reference holds the world."""
    if mp.last != gp:                       # now the last world may go, and what that takes with it is a callback too
        mp.last = gp
        (<G>gl_obj(gp)).entered(mp)
        if mp.hook_world != NULL and mp.hook_world != gl_obj(gp):
            renew_hook(mp)
    return (<G>gl_obj(gp)).run_turn(mp)


ctypedef int (*timer_setter)(gl_m *mp, gl_g *gp) noexcept


cdef int set_timers(gl_m *mp, gl_g *gp) except -1:
    return (<G>gl_obj(gp)).set_timers(mp.p)


cdef int report(object exc) except -1:
    try:
        sys.excepthook(type(exc), exc, exc.__traceback__)
    except BaseException:               # no memory for that, say: the thread and what it runs must go on
        pass
    return 0


cdef int execute(gl_m *mp, gl_g *gp) except -1:
    """Turns of one G, and where it goes then."""
    cdef gl_p *pp = mp.p
    cdef int turns = 0, r, forks = S.forks
    gl_running(S, mp, pp, gp)
    gl_g_set(&gp.state, G_RUNNING)
    mp.curg = gp
    gl_set_owner(&(<G>gl_obj(gp)).w.owner, mp.ident)
    gp.pool = mp.pool
    while True:
        gl_add_u32(&pp.schedtick)
        gl_add_u32(&mp.turns)
        gl_add_u64(&pp.n.runs)
        gl_share(S, pp)
        store_int(&mp.preempt, 0)
        gl_leave(mp, pp)
        r = (<turner>turn)(mp, gp)
        if r < 0:
            r = TURN_MORE
            report(gl_take_exception())
        if S.forks != forks:
            return 0
        if mp.blocked:                      # an await within syscall()
            mp.blocked = 0
            move_g(mp, G_BLOCKED, G_RUNNING)
        if r == TURN_DEAD:
            return bury(mp, gp)
        if r == TURN_IDLE and gl_timers_len(&(<G>gl_obj(gp)).w.timers) and (<timer_setter>set_timers)(mp, gp) < 0:
            r = TURN_MORE                   # it runs again and looks at the time itself, until there is memory
            report(gl_take_exception())
        pp = gl_enter(mp)
        turns += 1
        if (pp == NULL or r == TURN_IDLE or turns == TURNS or gl_runq_len(&pp.q) or load_size(&S.qsize)
                or sends_are_due(mp)):
            break
    return put_away(mp, gp, r)


cdef int put_away(gl_m *mp, gl_g *gp, int r) except -1:
    """After a turn: to sleep, or to the end of a queue. What is not running any more belongs to others at once."""
    cdef int64_t when
    cdef void *g = gl_obj(gp)
    mp.curg = NULL
    gp.pool = NULL
    gl_add_u32(&mp.turns)
    gl_set_owner(&(<G>g).w.owner, GL_NOBODYS)
    if r == TURN_IDLE:
        when = gl_event_time(S)
        if gl_g_cas(&gp.state, G_RUNNING, G_IDLE):
            if when:
                gl_put_event(S, when, EV_G + G_IDLE, g, mp.p, mp)
            return 0
    gl_g_set(&gp.state, G_RUNNABLE)
    if mp.lockedg == gp:
        gl_ready(S, NULL, gp, False)
    else:
        gl_requeue(S, mp, gp)
    return 0


cdef int bury(gl_m *mp, gl_g *gp) except -1:
    """The world is over. It stays the thread's running loop, and so alive, until the next one is entered."""
    cdef G g = <G>gl_obj(gp)
    if mp.lockedg == gp:
        mp.locks = 0
        gl_lock_to(mp, NULL)
    gp.pool = NULL
    gl_happened(S, EV_G + G_DEAD, <void *>g, mp.p, mp)
    gl_g_set(&gp.state, G_DEAD)
    gl_free_owner(&g.w.owner)
    mp.curg = NULL
    mp.last = NOBODY
    Py_DECREF(g)
    g = None
    gl_add_u32(&mp.turns)
    if gl_enter(mp) != NULL:
        mp.p.deaths += 1
    return 0


def threads():
    """The Ms that live: thread identity -> name."""
    cdef gl_m *mp
    cdef int i
    cdef unsigned long ident
    found = {}
    for i in range(load_int(&S.nm)):
        mp = load_m(&S.allm[i])
        ident = load_ident(&mp.ident)
        if load_int(&mp.state) != M_DEAD and ident:
            found[ident] = f"gmploop-M{mp.id}"
    return found


# -- async generators

@cython.final
cdef class AgenHook:
    """A thread's finaliser of async generators: bound to the world that first iterated one under it.

    The interpreter notes the thread's finaliser in a generator before it tells anybody of the first iteration. So a
    thread's hook is nobody's until then, and becomes the world's; before another world runs on the thread, it gets a
    new one. Worlds without async generators cost nothing.
    """
    cdef object world

    def __call__(self, agen):
        if self.world is not None:
            self.world._asyncgen_finalizer_hook(agen)


cdef int renew_hook(gl_m *mp) except -1:
    mp.hook_world = NULL
    sys.set_asyncgen_hooks(finalizer=AgenHook())
    return 0


def first_iteration(agen):
    """The firstiter hook of each M."""
    world = asyncio._get_running_loop()
    cdef AgenHook hook = sys.get_asyncgen_hooks().finalizer
    if hook.world is None:
        hook.world = world
        current_m().hook_world = <void *>world
    world._asyncgen_firstiter_hook(agen)


# -- what a callback may ask of its M

cdef int move_g(gl_m *mp, int old, int new) except -1:
    gl_happened(S, EV_G + new, gl_obj(mp.curg), mp.p, mp)
    gl_g_move(&mp.curg.state, old, new)
    return 0


def enter_blocking():
    """The callback is going to block: give the P away now. Returns whether this thread is an M in a callback."""
    cdef gl_m *mp = current_m()
    if mp == NULL or mp.curg == NULL:
        return False
    mp.blocked += 1
    if mp.blocked == 1:
        move_g(mp, G_RUNNING, G_BLOCKED)
        with nogil:
            gl_give_away(S, mp)
    return True


def leave_blocking():
    """The callback goes on: with a P, if one is idle, else without."""
    cdef gl_m *mp = current_m()
    if mp == NULL or mp.blocked == 0:       # awaited meanwhile: the turn has ended that
        return
    mp.blocked -= 1
    if mp.blocked:
        return
    move_g(mp, G_BLOCKED, G_RUNNING)
    if mp.p == NULL and gl_take_idle(S, mp) != NULL:
        gl_add_u32(&mp.p.schedtick)
        store_int(&mp.preempt, 0)
        gl_leave(mp, mp.p)


def lock_thread(int n):
    """Tie the running G to its M (n 1), or take one tie back (-1). Returns whether this thread is an M in a callback."""
    cdef gl_m *mp = current_m()
    if mp == NULL or mp.curg == NULL:
        return False
    if mp.locks + n < 0:
        raise RuntimeError("unlock_os_thread() without lock_os_thread()")
    mp.locks += n
    gl_lock_to(mp, mp.curg if mp.locks else NULL)
    return True
