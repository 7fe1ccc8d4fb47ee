from gmploop.core.poller cimport Watch, gl_out, uint32_t, int64_t

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
    gl_sqe *gl_uring_queued_at(gl_uring *, uint32_t)
    int gl_uring_next(gl_uring *, gl_cqe *)

cdef extern from "sends.h" nogil:
    ctypedef struct gl_send:
        const char *data
        uint32_t len
        int sent
    int GL_PENDING, GL_ALL
    int gl_out_take(gl_out *)
    int gl_out_left(gl_out *, int)

cdef extern from "flusher.h" nogil:
    ctypedef struct gl_writes:
        uint32_t n
        int watched, due
        gl_send *a

cdef enum:
    SEND_BIT = 0x80000000       # in the low half of user_data: the rest of that half is the send's index

cdef class SendBatch:
    cdef gl_writes b             # what waits. Shared with the flusher: flusher.h
    cdef list waiting           # whose it is, by index; None where it was taken away
    cdef gl_send *now           # what is being sent, ours alone
    cdef uint32_t room          # of now
    cdef list sending           # whose that is
    cdef gl_uring r             # for flush(); its fd is -1 where none can be had, and until it is first wanted
    cdef bint refused
    cdef bint telling           # settle() is under way
    cdef int fork_gen
    cdef bint put(self, Watch w, bytes data, size_t ready) except -1
    cdef int take(self, Watch w) except? -1
    cdef uint32_t begin(self) except? 0
    cdef bint is_pending(self, uint32_t i)
    cdef int fill(self, gl_sqe *e, uint32_t i) except -1
    cdef int note(self, uint32_t low, int res) except -1
    cdef bint is_queued(self, gl_uring *r)
    cdef int take_back(self, gl_uring *r) except -1
    cdef int give_up(self, uint32_t i) except -1
    cdef int settle(self) except -1
    cdef int flush(self) except -1
    cdef int open(self) except -1
    cdef int after_fork(self) except -1
    cdef int close(self) except -1

cdef class SharedBatch:
    cdef gl_writes b             # what waits. Shared with the flusher
    cdef list waiting           # whose it is, by index
    cdef gl_send *now           # what is being sent
    cdef uint32_t room          # of now
    cdef list sending           # whose that is
    cdef int fork_gen
    cdef bint put(self, Watch w, bytes data, size_t ready) except -1
    cdef int flush(self) except -1
    cdef int settle(self, uint32_t i) except -1
