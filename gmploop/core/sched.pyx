# cython: language_level=3, freethreading_compatible=True, binding=True
"""The process's scheduler: the one instance of scheduler.h, the calling thread's M, and what can be read of them."""
import operator
import os

cdef extern from *:
    """
    #include "scheduler.h"
    static gl_sched gl_the_sched;
    #ifdef __GLIBC__    /* asked for several times in each turn: without a call; elsewhere such a module may not load */
    __attribute__((tls_model("initial-exec")))
    #endif
    static __thread gl_m *gl_my_m;
    static void gl_set_my_m(gl_m *mp) { gl_my_m = mp; }
    """
    gl_sched gl_the_sched
    gl_m *gl_my_m
    void gl_set_my_m(gl_m *) noexcept nogil
    int load_int "gl_load_relaxed"(int *)
    int load_nallp "gl_load_acquire"(int *)         # with gl_set_procs(): the entries below it are there
    uint32_t load_u32 "gl_load_relaxed"(uint32_t *)
    uint64_t load_u64 "gl_load_relaxed"(uint64_t *)
    size_t load_size "gl_load_relaxed"(size_t *)
    void store_int "gl_store_relaxed"(int *, int)
    gl_events *load_ring "gl_load_acquire"(gl_events **)


FIRST = operator.itemgetter(0)


cdef gl_sched *sched() noexcept nogil:
    return &gl_the_sched


cdef gl_m *current_m() noexcept nogil:
    """The M that the calling thread is, or NULL."""
    return gl_my_m


cdef void set_current_m(gl_m *mp) noexcept nogil:
    gl_set_my_m(mp)


gl_sched_init(&gl_the_sched)


def after_fork():
    """In the child: there is no goroutine and no M. If an M has forked, its callback goes on as a plain thread's."""
    gl_sched_after_fork(&gl_the_sched)
    gl_set_my_m(NULL)


os.register_at_fork(after_in_child=after_fork)


def set_tunables(*, long long spin_ns, long long backlog_ns, long long dying_ns, uint32_t slice):
    """See config.py."""
    gl_the_sched.spin_ns, gl_the_sched.backlog_ns = spin_ns, backlog_ns
    gl_the_sched.dying_ns, gl_the_sched.slice = dying_ns, slice


def set_procs(int n):
    """Have n Ps. The caller has checked n and started the runtime."""
    if gl_set_procs(&gl_the_sched, n) < 0:
        raise MemoryError()


def procs():
    """How many Ps there are; 0 before the first goroutine."""
    return load_int(&gl_the_sched.procs)


cdef dict counters_of(gl_p *pp):
    cdef gl_counters *n = &pp.n
    return {"id": pp.id, "status": ("idle", "running", "incall", "dead")[load_int(&pp.status) & 7],
            "schedtick": load_u32(&pp.schedtick), "queue": gl_runq_len(&pp.q), "runs": load_u64(&n.runs),
            "inherited": load_u64(&n.inherited), "steals": load_u64(&n.steals), "stolen": load_u64(&n.stolen),
            "from_global": load_u64(&n.from_global), "overflows": load_u64(&n.overflows), "polls": load_u64(&n.polls),
            "timers": load_u64(&n.timers), "wakes": load_u64(&n.wakes), "latency_ns": latencies(n)}


cdef dict latencies(gl_counters *n):
    cdef int i
    cdef uint64_t count
    found = {}
    for i in range(GL_LATENCIES):
        count = load_u64(&n.latency[i])
        if count:
            found[gl_latency_above(i) * <uint64_t>32] = count
    return found


def counters():
    """What the scheduler counts, as a dict. Each figure is read by itself, while the others go on."""
    cdef gl_sched *S = &gl_the_sched
    cdef int i
    rows = [counters_of(S.allp[i]) for i in range(load_nallp(&S.nallp))]
    return {"procs": load_int(&S.procs), "idle_procs": load_int(&S.npidle), "threads": load_int(&S.nmlive),
            "idle_threads": load_int(&S.nmidle), "threads_made": load_u64(&S.m_made),
            "spinning": load_int(&S.nmspinning), "global_queue": load_size(&S.qsize),
            "watched_fds": load_int(&S.watchers), "handoffs": load_u64(&S.handoffs), "retakes": load_u64(&S.retakes),
            "stalls": load_u64(&S.stalls), "late_polls": load_u64(&S.late_polls), "parks": load_u64(&S.parks),
            "spins": load_u64(&S.spins), "runs": sum(row["runs"] for row in rows), "steals": sum(row["steals"] for row in rows), "per_proc": rows}


KINDS = {EV_G + state: f"G {name}" for state, name in enumerate(("idle", "runnable", "running", "blocked", "dead"))}
KINDS |= {8 + state: f"P {name}" for state, name in enumerate(("idle", "running", "incall", "dead"))}
KINDS |= {16 + state: f"M {name}" for state, name in enumerate(("new", "running", "spinning", "parked", "polling",
                                                                "orphan", "dead"))}


def record_events(bint on=True):
    """From now on write down what becomes of Gs, Ps and Ms, or no longer. From any thread."""
    store_int(&gl_the_sched.events_on, on)


def events():
    """What was written down and not overwritten yet, as tuples (ns, kind, g, p, m), oldest first; see gmploop.events()."""
    cdef gl_events *ring
    cdef gl_event e
    cdef uint64_t n, end
    cdef int i
    found = []
    for i in range(GL_MAX_P + 1):
        ring = load_ring(&gl_the_sched.events[i])
        if ring == NULL:
            continue
        end = load_u64(&ring.next)
        for n in range(end - GL_EVENTS if end > GL_EVENTS else 0, end):
            if gl_events_get(ring, n, &e):
                found.append((e.when_ns, KINDS[e.what & 255], <size_t>e.g or None, <int>(e.what >> 8 & 0xffff) - 1,
                              <int>(e.what >> 24)))
    found.sort(key=FIRST)
    return [(when, kind, g, None if p < 0 else p, m or None) for when, kind, g, p, m in found]
