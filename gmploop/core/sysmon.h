/* sysmon: the thread that watches the others. It needs neither a P nor Python.
 *
 * Each look: (a) a P whose callback has run `retake_ns` is taken from its M and handed to another, if somebody waits for
 * it: the callback goes on alone; (b) when nobody has polled for `poll_ns`, an M is woken to; (c) so too for a queue
 * that has waited `queue_ns` behind a callback, and for timers that are overdue; (d) a callback that runs `stall_ns` is
 * counted, once, and one that runs `tell_ns` is offered to `tell`, which has another thread look into it and waits for
 * nobody. Times count from the first look that saw the callback, at most one nap after it began.
 *
 * Loops with a thread of their own (watched.h) have no P: of these only (d) is done. Waiting in the poller is no stall.
 *
 * Naps: `nap_min_ns` while something is done, doubling after 50 naps without (after a park at once), up to `nap_max_ns`
 * (or `nap_full_ns`, see gl_longest_nap), not past the next retake unless a nap is longer anyway. While all Ps are idle it
 * sleeps until somebody takes one (`sysmon_parked`, under the scheduler's lock); but `loop_nap_ns` at a time, not past the
 * next stall, until no loop with a thread of its own has done anything for STILL_NAPS of these (`unwatched`).
 *
 * A callback that computes needs a core, and a P handed off adds a thread: so without a GIL (`one_computing`) only one
 * of those may go on alone at a time. Callbacks that sleep may without limit.
 */
#ifndef GMPLOOP_SYSMON_H
#define GMPLOOP_SYSMON_H

#include "schedtrace.h"

enum { GL_ORPHANS = 256 };
enum { NAPS_AT_MIN = 50 };          /* Go's */
enum { STILL_NAPS = 4 };            /* waking sysmon costs a loop that has slept some us: not for each event of a server; guessed */

typedef struct { gl_m *mp; uint32_t turn; int64_t since_ns; int counted; } gl_orphan;

/* Whose callback goes on: an M's, or that of a loop with a thread of its own, whose `turn` is a beat. */
typedef struct { gl_m *mp; gl_watched *loop; uint32_t turn; } gl_turn;

typedef struct {
    int64_t retake_ns, poll_ns, queue_ns, stall_ns;     /* 0 switches a duty off */
    int64_t nap_min_ns, nap_max_ns, nap_full_ns, loop_nap_ns, trace_ns;
    int cpus;                           /* that the process may use */
    int observe;                        /* report, but take nothing away */
    int detail;                         /* schedtrace with the lines of P, M and G */
    int one_computing;
    int64_t tell_ns;                    /* 0: nobody wants to be told. Any thread */
    int (*tell)(gl_turn turn, int64_t ns);              /* 0: not now */
    gl_offer offers[GL_MAX_M];
    int64_t start_ns, traced_ns;
    int64_t moved_ns;                   /* when a loop with a thread of its own was last seen to do something */
    int ending;                         /* the thread shall end. Any thread */
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

/* A turn has taken so long. */
static void gl_stall(gl_sched *S, gl_watch *w, gl_turn turn, int64_t ran, int *counted) {
    gl_offer *offer = turn.loop ? &turn.loop->offer : &w->offers[turn.mp->id - 1];
    int64_t tell_ns = gl_load_relaxed(turn.loop ? &turn.loop->tell_ns : &w->tell_ns), at;
    if (w->stall_ns && !*counted && ran >= w->stall_ns) {
        *counted = 1;
        GL_SUM(S->stalls, 1);
    }
    if (!tell_ns || ran < tell_ns) return;
    if (offer->turn != turn.turn) {
        offer->turn = turn.turn;
        gl_store_relaxed(&offer->at_ns, tell_ns);
    }
    at = gl_load_relaxed(&offer->at_ns);
    if (ran < at) return;
    gl_store_relaxed(&offer->at_ns, GL_NEVER);
    if (!w->tell(turn, ran)) gl_store_relaxed(&offer->at_ns, at);
}

static void gl_check_orphans(gl_sched *S, gl_watch *w, int64_t now) {
    for (int i = 0; i < w->n_orphans; i++) {
        gl_orphan *o = &w->orphans[i];
        if (!gl_goes_on(o)) {
            *o = w->orphans[--w->n_orphans];
            i--;
        } else {
            gl_stall(S, w, (gl_turn){ o->mp, NULL, o->turn }, now - o->since_ns, &o->counted);
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
    gl_m *mp = gl_load_acquire(&S->allm[(status >> 3) - 1]);
    uint32_t turn = gl_load_relaxed(&mp->turns);        /* before anybody is woken: that may take a while */
    if (w->queue_ns && ran >= w->queue_ns && gl_load_relaxed(&S->npidle) && gl_runq_len(&pp->q) && !gl_refused(S, now)) {
        gl_store_relaxed(&pp->keep, 0);
        gl_wakep(S);
        done = 1;
    }
    gl_stall(S, w, (gl_turn){ mp, NULL, turn }, ran, &pp->stalled);
    if (!w->retake_ns || w->observe) return done;
    if (ran < w->retake_ns) {
        if (pp->seen_ns + w->retake_ns < *deadline) *deadline = pp->seen_ns + w->retake_ns;
        return done;
    }
    if (!gl_wanted(S, pp) || !gl_may_leave_alone(w, mp) || !gl_retake(S, pp, status)) return done;
    w->orphans[w->n_orphans++] = (gl_orphan){ mp, turn, pp->seen_ns, pp->stalled };
    GL_SUM(S->retakes, 1);
    gl_handoff(S, pp);
    return 1;
}

/* Look at the loops with threads of their own. Lowers *deadline as gl_watch_p(). */
static void gl_watch_loops(gl_sched *S, gl_watch *w, int64_t now, int64_t *deadline) {
    gl_lock(&S->loops_lock);
    for (gl_watched *l = S->loops; l; l = l->next) {
        uint32_t beat = gl_load_relaxed(&l->beat);
        int64_t next = GL_NEVER, at;
        if (beat != l->seen) {
            l->seen = beat;
            l->seen_ns = now;
            l->counted = 0;
            w->moved_ns = now;
        }
        if (!(beat & 1)) continue;
        gl_stall(S, w, (gl_turn){ NULL, l, beat }, now - l->seen_ns, &l->counted);
        if (!l->counted) next = l->seen_ns + w->stall_ns;
        if ((at = gl_load_relaxed(&l->tell_ns))) {
            if (l->offer.turn == beat) at = gl_load_relaxed(&l->offer.at_ns);
            if (at < GL_NEVER - now && l->seen_ns + at < next) next = l->seen_ns + at;
        }
        if (next != GL_NEVER) w->moved_ns = now;        /* else all is said of it until it goes on */
        if (next > now && next < *deadline) *deadline = next;       /* what is overdue has to wait for who tells */
    }
    gl_unlock(&S->loops_lock);
}

/* Whether one runs, other than those of which all is said. */
static int gl_loops_run(gl_sched *S) {
    gl_watched *l;
    gl_lock(&S->loops_lock);
    for (l = S->loops; l; l = l->next) {
        uint32_t beat = gl_load_relaxed(&l->beat);
        if (beat & 1 && !(beat == l->seen && l->counted)) break;
    }
    gl_unlock(&S->loops_lock);
    return l != NULL;
}

/* While no P is busy: how long to sleep, < 0 until somebody wakes it. deadline: of the last look. */
static int64_t gl_pause(gl_sched *S, gl_watch *w, int64_t deadline) {
    int64_t now = gl_now_ns(), end = w->trace_ns && gl_load_relaxed(&S->procs) ? w->traced_ns + w->trace_ns : GL_NEVER;
    if (w->stall_ns) {
        if (now - w->moved_ns >= STILL_NAPS * w->loop_nap_ns) {
            gl_store_relaxed(&S->unwatched, 1);
            gl_fence_seq_cst();                 /* with the loop's that comes from a wait */
            if (gl_loops_run(S)) {
                gl_store_relaxed(&S->unwatched, 0);
                w->moved_ns = now;
            }
        }
        if (now - w->moved_ns < STILL_NAPS * w->loop_nap_ns) {
            int64_t next = now + w->loop_nap_ns;
            if (deadline > now && deadline < next) next = deadline;
            if (next < end) end = next;
        }
    }
    return end == GL_NEVER ? -1 : end > now ? end - now : 0;
}

/* One look. Returns whether something was done. */
static int gl_look(gl_sched *S, gl_watch *w, int64_t *deadline) {
    int64_t now = gl_now_ns();
    int done = 0;
    for (int i = 0, n = gl_load_acquire(&S->nallp); i < n; i++)
        done |= gl_watch_p(S, w, S->allp[i], now, deadline);
    gl_check_orphans(S, w, now);
    if (w->stall_ns) gl_watch_loops(S, w, now, deadline);
    if (w->trace_ns && gl_load_relaxed(&S->procs) && now - w->traced_ns >= w->trace_ns) {
        w->traced_ns = now;
        gl_trace(S, w->detail, now - w->start_ns);
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

/* Whether no P is busy, and nothing waits for one. */
static int gl_parks(gl_sched *S, gl_watch *w) {
    int parks;
    pthread_mutex_lock(&S->lock);
    parks = S->npidle >= S->procs && !gl_load_acquire(&S->stopping) && !gl_load_acquire(&w->ending) && !w->n_orphans
        && !gl_any_work(S, gl_now_ns());                /* if there is, no thread could be had for it */
    if (parks) gl_store_relaxed(&S->sysmon_parked, 1);
    pthread_mutex_unlock(&S->lock);
    return parks;
}

/* Where there are as many Ps as CPUs and none is idle, a look mostly interrupts a turn; nobody is there, either, to be woken
 * to a queue. One whose callback blocks is not idle: so it loses its P a millisecond later, in the worst case. */
static inline int64_t gl_longest_nap(gl_sched *S, const gl_watch *w) {
    return gl_load_relaxed(&S->npidle) == 0 && gl_load_relaxed(&S->procs) >= w->cpus ? w->nap_full_ns : w->nap_max_ns;
}

static void gl_sysmon_run(gl_sched *S, gl_watch *w) {
    int64_t nap = w->nap_min_ns, deadline = GL_NEVER;
    int quiet = 0;
    w->start_ns = w->traced_ns = w->moved_ns = gl_now_ns();
    while (!gl_load_acquire(&S->stopping) && !gl_load_acquire(&w->ending)) {
        int64_t now, longest = gl_longest_nap(S, w);
        int parks = gl_parks(S, w);
        if (parks) {
            gl_note_sleep(&S->sysmon, gl_pause(S, w, deadline));
            gl_store_relaxed(&S->sysmon_parked, 0);
            gl_store_relaxed(&S->unwatched, 0);
            nap = w->nap_min_ns;
            quiet = NAPS_AT_MIN;    /* doubling at once: a server's busy moments, a millisecond each, are many */
        }
        deadline = GL_NEVER;
        if (gl_look(S, w, &deadline)) { nap = w->nap_min_ns; quiet = 0; }
        else if (parks && gl_load_relaxed(&S->npidle) >= gl_load_relaxed(&S->procs)) continue;
        else if (++quiet > NAPS_AT_MIN && nap < longest) nap *= 2;
        if (nap > longest) nap = longest;
        now = gl_now_ns();
        gl_note_sleep(&S->sysmon, deadline >= now + nap ? nap : deadline - now > w->nap_min_ns ? deadline - now : w->nap_min_ns);
    }
}

#endif
