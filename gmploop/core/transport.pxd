from gmploop.core.g cimport G
from gmploop.core.poller cimport Watch, Poller, uint32_t

cdef extern from "<sys/socket.h>":
    ctypedef unsigned int socklen_t
    struct sockaddr:
        pass
    struct sockaddr_storage:
        int ss_family
    int AF_INET, AF_INET6, AF_UNIX

cdef enum:
    PEER_MAX = 28                   # bytes: sizeof(struct sockaddr_in6)

cdef object address_of(sockaddr_storage *a, socklen_t size)

cdef class Transport(Watch):
    cdef object sock                # None until somebody asks for it, where the core accepted the connection
    cdef object protocol
    cdef object server
    cdef dict extra                 # None until it holds something
    cdef bytes name                 # at the end: the socket's own address, raw
    cdef char peer[PEER_MAX]        # the peer's address, raw ...
    cdef unsigned char peer_len     # ... and its length in bytes; 0: see `extra`
    cdef object context             # of reads: a copy of the creator's
    cdef object wcontext            # of what buffered data leads to: a copy of that in which buffering began
    cdef object made                # connection_made, until it is called
    cdef object waiter              # told once connection_made has run
    cdef object __weakref__
    cdef Py_ssize_t wsize           # bytes unsent
    cdef Py_ssize_t high, low
    cdef int conn_lost              # connection_lost is scheduled, or has run; further counts are writes after it
    cdef bint protocol_paused, closing, paused, started
    cdef bint given_context         # create_server() or create_connection() was given the context to use
    cdef bint born                  # the constructor has run
    cdef bint gone                  # connection_lost has run and the socket is closed
    cdef short family, type, proto  # of the socket object to be made, as the listening socket's
    cdef int setup(self, G loop, Poller poller, int fd, sock, protocol, waiter, extra, server, context) except -1
    cdef int note_peer(self, sockaddr_storage *a, socklen_t size) except -1
    cdef object socket_object(self)
    cdef object sockname(self)
    cdef object peername(self)
    cdef dict info(self)
    cdef uint32_t wanted(self)
    cdef int start_watching(self) except -1
    cdef int send_out(self) except -1
    cdef int clear_buffer(self) except -1
    cdef int use_protocol(self, protocol) except -1
    cdef int debug_log(self, str what) except -1
    cdef int start(self) except -1
    cdef int begin(self) except -1
    cdef int displaced(self) except -1
    cdef int close_socket(self) except -1
    cdef int ended(self) except -1
    cdef int lose_soon(self, object exc) except -1
    cdef int buffering_begins(self) except -1
    cdef int flush(self) except -1
    cdef int flush_in_context(self) except -1
    cdef int maybe_pause(self) except -1
    cdef int maybe_resume(self) except -1
    cdef int call_protocol(self, str name) except -1
    cdef int call_lost(self, object exc) except -1
    cdef int force_close(self, object exc) except -1
    cdef int fatal(self, object exc, str message) except -1
    cdef bint foreign(self) except -1
    cdef int here(self, str what) except -1
    cdef bint lost(self) except -1
