/* The global queue and the list of idle Ps. All of it under the scheduler's `lock`.
 *
 * Invariant: an idle P is in the list, or in the hands of who is about to give it to an M. The counts beside them,
 * `npidle` and `qsize`, are read without the lock by who only wants to know whether to look. `npidle` grows seq_cst: it
 * pairs with the read in gl_wakep() (wakeup.h).
 */
#ifndef GMPLOOP_GLOBALQ_H
#define GMPLOOP_GLOBALQ_H

#include "transitions.h"

static inline void gl_pidle_put(gl_sched *S, gl_p *pp) {
    pp->link = S->pidle;
    S->pidle = pp;
    __atomic_store_n(&S->npidle, S->npidle + 1, __ATOMIC_SEQ_CST);
}

static inline gl_p *gl_pidle_get(gl_sched *S) {
    gl_p *pp = S->pidle;
    if (!pp) return NULL;
    S->pidle = pp->link;
    gl_store_relaxed(&S->npidle, S->npidle - 1);
    if (gl_load_relaxed(&S->sysmon_parked)) {           /* no longer all idle: somebody must watch */
        gl_store_relaxed(&S->sysmon_parked, 0);
        gl_note_wake(&S->sysmon);
    }
    return pp;
}

static inline void gl_q_put(gl_sched *S, const gl_batch *b) {
    if (!b->n) return;
    if (S->qtail) S->qtail->next = b->first;
    else S->qhead = b->first;
    S->qtail = b->last;
    gl_store_relaxed(&S->qsize, S->qsize + b->n);
}

static inline gl_g *gl_q_pop(gl_sched *S) {
    gl_g *gp = S->qhead;
    S->qhead = gp->next;
    if (!S->qhead) S->qtail = NULL;
    gl_store_relaxed(&S->qsize, S->qsize - 1);
    gp->next = NULL;
    return gp;
}

/* A fair share, at most half a ring: the first is returned, the others go to pp's ring. */
static inline gl_g *gl_q_get(gl_sched *S, gl_p *pp, size_t most) {
    gl_batch none = { 0 };
    size_t n = S->qsize / (size_t)(S->procs > 0 ? S->procs : 1) + 1;
    gl_g *gp;
    if (!S->qsize) return NULL;
    if (n > S->qsize) n = S->qsize;
    if (n > GL_RUNQ_CAP / 2) n = GL_RUNQ_CAP / 2;
    if (most && n > most) n = most;
    GL_ADD(pp->n.from_global, n);
    gp = gl_q_pop(S);
    while (--n) gl_runq_put(&pp->q, gl_q_pop(S), 0, &none);     /* the ring was empty, or `most` is 1 */
    return gp;
}

#endif
