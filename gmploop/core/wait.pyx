# cython: language_level=3, freethreading_compatible=True, binding=True
"""Wait: one operation on a channel or lock, from its beginning to its outcome. waiter.pyx makes an awaitable of it.

waitq.h says how its outcome is decided and why nothing is lost or doubled. From outcome to resumed task: the one who
decides calls wake(), which has its task stepped, or queues a Grant (grant.pyx) in its world. Whatever ends a wait
between grant and resume gives what was granted to the next in line: cancel (the task throws CancelledError into the
waiter), close() of the coroutine, a loop that is closed, KeyboardInterrupt in a thread, the last reference going away.

fork: free-threaded Pythons stop all threads for it and the others hold the GIL, and no spin lock is held at either; so
the child finds them free. Waits of threads and worlds that the child does not have are withdrawn there (waits.pyx).
"""
cimport cython
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_DECREF, Py_XDECREF
from libc.string cimport memset
from gmploop.core.handle cimport gl_world_mine, gl_lock, gl_unlock, load_flags
from gmploop.core.future cimport Future
from gmploop.core.g cimport G, gl_obj
from gmploop.core.sched cimport current_m, gl_m
from gmploop.core.shared cimport Shared, raise_closed
from gmploop.core.waitq cimport *

cdef extern from "raised.h":
    object gl_take_exception()
    int gl_raise_again(object) except -1

cdef extern from "waiters.h":
    void gl_count(int *, int)

cdef extern from "Python.h":
    ctypedef int (*visitproc)(PyObject *, void *) noexcept
    ctypedef int (*traverseproc)(PyObject *, visitproc, void *) noexcept
    ctypedef struct SlotsOfType "PyTypeObject":
        traverseproc tp_traverse
    object PyObject_CallNoArgs(object)
    void PyErr_WriteUnraisable(object)

cdef extern from "pythread.h" nogil:
    void PyThread_free_lock(void *)
    void PyThread_release_lock(void *)

# Injected by gmploop.sync.
cdef object get_running_loop = None
cdef object CancelledError = None


def configure(running_loop_getter, cancelled_error):
    """Set what waits need of asyncio."""
    global get_running_loop, CancelledError
    get_running_loop, CancelledError = running_loop_getter, cancelled_error


cdef task_resumer resume_task = NULL
cdef task_stepper step_task = NULL
cdef granter send_grant = NULL


cdef int set_task_hooks(task_resumer resume, task_stepper step) except -1:
    global resume_task, step_task
    resume_task, step_task = resume, step
    return 0


cdef int set_granter(granter send) except -1:
    global send_grant
    send_grant = send
    return 0


cdef object running_loop():
    cdef gl_m *mp = current_m()
    return <object>gl_obj(mp.curg) if mp != NULL and mp.curg != NULL else PyObject_CallNoArgs(get_running_loop)


# Of functions that raise: called as these, they return -1 and leave the exception where it is. A `try` costs as much as
# what is done here, also when nothing is raised.
ctypedef int (*waker)(Wait w, gl_chain *more) noexcept
ctypedef int (*flusher)(gl_chain *out) noexcept


cdef int wake_first(Wait w, gl_chain *more) except -1:
    """Wake it; or, if its loop is closed, what was granted goes to who is first then."""
    if not w.wake() and gl_wait_take(&w.node.state):
        w.put_back(more)
    return 0


cdef int flush(gl_chain *out) except -1:
    """After the unlock: wake those who were decided and drop the queues' references. All of them, before an error that
    came up in between (a signal's, say) is raised."""
    cdef gl_chain more
    cdef gl_wnode *n = out.first
    cdef gl_wnode *link
    cdef Wait w
    error = None
    if out.spare != NULL:
        Py_DECREF(<object>gl_waiter_of(out.spare))
    while n != NULL:
        memset(&more, 0, sizeof(more))
        while n != NULL:
            link = n.link
            w = <Wait>gl_waiter_of(n)
            Py_DECREF(w)                    # the queue's reference; `w` holds another
            if n.wake and (<waker>wake_first)(w, &more) < 0:
                exc = gl_take_exception()
                error = error or exc
            n = link
        n = more.first                      # nobody was taken out of `returned` by putting back
    if error is not None:
        raise error
    return 0


cdef int undo(Shared at, gl_wnode *n) except -1:
    """Take back an operation that was just done for a node of no queue (a waiter's; of RECV the item is in it)."""
    cdef Wait carrier = Wait.__new__(Wait)
    cdef gl_chain out
    memset(&out, 0, sizeof(out))
    carrier.at = at
    carrier.node.op, carrier.node.item, carrier.node.seq = n.op, n.item, n.seq
    carrier.node.state, carrier.node.stage = W_GRANTED | W_TAKEN, ENDED
    n.item = NULL
    carrier.put_back(&out)
    return flush(&out)


@cython.final
cdef class Rare:
    """What few waiters have."""

    def __dealloc__(self):
        if self.sem != NULL:
            PyThread_free_lock(self.sem)


cdef inline PyObject *loop_in(Wait w) noexcept:
    return <PyObject *>(<Future>w.whom).loop if w.node.how == BY_TASK and w.whom is not None else <PyObject *>w.whom


cdef object loop_of(Wait w):
    """The loop that it waits in."""
    return <object>loop_in(w)


cdef Rare rare_of(Wait w):
    """By the waiter's own thread, which alone makes it."""
    if w.rare is None:
        w.rare = Rare.__new__(Rare)
    return w.rare


@cython.no_gc_clear
cdef class Wait:
    """An operation that may have to wait."""

    def __dealloc__(self):
        if self.node.stage == PARKED:
            try:
                self.quit_for_ever()
            except BaseException:
                PyErr_WriteUnraisable(self.at)
        Py_XDECREF(<PyObject *>self.node.item)

    cdef int quit_for_ever(self) except -1:
        """Nobody refers to it any more, no queue either: it was decided, or taken out of a queue that was cleared."""
        self.unpark()
        if load_flags(&self.node.state) & W_OUTCOME == W_GRANTED and gl_wait_take(&self.node.state):
            undo(self.winner_at(), self.winner())
        return 0

    # -- from begin to end

    cdef object start(self):
        cdef int r = self.begin(True)
        if r != SYNC_WAIT:
            return self.at_once(r)
        self.park()
        return self

    cdef object at_once(self, int r):
        self.node.stage = ENDED
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
            self.node.stage = ENDED
            if r == SYNC_DONE:
                undo(self.at, &self.node)
            elif r == SYNC_WAIT and park:
                self.node.stage = PARKED
                self.quit()
            gl_raise_again(error)
        return r

    cdef int park(self) except -1:
        """It stands in a queue. Say in which world; whom to wake comes with add_done_callback(). RuntimeError outside of
        any: then it has left the queue."""
        cdef gl_m *mp = current_m()
        if mp != NULL and mp.curg != NULL:
            self.whom = <object>gl_obj(mp.curg)
            self.node.own = True
        else:
            self.whom = PyObject_CallNoArgs(get_running_loop)
            if self.whom is None:
                self.node.stage = PARKED
                self.quit()
                raise RuntimeError("no running event loop")
            self.node.own = isinstance(self.whom, G)
        if self.node.own:
            (<G>self.whom).waits += 1
        self.node.stage = PARKED
        self.node.blocking = True
        return 0

    cdef int unpark(self) except -1:
        cdef PyObject *g
        self.node.stage = ENDED
        if not self.node.own:
            return 0
        g = loop_in(self)
        if gl_world_mine(&(<G>g).w):
            (<G>g).waits -= 1
        else:
            gl_count(&(<G>g).waits_ended, 1)
        return 0

    cdef object finish(self):
        cdef int state = load_flags(&self.node.state)
        if self.node.stage != PARKED:
            raise RuntimeError("cannot reuse already awaited coroutine")
        if state & W_OUTCOME == W_PENDING:
            raise RuntimeError("await wasn't used with future")
        self.unpark()
        if self.rare is not None:
            self.tell_more()
        self.clean_up()
        if not gl_wait_take(&self.node.state):
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
        message = self.rare.message if self.rare is not None else None
        return CancelledError() if message is None else CancelledError(message)

    cdef int set_message(self, object message) except -1:
        if message is not None or self.rare is not None:
            rare_of(self).message = message
        return 0

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
        won = gl_wait_decide(&self.node.state, outcome, 0) != 0
        queued = won and gl_q_remove(self.at.queue(self.node.op), &self.node)   # who lost may be `returned` by now
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
        if self.node.stage != ENDED:
            return 0
        if self.node.how == BY_TASK and (self.node.delivered or not self.node.sent):
            self.whom = None
        elif self.node.how == BY_CALLBACK and self.node.delivered:
            self.rare.callback = None
        return 0

    cdef int quit(self) except -1:
        """End without a result. What was granted goes to the next."""
        cdef int stage = self.node.stage
        self.node.stage = ENDED
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
        if load_flags(&self.node.state) & W_OUTCOME != W_GRANTED or not gl_wait_take(&self.node.state):
            return 0
        memset(&out, 0, sizeof(out))
        self.put_back(&out)
        return flush(&out)

    cdef int put_back(self, gl_chain *out) except -1:
        """By who has taken the outcome."""
        cdef Shared at = self.winner_at()
        if load_flags(&self.node.state) & W_OUTCOME != W_GRANTED:
            return 0
        gl_lock(&at.lock)
        if at.restore(self.winner(), out):
            Py_INCREF(self)
        gl_unlock(&at.lock)
        return 0

    # -- waking

    cdef int wake(self) except -1:
        """Its outcome is decided and it is armed. From any thread. Returns 0 if its loop is closed."""
        if self.node.how == BY_ROOT:
            return (<G>self.whom).wake_root(gl_world_mine(&(<G>self.whom).w), True)
        if self.node.how == BY_TASK:
            if self.whom is None:           # it has ended without this
                return 0
            return resume_task(self.whom, self, self.node.own and gl_world_mine(&(<G>(<Future>self.whom).loop).w))
        if self.node.how == BY_THREAD:
            PyThread_release_lock(self.rare.sem)
            return 1
        return send_grant(self, self.node.own and gl_world_mine(&(<G>self.whom).w), self.rare.context)

    cdef int send_grant(self, bint mine, object context) except -1:
        """For a task_resumer."""
        return send_grant(self, mine, context)

    cdef int tell_more(self) except -1:
        more, self.rare.more = self.rare.more, None
        if more is not None:
            for other, context in more:
                loop_of(self).call_soon(other, self, context=context)
        return 0

    cdef int deliver(self) except -1:
        """Its Grant's turn has come."""
        callback = self.whom if self.node.how == BY_TASK else self.rare.callback
        self.node.delivered = True
        if self.rare is not None:
            self.tell_more()
        if callback is not None:
            if self.node.how == BY_TASK:
                step_task(callback, self)
            else:
                callback(self)
        return self.forget_callback()

    cdef str operation(self):
        return ("recv", "recv", "send", "acquire", "acquire", "acquire", "wait")[self.node.op]


# -- a slot that Cython would fill with an incomplete function; what is derived from it calls it

cdef traverseproc base_traverse = (<SlotsOfType *>Wait).tp_traverse


cdef int traverse_wait(PyObject *o, visitproc visit, void *arg) noexcept:
    cdef int r = base_traverse(o, visit, arg)
    return r or (visit(<PyObject *>(<Wait>o).node.item, arg) if (<Wait>o).node.item != NULL else 0)


(<SlotsOfType *>Wait).tp_traverse = traverse_wait
