from gmploop.core.transport cimport Transport, sockaddr_storage, socklen_t

cdef class DatagramTransport(Transport):
    cdef object queue               # deque of (bytes, address) not sent yet
    cdef object address             # the only one that sendto() may name
    cdef bint connected
    cdef bint burst                 # the last event brought more than one datagram
    cdef unsigned int events
    cdef object last_address        # of the datagram that came last: most replies go there
    cdef sockaddr_storage last_sockaddr
    cdef socklen_t last_len
    cdef int flushed(self) except -1
    cdef int rewatch(self) except -1
    cdef int read_one(self) except -1
    cdef int deliver(self, data, address) except -1
    cdef int failed(self, exc, str message) except -1
    cdef int send_one(self, data, address) except -1
