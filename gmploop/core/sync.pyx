# cython: language_level=3, freethreading_compatible=True, binding=True
"""Channels and select: by these worlds that run on different threads, and plain threads, talk. Locks are in locks.pyx.

The algorithms are in waitq.h, waiting and waking in wait.pyx. Every method here may be called from any thread.
"""
cimport cython
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_DECREF, Py_XDECREF
from libc.stdlib cimport calloc, free
from libc.string cimport memset
from types import GenericAlias
from gmploop.core.g cimport gl_ring_len, gl_ring_pop, gl_ring_at, gl_ring_free, gl_ring
from gmploop.core.handle cimport gl_lock, gl_unlock, load_flags
from gmploop.core.shared cimport Shared, raise_closed, set_slots, visitproc
from gmploop.core.wait cimport PARKED, ENDED, flush, gl_waiter_of, undo
from gmploop.core.waiter cimport Waiter, operation, set_next
from gmploop.core.waitq cimport *
from gmploop.core.waits cimport as_timeout, block, check_blocking

from gmploop.core import grant      # it is by these that what waits is resumed

cdef extern from "Python.h":
    Py_ssize_t PY_SSIZE_T_MAX
    PyObject *PyTuple_GET_ITEM(object, Py_ssize_t)
    void PyErr_WriteUnraisable(object)


class WouldBlock(Exception):
    """send_nowait() or recv_nowait() would have to wait."""

    __module__ = "gmploop"


cdef Py_ssize_t count(str what, value, Py_ssize_t least) except -1:
    """An int >= least."""
    try:
        n = value.__index__()
    except AttributeError:
        raise TypeError(f"{what} takes an int >= {least}, not {value!r}") from None
    if not least <= n < PY_SSIZE_T_MAX:
        raise ValueError(f"{what} takes an int >= {least}, not {value!r}")
    return n


cdef void drop_queue(gl_waitq *q, gl_chain *out) noexcept:
    cdef gl_wnode *n = q.first
    while n != NULL:
        gl_q_remove(q, n)
        gl_chain_add(out, n, 0)
        n = q.first


cdef int visit_queue(gl_waitq *q, visitproc visit, void *arg) noexcept:
    """Each node in a queue holds a reference to its waiter."""
    cdef gl_wnode *n = q.first
    cdef int r = 0
    while n != NULL and r == 0:
        r = visit(gl_waiter_of(n), arg)
        n = n.next
    return r


cdef class Channel(Shared):
    """A queue of up to `capacity` items (0: a sender waits until a receiver has taken its item) between any tasks and
    threads. Items and those who wait are served in the order in which they came.

    Raises TypeError or ValueError for a capacity that is not an int >= 0. `name` is for repr() and dumps.
    """
    cdef gl_chan c

    def __init__(self, capacity=0, *, name=None):
        self.c.capacity = count("capacity", capacity, 0)
        self.name = name

    def __dealloc__(self):
        self.empty()
        gl_ring_free(&self.c.buf)

    @classmethod
    def __class_getitem__(cls, item):
        return GenericAlias(cls, item)

    cdef int attempt(self, gl_wnode *n, gl_chain *out) noexcept:
        cdef int r
        if n.op != OP_SEND:
            return gl_chan_recv(&self.c, &n.item, &n.seq, out)
        r = gl_chan_send(&self.c, n.item, out)
        if r == SYNC_DONE:
            n.item = NULL
        return r

    cdef gl_waitq *queue(self, int op) noexcept:
        return &self.c.sendq if op == OP_SEND else &self.c.recvq

    cdef int restore(self, gl_wnode *n, gl_chain *out) noexcept:
        return gl_chan_restore(&self.c, n, out) if n.op != OP_SEND else 0

    cdef int visit(self, visitproc visit, void *arg) noexcept:
        cdef size_t i
        cdef int r = 0
        for i in range(gl_ring_len(&self.c.buf)):
            r = r or visit(<PyObject *>gl_ring_at(&self.c.buf, i), arg)
        r = r or visit_queue(&self.c.recvq, visit, arg)
        r = r or visit_queue(&self.c.sendq, visit, arg)
        return r or visit_queue(&self.c.returned, visit, arg)

    cdef int empty(self) except -1:
        cdef gl_chain out
        cdef gl_ring buf
        cdef PyObject *item
        memset(&out, 0, sizeof(out))
        gl_lock(&self.lock)
        drop_queue(&self.c.recvq, &out)
        drop_queue(&self.c.sendq, &out)
        while self.c.returned.first != NULL:
            gl_chain_add(&out, gl_returned_pop(&self.c.returned), 0)
        buf = self.c.buf
        memset(&self.c.buf, 0, sizeof(buf))
        gl_unlock(&self.lock)
        flush(&out)
        item = <PyObject *>gl_ring_pop(&buf)
        while item != NULL:
            Py_DECREF(<object>item)
            item = <PyObject *>gl_ring_pop(&buf)
        gl_ring_free(&buf)
        return 0

    def send(self, item):
        """Awaitable: put item in, or hand it to a receiver that waits; waits for room. Raises ChannelClosed.

        A cancelled send has either sent the item or will never send it.
        """
        cdef Waiter w = operation(self, OP_SEND)
        Py_INCREF(item)
        w.node.item = <void *>item
        return w

    def recv(self):
        """Awaitable: take the next item; waits for one. Raises ChannelClosed when the channel is closed and empty.

        An item that was handed to a receiver that is cancelled goes to the next, or stays in front.
        """
        return operation(self, OP_RECV)

    def __aiter__(self):
        return self

    def __anext__(self):
        return operation(self, OP_NEXT)

    def send_nowait(self, item):
        """As send(), but raises WouldBlock instead of waiting."""
        cdef gl_wnode n
        cdef int r
        memset(&n, 0, sizeof(n))
        n.op, n.item = OP_SEND, <void *>item
        Py_INCREF(item)
        r = at_once(self, &n)
        if r == SYNC_DONE:
            return
        Py_DECREF(item)
        if r == SYNC_CLOSED:
            raise_closed(self, None)
        if r == SYNC_NO_MEMORY:
            raise MemoryError()
        raise WouldBlock(f"nobody receives from {self!r}, and it is full")

    def recv_nowait(self):
        """As recv(), but raises WouldBlock instead of waiting."""
        cdef gl_wnode n
        cdef int r
        memset(&n, 0, sizeof(n))
        n.op = OP_RECV
        r = at_once(self, &n)
        if r == SYNC_DONE:
            item = <object>n.item
            Py_DECREF(item)
            return item
        if r == SYNC_CLOSED:
            raise_closed(self, None)
        raise WouldBlock(f"{self!r} is empty")

    def send_blocking(self, item, timeout=None):
        """As send(), in a thread that runs no event loop (else RuntimeError). TimeoutError after `timeout` seconds."""
        check_blocking("Channel.send_blocking()", "await send()")
        block(self.send(item), as_timeout(timeout))

    def recv_blocking(self, timeout=None):
        """As recv(), in a thread that runs no event loop (else RuntimeError). TimeoutError after `timeout` seconds."""
        check_blocking("Channel.recv_blocking()", "await recv()")
        return block(operation(self, OP_RECV), as_timeout(timeout))

    def close(self):
        """No more sends: those that wait, and later ones, raise ChannelClosed. What is buffered can still be received;
        then receivers raise ChannelClosed and `async for` ends. A second close() does nothing."""
        cdef gl_chain out
        memset(&out, 0, sizeof(out))
        gl_lock(&self.lock)
        gl_chan_close(&self.c, &out)
        gl_unlock(&self.lock)
        flush(&out)

    def receiving(self):
        """A case for select(): receive."""
        return Case(self, OP_RECV, None)

    def sending(self, item):
        """A case for select(): send item."""
        return Case(self, OP_SEND, item)

    @property
    def closed(self):
        """Whether close() was called; there may be items left to receive."""
        return self.c.closed != 0

    @property
    def capacity(self):
        """As given: how many items fit in while nobody receives."""
        return self.c.capacity

    def __len__(self):
        """Items that can be received without a sender."""
        cdef size_t n
        gl_lock(&self.lock)
        n = gl_chan_len(&self.c)
        gl_unlock(&self.lock)
        return n

    def __bool__(self):
        return True

    cdef str describe(self):
        return (f"{len(self)}/{self.c.capacity}, {self.c.recvq.n} receiving, {self.c.sendq.n} sending"
                f"{', closed' if self.c.closed else ''}")


cdef int at_once(Shared at, gl_wnode *n) except -1:
    """The operation of a node of no waiter."""
    cdef gl_chain out
    cdef int r
    memset(&out, 0, sizeof(out))
    gl_lock(&at.lock)
    r = at.attempt(n, &out)
    gl_unlock(&at.lock)
    if out.first != NULL or out.spare != NULL:
        try:
            flush(&out)
        except BaseException:
            if r == SYNC_DONE:
                undo(at, n)
            raise
    return r


# -- select

@cython.final
cdef class Case:
    """What select() may do: made by Channel.receiving() and Channel.sending(item); can be used again."""
    cdef readonly Channel channel
    cdef object item
    cdef int op

    def __cinit__(self, Channel channel not None, int op, item):
        self.channel, self.op, self.item = channel, op, item

    def __repr__(self):
        return f"<{'sending to' if self.op == OP_SEND else 'receiving from'} {self.channel!r}>"


cdef object MISSING = object()


@cython.no_gc_clear
cdef class Select(Waiter):
    """The awaitable of select()."""
    cdef gl_wcase *nodes
    cdef unsigned *order        # n numbers of cases in the order of the attempts; then n in that of the locks
    cdef unsigned n
    cdef tuple channels
    cdef object default, timer
    cdef double seconds         # < 0: for ever

    def __dealloc__(self):
        cdef unsigned i
        if self.node.stage == PARKED:
            try:
                self.quit_for_ever()
            except BaseException:
                PyErr_WriteUnraisable(self.channels)
        for i in range(self.n):
            Py_XDECREF(<PyObject *>self.nodes[i].node.item)
        free(self.nodes)
        free(self.order)

    cdef int fill(self, tuple cases) except -1:
        cdef unsigned i
        cdef Case case
        cdef Py_ssize_t n = len(cases)
        if not 0 < n < 1 << 20:
            raise ValueError(f"select() takes one case or more, up to a million, not {n}")
        self.nodes = <gl_wcase *>calloc(n, sizeof(gl_wcase))
        self.order = <unsigned *>calloc(2 * n, sizeof(unsigned))
        if self.nodes == NULL or self.order == NULL:
            raise MemoryError()
        channels = []
        for i in range(<unsigned>n):
            given = cases[i]
            if isinstance(given, Channel):
                given = (<Channel>given).receiving()
            if not isinstance(given, Case):
                raise TypeError(f"select() takes channels, Channel.receiving() and Channel.sending(item), not {given!r}")
            case = <Case>given
            self.nodes[i].node.op, self.nodes[i].node.is_case = <unsigned char>case.op, 1
            self.nodes[i].state, self.nodes[i].index = &self.node.state, i
            if case.op == OP_SEND:
                Py_INCREF(case.item)
                self.nodes[i].node.item = <void *>case.item
            self.n += 1
            channels.append(case.channel)
        self.channels = tuple(channels)
        for i, place in enumerate(sorted(range(n), key=lambda k: id(channels[k]))):
            self.order[n + i] = place
        return 0

    @property
    def waits_at(self):
        return self.channels

    cdef Shared where(self, unsigned index):
        return <Shared>self.channels[index]

    cdef unsigned won(self) noexcept:
        return <unsigned>load_flags(&self.node.state) >> W_INDEX_SHIFT

    cdef gl_wnode *winner(self) noexcept:
        return &self.nodes[self.won()].node

    cdef Shared winner_at(self):
        return self.where(self.won())

    cdef int lock_all(self, bint on) noexcept:
        """In ascending order of addresses, each channel once."""
        cdef unsigned i
        cdef PyObject *last = NULL
        cdef PyObject *p
        for i in range(self.n):
            p = PyTuple_GET_ITEM(self.channels, self.order[self.n + i])
            if p == last:
                continue
            last = p
            if on:
                gl_lock(&(<Shared>p).lock)
            else:
                gl_unlock(&(<Shared>p).lock)
        return 0

    cdef int begin(self, bint park) except -1:
        """The first case that can be done, in random order; or stand in all queues."""
        cdef gl_chain out
        cdef gl_wnode *n
        cdef unsigned i = 0, k
        cdef int r = SYNC_WAIT
        for k in range(self.n):             # shuffle
            i = gl_any_below(k + 1)
            self.order[k] = self.order[i]
            self.order[i] = k
        memset(&out, 0, sizeof(out))
        self.lock_all(True)
        for k in range(self.n):
            i = self.order[k]
            r = (<Shared>PyTuple_GET_ITEM(self.channels, i)).attempt(&self.nodes[i].node, &out)
            if r != SYNC_WAIT:
                gl_wait_decide(&self.node.state, W_GRANTED, i)
                break
        if r == SYNC_WAIT and park:
            for i in range(self.n):
                Py_INCREF(self)
                n = &self.nodes[i].node
                gl_q_append((<Shared>PyTuple_GET_ITEM(self.channels, i)).queue(n.op), n)
        self.lock_all(False)
        try:
            flush(&out)
        except BaseException:
            if r == SYNC_DONE:
                undo(self.winner_at(), self.winner())
            else:
                self.decide_here(W_CANCELLED)
            raise
        return r

    cdef object start(self):
        cdef int r = self.begin(self.seconds != 0)
        if r != SYNC_WAIT:
            return self.at_once(r)
        if self.seconds == 0:
            self.node.stage = ENDED
            return self.expired()
        self.park()
        if self.seconds > 0:
            try:
                self.timer = self.whom.call_later(self.seconds, expire, self)
            except BaseException:
                self.quit()
                raise
        return self

    cdef object granted(self):
        cdef gl_wnode *n = self.winner()
        if n.op == OP_SEND:
            return self.won(), None
        value = <object>n.item
        n.item = NULL
        Py_DECREF(value)
        return self.won(), value

    cdef object closed(self):
        return raise_closed(self.winner_at(), self.won())

    cdef object expired(self):
        if self.default is MISSING:
            raise TimeoutError("no case of select() became ready in time")
        return -1, self.default

    cdef bint decide_here(self, int outcome) except -1:
        if not gl_wait_decide(&self.node.state, outcome, 0):
            return False
        self.leave_queues()
        return True

    cdef int leave_queues(self) except -1:
        """Of the winner's nothing is left, or it stands among `returned`."""
        cdef unsigned i, queued = 0
        cdef int outcome = load_flags(&self.node.state) & W_OUTCOME
        cdef gl_wnode *winner = self.winner() if outcome == W_GRANTED or outcome == W_CLOSED else NULL
        cdef gl_wnode *n
        cdef Shared at
        for i in range(self.n):
            n = &self.nodes[i].node
            if n != winner:
                at = <Shared>PyTuple_GET_ITEM(self.channels, i)
                gl_lock(&at.lock)
                queued += gl_q_remove(at.queue(n.op), n)
                gl_unlock(&at.lock)
        for i in range(queued):
            Py_DECREF(self)
        return 0

    cdef int clean_up(self) except -1:
        timer, self.timer = self.timer, None
        if timer is not None:
            timer.cancel()
        self.leave_queues()
        return self.forget_callback()

    cdef str operation(self):
        return "select"


def expire(Select w):
    if gl_wait_decide(&w.node.state, W_EXPIRED, 0) == 2:
        w.wake()


cdef Select make_select(tuple cases, default, timeout):
    cdef Select w = Select.__new__(Select)
    w.default, w.seconds = default, -1
    if timeout is not None:
        w.seconds = as_timeout(timeout)
    elif default is not MISSING:
        w.seconds = 0
    w.fill(cases)
    return w


def select(*cases, default=MISSING, timeout=None):
    """Awaitable: do exactly one of the cases, waiting until one can be done; among several, a random one.

    cases: Channel.receiving() (a channel itself means the same) and Channel.sending(item).
    Returns (number of the case, item received or None). With `default`, (-1, default) if no case can be done at once,
    or within `timeout` seconds if that is given too. Raises TimeoutError after `timeout` seconds without a default;
    ChannelClosed, with the case's number as its `case`, where the case by itself would raise it.
    """
    return make_select(cases, default, timeout)


def select_blocking(*cases, default=MISSING, timeout=None):
    """As select(), in a thread that runs no event loop (else RuntimeError)."""
    cdef Select w = make_select(cases, default, timeout)
    check_blocking("select_blocking()", "await select()")
    return block(w, w.seconds)


set_slots(Channel)
set_next(Select)
