# cython: language_level=3, freethreading_compatible=True, binding=True
"""The process's scheduler: the one instance of scheduler.h, the calling thread's M, and what can be read of them."""
import os

cdef extern from *:
    """
    #include "scheduler.h"
    static gl_sched gl_the_sched;
    static __thread gl_m *gl_my_m;
    static void gl_set_my_m(gl_m *mp) { gl_my_m = mp; }
    """
    gl_sched gl_the_sched
    gl_m *gl_my_m
    void gl_set_my_m(gl_m *) noexcept nogil
    uint32_t load_u32 "gl_load_relaxed"(uint32_t *)


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


def set_tunables(long long spin_ns, long long backlog_ns):
    """How long a thread looks for work before it sleeps, and from how much queued work on another one is woken."""
    gl_the_sched.spin_ns, gl_the_sched.backlog_ns = spin_ns, backlog_ns


def set_procs(int n):
    """Have n Ps. The caller has checked n and started the runtime."""
    if gl_set_procs(&gl_the_sched, n) < 0:
        raise MemoryError()


def procs():
    """How many Ps there are; 0 before the first goroutine."""
    return gl_the_sched.procs


def counters():
    """What the scheduler counts, as a dict."""
    cdef gl_sched *S = &gl_the_sched
    cdef gl_p *pp
    cdef int i
    rows = []
    for i in range(S.nallp):
        pp = S.allp[i]
        rows.append({"id": i, "status": ("idle", "running", "incall", "dead")[pp.status & 7],
                     "schedtick": pp.schedtick, "queue": gl_runq_len(&pp.q), "runs": pp.n.runs,
                     "inherited": pp.n.inherited, "steals": pp.n.steals, "stolen": pp.n.stolen,
                     "from_global": pp.n.from_global, "overflows": pp.n.overflows, "polls": pp.n.polls,
                     "timers": pp.n.timers, "wakes": pp.n.wakes})
    return {"procs": S.procs, "idle_procs": S.npidle, "threads": S.nmlive, "idle_threads": S.nmidle,
            "threads_made": S.m_made, "spinning": S.nmspinning, "global_queue": S.qsize, "watched_fds": S.watchers,
            "handoffs": S.handoffs, "retakes": S.retakes, "stalls": S.stalls, "late_polls": S.late_polls,
            "parks": S.parks, "runs": sum(row["runs"] for row in rows), "steals": sum(row["steals"] for row in rows),
            "per_proc": rows}
