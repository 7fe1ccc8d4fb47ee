from gmploop.core.fdwatch cimport FdWatch
from gmploop.core.g cimport G
from gmploop.core.operation cimport Operation
from gmploop.core.poller cimport Poller

cdef enum SockKind:
    OP_RECV = 0             # these are system calls, made here, of sockets whose class is the socket module's own
    OP_RECV_INTO = 1
    OP_RECVFROM = 2
    OP_RECVFROM_INTO = 3    # fn: the buffer
    OP_SENDALL = 4
    OP_SENDTO = 5           # fn: the address
    OP_CALL_READ = 6        # fn(*args), fn a callable or a method's name, until it does not block; waits for readable
    OP_CALL_WRITE = 7       # the same, writable
    OP_SENDALL_BY_CALL = 8  # fn is "send"

cdef class SockOp(Operation):
    cdef G g
    cdef Poller poller
    cdef object sock
    cdef FdWatch w
    cdef object fn, args            # of system calls: args is the size, or the data; else see above
    cdef Py_buffer view             # of that buffer, from the first step to the end
    cdef bint has_view
    cdef int kind, fd
    cdef Py_ssize_t n, done
    cdef int begin(self) except -1
    cdef int begin_call(self) except -1
    cdef int begin_datagram(self) except -1
    cdef int by_call(self) except -1
    cdef int take_view(self, int flags) except -1
    cdef bint writes(self)
    cdef object recv_bytes(self)
    cdef object recv_from(self)
    cdef object recv_from_into(self)
    cdef object send_to(self)
    cdef object call(self)
    cdef object callee(self)
    cdef object wait(self)
    cdef object would_block(self)
    cdef object received(self, Py_ssize_t n, object value)
    cdef object leave(self, object value)
    cdef object failed(self)
    cdef int register(self) except -1
    cdef int finish(self) except -1

cdef SockOp sock_op(G g, Poller poller, int kind, object sock, object fn, object args)
