# cython: language_level=3, freethreading_compatible=True, binding=True
"""SendBatch: the small sends of a turn in one system call.

With write_batching a transport leaves small data in `out`, a bytes object, and its watch here. When the loop polls, each
becomes one SEND (so those of one socket cannot overtake each other) with MSG_DONTWAIT, which never waits for anything:
it has been done, in part or whole or not at all, when the enter() that took it returns. Until then `sending` holds the
watches, and they hold the bytes.

Sends that took all of their data post no completion (CQE_SKIP_SUCCESS). So that those which did not always do,
they have MSG_WAITALL: a short send then counts as failed, and tells how much it took.

The io_uring poller gives the sends to its own ring, in the enter in which it waits. For epoll flush() does it in a ring
of its own that is never waited in: a plain one, which any thread may go on with. One send alone goes by send(2), which
is cheaper, and so do all where there is no ring.
"""
cimport cython
from libc.stdlib cimport free, realloc
from libc.errno cimport ENOSYS, errno
import logging
import os
from gmploop.core.poller cimport fork_generation

cdef extern from *:
    """
    #include <limits.h>
    #include <sys/socket.h>
    #ifndef MSG_NOSIGNAL
    #define MSG_NOSIGNAL 0
    #endif
    """
    Py_ssize_t send(int, const void *, size_t, int)
    int INT_MAX, FLAGS "(MSG_NOSIGNAL | MSG_DONTWAIT | MSG_WAITALL)"

cdef extern from "Python.h":
    char *PyBytes_AS_STRING(object)
    Py_ssize_t PyBytes_GET_SIZE(object)

cdef bint told_refusal = False

cdef enum:
    ENTRIES = 128               # sends that one call carries; guessed


@cython.final
cdef class SendBatch:
    def __cinit__(self):
        self.waiting, self.sending = [], []
        self.r.fd = -1

    def __dealloc__(self):
        gl_uring_free(&self.r)
        free(self.results)

    cdef int add(self, Watch w) except -1:
        if not w.in_batch:
            self.waiting.append(w)
            w.in_batch = True
        return 0

    cdef size_t begin(self) except? 0:
        """Make what waits the sends of now; how many these are."""
        cdef Watch w
        cdef void *more
        cdef size_t n = len(self.waiting), i
        if n > self.room:
            more = realloc(self.results, 2 * n * sizeof(int32_t))
            if more == NULL:
                raise MemoryError()
            self.results, self.room = <int32_t *>more, 2 * n
        waiting, self.waiting, self.sending = self.waiting, [], []
        for w in waiting:
            w.in_batch = False
            if w.out is not None:               # else it was sent or dropped meanwhile
                self.results[len(self.sending)] = INT_MAX
                self.sending.append(w)
        return len(self.sending)

    cdef int fill(self, gl_sqe *e, size_t i) except -1:
        cdef Watch w = <Watch>self.sending[i]
        e.opcode, e.fd, e.flags, e.op_flags = GL_OP_SEND, w.fd, GL_SQE_SKIP_SUCCESS, FLAGS
        e.addr, e.len = <uint64_t><size_t>PyBytes_AS_STRING(w.out), <uint32_t>PyBytes_GET_SIZE(w.out)
        e.user_data = SEND_BIT | i
        return 0

    cdef int note(self, uint32_t low, int res) except -1:
        """A completion: of a send that did not take all."""
        cdef uint32_t i = low & ~<uint32_t>SEND_BIT
        if i < <size_t>len(self.sending):
            self.results[i] = res
        return 0

    cdef int take_back(self, gl_uring *r) except -1:
        """The kernel did not take all entries: what is left of the sends, which are the newest, is not sent."""
        cdef uint64_t data
        cdef size_t left = min(<size_t>gl_uring_queued(r), <size_t>len(self.sending))
        while left:
            data = gl_uring_take_back(r)
            self.note(<uint32_t>data, 0)
            left -= 1
        return 0

    cdef int settle(self) except -1:
        """All sends have been done: tell the owners."""
        cdef size_t i
        cdef Watch w
        sending, self.sending = self.sending, []
        for i in range(len(sending)):
            w = <Watch>sending[i]
            w.batch_sent(self.results[i])
        return 0

    cdef int flush(self) except -1:
        """Send what waits, now."""
        cdef size_t n = self.begin(), i = 0
        cdef gl_sqe *e
        cdef gl_cqe c
        cdef int error = 0
        cdef Py_ssize_t sent
        cdef Watch w
        if n > 1 and (self.r.fd < 0 or self.fork_gen != fork_generation()):
            self.open()
        while i < n and n > 1 and self.r.fd >= 0 and not error:
            while i < n:
                e = gl_uring_sqe(&self.r)
                if e == NULL:
                    break
                self.fill(e, i)
                i += 1
            with nogil:
                error = gl_uring_submit(&self.r)
            while gl_uring_next(&self.r, &c):
                self.note(<uint32_t>c.user_data, c.res)
        if error:
            self.take_back(&self.r)
        while i < n:
            w = <Watch>self.sending[i]
            sent = send(w.fd, PyBytes_AS_STRING(w.out), PyBytes_GET_SIZE(w.out), FLAGS)
            self.results[i] = <int32_t>sent if sent >= 0 else -errno
            i += 1
        return self.settle()

    cdef int open(self) except -1:
        gl_uring_free(&self.r)
        self.fork_gen = fork_generation()
        global told_refusal
        cdef int e
        if self.refused:
            return 0
        e = gl_uring_open(&self.r, ENTRIES, 4 * ENTRIES)
        if e >= 0 and not self.r.has_op[<int>GL_OP_SEND]:
            gl_uring_free(&self.r)
            e = -ENOSYS
        if e < 0:
            self.refused = True
            if told_refusal:
                return 0
            told_refusal = True
            logging.getLogger("gmploop").info(
                "write_batching: the writes of a turn leave one by one when it ends, since io_uring is not to be had: %s",
                os.strerror(-e))
        return 0

    cdef int close(self) except -1:
        gl_uring_free(&self.r)
        self.waiting.clear()
        return 0
