from gmploop.core.batch cimport gl_cqe, gl_sqe, gl_uring, uint64_t
from gmploop.core.poller cimport Watch, uint32_t, int64_t
from gmploop.core.poller_epoll cimport EpollPoller

cdef extern from "uring.h" nogil:
    enum:
        GL_OP_POLL_ADD, GL_OP_ACCEPT, GL_OP_ASYNC_CANCEL, GL_OP_RECV, GL_OP_EPOLL_WAIT
        GL_SQE_BUFFER_SELECT, GL_ACCEPT_MULTISHOT, GL_RECV_MULTISHOT, GL_CANCEL_ALL, GL_CANCEL_ANY
        GL_CQE_BUFFER, GL_CQE_MORE, GL_CQE_BUFFER_SHIFT, GL_FEAT_NO_IOWAIT
        GL_REGISTER_EVENTFD, GL_UNREGISTER_EVENTFD
    ctypedef struct gl_bufs:
        uint32_t count, size
    int gl_uring_open_own(gl_uring *, unsigned, unsigned)
    int gl_uring_register(gl_uring *, unsigned, void *, unsigned)
    int gl_uring_wait(gl_uring *, unsigned, long long)
    uint32_t gl_uring_publish(gl_uring *)
    bint gl_uring_ready(gl_uring *)
    bint gl_uring_more_inside(gl_uring *)
    bint gl_uring_overflowed(gl_uring *)
    int gl_bufs_open(gl_bufs *, gl_uring *, unsigned, unsigned)
    void gl_bufs_free(gl_bufs *)
    void gl_bufs_return(gl_bufs *, unsigned)
    char *gl_bufs_at(gl_bufs *, unsigned)

cdef class UringPoller(EpollPoller):
    cdef gl_uring r             # fd -1: the next poll opens it
    cdef gl_bufs bufs           # what receives land in
    cdef bint epoll_armed       # the kernel has the wait for epoll events
    cdef bint epoll_op          # by EPOLL_WAIT; else POLL_ADD tells when to ask
    cdef bint losing
    cdef int ring_error             # errno with which the ring failed for good
    cdef unsigned int looks     # polls, for LOOKS
    cdef list cancels           # tokens whose receives other threads want cancelled; they append, the owner pops
    cdef int open_ring(self) except -1
    cdef int lose_ring(self) except -1
    cdef gl_sqe *entry(self) except? NULL
    cdef int arm(self, Watch w) except -1
    cdef int arm_epoll(self) except -1
    cdef int cancel(self, uint64_t token) except -1
    cdef int end_receive(self, Watch w) except -1
    cdef int enter(self, int64_t delay_ns) except? -1
    cdef int wait(self, int64_t delay_ns) except -1
    cdef int wait_outside(self, int64_t delay_ns) except -1
    cdef int queue_sends(self) except -1
    cdef int sends_done(self) except -1
    cdef int reap(self) except -1
    cdef int take(self, gl_cqe *c) except -1
    cdef int take_received(self, gl_cqe *c) except -1
    cdef int take_accepted(self, gl_cqe *c) except -1
    cdef int take_epoll(self, int res) except -1
