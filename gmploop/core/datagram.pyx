# cython: language_level=3, freethreading_compatible=True, binding=True
"""DatagramTransport: UDP and Unix datagram sockets.

Level-triggered, unlike streams: an edge would have to be read until the socket says that it would block, which costs a
second system call for each lone datagram. When datagrams come in bursts, an event reads up to BURST of them; whether
they do is tried on every eighth event.

A reply usually goes where the last datagram came from, by the very address object that datagram_received() got: its
socket address is kept. Other Internet addresses in numbers are read here, and only the rest (names, Unix sockets' paths)
take the way through the socket object.
"""
cimport cython
from collections import deque
from cpython.buffer cimport PyObject_GetBuffer, PyBUF_SIMPLE
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.exc cimport PyErr_SetFromErrno
from cpython.object cimport PyObject
from libc.errno cimport errno, EAGAIN, EINTR
import sys
from gmploop.core.g cimport G
from gmploop.core.transport cimport AF_INET, AF_INET6, address_of, sockaddr, sockaddr_storage, socklen_t
from gmploop.core.poller cimport (
    Poller, uint32_t, EV_IN, EV_OUT, EV_ERR, EV_HUP, EV_START, EV_LEVEL, RBUF)

cdef extern from "Python.h":
    int PyContext_Enter(object) except -1
    int PyContext_Exit(object) except -1
    object PyObject_CallMethodObjArgs(object, object, ...)
    int PySys_Audit(const char *, const char *, ...) except -1

cdef extern from *:
    """
    #include <sys/socket.h>
    #ifndef MSG_NOSIGNAL
    #define MSG_NOSIGNAL 0
    #endif
    static void gl_release(Py_buffer *view) { int error = errno; PyBuffer_Release(view); errno = error; }
    """
    Py_ssize_t recvfrom(int, void *, size_t, int, sockaddr *, socklen_t *)
    Py_ssize_t c_sendto "sendto"(int, const void *, size_t, int, const sockaddr *, socklen_t)
    int MSG_NOSIGNAL, MSG_DONTWAIT
    void release_buffer "gl_release"(Py_buffer *)       # leaves errno alone

cdef extern from "address.h":
    int gl_plain_address(int, PyObject *, sockaddr_storage *, socklen_t *)

cdef enum:
    BURST = 16              # datagrams an event reads at most; guessed
    HEADER = 8              # bytes that a queued datagram counts beside its data (stock's figure): empty ones count too

cdef type shown_class = None
cdef str datagram_received = "datagram_received"
# What stock does with an empty datagram: up to 3.12 sendto() drops it.
cdef bint sends_empty = sys.version_info >= (3, 13)


def configure(transport_type):
    """Set the class that isinstance() and __class__ show."""
    global shown_class
    shown_class = transport_type


@cython.final
cdef class DatagramTransport(Transport):
    """A datagram socket's transport. Methods are asyncio.DatagramTransport's."""

    def __init__(self, G loop not None, Poller poller not None, sock, protocol, address=None, waiter=None, extra=None):
        self.address = address
        self.queue = deque()
        self.setup(loop, poller, sock.fileno(), sock, protocol, waiter, extra, None, None)
        family = getattr(sock, "family", None)
        self.family = family if isinstance(family, int) else 0          # of what only behaves as a socket
        self.connected = bool(self.get_extra_info("peername"))

    @property
    def __class__(self):
        return shown_class if shown_class is not None else DatagramTransport

    cdef uint32_t wanted(self):
        cdef uint32_t mask = 0 if self.paused or self.closing else EV_IN
        if self.wsize:
            mask |= EV_OUT
        return mask | EV_LEVEL if mask else 0

    cdef int rewatch(self) except -1:
        if self.started and self.poller is not None and not self.conn_lost:
            self.poller.watch(self, self.wanted())
        return 0

    cdef int clear_buffer(self) except -1:
        self.queue.clear()
        self.wsize = 0
        return 0

    cdef int on_events(self, uint32_t events) except -1:
        cdef int i
        if events & EV_START:
            return self.start()
        if self.gone:
            return 0
        if events & (EV_OUT | EV_ERR | EV_HUP) and self.wsize:
            self.flush_in_context()
        if events & (EV_IN | EV_ERR | EV_HUP):
            if self.poller is None:
                return self.displaced()
            self.events += 1
            for i in range(BURST):
                if self.closing or self.paused or self.conn_lost or self.gone:
                    return 0
                if i == 1 and not self.burst and self.events % 8:
                    return 0
                if not self.read_one():
                    self.burst = i > 1
                    return 0
            self.burst = True
        return 0

    cdef int read_one(self) except -1:
        """One datagram, or one error; returns whether to look for a further one."""
        cdef char *buf = self.poller.read_buffer()
        cdef sockaddr_storage a
        cdef socklen_t size = sizeof(a)
        cdef Py_ssize_t n
        n = recvfrom(self.fd, buf, RBUF, MSG_DONTWAIT, <sockaddr *>&a, &size)
        if n < 0:
            if errno == EAGAIN or errno == EINTR:
                return 0
            try:
                PyErr_SetFromErrno(OSError)
            except OSError as exc:
                self.failed(exc, "Fatal read error on datagram transport")
            return 1
        data = PyBytes_FromStringAndSize(buf, n)
        address = address_of(&a, size)
        if size and (a.ss_family == AF_INET or a.ss_family == AF_INET6):
            self.last_address, self.last_sockaddr, self.last_len = address, a, size
        self.deliver(data, address)
        return 1

    cdef int deliver(self, data, address) except -1:
        context = self.context
        PyContext_Enter(context)
        try:
            PyObject_CallMethodObjArgs(self.protocol, datagram_received, <PyObject *>data, <PyObject *>address, NULL)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exc:
            # Stock lets it reach the exception handler and goes on.
            self.g.call_exception_handler({"message": "Exception in datagram_received()", "exception": exc,
                                           "transport": self, "protocol": self.protocol})
        finally:
            PyContext_Exit(context)
        return 0

    cdef int failed(self, exc, str message) except -1:
        if isinstance(exc, OSError):
            self.protocol.error_received(exc)
            return 0
        return self.fatal(exc, message)

    def pause_reading(self):
        self.here("pause_reading")
        if self.is_reading():
            self.paused = True
            self.rewatch()
            self.debug_log("pauses reading")

    def resume_reading(self):
        self.here("resume_reading")
        if self.paused and not self.closing:
            self.paused = False
            self.rewatch()
            self.debug_log("resumes reading")

    def is_reading(self):
        return not self.closing and not self.paused

    def sendto(self, data, addr=None):
        """Send a datagram now, or queue it if the socket is full."""
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(f"data argument must be a bytes-like object, not {type(data).__name__!r}")
        self.here("sendto")
        if not sends_empty and not data:
            return
        if self.address:
            if addr not in (None, self.address):
                raise ValueError(f"Invalid address: must be None or {self.address}")
            addr = self.address
        if self.conn_lost and self.address:
            self.lost()
            return
        if self.gone:
            return                      # an unconnected one after connection_lost
        if not self.queue and self.send_one(data, addr):
            return
        if not self.wsize:
            self.buffering_begins()
        self.queue.append((bytes(data), addr))
        self.wsize += len(self.queue[-1][0]) + HEADER
        self.rewatch()
        self.maybe_pause()

    cdef int send_one(self, data, address) except -1:
        """Returns 1 when the datagram is dealt with (sent, or its error was told), 0 when it has to wait."""
        cdef Py_buffer view
        cdef Py_ssize_t n
        cdef sockaddr_storage a
        cdef sockaddr_storage *to = NULL
        cdef socklen_t size = 0
        try:
            if not self.connected:
                if address is self.last_address and address is not None:
                    to, size = &self.last_sockaddr, self.last_len
                elif gl_plain_address(self.family, <PyObject *>address, &a, &size):
                    to = &a
                else:
                    self.sock.sendto(data, address)
                    return 1
                PySys_Audit("socket.sendto", "OO", <PyObject *>self.sock, <PyObject *>address)
            PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
            n = c_sendto(self.fd, view.buf, view.len, MSG_NOSIGNAL | MSG_DONTWAIT, <sockaddr *>to, size)
            release_buffer(&view)
            if n < 0:
                if errno == EAGAIN or errno == EINTR:
                    return 0
                PyErr_SetFromErrno(OSError)
        except (BlockingIOError, InterruptedError):
            return 0
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exc:
            self.failed(exc, "Fatal write error on datagram transport")
        return 1

    cdef int flush(self) except -1:
        while self.queue:
            data, address = self.queue.popleft()
            if not self.send_one(data, address):
                self.queue.appendleft((data, address))
                break
            if self.conn_lost:
                return 0
            self.wsize -= len(data) + HEADER
        try:
            self.maybe_resume()         # may send again
        finally:
            self.flushed()
        return 0

    cdef int flushed(self) except -1:
        if not self.queue and not self.conn_lost:
            if self.closing:
                self.conn_lost += 1
                return self.call_lost(None)
            self.rewatch()
        return 0

    @property
    def _address(self):
        return self.address
