from gmploop.core.operation cimport Operation

cdef bint feeds(object protocol)
cdef bint feed(object protocol, const char *data, Py_ssize_t n) except -1
cdef int hasten(object protocol) except -1

cdef class ReaderOp(Operation):
    cdef object reader
    cdef dict d                     # the reader's attributes
    cdef object what                # the size to be read, or the name of the method that only wants to wait
    cdef bint waits_only
    cdef object begin(self)
    cdef object wait(self)
    cdef object take(self)
