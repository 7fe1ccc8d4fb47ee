from gmploop.core.handle cimport gl_spinlock
from gmploop.core.runtime cimport LoopCore

cdef enum:
    TURN_IDLE = 0       # nothing left to do
    TURN_MORE = 1       # callbacks are ready
    TURN_DEAD = 2       # the world is over

cdef enum:
    NEW = 0             # its root task is not made yet
    LIVE = 1
    WINDING = 2         # the root task is done; what it left is cancelled and waited for
    OVER = 3

cdef class MovingCore(LoopCore):
    cdef Goroutine handle           # who waits for the root task; None once it was told
    cdef object coro                # until the first turn
    cdef object context
    cdef readonly object home       # the loop from which it came, by however many go(): of a plain thread, or of a
                                    # goroutine that came from none
    cdef object root                # the root task
    cdef int phase
    cdef int told_to_cancel         # 1: before the root task was there; 2: and begin() has done it
    cdef unsigned int inner         # tasks that were made beside it
    cdef int begin(self) except -1
    cdef int die(self) except -1
    cdef int run_entries(self, void *m) except -1

cdef class Goroutine:
    cdef MovingCore world           # None once it is over
    cdef gl_spinlock lock           # guards status and waiters
    cdef int status
    cdef int retrieved              # somebody has seen the exception
    cdef list waiters               # what is called when it is over: (loop or None, callable, context or None)
    cdef object value               # result, or exception
    cdef object name_
    cdef object maker               # the loop that ran go(), for its exception handler
    cdef object home                # as the world's
    cdef public object fatal        # SystemExit or KeyboardInterrupt of a goroutine whose home this one's world is
    cdef object __weakref__
    cdef int finish(self, int status, object value) except -1
    cdef bint wait(self, tuple entry) except -1
    cdef int set_name(self, name) except -1
