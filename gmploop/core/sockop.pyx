# cython: language_level=3, freethreading_compatible=True, binding=True
"""SockOp: what the sock_*() methods return, a coroutine in all but type.

It tries the call when it is first stepped and ends there if it can; else it waits for readiness on a future and tries
again when it is resumed, never earlier: a cancelled call has consumed nothing. Leaving by cancellation takes it off the
watch at once.

Most calls can be done at once, and then the object is what they cost: its memory is kept for the next one (KEPT of them;
not on free-threaded builds), and of a socket whose class is the socket module's own the system call is made here.
Datagrams' addresses are read and made here where they are Internet addresses in numbers; the others are the socket
object's business.
"""
cimport cython
from cpython.buffer cimport PyObject_GetBuffer, PyBuffer_Release, PyBUF_SIMPLE, PyBUF_WRITABLE
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_SetFromErrno
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF
from libc.errno cimport errno, EAGAIN, EBADF, EINTR
import collections.abc
import weakref
from gmploop.core.handle cimport GL_FREE_THREADED
from gmploop.core.operation cimport NEW, FLYING, LANDED, ENDED
from gmploop.core.poller cimport Watch, uint32_t, EV_LEVEL, RBUF
from gmploop.core.transport cimport address_of, sockaddr, sockaddr_storage, socklen_t, AF_INET, AF_INET6, AF_UNIX

cdef extern from "Python.h":
    object PyObject_CallOneArg(object, object)
    int PySys_Audit(const char *, const char *, ...) except -1
    PyObject *PyObject_Init(PyObject *, type)
    void PyObject_GC_Track(PyObject *)
    void PyObject_GC_UnTrack(PyObject *)
    ctypedef struct SlotsOfType "PyTypeObject":
        void (*tp_dealloc)(PyObject *) noexcept
        void (*tp_free)(void *) noexcept
        object (*tp_descr_get)(object, object, object)
    SlotsOfType *Py_TYPE(PyObject *)

cdef extern from "sockets.h":
    object gl_recv_bytes(int, Py_ssize_t, Py_ssize_t *)

cdef extern from "address.h":
    int gl_plain_address(int, PyObject *, sockaddr_storage *, socklen_t *)

cdef extern from *:
    """
    #ifndef MSG_NOSIGNAL
    #define MSG_NOSIGNAL 0
    #endif
    /* An exception is set already; tell Cython so. */
    static int raise_current(void) { return -1; }
    static void gl_release(Py_buffer *view) { int error = errno; PyBuffer_Release(view); errno = error; }
    """
    Py_ssize_t recv(int, void *, size_t, int)
    Py_ssize_t send(int, const void *, size_t, int)
    Py_ssize_t recvfrom(int, void *, size_t, int, sockaddr *, socklen_t *)
    Py_ssize_t sendto(int, const void *, size_t, int, const sockaddr *, socklen_t)
    int FLAGS "(MSG_NOSIGNAL | MSG_DONTWAIT)"
    int SOCK_STREAM
    int raise_current() except -1
    void release_buffer "gl_release"(Py_buffer *)       # leaves errno alone

cdef enum:
    KEPT = 64

# Injected by gmploop.loop.
cdef type SSLSocket = None
cdef object fileno = None, family = None        # of the socket module's class: a method and a member


def configure(ssl_socket_type, plain_socket_type):
    """Set the class that sock_*() refuses, and the one whose calls may go straight to the kernel."""
    global SSLSocket, fileno, family
    SSLSocket, fileno, family = ssl_socket_type, plain_socket_type.fileno, plain_socket_type.__base__.family


cdef inline int family_of(sock) except? -1:
    """Of a plain socket; its own property would make an enum of it."""
    return Py_TYPE(<PyObject *>family).tp_descr_get(family, sock, <object>Py_TYPE(<PyObject *>sock))


cdef object read_only(str name, buf):
    return TypeError(f"{name}() wants a read-write bytes-like object, not {buf!r}")


cdef object attempt(SockOp op):
    """Try the call: its result, or the future to wait for."""
    cdef Py_ssize_t n
    if op.state == NEW:
        op.state = LANDED               # for now: while it tries, or when it has succeeded
        op.begin()
    elif op.state == FLYING:
        if not op.fut.done():
            raise RuntimeError("await wasn't used with future")
        op.fut = None
        op.state = LANDED
        if op.sock.fileno() != op.fd:       # closed meanwhile: the number may be somebody else's by now
            raise OSError(EBADF, f"{op.sock!r} was closed while a call waited for it")
    else:
        raise RuntimeError("cannot reuse already awaited coroutine")
    if op.kind == OP_RECV:
        return op.recv_bytes()
    if op.kind == OP_SENDALL:
        while op.done < op.n:
            n = send(op.fd, <char *>op.view.buf + op.done, op.n - op.done, FLAGS)
            if n < 0:
                return op.would_block()
            op.done += n
        return op.leave(None)
    if op.kind == OP_RECVFROM:
        return op.recv_from()
    if op.kind == OP_SENDTO:
        return op.send_to()
    if op.kind == OP_RECV_INTO:
        if op.w is not None and op.w.drained:
            return op.wait()
        n = recv(op.fd, op.view.buf, op.n, FLAGS)
        return op.received(n, n) if n >= 0 else op.would_block()
    if op.kind == OP_RECVFROM_INTO:
        return op.recv_from_into()
    return op.call()


ctypedef PyObject *(*attempt_type)(SockOp) noexcept


@cython.final
cdef class SockOp(Operation):
    """A sock_*() call."""

    cdef object step(self):
        # Not by try: that would put aside, each time, what exception is being handled.
        cdef PyObject *p = (<attempt_type><void *>attempt)(self)
        if p == NULL:
            return self.failed()
        result = <object>p
        Py_DECREF(result)
        return result

    cdef object failed(self):
        """The attempt's exception is set: that is the end."""
        try:
            raise_current()
        except BaseException:
            self.finish()
            raise

    cdef int begin(self) except -1:
        """Check the arguments, as stock does on the first step; find the registration, if it says more than a try."""
        if self.g is None or self.poller is None:
            raise TypeError("a sock_*() call of no event loop")
        if self.g.w.debug and self.sock.gettimeout() != 0:
            raise ValueError("the socket must be non-blocking")
        if self.kind >= OP_CALL_READ:
            return self.begin_call()
        self.fd = PyObject_CallOneArg(fileno, self.sock)
        if self.kind == OP_SENDTO:
            return 0
        if self.kind == OP_SENDALL:
            return self.take_view(PyBUF_SIMPLE)
        if self.kind == OP_RECV_INTO:
            self.take_view(PyBUF_WRITABLE)
        else:
            self.n = self.args
            if self.kind != OP_RECV:
                return self.begin_datagram()
            if self.n < 0:
                raise ValueError("negative buffersize in recv")
        cdef Watch w = self.poller.lookup(self.fd)
        if w is not None and isinstance(w, FdWatch) and (<FdWatch>w).is_of(self.g, self.sock):
            self.w = <FdWatch>w
        return 0

    cdef int begin_call(self) except -1:
        if SSLSocket is not None and isinstance(self.sock, SSLSocket):
            raise TypeError("Socket cannot be of type SSLSocket")
        self.fd = self.sock.fileno()
        return self.take_view(PyBUF_SIMPLE) if self.kind == OP_SENDALL_BY_CALL else 0

    cdef int begin_datagram(self) except -1:
        """What is not as usual is left to the socket object, with its errors."""
        cdef int known = family_of(self.sock)
        if self.n < 0 or not (known == AF_INET or known == AF_INET6 or known == AF_UNIX):
            return self.by_call()
        return self.by_call() if self.kind == OP_RECVFROM and self.n > RBUF else 0

    cdef int by_call(self) except -1:
        if self.kind == OP_SENDTO:
            self.kind, self.fn, self.args = OP_CALL_WRITE, "sendto", (self.args, self.fn)
        elif self.kind == OP_RECVFROM:
            self.kind, self.fn, self.args = OP_CALL_READ, "recvfrom", (self.n,)
        else:
            self.kind, self.fn, self.args = OP_CALL_READ, "recvfrom_into", (self.fn, self.n)
        return 0

    cdef int take_view(self, int flags) except -1:
        try:
            PyObject_GetBuffer(self.args, &self.view, flags)
        except BufferError as exc:
            if self.kind == OP_RECV_INTO:
                raise read_only("sock_recv_into", self.args) from exc
            raise
        self.has_view = True
        self.n = self.view.len
        return 0

    cdef bint writes(self):
        return OP_SENDALL <= self.kind <= OP_SENDTO or self.kind >= OP_CALL_WRITE

    cdef object recv_bytes(self):
        cdef Py_ssize_t n
        cdef char *buf
        if self.w is not None and self.w.drained:
            return self.wait()
        if self.n <= RBUF:
            buf = self.poller.read_buffer()
            n = recv(self.fd, buf, self.n, FLAGS)
            data = PyBytes_FromStringAndSize(buf, n) if n >= 0 else None
        else:
            data = gl_recv_bytes(self.fd, self.n, &n)
        return self.received(n, data) if n >= 0 else self.would_block()

    cdef object recv_from(self):
        cdef sockaddr_storage a
        cdef socklen_t size = sizeof(a)
        cdef char *buf = self.poller.read_buffer()
        cdef Py_ssize_t n = recvfrom(self.fd, buf, self.n, FLAGS, <sockaddr *>&a, &size)
        if n < 0:
            return self.would_block()
        return self.leave((PyBytes_FromStringAndSize(buf, n), address_of(&a, size)))

    cdef object recv_from_into(self):
        """The buffer is the caller's own again while it waits."""
        cdef sockaddr_storage a
        cdef socklen_t size = sizeof(a)
        cdef Py_buffer view
        cdef Py_ssize_t n
        try:
            PyObject_GetBuffer(self.fn, &view, PyBUF_WRITABLE)
        except BufferError as exc:
            raise read_only("sock_recvfrom_into", self.fn) from exc
        try:
            if self.n > view.len:
                raise ValueError("nbytes is greater than the length of the buffer")
            n = recvfrom(self.fd, view.buf, self.n, FLAGS, <sockaddr *>&a, &size)
        finally:
            release_buffer(&view)
        return self.leave((n, address_of(&a, size))) if n >= 0 else self.would_block()

    cdef object send_to(self):
        cdef sockaddr_storage a
        cdef socklen_t size
        cdef Py_buffer view
        cdef Py_ssize_t n
        if not gl_plain_address(family_of(self.sock), <PyObject *>self.fn, &a, &size):
            self.by_call()
            return self.call()
        PySys_Audit("socket.sendto", "OO", <PyObject *>self.sock, <PyObject *>self.fn)
        PyObject_GetBuffer(self.args, &view, PyBUF_SIMPLE)
        n = sendto(self.fd, view.buf, view.len, FLAGS, <sockaddr *>&a, size)
        release_buffer(&view)
        return self.leave(n) if n >= 0 else self.would_block()

    cdef object call(self):
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

    cdef object would_block(self):
        """A system call has failed: wait, or raise its error."""
        if errno != EAGAIN and errno != EINTR:
            PyErr_SetFromErrno(OSError)
        return self.wait()

    cdef int register(self) except -1:
        """The first wait of this socket: a registration of its own, unless add_reader/add_writer has one."""
        cdef Watch w = self.poller.lookup(self.fd)
        if self.poller.closed:
            raise RuntimeError("Event loop is closed")
        if w is not None and not w.is_ended() and w.is_transport():
            raise RuntimeError(f"File descriptor {self.fd!r} is used by transport {w!r}")
        if isinstance(w, FdWatch) and (<PyObject *>w.g == <PyObject *>self.g and w.mask & EV_LEVEL
                                       or (<FdWatch>w).is_of(self.g, self.sock)):
            self.w = <FdWatch>w
        else:
            self.w = FdWatch(self.g, self.poller, self.fd)
        if not self.w.is_of(self.g, self.sock):
            self.w.sock_ref = weakref.ref(self.sock, self.w.forget_socket)
            self.w.sock = <PyObject *>self.sock
            # On Unix sockets a read ends behind a message with a descriptor: short, and yet there may be more.
            self.w.stream = self.sock.type == SOCK_STREAM and self.sock.family != AF_UNIX
        return 0

    cdef object wait(self):
        cdef uint32_t mask
        if self.w is None or self.w.poller is None:
            self.register()
        self.fut = self.g.new_future()
        (self.w.writers if self.writes() else self.w.readers).append(self.fut)
        self.state = FLYING
        mask = self.w.mask
        self.w.update()
        if mask == self.w.mask and self.kind >= OP_CALL_READ and not mask & EV_LEVEL:
            # Whatever fn is, it may say that it would block while the kernel would not: then no new edge comes.
            self.poller.rearm(self.w)
        self.fut._asyncio_future_blocking = True
        return self.fut

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
            waiting = self.w.writers if self.writes() else self.w.readers
            if self.fut in waiting:
                waiting.remove(self.fut)
                self.w.update()
            self.fut = None
        self.w = None
        self.sock = self.fn = self.args = None
        return 0


cdef int n_kept = 0
cdef PyObject *kept[KEPT]


cdef SockOp sock_op(G g, Poller poller, int kind, object sock, object fn, object args):
    global n_kept
    cdef SockOp op
    cdef PyObject *p
    if n_kept:
        n_kept -= 1
        p = PyObject_Init(kept[n_kept], SockOp)
        PyObject_GC_Track(p)
        op = <SockOp>p
        Py_DECREF(op)
    else:
        op = SockOp.__new__(SockOp)
    op.g, op.poller, op.kind, op.sock, op.fn, op.args = g, poller, kind, sock, fn, args
    return op


ctypedef void (*destructor)(PyObject *) noexcept
cdef destructor dealloc = (<SlotsOfType *>SockOp).tp_dealloc


cdef void free_op(PyObject *p) noexcept:
    """tp_dealloc. What is kept is as a new one is: its fields are None. Dropping them may free others."""
    global n_kept
    PyObject_GC_UnTrack(p)
    if (<SockOp>p).has_view:
        (<SockOp>p).has_view = False
        PyBuffer_Release(&(<SockOp>p).view)
    (<SockOp>p).g = None
    (<SockOp>p).poller = None
    (<SockOp>p).sock = (<SockOp>p).fn = (<SockOp>p).args = (<SockOp>p).fut = None
    (<SockOp>p).w = None
    if GL_FREE_THREADED or n_kept >= KEPT:
        dealloc(p)
        return
    (<SockOp>p).state = NEW
    (<SockOp>p).n = (<SockOp>p).done = 0
    kept[n_kept] = p
    n_kept += 1


(<SlotsOfType *>SockOp).tp_dealloc = free_op
collections.abc.Coroutine.register(SockOp)
