/* ring.h against the plainest queue there is: numbers that go up. Entries stand for pointers: their bit 2 is 0. */
#include "check.h"
#include "ring.h"

#define ENTRY(i) ((uintptr_t)(i) * 8 + (i) % 4)

/* A ring holds `oldest` .. `newest - 1`, always. */
typedef struct { gl_ring r; uintptr_t oldest, newest; } numbered;

static void compare(const numbered *q) {
    CHECK(gl_ring_len(&q->r) == q->newest - q->oldest);
    for (size_t i = 0; i < q->newest - q->oldest; i++) CHECK(gl_ring_at(&q->r, i) == ENTRY(q->oldest + i));
}

static void push(numbered *q) {
    CHECK(gl_ring_push(&q->r, ENTRY(q->newest)) == 0);
    q->newest++;
}

static void pop(numbered *q) {
    if (q->oldest == q->newest) CHECK(gl_ring_pop(&q->r) == 0);
    else {
        CHECK(gl_ring_pop(&q->r) == ENTRY(q->oldest));
        q->oldest++;
    }
}

/* Of a capacity that gl_ring_push() itself would go past (1: without a block), with head and tail anywhere, also about to
 * overflow. */
static numbered make(uint32_t capacity, uint32_t start) {
    numbered q = { { 0 }, 1, 1 };
    if (capacity > 1) {
        gl_ring_block *b = (gl_ring_block *)malloc(sizeof *b + capacity * sizeof(uintptr_t));
        b->mask = capacity - 1;
        b->head = b->tail = start;
        q.r.word = (uintptr_t)b + GL_RING_BLOCK;
    }
    return q;
}

static void test_plain(void) {
    gl_ring r = { 0 };
    CHECK(gl_ring_len(&r) == 0 && gl_ring_pop(&r) == 0);
    for (uintptr_t i = 1; i <= 1000; i++) CHECK(gl_ring_push(&r, ENTRY(i)) == 0);
    CHECK(gl_ring_len(&r) == 1000 && gl_ring_at(&r, 0) == ENTRY(1) && gl_ring_at(&r, 999) == ENTRY(1000));
    for (uintptr_t i = 1; i <= 1000; i++) CHECK(gl_ring_pop(&r) == ENTRY(i));
    CHECK(gl_ring_pop(&r) == 0);
    gl_ring_free(&r);
    CHECK(gl_ring_len(&r) == 0 && gl_ring_pop(&r) == 0);
    CHECK(gl_ring_push(&r, 8) == 0 && gl_ring_pop(&r) == 8);        /* usable again */
    gl_ring_free(&r);
}

/* Every sequence of pushes and pops up to this length, over growth and wrap-around. */
static void test_exhaustive(void) {
    enum { LENGTH = 13 };
    uint32_t capacities[] = { 1, 2, 4, 8 };
    for (int c = 0; c < 4; c++) {
        uint32_t capacity = capacities[c];
        uint32_t starts[] = { 0, 1, 2, 3, UINT32_MAX, UINT32_MAX - 1, UINT32_MAX - 5 };
        for (int s = 0; s < 7; s++)
            for (unsigned sequence = 0; sequence < 1u << LENGTH; sequence++) {
                numbered q = make(capacity, starts[s]);
                for (int i = 0; i < LENGTH; i++) {
                    if (sequence >> i & 1) push(&q);
                    else pop(&q);
                    compare(&q);
                }
                gl_ring_free(&q.r);
            }
    }
}

static void test_random(void) {
    numbered q = make(1, 0);
    size_t longest = 0;
    for (int phase = 0; phase < 400; phase++) {
        unsigned pushes = random_below(101);            /* per cent: the ring fills in one phase, empties in another */
        for (int i = 0; i < 2000; i++) {
            if (random_below(100) < pushes) push(&q);
            else pop(&q);
        }
        compare(&q);
        if (gl_ring_len(&q.r) > longest) longest = gl_ring_len(&q.r);
    }
    CHECK(longest > 2000);
    while (q.oldest != q.newest) pop(&q);
    pop(&q);
    gl_ring_free(&q.r);
}

static void test_no_memory(void) {
    uint32_t capacities[] = { 1, 4, 64 };
    for (int c = 0; c < 3; c++) {
        numbered q = make(capacities[c], 0);
        for (size_t i = 0; i < capacities[c]; i++) push(&q);
        pop(&q);                                        /* full, and not from slot 0 on */
        push(&q);
        no_memory = 1;
        CHECK(gl_ring_push(&q.r, 8) == -1 && gl_ring_reserve(&q.r, 1) == -1);
        compare(&q);
        no_memory = 0;
        push(&q);
        compare(&q);
        while (q.oldest != q.newest) pop(&q);
        gl_ring_free(&q.r);
    }
}

int main(int argc, char **argv) {
    const check_test tests[] = { { "plain", test_plain }, { "exhaustive", test_exhaustive }, { "random", test_random },
                                 { "no_memory", test_no_memory }, { 0 } };
    return check_main(argc, argv, tests);
}
