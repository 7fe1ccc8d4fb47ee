from gmploop.core.g cimport gl_g
from gmploop.core.handle cimport gl_spinlock

cdef extern from "<stdint.h>":
    ctypedef long long int64_t
    ctypedef unsigned long long uint64_t
    ctypedef unsigned int uint32_t

cdef extern from "park.h" nogil:
    ctypedef struct gl_note:
        pass
    void gl_note_wake(gl_note *)
    int gl_note_sleep(gl_note *, int64_t)
    int64_t gl_now_ns()

cdef extern from "scheduler.h" nogil:
    ctypedef struct gl_m
    enum: GL_STOP, GL_GOT_G, GL_GOT_EVENTS, GL_MAX_P, GL_MAX_M, P_IDLE, P_RUNNING, P_INCALL, P_DEAD
    enum: M_NEW, M_RUNNING, M_SPINNING, M_PARKED, M_POLLING, M_ORPHAN, M_DEAD
    ctypedef struct gl_counters:
        uint64_t runs, inherited, steals, stolen, from_global, overflows, polls, timers, wakes
        uint64_t latency[1]
    ctypedef struct gl_runq:
        gl_g *runnext
    ctypedef struct gl_p:
        int id, status
        gl_runq q
        uint32_t schedtick, deaths
        int64_t next_ns
        gl_counters n
    ctypedef struct gl_m:
        int id, state, spinning, preempt
        gl_p *p
        gl_p *nextp
        gl_g *nextg
        gl_g *lockedg
        gl_g *curg
        gl_g *last
        gl_note note
        gl_m *link
        unsigned long ident
        int tid, blocked, locks
        void *events
        void *pool
        void *waiters
        void *sends
        void *hook_world
        uint32_t turns
    ctypedef struct gl_event:
        int64_t when_ns
        const void *g
        uint64_t what
    ctypedef struct gl_events:
        uint64_t next
    int gl_events_get(gl_events *, uint64_t, gl_event *)
    enum: GL_LATENCIES, GL_EVENTS, EV_G
    unsigned int gl_latency_above(int)
    void gl_running(gl_sched *, gl_m *, gl_p *, gl_g *)
    void gl_happened(gl_sched *, int, const void *, const gl_p *, const gl_m *)
    void gl_put_event(gl_sched *, int64_t, int, const void *, const gl_p *, const gl_m *)
    int64_t gl_event_time(gl_sched *)
    ctypedef struct gl_watched:
        void *loop
        unsigned long ident
        uint32_t beat
        int64_t tell_ns
    void gl_beat(gl_watched *, uint32_t)
    void gl_watched_enter(gl_sched *, gl_watched *, void *, unsigned long, uint32_t)
    void gl_watched_leave(gl_sched *, gl_watched *)
    ctypedef struct gl_batch:
        gl_g *first
        uint32_t n
    ctypedef struct gl_list:
        gl_spinlock lock
        gl_g *first
        size_t n
    ctypedef struct gl_sched:
        gl_list all[1]
        size_t qsize
        int npidle, nmidle, nmspinning, needspinning, procs, nallp, nm, nmlive, stopping, forks, watchers, polling
        gl_p *allp[1]
        gl_m *allm[1]
        int64_t lastpoll_ns, spin_ns, backlog_ns, dying_ns
        uint32_t slice
        uint64_t handoffs, retakes, stalls, late_polls, parks, spins, m_made
        int events_on
        gl_events *events[1]
        gl_note sysmon
        int unwatched
        int (*poll)(gl_m *, int64_t) noexcept nogil
        void (*poll_break)() noexcept nogil
        int (*start_thread)(gl_m *) noexcept nogil
        int rest_wanted
        void (*on_rest)() noexcept nogil
    int gl_at_rest(gl_sched *)
    int gl_start_first(gl_sched *)
    void gl_sched_init(gl_sched *)
    void gl_sched_after_fork(gl_sched *)
    int gl_set_procs(gl_sched *, int)
    void gl_stop(gl_sched *)
    gl_g *gl_next(gl_sched *, gl_m *)
    int gl_find(gl_sched *, gl_m *, gl_g **, int *)
    void gl_share(gl_sched *, gl_p *)
    void gl_ready(gl_sched *, gl_m *, gl_g *, int)
    gl_p *gl_enter(gl_m *)
    void gl_leave(gl_m *, gl_p *)
    gl_p *gl_take_idle(gl_sched *, gl_m *)
    int gl_give_away(gl_sched *, gl_m *)
    void gl_m_set(gl_m *, int)
    void gl_wakep(gl_sched *)
    int gl_timer_set(gl_sched *, gl_p *, gl_g *, void **, double)
    void gl_timer_forget(void *)
    uint32_t gl_runq_len(gl_runq *)
    void gl_spin_found(gl_sched *, gl_m *)
    void gl_startm(gl_sched *, gl_p *, int)
    void gl_all_add(gl_sched *, gl_g *, int)
    void gl_all_remove(gl_sched *, gl_g *)
    int gl_look_in_poller(gl_sched *, gl_m *)
    void gl_give_to_locked(gl_m *, gl_g *)
    void gl_lock_to(gl_m *, gl_g *)
    void gl_park_locked(gl_sched *, gl_m *)
    void gl_requeue(gl_sched *, gl_m *, gl_g *)

cdef gl_sched *sched() noexcept nogil
cdef gl_m *current_m() noexcept nogil
cdef void set_current_m(gl_m *) noexcept nogil
