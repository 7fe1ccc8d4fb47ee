/* scheduler.h and sysmon.h with Ms that run C: every post to a G is seen by one of its turns, no wake-up is lost.
 *
 * A G counts what was posted to it. A turn takes the count; it may block for a while, set a timer (whose coming is a
 * turn), make other Gs runnable, or give its P away. Posters come from outside. What is posted and what was taken must be
 * the same in the end, soon after the last post. */
#define _GNU_SOURCE
#include "check.h"
#include "scheduler.h"
#include "sysmon.h"
#include <poll.h>
#include <sys/eventfd.h>

#undef POSTS
#define POSTS 20000         /* of all posters; each may put everybody to sleep */

enum { GS = 300, POSTERS = 2 };

typedef struct { gl_g g; int posted; int running; long ran; int wants_timer; void *place; } world;

static gl_sched sched;
static gl_watch watch;
static world worlds[GS];
static int wakefd, chain;
static long blocks, timers, taken;
static __thread gl_m *me;

static int stub_poll(gl_m *mp, int64_t delay_ns) {
    struct pollfd fd = { wakefd, POLLIN, 0 };
    struct timespec t = { delay_ns / 1000000000, delay_ns % 1000000000 };
    uint64_t n;
    (void)mp;
    if (delay_ns == 0) return 0;
    if (ppoll(&fd, 1, delay_ns < 0 ? NULL : &t, NULL) > 0 && read(wakefd, &n, 8) < 0) return 0;
    return 0;
}

static void stub_break(void) {
    uint64_t one = 1;
    CHECK(write(wakefd, &one, 8) == 8);
}

static void post(world *w) {
    __atomic_fetch_add(&w->posted, 1, __ATOMIC_RELEASE);
    if (gl_g_notify(&w->g.state)) gl_ready(&sched, me, &w->g, 1);
}

/* Returns whether there is more to do, as far as the turn knows. */
static int turn(world *w, gl_m *mp) {
    int n;
    CHECK(__atomic_exchange_n(&w->running, 1, __ATOMIC_ACQUIRE) == 0);
    if (gl_load_acquire(&w->g.state) & G_NOTIFIED) gl_g_clear_notified(&w->g.state);
    n = __atomic_exchange_n(&w->posted, 0, __ATOMIC_ACQUIRE);
    w->ran += n;
    __atomic_fetch_add(&taken, n, __ATOMIC_RELAXED);
    uint32_t r = gl_random(mp);
    if (r % 1500 == 0) {                        /* blocks until sysmon takes the P, and longer */
        __atomic_fetch_add(&blocks, 1, __ATOMIC_RELAXED);
        usleep(3000);
    } else if (r % 701 == 0) {
        gl_give_away(&sched, mp);
        usleep(20);
        if (!mp->p && gl_take_idle(&sched, mp)) gl_leave(mp, mp->p);
    } else if (r % 5 == 0 && gl_load_acquire(&chain) > 0 && __atomic_sub_fetch(&chain, 1, __ATOMIC_RELAXED) > 0)
        post(&worlds[r % GS]);
    w->wants_timer = r % 11 == 0;
    __atomic_store_n(&w->running, 0, __ATOMIC_RELEASE);
    return 0;
}

static void execute(gl_m *mp, gl_g *gp) {
    world *w = (world *)gp;
    gl_running(&sched, mp, mp->p, gp);
    gl_g_set(&gp->state, G_RUNNING);
    gl_store_relaxed(&mp->p->schedtick, mp->p->schedtick + 1);
    gl_store_relaxed(&mp->turns, mp->turns + 1);
    gl_share(&sched, mp->p);
    gl_store_relaxed(&mp->p->keep, mp->p->schedtick & 64 ? GL_RUNQ_CAP : 0);        /* at times others get nothing */
    gl_store_relaxed(&mp->preempt, 0);
    gl_leave(mp, mp->p);
    turn(w, mp);
    if (w->wants_timer) {
        __atomic_fetch_add(&timers, 1, __ATOMIC_RELAXED);
        CHECK(gl_timer_set(&sched, mp->p, gp, &w->place,
                           (double)(gl_now_ns() + gl_random(mp) % 2000000) * 1e-9) == 0);
    }
    gl_enter(mp);
    gl_store_relaxed(&mp->turns, mp->turns + 1);
    if (gl_g_cas(&gp->state, G_RUNNING, G_IDLE)) return;
    gl_g_set(&gp->state, G_RUNNABLE);
    gl_requeue(&sched, mp, gp);
}

static void *m_thread(void *arg) {
    gl_m *mp = me = (gl_m *)arg;
    mp->p = mp->nextp;
    mp->nextp = NULL;
    gl_store_relaxed(&mp->tid, (int)syscall(SYS_gettid));
    gl_m_set(mp, mp->spinning ? M_SPINNING : M_RUNNING);
    for (;;) {
        gl_g *gp = mp->p && mp->p->id < gl_load_relaxed(&sched.procs) ? gl_next(&sched, mp) : NULL;
        int n;
        if (gp) gl_spin_found(&sched, mp);
        else if (gl_find(&sched, mp, &gp, &n) == GL_STOP) return NULL;
        execute(mp, gp);
    }
}

static int start_thread(gl_m *mp) {
    pthread_t thread;
    if (pthread_create(&thread, NULL, m_thread, mp)) return -1;
    pthread_detach(thread);
    return 0;
}

static void *sysmon_thread(void *arg) {
    (void)arg;
    gl_sysmon_run(&sched, &watch);
    return NULL;
}

static void *poster(void *arg) {
    uint64_t random = 777 + (uint64_t)(intptr_t)arg;
    for (int i = 0; i < POSTS / POSTERS; i++) {
        random = random * 6364136223846793005ULL + 1442695040888963407ULL;
        post(&worlds[(random >> 33) % GS]);
        if (random >> 54 == 0) usleep(300);     /* let all go to sleep, or come close to it */
    }
    return NULL;
}

static void begin(int procs) {
    gl_sched_init(&sched);
    wakefd = eventfd(0, EFD_NONBLOCK);
    sched.poll = stub_poll;
    sched.poll_break = stub_break;
    sched.start_thread = start_thread;
    watch.retake_ns = 1000000;
    watch.queue_ns = 500000;
    watch.stall_ns = 2000000;
    watch.nap_min_ns = 20000;
    watch.nap_max_ns = watch.nap_full_ns = 500000;
    CHECK(gl_set_procs(&sched, procs) == 0);
}

static void await_taken(long posted) {
    for (int i = 0; __atomic_load_n(&taken, __ATOMIC_ACQUIRE) != posted; i++) {
        if (i == 20000) {
            gl_trace(&sched, 1, 0);
            fprintf(stderr, "lost wake-up: %ld of %ld\n", taken, posted);
            exit(1);
        }
        usleep(1000);
    }
}

static void stress(int procs, int change) {
    pthread_t threads[POSTERS], monitor;
    long posted = POSTS / POSTERS * POSTERS;
    begin(procs);
    chain = POSTS / 4;
    CHECK(!pthread_create(&monitor, NULL, sysmon_thread, NULL));
    for (intptr_t i = 0; i < POSTERS; i++) CHECK(!pthread_create(&threads[i], NULL, poster, (void *)i));
    for (int i = 0; change && i < 100; i++) {
        CHECK(gl_set_procs(&sched, 1 + (int)random_below((uint64_t)procs)) == 0);
        usleep(1000);
    }
    for (int i = 0; i < POSTERS; i++) pthread_join(threads[i], NULL);
    long chained = POSTS / 4 - 1;
    while (gl_load_acquire(&chain) > 0) { post(&worlds[0]); posted++; usleep(50); }
    await_taken(posted + chained);
    /* nothing to do: all go to sleep */
    for (int i = 0; !gl_load_acquire(&sched.sysmon_parked) || gl_timers_min(&sched) != GL_NEVER; i++) {
        CHECK(i < 20000);
        usleep(1000);
    }
    pthread_mutex_lock(&sched.lock);
    CHECK(sched.npidle == sched.procs && !sched.qsize);
    pthread_mutex_unlock(&sched.lock);
    gl_stop(&sched);
    pthread_join(monitor, NULL);
    printf("%ld posts, %ld blocked turns, %ld timers, %d Ms, %llu hand-offs, %llu parks\n", taken, blocks, timers, sched.nm,
           (unsigned long long)sched.handoffs, (unsigned long long)sched.parks);
    usleep(20000);                              /* the Ms end */
}

static void test_one_proc(void) { stress(1, 0); }
static void test_two_procs(void) { stress(2, 0); }
static void test_eight_procs(void) { stress(8, 0); }
static void test_changing_procs(void) { stress(4, 1); }

static void test_tables(void) {
    for (int i = 0; i < P_STATES; i++) CHECK(!gl_p_legal[i][i]);
    CHECK(gl_p_legal[P_INCALL][P_IDLE] && !gl_p_legal[P_IDLE][P_INCALL] && !gl_p_legal[P_INCALL][P_DEAD]);
    for (int i = 0; i < M_STATES; i++) CHECK(!gl_m_legal[i][i] && !gl_m_legal[M_DEAD][i] && !gl_m_legal[i][M_NEW]);
}

/* Eight times four turns, `died` of which were a world's last. */
static void turns(gl_p *pp, int64_t each_ns, uint32_t died) {
    for (int i = 0; i < 8; i++) {
        pp->deaths += died;
        gl_measure(&sched, pp, pp->tick_ns + 4 * each_ns);
        pp->seen_deaths = pp->deaths;
    }
}

static void test_dying(void) {
    static gl_g gs[GL_RUNQ_CAP];
    gl_m m = { .sched = &sched, .id = 1 };
    gl_batch over = { 0 };
    begin(2);
    gl_p *pp = sched.allp[0];
    pp->status = gl_status(P_INCALL, &m);
    pp->tick_ns = 1, pp->mean_ns = 500;
    turns(pp, 500, 3);
    CHECK(pp->keep == 200);
    gl_runq_put(&pp->q, &gs[0], 0, &over);
    CHECK(!gl_offered(pp));
    turns(pp, 500, 0);
    CHECK(gl_offered(pp) == 1);                 /* they live on */
    turns(pp, 20000, 3);
    CHECK(gl_offered(pp) == 1);                 /* long turns */
    turns(pp, 500, 1);
    CHECK(!gl_offered(pp));                     /* one in four */
    gl_measure(&sched, pp, pp->tick_ns + 100000);
    CHECK(!gl_offered(pp));                     /* one long turn */
    pp->status = P_IDLE;
    CHECK(gl_offered(pp) == 1);                 /* nobody holds it */
    pp->status = gl_status(P_INCALL, &m);
    for (uint32_t i = 1; i < 201; i++) gl_runq_put(&pp->q, &gs[i], 0, &over);
    CHECK(gl_offered(pp) == 201);               /* so many that it pays */
}

/* Two Gs that are always there again: the one in the global queue has its turn by the 61st tick. */
static void test_global_turn(void) {
    static gl_g local[2], global;
    gl_m m = { .sched = &sched, .id = 1 };
    gl_batch none = { 0 }, one = { 0 };
    begin(1);
    gl_p *pp = m.p = sched.allp[0];
    for (int i = 0; i < 2; i++) gl_runq_put(&pp->q, &local[i], 0, &none);
    gl_batch_add(&one, &global);
    gl_q_put(&sched, &one);
    for (int ticks = 1;; ticks++) {
        pp->schedtick++;
        gl_g *gp = gl_next(&sched, &m);
        if (gp == &global) break;
        CHECK(ticks < 61 && (gp == &local[0] || gp == &local[1]));
        gl_runq_put(&pp->q, gp, 0, &none);
    }
    CHECK(!sched.qsize && gl_runq_len(&pp->q) == 2 && pp->n.from_global == 1);
}

static void test_illegal_p(void) {
    gl_p p = { .status = P_IDLE };
    gl_p_set(&p, P_INCALL);
}

static void test_illegal_m(void) {
    gl_m m = { .state = M_DEAD };
    gl_m_set(&m, M_RUNNING);
}

/* How long sysmon naps at most: longer where a look interrupts a turn. */
static void test_naps(void) {
    gl_watch w = { .nap_max_ns = 1, .nap_full_ns = 2, .cpus = 2 };
    static const struct { int procs, idle; int64_t longest; } cases[] = {
        { 2, 0, 2 }, { 3, 0, 2 }, { 2, 1, 1 }, { 3, 1, 1 }, { 1, 0, 1 }, { 0, 0, 1 } };
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        sched.procs = cases[i].procs;
        sched.npidle = cases[i].idle;
        CHECK(gl_longest_nap(&sched, &w) == cases[i].longest);
    }
}

int main(int argc, char **argv) {
    const check_test tests[] = { { "one_proc", test_one_proc }, { "two_procs", test_two_procs },
                                 { "eight_procs", test_eight_procs }, { "changing_procs", test_changing_procs },
                                 { "tables", test_tables }, { "dying", test_dying }, { "naps", test_naps },
                                 { "global_turn", test_global_turn }, { "illegal_p", test_illegal_p },
                                 { "illegal_m", test_illegal_m }, { 0 } };
    return check_main(argc, argv, tests);
}
