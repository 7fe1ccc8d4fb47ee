/* The scheduler: who runs which G, on what thread, and when a thread sleeps. Go's rules, without Python.
 *
 *   schedtypes.h     P, M, the scheduler: states, fields, locks
 *   watched.h        loops that run on no P
 *   transitions.h    every change of state, and who looks in
 *   globalq.h        global queue, idle Ps
 *   wakeup.h         which M gets a P; when one is woken
 *   ptimers.h        timers of Ps
 *   ready.h          where a runnable G goes
 *   allgs.h          all Gs
 *   steal.h          what can be had without waiting; stealing, sharing
 *   findrunnable.h   spinning, polling, parking
 *   handoff.h        taking Ps away
 *
 * Each says at its head what it keeps true. Here: how many Ps there are, the beginning and the end.
 */
#ifndef GMPLOOP_SCHEDULER_H
#define GMPLOOP_SCHEDULER_H

#include "allgs.h"
#include "handoff.h"

static int gl_set_procs(gl_sched *S, int n) {
    gl_p *dead = NULL, **at;
    pthread_mutex_lock(&S->lock);
    while (S->nallp < n) {
        gl_p *pp = (gl_p *)calloc(1, sizeof *pp);
        if (!pp) { pthread_mutex_unlock(&S->lock); return -1; }
        pp->sched = S;
        pp->id = S->nallp;
        pp->next_ns = GL_NEVER;
        pp->status = P_DEAD;
        S->allp[S->nallp] = pp;
        gl_store_release(&S->nallp, S->nallp + 1);
    }
    gl_store_relaxed(&S->procs, n);
    for (int i = 0; i < n; i++)                 /* a dead one lives again; one still busy above the limit just goes on */
        if (gl_load_acquire(&S->allp[i]->status) == P_DEAD) {
            gl_p_set(S->allp[i], P_IDLE);
            gl_pidle_put(S, S->allp[i]);
        }
    for (at = &S->pidle; *at;) {
        gl_p *pp = *at;
        if (pp->id < n) { at = &pp->link; continue; }
        *at = pp->link;
        GL_ADD(S->npidle, -1);
        pp->link = dead;
        dead = pp;
    }
    pthread_mutex_unlock(&S->lock);
    while (dead) {
        gl_p *pp = dead;
        dead = pp->link;
        gl_retire(S, pp);
    }
    if (gl_any_work(S, gl_now_ns())) gl_wakep(S);
    return 0;
}

static inline void gl_sched_init(gl_sched *S) {
    pthread_mutex_init(&S->lock, NULL);
    gl_note_init(&S->sysmon);
    S->poll_until = INT64_MIN;
    S->lastpoll_ns = gl_now_ns();
    S->spin_ns = 20000;                         /* as in config.py, which tells */
    S->backlog_ns = 5000;
    S->dying_ns = 100000;
    S->slice = 16;
    S->unwatched = 1;
}

/* The calling thread, `ident`, begins to run a loop of its own. */
static inline void gl_watched_enter(gl_sched *S, gl_watched *l, void *loop, unsigned long ident, uint32_t beat) {
    gl_lock(&S->loops_lock);
    l->loop = loop;
    l->ident = ident;
    gl_store_relaxed(&l->beat, beat | 1);
    l->next = S->loops;
    S->loops = l;
    gl_unlock(&S->loops_lock);
}

/* It ends that. In the child of a fork the list is empty. */
static inline void gl_watched_leave(gl_sched *S, gl_watched *l) {
    gl_watched **at;
    gl_lock(&S->loops_lock);
    for (at = &S->loops; *at && *at != l; at = &(*at)->next) ;
    if (*at) *at = l->next;
    l->ident = 0;
    gl_unlock(&S->loops_lock);
}

/* In the child of a fork: the other threads are not there. What they had is left where it is. */
static inline void gl_sched_after_fork(gl_sched *S) {
    gl_sched fresh;
    memset(&fresh, 0, sizeof fresh);
    fresh.poll = S->poll;
    fresh.poll_break = S->poll_break;
    fresh.start_thread = S->start_thread;
    fresh.on_rest = S->on_rest;
    fresh.forks = S->forks + 1;
    fresh.events_on = S->events_on;
    *S = fresh;
    gl_sched_init(S);
}

/* All Ms leave gl_find() with GL_STOP, as soon as they come there. */
static inline void gl_stop(gl_sched *S) {
    gl_m *mp;
    pthread_mutex_lock(&S->lock);
    gl_store_release(&S->stopping, 1);
    for (int i = 0; i < S->nm; i++)             /* those that wait for their locked G too */
        if (gl_load_relaxed(&(mp = S->allm[i])->state) == M_PARKED) gl_note_wake(&mp->note);
    S->midle = NULL;
    S->nmidle = 0;
    pthread_mutex_unlock(&S->lock);
    S->poll_break();
    gl_store_relaxed(&S->sysmon_parked, 0);
    gl_note_wake(&S->sysmon);
}

#endif
