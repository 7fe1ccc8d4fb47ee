/* What the scheduler is made of: P, M and the one `gl_sched`, their states, and who may write each field.
 *
 * States.   P:  IDLE -> RUNNING <-> INCALL;  INCALL -> IDLE (taken from a callback that runs too long, or given away);
 *               RUNNING -> IDLE (nothing to do);  IDLE, RUNNING -> DEAD (fewer are wanted) -> IDLE
 *           An M that holds a P is in the P's status word, beside the state: that is what makes taking a P away safe.
 *           The callback of a G runs with its P INCALL. Whoever goes back into the scheduler, the M itself or who takes
 *           the P from it, does so by CAS on that word: one of them wins. If the M loses it goes on without a P, and no
 *           later change can be taken for the old one, since the word with its number in it is gone.
 *           M:  gl_m_legal below.
 *
 * Locks: `lock` guards idle lists, global queue, allp/allm, procs. A P's `tlock` guards its heap. No lock is taken
 * under tlock; tlock may be taken under lock. No Python object is touched under either. `loops_lock`: watched.h.
 */
#ifndef GMPLOOP_SCHEDTYPES_H
#define GMPLOOP_SCHEDTYPES_H

#include "park.h"
#include "runq.h"
#include "events.h"
#include "timers.h"
#include "watched.h"
#include <limits.h>
#include <string.h>

enum { GL_MAX_P = 256, GL_MAX_M = 2048 };       /* guessed; Go stops at 10,000 Ms */
enum { P_IDLE, P_RUNNING, P_INCALL, P_DEAD, P_STATES };
enum { M_NEW, M_RUNNING, M_SPINNING, M_PARKED, M_POLLING, M_ORPHAN, M_DEAD, M_STATES };
enum { GL_STOP, GL_GOT_G, GL_GOT_EVENTS };      /* what gl_find() brings */
#define GL_REFUSED_NS 10000000                  /* then the system is asked for a thread again; guessed */
enum { GL_LISTS = 16 };                         /* lists of all Gs: as many as threads hardly meet in */
enum { GL_DYING = 256 };                        /* one of four turns is a world's last: gl_p.dying is about this */
enum { GL_SAMPLED = 8 };                        /* of so many waits for a P one is timed, for the clock's sake; Go's */
enum { GL_LATENCIES = 108 };                    /* gl_latency_bucket() of GL_SINCE is less */
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
    uint32_t inherited;                 /* turns from runnext since the last from elsewhere. Owner */
    int64_t tick_ns, mean_ns;           /* time of the last multiple of four, mean length of a turn. Owner */
    uint32_t deaths, seen_deaths;       /* turns that ended a world; at the last multiple of four. Owner */
    int dying;                          /* the mean of how many of four turns did, times GL_DYING. Owner */
    uint32_t keep;                      /* a ring of so many is left to its P; see steal.h. Owner, and sysmon: 0 */
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
    void *waiters, *stops;              /* and memory of waiters, of StopIteration */
    void *sends;                        /* a SharedBatch, a reference; made by the first write that waits */
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
    gl_spinlock loops_lock;
    gl_watched *loops;                  /* that threads of their own run. Under loops_lock */
    int unwatched;                      /* nobody looks at them: the next poll of one changes that. Atomic */
    uint64_t handoffs, retakes, stalls, late_polls, parks, spins, m_made;
    uint32_t readied;                   /* as an M's, by threads that are none: some may be lost */
    int events_on;
    gl_events *events[GL_MAX_P + 1];    /* of each P and, first, of what happens without one; made by the first event */
    int64_t spin_ns, backlog_ns, dying_ns;      /* config: SPIN_NS, BACKLOG_NS, DYING_NS */
    uint32_t slice;                     /* config: SLICE_TURNS */
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

#endif
