from cpython.object cimport PyObject
from gmploop.core.g cimport G

cdef extern from "<stdint.h>":
    ctypedef unsigned int uint32_t
    ctypedef long long int64_t

cdef extern from "sends.h":
    ctypedef struct gl_out:
        pass

# What a watch is told of. The first four are epoll's own bits (other backends translate), the rest are ours.
cdef enum:
    EV_IN = 0x001
    EV_PRI = 0x002
    EV_OUT = 0x004
    EV_ERR = 0x008
    EV_HUP = 0x010
    EV_RDHUP = 0x2000
    EV_START = 0x1000000        # a transport's first turn: connection_made, then start reading
    EV_AGAIN = 0x2000000        # read on: the last read did not empty the socket
    EV_LEVEL = 0x4000000        # in a mask: level-triggered (add_reader) instead of edge-triggered
    EV_KERNEL = 0xffffff

cdef enum:
    RBUF = 262144               # stock's max_size: what one read takes at most

cdef enum:
    RX_OFF = 0                  # there is none
    RX_ON = 1                   # the kernel has it, or will with the next poll
    RX_STOPPING = 2             # its cancel was asked for; its own end is still to come

cdef class Watch:
    cdef G g                    # the world that is told; NULL-like None once the watch has ended
    cdef Poller poller
    cdef int fd
    cdef uint32_t gen           # set anew by each attach: events of an earlier owner of the number do not match
    cdef uint32_t mask          # what the poller watches for now; 0: not registered
    cdef uint32_t revents       # what has come and was not dispatched yet
    cdef uint32_t posted        # of a world that moves: events that were posted to it and not taken. Atomic
    cdef bint counted           # of a world that moves: it is one of sched().watchers. Under the poller's lock
    cdef bint queued            # stands in the ready ring
    cdef bint rx_wanted         # the owner wants to receive by completions: Poller.receive()
    cdef unsigned char rx       # RX_*: the receive operation that the kernel has
    cdef int batch_at           # its place in a SendBatch, from 1 on; 0: it has none; from -1 down: in what is being sent
    cdef bytes out              # what the SendBatch shall send
    cdef gl_out shared_out      # and whose that is, in a world that moves, where batch_at is the size of what was put
    cdef int batch_sent(self, int n) except -1
    cdef int received(self, const char *buf, Py_ssize_t n) except -1
    cdef int receive_ended(self) except -1
    cdef int on_events(self, uint32_t events) except -1
    cdef int push(self, uint32_t events) except -1
    cdef bint is_transport(self)
    cdef bint is_ended(self)
    cdef int asked(self)

cdef class Poller:
    cdef G g
    cdef list table             # fd -> Watch or None
    cdef uint32_t next_gen
    cdef int fork_gen
    cdef double broken_at       # 0: it is not broken; < 0: it is; else until when the loop outlives that
    cdef double timers_at       # when a wait of its loop ended with several timers due, on the monotonic clock
    cdef readonly bint closed
    cdef readonly bint receives # whether receive() is there
    cdef readonly bint accepts  # whether poller_uring.Acceptor is to be used for listening sockets
    cdef readonly bint batches  # write_batching: send_later() is to be used
    cdef int *due               # set: the batch wants flush() before the next callback. Never NULL
    cdef bint shared            # worlds that move use it
    cdef Py_ssize_t chunk       # bytes of the buffers that it receives into
    cdef readonly str name
    cdef char *rbuf             # RBUF bytes that a read lands in before it becomes a bytes object; made on first use
    cdef char *read_buffer(self) except NULL
    cdef bint owns(self, Watch w)
    cdef int attach(self, Watch w) except -1
    cdef int detach(self, Watch w) except -1
    cdef Watch lookup(self, int fd)
    cdef int watch(self, Watch w, uint32_t mask) except -1
    cdef int rearm(self, Watch w) except -1
    cdef int receive(self, Watch w, bint on) except -1
    cdef int batch_writes(self) except -1
    cdef bint send_later(self, Watch w, bytes data) except -1
    cdef int take_back(self, Watch w) except? -1
    cdef int flush(self) except -1
    cdef int poll(self, int64_t delay_ns) except -1
    cdef int broken(self, int error) except -1
    cdef int poll_broken(self, int64_t delay_ns) except -1
    cdef int wake(self) except -1
    cdef int close(self) except -1
    cdef int after_fork(self) except -1
    cdef int use_in_child(self, uint32_t mask) except -1
    cdef bint forked(self)
    cdef int reattach_all(self) except -1

cdef int fork_generation() noexcept
