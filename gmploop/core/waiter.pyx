# cython: language_level=3, freethreading_compatible=True, binding=True
"""Waiter: one operation on a channel or lock, from its call to its result; Shared: what it is an operation on.

One object serves for all. To who calls, `ch.recv()` is a coroutine: nothing happens before it is awaited, and done is
done when it can be. If it has to wait, it yields itself, and now speaks asyncio's future protocol to the task that drives
it (`_asyncio_future_blocking`, add_done_callback ...). In a plain thread it waits by a semaphore instead. waitq.h says
how its outcome is decided and why nothing is lost or doubled.

From outcome to resumed task: the one who decides calls wake(), which queues a Grant in the waiter's world; called there, it
calls the task's wake-up. A Grant that is dropped without having been called (its loop was closed) gives what was granted
to the next in line, and so does everything else that ends a wait between grant and resume: cancel (the task throws
CancelledError into the waiter), close() of the coroutine, KeyboardInterrupt in a thread, the last reference going away.

fork: free-threaded Pythons stop all threads for it and the others hold the GIL, and no spin lock is held at either; so
the child finds them free. Waits of threads and worlds that the child does not have are withdrawn there (forget_lost()).
"""
cimport cython
from cpython.exc cimport PyErr_CheckSignals
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_DECREF, Py_XDECREF
from libc.math cimport isnan
from libc.string cimport memset
from gmploop.core.handle cimport (
    make_handle, gl_world_mine, gl_load_relaxed, gl_lock, gl_unlock, gl_spinlock, gl_monotonic, load_flags)
from gmploop.core.g cimport G
from gmploop.core.operation cimport thrown
from gmploop.core.sched cimport current_m, gl_m

cdef extern from "raised.h":
    PyObject *gl_stop_iteration(PyObject *) noexcept
    object gl_take_exception()
    int gl_raise_again(object) except -1

cdef extern from *:
    """
    #include "spares.h"
    #ifdef Py_GIL_DISABLED
    #define gl_count(p, n) __atomic_fetch_add((p), (n), __ATOMIC_RELAXED)
    #else
    #define gl_count(p, n) (*(p) += (n))
    #endif
    /* Two of these are made for each item that goes from one goroutine to another. */
    static PyTypeObject *gl_waiter_type;
    static gl_m *(*gl_my_m)(void);
    static gl_spares *gl_my_waiters(void) {
        gl_m *mp = gl_my_m();
        if (!mp) return NULL;
        if (!mp->waiters) mp->waiters = calloc(1, sizeof(gl_spares));
        return (gl_spares *)mp->waiters;
    }
    static PyObject *gl_fresh_waiter;
    static PyObject *gl_new_waiter(PyObject *no_args) {
        PyObject *o = gl_spare_copy(gl_my_waiters(), gl_fresh_waiter);
        return o ? o : gl_waiter_type->tp_new(gl_waiter_type, no_args, NULL);
    }
    static void gl_free_waiter(void *o) { gl_spare_free(gl_my_waiters(), gl_waiter_type, o); }
    static void gl_keep_waiters(PyTypeObject *type, PyObject *fresh, gl_m *(*my_m)(void)) {
        gl_my_m = my_m;
        gl_fresh_waiter = Py_NewRef(fresh);
        gl_waiter_type = type;
        type->tp_free = gl_free_waiter;
    }
    """
    void gl_count(int *, int)
    object gl_new_waiter(tuple)
    void gl_keep_waiters(type, object, gl_m *(*)() noexcept nogil)

cdef extern from "Python.h":
    ctypedef PyObject *(*iternextfunc)(PyObject *) except? NULL
    ctypedef int (*traverseproc)(PyObject *, visitproc, void *) noexcept
    ctypedef int (*inquiry)(PyObject *) noexcept
    object PyObject_CallNoArgs(object)
    object PyContext_CopyCurrent()
    void PyErr_WriteUnraisable(object)
    void *PyMem_RawRealloc(void *, size_t) nogil
    void PyMem_RawFree(void *) nogil
    ctypedef struct SlotsOfType "PyTypeObject":
        traverseproc tp_traverse
        inquiry tp_clear
        iternextfunc tp_iternext

cdef extern from "pythread.h" nogil:
    unsigned long PyThread_get_thread_ident()
    void *PyThread_allocate_lock()
    void PyThread_free_lock(void *)
    void PyThread_release_lock(void *)
    int PyThread_acquire_lock_timed(void *, long long, int)
    int PY_LOCK_INTR

cdef enum:
    DAY_S = 86400       # one wait for a semaphore at most
    TRIES = 3           # to post to a loop of another make, when signal handlers raise meanwhile

# Injected by gmploop.sync.
cdef object get_running_loop = None
cdef object CancelledError = None
cdef object InvalidStateError = None


def configure(running_loop_getter, cancelled_error, invalid_state_error):
    """Set what waiters need of asyncio."""
    global get_running_loop, CancelledError, InvalidStateError
    get_running_loop, CancelledError, InvalidStateError = running_loop_getter, cancelled_error, invalid_state_error


class ChannelClosed(Exception):
    """The channel is closed, and empty if it was received from. `channel` is the channel; `case`, after a select, the
    number of the case."""

    __module__ = "gmploop"
    channel = case = None


cdef task_resumer resume_task = NULL
cdef task_stepper step_task = NULL


cdef int set_task_hooks(task_resumer resume, task_stepper step) except -1:
    global resume_task, step_task
    resume_task, step_task = resume, step
    return 0


cdef object running_loop():
    cdef gl_m *mp = current_m()
    return <object>mp.curg.obj if mp != NULL and mp.curg != NULL else PyObject_CallNoArgs(get_running_loop)


cdef int check_blocking(str what, str instead) except -1:
    if running_loop() is not None:
        raise RuntimeError(f"{what} would block the event loop that this thread runs: use {instead}")
    return 0


cdef double as_timeout(timeout) except? -2:
    """Seconds, or -1 for None."""
    cdef double t
    if timeout is None:
        return -1
    t = timeout
    if isnan(t) or t < 0:
        raise ValueError(f"timeout takes None or seconds >= 0, not {timeout!r}")
    return t


# Of functions that raise: called as these, they return -1 and leave the exception where it is. A `try` costs as much as
# what is done here, also when nothing is raised.
ctypedef int (*waker)(Waiter w, gl_chain *more) noexcept
ctypedef int (*flusher)(gl_chain *out) noexcept


cdef int wake_first(Waiter w, gl_chain *more) except -1:
    """Wake it; or, if its loop is closed, what was granted goes to who is first then."""
    if not w.wake() and gl_wait_take(&w.state):
        w.put_back(more)
    return 0


cdef int flush(gl_chain *out) except -1:
    """After the unlock: wake those who were decided and drop the queues' references. All of them, before an error that
    came up in between (a signal's, say) is raised."""
    cdef gl_chain more
    cdef gl_wnode *n = out.first
    cdef gl_wnode *link
    cdef Waiter w
    error = None
    if out.spare != NULL:
        Py_DECREF(<object>out.spare.owner)
    while n != NULL:
        memset(&more, 0, sizeof(more))
        while n != NULL:
            link = n.link
            w = <Waiter>n.owner
            Py_DECREF(w)                    # the queue's reference; `w` holds another
            if n.wake and (<waker>wake_first)(w, &more) < 0:
                exc = gl_take_exception()
                error = error or exc
            n = link
        n = more.first                      # nobody was taken out of `returned` by putting back
    if error is not None:
        raise error
    return 0


cdef Waiter operation(Shared at, int op):
    cdef Waiter w = <Waiter>gl_new_waiter(())
    w.at = at
    w.node.op = <unsigned char>op
    w.node.state, w.node.owner = &w.state, <void *>w
    return w


# -- what is waited at

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

    cdef int undo(self, gl_wnode *n) except -1:
        """Take back an operation that was just done for a node of no queue (a waiter's; of RECV the item is in it)."""
        cdef Waiter carrier = Waiter.__new__(Waiter)
        cdef gl_chain out
        memset(&out, 0, sizeof(out))
        carrier.at = self
        carrier.node.op, carrier.node.item, carrier.node.seq = n.op, n.item, n.seq
        carrier.node.owner, carrier.node.state = <void *>carrier, &carrier.state
        carrier.state, carrier.stage = W_GRANTED | W_TAKEN, ENDED
        n.item = NULL
        carrier.put_back(&out)
        return flush(&out)

    def __repr__(self):
        cdef str name = f" {self.name!r}" if self.name is not None else ""
        return f"<{type(self).__name__}{name} {self.describe()}>"


# -- one operation

@cython.no_gc_clear
cdef class Waiter:
    """An operation that may have to wait. Await it once, in a task of any loop."""

    def __dealloc__(self):
        if self.stage == PARKED:
            try:
                self.quit_for_ever()
            except BaseException:
                PyErr_WriteUnraisable(self.at)
        if self.sem != NULL:
            PyThread_free_lock(self.sem)
        Py_XDECREF(<PyObject *>self.node.item)

    cdef int quit_for_ever(self) except -1:
        """Nobody refers to it any more, no queue either: it was decided, or taken out of a queue that was cleared."""
        self.unpark()
        if load_flags(&self.state) & W_OUTCOME == W_GRANTED and gl_wait_take(&self.state):
            self.winner_at().undo(self.winner())
        return 0

    # -- as a coroutine

    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        r = self.start() if self.stage == NEW else self.finish()
        if self.stage == PARKED:
            return r
        raise StopIteration(r)

    def send(self, value):
        if value is not None and self.stage == NEW:
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
        return self.at if self.stage == PARKED else None

    cdef object start(self):
        cdef int r = self.begin(True)
        if r != SYNC_WAIT:
            return self.at_once(r)
        self.park()
        return self

    cdef object at_once(self, int r):
        self.stage = ENDED
        if r == SYNC_DONE:
            return self.granted()
        if r == SYNC_CLOSED:
            return self.closed()
        raise MemoryError()

    cdef int begin(self, bint park) except -1:
        """Do it, or (park) stand in the queue for it. A SYNC_ code."""
        cdef gl_chain out
        cdef int r
        memset(&out, 0, sizeof(out))
        gl_lock(&self.at.lock)
        r = self.at.attempt(&self.node, &out)
        if r == SYNC_WAIT and park:
            Py_INCREF(self)
            gl_q_append(self.at.queue(self.node.op), &self.node)
        gl_unlock(&self.at.lock)
        if (out.first != NULL or out.spare != NULL) and (<flusher>flush)(&out) < 0:
            error = gl_take_exception()
            self.stage = ENDED
            if r == SYNC_DONE:
                self.at.undo(&self.node)
            elif r == SYNC_WAIT and park:
                self.stage = PARKED
                self.quit()
            gl_raise_again(error)
        return r

    cdef int park(self) except -1:
        """It stands in a queue. Say in which world; whom to wake comes with add_done_callback(). RuntimeError outside of
        any: then it has left the queue."""
        cdef gl_m *mp = current_m()
        if mp != NULL and mp.curg != NULL:
            self.loop = <object>mp.curg.obj
            self.own = True
        else:
            self.loop = PyObject_CallNoArgs(get_running_loop)
            if self.loop is None:
                self.stage = PARKED
                self.quit()
                raise RuntimeError("no running event loop")
            self.own = isinstance(self.loop, G)
        if self.own:
            (<G>self.loop).waits += 1
        self.stage = PARKED
        self.blocking = True
        return 0

    cdef int unpark(self) except -1:
        self.stage = ENDED
        if not self.own:
            return 0
        if gl_world_mine(&(<G>self.loop).w):
            (<G>self.loop).waits -= 1
        else:
            gl_count(&(<G>self.loop).waits_ended, 1)
        return 0

    cdef object finish(self):
        cdef int state = load_flags(&self.state)
        if self.stage != PARKED:
            raise RuntimeError("cannot reuse already awaited coroutine")
        if state & W_OUTCOME == W_PENDING:
            raise RuntimeError("await wasn't used with future")
        self.unpark()
        if self.more is not None:
            self.tell_more()
        self.clean_up()
        if not gl_wait_take(&self.state):
            raise RuntimeError("the loop was closed while this waited")
        state &= W_OUTCOME
        if state == W_GRANTED:
            return self.granted()
        if state == W_CLOSED:
            return self.closed()
        if state == W_EXPIRED:
            return self.expired()
        raise self.cancelled_error()

    cdef object granted(self):
        cdef PyObject *item
        if self.node.op > OP_NEXT:          # of a sender: the receiver may be about to take it
            return None
        item = <PyObject *>self.node.item
        self.node.item = NULL
        value = <object>item
        Py_DECREF(value)
        return value

    cdef object closed(self):
        if self.node.op == OP_NEXT:
            raise StopAsyncIteration
        return raise_closed(self.at, None)

    cdef object expired(self):
        raise TimeoutError(f"{self.__qualname__} took too long")

    cdef object cancelled_error(self):
        return CancelledError() if self.message is None else CancelledError(self.message)

    # -- ending early

    cdef gl_wnode *winner(self) noexcept:
        return &self.node

    cdef Shared where(self, unsigned index):
        return self.at

    cdef Shared winner_at(self):
        return self.at

    cdef bint decide_here(self, int outcome) except -1:
        """Withdraw. False if it was decided before."""
        cdef gl_chain out
        cdef bint won, queued
        memset(&out, 0, sizeof(out))
        gl_lock(&self.at.lock)
        won = gl_wait_decide(&self.state, outcome, 0) != 0
        queued = won and gl_q_remove(&self.node)    # who lost may stand among `returned` by now
        if queued:
            self.at.left(&out)
        gl_unlock(&self.at.lock)
        if queued:
            Py_DECREF(self)
        flush(&out)
        return won

    cdef int clean_up(self) except -1:
        """It was decided: leave the queues where it lost."""
        return self.forget_callback()

    cdef int forget_callback(self) except -1:
        """When it was called and no queue holds the waiter, where entries() might find it."""
        if self.callback is not None and self.stage == ENDED and (
                self.delivered or self.context is None and not self.sent):
            self.callback = self.context = None
        return 0

    cdef int quit(self) except -1:
        """End without a result. What was granted goes to the next."""
        cdef int stage = self.stage
        self.stage = ENDED
        if stage != PARKED:
            return 0
        self.unpark()
        try:
            if not self.decide_here(W_CANCELLED):
                self.abandon()
        finally:
            self.clean_up()
        return 0

    cdef int abandon(self) except -1:
        """Give what was granted to the next, unless it was consumed. From any thread."""
        cdef gl_chain out
        if load_flags(&self.state) & W_OUTCOME != W_GRANTED or not gl_wait_take(&self.state):
            return 0
        memset(&out, 0, sizeof(out))
        self.put_back(&out)
        return flush(&out)

    cdef int put_back(self, gl_chain *out) except -1:
        """By who has taken the outcome."""
        cdef Shared at = self.winner_at()
        if load_flags(&self.state) & W_OUTCOME != W_GRANTED:
            return 0
        gl_lock(&at.lock)
        if at.restore(self.winner(), out):
            Py_INCREF(self)
        gl_unlock(&at.lock)
        return 0

    # -- as a future

    @property
    def _asyncio_future_blocking(self):
        return self.blocking if self.stage == PARKED else None      # None: not a future (yet)

    @_asyncio_future_blocking.setter
    def _asyncio_future_blocking(self, bint value):
        self.blocking = value

    def get_loop(self):
        return self.loop

    def add_done_callback(self, callback, *, context=None):
        """Call callback(self) in the waiter's loop when the outcome is decided."""
        self.arm(callback, PyContext_CopyCurrent() if context is None else context)

    def remove_done_callback(self, callback):
        removed = 0
        if self.callback is not None and self.callback == callback:
            self.callback, removed = call_nothing, 1
        if self.more:
            kept = [pair for pair in self.more if pair[0] != callback]
            removed += len(self.more) - len(kept)
            self.more = kept
        return removed

    cdef bint may_arm(self, G g) noexcept:
        """A task of this world has got it from its coroutine, as a future is got: it may arm it with itself."""
        cdef bint may = (self.stage == PARKED and self.blocking and <PyObject *>self.loop == <PyObject *>g
                         and self.callback is None and not self.root)
        if may:
            self.blocking = False
        return may

    cdef int arm(self, object callback, object context) except -1:
        """Set whom to wake: a callback with its context, or with None a task of ours. By the waiter's own thread."""
        if self.stage != PARKED:
            raise RuntimeError("not awaited, or over")
        if self.callback is not None or self.root:
            if self.delivered:
                self.loop.call_soon(callback, self, context=context)
            else:
                self.more = (self.more or []) + [(callback, context)]
            return 0
        self.callback, self.context = callback, context
        if gl_wait_arm(&self.state) and not self.wake():
            self.abandon()
        return 0

    cdef int arm_root(self) except -1:
        """Wake the root coroutine of its world, which is no task. may_arm() has said yes."""
        self.root = True
        return gl_wait_arm(&self.state) and self.wake()

    def done(self):
        return load_flags(&self.state) & W_OUTCOME != W_PENDING

    def cancelled(self):
        return load_flags(&self.state) & W_OUTCOME == W_CANCELLED

    def result(self):
        """None: what was waited for is what the await returns."""
        cdef int outcome = load_flags(&self.state) & W_OUTCOME
        if outcome == W_PENDING:
            raise InvalidStateError("Result is not set.")
        if outcome == W_CANCELLED:
            raise self.cancelled_error()

    def exception(self):
        self.result()

    def cancel(self, msg=None):
        """Withdraw. False when something was granted already: a task then throws CancelledError, which gives it back."""
        if self.stage != PARKED or self.done():
            return False
        self.message = msg
        try:
            if not self.decide_here(W_CANCELLED):
                return False
        finally:
            if self.cancelled() and load_flags(&self.state) & W_ARMED:
                self.wake()
        return True

    cdef int wake(self) except -1:
        """Its outcome is decided and it is armed. From any thread. Returns 0 if its loop is closed."""
        cdef bint mine
        if self.sem != NULL:
            PyThread_release_lock(self.sem)
            return 1
        mine = self.own and gl_world_mine(&(<G>self.loop).w)
        if self.root:
            return (<G>self.loop).wake_root(mine, True)
        if self.context is None:
            return resume_task(self.callback, self, mine)
        return self.send_grant(mine, self.context)

    cdef int send_grant(self, bint mine, object context) except -1:
        cdef G g = <G>self.loop if self.own else None
        cdef Grant grant = Grant.__new__(Grant)
        grant.w = self
        self.sent = True
        if mine:
            g.enqueue(grant, (), context)
            return 1
        if g is None:
            return self.wake_foreign(grant)
        if g.gone():
            grant.fired = True
            return 0
        g.post(make_handle(grant, (), context))
        if g.gone():                # close() may have emptied the inbox before the post
            g.purge()
        return 1

    cdef int wake_foreign(self, Grant grant) except -1:
        """By a loop of another make, whose methods may be Python code in which signal handlers raise: a Grant does its
        work once, however often it was queued."""
        error = None
        for _ in range(TRIES):
            try:
                if running_loop() is self.loop:
                    self.loop.call_soon(grant, context=self.context)
                else:
                    self.loop.call_soon_threadsafe(grant, context=self.context)
            except Exception:
                if not self.loop.is_closed():
                    PyErr_WriteUnraisable(self.loop)
                break
            except BaseException as exc:
                error = exc
                continue
            if error is not None:
                raise error
            return 1
        grant.fired = True
        if error is not None:
            self.abandon()
            raise error
        return 0

    cdef int tell_more(self) except -1:
        more, self.more = self.more, None
        if more is not None:
            for other, context in more:
                self.loop.call_soon(other, self, context=context)
        return 0

    cdef int deliver(self) except -1:
        callback = self.callback
        self.delivered = True
        self.tell_more()
        if callback is not None:
            if self.context is None:
                step_task(callback, self)
            else:
                callback(self)
        return self.forget_callback()

    # -- in a plain thread

    cdef object block(self, double timeout):
        """As await, in a thread that runs no loop; for `timeout` seconds, < 0 for ever."""
        cdef int r = self.begin(timeout != 0)
        if r != SYNC_WAIT:
            return self.at_once(r)
        if timeout == 0:
            self.stage = ENDED
            return self.expired()
        self.stage = PARKED
        try:
            self.wait_sem(timeout)
        except BaseException:
            self.quit()
            raise
        return self.finish()

    cdef int wait_sem(self, double timeout) except -1:
        cdef double deadline = gl_monotonic() + timeout
        cdef double left = DAY_S
        cdef int r
        self.sem = PyThread_allocate_lock()
        if self.sem == NULL:
            raise MemoryError()
        PyThread_acquire_lock_timed(self.sem, 0, 0)
        self.callback = PyThread_get_thread_ident()
        gl_wait_arm(&self.state)
        while load_flags(&self.state) & W_OUTCOME == W_PENDING:
            if timeout >= 0:
                left = deadline - gl_monotonic()
                if left <= 0:
                    self.decide_here(W_EXPIRED)
                    return 0
            with nogil:
                r = PyThread_acquire_lock_timed(self.sem, <long long>(min(left, DAY_S) * 1e6) + 1, 1)
            if r == PY_LOCK_INTR:
                PyErr_CheckSignals()
        return 0

    # -- to look at

    cdef str operation(self):
        return ("recv", "recv", "send", "acquire", "acquire", "acquire", "wait")[self.node.op]

    def __repr__(self):
        cdef int outcome = load_flags(&self.state) & W_OUTCOME
        what = "not started" if self.stage == NEW else "ended" if self.stage == ENDED else (
            "waiting", "granted", "closed", "cancelled", "expired")[outcome]
        return f"<{self.__qualname__}() {what}{f' at {self.at!r}' if self.at is not None else ''}>"


def call_nothing(waiter):
    pass


cdef object raise_closed(Shared at, case):
    error = ChannelClosed(f"{at!r} is closed")
    error.channel, error.case = at, case
    raise error


@cython.final
@cython.no_gc_clear
@cython.freelist(64)
cdef class Grant:
    """What a loop calls to resume a waiter, once."""

    def __dealloc__(self):
        if not self.fired and self.w is not None:
            try:
                self.w.abandon()
            except BaseException:
                PyErr_WriteUnraisable(self.w.at)

    def __call__(self):
        if not self.fired:
            self.fired = True
            self.w.deliver()

    @property
    def __self__(self):
        """The task, for reports of slow callbacks."""
        if self.w.context is None and self.w.callback is not None:
            return self.w.callback
        return getattr(self.w.callback, "__self__", self.w)

    def __repr__(self):
        return f"<wake-up of {self.__self__!r}>"


# -- slots that Cython would fill with slower or incomplete functions

cdef PyObject *next_step(PyObject *o) except? NULL:
    """tp_iternext without a StopIteration for None."""
    cdef Waiter w = <Waiter>o
    r = w.start() if w.stage == NEW else w.finish()
    if w.stage == PARKED:
        Py_INCREF(r)
        return <PyObject *>r
    return gl_stop_iteration(<PyObject *>r)


cdef traverseproc base_traverse


cdef int traverse_waiter(PyObject *o, visitproc visit, void *arg) noexcept:
    cdef int r = base_traverse(o, visit, arg)
    return r or (visit(<PyObject *>(<Waiter>o).node.item, arg) if (<Waiter>o).node.item != NULL else 0)


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


cdef int set_next(type t) except -1:
    """Of Waiter and each class derived from it."""
    (<SlotsOfType *>t).tp_iternext = next_step
    return 0


base_traverse = (<SlotsOfType *>Waiter).tp_traverse
(<SlotsOfType *>Waiter).tp_traverse = traverse_waiter
set_slots(Shared)
set_next(Waiter)
gl_keep_waiters(Waiter, Waiter.__new__(Waiter), current_m)


# -- who waits for what

ctypedef struct entry:
    PyObject *waiter
    PyObject *callback
    unsigned index


cdef inline PyObject *whom(Waiter w) noexcept:
    return <PyObject *>w.loop if w.root else <PyObject *>w.callback


cdef entry *entries(size_t *n) noexcept:
    """All nodes in all queues whose waiter has said whom to wake; with references. NULL when there is none, or no
    memory. A callback is cleared only after its waiter has left all queues, so under their locks it is there."""
    cdef PyObject *o
    cdef gl_waitq *q
    cdef gl_wnode *node
    cdef entry *found = NULL
    cdef entry *more
    cdef size_t size = 0
    cdef int op
    n[0] = 0
    gl_lock(&list_lock)
    o = all_shared
    while o != NULL:
        gl_lock(&(<Shared>o).lock)
        for op in range(OP_NEXT, OP_SEND + 1):
            q = (<Shared>o).queue(op)
            node = q.first if q != NULL and (op == OP_NEXT or q != (<Shared>o).queue(OP_NEXT)) else NULL
            while node != NULL:
                if n[0] == size:
                    size = size * 2 + 64
                    more = <entry *>PyMem_RawRealloc(found, size * sizeof(entry))
                    if more == NULL:
                        break
                    found = more
                if load_flags(node.state) & W_ARMED:
                    found[n[0]].waiter = <PyObject *>node.owner
                    found[n[0]].callback = whom(<Waiter>node.owner)
                    found[n[0]].index = node.index
                    Py_INCREF(<object>found[n[0]].waiter)
                    Py_INCREF(<object>found[n[0]].callback)
                    n[0] += 1
                node = node.next
        gl_unlock(&(<Shared>o).lock)
        o = (<Shared>o).after
    gl_unlock(&list_lock)
    return found


def waiting():
    """Who waits at channels and locks: a list of (waiter, object, operation, loop or None, callback or thread ident)."""
    cdef size_t i, n
    cdef entry *found = entries(&n)
    cdef Waiter w
    result = []
    for i in range(n):
        w = <Waiter>found[i].waiter
        callback = <object>found[i].callback
        Py_DECREF(w)
        Py_DECREF(callback)
        if isinstance(callback, G):         # in the place of its root task
            callback = callback.goroutine
        result.append((w, w.where(found[i].index), w.operation(), w.loop, callback))
    PyMem_RawFree(found)
    return result


def waits_in(G world not None):
    """How many operations wait in a world: its own count, which the hot path keeps."""
    return world.waits - load_flags(&world.waits_ended)


def forget_lost():
    """In the child of a fork: withdraw what waits in threads that are not here, or in loops that such threads, or this
    one, were running: gmploop's do not go on in the child."""
    cdef unsigned long me = PyThread_get_thread_ident()
    cdef Waiter w
    for w, _, _, _, who in waiting():
        if w.sem != NULL:
            lost = who != me
        elif w.own:
            lost = gl_load_relaxed(&(<G>w.loop).w.owner) != 0
        else:
            lost = getattr(w.loop, "_thread_id", None) not in (None, me)
        if lost:
            w.decide_here(W_CANCELLED)
