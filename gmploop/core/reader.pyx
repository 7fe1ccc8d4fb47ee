# cython: language_level=3, freethreading_compatible=True, binding=True
"""asyncio.StreamReader, fed and read without most of the Python code in between.

feed() does what StreamReaderProtocol.data_received() and StreamReader.feed_data() do, in their order. It looks before
each time whether protocol and reader are exactly asyncio's, with these two functions still in their places; where they
are not, and where the functions would raise, it does nothing and says so: the caller takes the ordinary way.

hasten() makes the reader of such a protocol an object of a subclass that differs in read() and in how the other methods
wait. Not on free-threaded builds, where changing an object's class stops all threads.
"""
cimport cython
import collections.abc
import sys
import warnings
from cpython.bytearray cimport PyByteArray_AS_STRING, PyByteArray_GET_SIZE, PyByteArray_Resize
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.object cimport PyObject
from cpython.sequence cimport PySequence_DelSlice
from libc.string cimport memcpy
from gmploop.core.g cimport G
from gmploop.core.future cimport Future, FINISHED, PENDING
from gmploop.core.operation cimport Operation, NEW, FLYING, ENDED

cdef extern from "Python.h":
    bint PyMethod_Check(object)
    object PyObject_GenericGetDict(object, void *)
    PyObject *PyDict_GetItemWithError(object, object) except? NULL
    int PyDict_SetItem(object, object, object) except -1
    bint PyDict_Next(PyObject *, Py_ssize_t *, PyObject **, PyObject **)
    Py_ssize_t PyDict_Size(PyObject *) noexcept
    PyObject *PyMethod_GET_FUNCTION(object)

cdef extern from "world.h":
    bint GL_FREE_THREADED

# Injected by gmploop.transports.
cdef type StreamReaderProtocol = None, StreamReader = None, FastReader = None
cdef object data_received = None, feed_data = None, stock_read = None, stock_wait = None
cdef object LARGEST = sys.maxsize
cdef str feed_data_name = "feed_data"


def configure(type protocol_type, type reader_type, type fast_reader_type):
    """Set asyncio's StreamReaderProtocol and StreamReader, and what readers are made. A method that somebody has replaced
    already counts as replaced."""
    global StreamReaderProtocol, StreamReader, FastReader, data_received, feed_data, stock_read, stock_wait
    StreamReaderProtocol, StreamReader, FastReader = protocol_type, reader_type, fast_reader_type
    data_received, feed_data = stock(protocol_type.data_received), stock(reader_type.feed_data)
    stock_read, stock_wait = stock(reader_type.read), stock(reader_type._wait_for_data)


cdef object stock(function):
    """The function, or None if it is not that of asyncio's module."""
    return function if getattr(function, "__globals__", None) is vars(sys.modules["asyncio.streams"]) else None


cdef bint feeds(object protocol):
    """Whether feed() may be tried for the protocol."""
    return type(protocol) is StreamReaderProtocol


cdef inline bint is_method(object method, object function):
    return PyMethod_Check(method) and PyMethod_GET_FUNCTION(method) == <PyObject *>function


cdef inline object get(dict d, str name):
    """The attribute in a FastReader's __dict__: a third of what it costs to ask the object."""
    cdef PyObject *value = PyDict_GetItemWithError(d, name)
    if value == NULL:
        raise AttributeError(name)
    return <object>value


cdef enum:
    LIMIT, LOOP, BUFFER, EOF_, WAITER, EXCEPTION, TRANSPORT, PAUSED, PARTS

cdef tuple names_of_parts = ("_limit", "_loop", "_buffer", "_eof", "_waiter", "_exception", "_transport", "_paused")
cdef PyObject *part_names[PARTS]
cdef int _i
for _i in range(PARTS):
    part_names[_i] = <PyObject *>names_of_parts[_i]


cdef inline bint look(dict d, PyObject **parts) except -1:
    """Borrow all attributes that asyncio's constructor gives a reader, until other code runs. Whether there are no others.

    They stand in the order in which it sets them: to walk along costs less than two look-ups."""
    cdef PyObject *name
    cdef Py_ssize_t at = 0, i = 0
    while i < PARTS and PyDict_Next(<PyObject *>d, &at, &name, &parts[i]) and name == part_names[i]:
        i += 1
    if i < PARTS:
        for i in range(PARTS):
            parts[i] = PyDict_GetItemWithError(d, <object>part_names[i])
            if parts[i] == NULL:
                raise AttributeError(<object>part_names[i])
    return PyDict_Size(<PyObject *>d) == PARTS


cdef int wake(object waiter) except -1:
    if type(waiter) is Future:
        with cython.critical_section(waiter):
            if (<Future>waiter).state == PENDING:
                (<Future>waiter).do_set_result(<PyObject *>None)
                return 0
    if not waiter.cancelled():
        waiter.set_result(None)
    return 0


cdef bint feed(object protocol, const char *data, Py_ssize_t n) except -1:
    """Give n > 0 bytes to the protocol's reader. False: nothing was done."""
    cdef dict d
    cdef PyObject *parts[PARTS]
    if not is_method(protocol.data_received, data_received):
        return False
    reference = protocol._stream_reader_wr
    reader = reference() if reference is not None else None
    if reader is None:
        return True                         # nobody reads any more
    if type(reader) is FastReader:
        d = <dict>PyObject_GenericGetDict(reader, NULL)
        if StreamReader.feed_data is not feed_data:
            return False
    elif type(reader) is StreamReader and is_method(reader.feed_data, feed_data):
        d = reader.__dict__
    else:
        return False
    if not look(d, parts) and feed_data_name in d:
        return False
    buffer, waiter = <object>parts[BUFFER], <object>parts[WAITER]
    if type(buffer) is not bytearray or <object>parts[EOF_] is not False:
        return False
    cdef Py_ssize_t size = PyByteArray_GET_SIZE(buffer) + n
    PyByteArray_Resize(buffer, size)
    memcpy(PyByteArray_AS_STRING(buffer) + size - n, data, n)
    cdef bint full = size > 2 * <object>parts[LIMIT]
    if waiter is not None:
        PyDict_SetItem(d, "_waiter", None)
        wake(waiter)
    if full and get(d, "_transport") is not None and get(d, "_paused") is False:
        try:
            reader._transport.pause_reading()
        except NotImplementedError:
            reader._transport = None
        else:
            reader._paused = True
    return True


# -- the reading side


cdef int hasten(object protocol) except -1:
    """Make the protocol's reader a FastReader, if both are exactly asyncio's."""
    if GL_FREE_THREADED or not feeds(protocol):
        return 0
    reference = protocol._stream_reader_wr
    reader = reference() if reference is not None else None
    if type(reader) is StreamReader:
        reader.__class__ = FastReader
    return 0


def hasten_reader(protocol):
    """hasten(), for Python code."""
    hasten(protocol)


def read(reader, n=-1):
    """Up to n bytes, as soon as there are some; b"" at the end; with n < 0 everything until the end."""
    if type(n) is not int or not 0 <= n <= LARGEST or StreamReader.read is not stock_read:
        return super(FastReader, reader).read(n)
    cdef ReaderOp op = ReaderOp.__new__(ReaderOp)
    op.reader, op.what = reader, n
    return op


def wait_for_data(reader, func_name):
    """Wait until there is data or the end has come."""
    if StreamReader._wait_for_data is not stock_wait:
        return super(FastReader, reader)._wait_for_data(func_name)
    cdef ReaderOp op = ReaderOp.__new__(ReaderOp)
    op.reader, op.what, op.waits_only = reader, func_name, True
    return op


cdef object wait_for(ReaderOp self, PyObject **parts):
    loop = <object>parts[LOOP]
    if parts[WAITER] != <PyObject *>None:
        raise RuntimeError(f"{'read' if not self.waits_only else self.what}() called while another coroutine is "
                           "already waiting for incoming data")
    cdef bint running = <object>parts[PAUSED] is False
    assert <object>parts[EOF_] is False or not <object>parts[EOF_], "_wait_for_data after EOF"
    if not running and get(self.d, "_paused"):
        PyDict_SetItem(self.d, "_paused", False)
        get(self.d, "_transport").resume_reading()
    fut = (<G>loop).new_future() if isinstance(loop, G) else loop.create_future()
    self.fut = fut
    PyDict_SetItem(self.d, "_waiter", fut)
    self.state = FLYING
    if type(fut) is Future:
        (<Future>fut).blocking = True
    else:
        fut._asyncio_future_blocking = True
    return fut


@cython.final
cdef class ReaderOp(Operation):
    """A call of read(), or a wait."""

    cdef object step(self):
        if self.state == NEW:
            self.d = <dict>PyObject_GenericGetDict(self.reader, NULL)
            try:
                return self.wait() if self.waits_only else self.begin()
            except BaseException:
                self.state = ENDED
                raise
        if self.state == ENDED:
            raise RuntimeError("cannot reuse already awaited coroutine")
        fut = self.fut
        if not (fut.done() if type(fut) is not Future else (<Future>fut).state != PENDING):
            raise RuntimeError("await wasn't used with future")
        self.abandon()
        if type(fut) is not Future or (<Future>fut).state != FINISHED or (<Future>fut).failed:
            fut.result()
        return None if self.waits_only else self.take()

    cdef object begin(self):
        cdef PyObject *parts[PARTS]
        look(self.d, parts)
        if parts[EXCEPTION] != <PyObject *>None:
            raise <object>parts[EXCEPTION]
        if not self.what:
            self.state = ENDED
            return b""
        if type(<object>parts[BUFFER]) is bytearray and <object>parts[EOF_] is False:
            return self.take() if PyByteArray_GET_SIZE(<object>parts[BUFFER]) else wait_for(self, parts)
        return self.take() if <object>parts[BUFFER] or get(self.d, "_eof") else self.wait()

    cdef object wait(self):
        cdef PyObject *parts[PARTS]
        look(self.d, parts)
        return wait_for(self, parts)

    cdef object take(self):
        cdef Py_ssize_t n = self.what, size
        self.state = ENDED
        buffer = get(self.d, "_buffer")
        if type(buffer) is bytearray:
            size = PyByteArray_GET_SIZE(buffer)
            data = PyBytes_FromStringAndSize(PyByteArray_AS_STRING(buffer), min(n, size))
            if n >= size:
                PyByteArray_Resize(buffer, 0)
            else:
                PySequence_DelSlice(buffer, 0, n)
        else:
            data = bytes(memoryview(buffer)[:n])
            del buffer[:n]
        if get(self.d, "_paused"):
            self.reader._maybe_resume_transport()
        return data

    cdef int abandon(self) except -1:
        if self.state == FLYING:
            PyDict_SetItem(self.d, "_waiter", None)
            self.fut = None
        self.state = ENDED
        return 0

    @property
    def cr_suspended(self):
        return self.state == FLYING

    @property
    def __qualname__(self):
        return "StreamReader._wait_for_data" if self.waits_only else "StreamReader.read"

    def __repr__(self):
        return f"<coroutine object {self.__qualname__} at {<size_t><PyObject *>self:#x}>"

    def __del__(self):
        if self.state == NEW and not self.waits_only:
            warnings.warn(f"coroutine {self.__qualname__!r} was never awaited", RuntimeWarning, source=self)
        elif self.state == FLYING and get(self.d, "_waiter") is self.fut:
            self.abandon()


collections.abc.Coroutine.register(ReaderOp)
