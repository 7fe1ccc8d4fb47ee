from gmploop.core.poller cimport Watch, uint32_t

cdef extern from "<stdint.h>":
    ctypedef unsigned long long uint64_t
    ctypedef int int32_t

cdef extern from "uring.h" nogil:
    enum:
        GL_OP_SEND, GL_SQE_SKIP_SUCCESS
    ctypedef struct gl_sqe:
        unsigned char opcode, flags
        unsigned short ioprio
        int fd
        uint64_t off, addr, user_data
        uint32_t len, op_flags
    ctypedef struct gl_cqe:
        uint64_t user_data
        int32_t res
        uint32_t flags
    ctypedef struct gl_uring:
        int fd
        uint32_t features
        gl_sqe *sqes
        unsigned char has_op[64]
    int gl_uring_open(gl_uring *, unsigned, unsigned)
    void gl_uring_free(gl_uring *)
    uint32_t gl_uring_queued(gl_uring *)
    gl_sqe *gl_uring_sqe(gl_uring *)
    int gl_uring_submit(gl_uring *)
    uint64_t gl_uring_take_back(gl_uring *)
    int gl_uring_next(gl_uring *, gl_cqe *)

cdef enum:
    SEND_BIT = 0x80000000       # in the low half of user_data: the rest of that half is the send's index

cdef class SendBatch:
    cdef list waiting           # watches with something in `out`; each once
    cdef list sending           # those whose sends the kernel is being given
    cdef int32_t *results       # of `sending`, by index
    cdef size_t room            # of results
    cdef gl_uring r             # for flush(); its fd is -1 where none can be had, and until it is first wanted
    cdef bint refused
    cdef int fork_gen
    cdef int add(self, Watch w) except -1
    cdef size_t begin(self) except? 0
    cdef int fill(self, gl_sqe *e, size_t i) except -1
    cdef int note(self, uint32_t low, int res) except -1
    cdef int take_back(self, gl_uring *r) except -1
    cdef int settle(self) except -1
    cdef int flush(self) except -1
    cdef int open(self) except -1
    cdef int close(self) except -1
