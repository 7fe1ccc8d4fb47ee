from cpython.object cimport PyObject
from gmploop.core.descriptor cimport Descriptor, gl_file_info, uint64_t
from gmploop.core.operation cimport Operation
from gmploop.core.poller cimport Watch, uint32_t

cdef extern from "uring.h" nogil:
    enum: GL_OP_FSYNC, GL_OP_ASYNC_CANCEL, GL_OP_OPENAT, GL_OP_CLOSE, GL_OP_READ, GL_OP_WRITE, GL_OP_FTRUNCATE
    enum: GL_SQE_ASYNC, GL_ENTER_GETEVENTS, GL_REGISTER_EVENTFD
    ctypedef struct gl_sqe:
        unsigned char opcode, flags
        int fd
        uint64_t off, addr, user_data
        uint32_t len, op_flags
    ctypedef struct gl_cqe:
        uint64_t user_data
        int res
    ctypedef struct gl_uring:
        int fd
        unsigned char has_op[64]
    int gl_uring_open(gl_uring *, unsigned, unsigned)
    void gl_uring_free(gl_uring *)
    int gl_uring_register(gl_uring *, unsigned, void *, unsigned)
    int gl_uring_enter(gl_uring *, unsigned, unsigned, unsigned)
    uint32_t gl_uring_queued(gl_uring *)
    gl_sqe *gl_uring_sqe(gl_uring *)
    int gl_uring_submit(gl_uring *)
    void gl_uring_make_async(gl_uring *)
    uint64_t gl_uring_take_back(gl_uring *)
    int gl_uring_next(gl_uring *, gl_cqe *)
    int gl_uring_more_inside(gl_uring *)

cdef class FileOp(Operation):
    cdef FileRing ring
    cdef Descriptor d
    cdef int kind                   # GL_OP_*
    cdef int fd, flags
    cdef int res
    cdef bint abandoned             # nobody waits for the result any more
    cdef bint waits                 # stands in ring.waiting: the kernel has nothing of it
    cdef bint again                 # was submitted a second time after EAGAIN
    cdef bint has_view
    cdef long long offset           # < 0: the file's own position
    cdef Py_ssize_t n, done
    cdef uint64_t key               # slot | generation << 32
    cdef char *buf
    cdef PyObject *fresh            # READ without a buffer of the caller's: the bytes object being filled, ours alone
    cdef Py_buffer view
    cdef object data                # what the view is of, or the path
    cdef object name
    cdef object settled
    cdef int begin(self) except -1
    cdef bint read_now(self)
    cdef int open_now(self) except -1
    cdef object take(self)
    cdef object value(self)
    cdef int fill(self, gl_sqe *e) except -1
    cdef int drop(self) except -1

cdef class FileRing(Watch):
    cdef gl_uring r
    cdef unsigned entries, cq_entries
    cdef int fork_gen
    cdef uint32_t next_op_gen
    cdef int credit                 # operations that may end without a turn of the loop before one must have passed
    cdef readonly Py_ssize_t flying # operations between start() and settle()
    cdef list slots                 # slot -> FileOp or None
    cdef list free_slots
    cdef object waiting             # deque of flying operations that found the submission queue full
    cdef gl_file_info last_local    # see descriptor.open_cached()
    cdef bint pumping, pump_wanted, pump_queued
    cdef readonly bint closed
    cdef int open(self) except -1
    cdef int let_go(self) except -1
    cdef int check(self) except -1
    cdef int renew(self) except -1
    cdef int start(self, FileOp op) except -1
    cdef int enqueue(self, FileOp op) except -1
    cdef int pump(self) except -1
    cdef int submit(self) except -1
    cdef int reap(self) except -1
    cdef int refill(self) except -1
    cdef int refused(self, int error) except -1
    cdef int land(self, FileOp op, int res) except -1
    cdef int settle(self, FileOp op, int res) except -1
    cdef int cancel(self, FileOp op) except -1
