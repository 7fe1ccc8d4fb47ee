from gmploop.core.g cimport G, gl_ring
from gmploop.core.poller cimport Poller
from gmploop.core.transport cimport Transport, sockaddr_storage, socklen_t

cdef class SocketTransport(Transport):
    cdef int accepted(self, G loop, Poller poller, int conn, int family, int proto, sockaddr_storage *a,
                      socklen_t size, protocol, server, context) except -1
    cdef int shut_down(self) except -1
    cdef bytes unread               # comes before what the socket has: start_tls() gives it back, a poller received it
    cdef object empty_waiter        # sendfile waits for an empty buffer
    cdef gl_ring wbuf               # exact bytes objects, each a reference
    cdef Py_ssize_t woff            # bytes of the first chunk that are sent
    cdef bint eof_sent, eof_got, buffered
    cdef bint core                  # the protocol is a BufferedCore
    cdef bint feeds_reader          # the protocol is asyncio's, which feeds a StreamReader
    cdef bint drained               # the last read emptied the socket and no event has come since
    cdef bint batching              # small data waits in `out` for the end of the turn
    cdef bint put_out(self, object data, Py_ssize_t size) except -1
    cdef int take_out(self) except? -1
    cdef bint by_completion         # the kernel receives ahead, into `unread`: nothing is read from the socket here
    cdef bint to_readiness          # so it was, until the receive that is under way ends
    cdef unsigned char run          # small reads in a row, while it reads in bulk
    cdef int failure                # errno that the kernel's receive ended with; < 0: it met the end of the data
    cdef int receive_failed(self) except -1
    cdef int receive_again(self) except -1
    cdef bint may_read(self)
    cdef bint more                  # a short read does not mean that there is no more
    cdef object take_unread(self, Py_ssize_t most)
    cdef int read_data(self) except -1
    cdef int read_buffered(self) except -1
    cdef int on_eof(self) except -1
    cdef int after_read(self, Py_ssize_t n, Py_ssize_t asked) except -1
    cdef int read_failed(self) except -1
    cdef int read_core(self) except -1
    cdef int may_write(self, str what) except -1
    cdef int write_now(self, object data, Py_ssize_t size) except -1
    cdef Py_ssize_t send_now(self, object data) except -2
    cdef int keep(self, object data, Py_ssize_t offset) except -1
    cdef int arm_write(self) except -1
    cdef int flushed(self) except -1
    cdef int sent(self, Py_ssize_t n) except -1
    cdef int write_failed(self) except -1
    cdef int shutdown_write(self) except -1
    cdef int clear_wbuf(self) except -1
