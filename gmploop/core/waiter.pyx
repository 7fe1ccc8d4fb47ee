# cython: language_level=3, freethreading_compatible=True, binding=True
"""Waiter: what a call of a channel or lock returns, an operation (wait.pyx) to be awaited.

One object serves for all. To who calls, `ch.recv()` is a coroutine: nothing happens before it is awaited, and done is
done when it can be. If it has to wait, it yields itself, and now speaks asyncio's future protocol to the task that drives
it (`_asyncio_future_blocking`, add_done_callback ...). In a plain thread it waits by a semaphore instead (waits.pyx).
"""
cimport cython
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from gmploop.core.handle cimport load_flags
from gmploop.core.g cimport G
from gmploop.core.operation cimport stop_with, thrown
from gmploop.core.sched cimport current_m, gl_m
from gmploop.core.shared cimport Shared
from gmploop.core.waitq cimport *

cdef extern from "waiters.h":
    object gl_new_waiter(tuple)
    void gl_keep_waiters(type, object, gl_m *(*)() noexcept nogil)

cdef extern from "Python.h":
    ctypedef PyObject *(*iternextfunc)(PyObject *) except? NULL
    object PyContext_CopyCurrent()
    ctypedef struct SlotsOfType "PyTypeObject":
        iternextfunc tp_iternext
        void *tp_dealloc

# Injected by gmploop.sync.
cdef object InvalidStateError = None


def configure(invalid_state_error):
    """Set what waiters need of asyncio."""
    global InvalidStateError
    InvalidStateError = invalid_state_error


cdef Waiter operation(Shared at, int op):
    cdef Waiter w = <Waiter>gl_new_waiter(())
    w.at = at
    w.node.op = <unsigned char>op
    return w


@cython.no_gc_clear
cdef class Waiter(Wait):
    """An operation that may have to wait. Await it once, in a task of any loop."""

    # -- as a coroutine

    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        r = self.start() if self.node.stage == NEW else self.finish()
        if self.node.stage == PARKED:
            return r
        raise StopIteration(r)

    def send(self, value):
        if value is not None and self.node.stage == NEW:
            raise TypeError("can't send non-None value to a just-started coroutine")
        return self.__next__()

    def throw(self, typ, val=None, tb=None):
        self.quit()
        raise thrown(typ, val, tb)

    def close(self):
        self.quit()

    @property
    def waits_at(self):
        """The channels or locks that it is an operation on."""
        return (self.at,)

    @property
    def __name__(self):
        return self.operation()

    @property
    def __qualname__(self):
        return f"{type(self.at).__name__}.{self.operation()}" if self.at is not None else self.operation()

    @property
    def cr_running(self):
        return False

    @property
    def cr_frame(self):
        return None

    @property
    def cr_await(self):
        return self.at if self.node.stage == PARKED else None

    # -- as a future

    @property
    def _asyncio_future_blocking(self):
        return self.node.blocking if self.node.stage == PARKED else None      # None: not a future (yet)

    @_asyncio_future_blocking.setter
    def _asyncio_future_blocking(self, bint value):
        self.node.blocking = value

    def get_loop(self):
        return loop_of(self)

    def add_done_callback(self, callback, *, context=None):
        """Call callback(self) in the waiter's loop when the outcome is decided."""
        self.arm(callback, PyContext_CopyCurrent() if context is None else context)

    def remove_done_callback(self, callback):
        removed = 0
        if self.node.how == BY_CALLBACK and self.rare.callback is not None and self.rare.callback == callback:
            self.rare.callback, removed = call_nothing, 1
        if self.rare is not None and self.rare.more:
            kept = [pair for pair in self.rare.more if pair[0] != callback]
            removed += len(self.rare.more) - len(kept)
            self.rare.more = kept
        return removed

    cdef bint may_arm(self, G g) noexcept:
        """A task of this world has got it from its coroutine, as a future is got: it may arm it with itself."""
        cdef bint may = (self.node.stage == PARKED and self.node.blocking and self.node.how == BY_NOTHING
                         and <PyObject *>self.whom == <PyObject *>g)
        if may:
            self.node.blocking = False
        return may

    cdef int arm(self, object callback, object context) except -1:
        """Set whom to wake: a callback with its context, or with None a task of ours. By the waiter's own thread."""
        if self.node.stage != PARKED:
            raise RuntimeError("not awaited, or over")
        if self.node.how != BY_NOTHING:
            if self.node.delivered:
                loop_of(self).call_soon(callback, self, context=context)
            else:
                rare_of(self).more = (self.rare.more or []) + [(callback, context)]
            return 0
        if context is None:
            self.whom, self.node.how = callback, BY_TASK
        else:
            rare_of(self).callback, self.rare.context, self.node.how = callback, context, BY_CALLBACK
        if gl_wait_arm(&self.node.state) and not self.wake():
            self.abandon()
        return 0

    cdef int arm_root(self) except -1:
        """Wake the root coroutine of its world, which is no task. may_arm() has said yes."""
        self.node.how = BY_ROOT
        return gl_wait_arm(&self.node.state) and self.wake()

    def done(self):
        return load_flags(&self.node.state) & W_OUTCOME != W_PENDING

    def cancelled(self):
        return load_flags(&self.node.state) & W_OUTCOME == W_CANCELLED

    def result(self):
        """None: what was waited for is what the await returns."""
        cdef int outcome = load_flags(&self.node.state) & W_OUTCOME
        if outcome == W_PENDING:
            raise InvalidStateError("Result is not set.")
        if outcome == W_CANCELLED:
            raise self.cancelled_error()

    def exception(self):
        self.result()

    def cancel(self, msg=None):
        """Withdraw. False when something was granted already: a task then throws CancelledError, which gives it back."""
        if self.node.stage != PARKED or self.done():
            return False
        self.set_message(msg)
        try:
            if not self.decide_here(W_CANCELLED):
                return False
        finally:
            if self.cancelled() and load_flags(&self.node.state) & W_ARMED:
                self.wake()
        return True

    # -- to look at

    def __repr__(self):
        cdef int outcome = load_flags(&self.node.state) & W_OUTCOME
        what = "not started" if self.node.stage == NEW else "ended" if self.node.stage == ENDED else (
            "waiting", "granted", "closed", "cancelled", "expired")[outcome]
        return f"<{self.__qualname__}() {what}{f' at {self.at!r}' if self.at is not None else ''}>"


def call_nothing(waiter):
    pass


# -- a slot that Cython would fill with a slower function

cdef PyObject *next_step(PyObject *o) except? NULL:
    """tp_iternext without a StopIteration for None."""
    cdef Waiter w = <Waiter>o
    r = w.start() if w.node.stage == NEW else w.finish()
    if w.node.stage == PARKED:
        Py_INCREF(r)
        return <PyObject *>r
    return stop_with(<PyObject *>r)


cdef int set_next(type t) except -1:
    """Of Waiter and each class derived from it."""
    (<SlotsOfType *>t).tp_iternext = next_step
    return 0


set_next(Waiter)
(<SlotsOfType *>Waiter).tp_dealloc = (<SlotsOfType *>Wait).tp_dealloc       # it adds no field
gl_keep_waiters(Waiter, Waiter.__new__(Waiter), current_m)
