/* Which tasks of ours are not done: a list per world, and the worlds that have such a list, in shards.
 *
 * Nodes are embedded in tasks and worlds and own no reference; a task leaves its list when it is done or freed, a world
 * its shard when it is freed, and both do so before their memory goes. Lock order: shard, then world. On builds with
 * the GIL it does the locking. Under a lock nothing is freed and no Python code runs.
 */
#ifndef GMPLOOP_TASKLIST_H
#define GMPLOOP_TASKLIST_H

#include "world.h"
#include <stddef.h>

typedef struct gl_node { struct gl_node *next, *prev; } gl_node;    /* next is NULL while in no list */
typedef struct { gl_node first; gl_spinlock lock; } gl_tasks;        /* a ring through `first`; all zero: empty */
/* What a world has of this, from its first task on: few of those that are made by the million ever have one. */
typedef struct { gl_tasks list; gl_node node; unsigned shard; } gl_own_tasks;
typedef struct { gl_tasks list; char apart[64]; } gl_shard;          /* not on one cache line with the next */

static inline void gl_tasks_lock(gl_tasks *l) { if (GL_FREE_THREADED) gl_lock(&l->lock); }
static inline void gl_tasks_unlock(gl_tasks *l) { if (GL_FREE_THREADED) gl_unlock(&l->lock); }

/* By whoever has the node: only that thread puts it in and takes it out. Others, under the lock, change which neighbour
 * `next` points to, so it is read and written atomically; relaxed, since only NULL or not is asked. */
static inline int gl_tasks_in(const gl_node *n) { return gl_load_relaxed(&n->next) != NULL; }

static inline void gl_tasks_add(gl_tasks *l, gl_node *n) {
    gl_tasks_lock(l);
    if (!l->first.next) l->first.next = l->first.prev = &l->first;
    gl_store_relaxed(&n->next, &l->first); n->prev = l->first.prev;
    gl_store_relaxed(&n->prev->next, n); l->first.prev = n;
    gl_tasks_unlock(l);
}

static inline void gl_tasks_remove(gl_tasks *l, gl_node *n) {
    if (!gl_tasks_in(n)) return;
    gl_tasks_lock(l);
    if (n->next) {
        gl_store_relaxed(&n->prev->next, n->next); n->next->prev = n->prev;
        gl_store_relaxed(&n->next, NULL);
        n->prev = NULL;
    }
    gl_tasks_unlock(l);
}

/* To walk a list that the caller has locked. */
static inline gl_node *gl_tasks_next(gl_tasks *l, gl_node *n) {
    n = n ? n->next : l->first.next;
    return n == &l->first ? NULL : n;
}

static inline gl_own_tasks *gl_own_tasks_of(gl_node *n) {
    return (gl_own_tasks *)((char *)n - offsetof(gl_own_tasks, node));
}

/* The shard of the calling thread: what it adds and soon removes stays in its core's cache. */
#define GL_SHARDS 16
static inline unsigned gl_shard_here(void) {
    return GL_FREE_THREADED ? (unsigned)(((uint64_t)PyThread_get_thread_ident() * 0x9E3779B97F4A7C15u) >> 60) : 0;
}

/* Numbers for "Task-N": in the order of making, on free-threaded builds by blocks, so that threads do not share a line
 * for each task. */
#ifdef Py_GIL_DISABLED
#define GL_NUMBERS 64
static inline unsigned long long gl_task_number(unsigned long long *counter) {
    static __thread unsigned long long next, end;
    if (next == end) {
        next = __atomic_fetch_add(counter, GL_NUMBERS, __ATOMIC_RELAXED);
        end = next + GL_NUMBERS;
    }
    return ++next;
}
#else
static inline unsigned long long gl_task_number(unsigned long long *counter) { return ++*counter; }
#endif

#endif
