/* Loops with a thread of their own, as sysmon sees them: they run on no P.
 *
 * A loop is in the list `loops` of the scheduler while a thread runs it: from gl_watched_enter() to gl_watched_leave(). So
 * whoever finds it there, under `loops_lock`, knows that it lives as long as the lock is held.
 *
 * `beat` is even while the loop waits in its poller, else odd. Its thread alone changes it: when it polls, and every so
 * many callbacks of a long turn; never for each callback, which would cost something. While it is odd and stands still, a
 * callback goes on, or the few that a turn has between two polls.
 *
 * sysmon looks every `loop_nap_ns` while loops do something, and when none has for a while it sleeps. `unwatched` says so
 * to the loops, whose next poll wakes it, or starts its thread. No loop that runs stays unwatched: one that comes from a
 * wait has the order beat (odd), fence, read `unwatched`; sysmon has the order `unwatched`, fence, read the beats. One of
 * both sees the other. A loop whose stall is counted and told is left alone, too, until it polls (without a fence: so it
 * might be the poll after that).
 */
#ifndef GMPLOOP_WATCHED_H
#define GMPLOOP_WATCHED_H

#include "atomics.h"

/* When a turn is to be told of: by sysmon; and by who looks into it and finds that it is too early. */
typedef struct { uint32_t turn; int64_t at_ns; } gl_offer;

typedef struct gl_watched {
    struct gl_watched *next;            /* under loops_lock, as the next two */
    void *loop;                         /* the object, borrowed */
    unsigned long ident;                /* of the thread that runs it; 0: it is not in the list */
    uint32_t beat;                      /* by that thread; any thread reads */
    int64_t tell_ns;                    /* a callback that runs so long is told of; 0: nobody wants to know. Any thread */
    uint32_t seen;                      /* sysmon's: the beat that it saw, */
    int64_t seen_ns;                    /* since when, */
    int counted;                        /* whether that is a stall already, */
    gl_offer offer;                     /* and when it is to be told. Under loops_lock */
} gl_watched;

static inline void gl_beat(gl_watched *l, uint32_t n) { gl_store_relaxed(&l->beat, l->beat + n); }

#endif
