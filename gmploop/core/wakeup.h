/* Waking Ms: which thread gets a P that has none, and when another one is woken to look for work.
 *
 * No wake-up is lost, while a G is runnable and a P idle: wakep() does nothing while somebody spins, and a spinner that
 * stops (findrunnable.h: P to the idle list, count down, fence) looks at all queues and timers again; who puts a G has
 * the order queue, fence, read the count. One of both sees the other.
 */
#ifndef GMPLOOP_WAKEUP_H
#define GMPLOOP_WAKEUP_H

#include "globalq.h"

static void gl_startm(gl_sched *S, gl_p *pp, int spinning);

/* If a P is idle and nobody looks for work, wake an M to look. */
static inline void gl_wakep(gl_sched *S) {
    int zero = 0;
    gl_p *pp;
    if (!gl_load_relaxed(&S->npidle) || gl_load_relaxed(&S->nmspinning)) return;
    GL_RACE();
    if (!__atomic_compare_exchange_n(&S->nmspinning, &zero, 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) return;
    pthread_mutex_lock(&S->lock);
    pp = gl_pidle_get(S);
    /* Under the lock: who put a G before it, and saw this count, is seen by the M that gives up a P after it. */
    if (!pp) __atomic_fetch_sub(&S->nmspinning, 1, __ATOMIC_SEQ_CST);
    pthread_mutex_unlock(&S->lock);
    if (pp) gl_startm(S, pp, 1);
}

static inline void gl_give(gl_m *mp, gl_p *pp, int spinning) {
    gl_p_set(pp, gl_status(P_RUNNING, mp));
    mp->spinning = spinning;
    mp->nextp = pp;
}

/* Whether no thread was to be had just now. */
static inline int gl_refused(gl_sched *S, int64_t now) {
    return gl_load_relaxed(&S->spare) && now - gl_load_relaxed(&S->refused_ns) < GL_REFUSED_NS;
}

static gl_m *gl_new_m(gl_sched *S) {            /* under lock */
    gl_m *mp = S->spare;
    if (mp) {
        if (gl_refused(S, gl_now_ns())) return NULL;
        gl_store_relaxed(&S->spare, NULL);
        GL_ADD(S->nmlive, 1);
        return mp;
    }
    if (S->nm == GL_MAX_M || !(mp = (gl_m *)calloc(1, sizeof *mp))) return NULL;
    mp->sched = S;
    mp->id = S->nm + 1;                         /* 0 is nobody */
    mp->random = (uint32_t)mp->id * 2654435761u;
    gl_note_init(&mp->note);
    gl_store_release(&S->allm[mp->id - 1], mp);
    gl_store_release(&S->nm, mp->id);
    GL_ADD(S->nmlive, 1);
    GL_ADD(S->m_made, 1);
    return mp;
}

/* An M for the P in hand: a parked one, the one in the poller, or a new one. */
static void gl_startm(gl_sched *S, gl_p *pp, int spinning) {
    gl_m *mp, *made = NULL;
    int polls = 0;
    GL_SUM(S->spins, (uint64_t)spinning);
    pthread_mutex_lock(&S->lock);
    if ((mp = S->midle)) {
        S->midle = mp->link;
        GL_ADD(S->nmidle, -1);
    } else if ((mp = S->poller_m) && !mp->nextp && !gl_load_relaxed(&S->watchers)) {
        polls = 1;      /* it waits for a time only, and will be back there when this has been done */
    } else {
        mp = made = gl_new_m(S);
    }
    if (mp) gl_give(mp, pp, spinning);
    else gl_pidle_put(S, pp);
    pthread_mutex_unlock(&S->lock);
    if (made) {
        if (S->start_thread(made) == 0) return;
        pthread_mutex_lock(&S->lock);           /* no thread to be had; sysmon tries again */
        made->nextp = NULL;
        made->spinning = 0;
        gl_store_relaxed(&S->refused_ns, gl_now_ns());
        if (S->spare) gl_m_set(made, M_DEAD);
        else gl_store_relaxed(&S->spare, made);
        GL_ADD(S->nmlive, -1);
        gl_p_set(pp, P_IDLE);
        gl_pidle_put(S, pp);
        pthread_mutex_unlock(&S->lock);
        mp = NULL;
    }
    if (!mp) {
        if (spinning) __atomic_fetch_sub(&S->nmspinning, 1, __ATOMIC_SEQ_CST);
    } else if (polls) S->poll_break();
    else gl_note_wake(&mp->note);
}

/* The first M, before there is work: whether a thread can be had at all. */
static inline int gl_start_first(gl_sched *S) {
    gl_p *pp;
    pthread_mutex_lock(&S->lock);
    gl_store_relaxed(&S->refused_ns, gl_now_ns() - 2 * GL_REFUSED_NS);
    pp = gl_pidle_get(S);
    pthread_mutex_unlock(&S->lock);
    __atomic_fetch_add(&S->nmspinning, 1, __ATOMIC_SEQ_CST);
    if (pp) gl_startm(S, pp, 1);
    else __atomic_fetch_sub(&S->nmspinning, 1, __ATOMIC_SEQ_CST);
    return gl_load_relaxed(&S->nmlive) > 0 ? 0 : -1;
}

#endif
