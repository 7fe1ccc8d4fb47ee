/* sysmon: the thread that watches the others. It needs neither a P nor Python.
 *
 * Each look: (a) a P whose callback has run `retake_ns` is taken from its M and handed to another, if somebody waits for
 * it: the callback goes on alone; (b) when nobody has polled for `poll_ns`, an M is woken to; (c) so too for a queue
 * that has waited `queue_ns` behind a callback, and for timers that are overdue; (d) a callback that runs `stall_ns` is
 * reported, once. Times count from the first look that saw the callback, at most one nap after it began.
 *
 * Naps: `nap_min_ns` while something is done, doubling after 50 naps without (after a park at once), up to `nap_max_ns`,
 * not past the next retake unless a nap is longer anyway. While all Ps are idle it sleeps until somebody takes one
 * (`sysmon_parked`, under the scheduler's lock).
 *
 * A callback that computes needs a core, and a P handed off adds a thread: so without a GIL (`one_computing`) only one
 * of those may go on alone at a time. Callbacks that sleep may without limit.
 */
#ifndef GMPLOOP_SYSMON_H
#define GMPLOOP_SYSMON_H

#include "scheduler.h"

enum { GL_ORPHANS = 256 };
enum { NAPS_AT_MIN = 50 };          /* Go's */

typedef struct { gl_m *mp; uint32_t turn; int64_t since_ns; int reported; } gl_orphan;

typedef struct {
    int64_t retake_ns, poll_ns, queue_ns, stall_ns;     /* 0 switches a duty off */
    int64_t nap_min_ns, nap_max_ns, trace_ns;
    int observe;                        /* report, but take nothing away */
    int detail;                         /* schedtrace with the lines of P and M */
    int one_computing;
    void (*on_stall)(gl_m *mp, int64_t ns);
    int64_t start_ns, traced_ns;
    gl_orphan orphans[GL_ORPHANS];
    int n_orphans;
} gl_watch;

/* Whether the thread is on a core or wants one. */
static int gl_computing(const gl_m *mp) {
#if defined(__linux__)
    char path[64], text[256], *end;
    FILE *file;
    size_t n;
    snprintf(path, sizeof path, "/proc/self/task/%d/stat", mp->tid);
    if (!(file = fopen(path, "re"))) return 0;
    n = fread(text, 1, sizeof text - 1, file);
    fclose(file);
    text[n] = 0;
    end = strrchr(text, ')');
    return end && end[1] == ' ' && end[2] == 'R';
#else
    (void)mp;
    return 1;
#endif
}

static inline int gl_goes_on(const gl_orphan *o) { return gl_load_relaxed(&o->mp->turns) == o->turn; }

static void gl_check_orphans(gl_watch *w, int64_t now) {
    for (int i = 0; i < w->n_orphans; i++) {
        gl_orphan *o = &w->orphans[i];
        if (!gl_goes_on(o)) {
            *o = w->orphans[--w->n_orphans];
            i--;
        } else if (w->stall_ns && !o->reported && now - o->since_ns >= w->stall_ns) {
            o->reported = 1;
            w->on_stall(o->mp, now - o->since_ns);
        }
    }
}

static int gl_may_leave_alone(gl_watch *w, const gl_m *mp) {
    if (w->n_orphans == GL_ORPHANS) return 0;
    if (!w->one_computing || !gl_computing(mp)) return 1;
    for (int i = 0; i < w->n_orphans; i++)
        if (gl_goes_on(&w->orphans[i]) && gl_computing(w->orphans[i].mp)) return 0;
    return 1;
}

/* Whether anybody gains if the P goes to another M. */
static inline int gl_wanted(gl_sched *S, gl_p *pp) {
    if (gl_runq_len(&pp->q) || gl_load_relaxed(&S->qsize)) return 1;
    return gl_load_relaxed(&S->npidle) + gl_load_relaxed(&S->nmspinning) == 0
        && (gl_load_relaxed(&S->watchers) || gl_timers_min(S) != GL_NEVER);
}

/* Look at one P. Returns whether something was done; lowers *deadline to when it must be looked at again. */
static int gl_watch_p(gl_sched *S, gl_watch *w, gl_p *pp, int64_t now, int64_t *deadline) {
    int status = gl_load_acquire(&pp->status), done = 0;
    uint32_t tick = gl_load_relaxed(&pp->schedtick);
    int64_t ran;
    if ((status & 7) != P_INCALL || tick != pp->seen_tick) {
        pp->seen_tick = tick;
        pp->seen_ns = now;
        pp->stalled = 0;
        return 0;
    }
    ran = now - pp->seen_ns;
    if (w->queue_ns && ran >= w->queue_ns && gl_load_relaxed(&S->npidle) && gl_runq_len(&pp->q) && !gl_refused(S, now)) {
        gl_store_relaxed(&pp->keep, 0);
        gl_wakep(S);
        done = 1;
    }
    gl_m *mp = gl_load_acquire(&S->allm[(status >> 3) - 1]);
    if (w->stall_ns && !pp->stalled && ran >= w->stall_ns) {
        pp->stalled = 1;
        w->on_stall(mp, ran);
    }
    if (!w->retake_ns || w->observe) return done;
    if (ran < w->retake_ns) {
        if (pp->seen_ns + w->retake_ns < *deadline) *deadline = pp->seen_ns + w->retake_ns;
        return done;
    }
    uint32_t turn = gl_load_relaxed(&mp->turns);
    if (!gl_wanted(S, pp) || !gl_may_leave_alone(w, mp) || !gl_retake(S, pp, status)) return done;
    w->orphans[w->n_orphans++] = (gl_orphan){ mp, turn, pp->seen_ns, pp->stalled };
    GL_SUM(S->retakes, 1);
    gl_handoff(S, pp);
    return 1;
}

static void gl_trace(gl_sched *S, gl_watch *w, int64_t now) {
    static const char *p_names[] = { "idle", "running", "incall", "dead" };
    static const char *m_names[] = { "new", "running", "spinning", "parked", "polling", "orphan", "dead" };
    char line[4096];
    int at, n = gl_load_acquire(&S->procs);
    pthread_mutex_lock(&S->lock);
    at = snprintf(line, sizeof line, "SCHED %lldms: gomaxprocs=%d idleprocs=%d threads=%d spinningthreads=%d "
                  "needspinning=%d idlethreads=%d runqueue=%zu [", (long long)((now - w->start_ns) / 1000000), n,
                  S->npidle, S->nmlive + 1, S->nmspinning, S->needspinning, S->nmidle, S->qsize);
    for (int i = 0; i < n && at < (int)sizeof line - 16; i++)
        at += snprintf(line + at, sizeof line - (size_t)at, i ? " %u" : "%u", S->allp[i]->q.tail - S->allp[i]->q.head);
    at += snprintf(line + at, sizeof line - (size_t)at, "]\n");
    for (int i = 0; w->detail && i < n && at < (int)sizeof line - 160; i++) {
        gl_p *pp = S->allp[i];
        uint32_t timers;
        gl_lock(&pp->tlock);
        timers = gl_timers_len(&pp->timers);
        gl_unlock(&pp->tlock);
        at += snprintf(line + at, sizeof line - (size_t)at,
                       "  P%d: status=%s schedtick=%u m=%d runqsize=%u timerslen=%u\n", i, p_names[pp->status & 7],
                       pp->schedtick, (pp->status >> 3) - 1, gl_runq_len(&pp->q), timers);
    }
    for (int i = 0; w->detail && i < S->nm && at < (int)sizeof line - 160; i++) {
        gl_m *mp = S->allm[i];
        if (mp->state != M_DEAD)
            at += snprintf(line + at, sizeof line - (size_t)at,
                           "  M%d: status=%s p=%d curg=%p spinning=%d blocked=%d lockedg=%p\n", i, m_names[mp->state],
                           mp->p ? mp->p->id : -1, (void *)mp->curg, mp->spinning, mp->blocked, (void *)gl_load_relaxed(&mp->lockedg));
    }
    pthread_mutex_unlock(&S->lock);
    fwrite(line, 1, (size_t)at, stderr);
}

/* One look. Returns whether something was done. */
static int gl_look(gl_sched *S, gl_watch *w, int64_t *deadline) {
    int64_t now = gl_now_ns();
    int done = 0;
    for (int i = 0, n = gl_load_acquire(&S->nallp); i < n; i++)
        done |= gl_watch_p(S, w, S->allp[i], now, deadline);
    gl_check_orphans(w, now);
    if (w->trace_ns && now - w->traced_ns >= w->trace_ns) {
        w->traced_ns = now;
        gl_trace(S, w, now);
    }
    if (gl_refused(S, now)) return done;
    if (w->poll_ns && gl_load_relaxed(&S->watchers) && !gl_load_relaxed(&S->polling)
            && now - gl_load_relaxed(&S->lastpoll_ns) > w->poll_ns && gl_load_relaxed(&S->npidle)) {
        GL_SUM(S->late_polls, 1);
        gl_wakep(S);
        done = 1;
    }
    if (w->queue_ns && gl_load_relaxed(&S->npidle)
            && (gl_load_relaxed(&S->qsize) || gl_timers_min(S) < now - w->queue_ns)) {
        gl_wakep(S);
        done = 1;
    }
    return done;
}

static void gl_sysmon_run(gl_sched *S, gl_watch *w) {
    int64_t nap = w->nap_min_ns;
    int quiet = 0;
    w->start_ns = w->traced_ns = gl_now_ns();
    while (!gl_load_acquire(&S->stopping)) {
        int64_t now, nap_now, deadline = GL_NEVER;
        pthread_mutex_lock(&S->lock);
        int parks = S->npidle >= S->procs && !gl_load_acquire(&S->stopping) && !w->n_orphans
            && !gl_any_work(S, gl_now_ns());            /* if there is, no thread could be had for it */
        if (parks) gl_store_relaxed(&S->sysmon_parked, 1);
        pthread_mutex_unlock(&S->lock);
        if (parks) {
            int64_t pause = w->trace_ns ? w->traced_ns + w->trace_ns - gl_now_ns() : -1;
            gl_note_sleep(&S->sysmon, w->trace_ns && pause < 0 ? 0 : pause);
            gl_store_relaxed(&S->sysmon_parked, 0);
            nap = w->nap_min_ns;
            quiet = NAPS_AT_MIN;    /* doubling at once: a server's busy moments, a millisecond each, are many */
        }
        if (gl_look(S, w, &deadline)) { nap = w->nap_min_ns; quiet = 0; }
        else if (++quiet > NAPS_AT_MIN && nap < w->nap_max_ns) nap *= 2;
        if (nap > w->nap_max_ns) nap = w->nap_max_ns;
        nap_now = nap;
        now = gl_now_ns();
        if (deadline < now + nap) nap_now = deadline - now > w->nap_min_ns ? deadline - now : w->nap_min_ns;
        gl_note_sleep(&S->sysmon, nap_now);
    }
}

#endif
