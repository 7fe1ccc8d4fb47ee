/* gstate.h and atomics.h: the table, each transition, and posters against an owner that sleeps. */
#include "check.h"
#include "gstate.h"
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

enum { POSTERS = 2 };

#ifndef POSTS
#define POSTS 1000000       /* of each poster */
#endif

static void test_plain(void) {
    int state = G_IDLE;
    CHECK(gl_g_notify(&state) == 1 && state == G_RUNNABLE);         /* who makes it runnable sees to it */
    CHECK(gl_g_notify(&state) == 0 && state == G_RUNNABLE);
    CHECK(gl_g_set(&state, G_RUNNING) == G_RUNNABLE && state == G_RUNNING);
    CHECK(gl_g_notify(&state) == 0 && state == (G_RUNNING | G_NOTIFIED));
    CHECK(gl_g_notify(&state) == 0 && state == (G_RUNNING | G_NOTIFIED));
    CHECK(!gl_g_cas(&state, G_RUNNING, G_IDLE) && state == (G_RUNNING | G_NOTIFIED));
    gl_g_clear_notified(&state);
    CHECK(state == G_RUNNING);
    CHECK(gl_g_cas(&state, G_RUNNING, G_IDLE) && state == G_IDLE);
    CHECK(!gl_g_cas(&state, G_RUNNING, G_IDLE) && state == G_IDLE);
    state = G_BLOCKED;
    CHECK(gl_g_notify(&state) == 0 && state == (G_BLOCKED | G_NOTIFIED));
    state = G_DEAD;
    CHECK(gl_g_notify(&state) == 0 && state == G_DEAD);
    state = G_RUNNING | G_NOTIFIED;
    CHECK(gl_g_set(&state, G_DEAD) == (G_RUNNING | G_NOTIFIED) && state == G_DEAD);
}

/* The table says what the diagram at its head says, and nothing leaves DEAD. */
static void test_table(void) {
    const char *legal[G_STATES] = { "RD", "rD", "IRBD", "IRrD", "" };     /* where IDLE ... DEAD may go */
    const char letters[] = "IRrBD";             /* IDLE, RUNNABLE, RUNNING, BLOCKED, DEAD */
    for (int from = 0; from < G_STATES; from++)
        for (int to = 0; to < G_STATES; to++)
            CHECK(gl_g_legal[from][to] == (strchr(legal[from], letters[to]) != NULL));
}

static void test_illegal_cas(void) {
    int state = G_IDLE;
    gl_g_cas(&state, G_IDLE, G_RUNNING);
}

static void test_illegal_set(void) {
    int state = G_DEAD;
    gl_g_set(&state, G_RUNNABLE);
}

/* -- posts against sleep: the inbox of g.pyx, the sleep of runtime.pyx, without Python */

typedef struct post { struct post *next; int poster; int number; } post;

static post *inbox;
static int state = G_IDLE, wakefd, taken[POSTERS];
static post posts[POSTERS][POSTS];

static void *poster(void *arg) {
    int me = (int)(intptr_t)arg;
    uint64_t one = 1, random = 12345 + me;
    for (int i = 0; i < POSTS; i++) {
        post *p = &posts[me][i], *head;
        *p = (post){ NULL, me, i };
        do {
            head = gl_load_relaxed(&inbox);
            p->next = head;
        } while (!__sync_bool_compare_and_swap(&inbox, head, p));
        if (gl_g_notify(&state)) CHECK(write(wakefd, &one, 8) == 8);
        random = random * 6364136223846793005ULL + 1442695040888963407ULL;
        if (random >> 56 == 0)                          /* let the owner go to sleep, or come close to it */
            for (int spin = (int)(random >> 44 & 0xfff); spin && gl_load_acquire(&state) != G_IDLE; spin--) ;
    }
    return NULL;
}

static int drain(void) {
    post *p = gl_load_relaxed(&inbox), *oldest = NULL, *next;
    int n = 0;
    if (!p) return 0;
    p = gl_exchange_acq_rel(&inbox, NULL);
    for (; p; p = next) { next = p->next; p->next = oldest; oldest = p; }
    for (p = oldest; p; p = p->next, n++) CHECK(p->number == taken[p->poster]++);
    return n;
}

static long sleeps, kept_awake;

static void stress_round(struct pollfd *fds) {
    pthread_t threads[POSTERS];
    uint64_t count;
    long got = 0;
    memset(taken, 0, sizeof taken);
    gl_g_cas(&state, G_IDLE, G_RUNNABLE);
    gl_g_set(&state, G_RUNNING);
    for (intptr_t i = 0; i < POSTERS; i++) CHECK(!pthread_create(&threads[i], NULL, poster, (void *)i));
    while (got += drain(), got < (long)POSTERS * POSTS) {
        if (!gl_g_cas(&state, G_RUNNING, G_IDLE)) {
            gl_g_clear_notified(&state);
            kept_awake++;
            continue;
        }
        sleeps++;
        if (poll(fds, 1, 10000) != 1) {
            fprintf(stderr, "lost wake-up: state %d, inbox %p, %ld of %ld\n", state, (void *)inbox, got,
                    (long)POSTERS * POSTS);
            exit(1);
        }
        CHECK(read(wakefd, &count, 8) == 8);
        gl_g_cas(&state, G_IDLE, G_RUNNABLE);
        gl_g_set(&state, G_RUNNING);
        gl_fence_seq_cst();
    }
    for (int i = 0; i < POSTERS; i++) pthread_join(threads[i], NULL);
    CHECK(!inbox && taken[0] == POSTS && taken[1] == POSTS);
    gl_g_set(&state, G_IDLE);
}

/* Rounds until both sides of the race were met often: a post found the owner asleep, a post kept it from sleeping. */
static void test_stress(void) {
    struct pollfd fds = { wakefd = eventfd(0, EFD_NONBLOCK), POLLIN, 0 };
    int rounds = 0;
    do stress_round(&fds);
    while (++rounds < 3 || (rounds < 60 && (sleeps < 100 || kept_awake < 100)));
    CHECK(sleeps >= 100 && kept_awake >= 1);
    printf("%d rounds: %ld sleeps, %ld times kept awake\n", rounds, sleeps, kept_awake);
}

/* -- the spinlock, and the other words of atomics.h */

static gl_spinlock lock;
static long counter, added, by_token;
static int token, bits;
static pthread_barrier_t start;

static void *counting(void *arg) {
    int me = (int)(intptr_t)arg;
    pthread_barrier_wait(&start);
    for (int i = 0; i < POSTS / 2; i++) {
        gl_lock(&lock);
        counter++;
        added += counter & 1;
        gl_unlock(&lock);
    }
    for (int i = 0; i < POSTS / 50; i++) {              /* a lock of CAS: each takes the token from free to its own */
        while (!gl_cas_int(&token, 0, me + 1)) sched_yield();
        by_token++;
        gl_store_release(&token, 0);
    }
    gl_fetch_or_acq_rel(&bits, 1 << me);
    return NULL;
}

static void test_spinlock(void) {
    enum { THREADS = 4 };
    pthread_t threads[THREADS];
    pthread_barrier_init(&start, NULL, THREADS);
    for (intptr_t i = 0; i < THREADS; i++) CHECK(!pthread_create(&threads[i], NULL, counting, (void *)i));
    for (int i = 0; i < THREADS; i++) pthread_join(threads[i], NULL);
    CHECK(counter == THREADS * (long)(POSTS / 2) && added == counter / 2 && by_token == THREADS * (long)(POSTS / 50));
    CHECK(!lock.held && !token && bits == (1 << THREADS) - 1);
}

int main(int argc, char **argv) {
    const check_test tests[] = { { "plain", test_plain }, { "table", test_table }, { "illegal_cas", test_illegal_cas },
                                 { "illegal_set", test_illegal_set }, { "stress", test_stress },
                                 { "spinlock", test_spinlock }, { 0 } };
    return check_main(argc, argv, tests);
}
