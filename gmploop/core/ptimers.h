/* The timers of Ps: a world that sleeps until a time has one entry, in the heap of the P that ran it last. Whoever runs
 * that P's timers, its owner or a thief, notifies the world; what the time was for, the world sees itself.
 *
 * Invariant: `next_ns` of a P is the deadline of its heap's first entry, written under its `tlock`. Who adds a timer makes
 * it visible (next_ns), fence, reads poll_until. The poller writes poll_until, fence, reads all next_ns. One of both sees
 * the other.
 */
#ifndef GMPLOOP_PTIMERS_H
#define GMPLOOP_PTIMERS_H

#include "transitions.h"

/* Where the entry of a world stands, if it ever slept until a time. pp: the P in whose heap it is, or was; by the M that
 * runs the world. pos: its index there, -1 outside; under the tlock of that heap. Who sees -1 without the lock puts it into
 * another heap without ever taking that lock: acquire, with the release of gl_timers_remove(). Its memory stays where it
 * is, since the heap knows it, and goes after gl_timer_forget(). */
typedef struct { gl_p *pp; ssize_t pos; } gl_place;

static inline void gl_note_next(gl_p *pp) {     /* under tlock */
    double ns = gl_timers_len(&pp->timers) ? pp->timers.a[0].when * 1e9 : 1e19;
    gl_store_relaxed(&pp->next_ns, ns < 9e18 ? (int64_t)ns + 1 : GL_NEVER);
}

/* The G's world has a timer at `when`: see to it that it is notified then. By the M that runs it, which holds pp, or
 * (pp NULL) has lost its P: then P 0 takes it. at: the world's note of its gl_place. 0, or -1 without memory. */
static inline int gl_timer_set(gl_sched *S, gl_p *pp, gl_g *gp, void **at, double when) {
    gl_place *place = (gl_place *)*at;
    gl_p *old;
    int r;
    int64_t next;
    if (!place) {
        if (!(*at = place = (gl_place *)malloc(sizeof *place))) return -1;
        *place = (gl_place){ NULL, -1 };
    }
    old = place->pp;
    if (gl_load_acquire(&place->pos) >= 0) {
        gl_lock(&old->tlock);
        if (place->pos >= 0) {
            if (old->timers.a[place->pos].when <= when) {     /* it looks by then: one look too early is cheap */
                gl_unlock(&old->tlock);
                return 0;
            }
            gl_timers_remove(&old->timers, (size_t)place->pos);
            gl_note_next(old);
        }
        gl_unlock(&old->tlock);
    }
    if (!pp) pp = S->allp[0];
    place->pp = pp;
    gl_lock(&pp->tlock);
    r = gl_timers_push(&pp->timers, when, gp, &place->pos);
    gl_note_next(pp);
    next = pp->next_ns;
    gl_unlock(&pp->tlock);
    gl_fence_seq_cst();                         /* with the poller's, in gl_find() */
    if (next < gl_load_relaxed(&S->poll_until)) S->poll_break();
    return r;
}

/* Before the G's memory goes. */
static inline void gl_timer_forget(void *at) {
    gl_place *place = (gl_place *)at;
    gl_p *pp = place ? place->pp : NULL;
    if (!pp) return;
    gl_lock(&pp->tlock);
    if (place->pos >= 0) {
        gl_timers_remove(&pp->timers, (size_t)place->pos);
        gl_note_next(pp);
    }
    gl_unlock(&pp->tlock);
}

/* Notify the worlds whose time has come (all of them: now_ns GL_NEVER), and collect whom that made runnable. A world
 * stays where it is until its entry has left the heap, so it cannot go away before it is notified. */
static inline uint32_t gl_timers_run(gl_p *pp, int64_t now_ns, gl_batch *b) {
    uint32_t n = 0;
    double now = (double)now_ns * 1e-9;
    if (gl_load_relaxed(&pp->next_ns) > now_ns && now_ns != GL_NEVER) return 0;
    gl_lock(&pp->tlock);
    while (gl_timers_len(&pp->timers) && (pp->timers.a[0].when <= now || now_ns == GL_NEVER)) {
        gl_g *gp = (gl_g *)pp->timers.a[0].item;
        int runnable = gl_g_notify(&gp->state);
        gl_timers_remove(&pp->timers, 0);
        if (runnable) {
            gp->since = pp->woken++ % GL_SAMPLED ? 0 : gl_since();
            gl_happened(pp->sched, EV_G + G_RUNNABLE, gl_obj(gp), pp, NULL);
            gl_batch_add(b, gp);
        }
        n++;
    }
    gl_note_next(pp);
    gl_unlock(&pp->tlock);
    return n;
}

static inline int64_t gl_timers_min(gl_sched *S) {
    int64_t first = GL_NEVER;
    for (int i = 0, n = gl_load_acquire(&S->nallp); i < n; i++) {
        int64_t t = gl_load_relaxed(&S->allp[i]->next_ns);
        if (t < first) first = t;
    }
    return first;
}

#endif
