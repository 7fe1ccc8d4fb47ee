# cython: language_level=3, freethreading_compatible=True, binding=True
"""The io_uring backend. Contract: poller.pyx.

One ring for each loop, and one enter() for each turn: it gives what the turn has queued to the kernel, waits, and brings
all that has come. A turn that has nothing to give and does not wait looks at the completion queue and at the flag that
says whether the kernel has more (SQ_TASKRUN), without entering the kernel for it; with the GIL it leaves other threads a
gap meanwhile (gil.h).

What is received by completions, and what is not
- Stream transports receive by one multishot RECV each, into buffers that all share (gl_bufs). The bytes are copied out
  while the completions are taken, and the buffers go back before the next enter: so none is ever waited for, and a
  receive that ended because more came at once than there are buffers (ENOBUFS) is simply asked for again.
- Servers' listeners accept by one multishot ACCEPT each: an Acceptor (acceptor.pyx). As of receives, nothing is accepted between two
  enters. A completion that nobody wants any more brings a descriptor all the same: it is closed.
- All else asks for readiness: readers, writers, sock_*(), datagrams, pipes, and transports that wait to write or receive
  in bulk. That is epoll's part, whose events are one operation in the ring (EPOLL_WAIT, Linux 6.15; before that a POLL
  of the epoll, and an epoll_wait when it tells). POLL_ADD for each fd instead was tried and is not there, because
  * it holds the file: who closes a descriptor without telling the loop sends no FIN, and a listener's port stays taken;
  * a poll that is woken reports the bits of who woke it, not what is true: each segment looks like urgent data;
  * level-triggered and unpollable files (EPERM) would have to be done here again.

The ring is opened SINGLE_ISSUER | DEFER_TASKRUN: the fastest mode, and what the design rests on. The kernel works for
the ring inside this thread's enters and nowhere else, so between two enters no byte is received behind our back: not
between a completion and a direct recv(), not while a transport is detached, and not by a parent that waits for its child.
The price: all threads but the one that opened it get EEXIST. A loop that goes on in another thread (or that is touched
by another while it is idle) loses its ring: what has come is taken from the queue, the ring is closed, and the next poll
opens one in its own thread and asks for everything again. That costs as much as there are transports: a world that
moves often wants epoll.

A receive (and an accept, in the same states) belongs to its watch's generation (the token is as epoll's:
fd | generation << 32). States, in w.rx:

    RX_OFF --arm--> RX_ON --its last completion (no F_MORE)--> RX_OFF, and on again if still wanted
                      '--cancel--> RX_STOPPING --its last completion--> RX_OFF, and on again if wanted by then

So at most one operation of a watch is in the kernel, and its completions come in the order of the bytes. A cancel asks
the kernel to hurry, nothing else: only the operation's own last completion ends it. It holds the socket, so detach()
cancels and waits for that end, one enter that does not sleep; what comes meanwhile is still handed to the owner. A watch
that lost its fd to another is cancelled by its token, and what still comes for it matches nobody and is dropped.

Full queues: a full submission queue is given to the kernel and filled on; completions beyond the completion queue stay
in the kernel, which says so by a flag, and are fetched; a multishot that ended for that reason is asked for again.

Idle: waits are flagged NO_IOWAIT (Linux 6.15). Before that, a wait that lasted IDLE_NS goes on outside the ring, so that
an idle loop does not look like a busy disk. There is no SQPOLL thread.

fork: the child closes and unmaps its copies without touching the queues, which are the parent's, and opens its own. Its
listeners are the parent's too: of two accepts in rings the kernel tells one only, though its process be busy or never
look again, so the child asks them for readiness instead.
"""
cimport cython
from cpython.exc cimport PyErr_CheckSignals
from libc.errno cimport EAGAIN, EBUSY, ECONNABORTED, EEXIST, EINTR, EINVAL, ENOBUFS, ENOMEM, ENOSYS
import os
from gmploop.core import batch
from gmploop.core.acceptor cimport Acceptor
from gmploop.core.batch cimport (
    SEND_BIT, GL_OP_SEND, GL_SQE_SKIP_SUCCESS, gl_uring_free, gl_uring_queued, gl_uring_sqe, gl_uring_next)
from gmploop.core.handle cimport gl_world_mine, gl_load_relaxed
from gmploop.core.poller cimport Poller, EV_IN, RX_OFF, RX_ON, RX_STOPPING
from gmploop.core.poller_epoll cimport MAX_EVENTS

cdef extern from *:
    """
    #include <errno.h>
    #include <poll.h>
    #include <sys/socket.h>
    #include <unistd.h>
    #include "epoll.h"
    #include "gil.h"
    #ifndef SOCK_CLOEXEC                /* where there is no ring either */
    #define SOCK_CLOEXEC 0
    #define SOCK_NONBLOCK 0
    #endif
    #ifndef ECANCELED
    #define ECANCELED 125
    #endif
    static int gl_is_epoll(int fd) {
        struct epoll_event e;
        return epoll_wait(fd, &e, 1, 0) >= 0 || errno == EINTR;
    }
    static void gl_wait_for(int fd, long long delay_ns) {
        struct pollfd p = { fd, POLLIN, 0 };
        long long ms = delay_ns < 0 ? -1 : (delay_ns + 999999) / 1000000;
        poll(&p, 1, ms > 2147483647 ? 2147483647 : (int)ms);
    }
    """
    bint gl_is_epoll(int)
    int ECANCELED, ETIME, ACCEPT_FLAGS "(SOCK_CLOEXEC | SOCK_NONBLOCK)"
    bint gl_look_keeps_gil()
    void gl_gap()
    void gl_wait_for(int, long long) nogil
    int eventfd(unsigned int, int)
    int c_close "close"(int)
    int EFD_CLOEXEC, EFD_NONBLOCK

cdef enum:
    NOBODY = 0xffffffff         # low half of user_data: what cancels answer
    EPOLL = 0xfffffffe          # the wait for epoll events
    ACCEPT_BIT = 0x40000000     # an accept's token; no process has so many descriptors
    IDLE_NS = 10000000          # see above; guessed
    LOOKS = 1024                # looks at the queue, until a system call tells whether the ring is still there; guessed

# Of the rings that are opened from now on. config.py says where the sizes come from.
cdef unsigned ENTRIES, CQ_ENTRIES, BUFFERS, BUFFER_SIZE
cdef bint USE_EPOLL_OP = True
cdef bint USE_NO_IOWAIT = True


def configure(*, unsigned entries, unsigned cq_entries, unsigned buffers, unsigned buffer_size,
              bint epoll_op=True, bint no_iowait=True):
    """Set the sizes of the rings opened from now on, and whether they use what only recent kernels have."""
    global ENTRIES, CQ_ENTRIES, BUFFERS, BUFFER_SIZE, USE_EPOLL_OP, USE_NO_IOWAIT
    ENTRIES, CQ_ENTRIES, BUFFERS, BUFFER_SIZE = entries, cq_entries, buffers, buffer_size
    USE_EPOLL_OP, USE_NO_IOWAIT = epoll_op, no_iowait


cdef inline uint64_t token_of(Watch w) noexcept:
    return <uint64_t><uint32_t>w.fd | <uint64_t>w.gen << 32 | (ACCEPT_BIT if isinstance(w, Acceptor) else 0)


@cython.final
cdef class UringPoller(EpollPoller):
    def __cinit__(self, g):
        self.r.fd = -1
        self.name = "io_uring"
        self.receives = self.accepts = True
        self.cancels = []
        try:
            self.open_ring()
        except BaseException:
            self.close_fds()
            raise

    def __dealloc__(self):
        if self.receives:                   # else there was not even an epoll
            gl_uring_free(&self.r)
            gl_bufs_free(&self.bufs)

    # -- the ring's life

    cdef int open_ring(self) except -1:
        """A ring of this thread, in which all receives that are wanted are armed."""
        cdef int e
        cdef Watch w
        if self.ring_error:
            self.broken(self.ring_error)
        e = gl_uring_open_own(&self.r, ENTRIES, CQ_ENTRIES)
        if e >= 0:
            for op in (GL_OP_POLL_ADD, GL_OP_ASYNC_CANCEL, GL_OP_SEND, GL_OP_RECV, GL_OP_ACCEPT):
                if not self.r.has_op[<int>op]:
                    e = -ENOSYS
        if e >= 0:
            e = gl_bufs_open(&self.bufs, &self.r, BUFFERS, BUFFER_SIZE)
        if e < 0:
            gl_uring_free(&self.r)
            raise OSError(-e, batch.refusal(-e, "Linux 6.1"))
        self.chunk = BUFFER_SIZE
        if not USE_NO_IOWAIT:
            self.r.features &= ~<uint32_t>GL_FEAT_NO_IOWAIT
        self.epoll_op = USE_EPOLL_OP and self.r.has_op[<int>GL_OP_EPOLL_WAIT]
        self.epoll_armed = False
        for w in self.table:
            if w is None or w.rx != RX_OFF:
                continue
            if w.rx_wanted:
                self.arm(w)
            else:
                w.receive_ended()           # of the ring that was lost, perhaps
        return 0

    cdef int lose_ring(self) except -1:
        """Let the ring go; what has come is taken from it first, unless it is the parent's."""
        cdef Watch w
        self.losing = True
        try:
            if not self.forked():
                self.reap()
        finally:
            self.losing = False
            if self.batches and self.batch.sending and self.r.sqes != NULL:
                if self.forked():
                    self.batch.sending = []     # they are the parent's
                else:
                    self.batch.take_back(&self.r)
            gl_uring_free(&self.r)
            gl_bufs_free(&self.bufs)
            self.epoll_armed = False
            for w in self.table:
                if w is not None:
                    w.rx = RX_OFF
        return 0

    cdef int close(self) except -1:
        cdef Watch w
        if not self.closed:
            for w in self.table:
                if w is not None:
                    self.end_receive(w)
            gl_uring_free(&self.r)
            gl_bufs_free(&self.bufs)
            EpollPoller.close(self)
        return 0

    cdef int after_fork(self) except -1:
        cdef Watch w
        self.lose_ring()                    # the next poll opens one
        if self.forked():
            self.cancels.clear()
            for w in self.table:
                if isinstance(w, Acceptor):
                    (<Acceptor>w).leave_to_parent()
        return EpollPoller.after_fork(self)

    # -- submitting

    cdef gl_sqe *entry(self) except? NULL:
        """A free submission entry; NULL when the ring was lost, and the next poll does all anew."""
        cdef gl_sqe *e
        if self.r.fd < 0 or self.losing:
            return NULL
        e = gl_uring_sqe(&self.r)
        if e == NULL:
            self.enter(0)
            if self.r.fd < 0:
                return NULL
            e = gl_uring_sqe(&self.r)
            if e == NULL:
                raise OSError(EBUSY, "io_uring takes no more operations")
        return e

    cdef int arm(self, Watch w) except -1:
        cdef gl_sqe *e = self.entry()
        if e != NULL:
            e.fd, e.user_data = w.fd, token_of(w)
            if isinstance(w, Acceptor):
                e.opcode, e.ioprio, e.op_flags = GL_OP_ACCEPT, GL_ACCEPT_MULTISHOT, ACCEPT_FLAGS
            else:
                e.opcode, e.ioprio, e.flags = GL_OP_RECV, GL_RECV_MULTISHOT, GL_SQE_BUFFER_SELECT
            w.rx = RX_ON
        return 0

    cdef int cancel(self, uint64_t token) except -1:
        cdef gl_sqe *e = self.entry()
        if e != NULL:
            e.opcode, e.fd, e.addr, e.user_data, e.flags = GL_OP_ASYNC_CANCEL, -1, token, NOBODY, GL_SQE_SKIP_SUCCESS
        return 0

    cdef int arm_epoll(self) except -1:
        cdef gl_sqe *e = self.entry()
        if e != NULL:
            e.fd, e.user_data = self.epfd, EPOLL
            if self.epoll_op:
                e.opcode, e.addr, e.len = GL_OP_EPOLL_WAIT, <uint64_t><size_t>self.events, MAX_EVENTS
            else:
                e.opcode, e.op_flags = GL_OP_POLL_ADD, EV_IN
            self.epoll_armed = True
        return 0

    cdef int receive(self, Watch w, bint on) except -1:
        if not self.owns(w):
            return 0
        w.rx_wanted = on
        if self.forked():
            self.use_in_child(0)
        elif on and w.rx == RX_OFF:
            self.arm(w)
        elif not on and w.rx == RX_ON:
            w.rx = RX_STOPPING
            self.cancel(token_of(w))
        return 0

    cdef int attach(self, Watch w) except -1:
        cdef Watch old = self.lookup(w.fd)
        if old is not None and old is not w and not self.forked():
            self.forget(old)                # a newcomer that receives does not replace the registration
            if old.rx != RX_OFF:
                self.cancel(token_of(old))      # it lost the number, not the socket
                old.rx, old.rx_wanted = RX_OFF, False
        return Poller.attach(self, w)

    cdef int detach(self, Watch w) except -1:
        if w.poller is self:
            self.end_receive(w)
        return Poller.detach(self, w)

    cdef int end_receive(self, Watch w) except -1:
        """Return when the kernel has let go of the watch's socket. What comes until then is handed over."""
        cdef int64_t delay_ns = 0
        w.rx_wanted = False
        if w.rx == RX_OFF or self.forked() or self.r.fd < 0:
            w.rx = RX_OFF
            return 0
        if gl_load_relaxed(&self.g.w.owner) and not gl_world_mine(&self.g.w):
            w.rx = RX_OFF                   # dropped by a collector in another thread
            self.cancels.append(token_of(w))
            return self.wake()
        if w.rx == RX_ON:
            w.rx = RX_STOPPING
            self.cancel(token_of(w))
        while w.rx != RX_OFF and self.r.fd >= 0:
            try:
                self.enter(delay_ns)
            except OSError:                 # there is no ring any more; the next poll says so
                self.broken_at = 0
                break
            self.reap()
            delay_ns = 1000000
        w.rx = RX_OFF
        return 0

    def events_of(self, int fd):
        cdef Watch w = self.lookup(fd)
        readable, writable = EpollPoller.events_of(self, fd)
        return readable or w is not None and w.rx_wanted, writable

    # -- polling

    cdef int enter(self, int64_t delay_ns) except? -1:
        """Give the kernel what is queued, and wait for a completion. 0, or the errno that is no error here."""
        cdef uint32_t n = gl_uring_publish(&self.r)
        cdef int e
        if not delay_ns and gl_look_keeps_gil():
            e = gl_uring_wait(&self.r, n, 0)
        else:
            with nogil:
                e = gl_uring_wait(&self.r, n, delay_ns)
        if e >= 0:
            return 0
        if e == -EEXIST:
            self.lose_ring()
        elif e == -EAGAIN or e == -ENOMEM or e == -EBUSY:
            if delay_ns:                    # short of memory: not to be asked at once again
                with nogil:
                    gl_wait_for(self.r.fd, 1000000)
        elif e != -EINTR and e != -ETIME:
            self.r.fd = -1                  # it was closed behind our back: the number may be somebody else's by now
            self.ring_error = -e
            self.lose_ring()
            if not gl_is_epoll(self.epfd):          # likewise
                self.lose(-e)
            self.broken(-e)
        return -e

    cdef int poll(self, int64_t delay_ns) except -1:
        cdef int told
        if self.batches and self.batch.sending:     # the last poll() has raised in between
            self.sends_done()
        if self.r.fd < 0:
            self.open_ring()
        while self.cancels:
            self.cancel(self.cancels.pop())
        if not self.epoll_armed:
            self.arm_epoll()
        if self.batches and self.batch.b.n:
            self.queue_sends()
        if self.r.fd < 0:
            return self.sends_done()
        if gl_uring_ready(&self.r):
            delay_ns = 0
        self.looks += 1
        if delay_ns:
            self.wait(delay_ns)
        elif gl_uring_queued(&self.r) or gl_uring_more_inside(&self.r) or self.looks % LOOKS == 0:
            self.enter(0)
        else:
            gl_gap()
        told = self.reap()
        if self.batches and self.batch.sending:
            self.sends_done()
        if delay_ns and not told:
            PyErr_CheckSignals()
        return told

    cdef int queue_sends(self) except -1:
        cdef uint32_t n = self.batch.begin(), i
        cdef gl_sqe *e
        for i in range(n):
            if not self.batch.is_pending(i):
                continue
            try:
                e = self.entry()
            except OSError:
                e = NULL
            if e == NULL:
                return self.batch.give_up(i)
            self.batch.fill(e, i)
        return 0

    cdef int sends_done(self) except -1:
        """After an enter: all sends have been done, unless the kernel was short of memory. What failed has told so, if
        not in the queue, which may have been full, then beyond it."""
        if not self.batches:
            return 0
        if self.r.fd >= 0 and self.batch.is_queued(&self.r):
            self.enter(0)
            self.reap()
            if self.r.fd >= 0:
                self.batch.take_back(&self.r)
        while self.r.fd >= 0 and gl_uring_overflowed(&self.r) and self.enter(0) == 0:
            self.reap()
        return self.batch.settle()

    cdef int flush(self) except -1:
        if self.batches and self.batch.b.n and not self.forked():
            if self.r.fd < 0:
                return self.batch.flush()
            self.queue_sends()
            if self.r.fd >= 0:
                self.enter(0)
            self.reap()
            self.sends_done()
        return 0

    cdef int wait(self, int64_t delay_ns) except -1:
        if self.r.features & GL_FEAT_NO_IOWAIT or 0 <= delay_ns <= IDLE_NS:
            self.enter(delay_ns)
        elif self.enter(IDLE_NS) == ETIME:
            self.wait_outside(-1 if delay_ns < 0 else delay_ns - IDLE_NS)
            self.enter(0)
        return 0

    cdef int wait_outside(self, int64_t delay_ns) except -1:
        """The ring's own descriptor tells nothing before an enter; an eventfd does, which costs while it is registered."""
        cdef int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)
        if fd < 0:
            return 0                        # the next poll waits in the ring, IDLE_NS long
        if gl_uring_register(&self.r, GL_REGISTER_EVENTFD, &fd, 1) >= 0:
            if not gl_uring_ready(&self.r) and not gl_uring_more_inside(&self.r):
                with nogil:
                    gl_wait_for(fd, delay_ns)
            gl_uring_register(&self.r, GL_UNREGISTER_EVENTFD, NULL, 0)
        c_close(fd)
        return 0

    cdef int reap(self) except -1:
        """Take all completions; how many had something to tell."""
        cdef gl_cqe c
        cdef int told = 0
        while self.r.fd >= 0 and gl_uring_next(&self.r, &c):
            told += self.take(&c)
        return told

    cdef int take(self, gl_cqe *c) except -1:
        cdef uint32_t low = <uint32_t>c.user_data
        if low == EPOLL:
            return self.take_epoll(c.res)
        if low == NOBODY:
            return 0
        if low & SEND_BIT:
            return self.batch.note(low, c.res)
        if low & ACCEPT_BIT:
            return self.take_accepted(c)
        return self.take_received(c)

    cdef int take_epoll(self, int res) except -1:
        self.epoll_armed = False
        if res >= 0:
            return self.tell(res) if self.epoll_op else EpollPoller.poll(self, 0)
        if res == -EINVAL and self.epoll_op:
            self.epoll_op = False
        elif res != -ECANCELED and res != -EINTR and res != -EAGAIN:
            raise OSError(-res, os.strerror(-res))
        return 0

    cdef int take_accepted(self, gl_cqe *c) except -1:
        cdef Watch w = self.lookup(<int>(c.user_data & (ACCEPT_BIT - 1)))
        cdef Acceptor a = None
        cdef int res = c.res
        if isinstance(w, Acceptor) and w.gen == <uint32_t>(c.user_data >> 32):
            a = <Acceptor>w
            if not c.flags & GL_CQE_MORE:
                a.rx = RX_OFF
        if res >= 0:
            if a is None or not a.rx_wanted:
                c_close(res)
                return 0
            a.accepted.append(res)
            a.push(EV_IN)
        elif a is not None and res != -ECANCELED and res != -EINTR and res != -EAGAIN and res != -ECONNABORTED:
            a.rx_wanted, a.error = False, -res
            a.push(EV_IN)
        if a is not None and a.rx == RX_OFF and a.rx_wanted:
            self.arm(a)
        return 1

    cdef int take_received(self, gl_cqe *c) except -1:
        cdef Watch w = self.lookup(<int>(c.user_data & 0x7fffffff))
        cdef int res = c.res
        cdef char *buf = NULL
        cdef uint32_t id = c.flags >> GL_CQE_BUFFER_SHIFT
        if c.flags & GL_CQE_BUFFER:
            buf = gl_bufs_at(&self.bufs, id)
        try:
            if w is None or w.gen != <uint32_t>(c.user_data >> 32):
                return 0
            if not c.flags & GL_CQE_MORE:
                w.rx = RX_OFF
            if res > 0:
                w.received(buf, res)
            elif res != -ENOBUFS and res != -ECANCELED and res != -EINTR and res != -EAGAIN:
                w.rx_wanted = False
                w.received(NULL, res)
        finally:
            if buf != NULL:
                gl_bufs_return(&self.bufs, id)
        if w.rx == RX_OFF:
            if w.rx_wanted:
                self.arm(w)
            else:
                w.receive_ended()
        return 1
