# cython: language_level=3, freethreading_compatible=True, binding=True
"""SocketTransport: TCP and Unix stream sockets.

Reading. The fd is registered once, edge-triggered. An event lets one read happen per turn, as on stock; a read that
came back full, or that does not prove the socket empty, queues the next one for the following turn (EV_AGAIN), so that
one fast peer does not keep the others waiting. A short read proves it, except (`more`) on Unix sockets, where a read
ends behind a message with a descriptor; behind urgent data; and when the peer has shut down, where the end is still to
come. `drained` remembers whether the socket was left empty: while reading is paused, events only clear it, and
resume_reading() reads at once unless it is set. So no edge is lost and nothing is read that nobody wants.

Writing. write() tries the send at once, as stock does: a callback that writes and then blocks has written. What the
kernel does not take is kept as bytes objects (mutable data is copied) and sent with writev when EPOLLOUT comes; that
bit is asked for from the first time on that a send would block. With write_batching small data of a busy turn waits in
`out` until the loop polls (batch.pyx), at most OUT_MAX bytes of it; whatever else is done with the transport sends it
first.
"""
cimport cython
import _socket
import socket
import sys
from cpython.bytes cimport PyBytes_FromStringAndSize, PyBytes_AS_STRING, PyBytes_GET_SIZE, PyBytes_CheckExact
from cpython.buffer cimport PyObject_GetBuffer, PyBuffer_Release, PyBUF_SIMPLE, PyBUF_WRITABLE, PyBUF_CONTIG_RO
from cpython.exc cimport PyErr_SetFromErrno
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_DECREF
from libc.errno cimport errno, EAGAIN, ECONNABORTED, EINTR
from gmploop.core.batch cimport GL_PENDING
from gmploop.core.g cimport G, gl_ring_len, gl_ring_push, gl_ring_pop, gl_ring_at, gl_ring_free
from gmploop.core.handle cimport gl_world_mine
from gmploop.core.reader cimport feed, feeds, hasten
from gmploop.core.transport cimport BufferedCore, address_of, AF_INET, AF_INET6, AF_UNIX, sockaddr, sockaddr_storage, socklen_t
from gmploop.core.poller cimport Poller, uint32_t, EV_IN, EV_PRI, EV_OUT, EV_ERR, EV_HUP, EV_RDHUP, EV_START, \
    EV_AGAIN, RBUF

cdef extern from "Python.h":
    int PyContext_Enter(object) except -1
    int PyContext_Exit(object) except -1
    object PyObject_CallMethodOneArg(object, object, object)

cdef extern from *:
    """
    #include <sys/socket.h>
    #include <sys/uio.h>
    #include <netinet/in.h>
    #include <netinet/tcp.h>
    #ifndef MSG_NOSIGNAL
    #define MSG_NOSIGNAL 0
    #endif
    #define set_errno(e) (errno = (e))
    #include <fcntl.h>
    #include <unistd.h>
    static int gl_accept(int fd, struct sockaddr *a, socklen_t *size) {
    #if defined(SOCK_NONBLOCK) && defined(SOCK_CLOEXEC)
        return accept4(fd, a, size, SOCK_NONBLOCK | SOCK_CLOEXEC);
    #else
        int conn = accept(fd, a, size);
        if (conn >= 0) {
            fcntl(conn, F_SETFD, FD_CLOEXEC);
            fcntl(conn, F_SETFL, fcntl(conn, F_GETFL) | O_NONBLOCK);
        }
        return conn;
    #endif
    }
    static PyObject *gl_get(PyObject *descriptor, PyObject *of) {
        return Py_TYPE(descriptor)->tp_descr_get(descriptor, of, (PyObject *)Py_TYPE(of));
    }
    /* getpeername() of a connection that was reset before anybody asked. */
    static int gl_peername_of_lost(int fd, struct sockaddr_storage *a, socklen_t *size) {
    #ifdef SO_PEERNAME
        return getsockopt(fd, SOL_SOCKET, SO_PEERNAME, a, size);
    #else
        return -1;
    #endif
    }
    static void gl_nodelay(int fd) {
        int on = 1;
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    }
    """
    struct iovec:
        void *iov_base
        size_t iov_len
    struct msghdr:
        iovec *msg_iov
        size_t msg_iovlen
    Py_ssize_t recv(int, void *, size_t, int)
    Py_ssize_t send(int, const void *, size_t, int)
    Py_ssize_t sendmsg(int, const msghdr *, int)
    int shutdown(int, int)
    int MSG_NOSIGNAL, MSG_DONTWAIT, SHUT_WR, SOCK_STREAM, IPPROTO_TCP
    void set_errno(int)
    int gl_accept(int, sockaddr *, socklen_t *)
    int getpeername(int, sockaddr *, socklen_t *)
    object gl_get(object, object)
    void gl_nodelay(int)
    int gl_peername_of_lost(int, sockaddr_storage *, socklen_t *) noexcept
    int sizeof_in "sizeof(struct sockaddr_in)", sizeof_in6 "sizeof(struct sockaddr_in6)"
    int c_close "close"(int)

from libc.string cimport memcpy, memset

cdef enum:
    IOV = 128               # chunks a sendmsg takes; 2 KB of stack
    SMALL = 4096            # bytes. A transport that reads in bulk lets the kernel receive again
    SMALL_IN = 64           # after so many reads in a row of at most this size; guessed

# Injected by gmploop.loop.
cdef type shown_class = None
cdef type BufferedProtocol = None
cdef object sendfile_mode = None

# Tunables: config.py says where they come from.
cdef Py_ssize_t BATCH_MAX = 4096, OUT_MAX = 16384


def configure(transport_type, buffered_protocol, try_native, *, Py_ssize_t batch_max, Py_ssize_t out_max):
    """Set what stream transports need of asyncio: the class they show, BufferedProtocol, sendfile's mode; and how many
    bytes of one write, and of several, may wait for the end of the turn."""
    global shown_class, BufferedProtocol, sendfile_mode, BATCH_MAX, OUT_MAX
    shown_class, BufferedProtocol, sendfile_mode = transport_type, buffered_protocol, try_native
    BATCH_MAX, OUT_MAX = batch_max, out_max


cdef str data_received = "data_received"
# Up to 3.11 stock joins the pieces of writelines() first, and refuses in the call what it cannot join.
cdef bint joins_lines = sys.version_info < (3, 12)


cdef inline bint would_block() noexcept:
    return errno == EAGAIN or errno == EINTR


@cython.final
cdef class SocketTransport(Transport):
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

    def __dealloc__(self):
        cdef size_t chunk = gl_ring_pop(&self.wbuf)
        while chunk:
            Py_DECREF(<object><PyObject *>chunk)
            chunk = gl_ring_pop(&self.wbuf)
        gl_ring_free(&self.wbuf)

    cdef uint32_t wanted(self):
        cdef uint32_t mask = EV_OUT if self.wsize or self.mask & EV_OUT else 0
        return mask if self.by_completion else mask | EV_IN | EV_PRI | EV_RDHUP

    cdef int start_watching(self) except -1:
        self.by_completion, self.batching = self.poller.receives, self.poller.batches
        self.poller.watch(self, self.wanted())
        if self.by_completion and self.may_read():
            self.poller.receive(self, True)
        return 0

    cdef int clear_buffer(self) except -1:
        data = self.out
        if data is not None and self.take_out() == GL_PENDING and not self.wsize and self.poller is not None \
                and not self.poller.forked():
            # without a batch it had left
            send(self.fd, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), MSG_NOSIGNAL | MSG_DONTWAIT)
        return self.clear_wbuf()

    cdef int use_protocol(self, protocol) except -1:
        self.buffered = isinstance(protocol, BufferedProtocol)
        self.core = isinstance(protocol, BufferedCore)
        self.feeds_reader = feeds(protocol)
        if self.feeds_reader:
            hasten(protocol)
        self.protocol = protocol
        return 0

    cdef int ended(self) except -1:
        if self.empty_waiter is not None and not self.empty_waiter.done():
            self.empty_waiter.set_exception(ConnectionError("Connection is closed by peer"))
        return 0

    cdef int on_events(self, uint32_t events) except -1:
        if events & EV_START:
            return self.start()
        if self.gone:
            return 0
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
        if self.failure < 0:
            return self.on_eof()
        if self.failure > 0:
            set_errno(self.failure)
            return self.read_failed()
        self.drained = True
        return 0

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

    cdef int read_failed(self) except -1:
        if would_block():
            self.drained = not self.more
            return 0
        try:
            PyErr_SetFromErrno(OSError)
        except OSError as exc:
            self.fatal(exc, "Fatal read error on socket transport")
        return 0

    cdef int read_data(self) except -1:
        cdef char *buf = NULL
        cdef Py_ssize_t n
        data = None
        if self.unread is not None:
            data = self.take_unread(RBUF)
            n = RBUF
        else:
            buf = self.poller.read_buffer()
            n = recv(self.fd, buf, RBUF, MSG_DONTWAIT)
            if n < 0:
                return self.read_failed()
            if n == 0:
                return self.on_eof()
            if self.poller.receives:
                self.run = self.run + 1 if n <= SMALL else 0
                if self.run >= SMALL_IN:
                    self.receive_again()
        self.drained = n < RBUF and not self.more and not self.by_completion
        try:
            if data is None and not (self.feeds_reader and feed(self.protocol, buf, n)):
                data = PyBytes_FromStringAndSize(buf, n)
            if data is not None:
                PyObject_CallMethodOneArg(self.protocol, data_received, data)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exc:
            self.fatal(exc, "Fatal error: protocol.data_received() call failed.")
            return 0
        return 0 if self.drained else self.after_read(n, RBUF)

    cdef int read_buffered(self) except -1:
        cdef Py_buffer view
        cdef Py_ssize_t n, asked
        cdef int error
        try:
            buf = self.protocol.get_buffer(-1)
            if not len(buf):
                raise RuntimeError("get_buffer() returned an empty buffer")
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exc:
            self.fatal(exc, "Fatal error: protocol.get_buffer() call failed.")
            return 0
        try:
            PyObject_GetBuffer(buf, &view, PyBUF_WRITABLE)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exc:
            if isinstance(exc, BufferError):
                exc = TypeError(f"get_buffer() must return a read-write bytes-like object, not {buf!r}")
            self.fatal(exc, "Fatal read error on socket transport")
            return 0
        asked = view.len
        if self.unread is not None:
            data = self.take_unread(asked)
            n = asked = len(data)       # the socket was not asked: read on
            memcpy(view.buf, PyBytes_AS_STRING(data), n)
        else:
            n = recv(self.fd, view.buf, asked, MSG_DONTWAIT)
            if self.poller.receives and n > 0:
                self.run = self.run + 1 if n <= SMALL else 0
                if self.run >= SMALL_IN:
                    self.receive_again()
        if n < 0:
            error = errno
            PyBuffer_Release(&view)
            set_errno(error)
            return self.read_failed()
        PyBuffer_Release(&view)
        if n == 0:
            return self.on_eof()
        self.drained = n < asked and not self.more and not self.by_completion
        try:
            self.protocol.buffer_updated(n)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exc:
            self.fatal(exc, "Fatal error: protocol.buffer_updated() call failed.")
            return 0
        return 0 if self.drained else self.after_read(n, asked)

    cdef int read_core(self) except -1:
        """As read_buffered(), where no Python code is between."""
        cdef BufferedCore protocol = <BufferedCore>self.protocol
        cdef Py_ssize_t asked = 0, n
        cdef char *buf = protocol.get_memory(&asked)
        n = recv(self.fd, buf, asked, MSG_DONTWAIT)
        if n < 0:
            return self.read_failed()
        if n == 0:
            return self.on_eof()
        self.drained = n < asked and not self.more
        try:
            protocol.updated(n)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exc:
            self.fatal(exc, "Fatal error: protocol.buffer_updated() call failed.")
            return 0
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
        except (SystemExit, KeyboardInterrupt):
            self.eof_got = False
            raise
        except BaseException as exc:
            self.fatal(exc, "Fatal error: protocol.eof_received() call failed.")
            return 0
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

    # -- writing

    cdef int may_write(self, str what) except -1:
        self.here(what)
        if self.eof_sent:
            raise RuntimeError(f"Cannot call {what}() after write_eof()")
        if self.empty_waiter is not None:
            raise RuntimeError(f"unable to {what}; sendfile is in progress")
        return 0

    cdef Py_ssize_t send_now(self, object data) except -2:
        """Bytes the kernel took; -1 when the connection was found broken (and is being closed)."""
        cdef Py_buffer view
        cdef Py_ssize_t n
        cdef int error
        if PyBytes_CheckExact(data):
            n = send(self.fd, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), MSG_NOSIGNAL | MSG_DONTWAIT)
        else:
            try:
                PyObject_GetBuffer(data, &view, PyBUF_SIMPLE)
            except BufferError as exc:              # not contiguous: stock's send() raises, and ends the connection
                self.fatal(exc, "Fatal write error on socket transport")
                return -1
            n = send(self.fd, view.buf, view.len, MSG_NOSIGNAL | MSG_DONTWAIT)
            error = errno
            PyBuffer_Release(&view)
            set_errno(error)
        if n >= 0:
            return n
        if would_block():
            return 0
        try:
            PyErr_SetFromErrno(OSError)
        except OSError as exc:
            self.fatal(exc, "Fatal write error on socket transport")
        return -1

    def write(self, data):
        """Send data now as far as the kernel takes it, buffer the rest."""
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(f"data argument must be a bytes-like object, not {type(data).__name__!r}")
        self.write_now(data, len(data) if not isinstance(data, memoryview) else (<object>data).nbytes)

    cdef int write_now(self, object data, Py_ssize_t size) except -1:
        cdef Py_ssize_t n
        self.may_write("write")
        if size == 0 or self.lost():
            return 0
        if self.batching and self.put_out(data, size):
            return 0
        n = 0
        if self.wsize == 0:
            n = self.send_now(data)
            if n == size or n < 0:
                return 0
        self.keep(data, n)
        self.arm_write()
        return self.maybe_pause()

    cdef bint put_out(self, object data, Py_ssize_t size) except -1:
        """Whether the data will be sent, or is dropped, without write(): what waits goes first if it is not to wait."""
        if (self.wsize == 0 and size <= BATCH_MAX and not isinstance(data, memoryview)
                and gl_world_mine(&self.g.w)):
            if self.out is None:
                if not self.poller.send_later(self, data if PyBytes_CheckExact(data) else bytes(data)):
                    return False
                self.buffering_begins()
                return True
            if len(self.out) + size <= OUT_MAX and self.poller.send_later(self, self.out + data):
                return True
        if self.out is not None:
            self.send_out()
            return self.conn_lost != 0
        return False

    cdef int take_out(self) except? -1:
        """Take `out` from the batch, and drop it. What the batch has done with it, as for batch_sent()."""
        cdef int n = self.poller.take_back(self) if self.poller is not None else GL_PENDING
        self.out = None
        return n

    cdef int send_out(self) except -1:
        cdef Py_ssize_t n
        data = self.out
        if data is None:
            return 0
        if self.poller is not None and self.poller.forked():    # in a child: the parent sends it
            self.out = None
            return 0
        n = self.take_out()
        if n == GL_PENDING:
            n = self.send_now(data)
            if n < 0:
                return 0
        elif n == -EAGAIN or n == -EINTR:
            n = 0
        elif n < 0:
            set_errno(<int>-n)
            return self.write_failed()
        if n < len(data):
            self.keep(data, n)
            self.arm_write()
            self.maybe_pause()
        return 0

    cdef int batch_sent(self, int n) except -1:
        data, self.out = self.out, None
        if data is None or n >= len(data):
            return 0
        if n < 0 and n != -EAGAIN and n != -EINTR and n != GL_PENDING:
            set_errno(-n)
            return self.write_failed()
        self.keep(data, max(n, 0))
        return self.push(EV_OUT)        # user code may be told to pause there

    def writelines(self, list_of_data):
        """As write() of the concatenation, which is made of little data only."""
        cdef Py_ssize_t size = 0
        self.may_write("writelines")
        chunks = [data if PyBytes_CheckExact(data) else memoryview(data) for data in list_of_data]
        if not chunks or self.lost():
            return
        for data in chunks:
            if not PyBytes_CheckExact(data) and not data.c_contiguous:
                if joins_lines:
                    raise TypeError(f"writelines() wants contiguous bytes-like objects, not {data!r}")
                self.fatal(BufferError("memoryview: underlying buffer is not C-contiguous"),
                           "Fatal write error on socket transport")
                return
            size += PyBytes_GET_SIZE(data) if PyBytes_CheckExact(data) else <Py_ssize_t>data.nbytes
        if self.wsize == 0 and size <= BATCH_MAX:
            self.write_now(b"".join(chunks), size)      # of one bytes object: itself
            return
        self.send_out()
        if self.conn_lost:
            return
        cdef bint first = self.wsize == 0
        for data in chunks:
            self.keep(data, 0)
        if first and self.wsize:
            self.flush()
        if self.wsize:
            self.arm_write()
            self.maybe_pause()

    cdef int keep(self, object data, Py_ssize_t offset) except -1:
        """Append data[offset:] (in bytes) to the buffer."""
        cdef bytes chunk
        if self.wsize == 0:
            self.buffering_begins()
        if PyBytes_CheckExact(data):
            if gl_ring_len(&self.wbuf) == 0:
                chunk, self.woff = data, offset
            else:
                chunk = data
        else:
            chunk = bytes(memoryview(data).cast("B")[offset:]) if offset else bytes(data)
            offset = 0
        if len(chunk) == offset:
            return 0
        Py_INCREF(chunk)
        if gl_ring_push(&self.wbuf, <size_t><PyObject *>chunk) < 0:
            Py_DECREF(chunk)
            raise MemoryError()
        self.wsize += len(chunk) - offset
        return 0

    cdef int arm_write(self) except -1:
        if self.started and not self.mask & EV_OUT:
            if self.poller is None:
                return self.displaced()
            self.poller.watch(self, self.wanted())
        return 0

    def get_write_buffer_size(self):
        return self.wsize + (len(self.out) if self.out is not None else 0)

    cdef int clear_wbuf(self) except -1:
        cdef size_t chunk = gl_ring_pop(&self.wbuf)
        self.wsize = self.woff = 0
        while chunk:
            Py_DECREF(<object><PyObject *>chunk)
            chunk = gl_ring_pop(&self.wbuf)
        gl_ring_free(&self.wbuf)
        return 0

    cdef int flush(self) except -1:
        cdef iovec iov[IOV]
        cdef msghdr msg
        cdef size_t i, count
        cdef Py_ssize_t n, size
        cdef PyObject *chunk
        if self.conn_lost:
            return 0
        while self.wsize:
            count = min(gl_ring_len(&self.wbuf), <size_t>IOV)
            size = 0
            for i in range(count):
                chunk = <PyObject *>gl_ring_at(&self.wbuf, i)
                iov[i].iov_base = PyBytes_AS_STRING(<object>chunk) + (self.woff if i == 0 else 0)
                iov[i].iov_len = PyBytes_GET_SIZE(<object>chunk) - (self.woff if i == 0 else 0)
                size += iov[i].iov_len
            memset(&msg, 0, sizeof(msg))
            msg.msg_iov, msg.msg_iovlen = iov, count
            n = sendmsg(self.fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT)
            if n < 0:
                if would_block():
                    break
                return self.write_failed()
            self.sent(n)
            if n < size:
                break
        try:
            self.maybe_resume()         # may write again
        finally:
            self.flushed()
        return 0

    cdef int flushed(self) except -1:
        if self.closing:
            self.send_out()             # what resume_writing() wrote
        if self.wsize == 0 and not self.conn_lost:
            if self.empty_waiter is not None and not self.empty_waiter.done():
                self.empty_waiter.set_result(None)
            if self.closing:
                self.conn_lost += 1
                self.call_lost(None)
            elif self.eof_sent:
                self.shutdown_write()
        return 0

    cdef int sent(self, Py_ssize_t n) except -1:
        cdef PyObject *chunk
        cdef Py_ssize_t left
        self.wsize -= n
        while n:
            chunk = <PyObject *>gl_ring_at(&self.wbuf, 0)
            left = PyBytes_GET_SIZE(<object>chunk) - self.woff
            if n < left:
                self.woff += n
                return 0
            n -= left
            self.woff = 0
            gl_ring_pop(&self.wbuf)
            Py_DECREF(<object>chunk)
        if self.wsize == 0:
            gl_ring_free(&self.wbuf)
        return 0

    cdef int write_failed(self) except -1:
        try:
            PyErr_SetFromErrno(OSError)
        except OSError as exc:
            self.clear_wbuf()
            self.fatal(exc, "Fatal write error on socket transport")
            if self.empty_waiter is not None and not self.empty_waiter.done():
                self.empty_waiter.set_exception(exc)
        return 0

    cdef int shut_down(self) except -1:
        if shutdown(self.fd, SHUT_WR) < 0:
            PyErr_SetFromErrno(OSError)
        return 0

    cdef int shutdown_write(self) except -1:
        try:
            self.shut_down()
        except OSError as exc:
            self.fatal(exc, "Fatal error: shutdown() of the socket failed")
        return 0

    def write_eof(self):
        """Close the write end when the buffer is empty."""
        self.here("write_eof")
        if self.closing or self.eof_sent:
            return
        self.send_out()
        self.eof_sent = True
        if not self.wsize:
            self.shut_down()

    def can_write_eof(self):
        return True

    @property
    def _start_tls_compatible(self):
        return True

    @property
    def _sendfile_compatible(self):
        return sendfile_mode

    def _make_empty_waiter(self):
        if self.empty_waiter is not None:
            raise RuntimeError("Empty waiter is already set")
        self.send_out()
        self.empty_waiter = self.g.create_future()
        if not self.wsize:
            self.empty_waiter.set_result(None)
        return self.empty_waiter

    def _reset_empty_waiter(self):
        self.empty_waiter = None

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


# -- servers

# Plain numbers, where the properties of socket.socket make enumerations of them.
cdef object socket_family = _socket.socket.family
cdef object socket_type = _socket.socket.type
cdef object socket_proto = _socket.socket.proto


def accepts(sock):
    """Whether accept_connections() can take the connections of this listening socket."""
    if type(sock) is not socket.socket or <int>gl_get(socket_type, sock) != SOCK_STREAM:
        return False
    cdef int family = gl_get(socket_family, sock)
    return family == AF_INET or family == AF_INET6 or family == AF_UNIX


def accept_connections(G loop not None, Poller poller not None, sock, factory, server, int most, context):
    """Accept what waits at a listening socket, `most` connections at most, and make a transport with a protocol of the
    factory for each. The socket object of a connection is made when somebody asks for it. OSError as accept() has it;
    an error of the factory goes to loop._accept_failed(), and the connection is closed."""
    cdef sockaddr_storage a
    cdef socklen_t size
    cdef int listener, conn, i
    cdef int family = gl_get(socket_family, sock), proto = gl_get(socket_proto, sock)
    for i in range(most):
        listener = sock.fileno()
        if listener < 0:                    # a factory closed the server
            return
        size = sizeof(a)
        conn = gl_accept(listener, <sockaddr *>&a, &size)
        if conn < 0:
            if errno == ECONNABORTED:
                continue
            if not would_block():
                PyErr_SetFromErrno(OSError)
            return
        serve(loop, poller, conn, family, proto, &a, size, factory, server, context)


cdef socklen_t find_peer(int conn, int family, sockaddr_storage *a) noexcept:
    """The length of the peer's address, which is put at `a`; also if the peer is gone again, where the system tells."""
    cdef socklen_t size = sizeof(a[0])
    if getpeername(conn, <sockaddr *>a, &size) == 0:
        return size
    size = sizeof_in6 if family == AF_INET6 else sizeof_in
    if family != AF_UNIX and gl_peername_of_lost(conn, a, &size) == 0:
        return size
    memset(a, 0, sizeof(a[0]))
    return 0


def peer_of_lost(int conn, sock):
    """The peer's address of a connection from the listening socket that was reset before anybody asked; or None."""
    cdef sockaddr_storage a
    cdef socklen_t size = find_peer(conn, gl_get(socket_family, sock), &a) if accepts(sock) else 0
    return address_of(&a, size) if size else None


def serve_accepted(G loop not None, Poller poller not None, int conn, sock, factory, server, context):
    """The same for one connection that was accepted by other means from the listening socket. conn is taken over."""
    cdef sockaddr_storage a
    cdef socklen_t size = find_peer(conn, gl_get(socket_family, sock), &a)
    serve(loop, poller, conn, gl_get(socket_family, sock), gl_get(socket_proto, sock), &a, size, factory, server, context)


cdef int serve(G loop, Poller poller, int conn, int family, int proto, sockaddr_storage *a, socklen_t size, factory, server,
               context) except -1:
    cdef SocketTransport t = None
    own = protocol = None
    try:
        if context is None:
            protocol = factory()
        else:
            own = context.copy()
            protocol = own.run(factory)
        t = SocketTransport.__new__(SocketTransport)
        t.accepted(loop, poller, conn, family, proto, a, size, protocol, server, own)
    except BaseException as exc:
        if t is None or not t.born:
            c_close(conn)
        if isinstance(exc, (SystemExit, KeyboardInterrupt)):
            raise
        loop._accept_failed(exc, protocol, t if t is not None and t.born else None)
    return 0


@cython.final
cdef class Accepted:
    """An accepted connection without a transport: one is made of it in the world that shall have it. Dropped, it closes."""
    cdef int fd, family, proto
    cdef sockaddr_storage a
    cdef socklen_t size

    def __cinit__(self):
        self.fd = -1

    def __dealloc__(self):
        self.close()

    def close(self):
        fd, self.fd = self.fd, -1
        if fd >= 0:
            c_close(fd)

    def adopt(self, G loop not None, Poller poller not None, protocol, server, context):
        """Make the transport. If that fails the connection is closed."""
        cdef SocketTransport t = SocketTransport.__new__(SocketTransport)
        try:
            t.accepted(loop, poller, self.fd, self.family, self.proto, &self.a, self.size, protocol, server, context)
        finally:
            if t.born:
                self.fd = -1
            self.close()


def accept_one(sock):
    """The next connection that waits at a listening socket which accepts() approves of; None if none does."""
    cdef Accepted conn = Accepted.__new__(Accepted)
    conn.family, conn.proto = gl_get(socket_family, sock), gl_get(socket_proto, sock)
    while sock.fileno() >= 0:
        conn.size = sizeof(conn.a)
        conn.fd = gl_accept(sock.fileno(), <sockaddr *>&conn.a, &conn.size)
        if conn.fd >= 0:
            return conn
        if errno != ECONNABORTED:
            if not would_block():
                PyErr_SetFromErrno(OSError)
            return None
