# cython: language_level=3, freethreading_compatible=True, binding=True
"""Operation: a call on a file or socket that is awaited once, without a coroutine object around it.

A task drives it as it drives a coroutine. The subclass says what a step is and what to do when the awaiter goes away.
The slot that a task or an `await` calls is written by hand: a StopIteration that passes through compiled functions gets
a traceback entry from each, which was three quarters of the cost of a send and its receive.
"""
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from gmploop.core.sched cimport current_m, gl_m

cdef extern from "stop.h":
    PyObject *gl_stop_iteration(PyObject *) noexcept
    int gl_stop_begin(gl_m *(*)() noexcept nogil) except -1

cdef extern from *:
    ctypedef PyObject *(*iternextfunc)(PyObject *) except? NULL
    ctypedef struct SlotsOfType "PyTypeObject":
        iternextfunc tp_iternext


gl_stop_begin(current_m)


cdef PyObject *stop_with(PyObject *value) noexcept:
    """Ends an iterator: NULL, and StopIteration with the value unless that is None. For slots."""
    return gl_stop_iteration(value)


cdef object thrown(typ, val, tb):
    """The exception that throw(typ, val, tb) is to raise."""
    if val is None:
        val = typ if isinstance(typ, BaseException) else typ()
    elif not isinstance(val, BaseException):
        val = typ(val)
    return val.with_traceback(tb) if tb is not None else val


cdef class Operation:
    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        result = self.step()
        if self.state == ENDED:
            raise StopIteration(result)
        return result

    def send(self, value):
        if value is not None and self.state == NEW:
            raise TypeError("can't send non-None value to a just-started coroutine")
        return self.__next__()

    def throw(self, typ, val=None, tb=None):
        if self.state == ENDED:
            raise RuntimeError("cannot reuse already awaited coroutine")
        self.abandon()
        raise thrown(typ, val, tb)

    def close(self):
        self.abandon()

    @property
    def __name__(self):
        return type(self).__name__

    @property
    def __qualname__(self):
        return type(self).__qualname__

    @property
    def cr_running(self):
        return False

    @property
    def cr_await(self):
        return self.fut

    @property
    def cr_frame(self):
        return None

    cdef object step(self):
        """Go on until it waits, or has a result; that is what is returned when the state is ENDED."""

    cdef int abandon(self) except -1:
        """Nobody waits any more: let go of everything that can be let go of."""
        return 0


cdef PyObject *op_next(PyObject *op) except? NULL:
    result = (<Operation>op).step()
    if (<Operation>op).state == ENDED:
        return stop_with(<PyObject *>result)
    Py_INCREF(result)
    return <PyObject *>result


(<SlotsOfType *>Operation).tp_iternext = op_next        # inherited by the subclasses, which are made later
