/* A growable FIFO of tagged pointers, touched by its owner's thread only (or under the owner's lock).
 *
 * One word, since there are worlds by the million: 0, or the only entry, or, from the second on, a block of memory, which
 * stays until the ring is freed. Bit 2 tells a block: entries are pointers to objects, with tags in bits 0 and 1 only.
 * So both must be multiples of 8: Python's allocator gives such addresses on every platform, malloc() where that is asserted.
 * In a block capacity is a power of two; `head` and `tail` run freely and are masked on access, so tail - head is the
 * length.
 */
#ifndef GMPLOOP_RING_H
#define GMPLOOP_RING_H

#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

_Static_assert(_Alignof(max_align_t) >= 8, "bit 2 of what malloc() gives must be free");

enum { GL_RING_BLOCK = 4, GL_RING_FIRST = 4 };

typedef struct {
    uint32_t mask;          /* capacity - 1 */
    uint32_t head, tail;
    uintptr_t slots[];
} gl_ring_block;

typedef struct { uintptr_t word; } gl_ring;

static inline gl_ring_block *gl_ring_block_of(const gl_ring *r) {
    return r->word & GL_RING_BLOCK ? (gl_ring_block *)(r->word - GL_RING_BLOCK) : NULL;
}

static inline size_t gl_ring_len(const gl_ring *r) {
    const gl_ring_block *b = gl_ring_block_of(r);
    return b ? b->tail - b->head : r->word != 0;
}

/* Twice the capacity. Returns -1 without memory, the ring then being as it was. */
static int gl_ring_grow(gl_ring *r) {
    gl_ring_block *old = gl_ring_block_of(r), *b;
    uint32_t n = (uint32_t)gl_ring_len(r), cap = old ? (old->mask + 1) * 2 : GL_RING_FIRST;
    b = cap ? (gl_ring_block *)malloc(sizeof *b + cap * sizeof(uintptr_t)) : NULL;
    if (!b) return -1;
    for (uint32_t i = 0; i < n; i++) b->slots[i] = old ? old->slots[(old->head + i) & old->mask] : r->word;
    free(old);
    b->mask = cap - 1; b->head = 0; b->tail = n;
    r->word = (uintptr_t)b + GL_RING_BLOCK;
    return 0;
}

/* Makes room for n more entries; -1 without memory. */
static inline int gl_ring_reserve(gl_ring *r, size_t n) {
    for (;;) {
        const gl_ring_block *b = gl_ring_block_of(r);
        if (gl_ring_len(r) + n <= (b ? (size_t)b->mask + 1 : 1)) return 0;
        if (gl_ring_grow(r) < 0) return -1;
    }
}

static inline int gl_ring_push(gl_ring *r, uintptr_t entry) {
    gl_ring_block *b = gl_ring_block_of(r);
#ifdef GMPLOOP_DEBUG_STATES
    if (entry & GL_RING_BLOCK) abort();
#endif
    if (!r->word) {
        r->word = entry;
        return 0;
    }
    if (!b || b->tail - b->head > b->mask) {
        if (gl_ring_grow(r) < 0) return -1;
        b = gl_ring_block_of(r);
    }
    b->slots[b->tail++ & b->mask] = entry;
    return 0;
}

/* The oldest entry, or 0 when empty. */
static inline uintptr_t gl_ring_pop(gl_ring *r) {
    gl_ring_block *b = gl_ring_block_of(r);
    uintptr_t only = r->word;
    if (b) return b->head == b->tail ? 0 : b->slots[b->head++ & b->mask];
    r->word = 0;
    return only;
}

/* The i-th oldest entry; i < length. */
static inline uintptr_t gl_ring_at(const gl_ring *r, size_t i) {
    const gl_ring_block *b = gl_ring_block_of(r);
    return b ? b->slots[(b->head + (uint32_t)i) & b->mask] : r->word;
}

static inline void gl_ring_free(gl_ring *r) {
    free(gl_ring_block_of(r));
    r->word = 0;
}

#endif
