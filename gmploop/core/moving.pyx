# cython: language_level=3, freethreading_compatible=True, binding=True
"""Worlds that move between Ms, and the handles of their root tasks.

MovingCore is a LoopCore that has no thread of its own: whichever M takes it from a run queue runs one turn of it.
- Its `owner` is that M's thread while one runs it, and GL_BETWEEN_MS else: so to every other thread it is, at all times, a
  loop that somebody else runs, and only posts get in.
- Its timers are in its own heap, which only its runner touches. When it goes to sleep, the P of its runner keeps one
  entry with the earliest deadline, which notifies it.
- It shares one poller with all others of its kind. Events come as posts.
- The scheduler holds one reference from go() to death.

Life: NEW (go() has queued it) - LIVE (its first M has made the root task) - WINDING (the root task is done, and there
are other tasks or async generators: they are ended as asyncio.run() does) - OVER (the M that ran the last turn lets go of
everything, tells the handle, and drops the scheduler's reference).
"""
cimport cython
import asyncio
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_DECREF
from gmploop.core.g cimport (
    G, gl_ring_len, gl_ring_pop, gl_ring_push, gl_g_notify, gl_load_acquire, G_NOTIFIED, gl_g_clear_notified)
from gmploop.core.future cimport make_future
from gmploop.core.handle cimport flag, gl_lock, gl_unlock, gl_monotonic, gl_timers_head_of, gl_timers_len
from gmploop.core.goroutine cimport (
    Goroutine, Request, RootJoin, finish, join, join_root, name_of, set_cancelling, PENDING, DONE, FAILED, CANCELLED)
from gmploop.core.netpoll cimport SharedPoller
from gmploop.core.poller cimport Watch, uint32_t, EV_LEVEL
from gmploop.core.runtime cimport Apart
from gmploop.core.sched cimport sched, current_m, gl_m, gl_p, gl_ready, gl_timer_set, gl_timer_forget, gl_all_remove
from gmploop.core.task cimport Task, make_task, new_task as make_unqueued, has_table, leave, run_task
from gmploop.core.wait cimport PARKED
from gmploop.core.waiter cimport Waiter

cdef extern from "Python.h":
    object PyContext_CopyCurrent()
    object PyObject_CallOneArg(object, object)
    int PyContext_Enter(object) except -1
    int PyContext_Exit(object) except -1
    bint PyCoro_CheckExact(object)
    int PyIter_Send(PyObject *, PyObject *, PyObject **) noexcept
    enum: PYGEN_NEXT, PYGEN_RETURN, PYGEN_ERROR

cdef extern from "raised.h":
    PyObject *gl_take_exception()
    int gl_raise_again(object) except -1

cdef extern from "atomics.h" nogil:
    void gl_fence_seq_cst()
    int load_int "gl_load_acquire"(int *)
    flag load_flag "gl_load_acquire"(flag *)
    flag take_flag "gl_exchange_acq_rel"(flag *, flag)
    unsigned char load_byte "gl_load_acquire"(unsigned char *)
    void store_byte "gl_store_release"(unsigned char *, unsigned char)
    void store_flag "gl_store_release"(flag *, flag)
    uint32_t take_events "gl_exchange_acq_rel"(uint32_t *, uint32_t)
    PyObject *load_head "gl_load_relaxed"(PyObject **)
    void store_owner "gl_store_release"(unsigned long *, unsigned long)

cdef object CancelledError = asyncio.CancelledError

# Injected by gmploop.world.
cdef object report_fatal = None


def configure(fatal):
    """Set what is called with (the loop from which the goroutine came, exception) when SystemExit or KeyboardInterrupt
    ends a callback."""
    global report_fatal
    report_fatal = fatal


# Of functions that raise: called as these, they return -1 and leave the exception where it is. Each `try` in a turn costs
# a few per cent of it.
ctypedef int (*runner)(MovingCore w, void *m) noexcept
ctypedef int (*settler)(MovingCore w, int status, PyObject *result, PyObject *raised) noexcept
ctypedef int (*ender)(MovingCore w) noexcept
ctypedef int (*leaver)(LoopCore w, Task task) noexcept


cdef int run_entries(MovingCore w, void *m) except -1:
    """What is ready now, unless the P is taken away meanwhile: then the rest is for the next turn."""
    cdef size_t n = gl_ring_len(&w.ready), entry
    while n:
        if w.w.debug:
            w.debug_turn(1)
        else:
            entry = gl_ring_pop(&w.ready)
            if entry == 0:
                break
            w.run_entry(entry)
        n -= 1
        if load_int(&(<gl_m *>m).preempt) or w.phase == OVER:
            break
    return 0


cdef int settle(MovingCore w, int status, PyObject *result, PyObject *raised) except -1:
    """After a step of the root coroutine, within its context; takes the references."""
    cdef PyObject *left = NULL
    cdef int r
    if w.told:
        w.told = False
        if (<leaver>leave)(w, w.root()) < 0:    # somebody has left it already; the step was made all the same
            left = gl_take_exception()
    r = w.root().stepped(status, w.for_task(result), raised) if w.shown else w.root_stepped(status, result, raised)
    if left != NULL:
        error = <object>left
        Py_DECREF(error)
        return gl_raise_again(error)
    return r


cdef int throw(MovingCore w, object on, object exc) except -1:
    """What the root coroutine has yielded cannot be waited for: it hears of that."""
    if getattr(on, "_asyncio_future_blocking", False):
        on._asyncio_future_blocking = False     # it may be awaited again
    cdef PyObject *raised = NULL
    cdef int status = PYGEN_NEXT
    what = None
    w.current, w.told = <PyObject *>w, False
    try:
        what = w.coro.throw(exc)
    except StopIteration as stop:
        what, status = stop.value, PYGEN_RETURN
    except BaseException as failed:
        Py_INCREF(failed)
        raised = <PyObject *>failed
    w.current = NULL
    if raised != NULL:
        return settle(w, PYGEN_ERROR, NULL, raised)
    Py_INCREF(what)
    return settle(w, status, <PyObject *>what, NULL)


cdef int let_go(MovingCore w) except -1:
    if w.watches:
        (<SharedPoller>w.poller).close_watches_of(w)
    return w.drop_queues()


cdef class MovingCore(LoopCore):
    # -- for the M that runs it

    cdef int run_turn(self, void *m) except -1:
        cdef PyObject *raised
        if self.phase == NEW:
            self.begin()
        if gl_load_acquire(&self.s.state) & G_NOTIFIED:
            gl_g_clear_notified(&self.s.state)
        self.drain_inbox()
        if self.parked and take_flag(&self.woken, False):
            self.push_root()
        if gl_timers_len(&self.w.timers):
            self.take_due(gl_monotonic())
        if (<runner>run_entries)(self, m) < 0:
            raised = gl_take_exception()
            report_fatal(self.origin(), <object>raised)
            Py_DECREF(<object>raised)
        if self._stopping and self.phase != OVER:
            self._stopped()
        if self.phase == OVER:
            self.die()
            return TURN_DEAD
        return TURN_MORE if gl_ring_len(&self.ready) else TURN_IDLE

    cdef int run_entry(self, size_t entry) except -1:
        return self.step_root() if entry & 3 == 3 else LoopCore.run_entry(self, entry)

    cdef int begin(self) except -1:
        store_byte(&self.phase, LIVE)
        store_flag(&self.begun, True)
        if has_table() and PyCoro_CheckExact(self.coro) and not self.w.debug and not load_flag(&self.cancelled_early):
            return self.push_root()
        try:
            if load_flag(&self.cancelled_early):
                self.drain_inbox()          # there it stands, and so comes before the first step
            if PyCoro_CheckExact(self.coro):
                self.show_root()
                self.root().step_soon(NULL)
            else:
                self.adopt(Task(self.coro, loop=self, name=name_of(self.handle), context=self.context))
        except BaseException as exc:
            store_byte(&self.phase, OVER)
            store_flag(&self.shown, False)
            self.status, self.coro = FAILED, exc
        return 0

    cdef Task root(self):
        """The task of the root coroutine, if there is one."""
        return <Task>self.coro if self.shown else None

    # -- the root coroutine, while nobody has asked for a task

    cdef int push_root(self) except -1:
        """It is to be stepped. The entry is the world itself. Without memory the next turn tries again."""
        if load_head(&self.inbox) != NULL:
            self.take_posts()           # first what was posted before
        self.parked = gl_ring_push(&self.ready, <size_t><PyObject *>self | 3) < 0
        if self.parked:
            take_flag(&self.woken, True)
            gl_g_notify(&self.s.state)  # it runs: so there will be a next turn
        return 0

    cdef int wake_root(self, bint mine, bint next) except -1:
        if mine:
            return self.push_root() + 1
        take_flag(&self.woken, True)    # not a plain store: the state is read after it, see run_turn()
        if gl_g_notify(&self.s.state):
            gl_ready(sched(), current_m(), &self.s, next)
        return 1

    cdef int step_root(self) except -1:
        cdef PyObject *result = NULL
        cdef PyObject *raised = NULL
        cdef int status
        cdef Task root
        cdef RootJoin joined
        if self.shown:
            root = <Task>self.coro
            if root.fut_waiter != NULL and type(<object>root.fut_waiter) is RootJoin:
                joined = <RootJoin>root.fut_waiter
                if joined.request.late(joined.on):
                    root.must_cancel = True
            Py_INCREF(root)
            return run_task(self, <PyObject *>root)
        if self.status != PENDING:      # it has ended; this stood behind what was ready then
            return self.root_over()
        context = self.context
        self.waits_for = None
        PyContext_Enter(context)
        self.current, self.told = <PyObject *>self, False
        status = PyIter_Send(<PyObject *>self.coro, <PyObject *>None, &result)      # its task holds it, if one is made
        if result == NULL:
            raised = gl_take_exception()
        self.current = NULL
        if (<settler>settle)(self, status, result, raised) < 0:
            raised = gl_take_exception()
            try:
                self.step_failed(<object>raised)
            finally:
                Py_DECREF(<object>raised)
                PyContext_Exit(context)
            return 0
        return PyContext_Exit(context)

    cdef int step_failed(self, object exc) except -1:
        """What it has yielded was no good: as with a task."""
        if isinstance(exc, (SystemExit, KeyboardInterrupt)):
            return gl_raise_again(exc)
        self.call_exception_handler({"message": f"Exception in a step of {self.handle!r}", "exception": exc})
        return 0

    cdef PyObject *for_task(self, PyObject *result) except? NULL:
        """A goroutine that was awaited before this step has asked for a task."""
        if result == NULL or type(<object>result) is not Goroutine:
            return result
        on = <Goroutine>result
        Py_DECREF(on)                   # `on` holds another
        joiner = join(on)
        try:
            next(joiner, None)
        except BaseException:
            pass                        # over meanwhile: the next step asks the handle
        if (<Waiter>joiner).node.stage != PARKED:
            Py_INCREF(None)
            return <PyObject *>None
        Py_INCREF(joiner)
        return <PyObject *>joiner

    cdef int root_stepped(self, int status, PyObject *result, PyObject *raised) except -1:
        """What has come of a step; takes the references."""
        if raised != NULL:
            what = <object>raised
            Py_DECREF(what)
            return self.root_failed(what)
        what = <object>result
        Py_DECREF(what)
        if status == PYGEN_RETURN:
            return self.end_root(DONE, what)
        if what is None:
            return self.push_root()
        if type(what) is Goroutine:
            self.waits_for, self.parked = what, True
            return 0 if join_root(<Goroutine>what, self) > 0 else self.push_root()      # over; or asks again, for want of memory
        if (type(what) is Waiter or isinstance(what, Waiter)) and (<Waiter>what).may_arm(self):
            self.waits_for, self.parked = what, True
            return (<Waiter>what).arm_root()
        try:
            self.show_root()
        except MemoryError as exc:
            return throw(self, what, exc)
        return self.root().suspend(result)

    cdef int root_failed(self, object exc) except -1:
        self.end_root(CANCELLED if isinstance(exc, CancelledError) else FAILED, exc)
        if isinstance(exc, (SystemExit, KeyboardInterrupt)):
            gl_raise_again(exc)
        return 0

    cdef int end_root(self, int status, object value) except -1:
        """What was ready before still runs, as it does with a task and its callbacks."""
        self.status, self.coro = status, value
        self.context = None
        return self.push_root() if gl_ring_len(&self.ready) or load_head(&self.inbox) != NULL else self.root_over()

    cdef int show_root(self) except -1:
        """Make a task object of it."""
        cdef Task t
        if self.shown or self.coro is None or self.status != PENDING or self.phase == NEW:
            return 0
        t = make_unqueued(self, self.coro, self.context, name_of(self.handle))
        cdef RootJoin joined
        waits_for = self.waits_for
        if type(waits_for) is Goroutine:
            joined = RootJoin.__new__(RootJoin)
            joined.on, joined.request = <Goroutine>waits_for, Request()
            waits_for = joined
        if waits_for is not None:
            Py_INCREF(waits_for)
            t.fut_waiter = <PyObject *>waits_for
        try:
            t.enlist()
            self.adopt(t)
        except MemoryError:
            t._log_destroy_pending = False      # nobody has seen it
            raise
        self.waits_for = None
        return 0

    cdef int adopt(self, Task t) except -1:
        t.add_done_callback(self._root_done, context=self.context)
        self.coro, self.context = t, None
        store_flag(&self.shown, True)
        if self.current == <PyObject *>self:
            self.current = <PyObject *>t
        return 0

    # -- its end

    def _root_done(self, task):
        self.root_over()

    cdef int root_over(self) except -1:
        if self.phase == LIVE and (self.inner or self.has_asyncgens):
            store_byte(&self.phase, WINDING)
            new_task(self, self._wind_up(self.root()), None, None).add_done_callback(self._over)
        elif self.phase == LIVE:
            store_byte(&self.phase, OVER)
        return 0

    def _over(self, task):
        if not task.cancelled() and task.exception() is not None:
            self.call_exception_handler({"message": "ending a goroutine's world failed", "exception": task.exception(),
                                         "task": task})
        store_byte(&self.phase, OVER)

    def _stopped(self):
        """stop() was called: as asyncio.run() does, it is an error if the root task is not done."""
        self._stopping = False
        self.show_root()
        root = self.root()
        if self.phase == LIVE and root is not None and not root.done():
            finish(self.handle, FAILED, RuntimeError("Event loop stopped before Future completed."))
            root.cancel()

    cdef int die(self) except -1:
        cdef Goroutine handle = self.handle
        cdef Task root = self.root()
        cdef int status = self.status
        cdef PyObject *raised
        cdef bint failed
        value = self.coro
        if handle is None:              # it has failed half way before
            return 0
        store_flag(&self.shown, False)
        self.coro = None
        gl_lock(&self.w.lock)               # with the property `goroutine`; `handle` keeps it alive
        self.handle = None
        gl_unlock(&self.w.lock)
        store_flag(&self.closed, True)
        gl_fence_seq_cst()              # who posts after this look at the inbox sees that (purge())
        if self.w.timers.a != NULL:
            gl_timer_forget(gl_timers_head_of(&self.w.timers).place)
        failed = (<ender>let_go)(self) < 0
        gl_all_remove(sched(), &self.s)
        if failed:
            raised = gl_take_exception()
            root, status, value = None, FAILED, <object>raised
            Py_DECREF(value)
        elif root is not None:
            try:
                if root.cancelled():
                    status, value = CANCELLED, root._make_cancelled_error()
                else:
                    value = root.exception()
                    status = DONE if value is None else FAILED
                    if value is None:
                        value = root.result()
            except BaseException as exc:
                status, value = FAILED, exc
        return finish(handle, status, value)        # in any case: the handle knows the world by its address

    cdef int set_timers(self, void *pp) except -1:
        if gl_timer_set(sched(), <gl_p *>pp, &self.s, &gl_timers_head_of(&self.w.timers).place,
                        self.w.timers.a[0].when) < 0:
            raise MemoryError()
        return 0

    cdef int entered(self, void *mp) except -1:
        PyObject_CallOneArg(set_running_loop, self)
        return 0

    cdef int run_event(self, PyObject *watch) except -1:
        cdef Watch w = <Watch>watch
        cdef uint32_t events = take_events(&w.posted, 0)
        if not events or w.poller is None:
            return 0
        try:
            w.on_events(events)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exc:
            self._event_error(w, exc)
        if w.mask & EV_LEVEL and w.poller is not None:
            w.poller.rearm(w)
        return 0

    def _lend(self, unsigned long thread):
        """By the thread that runs it, or that has it on loan, while its callback waits: now this thread, an identity,
        may use the loop and all that belongs to it as if it ran it. For tests that drive a world from outside."""
        store_owner(&self.w.owner, thread)

    # -- for everybody

    cdef int wake(self) except -1:
        gl_ready(sched(), current_m(), &self.s, True)
        return 0

    def _write_to_self(self):
        """Nothing waits in a poller on behalf of this world alone."""

    def create_future(self):
        return make_future(self)

    def create_task(self, coro, *, name=None, context=None, **kwargs):
        """Run a coroutine as a task of this world."""
        self.check_open()
        self.inner = True
        factory = (<Apart>self.apart).task_factory if type(self.apart) is Apart else None
        if factory is None and not kwargs:
            return new_task(self, coro, name, context)
        if factory is None:
            return Task(coro, loop=self, name=name, context=context, **kwargs)
        if name is not None:
            kwargs["name"] = name
        if context is not None:
            kwargs["context"] = context
        return base_create_task(self, coro, **kwargs)

    def _cancel_from_anywhere(self, msg, by):
        try:
            if load_byte(&self.phase) == NEW:
                store_flag(&self.cancelled_early, True)
            self.call_soon_threadsafe(self._cancel_root, msg, by)
        except RuntimeError:
            return False
        return True

    def _cancel_root(self, msg, Request by):
        self.show_root()
        root = self.root()
        if root is None:
            return
        before = set_cancelling(by)
        try:
            if root.cancel(msg) and by is not None:
                by.told += 1
        finally:
            set_cancelling(before)

    @property
    def home(self):
        """The loop from which it came, by however many go(): of a plain thread, or of a goroutine that came from none.
        From any thread."""
        gl_lock(&self.w.lock)
        apart = self.apart
        gl_unlock(&self.w.lock)
        return (<Apart>apart).home if type(apart) is Apart else apart

    cdef object origin(self):
        """The same, by who runs it."""
        return (<Apart>self.apart).home if type(self.apart) is Apart else self.apart

    cdef Apart own_apart(self):
        """A copy, since other worlds may share it."""
        cdef Apart mine = Apart.__new__(Apart)
        mine.home = self.origin()
        if type(self.apart) is Apart:
            mine.task_factory = (<Apart>self.apart).task_factory
            mine.exception_handler = (<Apart>self.apart).exception_handler
        gl_lock(&self.w.lock)               # with the property `home`
        before, self.apart = self.apart, mine
        gl_unlock(&self.w.lock)
        return mine

    @property
    def _exception_handler(self):
        return (<Apart>self.apart).exception_handler if type(self.apart) is Apart else None

    @_exception_handler.setter
    def _exception_handler(self, value):
        if value is not self._exception_handler:
            self.own_apart().exception_handler = value

    @property
    def goroutine(self):
        """The handle of this world's root task; None once it is over. From any thread."""
        gl_lock(&self.w.lock)
        handle = self.handle
        gl_unlock(&self.w.lock)
        return handle


cdef object set_running_loop = asyncio._set_running_loop
cdef object base_create_task = asyncio.BaseEventLoop.create_task


cdef object new_task(loop, coro, name, context):
    """The one place where tasks of worlds that move are made."""
    if PyCoro_CheckExact(coro) and (name is None or type(name) is str):
        return make_task(loop, coro, PyContext_CopyCurrent() if context is None else context, name)
    return Task(coro, loop=loop, name=name, context=context)
