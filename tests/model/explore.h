/* Every interleaving, up to a number of preemptions, of functions that use the core's headers as they are.
 *
 * Included before those headers. The functions run as fibers of one thread. Each atomic access, and each lock, is a step
 * before which another fiber may go on; at a fiber's block or end another goes on for free, elsewhere that costs one of
 * `preemptions`. Depth first: an execution is repeated with its last choice changed. Memory is sequentially consistent
 * here: that the orderings suffice is for the stress tests under a thread sanitizer.
 */
#ifndef EXPLORE_H
#define EXPLORE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <pthread.h>
#include <sched.h>
#include <ucontext.h>

enum { FIBERS = 8, STACK = 1 << 16, DEPTH = 1 << 14, ARENA = 1 << 20 };

typedef struct {
    ucontext_t context;
    void (*run)(void *);
    void *arg;
    int done, wanted;
    const int *waits;           /* goes on when this is `wanted` */
    char stack[STACK];
} fiber;

static fiber fibers[FIBERS];
static int n_fibers, current, preemptions, spent;
static ucontext_t explorer;
static struct { unsigned char choice, options, costs; } path[DEPTH];
static int depth, known;
static long executions;
static char arena[ARENA];
static size_t arena_used;
static int64_t clock_ns;

#define FOUND(...) do { fprintf(stderr, __VA_ARGS__); fprintf(stderr, "\n"); exit(1); } while (0)

static void step(void) { if (current >= 0) swapcontext(&fibers[current].context, &explorer); }

/* Words that do not change, or of which nothing depends, need no step: the program names them. */
static int no_matter(const volatile void *word);
static void step_at(const volatile void *word) { if (!no_matter(word)) step(); }

static void block(const int *word, int wanted) {
    fibers[current].waits = word;
    fibers[current].wanted = wanted;
    step();
}

static void fiber_main(void) {
    fibers[current].run(fibers[current].arg);
    fibers[current].done = 1;
    step();
}

static void fiber_start(void (*run)(void *), void *arg) {
    if (n_fibers == FIBERS) FOUND("too many threads");
    fiber *f = &fibers[n_fibers++];
    f->run = run;
    f->arg = arg;
    f->done = 0;
    f->waits = NULL;
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = STACK;
    f->context.uc_link = NULL;
    makecontext(&f->context, fiber_main, 0);
}

static int enabled(int i) { return !fibers[i].done && (!fibers[i].waits || *fibers[i].waits == fibers[i].wanted); }

/* The next fiber, or -1 when none can go on. */
static int choose(void) {
    int options[FIBERS], n = 0, goes_on = current >= 0 && enabled(current);
    if (goes_on) options[n++] = current;
    for (int i = 0; i < n_fibers; i++) if (i != current && enabled(i)) options[n++] = i;
    if (!n) return -1;
    if (goes_on && spent == preemptions) n = 1;
    if (n == 1) return options[0];
    if (depth == DEPTH) FOUND("no end");
    if (depth == known) {
        path[known].choice = 0;
        path[known].options = (unsigned char)n;
        path[known++].costs = (unsigned char)goes_on;
    }
    int choice = path[depth++].choice;
    spent += goes_on && choice;
    return options[choice];
}

/* begin() makes the fibers, end() looks at what has become of it all, when none can go on. Returns how many executions. */
static long explore(int most, void (*begin)(void), void (*end)(void)) {
    preemptions = most;
    executions = 0;
    known = 0;
    for (;;) {
        n_fibers = depth = spent = 0;
        arena_used = 0;
        clock_ns = 1;
        current = -1;
        begin();
        for (int next; (next = choose()) >= 0;) {
            current = next;
            fibers[next].waits = NULL;
            swapcontext(&explorer, &fibers[next].context);
        }
        current = -1;
        end();
        executions++;
        while (known && path[known - 1].choice + 1 == path[known - 1].options) known--;
        if (!known) return executions;
        path[known - 1].choice++;
    }
}

/* -- what the headers use */

static void *arena_calloc(size_t n, size_t size) {
    void *p = arena + arena_used;
    arena_used += (n * size + 15) & ~(size_t)15;
    if (arena_used > ARENA) FOUND("no memory");
    return memset(p, 0, n * size);
}

static void model_lock(void *lock) {
    int *held = (int *)lock;
    step();
    while (*held) block(held, 0);
    *held = 1;
}

static void model_unlock(void *lock) { *(int *)lock = 0; }

#define calloc arena_calloc
#define malloc(n) arena_calloc(1, n)
#define free(p) ((void)(p))
#define realloc(p, n) ((void)(p), arena_calloc(1, n))
#define sched_yield() step()
#define pthread_mutex_init(l, a) (*(int *)(void *)(l) = 0)
#define pthread_mutex_lock(l) model_lock(l)
#define pthread_mutex_unlock(l) model_unlock(l)
#define __atomic_load_n(p, o) (step_at(p), *(p))
#define __atomic_store_n(p, v, o) (step_at(p), (void)(*(p) = (v)))
#define __atomic_exchange_n(p, v, o) ({ step_at(p); __typeof__(*(p)) old_ = *(p); *(p) = (v); old_; })
#define __atomic_fetch_add(p, v, o) ({ step_at(p); __typeof__(*(p)) old_ = *(p); *(p) += (v); old_; })
#define __atomic_fetch_sub(p, v, o) ({ step_at(p); __typeof__(*(p)) old_ = *(p); *(p) -= (v); old_; })
#define __atomic_fetch_or(p, v, o) ({ step_at(p); __typeof__(*(p)) old_ = *(p); *(p) |= (v); old_; })
#define __atomic_fetch_and(p, v, o) ({ step_at(p); __typeof__(*(p)) old_ = *(p); *(p) &= (v); old_; })
#define __atomic_compare_exchange_n(p, e, v, w, s, f) \
    ({ step_at(p); int same_ = *(p) == *(e); if (same_) *(p) = (v); else *(e) = *(p); same_; })
#define __atomic_thread_fence(o) ((void)0)

/* In the place of park.h. */
#define GMPLOOP_PARK_H
typedef struct { int token; } gl_note;
static inline int64_t gl_now_ns(void) { return clock_ns += 1000; }
static inline void gl_note_init(gl_note *n) { n->token = 0; }
static inline void gl_note_wake(gl_note *n) { step(); n->token = 1; }
static inline int gl_note_sleep(gl_note *n, int64_t timeout_ns) {
    (void)timeout_ns;                   /* a model waits for ever: nothing may rest on a time that passes */
    step();
    while (!n->token) block(&n->token, 1);
    n->token = 0;
    return 1;
}

#endif
