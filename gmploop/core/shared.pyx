# cython: language_level=3, freethreading_compatible=True, binding=True
"""Shared: what worlds and threads wait at, base of channels, locks and the like; and the list of all of them.

Each has a spin lock that guards its queues, buffers and values: waitq.h says what holds under it. The list has one of its
own, which is taken before theirs.
"""
from cpython.exc cimport PyErr_WriteUnraisable
from cpython.object cimport PyObject
from gmploop.core.handle cimport gl_lock, gl_unlock, gl_spinlock
from gmploop.core.waitq cimport SYNC_CLOSED

cdef extern from "Python.h":
    ctypedef int (*traverseproc)(PyObject *, visitproc, void *) noexcept
    ctypedef int (*inquiry)(PyObject *) noexcept
    ctypedef struct SlotsOfType "PyTypeObject":
        traverseproc tp_traverse
        inquiry tp_clear


class ChannelClosed(Exception):
    """The channel is closed, and empty if it was received from. `channel` is the channel; `case`, after a select, the
    number of the case."""

    __module__ = "gmploop"
    channel = case = None


cdef object raise_closed(Shared at, case):
    error = ChannelClosed(f"{at!r} is closed")
    error.channel, error.case = at, case
    raise error


cdef gl_spinlock list_lock
cdef PyObject *all_shared = NULL


cdef class Shared:
    """What worlds and threads share: base of channels, locks and the like."""

    def __cinit__(self, *args, **kwargs):
        global all_shared
        gl_lock(&list_lock)
        self.after = all_shared
        if all_shared != NULL:
            (<Shared>all_shared).before = <PyObject *>self
        all_shared = <PyObject *>self
        gl_unlock(&list_lock)

    def __dealloc__(self):
        global all_shared
        gl_lock(&list_lock)
        if self.before != NULL:
            (<Shared>self.before).after = self.after
        else:
            all_shared = self.after
        if self.after != NULL:
            (<Shared>self.after).before = self.before
        gl_unlock(&list_lock)

    cdef int attempt(self, gl_wnode *n, gl_chain *out) noexcept:
        return SYNC_CLOSED

    cdef gl_waitq *queue(self, int op) noexcept:
        return NULL

    cdef int restore(self, gl_wnode *n, gl_chain *out) noexcept:
        return 0

    cdef void left(self, gl_chain *out) noexcept:
        pass

    cdef int visit(self, visitproc visit, void *arg) noexcept:
        return 0

    cdef int empty(self) except -1:
        return 0

    cdef str describe(self):
        return ""

    def __repr__(self):
        cdef str name = f" {self.name!r}" if self.name is not None else ""
        return f"<{type(self).__name__}{name} {self.describe()}>"


cdef void lock_list() noexcept:
    gl_lock(&list_lock)


cdef void unlock_list() noexcept:
    gl_unlock(&list_lock)


cdef PyObject *first_shared() noexcept:
    return all_shared


# -- slots that Cython would fill with incomplete functions

cdef int traverse_shared(PyObject *o, visitproc visit, void *arg) noexcept:
    cdef PyObject *name = <PyObject *>(<Shared>o).name
    cdef int r = visit(name, arg) if name != NULL else 0
    return r or (<Shared>o).visit(visit, arg)


cdef int clear_shared(PyObject *o) noexcept:
    (<Shared>o).name = None
    try:
        (<Shared>o).empty()
    except BaseException:
        PyErr_WriteUnraisable(None)
    return 0


cdef int set_slots(type t) except -1:
    """Of Shared and each class derived from it."""
    (<SlotsOfType *>t).tp_traverse = traverse_shared
    (<SlotsOfType *>t).tp_clear = clear_shared
    return 0


set_slots(Shared)
