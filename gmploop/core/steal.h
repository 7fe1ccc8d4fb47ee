/* Where an M that holds a P gets the next G without waiting: own timers, runnext, ring, global queue; then another P's
 * ring; and when it asks for help with what is in its own.
 *
 * Each G leaves the queue that it is taken from once (runq.h; the global queue is under `lock`). Fairness: every 61st turn
 * the global queue goes first; and Gs that wake each other through runnext share a slice of `slice` turns, then the ring
 * has one.
 *
 * What is left alone. A G that is made, runs once and dies costs half a microsecond where it was made, and two elsewhere:
 * its objects were another thread's, and its end wakes who waits for it from there. So while a quarter of a P's turns are
 * a world's last, and turns are shorter than what waking an M is worth (`backlog_ns`), its ring is its own until the
 * backlog is `dying_ns`: no M is woken for it, those that look for work pass it by. That is so only while an M holds the P
 * and goes on from turn to turn, which bounds the wait; when a callback stops that, sysmon sets `keep` to 0 after
 * `queue_ns`. The owner empties its ring before it gives up its P, so nothing is lost by that.
 */
#ifndef GMPLOOP_STEAL_H
#define GMPLOOP_STEAL_H

#include "ready.h"
#include "ptimers.h"

static inline uint32_t gl_random(gl_m *mp) {
    mp->random ^= mp->random << 13;
    mp->random ^= mp->random >> 17;
    return mp->random ^= mp->random << 5;
}

/* What can be had without waiting, from own timers, runnext, ring, global queue. The M holds its P. */
static inline gl_g *gl_next(gl_sched *S, gl_m *mp) {
    gl_p *pp = mp->p;
    gl_g *gp = NULL;
    gl_batch due = { 0 };
    int inherit = 0;
    if (gl_load_relaxed(&pp->next_ns) != GL_NEVER && gl_timers_run(pp, gl_now_ns(), &due)) {
        GL_ADD(pp->n.timers, due.n);
        gl_put_batch(S, pp, &due);
    }
    if (pp->schedtick % 61 == 0 && gl_load_relaxed(&S->qsize)) {
        pthread_mutex_lock(&S->lock);
        gp = gl_q_get(S, pp, 1);
        pthread_mutex_unlock(&S->lock);
    }
    if (!gp && pp->inherited >= S->slice) gp = gl_runq_first(&pp->q);
    if (!gp) gp = gl_runq_get(&pp->q, &inherit);
    pp->inherited = inherit ? pp->inherited + 1 : 0;
    if (!gp && gl_load_relaxed(&S->qsize)) {
        pthread_mutex_lock(&S->lock);
        gp = gl_q_get(S, pp, 0);
        pthread_mutex_unlock(&S->lock);
    }
    GL_ADD(pp->n.inherited, (uint64_t)inherit);
    return gp;
}

/* What four turns took, that ended at `now`: the means, and what is left alone. The one long turn that makes all the short
 * ones counts as if it were short: of the last four turns and those before, the shorter mean counts. */
static inline void gl_measure(gl_sched *S, gl_p *pp, int64_t now) {
    int64_t mean = (now - pp->tick_ns) / 4, least = mean < pp->mean_ns ? mean : pp->mean_ns;
    pp->mean_ns += (mean - pp->mean_ns) / 4;
    pp->dying += ((int)(pp->deaths - pp->seen_deaths) * GL_DYING - pp->dying) / 4;
    gl_store_relaxed(&pp->keep, pp->dying < GL_DYING * 7 / 8 || least >= S->backlog_ns ? 0     /* it wavers about 1 in 4 */
                     : (uint32_t)(S->dying_ns / (least > 100 ? least : 100)));
}

/* Before a turn: every fourth time, is there so much to do that waking another M pays? */
static inline void gl_share(gl_sched *S, gl_p *pp) {
    uint32_t n;
    int64_t now;
    if (pp->schedtick & 3) return;
    if (!gl_load_relaxed(&S->npidle) && !gl_load_relaxed(&S->nmspinning)) {
        pp->tick_ns = 0;
        gl_store_relaxed(&pp->keep, 0);         /* what was measured is the past */
        return;
    }
    now = gl_now_ns();
    if (pp->tick_ns) {
        gl_measure(S, pp, now);
        n = gl_runq_len(&pp->q);
        if (n > gl_load_relaxed(&pp->keep) && n * pp->mean_ns > S->backlog_ns) {
            GL_ADD(pp->n.wakes, 1);
            gl_wakep(S);
        }
    }
    pp->tick_ns = now;
    pp->seen_deaths = pp->deaths;
}

/* How many of a P's ring others may look at: all or nothing. */
static inline uint32_t gl_offered(gl_p *pp) {
    uint32_t n = gl_runq_len(&pp->q);
    return n > gl_load_relaxed(&pp->keep) || (gl_load_relaxed(&pp->status) & 7) == P_IDLE ? n : 0;
}

static inline gl_g *gl_steal(gl_sched *S, gl_m *mp) {
    gl_p *pp = mp->p;
    int n = gl_load_acquire(&S->nallp);
    for (int round = 0; round < 4; round++) {
        int at = (int)(gl_random(mp) % (uint32_t)n);
        for (int i = 0; i < n; i++, at = at + 1 == n ? 0 : at + 1) {
            gl_p *victim = S->allp[at];
            gl_g *gp;
            gl_batch due = { 0 };
            if (round == 3 && gl_timers_run(victim, gl_now_ns(), &due)) {
                GL_ADD(pp->n.timers, due.n);
                gl_put_batch(S, pp, &due);
                int inherit;
                if ((gp = gl_runq_get(&pp->q, &inherit))) return gp;
            }
            if (victim == pp || !gl_offered(victim)) continue;
            gp = gl_runq_steal(&pp->q, &victim->q, round == 3);
            if (gp) {
                GL_ADD(pp->n.steals, 1);
                GL_ADD(pp->n.stolen, gl_runq_len(&pp->q) + 1);
                return gp;
            }
        }
    }
    return NULL;
}

/* Whether there is something that a spinner would have found. */
static inline int gl_any_work(gl_sched *S, int64_t now) {
    if (gl_load_relaxed(&S->qsize)) return 1;
    for (int i = 0, n = gl_load_acquire(&S->nallp); i < n; i++)
        if (gl_offered(S->allp[i]) || gl_load_relaxed(&S->allp[i]->next_ns) <= now) return 1;
    return 0;
}

#endif
