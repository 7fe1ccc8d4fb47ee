from gmploop.core.g cimport G

cdef extern from "fate.h" nogil:
    ctypedef struct gl_fate:
        pass
    void gl_fate_lock(gl_fate *)
    void gl_fate_unlock(gl_fate *)
    int gl_fate_status(gl_fate *)
    bint gl_fate_seen(gl_fate *)
    void *gl_fate_world(gl_fate *)
    void gl_fate_begin(gl_fate *, void *)
    void gl_fate_end(gl_fate *, int)
    void gl_fate_see(gl_fate *)

cdef enum:
    PENDING = 0
    DONE = 1
    FAILED = 2
    CANCELLED = 3

cdef class Goroutine:
    cdef gl_fate fate               # its world, then how it ended; and a lock
    cdef object held                # while PENDING who waits: None, a world whose root coroutine does, or a list of what
                                    # tell() takes. Then the result; of one that has failed (exception, traceback at the end)
    cdef object maker               # the loop that ran go(), for its exception handler; or a Named
    cdef object __weakref__

cdef class Named:
    cdef object maker
    cdef str name                   # of the root task, if go() was given one or somebody has asked

# Functions and no methods: an object that is made by the million has no room for a pointer to them.
cdef str name_of(Goroutine handle)
cdef Named named(object maker, str name)
cdef int finish(Goroutine handle, int status, object value) except -1
cdef bint wait(Goroutine handle, object entry) except -1
cdef int join_root(Goroutine handle, G w) noexcept
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
