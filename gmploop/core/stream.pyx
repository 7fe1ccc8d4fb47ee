# cython: language_level=3, freethreading_compatible=True, binding=True
"""SocketTransport: TCP and Unix stream sockets.

Reading. The fd is registered once, edge-triggered. An event lets one read happen per turn, as on stock; a read that
came back full, or that does not prove the socket empty, queues the next one for the following turn (EV_AGAIN), so that
one fast peer does not keep the others waiting. A short read proves it, except (`more`) on Unix sockets, where a read
ends behind a message with a descriptor; behind urgent data; and when the peer has shut down, where the end is still to
come. `drained` remembers whether the socket was left empty: while reading is paused, events only clear it, and
resume_reading() reads at once unless it is set. So no edge is lost and nothing is read that nobody wants. A read lands in
the loop's buffer and is copied from there; after a large one (read_in_bulk()), in the bytes that data_received() gets.

Writing: socket_writer.pyx. What makes transports of accepted connections: accept.pyx.
"""
cimport cython
from cpython.bytes cimport PyBytes_FromStringAndSize, PyBytes_AS_STRING
from cpython.buffer cimport PyObject_GetBuffer, PyBuffer_Release, PyBUF_WRITABLE
from cpython.exc cimport PyErr_SetFromErrno
from libc.errno cimport errno
from libc.string cimport memcpy
from gmploop.core.buffered cimport BufferedCore
from gmploop.core.g cimport G
from gmploop.core.poller cimport (
    Poller, uint32_t, EV_IN, EV_PRI, EV_OUT, EV_ERR, EV_HUP, EV_RDHUP, EV_START, EV_AGAIN, RBUF)
from gmploop.core.reader cimport feed, feeds, hasten
from gmploop.core.transport cimport AF_UNIX, sockaddr_storage, socklen_t

cdef extern from "Python.h":
    Py_ssize_t PY_SSIZE_T_MAX
    int PyContext_Enter(object) except -1
    int PyContext_Exit(object) except -1
    object PyObject_CallMethodOneArg(object, object, object)

cdef extern from "sockets.h":
    Py_ssize_t recv(int, void *, size_t, int)
    int MSG_DONTWAIT, SOCK_STREAM, IPPROTO_TCP
    bint gl_would_block()
    void gl_set_errno(int)
    void gl_nodelay(int)
    object gl_recv_bytes(int, Py_ssize_t, Py_ssize_t *)

cdef enum:
    SMALL = 4096            # bytes. A transport that reads in bulk lets the kernel receive again
    SMALL_IN = 64           # after so many reads in a row of at most this size; guessed

# Injected by gmploop.loop.
cdef type shown_class = None
cdef type BufferedProtocol = None

cdef Py_ssize_t BULK = PY_SSIZE_T_MAX       # never


def configure(transport_type, buffered_protocol):
    """Set what stream transports need of asyncio: the class they show, and BufferedProtocol."""
    global shown_class, BufferedProtocol
    shown_class, BufferedProtocol = transport_type, buffered_protocol


def read_in_bulk(Py_ssize_t bulk):
    """After a read of so many bytes the next one makes no copy, but a bytes object of RBUF bytes that is cut to what came:
    where malloc() keeps what is freed, or each such object is mapped and unmapped."""
    global BULK
    BULK = bulk


cdef str data_received = "data_received"


@cython.final
cdef class SocketTransport(SocketWriter):
    """A stream socket's transport. Methods are asyncio.Transport's; from the thread that runs its loop, but for
    close() and abort(), which may come from any thread."""

    def __init__(self, G loop not None, Poller poller not None, sock, protocol, waiter=None, extra=None, server=None,
                 context=None):
        self.more = sock.family == AF_UNIX
        self.setup(loop, poller, sock.fileno(), sock, protocol, waiter, extra, server, context)

    cdef int accepted(self, G loop, Poller poller, int conn, int family, int proto, sockaddr_storage *a,
                      socklen_t size, protocol, server, context) except -1:
        """The constructor, for a connection without a socket object."""
        self.more = family == AF_UNIX
        self.family, self.type, self.proto = <short>family, <short>SOCK_STREAM, <short>proto
        if family != AF_UNIX and (proto == 0 or proto == IPPROTO_TCP):
            gl_nodelay(conn)
        self.note_peer(a, size)
        return self.setup(loop, poller, conn, None, protocol, None, None, server, context)

    @property
    def __class__(self):
        return shown_class if shown_class is not None else SocketTransport

    cdef uint32_t wanted(self):
        cdef uint32_t mask = EV_OUT if self.wsize or self.mask & EV_OUT else 0
        return mask if self.by_completion else mask | EV_IN | EV_PRI | EV_RDHUP

    cdef int start_watching(self) except -1:
        self.by_completion, self.batching = self.poller.receives, self.poller.batches
        self.moves = self.batching and self.poller.shared
        self.poller.watch(self, self.wanted())
        if self.by_completion and self.may_read():
            self.poller.receive(self, True)
        return 0

    cdef int use_protocol(self, protocol) except -1:
        self.buffered = isinstance(protocol, BufferedProtocol)
        self.core = isinstance(protocol, BufferedCore) and (<BufferedCore>protocol).shared is not None
        self.feeds_reader = feeds(protocol)
        self.bulk = False
        if self.feeds_reader:
            hasten(protocol)
        self.protocol = protocol
        return 0

    cdef int on_events(self, uint32_t events) except -1:
        if events & EV_START:
            return self.start()
        if self.gone:
            return 0
        if self.moves and self.batch_at and events & EV_OUT:
            self.send_out()             # what the batch could not, see its settle()
        if events & (EV_OUT | EV_ERR | EV_HUP) and self.wsize:
            self.flush_in_context()
            if self.wsize and self.batching and not self.conn_lost and not self.mask & EV_OUT:
                self.arm_write()
                self.maybe_pause()
        if events & (EV_IN | EV_ERR | EV_HUP | EV_RDHUP | EV_PRI | EV_AGAIN):
            self.drained = False
            if events & (EV_RDHUP | EV_HUP | EV_ERR | EV_PRI):
                self.more = True
            if self.may_read():
                context = self.context
                PyContext_Enter(context)
                try:
                    if self.poller is None:
                        self.displaced()
                    elif self.by_completion and self.unread is None:
                        self.receive_failed()
                    elif self.core and self.unread is None and not self.poller.receives:
                        self.read_core()
                    elif self.buffered:
                        self.read_buffered()
                    else:
                        self.read_data()
                except BaseException:           # SystemExit, KeyboardInterrupt: the loop may be run again
                    self.drained = False
                    self.push(EV_AGAIN)
                    raise
                finally:
                    PyContext_Exit(context)
        return 0

    # -- reading

    cdef bint may_read(self):
        return not (self.closing or self.paused or self.eof_got or self.conn_lost or not self.started)

    cdef int received(self, const char *buf, Py_ssize_t n) except -1:
        if self.closing or self.conn_lost or self.poller is None:
            return self.poller.receive(self, False) if self.poller is not None else 0
        if n > 0:
            data = PyBytes_FromStringAndSize(buf, n)
            self.unread = data if self.unread is None else self.unread + data
            if n == self.poller.chunk:      # 100 KB messages are a third dearer so: read from the socket from now on
                self.to_readiness = True
                self.poller.receive(self, False)
        else:
            self.failure = <int>-n if n else -1
        self.drained = False
        return 0 if self.paused else self.push(EV_IN)

    cdef int receive_ended(self) except -1:
        if self.to_readiness and self.poller is not None and not self.failure:
            self.by_completion = self.to_readiness = self.drained = False
            self.run = 0
            self.poller.watch(self, self.wanted())
        return 0

    cdef int receive_failed(self) except -1:
        """What was received is delivered: now the end or the error that came behind it, if it has come."""
        if self.failure == 0:
            self.drained = True
            return 0
        if self.failure > 0:
            gl_set_errno(self.failure)
        return self.nothing_came(-1 if self.failure > 0 else 0)

    cdef int receive_again(self) except -1:
        """Messages have become small: let the kernel receive them."""
        self.by_completion, self.run = True, 0
        self.poller.watch(self, self.wanted())
        return self.poller.receive(self, True)

    cdef int after_read(self, Py_ssize_t n, Py_ssize_t asked) except -1:
        """Decide after a read of n > 0 bytes whether the socket may hold more."""
        if self.by_completion and self.unread is None and not self.failure:
            self.drained = True
        elif n == asked or self.more:
            if not (self.closing or self.paused or self.conn_lost):
                self.push(EV_AGAIN)
        else:
            self.drained = True
        return 0

    cdef int nothing_came(self, Py_ssize_t n) except -1:
        """recv() gave n <= 0."""
        if n == 0:
            return self.on_eof()
        if gl_would_block():
            self.drained = not self.more
            return 0
        try:
            PyErr_SetFromErrno(OSError)
        except OSError as exc:
            self.fatal(exc, "Fatal read error on socket transport")
        return 0

    cdef int call_failed(self, object exc, str message) except -1:
        """The protocol raised: that ends the connection, unless it is to end the loop."""
        if isinstance(exc, (SystemExit, KeyboardInterrupt)):
            raise exc
        return self.fatal(exc, message)

    cdef Py_ssize_t receive_into(self, void *buf, Py_ssize_t size) except -2:
        """recv(), and its errno if it fails."""
        cdef Py_ssize_t n = recv(self.fd, buf, size, MSG_DONTWAIT)
        if self.poller.receives and n > 0:
            self.run = self.run + 1 if n <= SMALL else 0
            if self.run >= SMALL_IN:
                self.receive_again()
        return n

    cdef int read_data(self) except -1:
        cdef char *buf = NULL
        cdef Py_ssize_t n = RBUF        # of `unread`, too: the socket was not asked, read on
        data = None
        if self.unread is not None:
            data = self.take_unread(RBUF)
        elif self.bulk:
            return self.read_bulk()
        else:
            buf = self.poller.read_buffer()
            n = self.receive_into(buf, RBUF)
            if n <= 0:
                return self.nothing_came(n)
            self.bulk = n >= BULK and not self.feeds_reader
        return self.deliver(data, buf, n)

    cdef int read_bulk(self) except -1:
        """After a large read: without a copy in between."""
        cdef Py_ssize_t n
        self.bulk = False
        try:
            data = gl_recv_bytes(self.fd, RBUF, &n)
        except MemoryError as exc:
            return self.call_failed(exc, "Fatal read error on socket transport")
        if n <= 0:
            return self.nothing_came(n)
        self.bulk = n >= BULK
        self.run = 0
        return self.deliver(data, NULL, n)

    cdef int deliver(self, object data, const char *buf, Py_ssize_t n) except -1:
        """Give what a read of up to RBUF bytes brought to the protocol: data, or n bytes of a buffer."""
        self.drained = n < RBUF and not self.more and not self.by_completion
        try:
            if data is None and not (self.feeds_reader and feed(self.protocol, buf, n)):
                data = PyBytes_FromStringAndSize(buf, n)
            if data is not None:
                PyObject_CallMethodOneArg(self.protocol, data_received, data)
        except BaseException as exc:
            return self.call_failed(exc, "Fatal error: protocol.data_received() call failed.")
        return 0 if self.drained else self.after_read(n, RBUF)

    cdef int read_buffered(self) except -1:
        cdef Py_buffer view
        cdef Py_ssize_t n, asked
        cdef int error
        try:
            buf = self.protocol.get_buffer(-1)
            if not len(buf):
                raise RuntimeError("get_buffer() returned an empty buffer")
        except BaseException as exc:
            return self.call_failed(exc, "Fatal error: protocol.get_buffer() call failed.")
        try:
            PyObject_GetBuffer(buf, &view, PyBUF_WRITABLE)
        except BaseException as exc:
            if isinstance(exc, BufferError):
                exc = TypeError(f"get_buffer() must return a read-write bytes-like object, not {buf!r}")
            return self.call_failed(exc, "Fatal read error on socket transport")
        asked = view.len
        if self.unread is not None:
            data = self.take_unread(asked)
            n = asked = len(data)       # the socket was not asked: read on
            memcpy(view.buf, PyBytes_AS_STRING(data), n)
        else:
            n = self.receive_into(view.buf, asked)
        error = errno
        PyBuffer_Release(&view)
        if n <= 0:
            gl_set_errno(error)
            return self.nothing_came(n)
        self.drained = n < asked and not self.more and not self.by_completion
        try:
            self.protocol.buffer_updated(n)
        except BaseException as exc:
            return self.call_failed(exc, "Fatal error: protocol.buffer_updated() call failed.")
        return 0 if self.drained else self.after_read(n, asked)

    cdef int read_core(self) except -1:
        """As read_buffered(), where no Python code is between."""
        cdef BufferedCore protocol = <BufferedCore>self.protocol
        cdef Py_ssize_t asked = protocol.shared.size, n = recv(self.fd, protocol.shared.mem, asked, MSG_DONTWAIT)
        if n <= 0:
            return self.nothing_came(n)
        self.drained = n < asked and not self.more
        try:
            protocol.updated(n)
        except BaseException as exc:
            return self.call_failed(exc, "Fatal error: protocol.buffer_updated() call failed.")
        return 0 if self.drained else self.after_read(n, asked)

    cdef object take_unread(self, Py_ssize_t most):
        data, self.unread = self.unread[:most], self.unread[most:] or None
        return data

    def _unread(self, data):
        """Give data back: it is read first when reading goes on."""
        if data:
            self.unread = data if self.unread is None else data + self.unread
            self.drained = False
            self.push(EV_AGAIN)

    cdef int on_eof(self) except -1:
        self.debug_log("received EOF")
        self.eof_got = True
        try:
            keep_open = self.protocol.eof_received()
        except BaseException as exc:
            self.eof_got = not isinstance(exc, (SystemExit, KeyboardInterrupt))     # the loop may be run again
            return self.call_failed(exc, "Fatal error: protocol.eof_received() call failed.")
        if not keep_open:
            self.close()
        return 0

    def is_reading(self):
        return not self.closing and not self.paused

    def pause_reading(self):
        self.here("pause_reading")
        if self.closing or self.paused:
            return
        self.paused = True
        if self.by_completion and self.poller is not None:
            self.poller.receive(self, False)
        self.debug_log("pauses reading")

    def resume_reading(self):
        self.here("resume_reading")
        if self.closing or not self.paused:
            return
        self.paused = False
        if self.by_completion and self.poller is not None and self.may_read() and not self.failure \
                and not self.to_readiness:
            self.poller.receive(self, True)
        if self.started and not self.drained and not self.eof_got:
            self.push(EV_AGAIN)
        self.debug_log("resumes reading")

    @property
    def _start_tls_compatible(self):
        return True

    def _lend_fd(self):
        """Leave the poller, so that something else may watch the fd; _take_back_fd() ends that."""
        self.send_out()
        if self.poller is not None:
            self.poller.detach(self)

    def _take_back_fd(self, Poller poller):
        if not self.gone and not self.conn_lost:
            poller.attach(self)
            if self.started:
                self.start_watching()
