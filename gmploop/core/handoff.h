/* Taking Ps away: from an M whose callback runs too long, or that says it will block; and the Ps of Gs that are locked to
 * an M. Each is a CAS on the P's status word (schedtypes.h), which its M loses or wins; a P without an M then goes to who
 * has something to do for it, or to the idle ones.
 */
#ifndef GMPLOOP_HANDOFF_H
#define GMPLOOP_HANDOFF_H

#include "findrunnable.h"

/* The P in hand has lost its M: who goes on with it? */
static void gl_handoff(gl_sched *S, gl_p *pp) {
    int zero = 0;
    GL_SUM(S->handoffs, 1);
    if (pp->id >= gl_load_relaxed(&S->procs)) { gl_retire(S, pp); return; }
    if (gl_runq_len(&pp->q) || gl_load_relaxed(&S->qsize)) { gl_startm(S, pp, 0); return; }
    if (gl_load_relaxed(&S->nmspinning) + gl_load_relaxed(&S->npidle) == 0
            && __atomic_compare_exchange_n(&S->nmspinning, &zero, 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_RELAXED)) {
        gl_startm(S, pp, 1);
        return;
    }
    pthread_mutex_lock(&S->lock);
    if (S->qsize) {
        pthread_mutex_unlock(&S->lock);
        gl_startm(S, pp, 0);
        return;
    }
    gl_pidle_put(S, pp);
    pthread_mutex_unlock(&S->lock);
    GL_RACE();
    if (gl_load_relaxed(&pp->next_ns) < gl_load_relaxed(&S->poll_until)) S->poll_break();
    else if (!gl_load_relaxed(&S->polling) && (gl_load_relaxed(&S->watchers) || gl_load_relaxed(&pp->next_ns) != GL_NEVER)) gl_wakep(S);
}

/* From an M whose callback runs too long. 1 if the P was taken; it is in the caller's hands then, IDLE. */
static inline int gl_retake(gl_sched *S, gl_p *pp, int status) {
    gl_m *mp = gl_load_acquire(&S->allm[(status >> 3) - 1]);
    if (!gl_p_cas(pp, status, P_IDLE)) return 0;
    gl_store_relaxed(&mp->preempt, 1);
    return 1;
}

/* An M in a callback gives its P away, to go on alone. 0 if it had none. */
static inline int gl_give_away(gl_sched *S, gl_m *mp) {
    gl_p *pp = gl_enter(mp);
    if (!pp) return 0;
    mp->p = NULL;
    gl_p_set(pp, P_IDLE);
    gl_handoff(S, pp);
    return 1;
}

/* The G runs on this M only, and this M runs that G only (gp NULL: no longer). By the M, in a turn of the G. */
static inline void gl_lock_to(gl_m *mp, gl_g *gp) {
    gl_store_relaxed(&mp->lockedg, gp);
    mp->curg->locked = gp != NULL;
}

/* Of a locked G in the caller's hands: it was queued after that was written. Few are locked: they are looked for. */
static inline gl_m *gl_locked_m(gl_sched *S, gl_g *gp) {
    for (int i = 0, n = gl_load_acquire(&S->nm); i < n; i++) {
        gl_m *mp = gl_load_acquire(&S->allm[i]);
        if (mp && gl_load_relaxed(&mp->lockedg) == gp) return mp;
    }
    abort();
}

/* A G may run on its own M only: give that the P, and this M has none. */
static inline void gl_give_to_locked(gl_m *mp, gl_g *gp) {
    gl_m *owner = gl_locked_m(mp->sched, gp);
    gl_p *pp = mp->p;
    mp->p = NULL;
    owner->nextg = gp;
    gl_p_set(pp, P_IDLE);                       /* in our hands */
    gl_give(owner, pp, 0);
    gl_note_wake(&owner->note);
}

/* The M of a locked G has nothing to run: others get its P, and it sleeps until its G comes, with a P. */
static inline void gl_park_locked(gl_sched *S, gl_m *mp) {
    gl_p *pp = mp->p;
    if (pp) {
        mp->p = NULL;
        gl_p_set(pp, P_IDLE);
        gl_handoff(S, pp);
    }
    gl_tell_rest(S);
    gl_m_set(mp, M_PARKED);
    gl_note_sleep(&mp->note, -1);
    gl_adopt(mp);
}

#endif
