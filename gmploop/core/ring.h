/* A growable FIFO of tagged pointers, touched by its owner's thread only (or under the owner's lock).
 *
 * Capacity is a power of two; `head` and `tail` run freely and are masked on access, so tail - head is the length.
 */
#ifndef GMPLOOP_RING_H
#define GMPLOOP_RING_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    uintptr_t *slots;
    size_t mask;            /* capacity - 1; meaningless while slots is NULL */
    size_t head, tail;
} gl_ring;

static inline size_t gl_ring_len(const gl_ring *r) { return r->tail - r->head; }

/* Doubles the capacity (first: 64). Returns -1 without memory, the ring then being as it was. */
static int gl_ring_grow(gl_ring *r) {
    size_t n = gl_ring_len(r), cap = r->slots ? (r->mask + 1) * 2 : 64;
    uintptr_t *slots = (uintptr_t *)malloc(cap * sizeof(uintptr_t));
    if (!slots) return -1;
    for (size_t i = 0; i < n; i++) slots[i] = r->slots[(r->head + i) & r->mask];
    free(r->slots);
    r->slots = slots; r->mask = cap - 1; r->head = 0; r->tail = n;
    return 0;
}

/* Makes room for n more entries; -1 without memory. */
static inline int gl_ring_reserve(gl_ring *r, size_t n) {
    while (!r->slots || gl_ring_len(r) + n > r->mask + 1)
        if (gl_ring_grow(r) < 0) return -1;
    return 0;
}

static inline int gl_ring_push(gl_ring *r, uintptr_t entry) {
    if (!r->slots || r->tail - r->head > r->mask)
        if (gl_ring_grow(r) < 0) return -1;
    r->slots[r->tail++ & r->mask] = entry;
    return 0;
}

/* The oldest entry, or 0 when empty. */
static inline uintptr_t gl_ring_pop(gl_ring *r) {
    return r->head == r->tail ? 0 : r->slots[r->head++ & r->mask];
}

/* The i-th oldest entry; i < length. */
static inline uintptr_t gl_ring_at(const gl_ring *r, size_t i) { return r->slots[(r->head + i) & r->mask]; }

static inline void gl_ring_free(gl_ring *r) { free(r->slots); memset(r, 0, sizeof *r); }

#endif
