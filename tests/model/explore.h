/* Every interleaving, up to a number of preemptions, of functions that use the core's headers as they are.
 *
 * Included before those headers. The functions run as fibers of one thread. Each atomic access, and each lock, is a step
 * before which another fiber may go on; at a fiber's block or end another goes on for free, elsewhere that costs one of
 * `preemptions`. Depth first: an execution is repeated with its last choice changed. Memory is sequentially consistent
 * here: that the orderings suffice is for the stress tests under a thread sanitizer.
 *
 * States that were seen are not gone on from again. A state is all that the fibers will act upon: the program's memory
 * (it says what, and clears what counts only, in whole_state()), their registers and stacks, who has just run, and how
 * many preemptions were spent; seen with as many or fewer, whatever follows was looked at already, or will be, further up
 * the path. What is kept of it is a hash of 64 bits: among ten million states two meet with a probability of 1 in 400,000.
 * A state that comes again on the path to itself is a circle that is never left, and an error. Time stands still. On
 * machines whose saved stack pointer is not known here, nothing is left out, and it takes longer.
 */
#ifndef EXPLORE_H
#define EXPLORE_H
#define _GNU_SOURCE

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <pthread.h>
#include <sched.h>
#include <ucontext.h>

enum { FIBERS = 8, STACK = 1 << 16, USED = 1 << 12, DEPTH = 1 << 14, ARENA = 1 << 20 };

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
static long executions, states;
static uint64_t on_path[DEPTH], *seen;          /* hashes; 0: none */
static size_t seen_size;
static char arena[ARENA];
static size_t arena_used;

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
    memset(f->stack + STACK - USED, 0, USED);       /* what stood there would be part of the state */
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = STACK;
    f->context.uc_link = NULL;
    makecontext(&f->context, fiber_main, 0);
}

static int enabled(int i) { return !fibers[i].done && (!fibers[i].waits || *fibers[i].waits == fibers[i].wanted); }

#if defined(__x86_64__)
#define SAVED_SP(context) ((char *)(context)->uc_mcontext.gregs[REG_RSP])
#elif defined(__aarch64__) && defined(__linux__)
#define SAVED_SP(context) ((char *)(context)->uc_mcontext.sp)
#endif

static uint64_t hash;

static void add_word(uint64_t word) {
    hash = (hash ^ word) * 0x9E3779B97F4A7C15ULL;
    hash ^= hash >> 29;
}

/* Part of the state; n is a multiple of 8 or what is behind it is part of it too. */
static void add(const void *p, size_t n) {
    uint64_t word;
    for (size_t i = 0; i < n; i += 8) {
        memcpy(&word, (const char *)p + i, 8);
        add_word(word);
    }
}

/* By the program: clears what nothing depends on, and calls add() for the rest; the arena is added already. */
static void whole_state(void);

/* Whether the table had it; it has it now. */
static int put_seen(uint64_t **table, size_t size, uint64_t word) {
    size_t at = word & (size - 1);
    for (; (*table)[at]; at = (at + 1) & (size - 1))
        if ((*table)[at] == word) return 1;
    (*table)[at] = word;
    return 0;
}

static int has_seen(uint64_t word) {
    for (size_t at = word & (seen_size - 1); seen_size && seen[at]; at = (at + 1) & (seen_size - 1))
        if (seen[at] == word) return 1;
    return 0;
}

static void note_seen(uint64_t word) {
    if (2 * (size_t)states >= seen_size) {
        size_t size = seen_size ? 2 * seen_size : 1 << 16;
        uint64_t *more = (uint64_t *)calloc(size, sizeof *more);
        if (!more) FOUND("no memory");
        for (size_t i = 0; i < seen_size; i++) if (seen[i]) put_seen(&more, size, seen[i]);
        free(seen);
        seen = more;
        seen_size = size;
    }
    put_seen(&seen, seen_size, word);
    states++;
}

static uint64_t with_spent(uint64_t state, int n) { return (state ^ (uint64_t)n * 0xD6E8FEB86659FD93ULL) | 1; }

static uint64_t hash_state(void) {
    hash = (uint64_t)current + 2;
    whole_state();
    add(arena, (arena_used + 7) & ~(size_t)7);
#ifdef SAVED_SP
    for (int i = 0; i < n_fibers; i++) {
        fiber *f = &fibers[i];
        char *sp = SAVED_SP(&f->context), *top = f->stack + STACK;
        add_word((uint64_t)f->done << 32 | (uint64_t)(uint32_t)f->wanted);
        if (f->done) continue;
        add_word((uint64_t)(uintptr_t)f->waits);
        add_word((uint64_t)(uintptr_t)sp);
#if defined(__x86_64__)
        static const int kept[] = { REG_RBX, REG_RBP, REG_R12, REG_R13, REG_R14, REG_R15, REG_RIP };
        for (int k = 0; k < 7; k++) add_word((uint64_t)f->context.uc_mcontext.gregs[kept[k]]);
#else
        add(&f->context.uc_mcontext.regs[19], 12 * 8);
        add_word(f->context.uc_mcontext.pc);
#endif
        sp = (char *)((uintptr_t)sp & ~(uintptr_t)7);
        add(sp, (size_t)(top - sp) & ~(size_t)7);
    }
#endif
    return hash;
}

/* At a place where there is a choice for the first time: whether all that follows was looked at. */
static int nothing_new(void) {
#ifdef SAVED_SP
    uint64_t state = hash_state(), word = with_spent(state, spent);
    for (int i = 0; i < depth; i++) if (on_path[i] == word) FOUND("they run in circles for ever");
    for (int n = 0; n <= spent; n++) if (has_seen(with_spent(state, n))) return 1;
    on_path[depth] = word;
    note_seen(word);
#else
    states++;
#endif
    return 0;
}

/* The next fiber, -1 when none can go on, -2 when all that follows was looked at. */
static int choose(void) {
    int options[FIBERS], n = 0, goes_on = current >= 0 && enabled(current);
    if (goes_on) options[n++] = current;
    for (int i = 0; i < n_fibers; i++) if (i != current && enabled(i)) options[n++] = i;
    if (!n) return -1;
    if (goes_on && spent == preemptions) n = 1;
    if (n == 1) return options[0];
    if (depth == DEPTH) FOUND("no end");
    if (depth == known) {
        if (nothing_new()) return -2;
        path[known].choice = 0;
        path[known].options = (unsigned char)n;
        path[known++].costs = (unsigned char)goes_on;
    }
    int choice = path[depth++].choice;
    spent += goes_on && choice;
    return options[choice];
}

/* begin() makes the fibers, end() looks at what has become of it all, when none can go on. Returns how many states there
 * were with a choice. */
static long explore(int most, void (*begin)(void), void (*end)(void)) {
    preemptions = most;
    executions = states = 0;
    known = 0;
    for (;;) {
        n_fibers = depth = spent = 0;
        arena_used = 0;
        current = -1;
        begin();
        int next;
        while ((next = choose()) >= 0) {
            current = next;
            fibers[next].waits = NULL;
            swapcontext(&explorer, &fibers[next].context);
        }
        current = -1;
        if (next == -1) {
            end();
            executions++;
        }
        while (known && path[known - 1].choice + 1 == path[known - 1].options) known--;
        if (!known) return states;
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
static inline int64_t gl_now_ns(void) { return 1000; }
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
