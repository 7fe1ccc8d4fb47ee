# cython: language_level=3, freethreading_compatible=True, binding=True
"""The epoll backend. Contract: poller.pyx.

The token of a registration is fd | generation << 32. The eventfd that wakes has token 0 and is edge-triggered, so that
it is never read: each write is a new edge, and its counter cannot fill up in the life of a machine.
"""
from cpython.exc cimport PyErr_SetFromErrno, PyErr_CheckSignals
from libc.errno cimport errno, EINTR, EEXIST, ENOENT, ENOSYS
from libc.string cimport memset
from gmploop.core.g cimport gl_ring_len
from gmploop.core.handle cimport gl_lock, gl_unlock
from gmploop.core.poller cimport EV_LEVEL, EV_KERNEL

cdef extern from *:
    """
    #include "epoll.h"
    #include "gil.h"
    #include <stdio.h>
    #include <string.h>
    #include <time.h>
    #include <unistd.h>
    /* Whether the number is still that of an eventfd. */
    static int gl_is_eventfd(int fd) {
        char path[32], target[32];
        ssize_t n;
        snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
        n = readlink(path, target, sizeof target);
        return n == 20 && memcmp(target, "anon_inode:[eventfd]", 20) == 0;
    }
    /* epoll_pwait2 (Linux 5.11) takes nanoseconds; without it waits are rounded up to milliseconds. */
    static int gl_epoll_wait(int epfd, struct epoll_event *ev, int n, long long delay_ns) {
        if (delay_ns <= 0)
            return epoll_wait(epfd, ev, n, delay_ns < 0 ? -1 : 0);
    #ifdef SYS_epoll_pwait2
        static int have_pwait2 = 1;
        if (__atomic_load_n(&have_pwait2, __ATOMIC_RELAXED)) {
            struct timespec t = { delay_ns / 1000000000, delay_ns % 1000000000 };
            int r = (int)syscall(SYS_epoll_pwait2, epfd, ev, n, &t, NULL, 0);
            if (r >= 0 || (errno != ENOSYS && errno != EPERM)) return r;
            __atomic_store_n(&have_pwait2, 0, __ATOMIC_RELAXED);
        }
    #endif
        long long ms = (delay_ns + 999999) / 1000000;
        return epoll_wait(epfd, ev, n, ms > 2147483647 ? 2147483647 : (int)ms);
    }
    """
    bint GL_HAVE_EPOLL
    bint gl_look_keeps_gil()
    bint gl_is_eventfd(int)
    int gl_epoll_wait(int, epoll_event *, int, long long) nogil
    int epoll_create1(int)
    int epoll_ctl(int, int, int, epoll_event *)
    int eventfd(unsigned int, int)
    int c_close "close"(int)
    Py_ssize_t c_write "write"(int, const void *, size_t)
    int EPOLL_CLOEXEC, EPOLL_CTL_ADD, EPOLL_CTL_MOD, EPOLL_CTL_DEL, EFD_CLOEXEC, EFD_NONBLOCK
    uint32_t EPOLLET, EPOLLIN


cdef class EpollPoller(Poller):
    def __cinit__(self, g):
        self.name = "epoll"
        self.epfd = self.wakefd = -1
        self.open()

    def __dealloc__(self):
        self.close_fds()

    cdef int open(self) except -1:
        cdef epoll_event ev
        if not GL_HAVE_EPOLL:
            raise OSError(ENOSYS, "epoll is there on Linux only")
        self.epfd = epoll_create1(EPOLL_CLOEXEC)
        if self.epfd < 0:
            PyErr_SetFromErrno(OSError)
        self.wakefd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        memset(&ev, 0, sizeof(ev))
        ev.events = EPOLLIN | EPOLLET
        if self.wakefd < 0 or epoll_ctl(self.epfd, EPOLL_CTL_ADD, self.wakefd, &ev) < 0:
            try:
                PyErr_SetFromErrno(OSError)
            finally:
                self.close_fds()
        return 0

    cdef int close_fds(self) except -1:
        cdef int fd
        if self.epfd >= 0:
            c_close(self.epfd)
        self.epfd = -1
        gl_lock(&self.wake_lock)        # a thread that wakes us writes to our fd or to none, never to a reused number
        fd, self.wakefd = self.wakefd, -1
        if fd >= 0:
            c_close(fd)
        gl_unlock(&self.wake_lock)
        return 0

    cdef int watch(self, Watch w, uint32_t mask) except -1:
        if mask == w.mask:
            return 0
        if self.forked() and not self.use_in_child(mask):
            w.mask = mask
            return 0
        if not self.owns(w):
            return 0
        self.control(w, EPOLL_CTL_DEL if not mask else EPOLL_CTL_MOD if w.mask else EPOLL_CTL_ADD, mask)
        w.mask = mask
        return 0

    cdef int rearm(self, Watch w) except -1:
        if self.forked() and not self.use_in_child(w.mask):
            return 0
        return self.control(w, EPOLL_CTL_MOD, w.mask) if self.owns(w) else 0

    cdef int control(self, Watch w, int op, uint32_t mask) except -1:
        cdef epoll_event ev
        cdef int r
        memset(&ev, 0, sizeof(ev))
        ev.events = mask & EV_KERNEL if mask & EV_LEVEL else mask | EPOLLET
        ev.data.u64 = <unsigned long long><unsigned int>w.fd | <unsigned long long>w.gen << 32
        r = epoll_ctl(self.epfd, op, w.fd, &ev)
        if r < 0 and op == EPOLL_CTL_ADD and errno == EEXIST:
            r = epoll_ctl(self.epfd, EPOLL_CTL_MOD, w.fd, &ev)      # left by an owner that lost the number
        elif r < 0 and op == EPOLL_CTL_MOD and errno == ENOENT:
            r = epoll_ctl(self.epfd, EPOLL_CTL_ADD, w.fd, &ev)      # the fd was closed and opened anew
        if r < 0 and op != EPOLL_CTL_DEL:                           # there: gone with its fd, if not by us
            PyErr_SetFromErrno(OSError)
        return 0

    cdef int forget(self, Watch w) except -1:
        """Drop the registration of a watch whose place is being taken."""
        return self.control(w, EPOLL_CTL_DEL, 0) if w.mask else 0

    cdef int poll(self, int64_t delay_ns) except -1:
        cdef int n
        if self.batches and self.batch.b.n:
            self.flush()
            if gl_ring_len(&self.g.ready):      # what could not be sent has something to do
                delay_ns = 0
        if not delay_ns and gl_look_keeps_gil():
            n = gl_epoll_wait(self.epfd, self.events, MAX_EVENTS, 0)
        else:
            with nogil:
                n = gl_epoll_wait(self.epfd, self.events, MAX_EVENTS, delay_ns)
        if n < 0:
            if errno != EINTR:
                return self.lose(errno)
            PyErr_CheckSignals()
            return 0
        return self.tell(n)

    cdef int lose(self, int error) except -1:
        self.epfd = -1
        if not gl_is_eventfd(self.wakefd):
            gl_lock(&self.wake_lock)
            self.wakefd = -1
            gl_unlock(&self.wake_lock)
        self.close_fds()
        return self.broken(error)

    cdef int batch_writes(self) except -1:
        self.batch = SendBatch()
        self.due = &self.batch.b.due
        self.batches = True
        return 0

    cdef bint send_later(self, Watch w, bytes data) except -1:
        return self.batch.put(w, data, gl_ring_len(&self.g.ready))

    cdef int take_back(self, Watch w) except? -1:
        return self.batch.take(w)

    cdef int flush(self) except -1:
        if self.batches and self.batch.b.n and not self.forked():
            self.batch.flush()
        return 0

    cdef int tell(self, int n) except -1:
        """Push the watches of the first n events."""
        cdef int i, fd
        cdef unsigned long long token
        cdef Watch w
        for i in range(n):
            token = self.events[i].data.u64
            if token == 0:
                continue
            fd = <int>(token & 0x7fffffff)
            w = self.lookup(fd)
            if w is not None and w.gen == <uint32_t>(token >> 32):
                w.push(self.events[i].events)
            else:
                self.orphans += 1
        if self.orphans > MAX_ORPHANS:
            # Somewhere a duplicate keeps a registration alive that nobody here can name any more: start afresh.
            self.orphans = 0
            self.after_fork()
        return n

    cdef int wake(self) except -1:
        cdef unsigned long long one = 1
        gl_lock(&self.wake_lock)
        if self.wakefd >= 0:
            c_write(self.wakefd, &one, 8)
        gl_unlock(&self.wake_lock)
        return 0

    cdef int close(self) except -1:
        if not self.closed:
            if self.batches:
                self.batch.close()
            Poller.close(self)
            self.close_fds()
        return 0

    cdef int after_fork(self) except -1:
        if self.forked():
            gl_unlock(&self.wake_lock)  # a thread that is not in this process may have held it
            if self.batches:
                self.batch.after_fork()
        self.close_fds()
        self.broken_at = 0
        self.open()
        return self.reattach_all()
