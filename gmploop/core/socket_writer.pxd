cimport cython
from gmploop.core.g cimport gl_ring
from gmploop.core.transport cimport Transport

cdef class SocketWriter(Transport):
    cdef object empty_waiter        # sendfile waits for an empty buffer
    cdef gl_ring wbuf               # exact bytes objects, each a reference
    cdef Py_ssize_t woff            # bytes of the first chunk that are sent
    cdef bint eof_sent
    cdef bint batching              # small data waits in `out` for the end of the turn
    cdef bint moves                 # ... in the batch of an M: reclaim() it before `out` is used
    @cython.final
    cdef int may_write(self, str what) except -1
    cdef int write_now(self, object data, Py_ssize_t size) except -1
    @cython.final
    cdef Py_ssize_t send_now(self, object data) except -2
    @cython.final
    cdef bint put_out(self, object data, Py_ssize_t size) except -1
    cdef int reclaim(self) except -1
    cdef int take_out(self) except? -1
    @cython.final
    cdef int keep(self, object data, Py_ssize_t offset) except -1
    cdef int arm_write(self) except -1
    cdef int flushed(self) except -1
    cdef int sent(self, Py_ssize_t n) except -1
    cdef int write_failed(self) except -1
    cdef int shut_down(self) except -1
    cdef int shutdown_write(self) except -1
    cdef int clear_wbuf(self) except -1
