# cython: language_level=3, freethreading_compatible=True, binding=True
"""Future: asyncio's, in a form that a world which moves between threads can use.

The C type of asyncio keeps its tasks in tables of the process or of a thread; this one touches nothing but itself and
its loop. It is not a subclass of asyncio's: it passes isinstance() by its __class__.

A future whose loop is one of ours and runs on this thread puts its callbacks straight into the ready ring, and a task
of ours that waits for it without a callback object: cb0 (or an entry of the list) is then the task itself, marked by
having no context. The order of callbacks is asyncio's, each is one entry of the ring. In every other case (a loop of
somebody else, debug mode, a loop whose call_soon() was replaced, another thread) loop.call_soon() is called.

Thread safety: as on stock, a future belongs to the thread of its loop. On free-threaded builds methods called from a
wrong thread do no harm to memory: fields are read and written within the critical section of the future. That section
is let go where Python code runs that waits.
"""
cimport cython
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF, Py_DECREF, Py_XDECREF
from cpython.mem cimport PyMem_Calloc, PyMem_Free
from gmploop.core.g cimport G
from gmploop.core.handle cimport gl_world_mine
from gmploop.core.operation cimport stop_with

cdef extern from *:
    """
    #include <stddef.h>
    /* Raises an exception object; takes the reference. */
    static PyObject *gl_raise(PyObject *exc) {
        if (PyExceptionInstance_Check(exc)) PyErr_SetObject((PyObject *)Py_TYPE(exc), exc);
        else PyErr_SetString(PyExc_TypeError, "exceptions must derive from BaseException");
        Py_DECREF(exc);
        return NULL;
    }
    static void gl_give_attrs(PyObject *type, Py_ssize_t offset, unaryfunc await, iternextfunc next) {
        PyTypeObject *t = (PyTypeObject *)type;
        t->tp_dictoffset = offset;
        t->tp_as_async->am_await = await;
        t->tp_iternext = next;
        PyType_Modified(t);
    }
    """
    PyObject *gl_raise(PyObject *)
    ctypedef PyObject *(*unaryfunc)(PyObject *) noexcept
    void gl_give_attrs(object, Py_ssize_t, unaryfunc, unaryfunc)

cdef extern from "atomics.h" nogil:
    # Of `state`, at which other threads look without the lock (asyncio.all_tasks() does, for one).
    signed char load_state "gl_load_acquire"(signed char *)
    void store_state "gl_store_release"(signed char *, int)

cdef extern from "Python.h":
    ctypedef int (*visitproc)(PyObject *, void *) noexcept
    ctypedef int (*traverseproc)(PyObject *, visitproc, void *) noexcept
    ctypedef int (*inquiry)(PyObject *) noexcept
    object PyContext_CopyCurrent()
    object PyObject_GenericGetDict(object, void *)
    int PyObject_GenericSetDict(object, object, void *) except -1
    void PyErr_SetObject(object, object)
    void PyErr_WriteUnraisable(object)
    int PyException_SetTraceback(PyObject *, PyObject *)
    PyObject *PyException_GetTraceback(PyObject *)
    ctypedef struct SlotsOfType "PyTypeObject":
        traverseproc tp_traverse
        inquiry tp_clear

# Injected by gmploop.tasks: asyncio's parts that these types rest on.
cdef object future_class = None, InvalidStateError = None, CancelledError = None
cdef object future_repr = None, extract_stack = None, get_event_loop = None, GenericAlias = None
cdef bint stop_iteration_is_type_error = False, init_once = False


def configure(future_type, invalid_state, cancelled, repr_of, stack, event_loop, alias, bint type_error, bint once):
    """Set asyncio's Future and what it is made of; see gmploop/tasks.py."""
    global future_class, InvalidStateError, CancelledError, future_repr, extract_stack, get_event_loop, GenericAlias
    global stop_iteration_is_type_error, init_once
    future_class, InvalidStateError, CancelledError, future_repr = future_type, invalid_state, cancelled, repr_of
    extract_stack, get_event_loop, GenericAlias = stack, event_loop, alias
    stop_iteration_is_type_error, init_once = type_error, once


cdef inline int drop(PyObject **field) noexcept:
    """Py_CLEAR."""
    cdef PyObject *p = field[0]
    field[0] = NULL
    Py_XDECREF(p)
    return 0


cdef class Future:
    """asyncio.Future; see there for what its methods do."""

    def __init__(self, *, loop=None):
        self.init(loop)

    cdef int init(self, loop) except -1:
        if self.loop is not None:
            if init_once:
                raise RuntimeError(f"{type(self).__name__} object is already initialized")
            clear_future(<PyObject *>self)
            self.state = PENDING
            self.failed = self.log_traceback = self.blocking = False
        if loop is None:
            loop = get_event_loop()
        self.own = isinstance(loop, G)
        self.loop = loop
        if loop.get_debug():
            stack = extract_stack()
            Py_INCREF(stack)
            self.set_rare(SOURCE_TRACEBACK, <PyObject *>stack)
        return 0

    def __dealloc__(self):
        clear_future(<PyObject *>self)

    def __del__(self):
        if self.log_traceback:
            self.report_never_retrieved()

    cdef int report_never_retrieved(self) except -1:
        self.log_traceback = False
        return self.report({"message": f"{type(self).__name__} exception was never retrieved",
                            "exception": self._exception, "future": self})

    cdef int report(self, dict context) except -1:
        """To the loop's exception handler. For finalizers: what fails here, as it may when the interpreter ends, is told
        to sys.unraisablehook."""
        try:
            trace = self._source_traceback
            if trace:
                context["source_traceback"] = trace
            self.loop.call_exception_handler(context)
        except BaseException as exc:
            PyErr_SetObject(type(exc), exc)
            PyErr_WriteUnraisable(self)
        return 0

    @property
    def __class__(self):
        return future_class if type(self) is Future else type(self)

    @property
    def __dict__(self):
        return PyObject_GenericGetDict(self, NULL)

    @__dict__.setter
    def __dict__(self, value):
        PyObject_GenericSetDict(self, value, NULL)

    @classmethod
    def __class_getitem__(cls, item):
        return GenericAlias(cls, item)

    def __repr__(self):
        return future_repr(self)

    # -- parts

    cdef int check_alive(self) except -1:
        if self.loop is None:
            raise RuntimeError("Future object is not initialized.")
        return 0

    cdef int check_asked(self) except -1:
        if self.loop is None:
            raise InvalidStateError("Future object is not initialized.")
        return 0

    cdef bint direct(self) noexcept:
        """Whether entries may go into the ready ring from here."""
        return self.own and gl_world_mine(&(<G>self.loop).w) and not (<G>self.loop).w.debug \
            and not (<G>self.loop).custom_call_soon

    cdef PyObject *get_rare(self, int which) noexcept:
        return self.rare[which] if self.rare != NULL else NULL

    cdef int set_rare(self, int which, PyObject *value) except -1:
        """Takes the reference."""
        cdef PyObject *old
        if self.rare == NULL:
            if value == NULL:
                return 0
            self.rare = <PyObject **>PyMem_Calloc(RARE, sizeof(PyObject *))
            if self.rare == NULL:
                Py_DECREF(<object>value)
                raise MemoryError()
        old, self.rare[which] = self.rare[which], value
        Py_XDECREF(old)
        return 0

    cdef object rare_or_none(self, int which):
        cdef PyObject *p
        with cython.critical_section(self):
            p = self.get_rare(which)
            return <object>p if p != NULL else None

    # -- callbacks. The caller is in the critical section.

    cdef int settle(self, int state) except -1:
        """Be done, and have every callback called."""
        cdef PyObject *cb = self.cb0
        cdef PyObject *ctx = self.ctx0
        cdef PyObject *rest = self.callbacks
        store_state(&self.state, state)
        self.on_done()
        self.cb0 = self.ctx0 = self.callbacks = NULL
        try:
            if cb != NULL:
                self.call_soon(cb, ctx)
            if rest != NULL:
                for callback, context in <list>rest:
                    self.call_soon(<PyObject *>callback, <PyObject *>context if context is not None else NULL)
        finally:
            Py_XDECREF(cb)
            Py_XDECREF(ctx)
            Py_XDECREF(rest)
        return 0

    cdef int on_done(self) except -1:
        return 0

    cdef int call_soon(self, PyObject *callback, PyObject *context) except -1:
        if context == NULL:
            if self.direct():
                Py_INCREF(<object>callback)
                return (<G>self.loop).push_entry(<size_t>callback | 2)
            return (<Future>callback).wake_by(self)
        if self.direct():
            (<G>self.loop).enqueue(<object>callback, (self,), <object>context)
        else:
            self.loop.call_soon(<object>callback, self, context=<object>context)
        return 0

    cdef int wake_by(self, Future source) except -1:
        """For tasks: have the next step made because `source` is done."""
        return 0

    cdef object wake_entry(self):
        """For tasks: (callback, context) as which it shows where it waits."""
        return None

    cdef int add_waiter(self, PyObject *task) except -1:
        """Wake this task, of the same loop, when done."""
        if self.state == PENDING and self.cb0 == NULL and self.callbacks == NULL:
            Py_INCREF(<object>task)
            self.cb0 = task
            return 0
        return self.add_callback(task, NULL)

    cdef int add_callback(self, PyObject *callback, PyObject *context) except -1:
        if self.state != PENDING:
            return self.call_soon(callback, context)
        if self.cb0 == NULL and self.callbacks == NULL:
            Py_INCREF(<object>callback)
            Py_INCREF(<object>context)
            self.cb0, self.ctx0 = callback, context
            return 0
        entry = (<object>callback, <object>context if context != NULL else None)
        if self.callbacks == NULL:
            entries = [entry]
            Py_INCREF(entries)
            self.callbacks = <PyObject *>entries
        else:
            (<list>self.callbacks).append(entry)
        return 0

    def add_done_callback(self, fn, /, *, context=None):
        """Call fn(self) by call_soon(), in `context`, once this is done."""
        self.check_alive()
        if context is None:
            context = PyContext_CopyCurrent()
        with cython.critical_section(self):
            self.add_callback(<PyObject *>fn, <PyObject *>context)

    def remove_done_callback(self, fn, /):
        """Take back every callback that equals fn; returns their number."""
        cdef Py_ssize_t i = 0, gone = 0
        self.check_alive()
        with cython.critical_section(self):     # which a comparison may let go, and it may call this again
            if self.cb0 != NULL:
                first = <object>self.cb0
                shown = first if self.ctx0 != NULL else (<Future>first).wake_entry()[0]
                if shown == fn and self.cb0 == <PyObject *>first:
                    gone = 1
                    drop(&self.cb0)
                    drop(&self.ctx0)
                first = shown = None
            kept = []
            while self.callbacks != NULL and i < len(<list>self.callbacks):
                entry = (<list>self.callbacks)[i]
                shown = entry[0] if entry[1] is not None else (<Future>entry[0]).wake_entry()[0]
                if not shown == fn:
                    kept.append(entry)
                i += 1
            if self.callbacks != NULL:
                i = len(<list>self.callbacks) - len(kept)
                if i:
                    gone += i
                    (<list>self.callbacks)[:] = kept
                if not <list>self.callbacks:
                    drop(&self.callbacks)
        return gone

    @property
    def _callbacks(self):
        shown = []
        with cython.critical_section(self):
            if self.cb0 != NULL:
                shown.append((<object>self.cb0, <object>self.ctx0) if self.ctx0 != NULL
                             else (<Future>self.cb0).wake_entry())
            if self.callbacks != NULL:
                shown += [(<Future>task).wake_entry() if context is None else (task, context)
                          for task, context in <list>self.callbacks]
        return shown or None

    # -- outcome

    cdef int do_set_result(self, PyObject *result) except -1:
        if self.state != PENDING:
            raise InvalidStateError("invalid state")
        Py_INCREF(<object>result)
        self.value = result
        return self.settle(FINISHED)

    def set_result(self, result, /):
        """Be done with this result."""
        self.check_alive()
        with cython.critical_section(self):
            self.do_set_result(<PyObject *>result)

    cdef int do_set_exception(self, exception) except -1:
        if self.state != PENDING:
            raise InvalidStateError("invalid state")
        if isinstance(exception, type) and issubclass(exception, BaseException):
            exception = exception()
        if not isinstance(exception, BaseException):
            raise TypeError("invalid exception object")
        if stop_iteration_is_type_error:
            if type(exception) is StopIteration:
                raise TypeError("StopIteration interacts badly with generators and cannot be raised into a Future")
        elif isinstance(exception, StopIteration):
            error = RuntimeError("StopIteration interacts badly with generators and cannot be raised into a Future")
            error.__cause__ = error.__context__ = exception
            exception = error
        if self.state != PENDING:       # the exception's constructor may have done it
            raise InvalidStateError("invalid state")
        self.set_rare(TRACEBACK, PyException_GetTraceback(<PyObject *>exception))
        Py_INCREF(exception)
        self.value = <PyObject *>exception
        self.failed = True
        self.log_traceback = True
        return self.settle(FINISHED)

    def set_exception(self, exception, /):
        """Be done with this exception."""
        self.check_alive()
        with cython.critical_section(self):
            self.do_set_exception(exception)

    cdef bint do_cancel(self, PyObject *message) except -1:
        self.log_traceback = False
        if self.state != PENDING:
            return False
        if message != NULL:
            Py_INCREF(<object>message)
        self.set_rare(CANCEL_MESSAGE, message)
        self.settle(CANCELLED)
        return True

    def cancel(self, msg=None):
        """Be cancelled; False if this is done already."""
        self.check_alive()
        with cython.critical_section(self):
            return self.do_cancel(<PyObject *>msg)

    cdef object cancelled_error(self):
        cdef PyObject *p = self.get_rare(CANCELLED_EXC)
        if p != NULL:
            exc = <object>p
            self.set_rare(CANCELLED_EXC, NULL)
            return exc
        p = self.get_rare(CANCEL_MESSAGE)
        return CancelledError() if p == NULL or <object>p is None else CancelledError(<object>p)

    def _make_cancelled_error(self):
        with cython.critical_section(self):
            return self.cancelled_error()

    cdef int outcome(self, PyObject **value) except -2:
        """A new reference: 0 to the result, 1 to the exception to be raised; -1 when this is not done."""
        if self.state == PENDING:
            return -1
        if self.state == CANCELLED:
            exc = self.cancelled_error()
            Py_INCREF(exc)
            value[0] = <PyObject *>exc
            return 1
        Py_INCREF(<object>self.value)
        value[0] = self.value
        if self.failed:
            self.log_traceback = False
            trace = <object>self.get_rare(TRACEBACK) if self.get_rare(TRACEBACK) != NULL else None
            PyException_SetTraceback(self.value, <PyObject *>trace)
            self.set_rare(TRACEBACK, NULL)
            return 1
        return 0

    def result(self):
        """The result; raises the exception, CancelledError or InvalidStateError."""
        cdef PyObject *value = NULL
        cdef int how
        self.check_asked()
        with cython.critical_section(self):
            how = self.outcome(&value)
        if how < 0:
            raise InvalidStateError("Result is not set.")
        got = <object>value
        Py_DECREF(got)
        if how:
            raise got
        return got

    def exception(self):
        """The exception or None; raises CancelledError or InvalidStateError."""
        self.check_asked()
        with cython.critical_section(self):
            if self.state == CANCELLED:
                raise self.cancelled_error()
            if self.state == PENDING:
                raise InvalidStateError("Exception is not set.")
            if not self.failed:
                return None
            self.log_traceback = False
            return <object>self.value

    def done(self):
        """Whether there is a result or an exception, or this was cancelled."""
        return load_state(&self.state) != PENDING

    def cancelled(self):
        """Whether this was cancelled."""
        return load_state(&self.state) == CANCELLED

    def get_loop(self):
        """The loop this belongs to."""
        self.check_alive()
        return self.loop

    def __iter__(self):
        self.check_alive()
        return FutureIter.__new__(FutureIter, self)

    def __await__(self):
        self.check_alive()
        return FutureIter.__new__(FutureIter, self)

    # -- what asyncio and others look at

    @property
    def _state(self):
        return ("PENDING", "CANCELLED", "FINISHED")[load_state(&self.state)]

    @property
    def _result(self):
        with cython.critical_section(self):
            return <object>self.value if self.value != NULL and not self.failed else None

    @property
    def _exception(self):
        with cython.critical_section(self):
            return <object>self.value if self.value != NULL and self.failed else None

    @property
    def _loop(self):
        return self.loop

    @property
    def _source_traceback(self):
        return self.rare_or_none(SOURCE_TRACEBACK)

    @property
    def _cancel_message(self):
        return self.rare_or_none(CANCEL_MESSAGE)

    @_cancel_message.setter
    def _cancel_message(self, value):
        with cython.critical_section(self):
            Py_INCREF(value)
            self.set_rare(CANCEL_MESSAGE, <PyObject *>value)

    @_cancel_message.deleter
    def _cancel_message(self):
        raise AttributeError("cannot delete attribute")

    @property
    def _log_traceback(self):
        return self.log_traceback

    @_log_traceback.setter
    def _log_traceback(self, value):
        if value:
            raise ValueError("_log_traceback can only be set to False")
        self.log_traceback = False

    @_log_traceback.deleter
    def _log_traceback(self):
        raise AttributeError("cannot delete attribute")

    @property
    def _asyncio_future_blocking(self):
        return self.blocking

    @_asyncio_future_blocking.setter
    def _asyncio_future_blocking(self, value):
        self.blocking = bool(value)

    @_asyncio_future_blocking.deleter
    def _asyncio_future_blocking(self):
        raise AttributeError("cannot delete attribute")

    @property
    def _asyncio_awaited_by(self):
        with cython.critical_section(self):
            by = set(<object>self.get_rare(AWAITED_BY)) if self.get_rare(AWAITED_BY) != NULL else set()
            if self.cb0 != NULL and self.ctx0 == NULL:
                by.add(<object>self.cb0)
            if self.callbacks != NULL:
                by.update([task for task, context in <list>self.callbacks if context is None])
        return frozenset(by) or None

    def _add_to_awaited_by(self, waiter):
        """asyncio.future_add_to_awaited_by() for futures of ours."""
        with cython.critical_section(self):
            if self.get_rare(AWAITED_BY) == NULL:
                by = set()
                Py_INCREF(by)
                self.set_rare(AWAITED_BY, <PyObject *>by)
            (<set>self.get_rare(AWAITED_BY)).add(waiter)

    def _discard_from_awaited_by(self, waiter):
        with cython.critical_section(self):
            if self.get_rare(AWAITED_BY) != NULL:
                (<set>self.get_rare(AWAITED_BY)).discard(waiter)


cdef Future make_future(G loop):
    """A future of this loop, without calls into Python but in debug mode."""
    cdef Future f = Future.__new__(Future)
    f.loop = loop
    f.own = True
    if loop.w.debug:
        stack = extract_stack()
        Py_INCREF(stack)
        f.set_rare(SOURCE_TRACEBACK, <PyObject *>stack)
    return f


def new_future(G loop not None):
    """A future of this loop."""
    return make_future(loop)


# -- awaiting. The interpreter's `await` goes by the type's slots, which iterate over the future itself; whoever asks for
# an iterator by name, or iterates, gets a FutureIter. Neither keeps any state: it is all in the future.

cdef PyObject *await_itself(PyObject *o) noexcept:
    Py_INCREF(<object>o)
    return o


cdef PyObject *raise_here(exc) noexcept:
    PyErr_SetObject(type(exc), exc)
    return NULL


cdef PyObject *future_next(PyObject *o) noexcept:
    """The future itself while it is pending, to be yielded to the task; then its outcome. As a slot: NULL ends it."""
    cdef Future f = <Future>o
    cdef PyObject *value = NULL
    cdef int how
    if f.loop is None:
        return raise_here(RuntimeError("Future object is not initialized."))
    try:
        with cython.critical_section(f):
            if f.state == PENDING:
                if f.blocking:
                    how = -1
                else:
                    f.blocking = True
                    Py_INCREF(f)
                    return o
            else:
                how = f.outcome(&value)
    except BaseException as exc:
        return raise_here(exc)
    if how < 0:
        return raise_here(RuntimeError("await wasn't used with future"))
    if how:
        return gl_raise(value)
    stop_with(value)
    Py_DECREF(<object>value)
    return NULL


cdef class FutureIter:
    cdef Future future

    def __cinit__(self, Future future not None):
        self.future = future

    def __iter__(self):
        return self

    def __next__(self):
        return self.send(None)

    def send(self, value, /):
        cdef PyObject *got
        cdef Future f = self.future
        if f is None:
            raise StopIteration
        got = future_next(<PyObject *>f)
        if got == NULL:
            self.future = None
            raise_what_is_set()
            raise StopIteration
        Py_DECREF(f)
        return f                # which it was

    def throw(self, type, *more):
        if more and three_are_deprecated:
            warn("the (type, exc, tb) signature of throw() is deprecated, use the single-arg signature instead.",
                 DeprecationWarning, 1)
        value, traceback = (*more, None, None)[:2]
        self.future = None
        if traceback is not None and not isinstance(traceback, TracebackType):
            raise TypeError("throw() third argument must be a traceback")
        if isinstance(type, BaseException):
            if value is not None:
                raise TypeError("instance exception may not have a separate value")
            value = type
        elif isinstance(type, builtin_type) and issubclass(type, BaseException):
            if not isinstance(value, BaseException):
                value = type() if value is None else type(*value) if isinstance(value, tuple) else type(value)
        else:
            raise TypeError("exceptions must be classes deriving BaseException or instances of such a class")
        raise value if traceback is None else value.with_traceback(traceback)

    def close(self):
        self.future = None


cdef extern from *:
    """
    static int raise_what_is_set(void) { return PyErr_Occurred() ? -1 : 0; }
    """
    int raise_what_is_set() except -1

import sys
from types import TracebackType
from warnings import warn
cdef object builtin_type = type
cdef bint three_are_deprecated = sys.version_info >= (3, 12)


# -- the collector

cdef traverseproc base_traverse
cdef inquiry base_clear


cdef int visit_future(PyObject *o, visitproc visit, void *arg) noexcept:
    cdef Py_ssize_t i
    cdef int r = base_traverse(o, visit, arg)
    cdef PyObject **fields = [(<Future>o).cb0, (<Future>o).ctx0, (<Future>o).callbacks, (<Future>o).value,
                              (<Future>o).attrs]
    for i in range(5):
        if r == 0 and fields[i] != NULL:
            r = visit(fields[i], arg)
    if (<Future>o).rare != NULL:
        for i in range(RARE):
            if r == 0 and (<Future>o).rare[i] != NULL:
                r = visit((<Future>o).rare[i], arg)
    return r


cdef int clear_future(PyObject *o) noexcept:
    """All but the loop, which the world's list of tasks needs until the end."""
    cdef PyObject **rare = (<Future>o).rare
    cdef int i
    drop(&(<Future>o).cb0)
    drop(&(<Future>o).ctx0)
    drop(&(<Future>o).callbacks)
    drop(&(<Future>o).value)
    drop(&(<Future>o).attrs)
    if rare != NULL:
        (<Future>o).rare = NULL
        for i in range(RARE):
            Py_XDECREF(rare[i])
        PyMem_Free(rare)
    return 0


base_traverse = (<SlotsOfType *>Future).tp_traverse
base_clear = (<SlotsOfType *>Future).tp_clear
(<SlotsOfType *>Future).tp_traverse = visit_future
(<SlotsOfType *>Future).tp_clear = clear_future
cdef Future probe = Future.__new__(Future)
gl_give_attrs(Future, <char *>&probe.attrs - <char *><PyObject *>probe, await_itself, future_next)
probe = None
