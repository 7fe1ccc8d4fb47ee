# cython: language_level=3, freethreading_compatible=True, binding=True
"""The poller's contract: what a backend does, what the runtime may rely on.

A Watch is one fd's registration for one owner: a transport, or the reader and writer callbacks of a plain fd.
    detached --attach--> attached (in the table, not watched) --watch(mask)--> watched --detach--> detached
- attach() takes the fd's place in the table and a new generation. Whoever stood there before has lost the number (its
  fd was closed behind its back): its later watch() and detach() do not touch the newcomer.
- watch() tells the kernel what to look for. An fd is registered once; a mask that stays the same costs no system call,
  one that changes may tell again what is ready.
- Events carry fd and generation; one that matches no attached watch is dropped. So a stale event, of an fd that was
  closed and whose number was given out again, never reaches the wrong owner.
- Where a backend cannot be had, its constructor raises OSError with the reason.
- rearm() asks anew: what is ready now is told once more, though its edge was told before.
- Watches are edge-triggered unless the mask has EV_LEVEL: an edge is told once, and its owner reads or writes until the
  kernel says that it would block, or remembers that it has not.
- detach() comes before the fd is closed, always: a duplicate in another process would keep the registration alive.

Operations. A backend that `receives` also takes receives: receive(w, True) asks for them, receive(w, False) no longer.
    RX_OFF --> RX_ON --(cancel)--> RX_STOPPING --> RX_OFF; see poller_uring.pyx
- Within poll(), w.received(buf, n) hands over what came, in order; n = 0 is the end, n < 0 -errno, and both are the last.
  The buffer is the poller's: its bytes are copied before received() returns.
- To stop is to cancel: it asks the kernel to hurry. What was received before its end is still handed over; the
  operation's own last completion ends it, and w.receive_ended() says so if it is not wanted again by then.
- detach() returns when the kernel has let go of the socket: then it can be closed, and the peer sees the end.
- Completions carry fd and generation, as events do: what comes for a former owner of the number reaches nobody.
With write_batching (`batches`) send_later(w, data) may keep data in w.out, and has it sent by the next poll() or flush()
or within about a millisecond, whichever is first, in order and once; False: the owner is to send it. The bytes are the
batch's until w.batch_sent(n) or take_back(w). A loop that stops flushes, and one for whom `due` is set, before its next
callback.

poll(delay_ns) pushes each watch that has events to its world's ready ring (once, events merged): <0 waits, 0 looks, >0
waits at most so long. It gives up the GIL, mostly to look too (gil.h). It returns early, without events, for a signal or a wake().
wake() from any thread: the current poll, or else the next, returns at once.
After fork() the child's kernel objects are still shared with the parent (epoll, io_uring), or their numbers are nobody's
(kqueue).
A poller notices by a generation counter and, when its world is next used, makes new ones and registers what it watched;
what the parent uses is not touched.
A poller that breaks (its descriptor was closed behind our back) raises OSError from poll(), each time, and lets go of the
descriptor, whose number may be somebody else's by now. gmploop.run() has the loop outlive it for BROKEN_S, without events.
close() ends it, and what the kernel still had to do for it; a second call does nothing.
"""
from cpython.ref cimport Py_INCREF
from cpython.object cimport PyObject
from libc.errno cimport EBADF
from libc.stdlib cimport malloc, free
import os
from gmploop.core.handle cimport gl_load_relaxed, gl_monotonic

cdef extern from "<unistd.h>" nogil:
    int usleep(unsigned int)

cdef enum:
    BROKEN_S = 10       # run()'s shutdown_timeout, from which it comes

cdef extern from *:
    """
    #include <pthread.h>
    static int gl_fork_generation;
    static void gl_count_fork(void) { gl_fork_generation++; }
    static void gl_watch_forks(void) { pthread_atfork(NULL, NULL, gl_count_fork); }
    """
    int gl_fork_generation
    void gl_watch_forks()

gl_watch_forks()


cdef int fork_generation() noexcept:
    """How many forks lie between the first process and this one."""
    return gl_fork_generation


cdef class Watch:
    cdef int on_events(self, uint32_t events) except -1:
        """Called in the world's turn with all that has come since the last call."""
        return 0

    cdef int received(self, const char *buf, Py_ssize_t n) except -1:
        """Called within poll(): n bytes have come, or (0) the end, or (< 0) -errno. Runs no user's code."""
        return 0

    cdef int receive_ended(self) except -1:
        """Called within poll(): the kernel has let go of the receive, which is not wanted any more."""
        return 0

    cdef int batch_sent(self, int n) except -1:
        """Called by a SendBatch: n bytes of `out` were sent (INT_MAX: all; GL_PENDING: none), or (< 0) -errno. `out` is the
        watch's again."""
        return 0

    cdef bint is_transport(self):
        return False

    cdef bint is_ended(self):
        return True

    cdef int asked(self):
        """Of a ring for operations that its loop asks for: how many there are; -1: it is no such thing."""
        return -1

    cdef int push(self, uint32_t events) except -1:
        """Put the watch in its world's ready ring (once), with these events."""
        self.revents |= events
        if not self.queued and self.g is not None:
            Py_INCREF(self)
            self.g.push_entry(<size_t><PyObject *>self | 1)
            self.queued = True
        return 0


cdef int NOTHING_DUE = 0


cdef class Poller:
    def __cinit__(self, G g):
        self.g = g
        self.due = &NOTHING_DUE
        self.table = []
        self.fork_gen = gl_fork_generation

    def __dealloc__(self):
        free(self.rbuf)

    cdef char *read_buffer(self) except NULL:
        if self.rbuf == NULL:
            self.rbuf = <char *>malloc(RBUF)
            if self.rbuf == NULL:
                raise MemoryError()
        return self.rbuf

    cdef Watch lookup(self, int fd):
        if 0 <= fd < len(self.table):
            return <Watch>self.table[fd]
        return None

    cdef bint owns(self, Watch w):
        """Whether the watch still has its fd's place; one that lost it is detached, and its mask is the past."""
        if w.fd < len(self.table) and self.table[w.fd] is w:
            return True
        w.poller = None
        w.mask = 0
        return False

    cdef int attach(self, Watch w) except -1:
        while len(self.table) <= w.fd:
            self.table.append(None)
        old = self.table[w.fd]
        if old is not None and (<Watch>old).batch_at:
            self.take_back(<Watch>old)      # the number is another file's
        self.next_gen += 1
        w.gen = self.next_gen
        w.mask = 0
        w.poller = self
        self.table[w.fd] = w
        return 0

    cdef int detach(self, Watch w) except -1:
        if w.poller is not self:
            return 0
        if w.batch_at:
            self.take_back(w)               # the fd may be closed now
        if self.owns(w):
            if w.mask and not self.forked():
                self.watch(w, 0)
            self.table[w.fd] = None
        w.poller = None
        w.mask = 0
        return 0

    cdef int use_in_child(self, uint32_t mask) except -1:
        """Called before a change when forked(): an idle world's poller starts anew; returns whether to go on.

        A world that was running goes on in the parent only: in the child registering raises, and letting go of an fd
        touches nothing, since the kernel objects are the parent's.
        """
        if self.g is None or gl_load_relaxed(&self.g.w.owner) == 0:
            self.after_fork()
            return 1
        if mask:
            raise RuntimeError(f"{self.g!r} was running when the process forked: it goes on in the parent only")
        return 0

    cdef bint forked(self):
        return self.fork_gen != gl_fork_generation

    cdef int reattach_all(self) except -1:
        """Register anew what was watched, in fresh kernel objects; fds that the child has closed fall out."""
        cdef Watch w
        cdef uint32_t mask
        self.fork_gen = gl_fork_generation
        for w in list(self.table):
            if w is None or not w.mask:
                continue
            mask, w.mask = w.mask, 0
            try:
                self.watch(w, mask)
            except OSError:
                self.table[w.fd] = None
                w.poller = None
        return 0

    # What every backend defines. `Poller` itself watches nothing: it is never made.

    cdef int watch(self, Watch w, uint32_t mask) except -1:
        raise TypeError(f"{type(self).__name__} is no poller")

    cdef int rearm(self, Watch w) except -1:
        raise TypeError(f"{type(self).__name__} is no poller")

    cdef int receive(self, Watch w, bint on) except -1:
        return 0

    cdef int batch_writes(self) except -1:
        return 0

    cdef bint send_later(self, Watch w, bytes data) except -1:
        return False

    cdef int take_back(self, Watch w) except? -1:
        return 0

    cdef int flush(self) except -1:
        return 0

    cdef int poll(self, int64_t delay_ns) except -1:
        raise TypeError(f"{type(self).__name__} is no poller")

    cdef int broken(self, int error) except -1:
        """The kernel refuses to be asked, and will (its descriptor was closed behind our back, say)."""
        self.broken_at = -1
        raise OSError(error, f"the event loop's poller ({self.name}) is broken: {os.strerror(error)}")

    def outlive(self):
        """If it is broken, have the loop go on for BROKEN_S without events, to end its tasks."""
        if self.broken_at:
            self.broken_at = gl_monotonic() + BROKEN_S

    cdef int poll_broken(self, int64_t delay_ns) except -1:
        """In the place of poll() once it is broken: the same error again, but while the loop may outlive it."""
        self.flush()
        if gl_monotonic() > self.broken_at:
            self.broken(EBADF)
        if delay_ns:
            with nogil:
                usleep(1000)
        return 0

    cdef int wake(self) except -1:
        return 0

    def events_of(self, int fd):
        """What is watched on an fd: a pair of truth values, readable and writable."""
        cdef Watch w = self.lookup(fd)
        cdef uint32_t mask = w.mask if w is not None else 0
        return bool(mask & EV_IN), bool(mask & EV_OUT)

    cdef int close(self) except -1:
        self.closed = True
        for w in self.table:
            if w is not None:
                (<Watch>w).poller = None
        self.table.clear()
        free(self.rbuf)
        self.rbuf = NULL
        return 0

    cdef int after_fork(self) except -1:
        return 0
