/* The scheduler: who runs which G, on what thread, and when a thread sleeps. Go's rules, without Python.
 *
 * States.   P:  IDLE -> RUNNING <-> INCALL;  INCALL -> IDLE (taken from a callback that runs too long, or given away);
 *               RUNNING -> IDLE (nothing to do);  IDLE, RUNNING -> DEAD (fewer are wanted) -> IDLE
 *           An M that holds a P is in the P's status word, beside the state: that is what makes taking a P away safe.
 *           The callback of a G runs with its P INCALL. Whoever goes back into the scheduler, the M itself or who takes
 *           the P from it, does so by CAS on that word: one of them wins. If the M loses it goes on without a P, and no
 *           later change can be taken for the old one, since the word with its number in it is gone.
 *           M:  gl_m_legal below.
 *
 * Invariants. A runnable G is in one place: a ring, a runnext, the global queue, a chain in somebody's hands, or in the
 * hands of the M that will run it. An idle P is in the idle list or in the hands of who is about to give it to an M.
 *
 * No lost wake-up, while a G is runnable and a P idle:
 * - into a ring only an M with a P puts, and it looks there again before it gives its P up. Whether others are woken to
 *   share is a matter of speed; `sysmon` bounds it.
 * - into the global queue everybody puts: under `lock`, then a fence, then wakep(). An M gives its P up under `lock`
 *   too, having looked at the global queue there. So either it saw the G, or the putter sees the idle P.
 * - wakep() does nothing while somebody spins. A spinner that stops (P to the idle list, count down, fence) looks at
 *   all queues and timers again; the putter's order is: queue, fence, read the count. One of both sees the other.
 * - timers: who adds one makes it visible (next_ns), fence, reads poll_until. The poller writes poll_until, fence,
 *   reads all next_ns. One of both sees the other.
 *
 * Locks: `lock` guards idle lists, global queue, allp/allm, procs. A P's `tlock` guards its heap. No lock is taken
 * under tlock; tlock may be taken under lock. No Python object is touched under either.
 */
#ifndef GMPLOOP_SCHEDULER_H
#define GMPLOOP_SCHEDULER_H

#include "park.h"
#include "runq.h"
#include "events.h"
#include "timers.h"
#include <limits.h>
#include <string.h>

enum { GL_MAX_P = 256, GL_MAX_M = 2048 };       /* guessed; Go stops at 10,000 Ms */
enum { P_IDLE, P_RUNNING, P_INCALL, P_DEAD, P_STATES };
enum { M_NEW, M_RUNNING, M_SPINNING, M_PARKED, M_POLLING, M_ORPHAN, M_DEAD, M_STATES };
enum { GL_STOP, GL_GOT_G, GL_GOT_EVENTS };      /* what gl_find() brings */
#define GL_REFUSED_NS 10000000                  /* then the system is asked for a thread again; guessed */
enum { GL_LISTS = 16 };                         /* lists of all Gs: as many as threads hardly meet in */
enum { GL_SAMPLED = 8 };                        /* of so many waits for a P one is timed, for the clock's sake; Go's */
enum { GL_LATENCIES = 108 };                    /* gl_latency_bucket() of 2^28 - 1, and one */
enum { EV_G = 0, EV_P = 8, EV_M = 16 };         /* kinds of events: these + the new state */

static const unsigned char gl_p_legal[P_STATES][P_STATES] = {
    /* from \ to    IDLE RUNNING INCALL DEAD */
    /* IDLE    */ { 0,   1,      0,     1 },
    /* RUNNING */ { 1,   0,      1,     1 },
    /* INCALL  */ { 1,   1,      0,     0 },
    /* DEAD    */ { 1,   0,      0,     0 },
};

/* RUNNING: has a P, or is about to look for one. ORPHAN: its callback goes on without a P. */
static const unsigned char gl_m_legal[M_STATES][M_STATES] = {
    /* from \ to     NEW RUNNING SPINNING PARKED POLLING ORPHAN DEAD */
    /* NEW      */ { 0,  1,      1,       0,     0,      0,     1 },
    /* RUNNING  */ { 0,  0,      1,       1,     1,      1,     1 },
    /* SPINNING */ { 0,  1,      0,       0,     0,      0,     1 },
    /* PARKED   */ { 0,  1,      1,       0,     0,      0,     1 },
    /* POLLING  */ { 0,  1,      1,       1,     0,      0,     1 },
    /* ORPHAN   */ { 0,  1,      0,       0,     0,      0,     1 },
    /* DEAD     */ { 0,  0,      0,       0,     0,      0,     0 },
};

typedef struct {                        /* written by the P's owner, read by anybody */
    uint64_t runs, inherited, steals, stolen, from_global, overflows, polls, timers, wakes;
    uint64_t latency[GL_LATENCIES];     /* runnable to running, of the waits that are sampled */
} gl_counters;

typedef struct gl_p {
    struct gl_sched *sched;
    int id;
    int status;                         /* state | M's id << 3; see above */
    gl_runq q;
    gl_spinlock tlock;
    gl_timers timers;                   /* one entry for each world that waits for a time */
    int64_t next_ns;                    /* the earliest of them; INT64_MAX: none. Written under tlock */
    uint32_t woken;                     /* worlds that a time has woken; under tlock */
    uint32_t schedtick;                 /* turns begun. Owner */
    int64_t tick_ns, mean_ns;           /* time of the last multiple of four, length of a turn since then. Owner */
    struct gl_p *link;                  /* idle list */
    uint32_t seen_tick;                 /* sysmon's: the last schedtick it saw, */
    int64_t seen_ns;                    /* since when, */
    int stalled;                        /* and whether that turn was reported */
    gl_counters n;
} gl_p;

struct gl_m {
    struct gl_sched *sched;
    int id;
    int state;
    int spinning;                       /* itself; who wakes it before it wakes */
    int preempt;                        /* set by who took its P: end the turn after this callback */
    gl_p *p;                            /* itself. After the P was taken: the old one, until it notices */
    gl_p *nextp;                        /* by who wakes it, under lock */
    gl_g *nextg;                        /* a G locked to it, by who hands it over */
    gl_g *lockedg;                      /* it runs this G only; `locks` calls say so */
    int locks;
    gl_g *curg;                         /* what it runs; others may only compare or print it */
    gl_note note;
    struct gl_m *link;                  /* idle list */
    unsigned long ident;                /* of the Python thread */
    int tid;                            /* of the kernel's, where it has one */
    int blocked;                        /* in blocking() or syscall() */
    uint32_t random;
    uint32_t readied;                   /* Gs made runnable. Itself */
    void *events;                       /* the poller's buffer of this M */
    uint32_t turns;                     /* begun. Itself; sysmon reads */
    gl_g *last;                         /* whose loop is the thread's running loop; only compared */
    void *pool;                         /* handles kept for reuse */
    void *hook_world;                   /* whom the thread's hook of async generators belongs to; only compared */
};

typedef struct { gl_spinlock lock; gl_g *first; size_t n; } gl_list;

typedef struct gl_sched {
    pthread_mutex_t lock;
    gl_g *qhead, *qtail;                /* the global queue */
    size_t qsize;                       /* under lock; read anywhere */
    gl_p *pidle;
    int npidle;                         /* under lock; read anywhere */
    gl_m *midle;
    int nmidle;
    int nmspinning;                     /* atomic */
    int needspinning;
    int procs, nallp;                   /* wanted; ever made. Under lock; read anywhere */
    int nm, nmlive;
    gl_p *allp[GL_MAX_P];
    gl_m *allm[GL_MAX_M];
    int stopping;
    int forks;                          /* between the first process and this one: an M of another is none here */
    int watchers;                       /* fds that the poller watches. Atomic */
    int polling;                        /* somebody is in the poller. Atomic */
    gl_m *poller_m;                     /* who waits there without a P. Under lock */
    int64_t poll_until;                 /* until when; INT64_MIN: nobody waits */
    int64_t lastpoll_ns;
    gl_list all[GL_LISTS];              /* every G from go() to death */
    gl_note sysmon;
    int sysmon_parked;
    uint64_t handoffs, retakes, stalls, late_polls, parks, spins, m_made;
    uint32_t readied;                   /* as an M's, by threads that are none: some may be lost */
    int events_on;
    gl_events *events[GL_MAX_P + 1];    /* of each P and, first, of what happens without one; made by the first event */
    int64_t spin_ns, backlog_ns;        /* config: SPIN_US, BACKLOG_US */
    int (*poll)(gl_m *mp, int64_t delay_ns);    /* <0 waits, 0 looks, >0 bounded; how many events are in mp->events */
    void (*poll_break)(void);
    int (*start_thread)(gl_m *mp);      /* 0, or -1 */
    gl_m *spare;                        /* an M that no thread was to be had for, and */
    int64_t refused_ns;                 /* when. Under lock; read anywhere */
    int rest_wanted;                    /* somebody wants to know when all Ms have come to rest. Atomic; cleared by who tells */
    void (*on_rest)(void);
} gl_sched;

#define GL_NEVER INT64_MAX

/* Counters that one thread writes, or that several do; read at any time. */
#define GL_ADD(counter, n)  gl_store_relaxed(&(counter), (counter) + (n))
#define GL_SUM(counter, n)  __atomic_fetch_add(&(counter), (n), __ATOMIC_RELAXED)

/* -- the seam for looking in: every transition of a G, P or M passes through gl_happened(). What gives a G or P to others
 * does so before them, or takes its time before, so that the events of each come in the order of their times. */

static void gl_put_event(gl_sched *S, int64_t when_ns, int kind, const void *g, const gl_p *pp, const gl_m *mp) {
    gl_events **at = &S->events[pp ? pp->id + 1 : 0], *ring = gl_load_acquire(at), *none = NULL;
    if (!ring) {
        if (!(ring = (gl_events *)calloc(1, sizeof *ring))) return;
        if (!__atomic_compare_exchange_n(at, &none, ring, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
            free(ring);
            ring = none;
        }
    }
    gl_events_put(ring, when_ns, g, (uint64_t)kind | (uint64_t)(pp ? pp->id + 1 : 0) << 8
                  | (uint64_t)(mp ? mp->id : 0) << 24);
}

/* The time for an event that is put when it has happened; 0 while nobody looks. */
static inline int64_t gl_event_time(gl_sched *S) {
    return __builtin_expect(gl_load_relaxed(&S->events_on), 0) ? gl_now_ns() : 0;
}

static inline void gl_happened(gl_sched *S, int kind, const void *g, const gl_p *pp, const gl_m *mp) {
    if (__builtin_expect(gl_load_relaxed(&S->events_on), 0)) gl_put_event(S, gl_now_ns(), kind, g, pp, mp);
}

/* A G becomes runnable. By who queues it next; mp: the M that does, or NULL. */
static inline uint32_t gl_since(void) { return ((uint32_t)(gl_now_ns() >> 5) & 0xfffffff) | 1; }

static inline void gl_runnable(gl_sched *S, gl_m *mp, gl_g *gp) {
    uint32_t *readied = mp ? &mp->readied : &S->readied, n = gl_load_relaxed(readied);
    gl_store_relaxed(readied, n + 1);
    gp->since = n % GL_SAMPLED ? 0 : gl_since();
    gl_happened(S, EV_G + G_RUNNABLE, gp->obj, mp ? mp->p : NULL, mp);
}

/* Four buckets for each power of two: what is in one is at most a quarter larger than what else is. */
static inline int gl_latency_bucket(uint32_t units) {
    int e = units < 4 ? 1 : 31 - __builtin_clz(units);
    return units < 4 ? (int)units : (e - 1) * 4 + (int)(units >> (e - 2) & 3);
}

/* The least number of units that is above the bucket. */
static inline uint32_t gl_latency_above(int bucket) {
    return bucket < 4 ? (uint32_t)bucket + 1 : (uint32_t)(bucket % 4 + 5) << (bucket / 4 - 1);
}

/* The M that holds pp runs the G. */
static inline void gl_running(gl_sched *S, gl_m *mp, gl_p *pp, gl_g *gp) {
    if (gp->since) {
        GL_ADD(pp->n.latency[gl_latency_bucket((gl_since() - gp->since) & 0xfffffff)], 1);
        gp->since = 0;
    }
    gl_happened(S, EV_G + G_RUNNING, gp->obj, pp, mp);
}

static inline gl_m *gl_m_at(gl_sched *S, int status) {
    return status >> 3 ? gl_load_acquire(&S->allm[(status >> 3) - 1]) : NULL;
}

static inline int gl_status(int state, const gl_m *mp) { return state | (mp ? mp->id : 0) << 3; }

static inline void gl_illegal(const char *what, int from, int to) {
    fprintf(stderr, "gmploop: illegal transition of %s: %d -> %d\n", what, from, to);
    abort();
}

static inline int gl_p_cas(gl_p *pp, int from, int to) {
#ifdef GMPLOOP_DEBUG_STATES
    if (!gl_p_legal[from & 7][to & 7]) gl_illegal("a P", from & 7, to & 7);
#endif
    int64_t when = gl_event_time(pp->sched);
    int done = gl_cas_int(&pp->status, from, to);
    if (when && done) gl_put_event(pp->sched, when, EV_P + (to & 7), NULL, pp, gl_m_at(pp->sched, to));
    return done;
}

/* By who has the P in hand, alone. */
static inline void gl_p_set(gl_p *pp, int to) {
#ifdef GMPLOOP_DEBUG_STATES
    int from = gl_load_relaxed(&pp->status);
    if (!gl_p_legal[from & 7][to & 7]) gl_illegal("a P", from & 7, to & 7);
#endif
    gl_happened(pp->sched, EV_P + (to & 7), NULL, pp, gl_m_at(pp->sched, to));
    gl_store_release(&pp->status, to);
}

static inline void gl_m_set(gl_m *mp, int to) {
#ifdef GMPLOOP_DEBUG_STATES
    int from = gl_load_relaxed(&mp->state);
    if (from != to && !gl_m_legal[from][to]) gl_illegal("an M", from, to);
#endif
    gl_happened(mp->sched, EV_M + to, NULL, mp->p, mp);
    gl_store_relaxed(&mp->state, to);
}

/* -- idle lists and the global queue; all under lock */

static inline void gl_pidle_put(gl_sched *S, gl_p *pp) {
    pp->link = S->pidle;
    S->pidle = pp;
    __atomic_store_n(&S->npidle, S->npidle + 1, __ATOMIC_SEQ_CST);
}

static inline gl_p *gl_pidle_get(gl_sched *S) {
    gl_p *pp = S->pidle;
    if (!pp) return NULL;
    S->pidle = pp->link;
    gl_store_relaxed(&S->npidle, S->npidle - 1);
    if (gl_load_relaxed(&S->sysmon_parked)) {           /* no longer all idle: somebody must watch */
        gl_store_relaxed(&S->sysmon_parked, 0);
        gl_note_wake(&S->sysmon);
    }
    return pp;
}

static inline void gl_q_put(gl_sched *S, const gl_batch *b) {
    if (!b->n) return;
    if (S->qtail) S->qtail->next = b->first;
    else S->qhead = b->first;
    S->qtail = b->last;
    gl_store_relaxed(&S->qsize, S->qsize + b->n);
}

static inline gl_g *gl_q_pop(gl_sched *S) {
    gl_g *gp = S->qhead;
    S->qhead = gp->next;
    if (!S->qhead) S->qtail = NULL;
    gl_store_relaxed(&S->qsize, S->qsize - 1);
    gp->next = NULL;
    return gp;
}

/* A fair share, at most half a ring: the first is returned, the others go to pp's ring. */
static inline gl_g *gl_q_get(gl_sched *S, gl_p *pp, size_t most) {
    gl_batch none = { 0 };
    size_t n = S->qsize / (size_t)(S->procs > 0 ? S->procs : 1) + 1;
    gl_g *gp;
    if (!S->qsize) return NULL;
    if (n > S->qsize) n = S->qsize;
    if (n > GL_RUNQ_CAP / 2) n = GL_RUNQ_CAP / 2;
    if (most && n > most) n = most;
    GL_ADD(pp->n.from_global, n);
    gp = gl_q_pop(S);
    while (--n) gl_runq_put(&pp->q, gl_q_pop(S), 0, &none);     /* the ring was empty, or `most` is 1 */
    return gp;
}

/* -- Ms */

static void gl_startm(gl_sched *S, gl_p *pp, int spinning);

/* If a P is idle and nobody looks for work, wake an M to look. */
static inline void gl_wakep(gl_sched *S) {
    int zero = 0;
    gl_p *pp;
    if (!gl_load_relaxed(&S->npidle) || gl_load_relaxed(&S->nmspinning)) return;
    if (!__atomic_compare_exchange_n(&S->nmspinning, &zero, 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) return;
    pthread_mutex_lock(&S->lock);
    pp = gl_pidle_get(S);
    /* Under the lock: who put a G before it, and saw this count, is seen by the M that gives up a P after it. */
    if (!pp) __atomic_fetch_sub(&S->nmspinning, 1, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&S->lock);
    if (pp) gl_startm(S, pp, 1);
}

static inline void gl_give(gl_m *mp, gl_p *pp, int spinning) {
    gl_p_set(pp, gl_status(P_RUNNING, mp));
    mp->spinning = spinning;
    mp->nextp = pp;
}

/* Whether no thread was to be had just now. */
static inline int gl_refused(gl_sched *S, int64_t now) {
    return gl_load_relaxed(&S->spare) && now - gl_load_relaxed(&S->refused_ns) < GL_REFUSED_NS;
}

static gl_m *gl_new_m(gl_sched *S) {            /* under lock */
    gl_m *mp = S->spare;
    if (mp) {
        if (gl_refused(S, gl_now_ns())) return NULL;
        gl_store_relaxed(&S->spare, NULL);
        GL_ADD(S->nmlive, 1);
        return mp;
    }
    if (S->nm == GL_MAX_M || !(mp = (gl_m *)calloc(1, sizeof *mp))) return NULL;
    mp->sched = S;
    mp->id = S->nm + 1;                         /* 0 is nobody */
    mp->random = (uint32_t)mp->id * 2654435761u;
    gl_note_init(&mp->note);
    gl_store_release(&S->allm[mp->id - 1], mp);
    gl_store_release(&S->nm, mp->id);
    GL_ADD(S->nmlive, 1);
    GL_ADD(S->m_made, 1);
    return mp;
}

/* An M for the P in hand: a parked one, the one in the poller, or a new one. */
static void gl_startm(gl_sched *S, gl_p *pp, int spinning) {
    gl_m *mp, *made = NULL;
    int polls = 0;
    GL_SUM(S->spins, (uint64_t)spinning);
    pthread_mutex_lock(&S->lock);
    if ((mp = S->midle)) {
        S->midle = mp->link;
        GL_ADD(S->nmidle, -1);
    } else if ((mp = S->poller_m) && !mp->nextp && !gl_load_relaxed(&S->watchers)) {
        polls = 1;      /* it waits for a time only, and will be back there when this has been done */
    } else {
        mp = made = gl_new_m(S);
    }
    if (mp) gl_give(mp, pp, spinning);
    else gl_pidle_put(S, pp);
    pthread_mutex_unlock(&S->lock);
    if (made) {
        if (S->start_thread(made) == 0) return;
        pthread_mutex_lock(&S->lock);           /* no thread to be had; sysmon tries again */
        made->nextp = NULL;
        made->spinning = 0;
        gl_store_relaxed(&S->refused_ns, gl_now_ns());
        if (S->spare) gl_m_set(made, M_DEAD);
        else gl_store_relaxed(&S->spare, made);
        GL_ADD(S->nmlive, -1);
        gl_p_set(pp, P_IDLE);
        gl_pidle_put(S, pp);
        pthread_mutex_unlock(&S->lock);
        mp = NULL;
    }
    if (!mp) {
        if (spinning) __atomic_fetch_sub(&S->nmspinning, 1, __ATOMIC_SEQ_CST);
    } else if (polls) S->poll_break();
    else gl_note_wake(&mp->note);
}

/* The first M, before there is work: whether a thread can be had at all. */
static int gl_start_first(gl_sched *S) {
    gl_p *pp;
    pthread_mutex_lock(&S->lock);
    gl_store_relaxed(&S->refused_ns, gl_now_ns() - 2 * GL_REFUSED_NS);
    pp = gl_pidle_get(S);
    pthread_mutex_unlock(&S->lock);
    __atomic_fetch_add(&S->nmspinning, 1, __ATOMIC_SEQ_CST);
    if (pp) gl_startm(S, pp, 1);
    else __atomic_fetch_sub(&S->nmspinning, 1, __ATOMIC_SEQ_CST);
    return gl_load_relaxed(&S->nmlive) > 0 ? 0 : -1;
}

/* -- timers */

static inline void gl_note_next(gl_p *pp) {     /* under tlock */
    double ns = pp->timers.n ? pp->timers.a[0].when * 1e9 : 1e19;
    gl_store_relaxed(&pp->next_ns, ns < 9e18 ? (int64_t)ns + 1 : GL_NEVER);
}

/* The G's world has a timer at `when`: see to it that it is notified then. By the M that runs it, which holds pp, or
 * (pp NULL) has lost its P: then P 0 takes it. 0, or -1 without memory. */
static inline int gl_timer_set(gl_sched *S, gl_p *pp, gl_g *gp, double when) {
    gl_p *old = gp->tp;
    int r;
    int64_t next;
    if (gl_load_relaxed(&gp->tpos) >= 0) {
        if (gp->twhen <= when) return 0;        /* it will be looked at by then: one look too early is cheap */
        gl_lock(&old->tlock);
        if (gp->tpos >= 0) {
            gl_timers_remove(&old->timers, gp->tpos);
            gl_note_next(old);
        }
        gl_unlock(&old->tlock);
    }
    if (!pp) pp = S->allp[0];
    gp->tp = pp;
    gp->twhen = when;
    gl_lock(&pp->tlock);
    r = gl_timers_push(&pp->timers, when, gp, &gp->tpos);
    gl_note_next(pp);
    next = pp->next_ns;
    gl_unlock(&pp->tlock);
    gl_fence_seq_cst();                         /* with the poller's, in gl_find() */
    if (next < gl_load_relaxed(&S->poll_until)) S->poll_break();
    return r;
}

/* Before the G's memory goes. */
static inline void gl_timer_forget(gl_g *gp) {
    gl_p *pp = gp->tp;
    if (!pp) return;
    gl_lock(&pp->tlock);
    if (gp->tpos >= 0) {
        gl_timers_remove(&pp->timers, gp->tpos);
        gl_note_next(pp);
    }
    gl_unlock(&pp->tlock);
}

/* Notify the worlds whose time has come (all of them: now_ns GL_NEVER), and collect whom that made runnable. A world
 * stays where it is until its entry has left the heap, so it cannot go away meanwhile. */
static inline uint32_t gl_timers_run(gl_p *pp, int64_t now_ns, gl_batch *b) {
    uint32_t n = 0;
    double now = (double)now_ns * 1e-9;
    if (gl_load_relaxed(&pp->next_ns) > now_ns && now_ns != GL_NEVER) return 0;
    gl_lock(&pp->tlock);
    while (pp->timers.n && (pp->timers.a[0].when <= now || now_ns == GL_NEVER)) {
        gl_g *gp = (gl_g *)gl_timers_remove(&pp->timers, 0);
        if (gl_g_notify(&gp->state)) {
            gp->since = pp->woken++ % GL_SAMPLED ? 0 : gl_since();
            gl_happened(pp->sched, EV_G + G_RUNNABLE, gp->obj, pp, NULL);
            gl_batch_add(b, gp);
        }
        n++;
    }
    gl_note_next(pp);
    gl_unlock(&pp->tlock);
    return n;
}

static inline int64_t gl_timers_min(gl_sched *S) {
    int64_t first = GL_NEVER;
    for (int i = 0, n = gl_load_acquire(&S->nallp); i < n; i++) {
        int64_t t = gl_load_relaxed(&S->allp[i]->next_ns);
        if (t < first) first = t;
    }
    return first;
}

/* -- making Gs runnable */

static inline void gl_put_batch(gl_sched *S, gl_p *pp, gl_batch *b) {    /* owner of pp */
    gl_batch over = { 0 };
    gl_g *gp = b->first, *next;
    for (; gp; gp = next) {
        next = gp->next;
        gp->next = NULL;
        gl_runq_put(&pp->q, gp, 0, &over);
    }
    if (!over.n) return;
    GL_ADD(pp->n.overflows, 1);
    pthread_mutex_lock(&S->lock);
    gl_q_put(S, &over);
    pthread_mutex_unlock(&S->lock);
}

/* To the global queue, from any thread. */
static inline void gl_inject(gl_sched *S, gl_batch *b) {
    pthread_mutex_lock(&S->lock);
    gl_q_put(S, b);
    pthread_mutex_unlock(&S->lock);
    gl_fence_seq_cst();                         /* with the spinner's that stops */
    gl_wakep(S);
}

/* The M, in a callback, goes back into the scheduler for a moment: its P, or NULL if that was taken. */
static inline gl_p *gl_enter(gl_m *mp) {
    gl_p *pp = mp->p;
    if (!pp) return NULL;
    if (gl_p_cas(pp, gl_status(P_INCALL, mp), gl_status(P_RUNNING, mp))) return pp;
    mp->p = NULL;
    return NULL;
}

static inline void gl_leave(gl_m *mp, gl_p *pp) { gl_p_set(pp, gl_status(P_INCALL, mp)); }

/* The G was made runnable: queue it. mp: the M that calls this, or NULL for any other thread. Within a callback it goes
 * into the scheduler for the moment; but a finaliser may call this too, while the M is there already. */
static inline void gl_ready(gl_sched *S, gl_m *mp, gl_g *gp, int next) {
    gl_batch over = { 0 };
    gl_p *pp = mp ? mp->p : NULL;
    int in_call = pp && gl_load_relaxed(&pp->status) != gl_status(P_RUNNING, mp);
    gl_runnable(S, mp, gp);
    if (in_call) pp = gl_enter(mp);
    if (!pp) {
        gl_batch_add(&over, gp);
        gl_inject(S, &over);
        return;
    }
    gl_runq_put(&pp->q, gp, next, &over);
    if (over.n) GL_ADD(pp->n.overflows, 1);
    if (in_call) gl_leave(mp, pp);
    if (over.n) gl_inject(S, &over);
}

/* After its turn: to the end of the line. The M is not in a callback; it may have lost its P. */
static inline void gl_requeue(gl_sched *S, gl_m *mp, gl_g *gp) {
    gl_batch over = { 0 };
    gl_runnable(S, mp, gp);
    if (mp->p) gl_runq_put(&mp->p->q, gp, 0, &over);
    else gl_batch_add(&over, gp);
    if (over.n) gl_inject(S, &over);
}

/* -- all Gs. Whoever goes through a list holds its lock; a G leaves it before its memory goes. */

static inline void gl_all_add(gl_sched *S, gl_g *gp, int list) {
    gp->list = (unsigned)list & 15;
    gl_lock(&S->all[list].lock);
    gp->all_prev = NULL;
    gp->all_next = S->all[list].first;
    if (gp->all_next) gp->all_next->all_prev = gp;
    S->all[list].first = gp;
    S->all[list].n++;
    gl_unlock(&S->all[list].lock);
}

static inline void gl_all_remove(gl_sched *S, gl_g *gp) {
    gl_lock(&S->all[gp->list].lock);
    if (gp->all_prev) gp->all_prev->all_next = gp->all_next;
    else S->all[gp->list].first = gp->all_next;
    if (gp->all_next) gp->all_next->all_prev = gp->all_prev;
    S->all[gp->list].n--;
    gl_unlock(&S->all[gp->list].lock);
}

/* -- finding work */

static inline uint32_t gl_random(gl_m *mp) {
    mp->random ^= mp->random << 13;
    mp->random ^= mp->random >> 17;
    return mp->random ^= mp->random << 5;
}

/* What can be had without waiting, from own timers, runnext, ring, global queue. The M holds its P. */
static inline gl_g *gl_next(gl_sched *S, gl_m *mp) {
    gl_p *pp = mp->p;
    gl_g *gp = NULL;
    gl_batch due = { 0 };
    int inherit = 0;
    if (gl_load_relaxed(&pp->next_ns) != GL_NEVER && gl_timers_run(pp, gl_now_ns(), &due)) {
        GL_ADD(pp->n.timers, due.n);
        gl_put_batch(S, pp, &due);
    }
    if (pp->schedtick % 61 == 0 && gl_load_relaxed(&S->qsize)) {
        pthread_mutex_lock(&S->lock);
        gp = gl_q_get(S, pp, 1);
        pthread_mutex_unlock(&S->lock);
    }
    if (!gp) gp = gl_runq_get(&pp->q, &inherit);
    if (!gp && gl_load_relaxed(&S->qsize)) {
        pthread_mutex_lock(&S->lock);
        gp = gl_q_get(S, pp, 0);
        pthread_mutex_unlock(&S->lock);
    }
    GL_ADD(pp->n.inherited, (uint64_t)inherit);
    return gp;
}

/* Before a turn: every fourth time, is there so much to do that waking another M pays? */
static inline void gl_share(gl_sched *S, gl_p *pp) {
    uint32_t n;
    int64_t now;
    if (pp->schedtick & 3) return;
    if (!gl_load_relaxed(&S->npidle)) { pp->tick_ns = 0; return; }
    now = gl_now_ns();
    if (pp->tick_ns) {
        pp->mean_ns += ((now - pp->tick_ns) / 4 - pp->mean_ns) / 4;
        n = gl_runq_len(&pp->q);
        if (n && n * pp->mean_ns > S->backlog_ns) {
            GL_ADD(pp->n.wakes, 1);
            gl_wakep(S);
        }
    }
    pp->tick_ns = now;
}

static inline gl_g *gl_steal(gl_sched *S, gl_m *mp) {
    gl_p *pp = mp->p;
    int n = gl_load_acquire(&S->nallp);
    for (int round = 0; round < 4; round++) {
        int at = (int)(gl_random(mp) % (uint32_t)n);
        for (int i = 0; i < n; i++, at = at + 1 == n ? 0 : at + 1) {
            gl_p *victim = S->allp[at];
            gl_g *gp;
            gl_batch due = { 0 };
            if (round == 3 && gl_timers_run(victim, gl_now_ns(), &due)) {
                GL_ADD(pp->n.timers, due.n);
                gl_put_batch(S, pp, &due);
                int inherit;
                if ((gp = gl_runq_get(&pp->q, &inherit))) return gp;
            }
            if (victim == pp || !gl_runq_len(&victim->q)) continue;
            gp = gl_runq_steal(&pp->q, &victim->q, round == 3);
            if (gp) {
                GL_ADD(pp->n.steals, 1);
                GL_ADD(pp->n.stolen, gl_runq_len(&pp->q) + 1);
                return gp;
            }
        }
    }
    return NULL;
}

/* Whether there is something that a spinner would have found. */
static inline int gl_any_work(gl_sched *S, int64_t now) {
    if (gl_load_relaxed(&S->qsize)) return 1;
    for (int i = 0, n = gl_load_acquire(&S->nallp); i < n; i++)
        if (gl_runq_len(&S->allp[i]->q) || gl_load_relaxed(&S->allp[i]->next_ns) <= now) return 1;
    return 0;
}

static inline void gl_spin_begin(gl_sched *S, gl_m *mp) {
    if (mp->spinning) return;
    mp->spinning = 1;
    GL_SUM(S->spins, 1);
    __atomic_fetch_add(&S->nmspinning, 1, __ATOMIC_SEQ_CST);
    gl_m_set(mp, M_SPINNING);
}

/* It has found work: who goes on looking? */
static inline void gl_spin_found(gl_sched *S, gl_m *mp) {
    if (!mp->spinning) return;
    mp->spinning = 0;
    __atomic_fetch_sub(&S->nmspinning, 1, __ATOMIC_SEQ_CST);
    gl_m_set(mp, M_RUNNING);
    gl_wakep(S);
}

/* A P that is no longer wanted gives away what it has. The caller has it in hand. */
static inline void gl_retire(gl_sched *S, gl_p *pp) {
    gl_batch all = { 0 };
    gl_g *gp;
    int inherit;
    while ((gp = gl_runq_get(&pp->q, &inherit))) gl_batch_add(&all, gp);
    gl_timers_run(pp, GL_NEVER, &all);          /* its worlds look at their timers, and find another P */
    pthread_mutex_lock(&S->lock);
    if (pp->id >= S->procs) gl_p_set(pp, P_DEAD);
    else {                                      /* wanted again meanwhile */
        if (gl_load_relaxed(&pp->status) != P_IDLE) gl_p_set(pp, P_IDLE);
        gl_pidle_put(S, pp);
    }
    pthread_mutex_unlock(&S->lock);
    if (all.n) gl_inject(S, &all);
}

static inline void gl_adopt(gl_m *mp) {          /* the P that somebody gave it */
    mp->p = mp->nextp;
    mp->nextp = NULL;
    if (mp->p) gl_m_set(mp, mp->spinning ? M_SPINNING : M_RUNNING);
}

/* Whether no M runs or looks for work, and none waits for a time or for events. */
static inline int gl_at_rest(gl_sched *S) {
    return gl_load_relaxed(&S->npidle) >= gl_load_relaxed(&S->procs) && !gl_load_relaxed(&S->qsize)
        && !gl_load_relaxed(&S->nmspinning) && !gl_load_relaxed(&S->watchers) && gl_timers_min(S) == GL_NEVER;
}

/* By an M that has given up its P, before it sleeps. The last of them sees that all are at rest: each has put its P
 * among the idle ones under `lock` before it looks. Who wants to be told sets `rest_wanted`, fence, looks once itself. */
static inline void gl_tell_rest(gl_sched *S) {
    gl_fence_seq_cst();
    if (gl_load_relaxed(&S->rest_wanted) && gl_at_rest(S) && gl_cas_int(&S->rest_wanted, 1, 0)) S->on_rest();
}

/* Sleep until somebody gives a P, or a locked G. */
static void gl_park(gl_sched *S, gl_m *mp) {
    pthread_mutex_lock(&S->lock);
    if (gl_load_relaxed(&S->stopping)) { pthread_mutex_unlock(&S->lock); return; }
    mp->link = S->midle;
    S->midle = mp;
    GL_ADD(S->nmidle, 1);
    GL_ADD(S->parks, 1);
    gl_m_set(mp, M_PARKED);
    pthread_mutex_unlock(&S->lock);
    gl_note_sleep(&mp->note, -1);
    gl_adopt(mp);
}

/* An idle P, for an M that has none. */
static inline gl_p *gl_take_idle(gl_sched *S, gl_m *mp) {
    gl_p *pp = NULL;
    if (!gl_load_relaxed(&S->npidle)) return NULL;
    pthread_mutex_lock(&S->lock);
    pp = gl_pidle_get(S);
    if (pp) gl_p_set(pp, gl_status(P_RUNNING, mp));
    pthread_mutex_unlock(&S->lock);
    return mp->p = pp;
}

/* Wait for events until the earliest timer; back with or without a P. */
static int gl_wait_in_poller(gl_sched *S, gl_m *mp, int64_t until) {
    int64_t now, again;
    int n;
    pthread_mutex_lock(&S->lock);
    S->poller_m = mp;
    gl_m_set(mp, M_POLLING);
    pthread_mutex_unlock(&S->lock);
    __atomic_store_n(&S->poll_until, until, __ATOMIC_SEQ_CST);
    gl_fence_seq_cst();                         /* with gl_timer_set() */
    again = gl_timers_min(S);
    if (again < until) gl_store_relaxed(&S->poll_until, until = again);
    now = gl_now_ns();
    n = gl_load_acquire(&S->stopping) ? 0
        : S->poll(mp, until == GL_NEVER ? -1 : until <= now ? 0 : until - now);
    gl_store_relaxed(&S->poll_until, INT64_MIN);
    pthread_mutex_lock(&S->lock);
    S->poller_m = NULL;
    if (!mp->nextp) {
        gl_p *pp = gl_pidle_get(S);
        if (pp) gl_give(mp, pp, 0);
    }
    pthread_mutex_unlock(&S->lock);
    gl_store_relaxed(&S->lastpoll_ns, gl_now_ns());
    gl_store_release(&S->polling, 0);
    gl_adopt(mp);
    if (!mp->p) gl_m_set(mp, M_RUNNING);
    return n;
}

/* What the poller has now, if nobody waits there. */
static inline int gl_look_in_poller(gl_sched *S, gl_m *mp) {
    int zero = 0, n;
    if (!gl_load_relaxed(&S->watchers)
            || !__atomic_compare_exchange_n(&S->polling, &zero, 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) return 0;
    n = S->poll(mp, 0);
    GL_ADD(mp->p->n.polls, 1);
    gl_store_relaxed(&S->lastpoll_ns, gl_now_ns());
    gl_store_release(&S->polling, 0);
    return n;
}

/* One look around for an M with a P: 1 and a G, 2 and events, 0: nothing. */
static int gl_search(gl_sched *S, gl_m *mp, gl_g **out, int *n_events) {
    int64_t spin_end = 0;
    if ((*out = gl_next(S, mp))) return GL_GOT_G;
    if ((*n_events = gl_look_in_poller(S, mp)) > 0) return GL_GOT_EVENTS;
    if (gl_load_relaxed(&S->procs) < 2) return 0;
    if (!mp->spinning && 2 * gl_load_relaxed(&S->nmspinning) >= gl_load_relaxed(&S->procs) - gl_load_relaxed(&S->npidle))
        return 0;
    gl_spin_begin(S, mp);
    for (;;) {
        if ((*out = gl_steal(S, mp))) return GL_GOT_G;
        int64_t now = gl_now_ns();
        if (!spin_end) spin_end = now + S->spin_ns;
        if (now >= spin_end || gl_load_relaxed(&S->stopping)) return 0;
        if (gl_load_relaxed(&S->qsize) && (*out = gl_next(S, mp))) return GL_GOT_G;
        sched_yield();
    }
}

/* An M without a P looks for work no longer: 0; or 1, there was some that nobody else may have seen, and it has a P. */
static int gl_spin_end(gl_sched *S, gl_m *mp) {
    if (!mp->spinning) return 0;
    mp->spinning = 0;
    __atomic_fetch_sub(&S->nmspinning, 1, __ATOMIC_SEQ_CST);
    gl_m_set(mp, M_RUNNING);
    gl_fence_seq_cst();                         /* with gl_inject() and gl_ready() */
    if (!gl_any_work(S, gl_now_ns())) return 0;
    if (gl_take_idle(S, mp)) {
        gl_spin_begin(S, mp);
        return 1;
    }
    pthread_mutex_lock(&S->lock);
    S->needspinning = 1;                        /* who is about to give up a P looks once more instead */
    pthread_mutex_unlock(&S->lock);
    return 0;
}

/* Give the P up: 0; or 1, and there is something to do. */
static int gl_give_up_p(gl_sched *S, gl_m *mp) {
    gl_p *pp = mp->p;
    pthread_mutex_lock(&S->lock);
    if (S->qsize || gl_runq_len(&pp->q)) { pthread_mutex_unlock(&S->lock); return 1; }
    if (!mp->spinning && S->needspinning) {
        S->needspinning = 0;
        gl_spin_begin(S, mp);
        pthread_mutex_unlock(&S->lock);
        return 1;
    }
    mp->p = NULL;
    if (pp->id >= S->procs) {
        pthread_mutex_unlock(&S->lock);
        gl_retire(S, pp);
    } else {
        gl_p_set(pp, P_IDLE);
        gl_pidle_put(S, pp);
        pthread_mutex_unlock(&S->lock);
    }
    return gl_spin_end(S, mp);
}

/* The next thing to do, waiting for it as long as it takes. The thread must be detached from Python. Afterwards the M
 * has a P, unless it stops, or has events only. */
static int gl_find(gl_sched *S, gl_m *mp, gl_g **out, int *n_events) {
    for (;;) {
        if (gl_load_acquire(&S->stopping)) return GL_STOP;
        if (mp->p && mp->p->id >= gl_load_relaxed(&S->procs)) {
            gl_p *pp = mp->p;
            mp->p = NULL;
            gl_retire(S, pp);
        }
        if (mp->p) {
            int r = gl_search(S, mp, out, n_events);
            if (r) { gl_spin_found(S, mp); return r; }
            if (gl_give_up_p(S, mp)) continue;
        } else if (mp->spinning) {              /* its P was retired */
            if (gl_spin_end(S, mp)) continue;
        } else if (gl_take_idle(S, mp)) {
            gl_spin_begin(S, mp);
            continue;
        }
        int zero = 0;
        int64_t until = gl_timers_min(S);
        if ((until != GL_NEVER || gl_load_relaxed(&S->watchers))
                && __atomic_compare_exchange_n(&S->polling, &zero, 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
            *n_events = gl_wait_in_poller(S, mp, until);
            if (*n_events > 0) { gl_spin_found(S, mp); return GL_GOT_EVENTS; }
            if (mp->p) {
                gl_spin_begin(S, mp);
                continue;
            }
        } else if (until < gl_load_relaxed(&S->poll_until)) S->poll_break();
        gl_tell_rest(S);
        gl_park(S, mp);
    }
}

/* -- taking Ps away */

/* The P in hand has lost its M: who goes on with it? */
static void gl_handoff(gl_sched *S, gl_p *pp) {
    int zero = 0;
    GL_SUM(S->handoffs, 1);
    if (pp->id >= gl_load_relaxed(&S->procs)) { gl_retire(S, pp); return; }
    if (gl_runq_len(&pp->q) || gl_load_relaxed(&S->qsize)) { gl_startm(S, pp, 0); return; }
    if (gl_load_relaxed(&S->nmspinning) + gl_load_relaxed(&S->npidle) == 0
            && __atomic_compare_exchange_n(&S->nmspinning, &zero, 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) {
        gl_startm(S, pp, 1);
        return;
    }
    pthread_mutex_lock(&S->lock);
    if (S->qsize) {
        pthread_mutex_unlock(&S->lock);
        gl_startm(S, pp, 0);
        return;
    }
    gl_pidle_put(S, pp);
    pthread_mutex_unlock(&S->lock);
    if (gl_load_relaxed(&pp->next_ns) < gl_load_relaxed(&S->poll_until)) S->poll_break();
    else if (!gl_load_relaxed(&S->polling) && (gl_load_relaxed(&S->watchers) || gl_load_relaxed(&pp->next_ns) != GL_NEVER)) gl_wakep(S);
}

/* From an M whose callback runs too long. 1 if the P was taken; it is in the caller's hands then, IDLE. */
static inline int gl_retake(gl_sched *S, gl_p *pp, int status) {
    gl_m *mp = gl_load_acquire(&S->allm[(status >> 3) - 1]);
    if (!gl_p_cas(pp, status, P_IDLE)) return 0;
    gl_store_relaxed(&mp->preempt, 1);
    return 1;
}

/* An M in a callback gives its P away, to go on alone. 0 if it had none. */
static inline int gl_give_away(gl_sched *S, gl_m *mp) {
    gl_p *pp = gl_enter(mp);
    if (!pp) return 0;
    mp->p = NULL;
    gl_p_set(pp, P_IDLE);
    gl_handoff(S, pp);
    return 1;
}

/* A G may run on its own M only: give that the P, and this M has none. */
static inline void gl_give_to_locked(gl_m *mp, gl_g *gp) {
    gl_m *owner = gp->lockedm;
    gl_p *pp = mp->p;
    mp->p = NULL;
    owner->nextg = gp;
    gl_give(owner, pp, 0);
    gl_note_wake(&owner->note);
}

/* The M of a locked G has nothing to run: others get its P, and it sleeps until its G comes, with a P. */
static inline void gl_park_locked(gl_sched *S, gl_m *mp) {
    gl_p *pp = mp->p;
    if (pp) {
        mp->p = NULL;
        gl_p_set(pp, P_IDLE);
        gl_handoff(S, pp);
    }
    gl_tell_rest(S);
    gl_m_set(mp, M_PARKED);
    gl_note_sleep(&mp->note, -1);
    gl_adopt(mp);
}

/* -- how many Ps */

static int gl_set_procs(gl_sched *S, int n) {
    gl_p *dead = NULL, **at;
    pthread_mutex_lock(&S->lock);
    while (S->nallp < n) {
        gl_p *pp = (gl_p *)calloc(1, sizeof *pp);
        if (!pp) { pthread_mutex_unlock(&S->lock); return -1; }
        pp->sched = S;
        pp->id = S->nallp;
        pp->next_ns = GL_NEVER;
        pp->status = P_DEAD;
        S->allp[S->nallp] = pp;
        gl_store_release(&S->nallp, S->nallp + 1);
    }
    gl_store_relaxed(&S->procs, n);
    for (int i = 0; i < n; i++)                 /* a dead one lives again; one still busy above the limit just goes on */
        if (gl_load_acquire(&S->allp[i]->status) == P_DEAD) {
            gl_p_set(S->allp[i], P_IDLE);
            gl_pidle_put(S, S->allp[i]);
        }
    for (at = &S->pidle; *at;) {
        gl_p *pp = *at;
        if (pp->id < n) { at = &pp->link; continue; }
        *at = pp->link;
        GL_ADD(S->npidle, -1);
        pp->link = dead;
        dead = pp;
    }
    pthread_mutex_unlock(&S->lock);
    while (dead) {
        gl_p *pp = dead;
        dead = pp->link;
        gl_retire(S, pp);
    }
    if (gl_any_work(S, gl_now_ns())) gl_wakep(S);
    return 0;
}

static inline void gl_sched_init(gl_sched *S) {
    pthread_mutex_init(&S->lock, NULL);
    gl_note_init(&S->sysmon);
    S->poll_until = INT64_MIN;
    S->lastpoll_ns = gl_now_ns();
    S->spin_ns = 20000;
    S->backlog_ns = 5000;
}

/* In the child of a fork: the other threads are not there. What they had is left where it is. */
static inline void gl_sched_after_fork(gl_sched *S) {
    gl_sched fresh;
    memset(&fresh, 0, sizeof fresh);
    fresh.poll = S->poll;
    fresh.poll_break = S->poll_break;
    fresh.start_thread = S->start_thread;
    fresh.on_rest = S->on_rest;
    fresh.forks = S->forks + 1;
    fresh.events_on = S->events_on;
    *S = fresh;
    gl_sched_init(S);
}

/* All Ms leave gl_find() with GL_STOP, as soon as they come there. */
static inline void gl_stop(gl_sched *S) {
    gl_m *mp;
    pthread_mutex_lock(&S->lock);
    gl_store_release(&S->stopping, 1);
    for (int i = 0; i < S->nm; i++)             /* those that wait for their locked G too */
        if (gl_load_relaxed(&(mp = S->allm[i])->state) == M_PARKED) gl_note_wake(&mp->note);
    S->midle = NULL;
    S->nmidle = 0;
    pthread_mutex_unlock(&S->lock);
    S->poll_break();
    gl_store_relaxed(&S->sysmon_parked, 0);
    gl_note_wake(&S->sysmon);
}

#endif
