# cython: language_level=3, freethreading_compatible=True, binding=True
"""sysmon's thread, its settings, and what it says of a stall. What it does: sysmon.h.

What that is for: a callback that blocks delays its own G only; the others of its P go on after `retake_ns` and one nap.
One that computes, too, where there is no GIL; with it the others get their turns of 5 ms. Where more callbacks compute at
once than there are cores, nothing helps.
"""
import asyncio
import os
import sys
import traceback
from gmploop.core.g cimport gl_g
from gmploop.core.sched cimport sched, gl_m, gl_sched, gl_now_ns, int64_t

cdef extern from *:
    """
    #include "sysmon.h"
    #ifdef __linux__
    #include <sys/prctl.h>
    #endif
    static gl_watch gl_the_watch;
    static gl_sched *gl_watched;
    static void *gl_sysmon_thread(void *arg) {
        (void)arg;
    #if defined(__linux__)
        prctl(PR_SET_NAME, "gmploop-sysmon", 0, 0, 0);
    #endif
        gl_sysmon_run(gl_watched, &gl_the_watch);
        return NULL;
    }
    static int gl_sysmon_start(gl_sched *S) {
        gl_watched = S;
        return gl_thread_start(gl_sysmon_thread, NULL, 0);
    }
    static void gl_count_stall(gl_sched *S) { GL_SUM(S->stalls, 1); }
    """
    ctypedef struct gl_watch:
        int64_t retake_ns, poll_ns, queue_ns, stall_ns, nap_min_ns, nap_max_ns, trace_ns
        int observe, detail, one_computing, n_orphans
        void (*on_stall)(gl_m *, int64_t) noexcept nogil
    gl_watch gl_the_watch
    int gl_sysmon_start(gl_sched *)
    void gl_count_stall(gl_sched *) noexcept nogil

# Injected: called with (thread identity, seconds) when a callback stalls.
cdef object tell_stall = None
cdef bint silent = True


def configure(on_stall):
    """Set what is called with (thread's identity, seconds) for each stall, if stalls are told."""
    global tell_stall
    tell_stall = on_stall


def set_duties(*, long long retake_ns, long long poll_ns, long long queue_ns, long long stall_ns, long long nap_min_ns,
               long long nap_max_ns, long long trace_ns, bint observe, bint detail, bint one_computing, bint tell):
    """How long each duty waits; 0 switches it off. tell: stalls are told, not only counted."""
    global silent
    gl_the_watch.retake_ns, gl_the_watch.poll_ns, gl_the_watch.queue_ns = retake_ns, poll_ns, queue_ns
    gl_the_watch.nap_min_ns, gl_the_watch.nap_max_ns = nap_min_ns, nap_max_ns
    gl_the_watch.stall_ns, gl_the_watch.trace_ns = stall_ns, trace_ns
    gl_the_watch.observe, gl_the_watch.detail, gl_the_watch.one_computing = observe, detail, one_computing
    silent = not tell


cdef void on_stall(gl_m *mp, int64_t ns) noexcept nogil:
    gl_count_stall(sched())
    if not silent:
        report(mp.ident, ns * 1e-9)


cdef void report(unsigned long ident, double seconds) noexcept with gil:
    try:
        tell_stall(ident, seconds)
    except BaseException:
        sys.excepthook(*sys.exc_info())


cdef int runs_since = -1            # sched().forks when the thread was started


def start():
    """Start the thread, unless it runs, or all duties are off. RuntimeError if no thread is to be had."""
    global runs_since
    cdef int error
    watch = &gl_the_watch
    if runs_since == sched().forks or not (watch.retake_ns and not watch.observe or watch.poll_ns or watch.queue_ns
                                           or watch.stall_ns or watch.trace_ns):
        return
    watch.on_stall = on_stall
    watch.n_orphans = 0
    error = gl_sysmon_start(sched())
    if error != 0:
        raise RuntimeError(f"no thread can be had for sysmon, which watches goroutines: {os.strerror(error)}")
    runs_since = sched().forks
