/* The run queue of a P: a ring of runnable Gs and one slot, `runnext`, for the G that runs next.
 *
 * Who: the owner (the M that holds the P) puts at the tail and takes from the head; thieves (other Ms) take from the
 * head too. A P without an M is nobody's to put into; its queue may still be robbed.
 *
 * Invariant: the Gs in slots head .. tail-1 are queued exactly once each. head and tail run freely (mod 2^32);
 * 0 <= tail - head <= GL_RUNQ_CAP.
 *
 * Orderings. `tail` is stored with release by the owner after the slot, and loaded with acquire by thieves: who sees
 * the tail sees the slot and what was written to the G before it was queued. `head` is advanced by CAS with release
 * after the slots were read, and loaded with acquire by the owner before it writes a slot: it cannot write over a slot
 * that a consumer still reads. Slots themselves are relaxed: a thief may read one that is overwritten meanwhile, but
 * then head has moved and its CAS fails, so it never uses what it read.
 *
 * Why each G leaves once: whoever takes slots [h, h+n) has moved head from h to h+n by CAS; head only grows, so two
 * takers have disjoint ranges (a wrap by 2^32 between load and CAS of one taker is out of reach). And the slots of
 * that range could not be overwritten before the CAS, since the owner writes slot t only when t - head < CAP.
 * A thief copies into its own ring behind its own tail, which no other thief reads before it publishes that tail.
 *
 * runnext is exchanged by the owner and taken by CAS to NULL by owner and thieves: a value leaves it once. The same G
 * may come back between a thief's load and its CAS (it was run and queued again): then it takes the newer entry, which
 * is as good.
 */
#ifndef GMPLOOP_RUNQ_H
#define GMPLOOP_RUNQ_H

#include "atomics.h"
#include "gstate.h"
#include <stddef.h>

#ifndef GL_RUNQ_CAP
#define GL_RUNQ_CAP 256u        /* Go's; a power of two */
#endif

typedef struct {
    uint32_t head;                      /* consumers, CAS */
    uint32_t tail;                      /* owner */
    gl_g *runnext;
    gl_g *slot[GL_RUNQ_CAP];
} gl_runq;

/* A chain of Gs linked by `next`, on its way to the global queue. */
typedef struct { gl_g *first, *last; uint32_t n; } gl_batch;

static inline int gl_cas_g(gl_g **p, gl_g *expected, gl_g *desired) {
    return __atomic_compare_exchange_n(p, &expected, desired, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

static inline int gl_cas_head(uint32_t *p, uint32_t expected, uint32_t desired) {
    return __atomic_compare_exchange_n(p, &expected, desired, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED);
}

/* How many are queued, runnext included. A guess unless the owner asks. */
static inline uint32_t gl_runq_len(gl_runq *q) {
    uint32_t h, t;
    do {                                /* both of one moment, as far as one can tell */
        h = gl_load_acquire(&q->head);
        t = gl_load_acquire(&q->tail);
    } while (h != gl_load_acquire(&q->head));
    return t - h + (gl_load_relaxed(&q->runnext) != NULL);
}

static inline void gl_batch_add(gl_batch *b, gl_g *gp) {
    gp->next = NULL;
    if (b->last) b->last->next = gp;
    else b->first = gp;
    b->last = gp;
    b->n++;
}

/* Owner: a full ring gives its older half, and gp, to `over`. Returns 0 when a thief was faster: there is room now. */
static inline int gl_runq_overflow(gl_runq *q, gl_g *gp, uint32_t h, gl_batch *over) {
    gl_g *half[GL_RUNQ_CAP / 2];
    uint32_t n = GL_RUNQ_CAP / 2;
    for (uint32_t i = 0; i < n; i++) half[i] = gl_load_relaxed(&q->slot[(h + i) % GL_RUNQ_CAP]);
    GL_RACE();
    if (!gl_cas_head(&q->head, h, h + n)) return 0;
    for (uint32_t i = 0; i < n; i++) gl_batch_add(over, half[i]);
    gl_batch_add(over, gp);
    return 1;
}

/* Owner: put gp in front (`next`) or at the tail. What does not fit is in `over`, for the global queue. */
static inline void gl_runq_put(gl_runq *q, gl_g *gp, int next, gl_batch *over) {
    if (next) {
        gp = __atomic_exchange_n(&q->runnext, gp, __ATOMIC_ACQ_REL);
        if (!gp) return;
    }
    for (;;) {
        uint32_t h = gl_load_acquire(&q->head), t = gl_load_relaxed(&q->tail);
        GL_RACE();
        if (t - h < GL_RUNQ_CAP) {
            gl_store_relaxed(&q->slot[t % GL_RUNQ_CAP], gp);
            gl_store_release(&q->tail, t + 1);
            return;
        }
        if (gl_runq_overflow(q, gp, h, over)) return;
    }
}

/* Owner: the first G of the ring or NULL. */
static inline gl_g *gl_runq_first(gl_runq *q) {
    for (;;) {
        uint32_t h = gl_load_acquire(&q->head), t = gl_load_relaxed(&q->tail);
        if (t == h) return NULL;
        gl_g *gp = gl_load_relaxed(&q->slot[h % GL_RUNQ_CAP]);
        GL_RACE();
        if (gl_cas_head(&q->head, h, h + 1)) return gp;
    }
}

/* Owner: the next G or NULL. *inherit: it came from runnext, and goes on with the slice of who put it there. */
static inline gl_g *gl_runq_get(gl_runq *q, int *inherit) {
    gl_g *gp = gl_load_relaxed(&q->runnext);
    *inherit = 1;
    GL_RACE();
    if (gp && gl_cas_g(&q->runnext, gp, NULL)) return gp;
    *inherit = 0;
    return gl_runq_first(q);
}

/* Thief, owner of `q`, whose ring is empty: take half of what the victim has (rounded up), or, with `take_next` and
 * nothing else there, its runnext. Returns one G to run; the others stand in q. */
static inline gl_g *gl_runq_steal(gl_runq *q, gl_runq *victim, int take_next) {
    uint32_t mine = gl_load_relaxed(&q->tail), h, t, n, i;
    for (;;) {
        h = gl_load_acquire(&victim->head);
        t = gl_load_acquire(&victim->tail);
        n = t - h;
        n -= n / 2;
        if (n == 0) {
            gl_g *gp = take_next ? gl_load_relaxed(&victim->runnext) : NULL;
            GL_RACE();
            if (!gp) return NULL;
            if (gl_cas_g(&victim->runnext, gp, NULL)) return gp;
            continue;
        }
        if (n > GL_RUNQ_CAP / 2) continue;      /* head and tail were not of one moment */
        for (i = 0; i < n; i++)
            gl_store_relaxed(&q->slot[(mine + i) % GL_RUNQ_CAP],
                             gl_load_relaxed(&victim->slot[(h + i) % GL_RUNQ_CAP]));
        GL_RACE();
        if (gl_cas_head(&victim->head, h, h + n)) break;
    }
    n--;
    if (n) gl_store_release(&q->tail, mine + n);
    return gl_load_relaxed(&q->slot[(mine + n) % GL_RUNQ_CAP]);
}

#endif
