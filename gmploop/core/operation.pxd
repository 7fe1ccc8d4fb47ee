from cpython.object cimport PyObject

cdef enum:
    NEW = 0
    FLYING = 1          # begun; the future that was yielded says when to go on
    LANDED = 2          # done, the result not handed out yet
    ENDED = 3

cdef object thrown(object typ, object val, object tb)
cdef PyObject *stop_with(PyObject *value) noexcept

cdef class Operation:
    cdef object fut                 # what the awaiter waits for
    cdef int state
    cdef object step(self)
    cdef int abandon(self) except -1
