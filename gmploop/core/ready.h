/* A G was made runnable: into which queue it goes.
 *
 * Invariant: a runnable G is in one place: a ring, a runnext, the global queue, a chain in somebody's hands, or in the
 * hands of the M that will run it. Into a ring only an M that holds the P puts, and it looks there again before it gives
 * its P up; whether others are woken to share is a matter of speed, and `sysmon` bounds it. Into the global queue
 * everybody puts: under `lock`, then a fence, then wakep(). An M gives its P up under `lock` too, having looked at the
 * global queue there. So either it saw the G, or the putter sees the idle P.
 */
#ifndef GMPLOOP_READY_H
#define GMPLOOP_READY_H

#include "wakeup.h"

static inline void gl_put_batch(gl_sched *S, gl_p *pp, gl_batch *b) {    /* owner of pp */
    gl_batch over = { 0 };
    gl_g *gp = b->first, *next;
    for (; gp; gp = next) {
        next = gp->next;
        gp->next = NULL;
        gl_runq_put(&pp->q, gp, 0, &over);
    }
    if (!over.n) return;
    GL_ADD(pp->n.overflows, 1);
    pthread_mutex_lock(&S->lock);
    gl_q_put(S, &over);
    pthread_mutex_unlock(&S->lock);
}

/* To the global queue, from any thread. */
static inline void gl_inject(gl_sched *S, gl_batch *b) {
    pthread_mutex_lock(&S->lock);
    gl_q_put(S, b);
    pthread_mutex_unlock(&S->lock);
    gl_fence_seq_cst();                         /* with the spinner's that stops */
    gl_wakep(S);
}

/* The M, in a callback, goes back into the scheduler for a moment: its P, or NULL if that was taken. */
static inline gl_p *gl_enter(gl_m *mp) {
    gl_p *pp = mp->p;
    if (!pp) return NULL;
    if (gl_p_cas(pp, gl_status(P_INCALL, mp), gl_status(P_RUNNING, mp))) return pp;
    mp->p = NULL;
    return NULL;
}

static inline void gl_leave(gl_m *mp, gl_p *pp) { gl_p_set(pp, gl_status(P_INCALL, mp)); }

/* The G was made runnable: queue it. mp: the M that calls this, or NULL for any other thread. Within a callback it goes
 * into the scheduler for the moment; but a finaliser may call this too, while the M is there already. */
static inline void gl_ready(gl_sched *S, gl_m *mp, gl_g *gp, int next) {
    gl_batch over = { 0 };
    gl_p *pp = mp ? mp->p : NULL;
    int in_call = pp && gl_load_relaxed(&pp->status) != gl_status(P_RUNNING, mp);
    gl_runnable(S, mp, gp);
    if (in_call) pp = gl_enter(mp);
    if (!pp) {
        gl_batch_add(&over, gp);
        gl_inject(S, &over);
        return;
    }
    gl_runq_put(&pp->q, gp, next, &over);
    if (over.n) GL_ADD(pp->n.overflows, 1);
    if (in_call) gl_leave(mp, pp);
    if (over.n) gl_inject(S, &over);
}

/* After its turn: to the end of the line. The M is not in a callback; it may have lost its P. */
static inline void gl_requeue(gl_sched *S, gl_m *mp, gl_g *gp) {
    gl_batch over = { 0 };
    gl_runnable(S, mp, gp);
    if (mp->p) gl_runq_put(&mp->p->q, gp, 0, &over);
    else gl_batch_add(&over, gp);
    if (over.n) gl_inject(S, &over);
}

#endif
