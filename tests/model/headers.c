/* runq.h, gstate.h and scheduler.h in every interleaving up to a few preemptions: see explore.h. A test may be run with
 * headers that were broken on purpose: then it must find that. */
#define GL_RUNQ_CAP 4u
#define GMPLOOP_DEBUG_STATES
#include "explore.h"
#include "atomics.h"
#include "runq.h"
#include "scheduler.h"

static gl_sched sched;

static int within(const volatile void *word, const void *whole, size_t n) {
    return (uintptr_t)word - (uintptr_t)whole < n;
}

static int no_matter(const volatile void *word) {
    if (word == &sched.events_on || word == &sched.procs || word == &sched.nallp || word == &sched.stopping
            || word == &sched.watchers || word == &sched.readied || word == &sched.sysmon_parked || word == &sched.parks
            || word == &sched.spins || word == &sched.nmidle) return 1;
    for (int i = 0; i < sched.nallp; i++) {
        gl_p *pp = sched.allp[i];
        if (within(word, &pp->n, sizeof pp->n) || word == &pp->schedtick || word == &pp->next_ns || word == &pp->keep)
            return 1;
    }
    for (int i = 0; i < sched.nm; i++)
        if (word == &sched.allm[i]->readied || word == &sched.allm[i]->state) return 1;
    return 0;
}

enum { GS = 6 };
typedef struct { gl_g g; int posted, taken, running; } world;
static world worlds[GS];

static gl_runq rings[3];
static int out[GS];

/* What is counted only is cleared: so states that differ in nothing else are one. The victim of a thief is random, but
 * each is looked at in each round; a P's first turn differs from its others (gl_next()). */
static void whole_state(void) {
    sched.readied = 0;
    sched.parks = sched.spins = sched.m_made = 0;
    for (int i = 0; i < sched.nallp; i++) {
        gl_p *pp = sched.allp[i];
        memset(&pp->n, 0, sizeof pp->n);
        if (pp->schedtick > 1) pp->schedtick = 1;
    }
    for (int i = 0; i < sched.nm; i++) {
        sched.allm[i]->readied = 0;
        sched.allm[i]->random = 1;
    }
    for (int i = 0; i < GS; i++) worlds[i].g.since = 0;
    add(&sched, offsetof(gl_sched, allp));
    add(&sched.stopping, sizeof sched - offsetof(gl_sched, stopping));
    add(worlds, sizeof worlds);
    add(rings, sizeof rings);
    add(out, sizeof out);
}

/* -- the ring: an owner that puts and gets, thieves with rings of their own; each G comes out once */

static void came_out(gl_g *gp) { if (gp && ++out[(world *)gp - worlds] > 1) FOUND("taken twice"); }

static void owner(void *arg) {
    gl_batch over = { 0 };
    int inherit;
    (void)arg;
    for (int i = 0; i < GS; i++) {
        gl_runq_put(&rings[0], &worlds[i].g, i == 2, &over);
        if (i == 3) came_out(gl_runq_get(&rings[0], &inherit));
    }
    for (gl_g *gp; (gp = gl_runq_get(&rings[0], &inherit));) came_out(gp);
    for (gl_g *gp = over.first; gp; gp = gp->next) came_out(gp);
}

static void thief(void *arg) {
    gl_runq *mine = (gl_runq *)arg;
    int inherit;
    for (int round = 0; round < 2; round++) {
        came_out(gl_runq_steal(mine, &rings[0], round));
        for (gl_g *gp; (gp = gl_runq_get(mine, &inherit));) came_out(gp);
    }
}

static void ring_begin(void) {
    memset(rings, 0, sizeof rings);
    memset(out, 0, sizeof out);
    memset(worlds, 0, sizeof worlds);
    fiber_start(owner, NULL);
    fiber_start(thief, &rings[1]);
    fiber_start(thief, &rings[2]);
}

static void ring_end(void) { for (int i = 0; i < GS; i++) if (out[i] != 1) FOUND("lost"); }

/* -- posts, Ms and Ps: what is posted is taken, and nobody but the protocol wakes anybody */

static int procs, Gs, posters, each, keep;

static void take(world *w) {
    if (w->running++) FOUND("runs twice at once");
    step();
    if (__atomic_load_n(&w->g.state, 0) & G_NOTIFIED) gl_g_clear_notified(&w->g.state);
    w->taken += __atomic_exchange_n(&w->posted, 0, 0);
    w->running--;
}

static void execute(gl_m *mp, gl_g *gp) {
    gl_running(&sched, mp, mp->p, gp);
    gl_g_set(&gp->state, G_RUNNING);
    gl_store_relaxed(&mp->p->schedtick, mp->p->schedtick + 1);
    gl_leave(mp, mp->p);
    take((world *)gp);
    gl_enter(mp);
    if (gl_g_cas(&gp->state, G_RUNNING, G_IDLE)) return;
    gl_g_set(&gp->state, G_RUNNABLE);
    gl_requeue(&sched, mp, gp);
}

static void m_main(void *arg) {
    gl_m *mp = (gl_m *)arg;
    mp->p = mp->nextp;
    mp->nextp = NULL;
    gl_m_set(mp, mp->spinning ? M_SPINNING : M_RUNNING);
    for (;;) {
        gl_g *gp = mp->p ? gl_next(&sched, mp) : NULL;
        int n;
        if (gp) gl_spin_found(&sched, mp);
        else if (gl_find(&sched, mp, &gp, &n) == GL_STOP) return;
        execute(mp, gp);
    }
}

static int start_thread(gl_m *mp) {
    fiber_start(m_main, mp);
    return 0;
}

static int no_poll(gl_m *mp, int64_t delay_ns) { (void)mp; (void)delay_ns; return 0; }
static void no_break(void) { }

static void poster(void *arg) {
    for (int i = 0; i < each; i++) {
        world *w = &worlds[((intptr_t)arg + i) % Gs];
        __atomic_fetch_add(&w->posted, 1, 0);
        if (gl_g_notify(&w->g.state)) gl_ready(&sched, NULL, &w->g, 1);
    }
}

static void sched_begin(void) {
    memset(&sched, 0, sizeof sched);
    memset(worlds, 0, sizeof worlds);
    gl_sched_init(&sched);
    sched.spin_ns = 0;
    sched.poll = no_poll;
    sched.poll_break = no_break;
    sched.start_thread = start_thread;
    gl_set_procs(&sched, procs);
    for (int i = 0; i < procs; i++) sched.allp[i]->keep = (uint32_t)keep;
    for (intptr_t i = 0; i < posters; i++) fiber_start(poster, (void *)i);
}

static void sched_end(void) {
    int taken = 0;
    for (int i = 0; i < Gs; i++) {
        taken += worlds[i].taken;
        if (worlds[i].posted || worlds[i].g.state != G_IDLE) FOUND("all sleep, and a world has a post");
    }
    if (taken != posters * each) FOUND("taken %d", taken);
    if (sched.nmspinning || sched.npidle != procs || sched.qsize) FOUND("all sleep, and the counts are wrong");
}

int main(int argc, char **argv) {
    const char *test = argc == 3 ? argv[1] : "";
    int most = argc == 3 ? atoi(argv[2]) : 0;
    long n;
    Gs = 2; posters = 2; each = 2; procs = 2;
    if (!strcmp(test, "ring")) n = explore(most, ring_begin, ring_end);
    else if (!strcmp(test, "one_p")) { procs = 1; Gs = 1; n = explore(most, sched_begin, sched_end); }
    else if (!strcmp(test, "two_ps")) { each = 1; n = explore(most, sched_begin, sched_end); }
    else if (!strcmp(test, "two_that_keep")) { each = 1; keep = 100; n = explore(most, sched_begin, sched_end); }
    else return 2;
    printf("%ld states, %ld executions\n", n, executions);
    return 0;
}
