/* The only vocabulary for memory ordering in this package.
 *
 * Every ordered access names its partner where it is used. A model checker may stand in for this header.
 * GCC and clang builtins: right on x86-64 and aarch64 alike, and usable on plain fields of Cython structs.
 */
#ifndef GMPLOOP_ATOMICS_H
#define GMPLOOP_ATOMICS_H

#include <stdint.h>
#include <sched.h>
#include "races.h"

#define gl_load_relaxed(p)        __atomic_load_n((p), __ATOMIC_RELAXED)
#define gl_load_acquire(p)        (GL_ORDERED(), __atomic_load_n((p), __ATOMIC_ACQUIRE))
#define gl_store_relaxed(p, v)    __atomic_store_n((p), (v), __ATOMIC_RELAXED)
#define gl_store_release(p, v)    (GL_ORDERED(), __atomic_store_n((p), (v), __ATOMIC_RELEASE))
#define gl_exchange_acq_rel(p, v) (GL_ORDERED(), __atomic_exchange_n((p), (v), __ATOMIC_ACQ_REL))
#define gl_fetch_or_acq_rel(p, v) (GL_ORDERED(), __atomic_fetch_or((p), (v), __ATOMIC_ACQ_REL))
#define gl_fence_seq_cst()        (GL_ORDERED(), __atomic_thread_fence(__ATOMIC_SEQ_CST))
#define gl_fetch_and_acq_rel(p, v) (GL_ORDERED(), __atomic_fetch_and((p), (v), __ATOMIC_ACQ_REL))
#define gl_cas_ptr(p, from, to)   (GL_ORDERED(), __sync_bool_compare_and_swap((p), (from), (to)))

static inline int gl_cas_int(int *p, int expected, int desired) {
    GL_ORDERED();
    return __atomic_compare_exchange_n(p, &expected, desired, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
}

/* A lock for sections of a few loads and stores. Never drop a reference while it is held: a finaliser may run. */
typedef struct { char held; } gl_spinlock;

static inline void gl_lock(gl_spinlock *l) {
    while (__atomic_exchange_n(&l->held, 1, __ATOMIC_ACQUIRE))
        sched_yield();
}

static inline void gl_unlock(gl_spinlock *l) { __atomic_store_n(&l->held, 0, __ATOMIC_RELEASE); }

#endif
