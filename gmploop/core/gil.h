/* Whether a poller's call gives up the GIL: one that waits does, one that only looks (delay 0) does not.
 *
 * What gives it up beside a thread that computes gets it back after that thread's slice, 5 ms: so turns that look without
 * waiting would be worth a slice each. Measured on 3.13 with the GIL, sleep(0) in a loop, at each look against never: alone
 * no difference (275 ns a turn); beside a computing thread 0.35 to 0.49 against 0.62 to 0.81 million turns a second, and
 * the thread got 80 to 85 % of what it had. A batch of 50 sends that keeps it: 8 to 14 against 14 to 17 thousand requests
 * a second beside such a thread.
 *
 * The interpreter hands the GIL over by itself where Python code runs. Callbacks that are all C never come there: so a look
 * gives it up, too, where the thread's last one that did is GL_KEEP_GIL_NS past. Without a GIL it is a matter of 15 ns, and
 * of nobody who stops the world having to wait.
 */
#ifndef GMPLOOP_GIL_H
#define GMPLOOP_GIL_H

#include <Python.h>
#include <stdint.h>
#include <time.h>

enum { GL_KEEP_GIL_NS = 50000000 };         /* ten slices; guessed */

static inline int gl_gives_up_gil(long long delay_ns) {
#ifdef Py_GIL_DISABLED
    (void)delay_ns;
    return 1;
#else
    static __thread int64_t given_up_ns;
    struct timespec t;
    if (delay_ns) return 1;
    clock_gettime(CLOCK_MONOTONIC, &t);
    int64_t now_ns = (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
    if (now_ns - given_up_ns < GL_KEEP_GIL_NS) return 0;
    given_up_ns = now_ns;
    return 1;
#endif
}

#endif
