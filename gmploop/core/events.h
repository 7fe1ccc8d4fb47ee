/* Rings of events: the newest GL_EVENTS things that happened to Gs, Ps and Ms, written by any thread, read by any.
 *
 * An entry has a number; its slot's `seq` is that number + 1 when it is whole, BUSY while somebody writes it. A writer
 * takes the next number, then the slot, by exchanging BUSY into it. If BUSY was there already, a writer has been held up
 * for a whole lap of the ring: the newer event is dropped. So one thread at a time writes a slot.
 *
 * A reader loads seq (acquire: pairs with the writer's last store, so the fields are there), the fields, and, behind a
 * fence, seq again. Had a later writer touched a field that was read, then its BUSY, which its fence puts before its
 * fields, would be seen by the second load. An entry with another number, or none, is torn or overwritten: skipped.
 */
#ifndef GMPLOOP_EVENTS_H
#define GMPLOOP_EVENTS_H

#include "atomics.h"

#ifndef GL_EVENTS
#define GL_EVENTS 8192u         /* a power of two; about 10 ms of a P that does nothing but switch; guessed */
#endif

#define GL_EVENT_BUSY UINT64_MAX

/* what: kind | P's id + 1 << 8 | M's id << 24 */
typedef struct { uint64_t seq; int64_t when_ns; const void *g; uint64_t what; } gl_event;
typedef struct { uint64_t next; gl_event at[GL_EVENTS]; } gl_events;

static inline void gl_events_put(gl_events *ring, int64_t when_ns, const void *g, uint64_t what) {
    uint64_t n = __atomic_fetch_add(&ring->next, 1, __ATOMIC_RELAXED);
    gl_event *e = &ring->at[n % GL_EVENTS];
    GL_RACE();
    if (gl_exchange_acq_rel(&e->seq, GL_EVENT_BUSY) == GL_EVENT_BUSY) return;
    __atomic_thread_fence(__ATOMIC_RELEASE);
    GL_RACE();
    gl_store_relaxed(&e->when_ns, when_ns);
    GL_RACE();
    gl_store_relaxed(&e->g, g);
    gl_store_relaxed(&e->what, what);
    gl_store_release(&e->seq, n + 1);
}

/* Entry number n, if it is there and whole. */
static inline int gl_events_get(gl_events *ring, uint64_t n, gl_event *out) {
    gl_event *e = &ring->at[n % GL_EVENTS];
    if (gl_load_acquire(&e->seq) != n + 1) return 0;
    out->when_ns = gl_load_relaxed(&e->when_ns);
    GL_RACE();
    out->g = gl_load_relaxed(&e->g);
    out->what = gl_load_relaxed(&e->what);
    __atomic_thread_fence(__ATOMIC_ACQUIRE);
    return gl_load_relaxed(&e->seq) == n + 1;
}

#endif
