/* The seam for looking in: every transition of a G, P or M passes through gl_happened(), which writes it to a ring of
 * events when somebody looks and costs one predictable branch when nobody does.
 *
 * What gives a G or P to others does so before them, or takes its time before, so that the events of each come in the
 * order of their times. In debug builds (GMPLOOP_DEBUG_STATES) the tables of schedtypes.h are checked here.
 */
#ifndef GMPLOOP_TRANSITIONS_H
#define GMPLOOP_TRANSITIONS_H

#include "schedtypes.h"

static void gl_put_event(gl_sched *S, int64_t when_ns, int kind, const void *g, const gl_p *pp, const gl_m *mp) {
    gl_events **at = &S->events[pp ? pp->id + 1 : 0], *ring = gl_load_acquire(at), *none = NULL;
    if (!ring) {
        if (!(ring = (gl_events *)calloc(1, sizeof *ring))) return;
        if (!__atomic_compare_exchange_n(at, &none, ring, 0, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE)) {
            free(ring);
            ring = none;
        }
    }
    gl_events_put(ring, when_ns, g, (uint64_t)kind | (uint64_t)(pp ? pp->id + 1 : 0) << 8
                  | (uint64_t)(mp ? mp->id : 0) << 24);
}

/* The time for an event that is put when it has happened; 0 while nobody looks. */
static inline int64_t gl_event_time(gl_sched *S) {
    return __builtin_expect(gl_load_relaxed(&S->events_on), 0) ? gl_now_ns() : 0;
}

static inline void gl_happened(gl_sched *S, int kind, const void *g, const gl_p *pp, const gl_m *mp) {
    if (__builtin_expect(gl_load_relaxed(&S->events_on), 0)) gl_put_event(S, gl_now_ns(), kind, g, pp, mp);
}

/* A G becomes runnable. By who queues it next; mp: the M that does, or NULL. */
static inline uint32_t gl_since(void) { return ((uint32_t)(gl_now_ns() >> 5) & GL_SINCE) | 1; }

static inline void gl_runnable(gl_sched *S, gl_m *mp, gl_g *gp) {
    uint32_t *readied = mp ? &mp->readied : &S->readied, n = gl_load_relaxed(readied);
    gl_store_relaxed(readied, n + 1);
    gp->since = n % GL_SAMPLED ? 0 : gl_since();
    gl_happened(S, EV_G + G_RUNNABLE, gl_obj(gp), mp ? mp->p : NULL, mp);
}

/* Four buckets for each power of two: what is in one is at most a quarter larger than what else is. */
static inline int gl_latency_bucket(uint32_t units) {
    int e = units < 4 ? 1 : 31 - __builtin_clz(units);
    return units < 4 ? (int)units : (e - 1) * 4 + (int)(units >> (e - 2) & 3);
}

/* The least number of units that is above the bucket. */
static inline uint32_t gl_latency_above(int bucket) {
    return bucket < 4 ? (uint32_t)bucket + 1 : (uint32_t)(bucket % 4 + 5) << (bucket / 4 - 1);
}

/* The M that holds pp runs the G. */
static inline void gl_running(gl_sched *S, gl_m *mp, gl_p *pp, gl_g *gp) {
    if (gp->since) {
        uint64_t *waits = &pp->n.latency[gl_latency_bucket((gl_since() - gp->since) & GL_SINCE)];
        GL_ADD(*waits, 1);
        gp->since = 0;
    }
    gl_happened(S, EV_G + G_RUNNING, gl_obj(gp), pp, mp);
}

static inline gl_m *gl_m_at(gl_sched *S, int status) {
    return status >> 3 ? gl_load_acquire(&S->allm[(status >> 3) - 1]) : NULL;
}

static inline int gl_status(int state, const gl_m *mp) { return state | (mp ? mp->id : 0) << 3; }

static inline void gl_illegal(const char *what, int from, int to) {
    fprintf(stderr, "gmploop: illegal transition of %s: %d -> %d\n", what, from, to);
    abort();
}

static inline int gl_p_cas(gl_p *pp, int from, int to) {
#ifdef GMPLOOP_DEBUG_STATES
    if (!gl_p_legal[from & 7][to & 7]) gl_illegal("a P", from & 7, to & 7);
#endif
    int64_t when = gl_event_time(pp->sched);
    int done = gl_cas_int(&pp->status, from, to);
    if (when && done) gl_put_event(pp->sched, when, EV_P + (to & 7), NULL, pp, gl_m_at(pp->sched, to));
    return done;
}

/* By who has the P in hand, alone. */
static inline void gl_p_set(gl_p *pp, int to) {
#ifdef GMPLOOP_DEBUG_STATES
    int from = gl_load_relaxed(&pp->status);
    if (!gl_p_legal[from & 7][to & 7]) gl_illegal("a P", from & 7, to & 7);
#endif
    gl_happened(pp->sched, EV_P + (to & 7), NULL, pp, gl_m_at(pp->sched, to));
    gl_store_release(&pp->status, to);
}

static inline void gl_m_set(gl_m *mp, int to) {
#ifdef GMPLOOP_DEBUG_STATES
    int from = gl_load_relaxed(&mp->state);
    if (from != to && !gl_m_legal[from][to]) gl_illegal("an M", from, to);
#endif
    gl_happened(mp->sched, EV_M + to, NULL, mp->p, mp);
    gl_store_relaxed(&mp->state, to);
}

#endif
