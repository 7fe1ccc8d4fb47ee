/* A growable FIFO of tagged pointers, touched by its owner's thread only (or under the owner's lock).
 *
 * Capacity is a power of two; `head` and `tail` run freely and are masked on access, so tail - head is the length.
 * The first two entries need no memory of their own: a world that waits mostly has none, and one or two when it runs.
 */
#ifndef GMPLOOP_RING_H
#define GMPLOOP_RING_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { GL_RING_INLINE = 2, GL_RING_FIRST = 16 };

typedef struct {
    union {
        uintptr_t *slots;
        uintptr_t in_place[GL_RING_INLINE];     /* while mask is 0 */
    };
    uint32_t mask;          /* capacity - 1; 0 also means "in place", of capacity 2 */
    uint32_t head, tail;
} gl_ring;

static inline size_t gl_ring_len(const gl_ring *r) { return r->tail - r->head; }
static inline uint32_t gl_ring_mask(const gl_ring *r) { return r->mask | (GL_RING_INLINE - 1); }
static inline uintptr_t *gl_ring_slot(gl_ring *r, uint32_t i) {
    return (r->mask ? r->slots : r->in_place) + (i & gl_ring_mask(r));
}

/* Twice the capacity. Returns -1 without memory, the ring then being as it was. */
static int gl_ring_grow(gl_ring *r) {
    uint32_t n = (uint32_t)gl_ring_len(r), cap = r->mask ? (r->mask + 1) * 2 : GL_RING_FIRST;
    uintptr_t *slots = cap ? (uintptr_t *)malloc(cap * sizeof(uintptr_t)) : NULL;
    if (!slots) return -1;
    for (uint32_t i = 0; i < n; i++) slots[i] = *gl_ring_slot(r, r->head + i);
    if (r->mask) free(r->slots);
    r->slots = slots; r->mask = cap - 1; r->head = 0; r->tail = n;
    return 0;
}

/* Makes room for n more entries; -1 without memory. */
static inline int gl_ring_reserve(gl_ring *r, size_t n) {
    while (gl_ring_len(r) + n > (size_t)gl_ring_mask(r) + 1)
        if (gl_ring_grow(r) < 0) return -1;
    return 0;
}

static inline int gl_ring_push(gl_ring *r, uintptr_t entry) {
    if (gl_ring_len(r) > gl_ring_mask(r))
        if (gl_ring_grow(r) < 0) return -1;
    *gl_ring_slot(r, r->tail++) = entry;
    return 0;
}

/* The oldest entry, or 0 when empty. */
static inline uintptr_t gl_ring_pop(gl_ring *r) { return r->head == r->tail ? 0 : *gl_ring_slot(r, r->head++); }

/* The i-th oldest entry; i < length. */
static inline uintptr_t gl_ring_at(const gl_ring *r, size_t i) {
    return *gl_ring_slot((gl_ring *)r, r->head + (uint32_t)i);
}

static inline void gl_ring_free(gl_ring *r) {
    if (r->mask) free(r->slots);
    memset(r, 0, sizeof *r);
}

#endif
