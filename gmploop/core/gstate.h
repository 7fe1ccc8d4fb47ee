/* The state word of a G and its legal transitions.
 *
 *            enter (an M takes it)                  nothing left, CAS
 *   RUNNABLE ---------------------> RUNNING ------------------------> IDLE
 *      ^                               |  ^ |                          |
 *      |      more to do, P kept busy  |  | '--> BLOCKED (P handed off) |
 *      '-------------------------------'  '---------'  got a P again     |
 *      '---------------------------------------------------------------'   post from outside, CAS
 *
 * Who owns a G:  IDLE: nobody, it may be posted to. RUNNABLE: the queue (of a locked G: its own M) that will run it.
 * RUNNING: the M that runs it. BLOCKED: the M whose callback lost its P. DEAD: nobody, for good.
 *
 * NOTIFIED is set beside RUNNING or BLOCKED by a post from outside: something is in the inbox that the runner may not
 * have seen. It makes the runner's CAS RUNNING -> IDLE fail, and so no wake-up is lost: either the poster's
 * fetch-or comes first and the CAS fails, or the CAS comes first and the poster sees IDLE and wakes the G itself.
 */
#ifndef GMPLOOP_GSTATE_H
#define GMPLOOP_GSTATE_H

#include "atomics.h"
#include <stdio.h>
#include <stdlib.h>

enum { G_IDLE = 0, G_RUNNABLE = 1, G_RUNNING = 2, G_BLOCKED = 3, G_DEAD = 4, G_STATES = 5, G_NOTIFIED = 16 };

static const unsigned char gl_g_legal[G_STATES][G_STATES] = {
    /* from \ to     IDLE RUNNABLE RUNNING BLOCKED DEAD */
    /* IDLE     */ { 0,   1,       0,      0,      1 },
    /* RUNNABLE */ { 0,   0,       1,      0,      1 },
    /* RUNNING  */ { 1,   1,       0,      1,      1 },
    /* BLOCKED  */ { 1,   1,       1,      0,      1 },
    /* DEAD     */ { 0,   0,       0,      0,      0 },
};

static inline void gl_g_check(int from, int to) {
#ifdef GMPLOOP_DEBUG_STATES
    if (!gl_g_legal[from & 15][to & 15]) {
        fprintf(stderr, "gmploop: illegal transition of a G: %d -> %d\n", from, to);
        abort();
    }
#else
    (void)from; (void)to;
#endif
}

/* The one seam through which every transition goes. */
static inline int gl_g_cas(int *state, int from, int to) {
    gl_g_check(from, to);
    return gl_cas_int(state, from, to);
}

/* The owner has seen the notification (it drains the inbox next): the state itself stays. */
static inline void gl_g_clear_notified(int *state) { gl_fetch_and_acq_rel(state, ~G_NOTIFIED); }

static inline int gl_g_set(int *state, int to) {
    int from = gl_exchange_acq_rel(state, to);
    gl_g_check(from, to);
    return from;
}

/* Called by a poster after its entry is in the inbox (release there, acquire by the runner's drain).
 * Returns 1 when the poster has made the G runnable and must see to it that it runs. */
static inline int gl_g_notify(int *state) {
    int s = gl_load_acquire(state);
    for (;;) {
        int to;
        if (s & G_NOTIFIED || s == G_RUNNABLE || s == G_DEAD) return 0;
        if (s == G_IDLE) { to = G_RUNNABLE; gl_g_check(s, to); }
        else to = s | G_NOTIFIED;
        GL_RACE();
        if (__atomic_compare_exchange_n(state, &s, to, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
            return to == G_RUNNABLE;
    }
}

/* By the runner: from one running state to another; a notification stays. */
static inline void gl_g_move(int *state, int from, int to) {
    int s = gl_load_acquire(state);
    gl_g_check(from, to);
    while (!__atomic_compare_exchange_n(state, &s, to | (s & G_NOTIFIED), 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) ;
}

/* What the scheduler keeps of a G that may move: it is queued by this, and its M gets from here to the world.
 *
 * state     any thread, as above
 * list      which list of all Gs it is in; set once, before it is queued
 * locked    one M alone may run it, whose `lockedg` it is (lock_os_thread): the M that runs it
 * since     when it was made runnable, in units of 32 ns, if that is one of the times that are sampled, else 0: whoever
 *           queues it, then the M that runs it. It wraps after 4 s
 * next      whoever holds the queue or chain in which the G stands; while it runs and while it sleeps, in the same place:
 * pool      handles kept for reuse, of the M that runs it, else NULL; of a locked world its own. Who runs it
 *
 * It is the first field of the G's object, of which one reference is the scheduler's, from go() to death.
 */
typedef struct gl_m gl_m;

#define GL_SINCE 0x7ffffff

typedef struct gl_g {
    int state;
    unsigned list : 4, locked : 1, since : 27;
    union { struct gl_g *next; void *pool; };
    struct gl_g *all_next, *all_prev;
} gl_g;

#ifdef Py_PYTHON_H
#define GL_OBJ_HEAD (sizeof(PyObject) + sizeof(void *))     /* Cython's table of methods; g.pyx checks it */
#else
#define GL_OBJ_HEAD 0
#endif

static inline void *gl_obj(const gl_g *gp) { return (char *)gp - GL_OBJ_HEAD; }

#endif
