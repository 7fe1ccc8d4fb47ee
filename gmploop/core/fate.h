/* What a goroutine's handle knows of it, in one word.
 *
 * While it is not over: its world, which the scheduler's reference keeps alive until then. After that: how it ended
 * (status, not 0), and whether somebody has seen the exception. Bit 0 is a lock, of the handle's other fields too. The word
 * is written by who holds that; it is read by anybody: who sees the status (acquire; release in gl_fate_end()) sees the
 * result. Only under the lock is it sure that the world that one sees does not go away.
 */
#ifndef GMPLOOP_FATE_H
#define GMPLOOP_FATE_H

#include "atomics.h"

enum { GL_FATE_LOCKED = 1, GL_FATE_SEEN = 8, GL_FATE_WORLD = 16 };      /* a pointer is not less than that */

typedef struct { uintptr_t word; } gl_fate;

static inline void gl_fate_lock(gl_fate *f) {
    while (__atomic_fetch_or(&f->word, GL_FATE_LOCKED, __ATOMIC_ACQUIRE) & GL_FATE_LOCKED)
        sched_yield();
}

static inline void gl_fate_unlock(gl_fate *f) {
    gl_store_release(&f->word, gl_load_relaxed(&f->word) & ~(uintptr_t)GL_FATE_LOCKED);
}

/* 0: it is not over. */
static inline int gl_fate_status(gl_fate *f) {
    uintptr_t word = gl_load_acquire(&f->word);
    return word >= GL_FATE_WORLD ? 0 : (int)(word >> 1 & 3);
}

static inline int gl_fate_seen(gl_fate *f) {
    uintptr_t word = gl_load_relaxed(&f->word);
    return word < GL_FATE_WORLD && word & GL_FATE_SEEN;
}

/* NULL when it is over. Under the lock. */
static inline void *gl_fate_world(gl_fate *f) {
    uintptr_t word = gl_load_relaxed(&f->word) & ~(uintptr_t)GL_FATE_LOCKED;
    return word >= GL_FATE_WORLD ? (void *)word : 0;
}

/* By who makes the handle. */
static inline void gl_fate_begin(gl_fate *f, void *world) { f->word = (uintptr_t)world; }

/* It is over. Under the lock, which is held on. */
static inline void gl_fate_end(gl_fate *f, int status) {
    gl_store_release(&f->word, (uintptr_t)status << 1 | GL_FATE_LOCKED);
}

/* Somebody has seen the exception: after its end. */
static inline void gl_fate_see(gl_fate *f) {
    gl_fate_lock(f);
    gl_store_relaxed(&f->word, gl_load_relaxed(&f->word) | GL_FATE_SEEN);
    gl_fate_unlock(f);
}

#endif
