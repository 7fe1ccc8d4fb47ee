/* runq.h, gstate.h, scheduler.h and sends.h in every interleaving up to a few preemptions, as many as the second argument
 * says: see explore.h; test_headers.py has which. A test may be run with headers that were broken on purpose: then it must
 * find that. */
#define GL_RUNQ_CAP 4u
#define GMPLOOP_DEBUG_STATES
#include "explore.h"
#include <sys/socket.h>
#include "atomics.h"
#include "runq.h"
#include "scheduler.h"
#define send model_send
#undef sched_yield
#define sched_yield() wait_for_sender()
static ssize_t model_send(int fd, const void *data, size_t n, int flags);
static void wait_for_sender(void);
#include "sends.h"

static gl_sched sched;

enum { WRITES = 3, ARRAYS = 2 };
static struct sends {
    gl_out word;
    int from, to;                       /* Watch.out: the writes that are in it, as from and the first that is not */
    int wire, moved;                    /* the next write that is to be sent; for who waits for a sender */
    int lock[ARRAYS], n[ARRAYS];
    gl_send entries[ARRAYS][WRITES];
} w;

static int within(const volatile void *word, const void *whole, size_t n) {
    return (uintptr_t)word - (uintptr_t)whole < n;
}

static int no_matter(const volatile void *word) {
    if (word == &sched.events_on || word == &sched.procs || word == &sched.nallp || word == &sched.stopping
            || word == &sched.watchers || word == &sched.readied || word == &sched.sysmon_parked || word == &sched.parks
            || word == &sched.spins || word == &sched.nmidle || word == &w.word.sent) return 1;
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
    add(&w, sizeof w);
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

/* -- sends: a world that writes and is run by two Ms in turn, the Ms that flush, and the flusher: each write is sent once,
 * in order. A send of more than one takes the first only. */

static char bytes[WRITES + 1];

static void on_the_wire(int from, int to) {
    if (from != w.wire) FOUND("%d is sent, %d is due", from, w.wire);
    w.wire = to;
}

static ssize_t model_send(int fd, const void *data, size_t n, int flags) {
    int from = (int)((const char *)data - bytes), take = n > 1 ? 1 : (int)n;
    (void)fd; (void)flags;
    if (from < w.from || from + (int)n != w.to) FOUND("what is sent is not there any more");
    step();
    on_the_wire(from, from + take);
    return take;
}

static void wait_for_sender(void) {
    w.moved = 0;
    block(&w.moved, 1);
}

/* The world has its data again; what a short send has left goes by its own call. */
static void reclaim(void) {
    int n = gl_out_take(&w.word);
    if (n == GL_PENDING) return;
    if (n != GL_ALL && w.from + n < w.to) on_the_wire(w.from + n, w.to);
    w.from = w.to;
}

static void world_writes(void *arg) {
    (void)arg;
    for (int k = 0; k < WRITES; k++) {
        int m = k % ARRAYS;
        reclaim();
        if (w.from == w.to) w.from = k;
        w.to = k + 1;
        uint32_t gen = gl_out_put(&w.word);
        pthread_mutex_lock(&w.lock[m]);
        w.entries[m][w.n[m]++] = (gl_send){ bytes + w.from, 0, (uint32_t)(w.to - w.from), GL_PENDING, gen, &w.word };
        pthread_mutex_unlock(&w.lock[m]);
    }
    reclaim();
    if (w.from < w.to) on_the_wire(w.from, w.to);
}

static void m_flushes(void *arg) {
    int m = (int)(intptr_t)arg, n;
    gl_send taken[WRITES];
    for (int round = 0; round < 2; round++) {
        pthread_mutex_lock(&w.lock[m]);
        memcpy(taken, w.entries[m], sizeof taken);
        n = w.n[m];
        w.n[m] = 0;
        pthread_mutex_unlock(&w.lock[m]);
        for (int i = 0; i < n; i++) gl_send_now(&taken[i]);
        w.moved = 1;
        for (int i = 0; i < n; i++) {
            if (!gl_out_settle(&taken[i])) continue;
            int all = taken[i].sent >= (int)taken[i].len;
            step();
            if (all) w.from = w.to;
            gl_out_settled(&taken[i], all);
        }
        w.moved = 1;
    }
}

static void flusher_looks(void *arg) {
    (void)arg;
    for (int m = 0; m < ARRAYS; m++) {
        pthread_mutex_lock(&w.lock[m]);
        for (int i = 0; i < w.n[m]; i++) gl_send_or_wait(&w.entries[m][i]);
        w.moved = 1;
        pthread_mutex_unlock(&w.lock[m]);
    }
}

static void sends_begin(void) {
    memset(&w, 0, sizeof w);
    fiber_start(world_writes, NULL);
    for (intptr_t m = 0; m < ARRAYS; m++) fiber_start(m_flushes, (void *)m);
    fiber_start(flusher_looks, NULL);
}

static void sends_end(void) { if (w.wire != WRITES) FOUND("%d writes were sent", w.wire); }

int main(int argc, char **argv) {
    const char *test = argc == 3 ? argv[1] : "";
    int most = argc == 3 ? atoi(argv[2]) : 0;
    long n;
    Gs = 2; posters = 2; each = 2; procs = 2;
    if (!strcmp(test, "ring")) n = explore(most, ring_begin, ring_end);
    else if (!strcmp(test, "one_p")) { procs = 1; Gs = 1; n = explore(most, sched_begin, sched_end); }
    else if (!strcmp(test, "two_ps")) { each = 1; n = explore(most, sched_begin, sched_end); }
    else if (!strcmp(test, "two_that_keep")) { each = 1; keep = 100; n = explore(most, sched_begin, sched_end); }
    else if (!strcmp(test, "sends")) n = explore(most, sends_begin, sends_end);
    else return 2;
    printf("%ld states, %ld executions\n", n, executions);
    return 0;
}
