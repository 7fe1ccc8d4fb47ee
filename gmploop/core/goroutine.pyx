# cython: language_level=3, freethreading_compatible=True, binding=True
"""Goroutine: the handle of a goroutine, and how others wait for its end.

Who awaits it
- the root coroutine of a world that has no task object yet (moving.pyx): the handle yields itself to the world, which
  enters itself here. Nothing is made for that.
- any other task: by a Join, a Waiter (waiter.pyx) that is decided when the goroutine is over. Cancelling it cancels the
  goroutine and waits on.
- a plain thread, by result().
finish() takes all who wait, under the lock, and wakes them after it: whoever comes later finds that it is over.
"""
cimport cython
import asyncio
import threading
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from gmploop.core.g cimport G
from gmploop.core.handle cimport flag, gl_lock, gl_unlock
from gmploop.core.sched cimport current_m, gl_m
from gmploop.core.task cimport next_number
from gmploop.core.waiter cimport Waiter, NEW, PARKED, ENDED, W_GRANTED, gl_wait_decide, set_next

cdef extern from "raised.h":
    PyObject *gl_stop_iteration(PyObject *) noexcept

cdef extern from *:
    """
    static void gl_give_await(PyObject *type, unaryfunc await, iternextfunc next) {
        ((PyTypeObject *)type)->tp_as_async->am_await = await;
        ((PyTypeObject *)type)->tp_iternext = next;
        PyType_Modified((PyTypeObject *)type);
    }
    """
    ctypedef PyObject *(*slot)(PyObject *) except? NULL
    void gl_give_await(object, slot, slot)

cdef extern from "Python.h":
    object PyContext_CopyCurrent()

cdef extern from "atomics.h" nogil:
    int load_status "gl_load_acquire"(int *)
    void store_status "gl_store_release"(int *, int)
    flag load_flag "gl_load_acquire"(flag *)
    void store_flag "gl_store_release"(flag *, flag)

cdef object get_running_loop = asyncio._get_running_loop
cdef object CancelledError = asyncio.CancelledError



cdef bint is_of(Goroutine handle, PyObject *loop) noexcept:
    """Whether it is this loop's goroutine, which may end in this moment."""
    gl_lock(&handle.lock)
    same = <PyObject *>handle.world == loop
    gl_unlock(&handle.lock)
    return same


@cython.final
cdef class Goroutine:
    """What go() returns. Await it from any world; or result() from a plain thread."""

    cdef int finish(self, int status, object value) except -1:
        gl_lock(&self.lock)
        if self.status != PENDING:
            gl_unlock(&self.lock)
            return 0
        self.value = (value, value.__traceback__) if status == FAILED else value
        store_status(&self.status, status)
        waiters, self.waiters = self.waiters, None
        world, self.world = self.world, None
        gl_unlock(&self.lock)
        if type(waiters) is list:
            for entry in <list>waiters:
                self.tell(entry)
        elif waiters is not None:
            (<G>waiters).wake_root(False, False)
        return 0

    cdef int tell(self, object entry) except -1:
        """`entry` is a world whose root coroutine waits, a Join, or (loop or None, callback, context or None)."""
        cdef Join join
        if isinstance(entry, G):
            (<G>entry).wake_root(False, False)
        elif type(entry) is Join:
            join = <Join>entry
            if gl_wait_decide(&join.state, W_GRANTED, 0) == 2:
                join.wake()
        else:
            loop, callback, context = entry
            try:
                if loop is None:
                    callback(self)
                else:
                    loop.call_soon_threadsafe(callback, self, context=context)
            except BaseException as exc:        # a closed loop: nobody waits there any more. The others are told all the same
                if loop is None or not isinstance(exc, RuntimeError):
                    asyncio.log.logger.error("exception calling callback %r", callback, exc_info=exc)
        return 0

    cdef bint wait(self, object entry) except -1:
        """Tell `entry` when it is over; False if it is over."""
        cdef bint waits
        cdef list made = [entry]
        gl_lock(&self.lock)
        waits = self.status == PENDING
        if waits:
            if type(self.waiters) is list:
                (<list>self.waiters).append(entry)
            else:
                if self.waiters is not None:
                    made.insert(0, self.waiters)
                self.waiters = made
        gl_unlock(&self.lock)
        return waits

    cdef bint forget(self, object entry) except -1:
        """Whether `entry` still waited; it does no longer."""
        cdef Py_ssize_t i, at = -1
        gl_lock(&self.lock)
        if type(self.waiters) is list:
            for i in range(len(<list>self.waiters)):
                if (<list>self.waiters)[i] is entry:
                    at = i
                    break
            if at >= 0:
                del (<list>self.waiters)[at]            # `entry` keeps it alive: nothing is freed under the lock
        elif self.waiters is entry:
            self.waiters, at = None, 0
        gl_unlock(&self.lock)
        return at >= 0

    cdef bint join_root(self, G w) except -1:
        """The same for the root coroutine of a world, which mostly is the only one."""
        cdef bint alone, over
        gl_lock(&self.lock)
        over = self.status != PENDING
        alone = self.waiters is None and not over
        if alone:
            self.waiters = w
        gl_unlock(&self.lock)
        return alone or (not over and self.wait(w))

    cdef object join(self):
        cdef Join join = Join.__new__(Join)
        join.on = self
        return join

    def __await__(self):
        return self.join()

    cdef object outcome(self):
        if self.status == CANCELLED:
            raise CancelledError(*self.value.args) if self.value is not None else CancelledError()
        if self.status == FAILED:
            store_flag(&self.retrieved, True)
            raise self.failure().with_traceback((<tuple>self.value)[1])     # as each time: it does not grow
        return self.value

    cdef object failure(self):
        return (<tuple>self.value)[0]

    def result(self, timeout=None):
        """The result, waiting for it up to `timeout` seconds (None: for ever). For plain threads.

        Raises what the goroutine raised, asyncio.CancelledError if it was cancelled, TimeoutError; RuntimeError if it is
        not over and the thread runs a loop, which would stand still: await the goroutine there.
        """
        if load_status(&self.status) == PENDING:
            if get_running_loop() is not None:
                raise RuntimeError("result() would block the running loop: await the goroutine")
            over = threading.Event()
            entry = None, lambda _: over.set(), None
            if self.wait(entry) and not over.wait(timeout) and self.forget(entry):
                raise TimeoutError(f"{self!r} is not over after {timeout} s")
        return self.outcome()

    def exception(self):
        """The exception that ended it, or None. Raises asyncio.InvalidStateError while it runs, CancelledError if it was
        cancelled."""
        if load_status(&self.status) == PENDING:
            raise asyncio.InvalidStateError("the goroutine is not over")
        if self.status == CANCELLED:
            raise CancelledError
        store_flag(&self.retrieved, True)
        return self.failure() if self.status == FAILED else None

    def cancel(self, msg=None):
        """Ask the root task to end with CancelledError; False if it is over. From any thread."""
        world = self.get_loop()
        return world is not None and world._cancel_from_anywhere(msg, None)

    def cancelled(self):
        """Whether it ended with CancelledError."""
        return load_status(&self.status) == CANCELLED

    def done(self):
        """Whether it is over."""
        return load_status(&self.status) != PENDING

    def add_done_callback(self, fn, *, context=None):
        """Call fn(goroutine) once it is over, soon: in the caller's loop, or, from a plain thread, in the thread that
        ends it."""
        loop = get_running_loop()
        entry = (loop, fn, PyContext_CopyCurrent() if context is None else context)
        if not self.wait(entry):
            self.tell(entry)

    cdef str name(self):
        """Of the root task; made when somebody asks."""
        cdef str made
        name = self.given_name()
        if name is None:
            made = f"Task-{next_number()}"
            gl_lock(&self.lock)
            if self.name_ is None:
                self.name_ = made
            name = self.name_
            gl_unlock(&self.lock)
        return name

    cdef object given_name(self):
        gl_lock(&self.lock)
        name = self.name_
        gl_unlock(&self.lock)
        return name

    def get_name(self):
        """The name of its root task; None before that has begun, if go() was given none."""
        return self.name() if load_flag(&self.started) else self.given_name()

    def get_loop(self):
        """Its world, None once it is over."""
        gl_lock(&self.lock)
        world = self.world
        gl_unlock(&self.lock)
        return world

    def __repr__(self):
        cdef int status = load_status(&self.status)
        state = ("pending", "finished", "failed", "cancelled")[status]
        detail = f" exception={self.failure()!r}" if status == FAILED else ""
        return f"<Goroutine {state} name={self.get_name()!r}{detail}>"

    def __del__(self):
        if self.status == FAILED and not self.retrieved and not isinstance(self.failure(), (SystemExit, KeyboardInterrupt)):
            report_unseen(self, self.failure())


def report_unseen(Goroutine handle, exc):
    """Nobody has seen the exception: the exception handler of the loop that made the goroutine does."""
    context = {"message": f"Goroutine exception was never retrieved: {handle.get_name()}", "exception": exc}
    maker = handle.maker
    try:
        if maker is not None and not maker.is_closed():
            maker.call_soon_threadsafe(maker.call_exception_handler, context)
            return
    except RuntimeError:
        pass                                # closed just now
    asyncio.log.logger.error(context["message"], exc_info=exc)


cdef extern from *:
    """
    static __thread PyObject *gl_cancelling;    /* the Request for which the thread cancels a root task just now; borrowed */
    """
    PyObject *gl_cancelling


cdef Request set_cancelling(Request now):
    """Returns what it was before."""
    global gl_cancelling
    before = <Request>gl_cancelling if gl_cancelling != NULL else None
    gl_cancelling = <PyObject *>now if now is not None else NULL
    return before


@cython.final
cdef class Request:
    """What a waiter's cancel() has asked of a goroutine. One that had ended before it was told has not refused: then the
    waiter itself is cancelled."""

    cdef bint ask(self, Goroutine on, msg) except -1:
        cdef gl_m *mp = current_m()
        world = on.get_loop()
        if world is None:
            return False
        if mp != NULL and mp.curg != NULL:
            self.asker, self.cause = <G>mp.curg.obj, <Request>gl_cancelling if gl_cancelling != NULL else None
            if self.closes_ring(<G>world):
                return False
        self.asked += 1
        return world._cancel_from_anywhere(msg, self)

    cdef bint closes_ring(self, G world):
        """Whether this cancel has come from there, by way of goroutines each of which awaits the next: then it would go
        round for ever."""
        cdef Request r = self
        while r is not None and r.asker is not world:
            r = r.cause
        return r is not None

    cdef bint late(self, Goroutine on):
        return self.told < self.asked and on.status != CANCELLED


@cython.final
cdef class RootJoin:
    """What the task waits on that was made of a root coroutine while that awaited a goroutine: the world is told of the
    end, not this."""

    def cancel(self, msg=None):
        """Cancel the goroutine; False if it is over, or awaits, perhaps through others, this one: then the task that
        waits here is cancelled without it."""
        cdef gl_m *mp = current_m()
        if self.done() or self.request.ask(self.on, msg):
            return not self.done()
        if mp != NULL and mp.curg != NULL and self.on.forget(<G>mp.curg.obj):
            (<G>mp.curg.obj).wake_root(True, False)
        return False

    def done(self):
        return load_status(&self.on.status) != PENDING

    @property
    def goroutine(self):
        return self.on

    def __repr__(self):
        return f"<join of {self.on!r}>"


@cython.final
@cython.no_gc_clear
cdef class Join(Waiter):
    """What a task waits on that awaits a goroutine."""
    cdef Goroutine on
    cdef Request request

    cdef object start(self):
        if load_status(&self.on.status) == PENDING:
            self.park()
            if is_of(self.on, <PyObject *>self.loop):
                self.unpark()
                raise RuntimeError("a goroutine cannot await itself")
            if self.on.wait(self):
                return self
            self.unpark()
        self.stage = ENDED
        return self.on.outcome()

    cdef object granted(self):
        if self.request is not None and self.request.late(self.on):
            raise self.cancelled_error()
        return self.on.outcome()

    def cancel(self, msg=None):
        """Cancel the goroutine. It may refuse: so this waits on, until that is over."""
        if self.done():
            return False
        if self.request is None:
            self.request = Request()
        self.message = msg
        return self.request.ask(self.on, msg) or (not self.done() and Waiter.cancel(self, msg))

    cdef bint decide_here(self, int outcome) except -1:
        return gl_wait_decide(&self.state, outcome, 0) != 0

    cdef int abandon(self) except -1:
        return 0                            # there is nothing to give to another

    cdef int quit_for_ever(self) except -1:
        return self.unpark()

    cdef str operation(self):
        return "join"

    @property
    def goroutine(self):
        """What is awaited."""
        return self.on

    @property
    def cr_await(self):
        return self.on if self.stage == PARKED else None


cdef PyObject *await_goroutine(PyObject *o) except? NULL:
    """What an `await` drives: the handle itself if that is all it takes, or a Join."""
    cdef Goroutine handle = <Goroutine>o
    cdef gl_m *mp = current_m()
    cdef PyObject *w = NULL
    if load_status(&handle.status) == PENDING:
        if mp != NULL and mp.curg != NULL:
            w = <PyObject *>mp.curg.obj
        elif get_running_loop() is None:
            raise RuntimeError("a goroutine is awaited in a running loop; a plain thread calls result()")
        if w == NULL or (<G>w).current != w:
            joiner = handle.join()
            Py_INCREF(joiner)
            return <PyObject *>joiner
        if is_of(handle, w):
            raise RuntimeError("a goroutine cannot await itself")
    Py_INCREF(handle)
    return o


cdef PyObject *next_of_goroutine(PyObject *o) except? NULL:
    """The handle itself while it is pending, for the world whose root coroutine awaits it; then its outcome."""
    cdef Goroutine handle = <Goroutine>o
    if load_status(&handle.status) == PENDING:
        Py_INCREF(handle)
        return o
    result = handle.outcome()
    return gl_stop_iteration(<PyObject *>result)


gl_give_await(Goroutine, await_goroutine, next_of_goroutine)
set_next(Join)
