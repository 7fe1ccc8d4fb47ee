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
import inspect
import sys
import threading
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_DECREF
from gmploop.core.g cimport (
    G, gl_g, gl_ring_len, gl_ring_pop, gl_g_set, gl_load_acquire, G_RUNNABLE, G_RUNNING, G_NOTIFIED, gl_g_clear_notified)
from gmploop.core.future cimport make_future
from gmploop.core.handle cimport gl_lock, gl_unlock, gl_monotonic
from gmploop.core.netpoll cimport SharedPoller, shared_poller
from gmploop.core.poller cimport Watch, Poller, uint32_t, EV_LEVEL
from gmploop.core.sched cimport (
    sched, current_m, gl_m, gl_p, gl_ready, gl_timer_set, gl_timer_forget, gl_all_add, gl_all_remove)
from gmploop.core.task cimport Task, make_task
from gmploop.core import m as m_module

cdef extern from "Python.h":
    object PyContext_CopyCurrent()
    bint PyCoro_CheckExact(object)

cdef extern from "world.h" nogil:
    unsigned long GL_BETWEEN_MS

cdef extern from "atomics.h" nogil:
    void gl_fence_seq_cst()
    int load_int "gl_load_acquire"(int *)
    void store_int "gl_store_release"(int *, int)
    void gl_store_relaxed(unsigned long *, unsigned long)
    uint32_t take_events "gl_exchange_acq_rel"(uint32_t *, uint32_t)

cdef enum:
    PENDING = 0
    DONE = 1
    FAILED = 2
    CANCELLED = 3

cdef enum:
    CO_COROUTINE = 0x80
    CO_ITERABLE_COROUTINE = 0x100

cdef object get_running_loop = asyncio._get_running_loop
cdef object CancelledError = asyncio.CancelledError

# Injected by gmploop.world.
cdef type World = None
cdef object Join = None
cdef object report_fatal = None


def configure(world_type, join, fatal):
    """Set the class of worlds, the future on which a handle's awaiter waits, and what is called with (maker's loop,
    exception) when SystemExit or KeyboardInterrupt ends a callback."""
    global World, Join, report_fatal
    World, Join, report_fatal = world_type, join, fatal


cdef class MovingCore(LoopCore):
    def __del__(self):
        """In the place of asyncio's, which would cost more than the rest of a small world: it closes itself."""

    # -- for the M that runs it

    cdef int run_turn(self, void *m) except -1:
        cdef gl_m *mp = <gl_m *>m
        if self.phase == NEW:
            self.begin()
        if gl_load_acquire(&self.s.state) & G_NOTIFIED:
            gl_g_clear_notified(&self.s.state)
        self.drain_inbox()
        if self.w.timers.n:
            self.take_due(gl_monotonic())
        try:
            self.run_entries(m)
        except BaseException as exc:
            report_fatal(self.handle, exc)
        if self._stopping and self.phase != OVER:
            self._stopped()
        if self.phase == OVER:
            self.die()
            return TURN_DEAD
        return TURN_MORE if gl_ring_len(&self.ready) else TURN_IDLE

    cdef int run_entries(self, void *m) except -1:
        """What is ready now, unless the P is taken away meanwhile: then the rest is for the next turn."""
        cdef size_t n = gl_ring_len(&self.ready), entry
        while n:
            if self.w.debug:
                self.debug_turn(1)
            else:
                entry = gl_ring_pop(&self.ready)
                if entry == 0:
                    break
                self.run_entry(entry)
            n -= 1
            if load_int(&(<gl_m *>m).preempt) or self.phase == OVER:
                break
        return 0

    cdef int begin(self) except -1:
        store_int(&self.phase, LIVE)
        coro, self.coro = self.coro, None
        name = self.handle.name_
        try:
            self.root = new_task(self, coro, name, self.context)
            if name is None:
                self.handle.set_name(self.root.get_name())
            self.root.add_done_callback(self._root_done, context=self.context)
            if load_int(&self.told_to_cancel):
                self.root.cancel()
                store_int(&self.told_to_cancel, 2)
        except BaseException as exc:
            store_int(&self.phase, OVER)
            self.handle.finish(FAILED, exc)
        self.context = None
        return 0

    def _root_done(self, task):
        if self.phase != LIVE:
            return
        if self.inner or "_asyncgens" in self.__dict__:
            store_int(&self.phase, WINDING)
            new_task(self, self._wind_up(task), None, None).add_done_callback(self._over)
        else:
            store_int(&self.phase, OVER)

    def _over(self, task):
        if not task.cancelled() and task.exception() is not None:
            self.call_exception_handler({"message": "ending a goroutine's world failed", "exception": task.exception(),
                                         "task": task})
        store_int(&self.phase, OVER)

    def _stopped(self):
        """stop() was called: as asyncio.run() does, it is an error if the root task is not done."""
        self._stopping = False
        if self.phase == LIVE and not self.root.done():
            self.handle.finish(FAILED, RuntimeError("Event loop stopped before Future completed."))
            self.root.cancel()

    cdef int die(self) except -1:
        cdef Goroutine handle = self.handle
        root, self.root = self.root, None
        gl_lock(&self.w.lock)               # with the property `goroutine`; `handle` keeps it alive
        self.handle = None
        gl_unlock(&self.w.lock)
        store_int(&self.closed, True)
        gl_fence_seq_cst()              # who posts after this look at the inbox sees that (purge())
        if self.watches:
            (<SharedPoller>self.poller).close_watches_of(self)
        gl_timer_forget(&self.s)
        self.drop_queues()
        gl_all_remove(sched(), &self.s)
        if root is None or handle.status != PENDING:
            return 0
        if root.cancelled():
            handle.finish(CANCELLED, None)
            return 0
        exc = root.exception()
        handle.finish(DONE if exc is None else FAILED, root.result() if exc is None else exc)
        return 0

    cdef int set_timers(self, void *pp) except -1:
        if gl_timer_set(sched(), <gl_p *>pp, &self.s, self.w.timers.a[0].when) < 0:
            raise MemoryError()
        return 0

    cdef int entered(self, void *mp) except -1:
        set_running_loop(self)
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
        self.inner += 1
        if self._task_factory is None and not kwargs:
            return new_task(self, coro, name, context)
        if self._task_factory is None:
            return Task(coro, loop=self, name=name, context=context, **kwargs)
        if name is not None:
            kwargs["name"] = name
        if context is not None:
            kwargs["context"] = context
        return base_create_task(self, coro, **kwargs)

    def _cancel_root(self, msg):
        if self.told_to_cancel == 2:            # begin() has done it
            self.told_to_cancel = 0
        elif self.root is not None:
            self.root.cancel(msg)

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


async def call(fn, args):
    """The root coroutine of a goroutine whose function is a plain one."""
    result = fn(*args)
    return await result if inspect.isawaitable(result) else result


cdef object coroutine_of(fn, args):
    if asyncio.iscoroutine(fn):
        if args:
            raise TypeError("go() takes arguments for a function, not for a coroutine")
        return fn
    code = getattr(fn, "__code__", None)
    if code is not None and code.co_flags & (CO_COROUTINE | CO_ITERABLE_COROUTINE):
        return fn(*args)
    if not callable(fn):
        raise TypeError(f"go() takes a coroutine or a function, not {fn!r}")
    return call(fn, args)


def go(fn_or_coro, *args, name=None):
    """Start a goroutine: fn_or_coro(*args), or a coroutine, as the root task of a world of its own.

    fn may be a coroutine function or a plain function. It gets a copy of the caller's context, and inherits debug mode,
    exception handler and task factory of the caller's loop. name: of the root task. Returns its Goroutine at once.
    Raises TypeError for something else. From any thread.
    """
    if name is not None and not isinstance(name, str):
        raise TypeError(f"name takes a str, not {name!r}")
    cdef gl_m *mp = current_m()
    if load_int(&sched().procs) == 0:
        m_module.start_default()
    coro = coroutine_of(fn_or_coro, args)
    maker = <object>mp.curg.obj if mp != NULL and mp.curg != NULL else get_running_loop()
    cdef MovingCore w = <MovingCore>World.__new__(World)
    cdef Goroutine handle = Goroutine.__new__(Goroutine)
    w.poller = shared_poller()
    w.handle, handle.world = handle, w
    handle.maker, handle.name_ = maker, name
    w.home = maker
    if isinstance(maker, MovingCore) and (<MovingCore>maker).home is not None:
        w.home = (<MovingCore>maker).home
    handle.home = w.home
    w.coro, w.context = coro, PyContext_CopyCurrent()
    w.closed = False
    w.s.obj, w.s.tpos = <void *>w, -1
    gl_store_relaxed(&w.w.owner, GL_BETWEEN_MS)
    if maker is None:
        w._inherit_nothing()
    elif isinstance(maker, LoopCore) and not (<LoopCore>maker).w.debug and (<LoopCore>maker)._task_factory is None:
        if maker._exception_handler is not None:
            w._exception_handler = maker._exception_handler
    else:
        w._inherit(maker)
    Py_INCREF(w)                            # the scheduler's, until death
    gl_all_add(sched(), &w.s, mp.id & 15 if mp != NULL else 0)
    gl_g_set(&w.s.state, G_RUNNABLE)
    gl_ready(sched(), mp, &w.s, True)
    return handle


@cython.final
cdef class Goroutine:
    """What go() returns. Await it from any world; or result() from a plain thread."""

    cdef int finish(self, int status, object value) except -1:
        cdef list waiters
        cdef MovingCore world
        gl_lock(&self.lock)
        if self.status != PENDING:
            gl_unlock(&self.lock)
            return 0
        self.value = value
        store_int(&self.status, status)
        waiters, self.waiters = self.waiters, None
        world, self.world = self.world, None
        gl_unlock(&self.lock)
        if waiters is not None:
            for entry in waiters:
                self.tell(entry)
        return 0

    def tell(self, entry):
        loop, callback, context = entry
        if loop is None:
            callback(self)
            return
        try:
            loop.call_soon_threadsafe(callback, self, context=context)
        except RuntimeError:
            pass                            # that loop is closed: nobody waits there any more

    cdef bint wait(self, tuple entry) except -1:
        """Tell `entry` when it is over; False if it is over."""
        cdef bint waits
        cdef list made = []
        gl_lock(&self.lock)
        waits = self.status == PENDING
        if waits:
            if self.waiters is None:
                self.waiters = made
            self.waiters.append(entry)
        gl_unlock(&self.lock)
        return waits

    def __await__(self):
        cdef bint mine
        if load_int(&self.status) == PENDING:
            loop = get_running_loop()
            if loop is None:
                raise RuntimeError("a goroutine is awaited in a running loop; a plain thread calls result()")
            gl_lock(&self.lock)
            mine = <PyObject *>loop == <PyObject *>self.world
            gl_unlock(&self.lock)
            if mine:
                raise RuntimeError("a goroutine cannot await itself")
            fut = Join(loop=loop)
            fut.goroutine = self
            if self.wait((loop, fut.over, None)):
                yield from fut
        return self.outcome()

    def outcome(self):
        if self.status == CANCELLED:
            raise CancelledError
        if self.status == FAILED:
            store_int(&self.retrieved, True)
            raise self.value
        return self.value

    def result(self, timeout=None):
        """The result, waiting for it up to `timeout` seconds (None: for ever). For plain threads.

        Raises what the goroutine raised, asyncio.CancelledError if it was cancelled, TimeoutError; RuntimeError if it is
        not over and the thread runs a loop, which would stand still: await the goroutine there.
        """
        if load_int(&self.status) == PENDING:
            if get_running_loop() is not None:
                raise RuntimeError("result() would block the running loop: await the goroutine")
            over = threading.Event()
            if self.wait((None, lambda _: over.set(), None)) and not over.wait(timeout):
                raise TimeoutError(f"{self!r} is not over after {timeout} s")
        return self.outcome()

    def exception(self):
        """The exception that ended it, or None. Raises asyncio.InvalidStateError while it runs, CancelledError if it was
        cancelled."""
        if load_int(&self.status) == PENDING:
            raise asyncio.InvalidStateError("the goroutine is not over")
        if self.status == CANCELLED:
            raise CancelledError
        store_int(&self.retrieved, True)
        return self.value if self.status == FAILED else None

    def cancel(self, msg=None):
        """Ask the root task to end with CancelledError; False if it is over. From any thread."""
        cdef MovingCore world
        gl_lock(&self.lock)
        world = self.world
        gl_unlock(&self.lock)
        if world is None:
            return False
        try:
            if load_int(&world.phase) == NEW:
                store_int(&world.told_to_cancel, 1)
            world.call_soon_threadsafe(world._cancel_root, msg)
        except RuntimeError:
            return False
        return True

    def cancelled(self):
        """Whether it ended with CancelledError."""
        return load_int(&self.status) == CANCELLED

    def done(self):
        """Whether it is over."""
        return load_int(&self.status) != PENDING

    def add_done_callback(self, fn, *, context=None):
        """Call fn(goroutine) once it is over, soon: in the caller's loop, or, from a plain thread, in the thread that
        ends it."""
        loop = get_running_loop()
        entry = (loop, fn, PyContext_CopyCurrent() if context is None else context)
        if not self.wait(entry):
            self.tell(entry)

    def get_name(self):
        """The name of its root task; None before that was made, if go() was given none."""
        gl_lock(&self.lock)
        name = self.name_
        gl_unlock(&self.lock)
        return name

    cdef int set_name(self, name) except -1:
        """Once, if go() was given none: under the lock no reference is dropped but that of None."""
        gl_lock(&self.lock)
        self.name_ = name
        gl_unlock(&self.lock)
        return 0

    def get_loop(self):
        """Its world, None once it is over."""
        cdef MovingCore world
        gl_lock(&self.lock)
        world = self.world
        gl_unlock(&self.lock)
        return world

    def __repr__(self):
        cdef int status = load_int(&self.status)
        state = ("pending", "finished", "failed", "cancelled")[status]
        detail = f" exception={self.value!r}" if status == FAILED else ""
        return f"<Goroutine {state} name={self.get_name()!r}{detail}>"

    def __del__(self):
        if self.status == FAILED and not self.retrieved and not isinstance(self.value, (SystemExit, KeyboardInterrupt)):
            report_unseen(self, self.value)


def report_unseen(Goroutine handle, exc):
    """Nobody has seen the exception: the exception handler of the loop that made the goroutine does."""
    context = {"message": f"Goroutine exception was never retrieved: {handle.name_}", "exception": exc}
    maker = handle.maker
    try:
        if maker is not None and not maker.is_closed():
            maker.call_soon_threadsafe(maker.call_exception_handler, context)
            return
    except RuntimeError:
        pass                                # closed just now
    asyncio.log.logger.error(context["message"], exc_info=exc)


def home_of(Goroutine handle):
    return handle.home


def count():
    """How many goroutines are not over."""
    cdef int i
    n = 0
    for i in range(16):
        gl_lock(&sched().all[i].lock)
        n += sched().all[i].n
        gl_unlock(&sched().all[i].lock)
    return n


def all_goroutines(home=None):
    """The handles of all goroutines that are not over, or of those that came from the loop `home`."""
    cdef MovingCore w
    cdef gl_g *gp
    cdef int i
    worlds = []
    for i in range(16):
        gl_lock(&sched().all[i].lock)
        gp = sched().all[i].first
        while gp != NULL:
            worlds.append(<object>gp.obj)
            gp = gp.all_next
        gl_unlock(&sched().all[i].lock)
    return [handle for w in worlds if (handle := w.goroutine) is not None and (home is None or w.home is home)]
