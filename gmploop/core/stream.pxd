from gmploop.core.g cimport G
from gmploop.core.poller cimport Poller
from gmploop.core.socket_writer cimport SocketWriter
from gmploop.core.transport cimport sockaddr_storage, socklen_t

cdef class SocketTransport(SocketWriter):
    cdef bytes unread               # comes before what the socket has: start_tls() gives it back, a poller received it
    cdef bint eof_got, buffered
    cdef bint core                  # the protocol is a BufferedCore
    cdef bint feeds_reader          # the protocol is asyncio's, which feeds a StreamReader
    cdef bint bulk                  # the last read was a large one, and goes to data_received()
    cdef bint drained               # the last read emptied the socket and no event has come since
    cdef bint by_completion         # the kernel receives ahead, into `unread`: nothing is read from the socket here
    cdef bint to_readiness          # so it was, until the receive that is under way ends
    cdef bint more                  # a short read does not mean that there is no more
    cdef unsigned char run          # small reads in a row, while it reads in bulk
    cdef int failure                # errno that the kernel's receive ended with; < 0: it met the end of the data
    cdef int accepted(self, G loop, Poller poller, int conn, int family, int proto, sockaddr_storage *a,
                      socklen_t size, protocol, server, context) except -1
    cdef int receive_failed(self) except -1
    cdef int receive_again(self) except -1
    cdef bint may_read(self)
    cdef object take_unread(self, Py_ssize_t most)
    cdef Py_ssize_t receive_into(self, void *buf, Py_ssize_t size) except -2
    cdef int read_data(self) except -1
    cdef int read_bulk(self) except -1
    cdef int deliver(self, object data, const char *buf, Py_ssize_t n) except -1
    cdef int read_buffered(self) except -1
    cdef int read_core(self) except -1
    cdef int after_read(self, Py_ssize_t n, Py_ssize_t asked) except -1
    cdef int nothing_came(self, Py_ssize_t n) except -1
    cdef int call_failed(self, object exc, str message) except -1
    cdef int on_eof(self) except -1
