# cython: language_level=3, freethreading_compatible=True, binding=True
"""SSLCore: the data path of TLS, under what is left of asyncio's SSLProtocol (handshake, farewell, timeouts).

`transports.SSLProtocol` inherits from SSLCore first and from asyncio's class second. So the attributes below are the
very ones that asyncio's methods use, by the same names, and the methods here take the place of asyncio's: what they do
is the same, in the same order, with these differences.

Calls. What an ssl.SSLObject does with read(), write() and pending() is to call the same methods of the C object inside
it, so that object is called here, by its type's methods, which are looked up once: that saves a Python frame and two
look-ups a call. Where there is no such object, or the SSLObject is of a subclass, its own methods are called.

Reading. What the socket gives lands in the loop's buffer and goes to the memory BIO at once. Whatever is decrypted
lands in the same buffer, until it becomes a bytes object: nothing of ours is in it while somebody else's code runs.
A record that is not whole is not asked for, because the answer is an exception, which costs more than a record: the
headers of the records that pass are followed, and the last `tail` bytes that came are known to be of a record whose end
has not come. OpenSSL may have taken some of them, so `pending <= tail` says that no whole record is left, and as soon
as one is, `pending > tail`. Where the headers are not those of TLS, nothing is known and each read is tried.

Writing. A piece goes to OpenSSL as it is, record by record, through a view instead of ever shorter copies. What has to
wait is joined later, and so is what writelines() was given, up to a limit.
"""
from cpython.bytes cimport PyBytes_FromStringAndSize, PyBytes_CheckExact, PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.buffer cimport PyObject_GetBuffer, PyBuffer_Release, Py_buffer, PyBUF_WRITABLE, PyBUF_C_CONTIGUOUS
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF
from gmploop.core.buffered cimport BufferedCore
from gmploop.core.g cimport G
from gmploop.core.handle cimport gl_world_mine, gl_load_relaxed
from gmploop.core.reader cimport feed, feeds
from gmploop.core.stream cimport SocketTransport

cdef extern from *:
    """
    static PyObject *gl_call(PyObject *method, PyObject *self, PyObject *x, PyObject *y) {
        PyObject *args[3] = { self, x, y };
        return PyObject_Vectorcall(method, args, x == NULL ? 1 : y == NULL ? 2 : 3, NULL);
    }
    """
    object call0 "gl_call"(PyObject *, object, PyObject *, PyObject *)
    object call1 "gl_call"(PyObject *, object, object, PyObject *)
    object call2 "gl_call"(PyObject *, object, object, object)

cdef extern from "descr.h":
    object gl_get(object, object)

cdef extern from "Python.h":
    PyObject *new_bytes "PyBytes_FromStringAndSize"(const char *, Py_ssize_t) except NULL
    int resize_bytes "_PyBytes_Resize"(PyObject **, Py_ssize_t) except -1

cdef extern from "records.h":
    enum: GL_RECORD, GL_RECORD_MOST
    ctypedef struct gl_records:
        Py_ssize_t tail
    void gl_records_follow(gl_records *, const unsigned char *, Py_ssize_t)
    Py_ssize_t gl_records_rest(const gl_records *, const unsigned char *, Py_ssize_t)

cdef enum:
    MUCH = 2 * GL_RECORD    # bytes that have come, from which on they are decrypted record by record
    JOIN = 256 * 1024       # writelines() joins pieces up to here, stock's size of a read
    LOG_LOST_WRITES = 5     # asyncio.constants.LOG_THRESHOLD_FOR_CONNLOST_WRITES

# Injected by gmploop.transports.
cdef object DO_HANDSHAKE = None, WRAPPED = None, FLUSHING = None, SHUTDOWN = None
cdef tuple again = ()
cdef object SSLObject = None, logger = None
cdef object raw_type = None, MemoryBIO = None       # of the C object in an SSLObject, and of its BIOs
cdef object raw_read = None, raw_write = None, raw_pending = None, bio_read = None, bio_write = None, bio_pending = None
cdef object stock_read = None, stock_write = None


def configure(states, want_errors, ssl_object, memory_bio, c_type, log):
    """Set what is needed of asyncio and ssl: SSLProtocolState, the exceptions that mean "try again", SSLObject,
    MemoryBIO, the type of the C object in an SSLObject (None: unknown), the logger."""
    global DO_HANDSHAKE, WRAPPED, FLUSHING, SHUTDOWN, again, SSLObject, logger, raw_type, MemoryBIO
    global raw_read, raw_write, raw_pending, bio_read, bio_write, bio_pending, stock_read, stock_write
    DO_HANDSHAKE, WRAPPED, FLUSHING, SHUTDOWN = (states.DO_HANDSHAKE, states.WRAPPED, states.FLUSHING,
                                                 states.SHUTDOWN)
    again, SSLObject, logger = want_errors, ssl_object, log
    stock_read, stock_write = ssl_object.read, ssl_object.write
    MemoryBIO, bio_read, bio_write = memory_bio, memory_bio.read, memory_bio.write
    bio_pending = memory_bio.pending
    if c_type is not None:
        raw_type, raw_read, raw_write, raw_pending = c_type, c_type.read, c_type.write, c_type.pending


cdef object raw_of(sslobj):
    """The C object in an SSLObject, if that does no more than call it; else None."""
    if type(sslobj) is SSLObject and SSLObject.read is stock_read and SSLObject.write is stock_write:
        raw = getattr(sslobj, "_sslobj", None)
        if raw is not None and type(raw) is raw_type:
            return raw
    return None


cdef Py_ssize_t pending_in(bio) except -1:
    return gl_get(bio_pending, bio) if type(bio) is MemoryBIO else bio.pending


cdef inline object as_bytes(object data):
    """data itself, unless it is a view whose items are not bytes: len() and slices of those do not count bytes."""
    if isinstance(data, memoryview) and (data.itemsize != 1 or data.ndim != 1):
        return bytes(data)
    return data


cdef class SSLCore(BufferedCore):
    """See the module's head."""

    cdef public object _loop, _app_protocol, _app_transport, _transport, _incoming, _outgoing
    cdef public object _state, _write_backlog, _ssl_buffer, _ssl_buffer_view
    cdef public object _app_protocol_get_buffer, _app_protocol_buffer_updated
    cdef public object _incoming_high_water, _incoming_low_water, _outgoing_high_water, _outgoing_low_water
    cdef public Py_ssize_t _write_buffer_size
    cdef public long _conn_lost
    cdef public bint _app_protocol_is_buffer, _ssl_writing_paused, _ssl_reading_paused
    cdef public bint _app_reading_paused, _app_writing_paused
    cdef object sslobj, raw     # the SSLObject, and the C object in it, or None
    cdef list records           # of a large write, encrypted, which leave with it
    cdef gl_records seen        # of what went into the BIO

    @property
    def _sslobj(self):
        return self.sslobj

    @_sslobj.setter
    def _sslobj(self, value):
        self.sslobj, self.raw = value, raw_of(value)

    def _share_buffer(self, buffer):
        BufferedCore._share_buffer(self, buffer)
        self._ssl_buffer_view, self._ssl_buffer = buffer.view, buffer.view.obj

    # -- incoming

    def buffer_updated(self, Py_ssize_t nbytes):
        if not 0 <= nbytes <= self.shared.size:
            raise ValueError(f"{nbytes} bytes are not in a buffer of {self.shared.size}")
        self.updated(nbytes)

    cdef int put_in(self, Py_ssize_t offset, Py_ssize_t n) except -1:
        """These bytes of the loop's buffer go to the BIO."""
        gl_records_follow(&self.seen, <unsigned char *>self.shared.mem + offset, n)
        if type(self._incoming) is MemoryBIO:
            call1(<PyObject *>bio_write, self._incoming, self.shared.show(self.shared.mem + offset, n), NULL)
        else:
            self._incoming.write(self.shared.view[offset:offset + n])
        return 0

    cdef int updated(self, Py_ssize_t nbytes) except -1:
        state = self._state
        if nbytes > MUCH and state is WRAPPED and self.raw is not None and not self._app_reading_paused \
                and not self._app_protocol_is_buffer:
            return self.do_read_much(nbytes)
        self.put_in(0, nbytes)
        if state is WRAPPED:
            self.do_read(nbytes)
        elif state is DO_HANDSHAKE:
            self._do_handshake()
        elif state is FLUSHING:
            self._do_flush()
        elif state is SHUTDOWN:
            self._do_shutdown()
        return 0

    def _do_read(self):
        self.do_read(0)

    cdef int do_read(self, Py_ssize_t came) except -1:
        """Decrypt and deliver what there is. came: so many bytes went into the BIO just now."""
        if self._state is not WRAPPED and self._state is not FLUSHING:
            return 0
        try:
            if not self._app_reading_paused:
                if came > self.seen.tail or self.may_read(True):
                    if self._app_protocol_is_buffer:
                        self.read_buffered()
                    else:
                        self.read_copied()
                self.have_read()
            self.control_ssl_reading()
        except Exception as exc:
            self._fatal_error(exc, "Fatal error on SSL protocol")
        return 0

    cdef int do_read_much(self, Py_ssize_t came) except -1:
        try:
            self.read_much(came)
            self.have_read()
            self.control_ssl_reading()
        except Exception as exc:
            self._fatal_error(exc, "Fatal error on SSL protocol")
        return 0

    cdef int have_read(self) except -1:
        return self.do_write() if self._write_backlog else self.process_outgoing()

    cdef bint may_read(self, bint first) except -1:
        """Whether there is anything that a read could decrypt; behind another read (not the first), which came back short,
        OpenSSL has nothing that it has decrypted already."""
        if pending_in(self._incoming) > self.seen.tail:
            return True
        if not first:
            return False
        return (call0(<PyObject *>raw_pending, self.raw, NULL, NULL) if self.raw is not None else self.sslobj.pending()) > 0

    cdef Py_ssize_t ssl_read(self, object view, char *at, Py_ssize_t size) except -1:
        """Read into `size` bytes at `at`, which `view` shows to those who have no C object."""
        cdef Py_ssize_t n
        if self.raw is not None:
            n = call2(<PyObject *>raw_read, self.raw, size, self.shared.show(at, size))
        else:
            n = self.sslobj.read(size, view)
        if not 0 <= n <= size:      # an SSLObject of somebody else's making
            raise ValueError(f"read() gave {n} bytes where {size} were asked for")
        return n

    def _do_read__copied(self):
        if self.may_read(True):
            self.read_copied()

    cdef int read_copied(self) except -1:
        """Decrypt all there is, and hand it on as one object."""
        cdef Py_ssize_t n = 1, size
        cdef list chunks = None
        while True:
            size = self.decrypt_into(self.shared.mem, self.shared.size, &n)
            if n <= 0 and chunks is None:
                if size and not (feeds(self._app_protocol) and feed(self._app_protocol, self.shared.mem, size)):
                    self._app_protocol.data_received(PyBytes_FromStringAndSize(self.shared.mem, size))
                break
            if chunks is None:
                chunks = []
            chunks.append(PyBytes_FromStringAndSize(self.shared.mem, size))
            if n <= 0 or not self.may_read(True):
                self.deliver(b"".join(chunks))
                break
        return self.ended() if n == 0 else 0

    cdef int deliver(self, bytes data) except -1:
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data)
        if size and not (feeds(self._app_protocol) and feed(self._app_protocol, PyBytes_AS_STRING(data), size)):
            self._app_protocol.data_received(data)
        return 0

    cdef int ended(self) except -1:
        self._call_eof_received()
        self._start_shutdown()
        return 0

    cdef int read_much(self, Py_ssize_t came) except -1:
        """Much has come. Each record goes alone into the BIO and from there, decrypted, into an object for all: the BIO
        stays small, and the processor's caches do what its memory would have to."""
        # what may come out: as much, and what OpenSSL holds of the record that it is at
        cdef Py_ssize_t size = pending_in(self._incoming) + came + GL_RECORD_MOST, at = 0, offset = 0, n = -1, take
        cdef unsigned char *p = <unsigned char *>self.shared.mem
        cdef PyObject *data = new_bytes(NULL, size)
        try:
            while at < came:
                take = gl_records_rest(&self.seen, p + at, came - at)
                self.put_in(at, take)
                at += take
                if n and self.seen.tail < take:
                    offset += self.decrypt_into(PyBytes_AS_STRING(<object>data) + offset, size - offset, &n)
        except BaseException:
            Py_DECREF(<object>data)
            raise
        resize_bytes(&data, offset)         # lets go of it if it fails
        result = <bytes>data
        Py_DECREF(result)
        self.deliver(result)
        if n > 0:
            self._loop.call_soon(self._do_read)
        return self.ended() if n == 0 else 0

    cdef Py_ssize_t decrypt_into(self, char *at, Py_ssize_t size, Py_ssize_t *last) except -1:
        """Decrypt what has come, up to `size` bytes. last: 0 is the end, -1 that OpenSSL wants more or has no more, more
        than 0 that it may have. Without a C object `at` is the loop's buffer."""
        cdef Py_ssize_t offset = 0, n = 1
        view = None
        try:
            while offset < size:
                if self.raw is None:
                    view = self.shared.view[offset:] if offset else self.shared.view
                n = self.ssl_read(view, at + offset, size - offset)
                if n == 0:
                    break
                offset += n
                if offset < size and not self.may_read(False):
                    n = -1
                    break
        except again:
            n = -1
        last[0] = n
        return offset

    def _do_read__buffered(self):
        if self.may_read(True):
            self.read_buffered()

    cdef int read_buffered(self) except -1:
        cdef Py_ssize_t offset = 0, n = 0, wants
        cdef bint eof = False
        cdef Py_buffer b
        buf = self._app_protocol_get_buffer(pending_in(self._incoming))
        with memoryview(buf) as whole, whole.cast("B") as view:
            wants = len(view)
            if view.readonly:
                self.sslobj.read(wants, view)       # raises what stock's raises
            PyObject_GetBuffer(view, &b, PyBUF_WRITABLE | PyBUF_C_CONTIGUOUS)
            try:
                while True:
                    n = self.ssl_read(view[offset:] if self.raw is None and offset else view, <char *>b.buf + offset,
                                      wants - offset)
                    if n == 0:
                        eof = True
                        break
                    offset += n
                    if offset >= wants:
                        self._loop.call_soon(self._do_read)
                        break
                    if not self.may_read(False):
                        break
            except again:
                pass
            finally:
                PyBuffer_Release(&b)
        buf = None
        if offset > 0:
            self._app_protocol_buffer_updated(offset)
        return self.ended() if eof else 0

    cdef int control_ssl_reading(self) except -1:
        pending = pending_in(self._incoming)
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
        if self.may_write():
            try:
                if len(pieces) > 1 and total <= JOIN:
                    pieces = [b"".join(pieces)]
                for data in pieces:
                    self.encrypt_or_keep(data)
                if self._state is WRAPPED:
                    self.do_write()
            except Exception as exc:
                self._fatal_error(exc, "Fatal error on SSL protocol")

    cdef bint may_write(self) except -1:
        state = self._state
        if state is WRAPPED or state is DO_HANDSHAKE:
            return True
        if self._conn_lost >= LOG_LOST_WRITES:
            logger.warning("SSL connection is closed")
        self._conn_lost += 1
        return False

    cdef int write_piece(self, data) except -1:
        if not self.may_write():
            return 0
        try:
            self.encrypt_or_keep(data)
            if self._state is WRAPPED:
                self.do_write()
        except Exception as exc:
            self._fatal_error(exc, "Fatal error on SSL protocol")
        return 0

    cdef int encrypt_or_keep(self, data) except -1:
        if self._state is WRAPPED and not self._write_backlog:
            return self.encrypt(data)
        if len(data):
            self._write_backlog.append(data if PyBytes_CheckExact(data) else bytes(memoryview(data)))
            self._write_buffer_size += len(data)
        return 0

    cdef Py_ssize_t ssl_write(self, data) except -1:
        if self.raw is not None:
            return call1(<PyObject *>raw_write, self.raw, data, NULL)
        return self.sslobj.write(data)

    cdef int encrypt(self, data) except -1:
        """Write data. If OpenSSL will not take all of it, the rest becomes the first of the backlog."""
        cdef Py_ssize_t size = PyBytes_GET_SIZE(data) if PyBytes_CheckExact(data) else len(data), done = 0
        if size == 0:
            return 0
        try:
            done = self.ssl_write(data)
            if done < size:
                view = memoryview(data)
                while done < size:
                    self.collect()
                    done += self.ssl_write(view[done:])
        except again:
            rest = bytes(memoryview(data)[done:])
            self._write_backlog.appendleft(rest)
            self._write_buffer_size += len(rest)
        return 0

    cdef int collect(self) except -1:
        """Take a record of several out of the BIO: that stays small, as in read_much()."""
        if type(self._outgoing) is MemoryBIO and not self._ssl_writing_paused:
            if self.records is None:
                self.records = []
            self.records.append(call0(<PyObject *>bio_read, self._outgoing, NULL, NULL))
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
        return self.send_outgoing()

    def _process_outgoing(self):
        self.process_outgoing()

    cdef int process_outgoing(self) except -1:
        return self.send_outgoing() if pending_in(self._outgoing) else self.control_app_writing()

    cdef int send_outgoing(self) except -1:
        if not self._ssl_writing_paused:
            if type(self._outgoing) is MemoryBIO:
                data = call0(<PyObject *>bio_read, self._outgoing, NULL, NULL)
            else:
                data = self._outgoing.read()
            transport = self._transport
            if self.records is not None:
                records, self.records = self.records, None
                records.append(data)
                transport.writelines(records)
            elif type(transport) is SocketTransport and PyBytes_CheckExact(data):
                (<SocketTransport>transport).write_now(data, PyBytes_GET_SIZE(data))
            elif data:
                transport.write(data)
        return self.control_app_writing()

    cdef int control_app_writing(self) except -1:
        cdef Py_ssize_t size = self._write_buffer_size
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
        (<SSLCore>protocol).write_piece(data if PyBytes_CheckExact(data) else as_bytes(data))
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
