/* flusher.h: one look after another, and what has left by then. Time is given to it: no thread, nothing waits. */
#pragma GCC diagnostic ignored "-Wunused-function"      /* of the header, what needs a thread */
#include "check.h"
#include "flusher.h"
#include <unistd.h>

enum { WAIT = 1000, CALM = 10 };

static gl_flusher flusher = { .wait_ns = WAIT, .calm_ns = 4 * WAIT, .idle_looks = 4, .calm_looks = CALM };
static int near_end, far_end;

static void begin(gl_writes *b, int64_t since_ns) {
    int ends[2], watch;
    CHECK(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) == 0);
    near_end = ends[0];
    far_end = ends[1];
    CHECK(gl_writes_add(b, near_end, "data", 4, NULL, 0, &watch) == 0 && watch);
    b->since_ns = since_ns;
    b->next = flusher.first;
    flusher.first = b;
}

static int arrived(int fd) {
    char data[8];
    ssize_t n = read(fd, data, sizeof data);
    CHECK(n == 4 || (n < 0 && errno == EAGAIN));
    return n == 4;
}

static void end(gl_writes *b) {
    gl_send *a = NULL;
    uint32_t room = 0;
    flusher.first = NULL;
    gl_writes_take(b, &a, &room);
    free(a);
    free(b->a);
    close(near_end);
    close(far_end);
}

/* Its owner is asked first; only if it does nothing for a fourth of the time is it done for it. */
static void test_asks(void) {
    gl_writes b = { 0 };
    begin(&b, 0);
    CHECK(gl_flusher_look(&flusher, 10, 0) == WAIT && !b.due && !arrived(far_end));
    CHECK(gl_flusher_look(&flusher, WAIT, 0) == WAIT + WAIT / 4 && b.due && !arrived(far_end));
    CHECK(gl_flusher_look(&flusher, WAIT + WAIT / 4, 0) > 0 && arrived(far_end));
    CHECK(b.a[0].sent == 4 && b.n == 1);
    CHECK(gl_flusher_look(&flusher, 3 * WAIT, 0) > 0 && !arrived(far_end));      /* once */
    end(&b);
}

/* A look that comes early, because of another batch or a new one, does not shorten the owner's time. */
static void test_early(void) {
    gl_writes b = { 0 };
    begin(&b, 0);
    gl_flusher_look(&flusher, WAIT, 0);
    for (int64_t now = WAIT + 1; now < WAIT + WAIT / 4; now += 10)
        CHECK(gl_flusher_look(&flusher, now, 0) == WAIT + WAIT / 4 && !arrived(far_end));
    CHECK(gl_flusher_look(&flusher, WAIT + WAIT / 4, 0) > 0 && arrived(far_end));
    end(&b);
}

/* An owner that takes what is there is not asked any more, and what it adds then has all of its time. */
static void test_taken(void) {
    gl_writes b = { 0 };
    gl_send *a = NULL;
    uint32_t room = 0;
    int watch;
    begin(&b, 0);
    gl_flusher_look(&flusher, WAIT, 0);
    CHECK(b.due && gl_writes_take(&b, &a, &room) == 1 && !b.due && a[0].sent == GL_PENDING);
    CHECK(gl_writes_add(&b, near_end, "more", 4, NULL, 0, &watch) == 0 && !watch);
    b.since_ns = WAIT + 10;
    CHECK(gl_flusher_look(&flusher, WAIT + WAIT / 4, 0) == 2 * WAIT + 10 && !b.due && !arrived(far_end));
    CHECK(gl_flusher_look(&flusher, 2 * WAIT + 10, 0) > 0 && b.due && !arrived(far_end));
    free(a);
    end(&b);
}

/* One turn more: what was there is taken, and there is something new. */
static void next_turn(gl_writes *b, int64_t since_ns) {
    gl_send *a = NULL;
    uint32_t room = 0;
    int watch;
    gl_writes_take(b, &a, &room);
    free(a);
    CHECK(gl_writes_add(b, near_end, "more", 4, NULL, 0, &watch) == 0 && !watch);
    b->since_ns = since_ns;
}

/* Where nothing has been late for long, looks are farther apart; until something is, which then is asked for at once. */
static void test_calm(void) {
    gl_writes b = { 0 };
    int64_t now = 0;
    begin(&b, 0);
    for (int i = 0; i < CALM; i++, now += WAIT) {
        next_turn(&b, now + 1);
        CHECK(gl_flusher_look(&flusher, now + 2, 0) == now + 1 + WAIT);
    }
    for (int i = 0; i < 3; i++, now += 4 * WAIT) {
        next_turn(&b, now + 1);
        CHECK(gl_flusher_look(&flusher, now + 2, 0) == now + 2 + 4 * WAIT && !b.due);
    }
    CHECK(gl_flusher_look(&flusher, now, 0) == now + WAIT / 4 && b.due && !arrived(far_end));
    next_turn(&b, now + 1);
    CHECK(gl_flusher_look(&flusher, now + 2, 0) == now + 1 + WAIT);
    end(&b);
}

/* So are they where a loop mostly has nothing to send; one that is let alone in between begins anew. */
static void test_calm_and_idle(void) {
    gl_writes b = { 0 };
    int64_t now = 0;
    begin(&b, 0);
    for (int i = 0; i < CALM; i++, now += WAIT) {
        next_turn(&b, now + 1);
        gl_flusher_look(&flusher, now + 2, 0);
    }
    gl_send *a = NULL;
    uint32_t room = 0;
    gl_writes_take(&b, &a, &room);
    for (int i = 0; i < 4; i++) CHECK(gl_flusher_look(&flusher, now, 0) == now + 4 * WAIT && b.watched);
    CHECK(gl_flusher_look(&flusher, now, 0) == -1 && !b.watched && !b.calm);
    free(a);
    end(&b);
}

/* Before a fork nothing may wait. */
static void test_at_once(void) {
    gl_writes b = { 0 };
    begin(&b, 0);
    CHECK(gl_flusher_look(&flusher, 10, 1) == -1 && arrived(far_end) && !b.watched && !flusher.first);
    end(&b);
}

int main(int argc, char **argv) {
    const check_test tests[] = { { "asks", test_asks }, { "early", test_early }, { "taken", test_taken }, { "calm", test_calm },
                                 { "calm_and_idle", test_calm_and_idle }, { "at_once", test_at_once }, { 0 } };
    return check_main(argc, argv, tests);
}
