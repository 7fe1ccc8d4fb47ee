# cython: language_level=3, freethreading_compatible=True, binding=True
"""SocketWriter: the writing half of a stream socket's transport.

write() tries the send at once, as stock does: a callback that writes and then blocks has written. What the kernel does
not take is kept as bytes objects (mutable data is copied) and sent with writev when EPOLLOUT comes; that bit is asked for
from the first time on that a send would block. With write_batching small data of a busy turn waits in `out` until the
loop polls (batch.pyx), at most OUT_MAX bytes of it; whatever else is done with the transport sends it first.
"""
cimport cython
import sys
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE, PyBytes_CheckExact
from cpython.buffer cimport PyObject_GetBuffer, PyBuffer_Release, PyBUF_SIMPLE
from cpython.exc cimport PyErr_SetFromErrno
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_DECREF
from libc.errno cimport errno, EAGAIN, EINTR
from libc.string cimport memset
from gmploop.core.batch cimport GL_PENDING, gl_out_left
from gmploop.core.g cimport gl_ring_len, gl_ring_push, gl_ring_pop, gl_ring_at, gl_ring_free
from gmploop.core.handle cimport gl_world_mine
from gmploop.core.poller cimport EV_OUT

cdef extern from "sockets.h":
    struct iovec:
        void *iov_base
        size_t iov_len
    struct msghdr:
        iovec *msg_iov
        size_t msg_iovlen
    Py_ssize_t send(int, const void *, size_t, int)
    Py_ssize_t sendmsg(int, const msghdr *, int)
    int shutdown(int, int)
    int MSG_NOSIGNAL, MSG_DONTWAIT, SHUT_WR
    bint gl_would_block()
    void gl_set_errno(int)

cdef enum:
    IOV = 128               # chunks a sendmsg takes; 2 KB of stack

# Injected by gmploop.loop.
cdef object sendfile_mode = None

# Tunables: config.py says where they come from.
cdef Py_ssize_t BATCH_MAX = 4096, OUT_MAX = 16384


def configure(try_native, *, Py_ssize_t batch_max, Py_ssize_t out_max):
    """Set sendfile's mode, and how many bytes of one write, and of several, may wait for the end of the turn."""
    global sendfile_mode, BATCH_MAX, OUT_MAX
    sendfile_mode, BATCH_MAX, OUT_MAX = try_native, batch_max, out_max


# Up to 3.11 stock joins the pieces of writelines() first, and refuses in the call what it cannot join.
cdef bint joins_lines = sys.version_info < (3, 12)


cdef class SocketWriter(Transport):
    def __dealloc__(self):
        cdef size_t chunk = gl_ring_pop(&self.wbuf)
        while chunk:
            Py_DECREF(<object><PyObject *>chunk)
            chunk = gl_ring_pop(&self.wbuf)
        gl_ring_free(&self.wbuf)

    @cython.final
    cdef int may_write(self, str what) except -1:
        self.here(what)
        if self.eof_sent:
            raise RuntimeError(f"Cannot call {what}() after write_eof()")
        if self.empty_waiter is not None:
            raise RuntimeError(f"unable to {what}; sendfile is in progress")
        return 0

    @cython.final
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
            gl_set_errno(error)
        if n >= 0:
            return n
        if gl_would_block():
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

    @cython.final
    cdef bint put_out(self, object data, Py_ssize_t size) except -1:
        """Whether the data will be sent, or is dropped, without write(): what waits goes first if it is not to wait."""
        if self.moves and self.batch_at:
            self.reclaim()
            if self.conn_lost:
                return True
        if (self.wsize == 0 and size <= BATCH_MAX and not isinstance(data, memoryview)
                and gl_world_mine(&self.g.w) and self.poller is not None):
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

    cdef int reclaim(self) except -1:
        """In a world that moves: no batch has `out` any more. Afterwards that is None, or unsent."""
        cdef int n = self.poller.take_back(self) if self.poller is not None else GL_PENDING
        if n != GL_PENDING:
            self.batch_sent(n)
            if self.wsize:
                self.arm_write()
                self.maybe_pause()
        return 0

    cdef int take_out(self) except? -1:
        """Take `out` from the batch, and drop it. What the batch has done with it, as for batch_sent()."""
        cdef int n = self.poller.take_back(self) if self.poller is not None else GL_PENDING
        self.out = None
        return n

    cdef int send_out(self) except -1:
        cdef Py_ssize_t n
        if self.moves and self.batch_at:
            self.reclaim()
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
            gl_set_errno(<int>-n)
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
            gl_set_errno(-n)
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

    @cython.final
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
        if self.moves:
            return self.wsize + (gl_out_left(&self.shared_out, self.batch_at) if self.batch_at else 0)
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
                if gl_would_block():
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
        if self.closing:                # that found the connection broken
            return
        self.eof_sent = True
        if not self.wsize:
            self.shut_down()

    def can_write_eof(self):
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

    # -- the end

    cdef int clear_buffer(self) except -1:
        cdef int n = self.poller.take_back(self) if self.batch_at and self.poller is not None else GL_PENDING
        data, self.out = self.out, None         # now it is in no batch
        if data is not None and n == GL_PENDING and not self.wsize and self.poller is not None \
                and not self.poller.forked():
            # without a batch it had left
            send(self.fd, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), MSG_NOSIGNAL | MSG_DONTWAIT)
        return self.clear_wbuf()

    cdef int ended(self) except -1:
        if self.empty_waiter is not None and not self.empty_waiter.done():
            self.empty_waiter.set_exception(ConnectionError("Connection is closed by peer"))
        return 0
