/* timers.h against a list that is searched from end to end. */
#include "check.h"
#include "timers.h"

enum { MOST = 4096 };

typedef struct { double when; uint64_t seq; ssize_t pos; int inside; } item;

/* The items and which of them are in the heap; the heap must agree after each step. */
typedef struct { gl_timers h; item items[MOST]; size_t made, inside; } world;

static void compare(const world *w) {
    size_t found = 0;
    CHECK(gl_timers_len(&w->h) == w->inside && (!w->h.a || w->inside <= gl_timers_head_of(&w->h)->cap));
    for (size_t i = 0; i < w->made; i++) {
        const item *it = &w->items[i];
        if (!it->inside) { CHECK(it->pos == -1); continue; }
        CHECK(it->pos >= 0 && (size_t)it->pos < w->inside);
        CHECK(w->h.a[it->pos].item == it && w->h.a[it->pos].when == it->when && w->h.a[it->pos].pos == &it->pos);
        found++;
    }
    CHECK(found == w->inside);
}

static void push(world *w, double when) {
    item *it = &w->items[w->made];
    *it = (item){ when, w->made, -1, 1 };
    w->made++;
    CHECK(gl_timers_push(&w->h, when, it, &it->pos) == 0);
    w->inside++;
}

static void removed(world *w, item *it, void *got) {
    CHECK(got == it);
    CHECK(it->pos == -1);
    it->inside = 0;
    w->inside--;
}

static void cancel(world *w, item *it) { removed(w, it, gl_timers_remove(&w->h, (size_t)it->pos)); }

/* The first to leave: the earliest, of equal ones the one that came first. */
static void pop(world *w) {
    item *first = NULL;
    for (size_t i = 0; i < w->made; i++)
        if (w->items[i].inside && (!first || w->items[i].when < first->when)) first = &w->items[i];
    removed(w, first, gl_timers_remove(&w->h, 0));
}

static void empty(world *w) {
    while (w->inside) { pop(w); compare(w); }
    gl_timers_free(&w->h);
    w->made = 0;
}

static world w;

static void test_plain(void) {
    double deadlines[] = { 5, 1, 3, 1, 1.0 / 0.0, -1.0 / 0.0, 0, 5, 1e300, -0.0 };
    for (int i = 0; i < 10; i++) push(&w, deadlines[i]);
    compare(&w);
    CHECK(w.h.a[0].when == -1.0 / 0.0);
    cancel(&w, &w.items[3]);
    cancel(&w, &w.items[0]);
    cancel(&w, &w.items[5]);
    compare(&w);
    empty(&w);
    gl_timers_push(&w.h, 1, &w, &w.items[0].pos);       /* usable again */
    CHECK(w.items[0].pos == 0 && gl_timers_remove(&w.h, 0) == &w);
    gl_timers_free(&w.h);
}

/* `count` deadlines, the digits of `code` in base `base`; then those at the `gone` positions are taken out. */
static void one_order(int count, int base, long code, const int *gone, int gones) {
    long rest = code;
    for (int i = 0; i < count; i++, rest /= base) push(&w, (double)(rest % base));
    compare(&w);
    for (int i = 0; i < gones; i++) {
        if ((size_t)gone[i] >= w.inside) break;
        cancel(&w, (item *)w.h.a[gone[i]].item);
        compare(&w);
    }
    while (w.inside) pop(&w);
    for (int i = 0; i < count; i++) CHECK(w.items[i].pos == -1);
    w.made = 0;
}

static long power(long base, int n) { return n ? base * power(base, n - 1) : 1; }

/* All orders of up to six deadlines with all ties; nothing, each, or each two of them taken out by position. */
static void test_exhaustive(void) {
    for (int count = 1; count <= 6; count++)
        for (long code = 0; code < power(count, count); code++) {
            one_order(count, count, code, NULL, 0);
            for (int i = 0; i < count; i++)
                for (int j = 0; j < (count < 6 ? count : 1); j++)
                    one_order(count, count, code, (int[]){ i, j }, 2);
        }
    gl_timers_free(&w.h);
}

/* Ten are the fewest with which the last can be earlier than the parent of one that leaves: the way up. */
static void test_exhaustive_deep(void) {
    for (long code = 0; code < power(3, 10); code++)
        for (int i = 0; i < 10; i++) one_order(10, 3, code, &i, 1);
    gl_timers_free(&w.h);
}

static void test_random(void) {
    for (int round = 0; round < 150; round++) {
        unsigned distinct = 1 + random_below(round % 2 ? 8 : 1000), pushes = 30 + random_below(50);
        for (int i = 0; i < 600; i++) {
            if (random_below(100) < pushes) push(&w, (double)random_below(distinct));
            else if (!w.inside) continue;
            else if (random_below(2)) pop(&w);
            else cancel(&w, (item *)w.h.a[random_below(w.inside)].item);
            compare(&w);
        }
        empty(&w);
    }
}

static void test_memory_is_given_back(void) {
    for (int i = 0; i < MOST; i++) push(&w, (double)random_below(1000));
    size_t most = gl_timers_head_of(&w.h)->cap;
    while (w.inside > 100) cancel(&w, (item *)w.h.a[random_below(w.inside)].item);
    CHECK(most >= MOST && gl_timers_head_of(&w.h)->cap <= 1024);
    compare(&w);
    empty(&w);
}

static void test_no_memory(void) {
    for (int i = 0; i < 16; i++) push(&w, 16 - i);
    item late = { 0, 0, -1, 0 };
    no_memory = 1;
    CHECK(gl_timers_push(&w.h, 1, &late, &late.pos) == -1 && late.pos == -1);
    compare(&w);
    no_memory = 0;
    push(&w, 5);
    compare(&w);
    empty(&w);
    for (int i = 0; i < MOST; i++) push(&w, i % 7);
    no_memory = 1;                                      /* giving back fails: nothing else does */
    while (w.inside > 10) pop(&w);
    compare(&w);
    no_memory = 0;
    empty(&w);
}

int main(int argc, char **argv) {
    const check_test tests[] = { { "plain", test_plain }, { "exhaustive", test_exhaustive },
                                 { "exhaustive_deep", test_exhaustive_deep }, { "random", test_random },
                                 { "memory_is_given_back", test_memory_is_given_back },
                                 { "no_memory", test_no_memory }, { 0 } };
    return check_main(argc, argv, tests);
}
