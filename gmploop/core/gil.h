/* Whether a poller that only looks (delay 0), in a loop that never sleeps, keeps the GIL for it. Otherwise it gives it up.
 *
 * Another thread that wants the GIL gets it in the gap of such a look, if it happens to be awake by then; if it is not, it
 * finds the GIL taken again, and waits anew: its request that the GIL be handed over comes when it has waited for 5 ms
 * without a gap. Gaps all the time can so put it off for a second; no gaps at all cost it 5 ms each time it needs the GIL.
 * So there are gaps for a while, in which most threads find theirs, and then none for longer than 5 ms.
 */
#ifndef GMPLOOP_GIL_H
#define GMPLOOP_GIL_H

#include <Python.h>
#include <sched.h>
#include <stdint.h>
#include <time.h>

enum { GL_GIL_CYCLE_MS = 20, GL_GIL_KEPT_MS = 7 };      /* guessed; more than sys.getswitchinterval() and a bit */

static inline int gl_look_keeps_gil(void) {
#ifdef Py_GIL_DISABLED
    return 0;
#else
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return ((int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000) % GL_GIL_CYCLE_MS < GL_GIL_KEPT_MS;
#endif
}

/* For a look that makes no system call: a gap as long as one, unless it is the time without. */
static inline void gl_gap(void) {
#ifndef Py_GIL_DISABLED
    if (gl_look_keeps_gil()) return;
    Py_BEGIN_ALLOW_THREADS
    sched_yield();
    Py_END_ALLOW_THREADS
#endif
}

#endif
