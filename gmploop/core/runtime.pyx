# cython: language_level=3, freethreading_compatible=True, binding=True
"""LoopCore: the hot half of a loop, and the cycle in which a thread runs it.

A loop that a thread runs by run_forever() is a G locked to that thread: the thread is its M, with a private P whose
timer heap the G embeds. One turn is: take the inbox, poll, move due timers to the ready ring, run what was ready then.

Polling costs a system call, and while callbacks are ready it usually finds nothing. So after polls that found nothing
(none at first, then 1, 2, 4 ... up to 61 turns) polling is put off while work is ready, never for longer than
GL_TICKS_LITTLE (about 50 us) plus the callback that runs, and an event or a real wait starts anew from polling every
turn. The order in which callbacks run does not change.
"""
cimport cython
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF
from libc.math cimport isinf, isnan, INFINITY
from libc.stdlib cimport calloc, free
from gmploop.core.handle cimport (
    Handle, TimerHandle, flag, THREADSAFE, WHOLE, make_handle, make_timer, gl_world_mine, gl_thread_ident,
    gl_load_relaxed, gl_monotonic, gl_ticks, gl_timers_len, GL_TICKS_LITTLE, gl_lock, gl_unlock)
from gmploop.core.g cimport (
    gl_ring_len, gl_ring_pop, gl_g_cas, gl_g_set, gl_g_clear_notified, gl_pool, G_IDLE, G_RUNNABLE, G_RUNNING)
from gmploop.core.future cimport make_future
from gmploop.core.task cimport Task, make_task, run_task
from gmploop.core.poller cimport Watch, uint32_t
from gmploop.core.sockop cimport (
    sock_op, OP_RECV, OP_RECV_INTO, OP_RECVFROM, OP_RECVFROM_INTO, OP_SENDALL, OP_SENDTO, OP_CALL_READ, OP_CALL_WRITE,
    OP_SENDALL_BY_CALL)
from gmploop.core.sched cimport sched, gl_sched, gl_beat, gl_watched_enter, gl_watched_leave

cdef extern from "Python.h":
    object PyContext_CopyCurrent()
    object PyObject_Call(object, object, object)
    object PyObject_CallNoArgs(object)
    bint PyCoro_CheckExact(object)
    double PyLong_AsDouble(object) except? -1

cdef extern from "<unistd.h>" nogil:
    int usleep(unsigned int)

cdef extern from "atomics.h" nogil:
    void gl_store_relaxed(unsigned long *, unsigned long)
    unsigned long owner_acquire "gl_load_acquire"(unsigned long *)
    void gl_fence_seq_cst()
    flag load_flag "gl_load_relaxed"(flag *)
    int load_int "gl_load_relaxed"(int *)
    void store_int64 "gl_store_relaxed"(long long *, long long)
    PyObject *load_head "gl_load_relaxed"(PyObject **)
    void store_flag "gl_store_release"(flag *, flag)

cdef double SOON_S = 1e-6           # a timer this near is looked for in the next turn; guessed
cdef gl_sched *S = sched()

# Tunables: config.py says what they are and where they come from.
cdef double APART_S = 200e-6
cdef size_t MANY = 4
cdef size_t SENDS_MASK = 63         # SENDS_EVERY - 1
cdef size_t LOOK_MASK = 7           # LOOK_EVERY - 1
cdef unsigned long long SENDS_TICKS = 15 * GL_TICKS_LITTLE      # about three quarters of a millisecond

cdef extern from *:
    """
    #include <stdlib.h>
    #if defined(__GLIBC__)
    #include <malloc.h>
    static int gl_keep_freed_memory(long trim, long mmap) {
        return mallopt(M_TRIM_THRESHOLD, (int)trim) && mallopt(M_MMAP_THRESHOLD, (int)mmap);
    }
    #else
    static int gl_keep_freed_memory(long trim, long mmap) { (void)trim; (void)mmap; return 0; }
    #endif
    """
    bint gl_keep_freed_memory(long, long)

cdef enum:
    MAX_SKIP = 61               # turns; Go's schedtick interval for looking at the global queue
    LOOKS = 3                   # at a run that may never go on; guessed
    DAY_NS = 86400000000000     # asyncio's MAXIMUM_SELECT_TIMEOUT

# Injected by gmploop.loop.
cdef dict tasks_names = None
cdef dict futures_names = None
cdef object base_create_task = None
cdef type socket_type = None
cdef object stock_task = None, stock_eager_factory = None, never_eager = None


def configure(tasks_module, futures_module, create_task, plain_socket_type, str never_eager_name):
    """Set what loops need of asyncio: its modules of Task and Future, and BaseEventLoop.create_task for the cases that
    are not hot; and the qualified name of coroutines that must not start eagerly."""
    global tasks_names, futures_names, base_create_task, socket_type, stock_task, stock_eager_factory, never_eager
    tasks_names, futures_names = vars(tasks_module), vars(futures_module)
    base_create_task, socket_type = create_task, plain_socket_type
    never_eager = never_eager_name
    stock_task, stock_eager_factory = tasks_module.Task, getattr(tasks_module, "eager_task_factory", None)


def set_tunables(*, double apart_s, size_t many, size_t sends_every, size_t look_every):
    """See config.py."""
    global APART_S, MANY, SENDS_MASK, LOOK_MASK
    APART_S, MANY, SENDS_MASK, LOOK_MASK = apart_s, many, sends_every - 1, look_every - 1


# Injected by gmploop.loop: called by a loop that finds that sysmon does not look at it.
cdef object watch_loops = None


def watch_by(fn):
    global watch_loops
    watch_loops = fn


def keep_freed_memory(long trim_bytes, long mmap_bytes):
    """Let glibc keep up to trim_bytes of freed memory, and map only blocks above mmap_bytes. For the whole process. False:
    it is another libc."""
    return gl_keep_freed_memory(trim_bytes, mmap_bytes)


@cython.final
cdef class RestWatch:
    """Notices that a run of gmploop may never go on.

    The loop's first wait without bound is one of after_ns. If that ends with nothing to do, at_rest() is called; then the
    loop really waits, and what wakes it (something to do, or at_rest's own doing once the goroutines have come to rest)
    starts this anew. So a loop that has work never calls at_rest(), and an idle one wakes up once. If at_rest() returns
    True, what it saw may pass by itself, it is called twice more, after 10 and 100 times as long. If it returns a watch,
    there is nothing to ask for while that is there: something may come by it.
    """
    cdef long long wait_ns(self, LoopCore loop):
        if self.alive is not None:
            if self.alive.poller is loop.poller:
                return -1
            self.alive = None
        if self.looks == LOOKS or not (loop.waits or sched().procs):
            return -1
        return self.after_ns * (1 if self.looks == 0 else 10 if self.looks == 1 else 100)

    cdef int waited(self, LoopCore loop, long long delay_ns) except -1:
        if gl_ring_len(&loop.ready) == 0 and delay_ns > 0:
            seen = self.at_rest()
            if isinstance(seen, Watch):
                self.alive = seen
            self.looks = self.looks + 1 if seen is True else LOOKS
        if gl_ring_len(&loop.ready) or delay_ns < 0:
            self.looks = 0
        return 0


cdef class Apart:
    """What few worlds have: those that move are made by the million."""


@cython.final
cdef class OwnThread(Apart):
    """What only a loop has that has a thread of its own."""

    def __cinit__(self):
        self.pool = <gl_pool *>calloc(1, sizeof(gl_pool))

    def __dealloc__(self):
        if self.watched.ident:
            gl_watched_leave(S, &self.watched)
        if self.pool != NULL:
            while self.pool.n:
                self.pool.n -= 1
                Py_DECREF(<object>self.pool.a[self.pool.n])
            free(self.pool)


cdef inline object factory_of(LoopCore loop):
    """Its task factory, or None."""
    if type(loop.apart) is OwnThread or type(loop.apart) is Apart:
        return (<Apart>loop.apart).task_factory
    return None


cdef int own_closed(LoopCore loop) except -1:
    """Make this thread the owner of a loop that is closed, or about to be: once its last M has left it, and whoever drops
    what was posted too late."""
    cdef bint mine = False
    while not mine:
        gl_lock(&loop.w.lock)
        mine = owner_acquire(&loop.w.owner) == 0          # a goroutine's last M sets that without the lock
        if mine:
            gl_store_relaxed(&loop.w.owner, gl_thread_ident())
        gl_unlock(&loop.w.lock)
        if not mine:
            with nogil:
                usleep(50)
    return 0


cdef class LoopCore(G):
    def __cinit__(self):
        self.closed = True              # until _open(): __del__ of a loop whose constructor failed has nothing to close

    def _open(self, str poller, bint write_batching=False):
        """Open the poller of this name. Once, by the constructor of the subclass. OSError says why it cannot be had."""
        self.custom_time = type(self).time is not LoopCore.time
        self.custom_call_at = type(self).call_at is not LoopCore.call_at
        self.custom_call_soon = type(self).call_soon is not LoopCore.call_soon
        cdef OwnThread own = OwnThread.__new__(OwnThread)
        own.task_kwargs = {"loop": self}
        self.apart = own
        if poller == "epoll":
            from gmploop.core.poller_epoll import EpollPoller as Backend
        elif poller == "io_uring":
            from gmploop.core.poller_uring import UringPoller as Backend
        else:
            from gmploop.core.poller_kqueue import KqueuePoller as Backend
        self.poller = Backend(self)
        if write_batching:
            self.poller.batch_writes()
        self.s.pool = own.pool

    cdef Apart own_apart(self):
        """To write to."""
        if type(self.apart) is not OwnThread:
            raise RuntimeError("the loop's constructor has not run")
        return <Apart>self.apart

    @property
    def _task_factory(self):
        return factory_of(self)

    @_task_factory.setter
    def _task_factory(self, value):
        if value is not factory_of(self):
            self.own_apart().task_factory = value

    def _use_own_clock(self):
        self.custom_time = True

    def _use_own_call_soon(self):
        self.custom_call_soon = True

    def _use_own_tasks(self, bint on):
        """Whether create_task() and create_future() give this package's types, or asyncio's."""
        self.own_tasks = on

    # -- entering and leaving

    @property
    def _thread_id(self):
        cdef unsigned long owner = gl_load_relaxed(&self.w.owner)
        return owner if owner else None

    @_thread_id.setter
    def _thread_id(self, value):
        """run_forever() of asyncio sets the thread's identity before its first turn and None after its last."""
        if value is not None:
            self.enter()
        elif gl_world_mine(&self.w):
            self.leave()

    cdef int own(self) except -1:
        """Make this thread the owner, or raise: nobody else touches ring, heap and handles then."""
        cdef bint taken
        gl_lock(&self.w.lock)
        taken = gl_load_relaxed(&self.w.owner) != 0
        if not taken:
            gl_store_relaxed(&self.w.owner, gl_thread_ident())
        gl_unlock(&self.w.lock)
        if taken:
            raise RuntimeError("This event loop is already running")
        return 0

    cdef int disown(self) except -1:
        gl_lock(&self.w.lock)
        gl_store_relaxed(&self.w.owner, 0)
        gl_unlock(&self.w.lock)
        return 0

    cdef int enter(self) except -1:
        """This thread becomes the M of this world."""
        if self.poller is None:
            raise RuntimeError("the loop's constructor has not run")
        if self.poller.forked() and not gl_load_relaxed(&self.w.owner):
            self.poller.after_fork()
        self.own()
        gl_g_cas(&self.s.state, G_IDLE, G_RUNNABLE)       # fails when a post has done it
        gl_g_set(&self.s.state, G_RUNNING)
        gl_fence_seq_cst()                              # as after a poll: the first look at the inbox stays behind it
        self.skip = self.skipped = self.empty_polls = 0
        gl_watched_enter(S, &(<OwnThread>self.apart).watched, <PyObject *>self, gl_thread_ident(), <uint32_t>gl_ticks())
        return 0

    cdef int leave(self) except -1:
        try:
            self.poller.flush()
        finally:
            gl_watched_leave(S, &(<OwnThread>self.apart).watched)
            if not gl_g_cas(&self.s.state, G_RUNNING, G_IDLE):
                gl_g_set(&self.s.state, G_RUNNABLE)       # there is a post that no turn has seen
            self.disown()
        return 0

    def _forked(self):
        """Whether the process has forked since this loop's poller was made."""
        return self.poller is not None and self.poller.forked()

    def is_running(self):
        """Whether a thread runs this loop."""
        return gl_load_relaxed(&self.w.owner) != 0 and not load_flag(&self.closed)    # its last M is about to leave it

    def is_closed(self):
        return load_flag(&self.closed)

    @property
    def _closed(self):
        return load_flag(&self.closed)

    @_closed.setter
    def _closed(self, value):
        store_flag(&self.closed, bool(value))

    def _mine(self):
        return gl_world_mine(&self.w)

    def _close_core(self):
        """Drop what is queued, let the poller go, and cut the cycles that only the collector would find."""
        if load_flag(&self.closed):
            own_closed(self)
        else:
            self.own()              # a thread has begun to run it meanwhile: refused
        try:
            gl_fence_seq_cst()      # _closed is set: who posts after this look at the inbox sees that (purge())
            self.drop_queues()
            if self.poller is not None:
                self.poller.close()
                self.poller.g = None
        finally:
            self.disown()
        if type(self.apart) is OwnThread:
            (<OwnThread>self.apart).task_kwargs = None

    cdef bint gone(self) noexcept:
        return load_flag(&self.closed)

    cdef int purge(self) except -1:
        """By who has posted and finds it closed now: close() empties the inbox, perhaps before the post."""
        own_closed(self)
        self.drop_queues()
        return self.disown()

    cdef int check_open(self) except -1:
        if load_flag(&self.closed):
            raise RuntimeError("Event loop is closed")
        return 0

    def _check_closed(self):
        self.check_open()

    # -- debug mode

    @property
    def _debug(self):
        return self.w.debug != 0

    @_debug.setter
    def _debug(self, value):
        self.w.debug = bool(value)

    def get_debug(self):
        return self.w.debug != 0

    def _tell_stalls(self, long long from_ns):
        """Have the loop told of callbacks that run so long, while they do (0: no longer). Of a loop with a thread of its
        own; sysmon.tell_from() is for the others."""
        if type(self.apart) is OwnThread:
            store_int64(&(<OwnThread>self.apart).watched.tell_ns, from_ns)

    # -- clock

    def time(self):
        """Seconds on the monotonic clock, as a float."""
        return gl_monotonic()

    cdef double clock(self) except? -1:
        return self.time() if self.custom_time else gl_monotonic()

    # -- callbacks

    def call_soon(self, callback, *args, context=None):
        """Call callback(*args) in the next turn, within context (default: a copy of the current one).

        Returns a handle that can be cancelled. From the loop's thread, or from any while nobody runs it; in debug mode
        a call from another thread raises RuntimeError, else it is posted as by call_soon_threadsafe().
        """
        cdef Handle h
        if load_flag(&self.closed):
            self.check_open()
        if self.w.debug:
            self._check_call("call_soon", callback)
        if context is None:
            context = PyContext_CopyCurrent()
        if gl_world_mine(&self.w):
            h = self.enqueue(callback, args, context)
        else:
            h = make_handle(callback, args, context)
            self.post(h)
        if self.w.debug:
            self._note_source(h)
        return h

    def call_soon_threadsafe(self, callback, *args, context=None):
        """As call_soon(), from any thread and from signal handlers; wakes the loop."""
        cdef Handle h
        self.check_open()
        if self.w.debug:
            self._check_callback(callback, "call_soon_threadsafe")
        if context is None:
            context = PyContext_CopyCurrent()
        h = make_handle(callback, args, context)
        h.flags = THREADSAFE
        if self.w.debug:
            self._note_source(h)
        if gl_world_mine(&self.w):
            self.push_handle(h)
        else:
            self.post(h)
            if self.gone():             # it may have been emptied before the post
                self.purge()
        return h

    def call_later(self, delay, callback, *args, context=None):
        """Call callback(*args) in `delay` seconds, never earlier. Returns a handle with when() and cancel()."""
        cdef double now, seconds
        if delay is None:
            raise TypeError("delay must not be None")
        if (type(delay) is float or type(delay) is int) and not self.custom_time and not self.custom_call_at:
            seconds = delay if type(delay) is float else PyLong_AsDouble(delay)
            now = gl_monotonic()
            return self.set_timer(now + seconds, now, callback, args, context, "call_later", 0)
        when = (self.time() if self.custom_time else gl_monotonic()) + delay
        if self.custom_call_at:
            return self.call_at(when, callback, *args, context=context)
        return self.timer(when, callback, args, context, "call_later")

    def call_at(self, when, callback, *args, context=None):
        """Call callback(*args) when the loop's time() has reached `when`, never earlier."""
        if when is None:
            raise TypeError("when cannot be None")
        return self.timer(when, callback, args, context, "call_at")

    cdef object timer(self, when, callback, args, context, str what):
        cdef double deadline
        if type(when) is float:
            deadline = when
        else:
            try:
                deadline = when
            except OverflowError:
                deadline = INFINITY if when > 0 else -INFINITY
        return self.set_timer(deadline, gl_monotonic(), callback, args, context, what,
                              WHOLE if type(when) is int and not isinf(deadline) else 0)

    cdef object set_timer(self, double deadline, double now, callback, args, context, str what, int flags):
        """now: what gl_monotonic() has said just before."""
        cdef double key
        cdef TimerHandle h
        if load_flag(&self.closed):
            self.check_open()
        if self.w.debug:
            self._check_call(what, callback)
        if context is None:
            context = PyContext_CopyCurrent()
        h = make_timer(deadline, callback, args, context)
        h.flags = flags
        # NaN compares with nothing: on stock such a timer waits behind all others.
        key = INFINITY if isnan(deadline) else deadline
        if gl_world_mine(&self.w):
            if self.add_timer(h, key) < 0:
                raise MemoryError()
            if h.pos == 0 and key <= now + SOON_S and not self.custom_time:
                self.w.timers_due = True
        else:
            self.add_timer_idle(h, key, what)
        if self.w.debug:
            self._note_source(h)
        return h

    cdef int add_timer_idle(self, TimerHandle h, double key, str what) except -1:
        """Under the lock, since nobody runs the loop; or refuse, if another thread does."""
        cdef int r = 1
        gl_lock(&self.w.lock)
        if gl_load_relaxed(&self.w.owner) == 0:
            r = self.add_timer(h, key)
        gl_unlock(&self.w.lock)
        if r > 0:
            self._refuse_thread(f"{what}()")
        elif r < 0:
            raise MemoryError()
        return 0

    cdef int wake(self) except -1:
        # Who runs the loop sleeps in its poller (the state was IDLE); while nobody does, RUNNABLE says enough.
        if gl_load_relaxed(&self.w.owner) and self.poller is not None:
            self.poller.wake()
        return 0

    def _write_to_self(self):
        if self.poller is not None:
            self.poller.wake()

    # -- the cycle

    def _run_once(self):
        """Turns until stop(). Named as asyncio's step, whose run_forever() calls it."""
        if type(self.apart) is not OwnThread:
            raise RuntimeError("the loop's constructor has not run")
        self.skip = 0
        self.skipped = MAX_SKIP
        while True:
            self.turn()
            if self._stopping:
                return

    cdef int turn(self) except -1:
        cdef size_t n, entry
        cdef Handle h
        if load_head(&self.inbox) != NULL:
            self.drain_inbox()
        self.skipped += 1
        if (self.skipped > self.skip or self._stopping or gl_ring_len(&self.ready) == 0
                or gl_ticks() - (<OwnThread>self.apart).polled_at > GL_TICKS_LITTLE):
            self.poll_io()
        elif self.w.timers_due:
            self.w.timers_due = False
            self.take_due(self.clock())
        n = gl_ring_len(&self.ready)
        if self.w.debug:
            return self.debug_turn(n)
        while n:
            n -= 1
            entry = gl_ring_pop(&self.ready)
            if entry & 3:
                self.run_entry(entry)
            elif entry == 0:
                break
            else:
                h = <Handle><PyObject *>entry
                Py_DECREF(h)
                self.run_handle(h)
            if n and (not n & LOOK_MASK and self.sends_wait(n) or load_int(self.poller.due)):
                gl_beat(&(<OwnThread>self.apart).watched, 2)
                self.poller.flush()
                (<OwnThread>self.apart).sent_at = gl_ticks()
        return 0

    cdef bint sends_wait(self, size_t n) noexcept:
        """Whether what has been written in this turn, of which n callbacks are left, has waited long enough."""
        cdef OwnThread own = <OwnThread>self.apart
        cdef unsigned long long now
        if not n & SENDS_MASK:
            return True
        now = gl_ticks()
        return now - own.polled_at > SENDS_TICKS and now - own.sent_at > SENDS_TICKS

    cdef int run_entry(self, size_t entry) except -1:
        cdef PyObject *p = <PyObject *>(entry & ~<size_t>3)
        cdef Watch w
        cdef Handle h
        cdef uint32_t events
        if entry & 1:
            w = <Watch>p
            Py_DECREF(w)
            w.queued = False
            events, w.revents = w.revents, 0
            try:
                w.on_events(events)
            except (SystemExit, KeyboardInterrupt):
                raise
            except BaseException as exc:
                self._event_error(w, exc)
        elif entry & 2:
            run_task(self, p)
        else:
            h = <Handle>p
            Py_DECREF(h)
            self.run_handle(h)
        return 0

    cdef int debug_turn(self, size_t n) except -1:
        """As the loop in turn(), timing each callback."""
        cdef size_t entry
        cdef PyObject *p
        cdef double start, took
        while n:
            n -= 1
            entry = gl_ring_pop(&self.ready)
            if entry == 0:
                break
            if type(self.apart) is OwnThread:
                gl_beat(&(<OwnThread>self.apart).watched, 2)
            p = <PyObject *>(entry & ~<size_t>3)
            what = <object>p
            described = self._describe_entry(what)
            self._current_handle = what
            start = gl_monotonic()
            try:
                self.run_entry(entry)
                took = gl_monotonic() - start
                if took >= self.slow_callback_duration:
                    self._report_slow(described, took)
            finally:
                self._current_handle = None
        return 0

    cdef long long wait_ns(self) except? -2:
        """How long the poller may wait: 0 when there is work, < 0 for ever."""
        cdef double now, delay
        if self._stopping or gl_ring_len(&self.ready):
            return 0
        if not gl_timers_len(&self.w.timers):
            return -1
        now = self.clock()
        delay = self.w.timers.a[0].when - now
        if delay <= 0:
            return 0
        if self.poller is not None and not self.custom_time:
            delay = max(delay, self.poller.timers_at + APART_S - now)
        delay *= 1e9
        return DAY_NS if delay >= DAY_NS else <long long>delay + 1

    cdef int poll_io(self) except -1:
        cdef long long delay_ns = self.wait_ns()
        cdef double now
        cdef size_t before
        cdef int n
        cdef OwnThread own = <OwnThread>self.apart
        cdef bint unbounded = delay_ns < 0 and own.rest is not None
        if unbounded:
            delay_ns = own.rest.wait_ns(self)
        if self.poller.forked():
            raise RuntimeError(f"{self!r} was running when the process forked: it goes on in the parent only")
        if delay_ns and not gl_g_cas(&self.s.state, G_RUNNING, G_IDLE):
            # A post came after the inbox was looked at.
            delay_ns = 0
            gl_g_clear_notified(&self.s.state)
            self.drain_inbox()
        if delay_ns:
            gl_beat(&own.watched, 1)
            try:
                n = self.poller.poll(delay_ns) if not self.poller.broken_at else self.poller.poll_broken(delay_ns)
            finally:
                gl_g_cas(&self.s.state, G_IDLE, G_RUNNABLE)
                gl_g_set(&self.s.state, G_RUNNING)
                gl_beat(&own.watched, 1)
                gl_fence_seq_cst()          # with the poster's CAS on the inbox: it sees RUNNING, or we see its post; and
                self.drain_inbox()          # with sysmon's before it sleeps
            if unbounded and not self._stopping:
                own.rest.waited(self, delay_ns)
        else:
            gl_beat(&own.watched, 2)
            n = self.poller.poll(0) if not self.poller.broken_at else self.poller.poll_broken(0)
        own.polled_at = gl_ticks()
        if load_int(&S.unwatched):
            watch_loops()
        self.skipped = 0
        if n or delay_ns:
            self.skip = self.empty_polls = 0
        elif self.skip < MAX_SKIP and not self.custom_time:     # a clock of its own may run at any speed
            self.empty_polls += 1
            if self.empty_polls > 8:        # a few sleep(0) in a row poll each time, as on stock
                self.skip = min(<unsigned char>(self.skip * 2 + 1), <unsigned char>MAX_SKIP)
        self.w.timers_due = False
        if gl_timers_len(&self.w.timers):
            now = self.clock()
            before = gl_ring_len(&self.ready)
            self.take_due(now)
            if delay_ns > 0 and gl_ring_len(&self.ready) >= before + MANY:
                self.poller.timers_at = now
        return 0

    def _watch_rest(self, at_rest, long long after_ns):
        """Call at_rest() when this loop, and what else it waits for, might never go on; None: no longer."""
        cdef RestWatch watch = None
        if at_rest is not None:
            watch = RestWatch.__new__(RestWatch)
            watch.at_rest, watch.after_ns = at_rest, after_ns
        (<OwnThread>self.apart).rest = watch

    # -- futures and tasks. The types are looked up where asyncio has them, as asyncio does.

    def create_future(self):
        """A future of this loop."""
        factory = factory_of(self)
        if (self.own_tasks and (factory is None or factory is stock_eager_factory)
                and (self.current != NULL or not self.steps_asyncios_task())):
            return make_future(self)        # another factory's tasks are asyncio's, and quicker with its futures
        return PyObject_Call(futures_names["Future"], (), self.task_kwargs())

    cdef dict task_kwargs(self):
        cdef dict made = (<OwnThread>self.apart).task_kwargs if type(self.apart) is OwnThread else None
        return made or {"loop": self}

    cdef object new_future(self):
        return self.create_future()

    def create_task(self, coro, *, name=None, context=None, **kwargs):
        """Run a coroutine as a task of this loop."""
        factory = factory_of(self)
        if self.own_tasks and tasks_names["Task"] is stock_task:    # some programs put theirs in its place
            if factory is None:
                self.check_open()
                if PyCoro_CheckExact(coro) and not kwargs and (name is None or type(name) is str):
                    return make_task(self, coro, PyContext_CopyCurrent() if context is None else context, name)
                return Task(coro, loop=self, name=name, context=context, **kwargs)
            if factory is stock_eager_factory:
                self.check_open()
                kwargs.setdefault("eager_start", never_eager is None or getattr(coro, "__qualname__", "") != never_eager)
                return Task(coro, loop=self, name=name, context=context, **kwargs)
        if factory is None and not self.w.debug and context is None and not kwargs:
            self.check_open()
            if name is None:
                return PyObject_Call(tasks_names["Task"], (coro,), self.task_kwargs())
            return tasks_names["Task"](coro, loop=self, name=name)
        if name is not None:
            kwargs["name"] = name
        if context is not None:
            kwargs["context"] = context
        return base_create_task(self, coro, **kwargs)

    # -- sock_*()

    def sock_recv(self, sock, n):
        """Receive up to n bytes from a non-blocking socket; returns them."""
        if type(sock) is socket_type:
            return sock_op(self, self.poller, OP_RECV, sock, None, n)
        return sock_op(self, self.poller, OP_CALL_READ, sock, "recv", (n,))

    def sock_recv_into(self, sock, buf):
        """Receive into a writable buffer; returns the number of bytes."""
        if type(sock) is socket_type:
            return sock_op(self, self.poller, OP_RECV_INTO, sock, None, buf)
        return sock_op(self, self.poller, OP_CALL_READ, sock, "recv_into", (buf,))

    def sock_sendall(self, sock, data):
        """Send all of data. After a cancel it is unknown how much was sent."""
        if type(sock) is socket_type:
            return sock_op(self, self.poller, OP_SENDALL, sock, None, data)
        return sock_op(self, self.poller, OP_SENDALL_BY_CALL, sock, "send", data)

    def sock_recvfrom(self, sock, bufsize):
        """Receive a datagram of up to bufsize bytes; returns (data, address)."""
        if type(sock) is socket_type:
            return sock_op(self, self.poller, OP_RECVFROM, sock, None, bufsize)
        return sock_op(self, self.poller, OP_CALL_READ, sock, "recvfrom", (bufsize,))

    def sock_recvfrom_into(self, sock, buf, nbytes=0):
        """Receive a datagram into buf; returns (number of bytes, address)."""
        if not nbytes:
            nbytes = len(buf)
        if type(sock) is socket_type:
            return sock_op(self, self.poller, OP_RECVFROM_INTO, sock, buf, nbytes)
        return sock_op(self, self.poller, OP_CALL_READ, sock, "recvfrom_into", (buf, nbytes))

    def sock_sendto(self, sock, data, address):
        """Send a datagram; returns the number of bytes."""
        if type(sock) is socket_type:
            return sock_op(self, self.poller, OP_SENDTO, sock, address, data)
        return sock_op(self, self.poller, OP_CALL_WRITE, sock, "sendto", (data, address))


def transport_of(LoopCore loop not None, int fd):
    """The transport that uses the descriptor and is not closing, or None."""
    cdef Watch w = loop.poller.lookup(fd) if loop.poller is not None else None
    return w if w is not None and w.is_transport() and not w.is_ended() else None


def sock_call(LoopCore loop not None, sock, bint writing, fn):
    """Awaitable: fn() again each time the socket is ready, until it does not raise BlockingIOError."""
    return sock_op(loop, loop.poller, OP_CALL_WRITE if writing else OP_CALL_READ, sock, fn, ())
