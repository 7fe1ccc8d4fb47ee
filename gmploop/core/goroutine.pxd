from gmploop.core.g cimport G
from gmploop.core.handle cimport flag, gl_spinlock

cdef enum:
    PENDING = 0
    DONE = 1
    FAILED = 2
    CANCELLED = 3

cdef class Goroutine:
    cdef G world                    # None once it is over
    cdef object waiters             # None, a world whose root coroutine waits, or a list of what tell() takes
    cdef object value               # result; if it has failed a tuple: exception, traceback at the end
    cdef object name_               # of the root task; None until somebody asks, if go() was given none
    cdef object maker               # the loop that ran go(), for its exception handler
    cdef object __weakref__
    cdef gl_spinlock lock           # guards what is above, and status while that is PENDING
    cdef flag started               # its root coroutine has begun
    cdef flag retrieved             # somebody has seen the exception
    cdef int status
    cdef str name(self)
    cdef object given_name(self)
    cdef int finish(self, int status, object value) except -1
    cdef bint wait(self, object entry) except -1
    cdef bint forget(self, object entry) except -1
    cdef bint join_root(self, G w) except -1
    cdef object join(self)
    cdef object outcome(self)
    cdef object failure(self)
    cdef int tell(self, object entry) except -1

cdef class Request:
    cdef int asked, told            # cancels; those that have reached the root
    cdef G asker                    # the world that waits
    cdef Request cause              # for which it was cancelled itself, or None
    cdef bint closes_ring(self, G world)
    cdef bint ask(self, Goroutine on, msg) except -1
    cdef bint late(self, Goroutine on)

cdef Request set_cancelling(Request now)

cdef class RootJoin:
    cdef Goroutine on
    cdef Request request
