# cython: language_level=3, freethreading_compatible=True, binding=True
"""Buffers that the connections of a loop share, and the protocols that read into one: those of TLS.

A stream transport whose protocol is a BufferedCore reads into the protocol's buffer without asking for it each time, and
says so by a C call. The protocol leaves nothing of its own in the buffer: the next connection reads into it.
"""
cimport cython
from cpython.buffer cimport PyObject_GetBuffer, PyBuffer_Release, PyBuffer_FillInfo, PyBUF_WRITABLE


@cython.final
cdef class Buffer:
    """As an object with the buffer protocol it is a window, which shows what it is told to for the length of one call. By
    the thread that runs the loop."""

    def __init__(self, Py_ssize_t size):
        cdef Py_buffer buffer
        self.view = memoryview(bytearray(size))
        PyObject_GetBuffer(self.view, &buffer, PyBUF_WRITABLE)
        self.mem, self.size = <char *>buffer.buf, buffer.len
        PyBuffer_Release(&buffer)       # the view keeps the bytearray as it is

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        PyBuffer_FillInfo(buffer, self, self.at, self.n, False, flags)

    cdef object show(self, void *at, Py_ssize_t n):
        self.at, self.n = at, n
        return self


cdef class BufferedCore:
    """A BufferedProtocol over a shared buffer."""

    def _share_buffer(self, Buffer buffer not None):
        """Use this one from now on."""
        self.shared = buffer

    def get_buffer(self, sizehint):
        return self.shared.view

    cdef int updated(self, Py_ssize_t n) except -1:
        """n > 0 bytes have come. What buffer_updated() does; a subclass in C has it here, without the call."""
        self.buffer_updated(n)
        return 0
