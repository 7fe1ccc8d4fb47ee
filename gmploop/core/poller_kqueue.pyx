# cython: language_level=3, freethreading_compatible=True, binding=True
"""The kqueue backend. Contract: poller.pyx.

A watch has up to two filters: EVFILT_READ for EV_IN, which tells EV_RDHUP too, and EVFILT_WRITE for EV_OUT. An event
carries the fd as its ident and the generation as its udata. EVFILT_USER wakes.

How a filter is triggered is settled when it is made: to change between edge (EV_CLEAR) and level it is deleted first.
A filter goes with its fd, whoever closes it. So every change of the mask sets all that is wanted, the filters that were
there included: the fd may have been closed and opened anew. Setting a filter tells once more what is ready (rearm).

EV_EOF of EVFILT_READ is EV_RDHUP: what the peer sent before can still be read. That of EVFILT_WRITE adds nothing to
EV_OUT: a socket whose own end was shut down has it too. Nor does the errno in fflags: reading or writing tells it.
"""
cimport cython
from cpython.exc cimport PyErr_SetFromErrno, PyErr_CheckSignals
from libc.errno cimport errno, EINTR, ENOSYS
from gmploop.core.handle cimport gl_spinlock, gl_lock, gl_unlock
from gmploop.core.poller cimport (
    Poller, Watch, uint32_t, int64_t, EV_IN, EV_OUT, EV_RDHUP, EV_LEVEL)

cdef extern from "gil.h":
    bint gl_look_keeps_gil()

cdef extern from "kqueue.h" nogil:
    ctypedef struct gl_kq:
        int fd
    struct kevent:
        size_t ident
        int filter
        unsigned int flags
        void *udata
    const char *gl_kq_missing
    int EVFILT_READ, EVFILT_WRITE, EVFILT_USER, EV_ADD, EV_DELETE, EV_CLEAR
    unsigned int EV_EOF
    int gl_kq_open(gl_kq *)
    int gl_kq_change(gl_kq *, int fd, int filter, int flags, uint32_t gen)
    int gl_kq_wake(gl_kq *)
    int gl_kq_wait(gl_kq *, kevent *, int, long long)
    void gl_kq_close(gl_kq *, bint inherited)

cdef enum:
    MAX_EVENTS = 256        # as many as the epoll backend takes at once


@cython.final
cdef class KqueuePoller(Poller):
    cdef gl_kq kq               # written by the owner under wake_lock, used by any thread under it
    cdef gl_spinlock wake_lock
    cdef kevent events[MAX_EVENTS]

    def __cinit__(self, g):
        self.name = "kqueue"
        self.kq.fd = -1
        self.open()

    def __dealloc__(self):
        self.close_fds()

    cdef int open(self) except -1:
        if gl_kq_missing != NULL:
            raise OSError(ENOSYS, gl_kq_missing.decode())
        if gl_kq_open(&self.kq) < 0:
            PyErr_SetFromErrno(OSError)
        return 0

    cdef int close_fds(self) except -1:
        gl_lock(&self.wake_lock)        # a thread that wakes us uses our kqueue or none, never a reused number
        gl_kq_close(&self.kq, self.forked())
        gl_unlock(&self.wake_lock)
        return 0

    cdef int attach(self, Watch w) except -1:
        cdef Watch old = self.lookup(w.fd)
        if old is not None and old is not w and not self.forked():
            self.drop(old, old.mask)    # left by an owner that lost the number, if the fd was not closed
        return Poller.attach(self, w)

    cdef int watch(self, Watch w, uint32_t mask) except -1:
        if mask == w.mask:
            return 0
        if self.forked():
            self.after_fork()
        if not self.owns(w):
            return 0
        self.drop(w, w.mask if (w.mask ^ mask) & EV_LEVEL else w.mask & ~mask)
        w.mask = mask
        return self.rearm(w)

    cdef int drop(self, Watch w, uint32_t mask) except -1:
        """Delete filters. One that is not there went with its fd."""
        if mask & EV_IN:
            gl_kq_change(&self.kq, w.fd, EVFILT_READ, EV_DELETE, 0)
        if mask & EV_OUT:
            gl_kq_change(&self.kq, w.fd, EVFILT_WRITE, EV_DELETE, 0)
        return 0

    cdef int rearm(self, Watch w) except -1:
        cdef int flags = EV_ADD if w.mask & EV_LEVEL else EV_ADD | EV_CLEAR
        if not self.owns(w):
            return 0
        if (w.mask & EV_IN and gl_kq_change(&self.kq, w.fd, EVFILT_READ, flags, w.gen) < 0
                or w.mask & EV_OUT and gl_kq_change(&self.kq, w.fd, EVFILT_WRITE, flags, w.gen) < 0):
            try:
                PyErr_SetFromErrno(OSError)
            finally:
                self.drop(w, w.mask)
                w.mask = 0
        return 0

    cdef int poll(self, int64_t delay_ns) except -1:
        cdef int i, n
        cdef uint32_t bits
        cdef kevent *e
        cdef Watch w
        if not delay_ns and gl_look_keeps_gil():
            n = gl_kq_wait(&self.kq, self.events, MAX_EVENTS, 0)
        else:
            with nogil:
                n = gl_kq_wait(&self.kq, self.events, MAX_EVENTS, delay_ns)
        if n < 0:
            if errno != EINTR:
                return self.broken(errno)
            PyErr_CheckSignals()
            return 0
        for i in range(n):
            e = &self.events[i]
            if e.filter == EVFILT_USER:
                continue
            w = self.lookup(<int>e.ident)
            if w is None or w.gen != <uint32_t><size_t>e.udata:
                continue
            bits = EV_OUT
            if e.filter == EVFILT_READ:
                bits = EV_IN | EV_RDHUP if e.flags & EV_EOF else EV_IN
            w.push(bits)
        return n

    cdef int wake(self) except -1:
        gl_lock(&self.wake_lock)
        if self.kq.fd >= 0 and not self.forked():
            gl_kq_wake(&self.kq)
        gl_unlock(&self.wake_lock)
        return 0

    cdef int close(self) except -1:
        if not self.closed:
            Poller.close(self)
            self.close_fds()
        return 0

    cdef int after_fork(self) except -1:
        gl_unlock(&self.wake_lock)      # its holder, if any, is a thread of the parent
        self.close_fds()
        self.open()
        return self.reattach_all()
