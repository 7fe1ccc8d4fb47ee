/* An M looks for work, and sleeps when there is none: spin, give up the P, look again, poll or park.
 *
 * Invariants. An M gives its P up under `lock`, having looked at its ring and at the global queue there. A spinner that
 * stops counts itself down, then a fence, then it looks at all queues and timers once more (wakeup.h has the other side).
 * One M at a time is in the poller (`polling`), bounded by the earliest timer of all Ps; the others sleep on their notes.
 */
#ifndef GMPLOOP_FINDRUNNABLE_H
#define GMPLOOP_FINDRUNNABLE_H

#include "steal.h"

static inline void gl_spin_begin(gl_sched *S, gl_m *mp) {
    if (mp->spinning) return;
    mp->spinning = 1;
    GL_SUM(S->spins, 1);
    __atomic_fetch_add(&S->nmspinning, 1, __ATOMIC_SEQ_CST);
    gl_m_set(mp, M_SPINNING);
}

/* It has found work: who goes on looking? */
static inline void gl_spin_found(gl_sched *S, gl_m *mp) {
    if (!mp->spinning) return;
    mp->spinning = 0;
    GL_RACE();
    __atomic_fetch_sub(&S->nmspinning, 1, __ATOMIC_SEQ_CST);
    gl_m_set(mp, M_RUNNING);
    gl_wakep(S);
}

/* A P that is no longer wanted gives away what it has. The caller has it in hand. */
static inline void gl_retire(gl_sched *S, gl_p *pp) {
    gl_batch all = { 0 };
    gl_g *gp;
    int inherit;
    while ((gp = gl_runq_get(&pp->q, &inherit))) gl_batch_add(&all, gp);
    gl_timers_run(pp, GL_NEVER, &all);          /* its worlds look at their timers, and find another P */
    pthread_mutex_lock(&S->lock);
    if (pp->id >= S->procs) gl_p_set(pp, P_DEAD);
    else {                                      /* wanted again meanwhile */
        if (gl_load_relaxed(&pp->status) != P_IDLE) gl_p_set(pp, P_IDLE);
        gl_pidle_put(S, pp);
    }
    pthread_mutex_unlock(&S->lock);
    if (all.n) gl_inject(S, &all);
}

static inline void gl_adopt(gl_m *mp) {          /* the P that somebody gave it */
    mp->p = mp->nextp;
    mp->nextp = NULL;
    if (mp->p) gl_m_set(mp, mp->spinning ? M_SPINNING : M_RUNNING);
}

/* Whether no M runs or looks for work, and none waits for a time or for events. */
static inline int gl_at_rest(gl_sched *S) {
    return gl_load_relaxed(&S->npidle) >= gl_load_relaxed(&S->procs) && !gl_load_relaxed(&S->qsize)
        && !gl_load_relaxed(&S->nmspinning) && !gl_load_relaxed(&S->watchers) && gl_timers_min(S) == GL_NEVER;
}

/* By an M that has given up its P, before it sleeps. The last of them sees that all are at rest: each has put its P
 * among the idle ones under `lock` before it looks. Who wants to be told sets `rest_wanted`, fence, looks once itself. */
static inline void gl_tell_rest(gl_sched *S) {
    gl_fence_seq_cst();
    if (gl_load_relaxed(&S->rest_wanted) && gl_at_rest(S) && gl_cas_int(&S->rest_wanted, 1, 0)) S->on_rest();
}

/* Sleep until somebody gives a P, or a locked G. */
static void gl_park(gl_sched *S, gl_m *mp) {
    GL_RACE();
    pthread_mutex_lock(&S->lock);
    if (gl_load_relaxed(&S->stopping)) { pthread_mutex_unlock(&S->lock); return; }
    mp->link = S->midle;
    S->midle = mp;
    GL_ADD(S->nmidle, 1);
    GL_ADD(S->parks, 1);
    gl_m_set(mp, M_PARKED);
    pthread_mutex_unlock(&S->lock);
    gl_note_sleep(&mp->note, -1);
    gl_adopt(mp);
}

/* An idle P, for an M that has none. */
static inline gl_p *gl_take_idle(gl_sched *S, gl_m *mp) {
    gl_p *pp = NULL;
    if (!gl_load_relaxed(&S->npidle)) return NULL;
    pthread_mutex_lock(&S->lock);
    pp = gl_pidle_get(S);
    if (pp) gl_p_set(pp, gl_status(P_RUNNING, mp));
    pthread_mutex_unlock(&S->lock);
    return mp->p = pp;
}

/* Wait for events until the earliest timer; back with or without a P. */
static int gl_wait_in_poller(gl_sched *S, gl_m *mp, int64_t until) {
    int64_t now, again;
    int n;
    pthread_mutex_lock(&S->lock);
    S->poller_m = mp;
    gl_m_set(mp, M_POLLING);
    pthread_mutex_unlock(&S->lock);
    __atomic_store_n(&S->poll_until, until, __ATOMIC_SEQ_CST);
    gl_fence_seq_cst();                         /* with gl_timer_set() */
    again = gl_timers_min(S);
    if (again < until) gl_store_relaxed(&S->poll_until, until = again);
    GL_RACE();
    now = gl_now_ns();
    n = gl_load_acquire(&S->stopping) ? 0
        : S->poll(mp, until == GL_NEVER ? -1 : until <= now ? 0 : until - now);
    gl_store_relaxed(&S->poll_until, INT64_MIN);
    pthread_mutex_lock(&S->lock);
    S->poller_m = NULL;
    if (!mp->nextp) {
        gl_p *pp = gl_pidle_get(S);
        if (pp) gl_give(mp, pp, 0);
    }
    pthread_mutex_unlock(&S->lock);
    gl_store_relaxed(&S->lastpoll_ns, gl_now_ns());
    gl_store_release(&S->polling, 0);
    gl_adopt(mp);
    if (!mp->p) gl_m_set(mp, M_RUNNING);
    return n;
}

/* What the poller has now, if nobody waits there. */
static inline int gl_look_in_poller(gl_sched *S, gl_m *mp) {
    int zero = 0, n;
    if (!gl_load_relaxed(&S->watchers)
            || !__atomic_compare_exchange_n(&S->polling, &zero, 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) return 0;
    n = S->poll(mp, 0);
    GL_ADD(mp->p->n.polls, 1);
    gl_store_relaxed(&S->lastpoll_ns, gl_now_ns());
    gl_store_release(&S->polling, 0);
    return n;
}

/* One look around for an M with a P: 1 and a G, 2 and events, 0: nothing. */
static int gl_search(gl_sched *S, gl_m *mp, gl_g **out, int *n_events) {
    int64_t spin_end = 0;
    if ((*out = gl_next(S, mp))) return GL_GOT_G;
    if ((*n_events = gl_look_in_poller(S, mp)) > 0) return GL_GOT_EVENTS;
    if (gl_load_relaxed(&S->procs) < 2) return 0;
    if (!mp->spinning && 2 * gl_load_relaxed(&S->nmspinning) >= gl_load_relaxed(&S->procs) - gl_load_relaxed(&S->npidle))
        return 0;
    gl_spin_begin(S, mp);
    for (;;) {
        if ((*out = gl_steal(S, mp))) return GL_GOT_G;
        int64_t now = gl_now_ns();
        if (!spin_end) spin_end = now + S->spin_ns;
        if (now >= spin_end || gl_load_relaxed(&S->stopping)) return 0;
        if (gl_load_relaxed(&S->qsize) && (*out = gl_next(S, mp))) return GL_GOT_G;
        sched_yield();
    }
}

/* An M without a P looks for work no longer: 0; or 1, there was some that nobody else may have seen, and it has a P. */
static int gl_spin_end(gl_sched *S, gl_m *mp) {
    if (!mp->spinning) return 0;
    mp->spinning = 0;
    GL_RACE();
    __atomic_fetch_sub(&S->nmspinning, 1, __ATOMIC_SEQ_CST);
    gl_m_set(mp, M_RUNNING);
    gl_fence_seq_cst();                         /* with gl_inject() and gl_ready() */
    if (!gl_any_work(S, gl_now_ns())) return 0;
    if (gl_take_idle(S, mp)) {
        gl_spin_begin(S, mp);
        return 1;
    }
    pthread_mutex_lock(&S->lock);
    S->needspinning = 1;                        /* who is about to give up a P looks once more instead */
    pthread_mutex_unlock(&S->lock);
    return 0;
}

/* Give the P up: 0; or 1, and there is something to do. */
static int gl_give_up_p(gl_sched *S, gl_m *mp) {
    gl_p *pp = mp->p;
    pthread_mutex_lock(&S->lock);
    if (S->qsize || gl_runq_len(&pp->q)) { pthread_mutex_unlock(&S->lock); return 1; }
    if (!mp->spinning && S->needspinning) {
        S->needspinning = 0;
        gl_spin_begin(S, mp);
        pthread_mutex_unlock(&S->lock);
        return 1;
    }
    mp->p = NULL;
    if (pp->id >= S->procs) {
        pthread_mutex_unlock(&S->lock);
        gl_retire(S, pp);
    } else {
        gl_p_set(pp, P_IDLE);
        gl_pidle_put(S, pp);
        pthread_mutex_unlock(&S->lock);
    }
    return gl_spin_end(S, mp);
}

/* The next thing to do, waiting for it as long as it takes. The thread must be detached from Python. Afterwards the M
 * has a P, unless it stops, or has events only. */
static int gl_find(gl_sched *S, gl_m *mp, gl_g **out, int *n_events) {
    for (;;) {
        if (gl_load_acquire(&S->stopping)) return GL_STOP;
        if (mp->p && mp->p->id >= gl_load_relaxed(&S->procs)) {
            gl_p *pp = mp->p;
            mp->p = NULL;
            gl_retire(S, pp);
        }
        if (mp->p) {
            int r = gl_search(S, mp, out, n_events);
            if (r) { gl_spin_found(S, mp); return r; }
            if (gl_give_up_p(S, mp)) continue;
        } else if (mp->spinning) {              /* its P was retired */
            if (gl_spin_end(S, mp)) continue;
        } else if (gl_take_idle(S, mp)) {
            gl_spin_begin(S, mp);
            continue;
        }
        int zero = 0;
        int64_t until = gl_timers_min(S);
        if ((until != GL_NEVER || gl_load_relaxed(&S->watchers))
                && __atomic_compare_exchange_n(&S->polling, &zero, 1, 0, __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
            *n_events = gl_wait_in_poller(S, mp, until);
            if (*n_events > 0) { gl_spin_found(S, mp); return GL_GOT_EVENTS; }
            if (mp->p) {
                gl_spin_begin(S, mp);
                continue;
            }
        } else if (until < gl_load_relaxed(&S->poll_until)) S->poll_break();
        gl_tell_rest(S);
        gl_park(S, mp);
    }
}

#endif
