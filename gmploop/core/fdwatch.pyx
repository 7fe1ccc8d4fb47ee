# cython: language_level=3, freethreading_compatible=True, binding=True
"""Plain descriptors: add_reader/add_writer, and the sock_*() calls.

FdWatch is one fd's registration for both.
- Reader and writer callbacks are level-triggered, as users of add_reader expect.
- The sock_*() calls leave the fd registered, edge-triggered, between calls, so that the usual call costs no epoll_ctl.
  The registration is bound to the identity of the socket object: another socket object with the same number (the first
  was closed and the number given out again) gets a registration of its own. The identity is a raw pointer that a weak
  reference resets when the socket object dies, so that it can never match a new object at the same address.

SockOp is what the sock_*() methods return: a coroutine in all but type. It tries the call when it is first stepped and
ends there if it can; else it waits for readiness on a future and tries again when it is resumed, never earlier: a
cancelled call has consumed nothing. Leaving by cancellation takes it off the watch at once.
"""
cimport cython
from cpython.buffer cimport PyObject_GetBuffer, PyBuffer_Release, PyBUF_SIMPLE, PyBUF_WRITABLE
from cpython.bytes cimport PyBytes_FromStringAndSize, PyBytes_AS_STRING
from cpython.exc cimport PyErr_SetFromErrno
from cpython.object cimport PyObject
from libc.errno cimport errno, EAGAIN, EBADF, EINTR
import collections.abc
import weakref
from gmploop.core.g cimport call_in
from gmploop.core.handle cimport gl_world_mine, gl_load_relaxed, GL_FREE_THREADED
from gmploop.core.operation cimport NEW, FLYING, LANDED, ENDED
from gmploop.core.poller cimport EV_IN, EV_PRI, EV_OUT, EV_ERR, EV_HUP, EV_RDHUP, EV_LEVEL, RBUF

cdef extern from "pythread.h":
    unsigned long PyThread_get_thread_ident()

cdef extern from "Python.h":
    object PyContext_CopyCurrent()
    int PyObject_CallNoArgs_discard "PyObject_CallNoArgs"(object) except -1

cdef extern from *:
    """
    #include <sys/socket.h>
    #ifndef MSG_NOSIGNAL
    #define MSG_NOSIGNAL 0
    #endif
    """
    Py_ssize_t recv(int, void *, size_t, int)
    Py_ssize_t send(int, const void *, size_t, int)
    int FLAGS "(MSG_NOSIGNAL | MSG_DONTWAIT)"
    int SOCK_STREAM, AF_UNIX

# Injected by gmploop.loop.
cdef type SSLSocket = None
cdef type socket_type = None


def configure(ssl_socket_type, plain_socket_type):
    """Set the classes that sock_*() refuses, and the one whose calls may go straight to the kernel."""
    global SSLSocket, socket_type
    SSLSocket, socket_type = ssl_socket_type, plain_socket_type


@cython.final
cdef class IOHandle:
    """What add_reader/add_writer set. cancel() keeps it from being called."""
    def __init__(self, callback, args, context=None):
        self.callback, self.args = callback, args
        self.context = PyContext_CopyCurrent() if context is None else context

    def cancel(self):
        self.cancelled_ = True
        self.callback = self.args = None

    def cancelled(self):
        return self.cancelled_

    @property
    def _cancelled(self):
        return self.cancelled_

    @property
    def _callback(self):
        return self.callback

    @property
    def _args(self):
        return self.args

    def __repr__(self):
        return f"<IOHandle {'cancelled' if self.cancelled_ else self.callback!r}>"


@cython.final
cdef class FdWatch(Watch):
    def __init__(self, G g not None, Poller poller not None, int fd):
        self.g, self.fd = g, fd
        self.readers, self.writers = [], []
        poller.attach(self)

    cdef bint is_ended(self):
        return False

    cdef int update(self) except -1:
        """Make the registration fit what is waited for; leave the poller when that is nothing."""
        cdef uint32_t mask = 0
        if self.poller is None:
            return 0
        if self.reader is not None or self.writer is not None:
            mask = EV_LEVEL
            if self.reader is not None or self.readers:
                mask |= EV_IN
            if self.writer is not None or self.writers:
                mask |= EV_OUT
        elif self.sock != NULL:
            mask = EV_IN | EV_PRI | EV_RDHUP | (EV_OUT if self.writers or self.mask & (EV_OUT | EV_LEVEL) == EV_OUT else 0)
        self.poller.watch(self, mask)
        if not mask and self.poller is not None:
            self.poller.detach(self)
        return 0

    cdef int settle(self) except -1:
        """After add_/remove_ calls: drop the sock_*() state, whose edges may have been told to the other."""
        self.drained = False
        return self.update()

    cdef int on_events(self, uint32_t events) except -1:
        cdef bint readable = events & (EV_IN | EV_PRI | EV_RDHUP | EV_HUP | EV_ERR) != 0
        cdef bint writable = events & (EV_OUT | EV_HUP | EV_ERR) != 0
        cdef IOHandle r = self.reader
        cdef IOHandle w = self.writer
        if r is None and w is None and not self.readers and not self.writers and self.socket_closed():
            return self.poller.detach(self) if self.poller is not None else 0
        if events & (EV_RDHUP | EV_HUP | EV_ERR | EV_PRI):
            self.hangup = True
        if readable:
            self.drained = False
            if self.readers:
                self.tell(self.readers)
        if writable and self.writers:
            self.tell(self.writers)
        if self.mask & EV_LEVEL:
            self.update()               # whoever was told stops waiting; asked again, it waits again
        if r is not None and readable:
            self.call(r)
        if w is not None and writable:
            self.call(w)
        return 0

    cdef int tell(self, list futures) except -1:
        waiting = futures[:]
        futures.clear()
        for fut in waiting:
            if not fut.done():
                fut.set_result(None)
        return 0

    cdef int call(self, IOHandle h) except -1:
        if h.cancelled_:
            return 0
        callback, args = h.callback, h.args
        try:
            call_in(h.context, <PyObject *>callback, <PyObject *>args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exc:
            self.g._callback_error(h, exc)
        return 0

    cdef bint socket_closed(self) except -1:
        """Whether this was the registration of a socket that has been closed: the number is another file's by now."""
        if self.sock_ref is None:
            return False
        sock = self.sock_ref()
        return sock is None or sock.fileno() != self.fd

    def forget_socket(self, ref):
        """The socket object is gone. A world that moves does the rest itself: the last reference may drop anywhere."""
        cdef G g = self.g if GL_FREE_THREADED else None
        cdef unsigned long owner = gl_load_relaxed(&g.w.owner) if g is not None else 0
        if g is not None and owner != PyThread_get_thread_ident() and (owner or g._moves):
            try:
                self.g.call_soon_threadsafe(self.forget_socket, ref)
            except RuntimeError:
                pass                        # closed: it lets go of all its watches
        elif self.sock_ref is ref:
            self.sock, self.sock_ref = NULL, None
            self.update()

    def __repr__(self):
        return f"<FdWatch fd={self.fd} reader={self.reader!r} writer={self.writer!r}>"


cdef FdWatch plain_watch(G g, Poller poller, int fd, bint make):
    """The fd's FdWatch, made if asked for. A transport that still uses the fd is refused by the caller."""
    cdef Watch w = poller.lookup(fd)
    if isinstance(w, FdWatch) and not (make and (<FdWatch>w).socket_closed()):
        return <FdWatch>w
    return FdWatch(g, poller, fd) if make else None


def find_closed(Poller poller not None, fileobj):
    """The number that a closed file object had when add_io() was called with it, or -1."""
    for w in poller.table:
        if isinstance(w, FdWatch) and (<FdWatch>w).fileobj is fileobj:
            return (<FdWatch>w).fd
    return -1


def add_io(G g not None, Poller poller not None, int fd, bint writing, callback, tuple args, fileobj=None,
           context=None):
    """Set the callback of one direction; returns its handle. The former one is cancelled."""
    cdef FdWatch w = plain_watch(g, poller, fd, True)
    w.fileobj = fileobj
    cdef IOHandle handle = IOHandle(callback, args, context)
    cdef IOHandle old = w.writer if writing else w.reader
    if writing:
        w.writer = handle
    else:
        w.reader = handle
    try:
        w.settle()
    except BaseException:
        if writing:
            w.writer = old
        else:
            w.reader = old
        if old is None and w.sock == NULL:
            poller.detach(w)
        raise
    if old is not None:
        old.cancel()
    return handle


def remove_io(G g not None, Poller poller not None, int fd, bint writing):
    """Take the callback of one direction away; returns whether there was one."""
    cdef FdWatch w = plain_watch(g, poller, fd, False)
    cdef IOHandle old
    if w is None:
        return False
    old = w.writer if writing else w.reader
    if old is None:
        return False
    if writing:
        w.writer = None
    else:
        w.reader = None
    old.cancel()
    w.settle()
    return True


cpdef enum SockKind:
    OP_RECV = 0
    OP_RECV_INTO = 1
    OP_SENDALL = 2
    OP_CALL_READ = 3        # fn(*args), fn a callable or a method's name, until it does not block; waits for readable
    OP_CALL_WRITE = 4       # the same, writable
    OP_SENDALL_BY_CALL = 5  # fn is "send"

cdef inline bint would_block() noexcept:
    return errno == EAGAIN or errno == EINTR


@cython.final
cdef class SockOp(Operation):
    """A sock_*() call."""

    def __init__(self, G g not None, Poller poller, int kind, sock, fn, args):
        self.g, self.poller, self.kind, self.sock, self.fn, self.args = g, poller, kind, sock, fn, args

    def __dealloc__(self):
        if self.has_view:
            PyBuffer_Release(&self.view)

    cdef object step(self):
        if self.state == NEW:
            self.begin()
        elif self.state == FLYING:
            if not self.fut.done():
                raise RuntimeError("await wasn't used with future")
            self.fut = None
            if self.sock.fileno() != self.fd:       # closed meanwhile: the number may be somebody else's by now
                error = OSError(EBADF, f"{self.sock!r} was closed while a call waited for it")
                self.finish()
                raise error
        elif self.state == ENDED:
            raise RuntimeError("cannot reuse already awaited coroutine")
        self.state = LANDED             # for now: while it tries, or when it has succeeded
        try:
            return self.attempt()
        except BaseException:
            self.finish()
            raise

    cdef object begin(self):
        """Check the arguments, as stock does on the first step; find or make the registration."""
        cdef int flags
        if SSLSocket is not None and isinstance(self.sock, SSLSocket):
            raise TypeError("Socket cannot be of type SSLSocket")
        if self.g.w.debug and self.sock.gettimeout() != 0:
            raise ValueError("the socket must be non-blocking")
        self.fd = self.sock.fileno()
        if self.kind == OP_RECV_INTO or self.kind == OP_SENDALL or self.kind == OP_SENDALL_BY_CALL:
            flags = PyBUF_WRITABLE if self.kind == OP_RECV_INTO else PyBUF_SIMPLE
            try:
                PyObject_GetBuffer(self.args, &self.view, flags)
            except BufferError as exc:
                if self.kind == OP_RECV_INTO:
                    raise TypeError(f"sock_recv_into() wants a read-write bytes-like object, not {self.args!r}") from exc
                raise
            self.has_view = True
            self.n = self.view.len
        elif self.kind == OP_RECV:
            self.n = self.args
            if self.n < 0:
                raise ValueError("negative buffersize in recv")
        cdef Watch w = self.poller.lookup(self.fd)
        if isinstance(w, FdWatch) and (<FdWatch>w).sock == <PyObject *>self.sock:
            self.w = <FdWatch>w
        return None

    cdef int register(self) except -1:
        """The first wait of this socket: a registration of its own, unless add_reader/add_writer has one."""
        cdef Watch w = self.poller.lookup(self.fd)
        if self.poller.closed:
            raise RuntimeError("Event loop is closed")
        if w is not None and not w.is_ended() and w.is_transport():
            raise RuntimeError(f"File descriptor {self.fd!r} is used by transport {w!r}")
        if isinstance(w, FdWatch) and ((<FdWatch>w).mask & EV_LEVEL or (<FdWatch>w).sock == <PyObject *>self.sock):
            self.w = <FdWatch>w
        else:
            self.w = FdWatch(self.g, self.poller, self.fd)
        if self.w.sock != <PyObject *>self.sock:
            self.w.sock_ref = weakref.ref(self.sock, self.w.forget_socket)
            self.w.sock = <PyObject *>self.sock
            # On Unix sockets a read ends behind a message with a descriptor: short, and yet there may be more.
            self.w.stream = self.sock.type == SOCK_STREAM and self.sock.family != AF_UNIX
        return 0

    cdef object wait(self):
        cdef uint32_t mask
        cdef bint writing = self.kind in (OP_SENDALL, OP_CALL_WRITE, OP_SENDALL_BY_CALL)
        if self.w is None or self.w.poller is None:
            self.register()
        self.fut = self.g.new_future()
        (self.w.writers if writing else self.w.readers).append(self.fut)
        self.state = FLYING
        mask = self.w.mask
        self.w.update()
        if mask == self.w.mask and self.kind >= OP_CALL_READ and not mask & EV_LEVEL:
            # Whatever fn is, it may say that it would block while the kernel would not: then no new edge comes.
            self.poller.rearm(self.w)
        self.fut._asyncio_future_blocking = True
        return self.fut

    cdef object attempt(self):
        cdef Py_ssize_t n
        cdef char *buf
        if self.kind == OP_RECV:
            if self.w is not None and self.w.drained:
                return self.wait()
            if self.n <= RBUF:
                buf = self.poller.read_buffer()
                n = recv(self.fd, buf, self.n, FLAGS)
                data = PyBytes_FromStringAndSize(buf, n) if n >= 0 else None
            else:
                data = PyBytes_FromStringAndSize(NULL, self.n)
                n = recv(self.fd, PyBytes_AS_STRING(data), self.n, FLAGS)
                if 0 <= n < self.n:
                    data = data[:n]
            if n >= 0:
                return self.received(n, data)
        elif self.kind == OP_RECV_INTO:
            if self.w is not None and self.w.drained:
                return self.wait()
            n = recv(self.fd, self.view.buf, self.n, FLAGS)
            if n >= 0:
                return self.received(n, n)
        elif self.kind == OP_SENDALL:
            while self.done < self.n:
                n = send(self.fd, <char *>self.view.buf + self.done, self.n - self.done, FLAGS)
                if n < 0:
                    break
                self.done += n
            else:
                return self.leave(None)
        else:
            return self.attempt_call()
        if not would_block():
            PyErr_SetFromErrno(OSError)
        return self.wait()

    cdef object attempt_call(self):
        try:
            if self.kind != OP_SENDALL_BY_CALL:
                return self.leave(self.callee()(*self.args))
            while self.done < self.n:
                self.done += self.callee()(memoryview(self.args).cast("B")[self.done:])
            return self.leave(None)
        except (BlockingIOError, InterruptedError):
            return self.wait()

    cdef object callee(self):
        return getattr(self.sock, self.fn) if isinstance(self.fn, str) else self.fn

    cdef object received(self, Py_ssize_t n, object value):
        if self.w is not None:
            self.w.drained = self.w.stream and 0 < n < self.n and not self.w.hangup
        return self.leave(value)

    cdef object leave(self, object value):
        self.finish()
        return value

    cdef int abandon(self) except -1:
        return self.finish()

    cdef int finish(self) except -1:
        """End the operation: nothing of it is left on the watch."""
        cdef list waiting
        self.state = ENDED
        if self.has_view:
            self.has_view = False
            PyBuffer_Release(&self.view)
        if self.fut is not None:
            waiting = self.w.writers if self.kind in (OP_SENDALL, OP_CALL_WRITE, OP_SENDALL_BY_CALL) else self.w.readers
            if self.fut in waiting:
                waiting.remove(self.fut)
                self.w.update()
            self.fut = None
        self.w = None
        self.sock = self.fn = self.args = None
        return 0


collections.abc.Coroutine.register(SockOp)
