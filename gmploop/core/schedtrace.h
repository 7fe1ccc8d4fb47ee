/* What GMPLOOP_DEBUG=schedtrace=N prints, after Go's: one line of the scheduler and, with scheddetail=1, one for each P,
 * M and G. A G is named by its address, as in `curg` and `lockedg`; `loop` is the id() of its loop.
 *
 * Lines are gathered under the lock that guards what they say and written without one: stderr may block. So they are of
 * several moments, close together.
 */
#ifndef GMPLOOP_SCHEDTRACE_H
#define GMPLOOP_SCHEDTRACE_H

#include "scheduler.h"

enum { GL_TRACED_GS = 512 };        /* Gs with a line; of more only the number is told: 40 KB each time are enough */
enum { GL_TRACE_LINE = 192 };       /* the longest of P, M and G */

typedef struct { int at; char text[4096]; } gl_text;
typedef struct { const gl_g *gp; int state, locked; } gl_traced;

static inline int gl_text_full(const gl_text *t) { return t->at > (int)sizeof t->text - GL_TRACE_LINE; }

static void gl_text_out(gl_text *t) {
    fwrite(t->text, 1, (size_t)t->at, stderr);
    t->at = 0;
}

#define GL_SAY(t, ...) ((t)->at += snprintf((t)->text + (t)->at, sizeof (t)->text - (size_t)(t)->at, __VA_ARGS__))

static void gl_trace_ps(gl_sched *S, gl_text *t) {
    static const char *names[] = { "idle", "running", "incall", "dead" };
    for (int i = 0, n = gl_load_acquire(&S->procs); i < n; gl_text_out(t)) {
        pthread_mutex_lock(&S->lock);
        for (; i < n && !gl_text_full(t); i++) {
            gl_p *pp = S->allp[i];
            int status = gl_load_relaxed(&pp->status);
            uint32_t timers;
            gl_lock(&pp->tlock);
            timers = gl_timers_len(&pp->timers);
            gl_unlock(&pp->tlock);
            GL_SAY(t, "  P%d: status=%s schedtick=%u m=%d runqsize=%u timerslen=%u\n", i, names[status & 7],
                   gl_load_relaxed(&pp->schedtick), (status >> 3) - 1, gl_runq_len(&pp->q), timers);
        }
        pthread_mutex_unlock(&S->lock);
    }
}

static void gl_trace_ms(gl_sched *S, gl_text *t) {
    static const char *names[] = { "new", "running", "spinning", "parked", "polling", "orphan", "dead" };
    for (int i = 0, n = gl_load_acquire(&S->nm); i < n; gl_text_out(t)) {
        pthread_mutex_lock(&S->lock);
        for (; i < n && !gl_text_full(t); i++) {
            gl_m *mp = S->allm[i];
            gl_p *pp = gl_load_relaxed(&mp->p);
            int state = gl_load_relaxed(&mp->state);
            if (state != M_DEAD)
                GL_SAY(t, "  M%d: status=%s p=%d curg=%p spinning=%d blocked=%d lockedg=%p\n", i, names[state],
                       pp ? pp->id : -1, (void *)mp->curg, mp->spinning, mp->blocked, (void *)gl_load_relaxed(&mp->lockedg));
        }
        pthread_mutex_unlock(&S->lock);
    }
}

/* The number of the M that runs it, or that alone may, as in the lines of Ms; -1: none. */
static int gl_m_of(gl_sched *S, const gl_g *gp, int locked) {
    for (int i = 0, n = gl_load_acquire(&S->nm); i < n; i++)
        if ((locked ? gl_load_relaxed(&S->allm[i]->lockedg) : gl_load_relaxed(&S->allm[i]->curg)) == gp) return i;
    return -1;
}

static void gl_trace_gs(gl_sched *S, gl_text *t) {
    static const char *names[] = { "idle", "runnable", "running", "blocked", "dead" };
    static gl_traced found[GL_TRACED_GS];       /* sysmon's alone */
    size_t n = 0, all = 0;
    for (int i = 0; i < GL_LISTS; i++) {
        gl_lock(&S->all[i].lock);
        all += S->all[i].n;
        for (gl_g *gp = S->all[i].first; gp && n < GL_TRACED_GS; gp = gp->all_next)
            found[n++] = (gl_traced){ gp, gl_load_relaxed(&gp->state) & 15, gp->locked };
        gl_unlock(&S->all[i].lock);
    }
    for (size_t i = 0; i < n; i++) {
        gl_traced *g = &found[i];               /* the G may be gone by now */
        int runs = g->state == G_RUNNING || g->state == G_BLOCKED;
        GL_SAY(t, "  G%p: status=%s m=%d lockedm=%d loop=%llu\n", (const void *)g->gp, names[g->state],
               runs ? gl_m_of(S, g->gp, 0) : -1, g->locked ? gl_m_of(S, g->gp, 1) : -1,
               (unsigned long long)(uintptr_t)gl_obj(g->gp));
        if (gl_text_full(t)) gl_text_out(t);
    }
    if (all > n) GL_SAY(t, "  and %zu more Gs\n", all - n);
    gl_text_out(t);
}

static void gl_trace(gl_sched *S, int detail, int64_t since_start_ns) {
    gl_text t;
    t.at = 0;
    pthread_mutex_lock(&S->lock);
    int n = S->procs;
    GL_SAY(&t, "SCHED %lldms: gomaxprocs=%d idleprocs=%d threads=%d spinningthreads=%d needspinning=%d idlethreads=%d "
           "runqueue=%zu [", (long long)(since_start_ns / 1000000), n, S->npidle, S->nmlive + 1,
           gl_load_relaxed(&S->nmspinning), S->needspinning, S->nmidle, S->qsize);
    for (int i = 0; i < n; i++) GL_SAY(&t, i ? " %u" : "%u", gl_runq_len(&S->allp[i]->q));      /* 256 of three digits */
    GL_SAY(&t, "]\n");
    pthread_mutex_unlock(&S->lock);
    gl_text_out(&t);
    if (!detail) return;
    gl_trace_ps(S, &t);
    gl_trace_ms(S, &t);
    gl_trace_gs(S, &t);
}

#endif
