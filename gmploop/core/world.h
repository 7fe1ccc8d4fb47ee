/* What a handle must know of the world (G) that it is queued in, without knowing the G's type.
 *
 * `owner`  identifies the thread that runs the world, 0 while nobody does. Written by that thread, under `lock`, when
 *          it enters and leaves; read relaxed by anybody: only a thread that finds its own identity relies on it, and
 *          that value only it can have written.
 * `lock`   guards ready ring, timers and handles while owner is 0, so that a world that nobody runs can be used from
 *          any thread. The owner itself never takes it after entering.
 * `timers` belongs to the P: a locked world embeds its private one.
 */
#ifndef GMPLOOP_WORLD_H
#define GMPLOOP_WORLD_H

#include "atomics.h"
#include "timers.h"
#include <pythread.h>
#include <time.h>

typedef struct {
    unsigned long owner;
    gl_timers timers;
    gl_spinlock lock;
    unsigned char debug;
    unsigned char timers_due;   /* a timer was set whose deadline had already come: look at the heap on the next turn */
} gl_world;

enum { POOL = 64 };         /* handles kept for reuse by a locked world, or by an M for the worlds that it runs */

typedef struct {
    int n;
    struct _object *a[POOL];
} gl_pool;

/* `owner` of a world that moves, while no M runs it: nobody's identity, and not "nobody runs it" either. */
#define GL_BETWEEN_MS 1UL

/* PyThread_get_thread_ident(), without three calls where it is known what that is. */
#if defined(__GLIBC__)
#include <pthread.h>
static inline unsigned long gl_thread_ident(void) { return (unsigned long)pthread_self(); }
#else
static inline unsigned long gl_thread_ident(void) { return PyThread_get_thread_ident(); }
#endif

static inline int gl_world_mine(gl_world *w) { return gl_load_relaxed(&w->owner) == gl_thread_ident(); }

/* With the GIL every section between two calls into Python is atomic: nothing of a handle needs more protection. */
#ifdef Py_GIL_DISABLED
#define GL_FREE_THREADED 1
#else
#define GL_FREE_THREADED 0
#endif

/* The clock of time.monotonic(): on macOS CLOCK_MONOTONIC goes on while the machine sleeps, that one does not. */
#ifdef __APPLE__
#define GL_CLOCK CLOCK_UPTIME_RAW
#else
#define GL_CLOCK CLOCK_MONOTONIC
#endif

static inline double gl_monotonic(void) {
    struct timespec t;
    clock_gettime(GL_CLOCK, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* A cheap tick counter, for "has little time passed?" only: 25 to 50 us are 100,000 ticks of a TSC, and where there is
 * no TSC the clock serves (ns). */
#if defined(__x86_64__) || defined(__i386__)
#include <x86intrin.h>
#define GL_TICKS_LITTLE 100000ULL
static inline uint64_t gl_ticks(void) { return __rdtsc(); }
#else
#define GL_TICKS_LITTLE 40000ULL
static inline uint64_t gl_ticks(void) {
    struct timespec t;
    clock_gettime(GL_CLOCK, &t);
    return (uint64_t)t.tv_sec * 1000000000ULL + (uint64_t)t.tv_nsec;
}
#endif

#endif
