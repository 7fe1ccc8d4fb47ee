# cython: language_level=3, freethreading_compatible=True, binding=True
"""Locks across worlds and threads: Mutex, RWMutex, Semaphore, WaitGroup, Event. Each is a gate of waitq.h, which lets in
whom it can in the order in which they came. Every method may be called from any thread.
"""
cimport cython
from libc.string cimport memset
from gmploop.core.handle cimport gl_lock, gl_unlock
from gmploop.core.sync cimport at_once, count, drop_queue, visit_queue
from gmploop.core.shared cimport Shared, set_slots, visitproc
from gmploop.core.wait cimport flush
from gmploop.core.waiter cimport operation
from gmploop.core.waitq cimport *
from gmploop.core.waits cimport as_timeout, block, check_blocking


@cython.final
cdef class Done:
    """An awaitable that is done."""
    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        raise StopIteration


cdef Done done = Done()


# What `async with` and `with` call of all that has acquire(), acquire_blocking() and release().

def release_at_once(self, typ, val, tb):
    self.release()
    return done


def acquire_in_thread(self):
    self.acquire_blocking()


def release_in_thread(self, typ, val, tb):
    self.release()


cdef class Gate(Shared):
    cdef gl_gate gate
    cdef long long limit        # of value; 0: none

    cdef int attempt(self, gl_wnode *n, gl_chain *out) noexcept:
        return gl_gate_try(&self.gate, n.op)

    cdef gl_waitq *queue(self, int op) noexcept:
        return &self.gate.q

    cdef int restore(self, gl_wnode *n, gl_chain *out) noexcept:
        gl_gate_leave(&self.gate, n.op, out)
        return 0

    cdef void left(self, gl_chain *out) noexcept:
        gl_gate_settle(&self.gate, out)

    cdef int visit(self, visitproc visit, void *arg) noexcept:
        return visit_queue(&self.gate.q, visit, arg)

    cdef int empty(self) except -1:
        cdef gl_chain out
        memset(&out, 0, sizeof(out))
        gl_lock(&self.lock)
        drop_queue(&self.gate.q, &out)
        gl_unlock(&self.lock)
        return flush(&out)

    cdef int change(self, long long by, long long to, bint add) except -1:
        """value += by, or value = to; -1 without a change where that would leave 0 .. limit. Lets in whom it can."""
        cdef gl_chain out
        cdef bint ok
        memset(&out, 0, sizeof(out))
        gl_lock(&self.lock)
        if add:
            to = self.gate.value + by
        ok = to >= 0 and (self.limit == 0 or to <= self.limit)
        if ok:
            self.gate.value = to
            gl_gate_settle(&self.gate, &out)
        gl_unlock(&self.lock)
        flush(&out)
        return ok

    cdef int leave(self, int op) except -1:
        cdef gl_chain out
        cdef int r
        memset(&out, 0, sizeof(out))
        gl_lock(&self.lock)
        r = gl_gate_leave(&self.gate, op, &out)
        gl_unlock(&self.lock)
        flush(&out)
        return r == 0

    cdef bint enter_now(self, int op) except -1:
        cdef gl_wnode n
        memset(&n, 0, sizeof(n))
        n.op = <unsigned char>op
        return at_once(self, &n) == SYNC_DONE

    cdef int enter_blocking(self, int op, timeout, str what) except -1:
        check_blocking(f"{what}_blocking()", f"await {what}()")
        block(operation(self, op), as_timeout(timeout))
        return 0

    cdef str queued(self):
        return f"{self.gate.q.n} waiting"


cdef class Semaphore(Gate):
    """`value` permits. acquire() takes one, and waits for it, in the order of the calls; release() gives one back.

    Raises TypeError or ValueError for a value that is not an int >= 0. `async with` in tasks, `with` in plain threads.
    """

    def __init__(self, value=1, *, name=None):
        self.gate.value = count("value", value, 0)
        self.name = name

    def acquire(self):
        """Awaitable: take a permit."""
        return operation(self, OP_PERMIT)

    def try_acquire(self):
        """Take a permit if there is one and nobody waits for it; returns whether it did."""
        return self.enter_now(OP_PERMIT)

    def acquire_blocking(self, timeout=None):
        """As acquire(), in a thread that runs no event loop (else RuntimeError). TimeoutError after `timeout` seconds."""
        self.enter_blocking(OP_PERMIT, timeout, f"{type(self).__name__}.acquire")

    def release(self):
        """Give a permit back, to the first who waits, if any."""
        self.change(1, 0, True)

    def locked(self):
        """Whether acquire() would have to wait."""
        return self.gate.value == 0

    @property
    def value(self):
        """Permits left."""
        return self.gate.value

    __aenter__ = acquire
    __aexit__ = release_at_once
    __enter__ = acquire_in_thread
    __exit__ = release_in_thread

    cdef str describe(self):
        return f"{self.gate.value} left, {self.queued()}"


cdef class Mutex(Semaphore):
    """A lock that one task or thread holds at a time; it is handed over in the order of the calls to acquire().

    `async with` in tasks, `with` in plain threads. It does not know who holds it: anybody may release it.
    """

    def __init__(self, *, name=None):
        self.gate.value = self.limit = 1
        self.name = name

    def release(self):
        """Unlock it, or hand it to the first who waits. RuntimeError if it is not locked."""
        if not self.change(1, 0, True):
            raise RuntimeError(f"release of an unlocked {type(self).__name__}")

    cdef str describe(self):
        return f"{'unlocked' if self.gate.value else 'locked'}, {self.queued()}"


cdef class RWMutex(Gate):
    """A lock that many readers or one writer hold: `async with rw.reader`, `async with rw.writer` (`with` in threads).

    First come, first served: a reader that comes while a writer waits, waits behind it.
    """

    def __init__(self, *, name=None):
        self.name = name

    @property
    def reader(self):
        """Its reading side: acquire(), release() and so on, as of a Mutex."""
        return Side(self, OP_READ)

    @property
    def writer(self):
        """Its writing side."""
        return Side(self, OP_WRITE)

    cdef str describe(self):
        value = self.gate.value
        return f"{'writing' if value < 0 else f'{value} reading' if value else 'unlocked'}, {self.queued()}"


@cython.final
cdef class Side:
    """One side of a RWMutex."""
    cdef RWMutex rw
    cdef int op

    def __cinit__(self, RWMutex rw not None, int op):
        self.rw, self.op = rw, op

    def acquire(self):
        """Awaitable: lock this side."""
        return operation(self.rw, self.op)

    def try_acquire(self):
        """Lock this side if it can be had at once and nobody waits; returns whether it did."""
        return self.rw.enter_now(self.op)

    def acquire_blocking(self, timeout=None):
        """As acquire(), in a thread that runs no event loop (else RuntimeError). TimeoutError after `timeout` seconds."""
        self.rw.enter_blocking(self.op, timeout, f"RWMutex.{self.name()}.acquire")

    def release(self):
        """Unlock this side. RuntimeError if it is not locked."""
        if not self.rw.leave(self.op):
            raise RuntimeError(f"release of an unlocked RWMutex.{self.name()}")

    def locked(self):
        """Whether this side is held."""
        return self.rw.gate.value > 0 if self.op == OP_READ else self.rw.gate.value < 0

    cdef str name(self):
        return "reader" if self.op == OP_READ else "writer"

    __aenter__ = acquire
    __aexit__ = release_at_once
    __enter__ = acquire_in_thread
    __exit__ = release_in_thread

    def __repr__(self):
        return f"<{self.name()} of {self.rw!r}>"


cdef class Passage(Gate):
    """A gate that is open, for everybody, while its value is 0."""

    def wait(self):
        """Awaitable: wait until it is set, or the counter is 0."""
        return operation(self, OP_PASS)

    def wait_blocking(self, timeout=None):
        """As wait(), in a thread that runs no event loop (else RuntimeError). TimeoutError after `timeout` seconds."""
        self.enter_blocking(OP_PASS, timeout, f"{type(self).__name__}.wait")


cdef class Event(Passage):
    """A flag that tasks of any loop, and threads, can wait for; not set at first. `name` is for repr() and dumps.

    Every method may be called from any thread; to wait there is wait() in tasks and wait_blocking() in plain threads.
    """

    def __init__(self, *, name=None):
        self.gate.value = self.limit = 1        # 0: set
        self.name = name

    def set(self):
        """Set it: all who wait go on, and later ones do not wait."""
        self.change(0, 0, False)

    def clear(self):
        """Those who come from now on wait for the next set()."""
        self.change(0, 1, False)

    def is_set(self):
        """Whether it is set, at this moment."""
        return self.gate.value == 0

    cdef str describe(self):
        return f"{'unset' if self.gate.value else 'set'}, {self.queued()}"


cdef enum:
    MANY = 0x7fffffff   # as much as a WaitGroup is told of at once: sums stay far below 63 bits


cdef class WaitGroup(Passage):
    """Counts things that are still to be done, and lets wait until there are none. `name` is for repr() and dumps.

    Every method may be called from any thread; to wait there is wait() in tasks and wait_blocking() in plain threads.
    """

    def __init__(self, *, name=None):
        self.name = name

    def add(self, n=1):
        """Count n more (fewer, if negative). At 0 all who wait go on. ValueError, without a change, below 0."""
        try:
            n = n.__index__()
        except AttributeError:
            raise TypeError(f"WaitGroup.add takes an int, not {n!r}") from None
        if not -MANY <= n <= MANY:
            raise ValueError(f"WaitGroup.add takes an int of at most 31 bits, not {n!r}")
        if not self.change(n, 0, True):
            raise ValueError("negative WaitGroup counter")

    def done(self):
        """One thing is done: add(-1)."""
        self.add(-1)

    @property
    def count(self):
        """How many are still to be done, at this moment."""
        return self.gate.value

    cdef str describe(self):
        return f"{self.gate.value} to be done, {self.queued()}"


for shared_type in (Gate, Semaphore, Mutex, RWMutex, Event, WaitGroup):
    set_slots(shared_type)
