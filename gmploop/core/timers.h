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

enum { GL_TIMERS_FIRST = 4 };     /* capacity: of what is made by the million, few have more timers; guessed */

typedef struct { gl_timer *a; } gl_timers;

/* In front of `a`: worlds that wait mostly have no timers, and are many. place: what the P's heap knows this one by
 * (ptimers.h); freed with it. */
typedef struct { uint64_t seq; uint32_t n, cap; void *place, *apart; } gl_timers_head;

static inline gl_timers_head *gl_timers_head_of(const gl_timers *h) { return (gl_timers_head *)h->a - 1; }
static inline uint32_t gl_timers_len(const gl_timers *h) { return h->a ? gl_timers_head_of(h)->n : 0; }

static inline int gl_timers_resize(gl_timers *h, uint32_t cap) {
    gl_timers_head *head = (gl_timers_head *)realloc(h->a ? gl_timers_head_of(h) : NULL,
                                                     sizeof *head + (size_t)cap * sizeof(gl_timer));
    if (!head) return -1;
    if (!h->a) memset(head, 0, sizeof *head);
    h->a = (gl_timer *)(head + 1);
    head->cap = cap;
    return 0;
}

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
    size_t n = gl_timers_head_of(h)->n;
    for (;;) {
        size_t child = 4 * i + 1, end = child + 4, best;
        if (child >= n) break;
        if (end > n) end = n;
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
    gl_timers_head *head = h->a ? gl_timers_head_of(h) : NULL;
    if (!head || head->n == head->cap) {
        uint32_t cap = head ? head->cap * 2 : GL_TIMERS_FIRST;
        if (!cap || gl_timers_resize(h, cap) < 0) return -1;
        head = gl_timers_head_of(h);
    }
    gl_timer t = { when, head->seq++, item, pos };
    gl_timers_up(h, head->n++, t);
    return 0;
}

/* Takes out the entry at index i and returns its item. */
static inline void *gl_timers_remove(gl_timers *h, size_t i) {
    gl_timers_head *head = gl_timers_head_of(h);
    gl_timer gone = h->a[i], last = h->a[--head->n];
    gl_store_release(gone.pos, -1);
    if (i < head->n) {
        if (i > 0 && gl_timer_before(&last, &h->a[(i - 1) >> 2])) gl_timers_up(h, i, last);
        else gl_timers_down(h, i, last);
    }
    if (head->cap > 1024 && head->n < head->cap / 4) gl_timers_resize(h, head->cap / 2);    /* a burst gives its memory back */
    return gone.item;
}

static inline void gl_timers_free(gl_timers *h) {
    if (!h->a) return;
    free(gl_timers_head_of(h)->place);
    free(gl_timers_head_of(h));
    h->a = NULL;
}

#endif
