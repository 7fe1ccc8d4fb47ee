/* What the C tests share: checks that name their line, random numbers, pauses, memory that runs out on demand. */
#ifndef CHECK_H
#define CHECK_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHECK(condition) do { if (!(condition)) { \
    fprintf(stderr, "%s:%d: not true: %s\n", __FILE__, __LINE__, #condition); exit(1); } } while (0)

static uint64_t random_state = 88172645463325252ULL;

static inline uint64_t random_below(uint64_t limit) {       /* xorshift */
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state % limit;
}

/* The points of the headers under test at which threads race: some of them let another thread go first. */
#ifdef PAUSES
#include <sched.h>
static __thread uint32_t pause_state = 1;
static inline void pause_sometimes(void) {
    pause_state = pause_state * 1664525u + 1013904223u;
    if (pause_state >> 29 == 0) sched_yield();
}
#define GL_RACE() pause_sometimes()
#endif

/* The headers under test are included after this: their allocations fail while `no_memory` is set. */
static int no_memory;
static inline void *check_malloc(size_t n) { return no_memory ? NULL : malloc(n); }
static inline void *check_realloc(void *p, size_t n) { return no_memory ? NULL : realloc(p, n); }
#define malloc check_malloc
#define realloc check_realloc

typedef struct { const char *name; void (*run)(void); } check_test;

static int check_main(int argc, char **argv, const check_test *tests) {
    for (; tests->name; tests++)
        if (argc == 2 && !strcmp(argv[1], tests->name)) {
            tests->run();
            return 0;
        }
    fprintf(stderr, "no such test\n");
    return 2;
}

#endif
