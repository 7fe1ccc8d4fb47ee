/* A thread's own bed: it sleeps until somebody wakes it, once.
 *
 * A note holds one token. gl_note_wake() leaves it, gl_note_sleep() takes it or waits for it: a wake that comes before
 * the sleep is not lost, two of them are one. One thread sleeps on a note; any thread wakes it.
 * wake: release (what the waker wrote before is seen); sleep: acquire.
 */
#ifndef GMPLOOP_PARK_H
#define GMPLOOP_PARK_H

#include "atomics.h"
#include <errno.h>
#include <time.h>
#include <pthread.h>
#include <signal.h>

static inline int64_t gl_now_ns(void) {
    struct timespec t;
#ifdef __APPLE__
    clock_gettime(CLOCK_UPTIME_RAW, &t);        /* the clock of world.h */
#else
    clock_gettime(CLOCK_MONOTONIC, &t);
#endif
    return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

#if defined(__linux__)
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

typedef struct { int token; } gl_note;

static inline void gl_note_init(gl_note *n) { gl_store_relaxed(&n->token, 0); }

static inline void gl_note_wake(gl_note *n) {
    gl_store_release(&n->token, 1);
    syscall(SYS_futex, &n->token, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

/* Returns 1 with the token, 0 when timeout_ns (< 0: for ever) have passed without one. */
static inline int gl_note_sleep(gl_note *n, int64_t timeout_ns) {
    int64_t end = timeout_ns < 0 ? 0 : gl_now_ns() + timeout_ns;
    for (;;) {
        if (gl_exchange_acq_rel(&n->token, 0)) return 1;
        if (timeout_ns < 0) {
            syscall(SYS_futex, &n->token, FUTEX_WAIT_PRIVATE, 0, NULL, NULL, 0);
        } else {
            int64_t left = end - gl_now_ns();
            if (left <= 0) return 0;
            struct timespec t = { (time_t)(left / 1000000000), (long)(left % 1000000000) };
            syscall(SYS_futex, &n->token, FUTEX_WAIT_PRIVATE, 0, &t, NULL, 0);
        }
    }
}

#else

typedef struct { pthread_mutex_t m; pthread_cond_t c; int token; } gl_note;

static inline void gl_note_init(gl_note *n) {
    pthread_mutex_init(&n->m, NULL);
    pthread_cond_init(&n->c, NULL);
    n->token = 0;
}

static inline void gl_note_wake(gl_note *n) {
    pthread_mutex_lock(&n->m);
    n->token = 1;
    pthread_cond_signal(&n->c);
    pthread_mutex_unlock(&n->m);
}

static inline int gl_note_sleep(gl_note *n, int64_t timeout_ns) {
    struct timespec t;
    int got;
    if (timeout_ns >= 0) {                      /* a condition waits on the wall clock: a nap may be off when it is set */
        clock_gettime(CLOCK_REALTIME, &t);
        int64_t end = (int64_t)t.tv_nsec + timeout_ns;
        t.tv_sec += (time_t)(end / 1000000000);
        t.tv_nsec = (long)(end % 1000000000);
    }
    pthread_mutex_lock(&n->m);
    while (!n->token)
        if (timeout_ns < 0) pthread_cond_wait(&n->c, &n->m);
        else if (pthread_cond_timedwait(&n->c, &n->m, &t) == ETIMEDOUT) break;
    got = n->token;
    n->token = 0;
    pthread_mutex_unlock(&n->m);
    return got;
}
#endif

/* A detached thread with all signals blocked. stack: bytes, 0 for what is usual. Returns an errno. */
static inline int gl_thread_start(void *(*run)(void *), void *arg, size_t stack) {
    pthread_t thread;
    pthread_attr_t attr;
    sigset_t all, before;
    int r;
    pthread_attr_init(&attr);
    pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
    if (stack) pthread_attr_setstacksize(&attr, stack);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    r = pthread_create(&thread, &attr, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return r;
}

#endif
