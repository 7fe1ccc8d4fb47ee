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
from cpython.ref cimport Py_INCREF, Py_XDECREF
from gmploop.core.g cimport G, gl_obj
from gmploop.core.handle cimport flag
from gmploop.core.operation cimport stop_with
from gmploop.core.sched cimport current_m, gl_m
from gmploop.core.task cimport next_number
from gmploop.core.waiter cimport Waiter, set_next
from gmploop.core.wait cimport PARKED, ENDED
from gmploop.core.waits cimport as_timeout
from gmploop.core.waitq cimport W_GRANTED, gl_wait_decide

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
    PyObject *PyException_GetTraceback(object)
    void PyErr_SetObject(object, object)
    void PyErr_WriteUnraisable(object)

cdef extern from "atomics.h" nogil:
    flag load_flag "gl_load_acquire"(flag *)

cdef object get_running_loop = asyncio._get_running_loop
cdef object CancelledError = asyncio.CancelledError


cdef bint is_of(Goroutine handle, PyObject *loop) noexcept:
    """Whether it is this loop's goroutine, which may end in this moment."""
    gl_fate_lock(&handle.fate)
    same = <PyObject *>gl_fate_world(&handle.fate) == loop
    gl_fate_unlock(&handle.fate)
    return same


cdef int finish(Goroutine handle, int status, object value) except -1:
    cdef PyObject *traceback = NULL
    if status == FAILED:
        traceback = PyException_GetTraceback(value)         # not the attribute: that may be anything, and must not raise
        value = value, <object>traceback if traceback != NULL else None
        Py_XDECREF(traceback)
    gl_fate_lock(&handle.fate)
    if gl_fate_status(&handle.fate) != PENDING:
        gl_fate_unlock(&handle.fate)
        return 0
    waiters, handle.held = handle.held, value
    gl_fate_end(&handle.fate, status)
    gl_fate_unlock(&handle.fate)
    if type(waiters) is list:
        for entry in <list>waiters:
            tell(handle, entry)
    elif waiters is not None:
        (<G>waiters).wake_root(False, False)
    return 0


cdef int tell(Goroutine handle, object entry) except -1:
    """`entry` is a world whose root coroutine waits, a Join, or (loop or None, callback, context or None)."""
    cdef Join join
    if isinstance(entry, G):
        (<G>entry).wake_root(False, False)
    elif type(entry) is Join:
        join = <Join>entry
        if gl_wait_decide(&join.node.state, W_GRANTED, 0) == 2:
            join.wake()
    else:
        loop, callback, context = entry
        try:
            if loop is None:
                callback(handle)
            else:
                loop.call_soon_threadsafe(callback, handle, context=context)
        except BaseException as exc:        # a closed loop: nobody waits there any more. The others are told all the same
            if loop is None or not isinstance(exc, RuntimeError):
                asyncio.log.logger.error("exception calling callback %r", callback, exc_info=exc)
    return 0


cdef bint wait(Goroutine handle, object entry) except -1:
    """Tell `entry` when it is over; False if it is over."""
    cdef bint waits
    cdef list made = [entry]
    gl_fate_lock(&handle.fate)
    try:
        waits = gl_fate_status(&handle.fate) == PENDING
        if waits:
            if type(handle.held) is list:
                (<list>handle.held).append(entry)
            else:
                if handle.held is not None:
                    made.insert(0, handle.held)
                handle.held = made
    finally:
        gl_fate_unlock(&handle.fate)            # without memory, too
    return waits


cdef bint forget(Goroutine handle, object entry) except -1:
    """Whether `entry` still waited; it does no longer."""
    cdef Py_ssize_t i, at = -1
    gl_fate_lock(&handle.fate)
    if gl_fate_status(&handle.fate) != PENDING:
        pass
    elif type(handle.held) is list:
        for i in range(len(<list>handle.held)):
            if (<list>handle.held)[i] is entry:
                at = i
                break
        if at >= 0:
            del (<list>handle.held)[at]          # `entry` keeps it alive: nothing is freed under the lock
    elif handle.held is entry:
        handle.held, at = None, 0
    gl_fate_unlock(&handle.fate)
    return at >= 0


cdef int join_root(Goroutine handle, G w) noexcept:
    """The same for the root coroutine of a world, which mostly is the only one; -1: there is no memory for more."""
    cdef bint alone, over
    gl_fate_lock(&handle.fate)
    over = gl_fate_status(&handle.fate) != PENDING
    alone = handle.held is None and not over
    if alone:
        handle.held = w
    gl_fate_unlock(&handle.fate)
    if alone or over:
        return alone
    try:
        return wait(handle, w)
    except MemoryError:
        return -1


cdef object join(Goroutine handle):
    cdef Join join = Join.__new__(Join)
    join.on = handle
    return join


cdef object outcome(Goroutine handle):
    if gl_fate_status(&handle.fate) == CANCELLED:
        raise CancelledError(*handle.held.args) if handle.held is not None else CancelledError()
    if gl_fate_status(&handle.fate) == FAILED:
        gl_fate_see(&handle.fate)
        raise failure(handle).with_traceback((<tuple>handle.held)[1])     # as each time: it does not grow
    return handle.held


cdef object failure(Goroutine handle):
    return (<tuple>handle.held)[0]


cdef Named named(object maker, str name):
    cdef Named made = Named.__new__(Named)
    made.maker, made.name = maker, name
    return made


cdef object maker_of(Goroutine handle):
    gl_fate_lock(&handle.fate)
    maker = handle.maker
    gl_fate_unlock(&handle.fate)
    return maker


cdef str name_of(Goroutine handle):
    """Of the root task; made when somebody asks."""
    cdef Named made
    maker = maker_of(handle)
    if type(maker) is not Named:
        made = named(maker, f"Task-{next_number()}")
        gl_fate_lock(&handle.fate)
        if type(handle.maker) is not Named:
            handle.maker = made             # it holds what was there: nothing is freed under the lock
        maker = handle.maker
        gl_fate_unlock(&handle.fate)
    return (<Named>maker).name


@cython.final
cdef class Named:
    """The maker of a goroutine whose root task has a name."""


@cython.final
cdef class Goroutine:
    """What go() returns. Await it from any world; or result() from a plain thread."""

    def __await__(self):
        return join(self)

    def result(self, timeout=None):
        """The result, waiting for it up to `timeout` seconds (None: for ever). For plain threads.

        Raises what the goroutine raised, asyncio.CancelledError if it was cancelled, TimeoutError; RuntimeError if it is
        not over and the thread runs a loop, which would stand still: await the goroutine there.
        """
        as_timeout(timeout)
        if gl_fate_status(&self.fate) == PENDING:
            if get_running_loop() is not None:
                raise RuntimeError("result() would block the running loop: await the goroutine")
            over = threading.Event()
            entry = None, lambda _: over.set(), None
            if wait(self, entry) and not over.wait(timeout) and forget(self, entry):
                raise TimeoutError(f"{self!r} is not over after {timeout} s")
        return outcome(self)

    def exception(self):
        """The exception that ended it, or None. Raises asyncio.InvalidStateError while it runs, CancelledError if it was
        cancelled."""
        if gl_fate_status(&self.fate) == PENDING:
            raise asyncio.InvalidStateError("the goroutine is not over")
        if gl_fate_status(&self.fate) == CANCELLED:
            raise CancelledError
        gl_fate_see(&self.fate)
        return failure(self) if gl_fate_status(&self.fate) == FAILED else None

    def cancel(self, msg=None):
        """Ask the root task to end with CancelledError; False if it is over. From any thread."""
        world = self.get_loop()
        return world is not None and world._cancel_from_anywhere(msg, None)

    def cancelled(self):
        """Whether it ended with CancelledError."""
        return gl_fate_status(&self.fate) == CANCELLED

    def done(self):
        """Whether it is over."""
        return gl_fate_status(&self.fate) != PENDING

    def add_done_callback(self, fn, *, context=None):
        """Call fn(goroutine) once it is over, soon: in the caller's loop, or, from a plain thread, in the thread that
        ends it."""
        if not callable(fn):
            raise TypeError(f"add_done_callback takes a function, not {fn!r}")
        loop = get_running_loop()
        entry = (loop, fn, PyContext_CopyCurrent() if context is None else context)
        if not wait(self, entry):
            tell(self, entry)

    def remove_done_callback(self, fn):
        """Forget what add_done_callback(fn) has asked for, each time. Returns how many there were; 0 once it is over. From
        any thread."""
        cdef list entries = []
        cdef int n = 0
        gl_fate_lock(&self.fate)
        try:
            if gl_fate_status(&self.fate) == PENDING:
                entries = list(<list>self.held) if type(self.held) is list else [self.held]
        finally:
            gl_fate_unlock(&self.fate)
        for entry in entries:
            if type(entry) is tuple and entry[1] == fn:
                n += forget(self, entry)
        return n

    def get_name(self):
        """The name of its root task; None before that has begun, if go() was given none."""
        cdef PyObject *world
        cdef bint begun
        gl_fate_lock(&self.fate)
        world = <PyObject *>gl_fate_world(&self.fate)
        begun = world == NULL or load_flag(&(<G>world).begun)
        gl_fate_unlock(&self.fate)
        if begun:
            return name_of(self)
        maker = maker_of(self)
        return (<Named>maker).name if type(maker) is Named else None

    def get_loop(self):
        """Its world, None once it is over."""
        cdef PyObject *world
        gl_fate_lock(&self.fate)
        world = <PyObject *>gl_fate_world(&self.fate)
        found = <object>world if world != NULL else None
        gl_fate_unlock(&self.fate)
        return found

    def __repr__(self):
        cdef int status = gl_fate_status(&self.fate)
        state = ("pending", "finished", "failed", "cancelled")[status]
        detail = f" exception={failure(self)!r}" if status == FAILED else ""
        return f"<Goroutine {state} name={self.get_name()!r}{detail}>"

    def __del__(self):
        if gl_fate_status(&self.fate) == FAILED and not gl_fate_seen(&self.fate):
            if not isinstance(failure(self), (SystemExit, KeyboardInterrupt)):
                report_unseen(self)


cdef int report_unseen(Goroutine handle) except -1:
    """Nobody has seen the exception: the exception handler of the loop that made the goroutine does."""
    maker = maker_of(handle)
    if type(maker) is Named:
        maker = (<Named>maker).maker
    return pass_on(handle, maker, {"message": f"Goroutine exception was never retrieved: {handle.get_name()}",
                                   "exception": failure(handle)}, 0)


cdef int pass_on(whom, maker, dict context, int asked) except -1:
    """Have the maker's exception handler called: in the maker, or, when that is over, in the loop from which it came, or,
    when that is closed too, here, as asyncio does for a task. `asked`: how many of these were. For finalizers, of `whom`:
    what fails here is told to sys.unraisablehook."""
    try:
        ask_next(maker, context, asked)
    except BaseException as exc:
        PyErr_SetObject(type(exc), exc)
        PyErr_WriteUnraisable(whom)
    return 0


cdef int ask_next(maker, dict context, int asked) except -1:
    while asked < 2:
        loop = maker if asked == 0 else getattr(maker, "home", None)
        asked += 1
        if loop is not None and not loop.is_closed():
            try:
                loop.call_soon_threadsafe(Unseen.__new__(Unseen, maker, context, asked))
            except RuntimeError:
                pass                        # closed just now: it is passed on by the one that was not called
            return 0
    return call_handler(maker, context)


cdef int call_handler(maker, dict context) except -1:
    if maker is None:
        asyncio.log.logger.error(context["message"], exc_info=context["exception"])
    else:
        maker.call_exception_handler(context)
    return 0


@cython.final
cdef class Unseen:
    """A callback that reports an exception. A loop that ends drops callbacks: one that was not called passes it on."""
    cdef object maker
    cdef dict context
    cdef int asked
    cdef bint called

    def __cinit__(self, maker, dict context, int asked):
        self.maker, self.context, self.asked = maker, context, asked

    def __call__(self):
        self.called = True
        call_handler(self.maker, self.context)

    def __del__(self):
        if not self.called:
            pass_on(self, self.maker, self.context, self.asked)


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
            self.asker, self.cause = <G>gl_obj(mp.curg), <Request>gl_cancelling if gl_cancelling != NULL else None
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
        return self.told < self.asked and gl_fate_status(&on.fate) != CANCELLED


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
        if mp != NULL and mp.curg != NULL and forget(self.on, <G>gl_obj(mp.curg)):
            (<G>gl_obj(mp.curg)).wake_root(True, False)
        return False

    def done(self):
        return gl_fate_status(&self.on.fate) != PENDING

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
        if gl_fate_status(&self.on.fate) == PENDING:
            self.park()
            if is_of(self.on, <PyObject *>self.whom):
                self.unpark()
                raise RuntimeError("a goroutine cannot await itself")
            try:
                if wait(self.on, self):
                    return self
            except MemoryError:
                self.unpark()
                raise
            self.unpark()
        self.node.stage = ENDED
        return outcome(self.on)

    cdef object granted(self):
        if self.request is not None and self.request.late(self.on):
            raise self.cancelled_error()
        return outcome(self.on)

    def cancel(self, msg=None):
        """Cancel the goroutine. It may refuse: so this waits on, until that is over."""
        if self.done():
            return False
        if self.request is None:
            self.request = Request()
        self.set_message(msg)
        return self.request.ask(self.on, msg) or (not self.done() and Waiter.cancel(self, msg))

    cdef bint decide_here(self, int outcome) except -1:
        return gl_wait_decide(&self.node.state, outcome, 0) != 0

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
        return self.on if self.node.stage == PARKED else None


cdef PyObject *await_goroutine(PyObject *o) except? NULL:
    """What an `await` drives: the handle itself if that is all it takes, or a Join."""
    cdef Goroutine handle = <Goroutine>o
    cdef gl_m *mp = current_m()
    cdef PyObject *w = NULL
    if gl_fate_status(&handle.fate) == PENDING:
        if mp != NULL and mp.curg != NULL:
            w = <PyObject *>gl_obj(mp.curg)
        elif get_running_loop() is None:
            raise RuntimeError("a goroutine is awaited in a running loop; a plain thread calls result()")
        if w == NULL or (<G>w).current != w:
            joiner = join(handle)
            Py_INCREF(joiner)
            return <PyObject *>joiner
        if is_of(handle, w):
            raise RuntimeError("a goroutine cannot await itself")
    Py_INCREF(handle)
    return o


cdef PyObject *next_of_goroutine(PyObject *o) except? NULL:
    """The handle itself while it is pending, for the world whose root coroutine awaits it; then its outcome."""
    cdef Goroutine handle = <Goroutine>o
    if gl_fate_status(&handle.fate) == PENDING:
        Py_INCREF(handle)
        return o
    result = outcome(handle)
    return stop_with(<PyObject *>result)


gl_give_await(Goroutine, await_goroutine, next_of_goroutine)
set_next(Join)
