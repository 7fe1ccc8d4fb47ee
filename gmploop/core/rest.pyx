# cython: language_level=3, freethreading_compatible=True, binding=True
"""Whether goroutines are at rest: no M runs, looks for work, or waits for a time or an event.

Who waits for goroutines asks to be told (want()), looks (progress()) and sleeps; the last M to come to rest tells. Rest
is not death: who could still wake a goroutine from outside, gmploop/deadlock.py finds out.
"""
import sys
from gmploop.core.g cimport gl_load_acquire, G_IDLE
from gmploop.core.moving cimport MovingCore
from cpython.object cimport PyObject
from gmploop.core.handle cimport gl_spinlock, gl_lock, gl_unlock
from gmploop.core.poller cimport Watch
from gmploop.core.runtime cimport LoopCore
from gmploop.core.sched cimport *

cdef extern from "atomics.h" nogil:
    PyObject *load_inbox "gl_load_acquire"(PyObject **)

cdef extern from *:
    """
    #include "scheduler.h"
    static void gl_set_wanted(gl_sched *S, int on) { __atomic_store_n(&S->rest_wanted, on, __ATOMIC_SEQ_CST); gl_fence_seq_cst(); }

    /* The turns that all Ms have begun and ended, if all are at rest; else -1, or -2 if some are about to sleep, and have
     * told of it. Equal before and after: nothing has run. */
    static long long gl_progress(gl_sched *S) {
        long long n = 0;
        pthread_mutex_lock(&S->lock);
        if (!gl_at_rest(S)) n = -1;
        for (int i = 0; n >= 0 && i < S->nm; i++) {
            gl_m *mp = S->allm[i];
            int state = gl_load_relaxed(&mp->state);
            n = state == M_PARKED || state == M_POLLING || state == M_DEAD || mp == S->spare
                ? n + gl_load_relaxed(&mp->turns) : -2;
        }
        pthread_mutex_unlock(&S->lock);
        return n;
    }
    """
    void gl_set_wanted(gl_sched *, int) nogil
    long long gl_progress(gl_sched *) nogil

cdef object tell = None
cdef gl_spinlock tell_lock


cdef void on_rest() noexcept nogil:
    with gil:
        try:
            gl_lock(&tell_lock)
            told = tell
            gl_unlock(&tell_lock)
            if told is not None:
                told()
        except BaseException:
            sys.excepthook(*sys.exc_info())


sched().on_rest = on_rest


def want(callback):
    """Have callback() called once, by an M, when all have come to rest; None: no longer. The caller then looks itself:
    nobody tells of a rest that was there before."""
    global tell
    gl_lock(&tell_lock)
    before, tell = tell, callback           # nothing is freed under the lock
    gl_unlock(&tell_lock)
    gl_set_wanted(sched(), callback is not None)


def progress():
    """A number that grows with each turn of a goroutine, if all are at rest; -1 if not, -2 if they are about to be."""
    cdef long long n
    with nogil:
        n = gl_progress(sched())
    return n


def posted(LoopCore loop not None):
    """Whether something was posted to the loop that no turn has seen. Asked after the threads: who has posted may be gone."""
    return load_inbox(&loop.inbox) != NULL


def threads():
    """The kernel's numbers of the threads of all Ms."""
    return {sched().allm[i].tid for i in range(sched().nm) if sched().allm[i].state != M_DEAD}


def sleeps(MovingCore world not None):
    """Whether nothing of this world is ready or watched. At rest only: then no P has a timer."""
    return gl_load_acquire(&world.s.state) == G_IDLE and not world.watches


def watched(LoopCore loop not None, int but):
    """A descriptor that a loop's own poller has to do with, other than the number `but`: its watch, or True if it is only
    that of its ring for files, in which something is under way; or None."""
    cdef Watch w
    cdef object under_way = None
    for w in loop.poller.table:
        if w is not None and w.fd != but and w.asked():
            if w.asked() < 0:
                return w
            under_way = True
    return under_way
