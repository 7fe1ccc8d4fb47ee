/* runq.h with a ring of 4: every short sequence of one thread's calls, and an owner against thieves. */
#include "check.h"
#define GL_RUNQ_CAP 4u
#include "runq.h"
#include <pthread.h>

#ifndef POSTS
#define POSTS 400000
#endif

enum { MAX = 64 };
static gl_g gs[MAX];

/* -- one thread. The model: an array in the order in which Gs must leave. */

typedef struct { int front; int ring[MAX]; int n; } model;

static int id(gl_g *gp) { return gp ? (int)(gp - gs) : -1; }

static int model_pop(model *m) {
    int first;
    if (!m->n) return -1;
    first = m->ring[0];
    memmove(m->ring, m->ring + 1, sizeof(int) * (size_t)--m->n);
    return first;
}

static void put(gl_runq *q, model *m, int g, int next) {
    gl_batch over = { 0 };
    gl_runq_put(q, &gs[g], next, &over);
    if (next) {
        int old = m->front;
        m->front = g;
        if (old < 0) { CHECK(!over.n); return; }
        g = old;
    }
    if (m->n < (int)GL_RUNQ_CAP) { CHECK(!over.n); m->ring[m->n++] = g; return; }
    CHECK(over.n == GL_RUNQ_CAP / 2 + 1);                   /* the older half, then the newcomer */
    gl_g *gp = over.first;
    for (unsigned i = 0; i < GL_RUNQ_CAP / 2; i++, gp = gp->next) CHECK(id(gp) == model_pop(m));
    CHECK(id(gp) == g && !gp->next && over.last == gp);
}

static void get(gl_runq *q, model *m) {
    int inherit, expected = m->front;
    gl_g *gp = gl_runq_get(q, &inherit);
    CHECK(inherit == (expected >= 0));
    m->front = -1;
    CHECK(id(gp) == (expected >= 0 ? expected : model_pop(m)));
}

static void steal(gl_runq *q, model *m, int take_next) {
    gl_runq mine = { 0 };
    int n = m->n - m->n / 2, inherit;
    gl_g *gp = gl_runq_steal(&mine, q, take_next);
    if (!n) {
        CHECK(id(gp) == (take_next ? m->front : -1));
        if (take_next) m->front = -1;
        CHECK(!gl_runq_len(&mine));
        return;
    }
    CHECK((int)gl_runq_len(&mine) == n - 1);
    for (int i = 0; i < n - 1; i++) CHECK(id(gl_runq_get(&mine, &inherit)) == model_pop(m));
    CHECK(id(gp) == model_pop(m));
}

static void run_sequence(unsigned sequence, int length, uint32_t start) {
    gl_runq q = { 0 };
    model m = { .front = -1 };
    q.head = q.tail = start;
    for (int i = 0; i < length; i++, sequence /= 5) {
        if (sequence % 5 < 2) put(&q, &m, i, sequence % 5);
        else if (sequence % 5 == 2) get(&q, &m);
        else steal(&q, &m, sequence % 5 == 4);
        CHECK((int)gl_runq_len(&q) == m.n + (m.front >= 0));
    }
    while (m.front >= 0 || m.n) get(&q, &m);
    get(&q, &m);
}

static void test_exhaustive(void) {
    enum { LENGTH = 9, SEQUENCES = 1953125 };               /* 5 ** 9 */
    for (unsigned s = 0; s < SEQUENCES; s++) run_sequence(s, LENGTH, 0);
    for (unsigned s = 0; s < SEQUENCES; s += 7) run_sequence(s, LENGTH, UINT32_MAX - s % 5);
}

/* -- an owner that puts and gets, thieves that steal into rings of their own: each G leaves once */

enum { THIEVES = 2 };
static gl_g many[POSTS];
static unsigned char seen[POSTS];
static gl_runq queue;
static int done;
static long stolen, overflowed;
enum { AWAIT_THIEF = 1000 };                                /* posts; a thief comes at least once in so many */

static void see(gl_g *gp) { CHECK(__atomic_fetch_add(&seen[gp - many], 1, __ATOMIC_RELAXED) == 0); }

static void *thief(void *arg) {
    gl_runq mine = { 0 };
    long n;
    int inherit, last;
    (void)arg;
    do {
        gl_g *gp;
        last = gl_load_acquire(&done);
        while ((gp = gl_runq_steal(&mine, &queue, 1))) {
            for (n = 0; gp; gp = gl_runq_get(&mine, &inherit), n++) see(gp);
            __atomic_fetch_add(&stolen, n, __ATOMIC_RELEASE);
        }
        sched_yield();
    } while (!last);
    return NULL;
}

/* However busy the machine is and whoever of its threads is served first: the owner fills its queue, then waits for a
 * thief. */
static void await_thief(void) {
    long before = __atomic_load_n(&stolen, __ATOMIC_ACQUIRE);
    while (__atomic_load_n(&stolen, __ATOMIC_ACQUIRE) == before && gl_runq_len(&queue)) sched_yield();
}

static void test_stress(void) {
    pthread_t threads[THIEVES];
    for (int i = 0; i < THIEVES; i++) CHECK(!pthread_create(&threads[i], NULL, thief, NULL));
    for (int i = 0; i < POSTS; i++) {
        gl_batch over = { 0 };
        int inherit;
        gl_runq_put(&queue, &many[i], random_below(3) == 0, &over);
        overflowed += over.n;
        for (gl_g *gp = over.first, *next; gp; gp = next) { next = gp->next; see(gp); }
        if (i % AWAIT_THIEF == 0) await_thief();
        if (random_below(3) == 0) {
            gl_g *gp = gl_runq_get(&queue, &inherit);
            if (gp) see(gp);
        }
        if (random_below(64) == 0) sched_yield();
    }
    gl_store_release(&done, 1);
    for (int i = 0; i < THIEVES; i++) pthread_join(threads[i], NULL);
    for (int i = 0; i < POSTS; i++) CHECK(seen[i] == 1);
    CHECK(stolen > 100);
    CHECK(overflowed > 100);
    CHECK(!gl_runq_len(&queue));
}

int main(int argc, char **argv) {
    const check_test tests[] = { { "exhaustive", test_exhaustive }, { "stress", test_stress }, { 0 } };
    return check_main(argc, argv, tests);
}
