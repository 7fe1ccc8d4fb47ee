# cython: language_level=3, freethreading_compatible=True, binding=True
"""SSLCore: the data path of TLS, under what is left of asyncio's SSLProtocol (handshake, farewell, timeouts).

`transports.SSLProtocol` inherits from SSLCore first and from asyncio's class second. So the attributes below are the
very ones that asyncio's methods use, by the same names, and the methods here take the place of asyncio's: what they do
is the same, in the same order, with these differences.

Reading. What the socket gives lands in the loop's buffer and goes to the memory BIO at once. Whatever is decrypted
lands in the same buffer, until it becomes a bytes object: nothing of ours is in it while somebody else's code runs.
A record that is not whole is not asked for, because the answer is an exception, which costs more than a record: the
headers of the records that pass are followed, and the last `tail` bytes that came are known to be of a record whose end
has not come. OpenSSL may have taken some of them, so `pending <= tail` says that no whole record is left, and as soon
as one is, `pending > tail`. Where the headers are not those of TLS, nothing is known and each read is tried.

Writing. A piece goes to OpenSSL as it is, record by record, through a view instead of ever shorter copies. What has to
wait is joined later, and so is what writelines() was given, up to a limit.
"""
from cpython.bytes cimport PyBytes_FromStringAndSize, PyBytes_CheckExact, PyBytes_AS_STRING
from cpython.buffer cimport PyObject_GetBuffer, PyBuffer_Release, Py_buffer, PyBUF_WRITABLE
from cpython.memoryview cimport PyMemoryView_FromMemory
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF
from gmploop.core.reader cimport feed, feeds
from gmploop.core.g cimport G
from gmploop.core.handle cimport gl_world_mine, gl_load_relaxed

cdef extern from "Python.h":
    enum: PyBUF_READ, PyBUF_WRITE
    PyObject *new_bytes "PyBytes_FromStringAndSize"(const char *, Py_ssize_t) except NULL
    int resize_bytes "_PyBytes_Resize"(PyObject **, Py_ssize_t) except -1

cdef enum:
    RECORD = 16384          # bytes of a record at most (RFC 8446, 5.1)
    HEADER = 5              # bytes of a record's header: type, version (2), length (2)
    MOST = RECORD + 2048    # bytes of a record at most, encrypted (RFC 5246, 6.2.3)
    JOIN = 256 * 1024       # writelines() joins pieces up to here, stock's size of a read
    SMALL = 4096            # up to here a copy is cheaper than a view (measured)
    LOG_LOST_WRITES = 5     # asyncio.constants.LOG_THRESHOLD_FOR_CONNLOST_WRITES

# Injected by gmploop.transports.
cdef object DO_HANDSHAKE = None, WRAPPED = None, FLUSHING = None, SHUTDOWN = None
cdef tuple again = ()
cdef object SSLObject = None, logger = None


def configure(states, want_errors, ssl_object, log):
    """Set what is needed of asyncio and ssl: SSLProtocolState, the exceptions that mean "try again", SSLObject, the
    logger."""
    global DO_HANDSHAKE, WRAPPED, FLUSHING, SHUTDOWN, again, SSLObject, logger
    DO_HANDSHAKE, WRAPPED, FLUSHING, SHUTDOWN = (states.DO_HANDSHAKE, states.WRAPPED, states.FLUSHING,
                                                 states.SHUTDOWN)
    again, SSLObject, logger = want_errors, ssl_object, log


cdef inline object as_bytes(object data):
    """data itself, unless it is a view whose items are not bytes: len() and slices of those do not count bytes."""
    if isinstance(data, memoryview) and (data.itemsize != 1 or data.ndim != 1):
        return bytes(data)
    return data


cdef class SSLCore:
    """See the module's head."""

    cdef public object _loop, _app_protocol, _app_transport, _transport, _sslobj, _incoming, _outgoing
    cdef public object _state, _write_backlog, _ssl_buffer, _ssl_buffer_view
    cdef public object _app_protocol_get_buffer, _app_protocol_buffer_updated
    cdef public object _incoming_high_water, _incoming_low_water, _outgoing_high_water, _outgoing_low_water
    cdef public Py_ssize_t _write_buffer_size
    cdef public long _conn_lost
    cdef public bint _app_protocol_is_buffer, _ssl_writing_paused, _ssl_reading_paused
    cdef public bint _app_reading_paused, _app_writing_paused
    cdef object shared          # the loop's buffer, a memoryview
    cdef unsigned char *mem     # what it shows
    cdef Py_ssize_t size
    cdef Py_ssize_t tail        # bytes of an unfinished record that have come
    cdef Py_ssize_t left        # bytes of it that have not, once its header is there
    cdef int got                # bytes of its header that have come
    cdef unsigned char header[HEADER]
    cdef bint unframed          # what comes are not TLS records

    def _share_buffer(self, view):
        """Use `view`, a memoryview of a bytearray, for all that comes in."""
        cdef Py_buffer buffer
        PyObject_GetBuffer(view, &buffer, PyBUF_WRITABLE)
        self.mem, self.size = <unsigned char *>buffer.buf, buffer.len
        PyBuffer_Release(&buffer)       # the view keeps the bytearray as it is
        self.shared = self._ssl_buffer_view = view
        self._ssl_buffer = view.obj

    # -- incoming

    def get_buffer(self, n):
        return self.shared

    cdef int follow(self, const unsigned char *p, Py_ssize_t n) noexcept:
        """Keep `tail` right: n bytes at p have come."""
        if self.unframed:
            return 0
        while n:
            if self.left > n:
                self.left -= n
                self.tail += n
                return 0
            if self.left:
                p += self.left
                n -= self.left
                self.left = self.tail = 0
                continue
            self.header[self.got] = p[0]
            self.got += 1
            self.tail += 1
            p += 1
            n -= 1
            if self.got == HEADER:
                self.got = 0
                self.left = self.header[3] << 8 | self.header[4]
                if not self.left:
                    self.tail = 0
                elif not 20 <= self.header[0] <= 24 or self.header[1] != 3 or self.left > MOST:
                    self.unframed = True
                    self.tail = 0
                    return 0
        return 0

    def buffer_updated(self, Py_ssize_t nbytes):
        if not 0 <= nbytes <= self.size:
            raise ValueError(f"{nbytes} bytes are not in a buffer of {self.size}")
        self.follow(self.mem, nbytes)
        if nbytes <= SMALL:
            self._incoming.write(PyBytes_FromStringAndSize(<char *>self.mem, nbytes))
        else:
            self._incoming.write(PyMemoryView_FromMemory(<char *>self.mem, nbytes, PyBUF_READ))
        state = self._state
        if state is WRAPPED:
            self.do_read()
        elif state is DO_HANDSHAKE:
            self._do_handshake()
        elif state is FLUSHING:
            self._do_flush()
        elif state is SHUTDOWN:
            self._do_shutdown()

    def _do_read(self):
        self.do_read()

    cdef int do_read(self) except -1:
        if self._state is not WRAPPED and self._state is not FLUSHING:
            return 0
        try:
            if not self._app_reading_paused:
                if self._app_protocol_is_buffer:
                    self._do_read__buffered()
                else:
                    self.read_copied()
                if self._write_backlog:
                    self.do_write()
                else:
                    self.process_outgoing()
            self.control_ssl_reading()
        except Exception as exc:
            self._fatal_error(exc, "Fatal error on SSL protocol")
        return 0

    cdef bint may_read(self, Py_ssize_t last) except -1:
        """Whether there is anything that a read could decrypt, after a read of `last` bytes (0: before any)."""
        if <Py_ssize_t>self._incoming.pending > self.tail:
            return True
        return (last == 0 or last >= RECORD) and self._sslobj.pending() > 0

    def _do_read__copied(self):
        self.read_copied()

    cdef int read_copied(self) except -1:
        """Decrypt all there is, and hand it on as one object."""
        cdef Py_ssize_t n = 1
        cdef list chunks = None
        cdef bytes data = None
        while n > 0 and self.may_read(0):
            n = self._incoming.pending
            more = self.decrypt_much(&n) if n > 2 * RECORD and type(self._sslobj) is SSLObject else self.decrypt(&n)
            if not more:
                continue
            if data is None:
                data = more
            elif chunks is None:
                chunks = [data, more]
            else:
                chunks.append(more)
        if data is not None:
            if chunks is not None:
                data = b"".join(chunks)
            if not (feeds(self._app_protocol) and feed(self._app_protocol, PyBytes_AS_STRING(data), len(data))):
                self._app_protocol.data_received(data)
        if n == 0:
            self._call_eof_received()
            self._start_shutdown()
        return 0

    cdef bytes decrypt(self, Py_ssize_t *last):
        """What is decrypted of what has come, as far as the loop's buffer takes it. last: what the last read gave; 0
        is the end, -1 that OpenSSL wants more."""
        cdef Py_ssize_t offset = self.decrypt_into(self.shared, self.size, last)
        return PyBytes_FromStringAndSize(<char *>self.mem, offset)

    cdef bytes decrypt_much(self, Py_ssize_t *last):
        """The same without a copy, as far as an object takes it that is as large as what has come encrypted."""
        cdef Py_ssize_t size = self._incoming.pending, offset
        cdef PyObject *data = new_bytes(NULL, size)
        try:
            view = PyMemoryView_FromMemory(PyBytes_AS_STRING(<object>data), size, PyBUF_WRITE)
            offset = self.decrypt_into(view, size, last)
            view = None         # ssl.SSLObject has kept no part of it
        except BaseException:
            Py_DECREF(<object>data)
            raise
        resize_bytes(&data, offset)         # lets go of it if it fails
        result = <bytes>data
        Py_DECREF(result)
        return result

    cdef Py_ssize_t decrypt_into(self, view, Py_ssize_t size, Py_ssize_t *last) except -1:
        cdef Py_ssize_t offset = 0, n = 0
        sslobj = self._sslobj
        try:
            while offset < size:
                n = sslobj.read(size - offset, view[offset:] if offset else view)
                if n == 0:
                    break
                if not 0 < n <= size - offset:      # an SSLObject of somebody else's making
                    raise ValueError(f"read() gave {n} bytes where {size - offset} were asked for")
                offset += n
                if not self.may_read(n):
                    break
        except again:
            n = -1
        last[0] = n
        return offset

    def _do_read__buffered(self):
        cdef Py_ssize_t offset = 0, n = 0, wants
        cdef bint eof = False
        if not self.may_read(0):
            return
        buf = self._app_protocol_get_buffer(self._incoming.pending)
        with memoryview(buf) as whole, whole.cast("B") as view:
            wants = len(view)
            try:
                while True:
                    n = self._sslobj.read(wants - offset, view[offset:] if offset else view)
                    if n <= 0:
                        eof = True
                        break
                    offset += n
                    if offset >= wants:
                        self._loop.call_soon(self._do_read)
                        break
                    if not self.may_read(1):        # it came back short: of that record there is no more
                        break
            except again:
                pass
        buf = None
        if offset > 0:
            self._app_protocol_buffer_updated(offset)
        if eof:
            self._call_eof_received()
            self._start_shutdown()

    cdef int control_ssl_reading(self) except -1:
        pending = self._incoming.pending
        if not pending and not self._ssl_reading_paused and self._incoming_high_water:
            return 0
        if pending >= self._incoming_high_water and not self._ssl_reading_paused:
            self._ssl_reading_paused = True
            self._transport.pause_reading()
        elif pending <= self._incoming_low_water and self._ssl_reading_paused:
            self._ssl_reading_paused = False
            self._transport.resume_reading()
        return 0

    def _control_ssl_reading(self):
        self.control_ssl_reading()

    # -- outgoing

    def _write_appdata(self, list_of_data):
        cdef Py_ssize_t total = 0
        cdef list pieces = [as_bytes(data) for data in list_of_data]
        for data in pieces:
            total += len(data)
        self.write_pieces(pieces, total)

    cdef int write_pieces(self, list pieces, Py_ssize_t total) except -1:
        state = self._state
        if state is not WRAPPED and state is not DO_HANDSHAKE:
            if self._conn_lost >= LOG_LOST_WRITES:
                logger.warning("SSL connection is closed")
            self._conn_lost += 1
            return 0
        try:
            if len(pieces) > 1 and total <= JOIN:
                pieces = [b"".join(pieces)]
            for data in pieces:
                if state is not WRAPPED or self._write_backlog:
                    self.keep(data)
                else:
                    self.encrypt(data)
            if state is WRAPPED:
                self.do_write()
        except Exception as exc:
            self._fatal_error(exc, "Fatal error on SSL protocol")
        return 0

    cdef int keep(self, data) except -1:
        if len(data):
            self._write_backlog.append(data if PyBytes_CheckExact(data) else bytes(memoryview(data)))
            self._write_buffer_size += len(data)
        return 0

    cdef int encrypt(self, data) except -1:
        """Write data. If OpenSSL will not take all of it, the rest becomes the first of the backlog."""
        cdef Py_ssize_t size = len(data), done = 0
        if size == 0:
            return 0
        sslobj = self._sslobj
        try:
            done = sslobj.write(data)
            if done < size:
                view = memoryview(data)
                while done < size:
                    done += sslobj.write(view[done:])
        except again:
            rest = bytes(memoryview(data)[done:])
            self._write_backlog.appendleft(rest)
            self._write_buffer_size += len(rest)
        return 0

    def _do_write(self):
        self.do_write()

    cdef int do_write(self) except -1:
        backlog = self._write_backlog
        if backlog:
            data = backlog[0] if len(backlog) == 1 else b"".join(backlog)
            backlog.clear()
            self._write_buffer_size = 0
            self.encrypt(data)
        return self.process_outgoing()

    def _process_outgoing(self):
        self.process_outgoing()

    cdef int process_outgoing(self) except -1:
        cdef Py_ssize_t size
        if not self._ssl_writing_paused and self._outgoing.pending:
            data = self._outgoing.read()
            self._transport.write(data)
        size = self._write_buffer_size
        if size or self._app_writing_paused or self._ssl_writing_paused or not self._outgoing_high_water:
            self._control_app_writing()     # otherwise it would find an empty buffer and nobody paused
        return 0


def write(transport, data):
    """The TLS transport's write()."""
    if not isinstance(data, (bytes, bytearray, memoryview)):
        raise TypeError(f"data: expecting a bytes-like instance, got {type(data).__name__}")
    if not data:
        return
    protocol = transport._ssl_protocol
    if isinstance(protocol, SSLCore):
        if runs_elsewhere((<SSLCore>protocol)._loop):
            here(transport, "write")
        data = as_bytes(data)
        (<SSLCore>protocol).write_pieces([data], len(data))
    else:
        protocol._write_appdata((data,))


cdef bint runs_elsewhere(loop) except -1:
    return isinstance(loop, G) and gl_load_relaxed(&(<G>loop).w.owner) != 0 and not gl_world_mine(&(<G>loop).w)


def foreign(transport):
    """Whether another thread runs the transport's loop."""
    return runs_elsewhere(transport._loop)


def here(transport, what):
    """Refuse to go on if so."""
    if runs_elsewhere(transport._loop):
        transport._loop._refuse_thread(f"{what}() of {transport!r}")
