from gmploop.core.g cimport G
from gmploop.core.handle cimport flag, gl_spinlock

cdef enum:
    PENDING = 0
    DONE = 1
    FAILED = 2
    CANCELLED = 3

cdef class Goroutine:
    cdef G world                    # None once it is over
    cdef object held                # while PENDING who waits: None, a world whose root coroutine does, or a list of what
                                    # tell() takes. Then the result; of one that has failed (exception, traceback at the end)
    cdef object name_               # of the root task; None until somebody asks, if go() was given none
    cdef object maker               # the loop that ran go(), for its exception handler
    cdef object __weakref__
    cdef gl_spinlock lock           # guards what is above, and status while that is PENDING
    cdef flag started               # its root coroutine has begun
    cdef flag retrieved             # somebody has seen the exception
    cdef int status

# Functions and no methods: an object that is made by the million has no room for a pointer to them.
cdef str name_of(Goroutine handle)
cdef int finish(Goroutine handle, int status, object value) except -1
cdef bint wait(Goroutine handle, object entry) except -1
cdef bint join_root(Goroutine handle, G w) except -1
cdef object join(Goroutine handle)

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
