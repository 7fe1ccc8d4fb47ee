/* A 4-ary min-heap of deadlines, touched by one thread at a time.
 *
 * Equal deadlines leave in the order they came (`seq`), as one expects of callbacks. Each entry tells its item where
 * it stands through `pos`, so that a cancelled timer is taken out at once, with what it holds, instead of lying about
 * until its deadline. Four children a node: half the depth of a binary heap, the children in one or two cache lines.
 */
#ifndef GMPLOOP_TIMERS_H
#define GMPLOOP_TIMERS_H

#include "atomics.h"
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>

typedef struct {
    double when;            /* seconds on the loop's clock; never NaN */
    uint64_t seq;
    void *item;
    ssize_t *pos;           /* the item's own note of its index; -1 outside of the heap */
} gl_timer;

typedef struct {
    gl_timer *a;
    size_t n, cap;
    uint64_t seq;
} gl_timers;

static inline int gl_timer_before(const gl_timer *x, const gl_timer *y) {
    return x->when < y->when || (x->when == y->when && x->seq < y->seq);
}

static inline void gl_timers_put(gl_timers *h, size_t i, gl_timer t) { h->a[i] = t; gl_store_relaxed(t.pos, (ssize_t)i); }

static inline void gl_timers_up(gl_timers *h, size_t i, gl_timer t) {
    while (i > 0) {
        size_t parent = (i - 1) >> 2;
        if (!gl_timer_before(&t, &h->a[parent])) break;
        gl_timers_put(h, i, h->a[parent]);
        i = parent;
    }
    gl_timers_put(h, i, t);
}

static inline void gl_timers_down(gl_timers *h, size_t i, gl_timer t) {
    for (;;) {
        size_t child = 4 * i + 1, end = child + 4, best;
        if (child >= h->n) break;
        if (end > h->n) end = h->n;
        for (best = child++; child < end; child++)
            if (gl_timer_before(&h->a[child], &h->a[best])) best = child;
        if (!gl_timer_before(&h->a[best], &t)) break;
        gl_timers_put(h, i, h->a[best]);
        i = best;
    }
    gl_timers_put(h, i, t);
}

/* Returns -1 without memory. */
static inline int gl_timers_push(gl_timers *h, double when, void *item, ssize_t *pos) {
    if (h->n == h->cap) {
        size_t cap = h->cap ? h->cap * 2 : 16;
        gl_timer *a = (gl_timer *)realloc(h->a, cap * sizeof(gl_timer));
        if (!a) return -1;
        h->a = a; h->cap = cap;
    }
    gl_timer t = { when, h->seq++, item, pos };
    gl_timers_up(h, h->n++, t);
    return 0;
}

/* Takes out the entry at index i and returns its item. */
static inline void *gl_timers_remove(gl_timers *h, size_t i) {
    gl_timer gone = h->a[i], last = h->a[--h->n];
    gl_store_relaxed(gone.pos, -1);
    if (i < h->n) {
        if (i > 0 && gl_timer_before(&last, &h->a[(i - 1) >> 2])) gl_timers_up(h, i, last);
        else gl_timers_down(h, i, last);
    }
    if (h->cap > 1024 && h->n < h->cap / 4) {       /* a burst of timers gives its memory back */
        gl_timer *a = (gl_timer *)realloc(h->a, h->cap / 2 * sizeof(gl_timer));
        if (a) { h->a = a; h->cap /= 2; }
    }
    return gone.item;
}

static inline void gl_timers_free(gl_timers *h) { free(h->a); memset(h, 0, sizeof *h); }

#endif
