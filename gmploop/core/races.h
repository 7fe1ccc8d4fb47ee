/* Random pauses where threads race, in builds made to look for races (-DGMPLOOP_RACES, see tests/races): before whatever
 * orders memory (GL_ORDERED, in atomics.h), and wherever else another thread may come between two steps (GL_RACE; a test
 * that includes the headers may define its own). In all other builds they are nothing.
 */
#ifndef GMPLOOP_RACES_H
#define GMPLOOP_RACES_H

#ifdef GMPLOOP_RACES
#include <errno.h>
#include <stdint.h>
#include <sched.h>
#include <time.h>

/* One in 16 lets another thread run, one in 1024 sleeps, for longer than an M spins: guessed. */
static inline void gl_race(void) {
    static __thread uint32_t state;
    uint32_t r = state ? state : (uint32_t)((uintptr_t)&state >> 4) | 1;
    r ^= r << 13;
    r ^= r >> 17;
    state = r ^= r << 5;
    if (r >> 28) return;
    int kept = errno;
    struct timespec t = { 0, (long)(r & 0xffff) };
    if (r >> 22) sched_yield();
    else nanosleep(&t, NULL);
    errno = kept;
}
#define GL_RACE() gl_race()
#define GL_ORDERED() gl_race()

#else
#define GL_ORDERED() ((void)0)
#endif

#ifndef GL_RACE
#define GL_RACE() ((void)0)
#endif

#endif
