/* events.h: what a reader gets is what one writer wrote, whoever else writes; the newest stay. */
#define _GNU_SOURCE
#include "check.h"
#include <pthread.h>
#define GL_EVENTS 4u            /* so that writers lap each other */
#include "events.h"

#ifdef PAUSES           /* each yield may cost a slice of a busy machine */
#define POSTS 20000
#elif !defined(POSTS)
#define POSTS 300000
#endif

enum { WRITERS = 3 };

static gl_events ring;
static int writing = WRITERS;

static void write_one(uint64_t value) { gl_events_put(&ring, (int64_t)value, (const void *)(uintptr_t)value, value); }

static int consistent(const gl_event *e) {
    return (uint64_t)e->when_ns == e->what && (uint64_t)(uintptr_t)e->g == e->what;
}

static void test_newest(void) {
    gl_event e = { 0 };
    for (uint64_t i = 0; i < 11; i++) write_one(i * 3);
    CHECK(ring.next == 11);
    for (uint64_t i = 0; i < 11; i++) {
        CHECK(gl_events_get(&ring, i, &e) == (i >= 11 - GL_EVENTS));
        CHECK(i < 11 - GL_EVENTS || (consistent(&e) && e.what == i * 3));
    }
    CHECK(!gl_events_get(&ring, 11, &e));
}

/* Writers that have a slot stop there: who comes a lap later drops its event, and readers see neither. */
static void test_busy(void) {
    gl_event e = { 0 };
    for (uint64_t i = 0; i < 2 * GL_EVENTS; i++) write_one(i);
    uint64_t held = ring.next++;
    ring.at[held % GL_EVENTS].seq = GL_EVENT_BUSY;
    CHECK(!gl_events_get(&ring, held, &e) && !gl_events_get(&ring, held - GL_EVENTS, &e));
    for (uint64_t i = 0; i < GL_EVENTS; i++) write_one(100 + i);
    CHECK(!gl_events_get(&ring, held + GL_EVENTS, &e));
    CHECK(gl_events_get(&ring, held + GL_EVENTS - 1, &e) && e.what == 100 + GL_EVENTS - 2);
}

static void *writer(void *arg) {
    uint64_t me = (uint64_t)(uintptr_t)arg;
    for (uint64_t i = 0; i < POSTS / WRITERS; i++) write_one(i * WRITERS + me);
    __atomic_fetch_sub(&writing, 1, __ATOMIC_RELEASE);
    return NULL;
}

static void test_torn(void) {
    pthread_t threads[WRITERS];
    long whole = 0;
    for (uintptr_t i = 0; i < WRITERS; i++) CHECK(!pthread_create(&threads[i], NULL, writer, (void *)i));
    do {
        uint64_t end = gl_load_relaxed(&ring.next);
        for (uint64_t n = end > GL_EVENTS ? end - GL_EVENTS : 0; n < end; n++) {
            gl_event e;
            if (!gl_events_get(&ring, n, &e)) continue;
            CHECK(consistent(&e));
            whole++;
        }
    } while (gl_load_acquire(&writing));
    for (int i = 0; i < WRITERS; i++) pthread_join(threads[i], NULL);
    printf("%ld whole entries read while %d were written\n", whole, POSTS);
}

int main(int argc, char **argv) {
    const check_test tests[] = { { "newest", test_newest }, { "busy", test_busy }, { "torn", test_torn }, { 0 } };
    return check_main(argc, argv, tests);
}
