# cython: language_level=3, freethreading_compatible=True, binding=True
"""Waits as seen from outside of loops: plain threads that wait, who waits for what, and what a fork loses."""
from cpython.exc cimport PyErr_CheckSignals
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_DECREF
from libc.math cimport isnan
from gmploop.core.future cimport Future
from gmploop.core.g cimport G
from gmploop.core.handle cimport gl_load_relaxed, gl_lock, gl_unlock, gl_monotonic, load_flags
from gmploop.core.shared cimport Shared, first_shared, lock_list, unlock_list
from gmploop.core.wait cimport Wait, Rare, rare_of, running_loop, gl_waiter_of, PARKED, ENDED, BY_CALLBACK, BY_TASK, BY_THREAD
from gmploop.core.waitq cimport *

cdef extern from "Python.h":
    void *PyMem_RawRealloc(void *, size_t) nogil
    void PyMem_RawFree(void *) nogil

cdef extern from "pythread.h" nogil:
    unsigned long PyThread_get_thread_ident()
    void *PyThread_allocate_lock()
    int PyThread_acquire_lock_timed(void *, long long, int)
    int PY_LOCK_INTR

cdef enum:
    DAY_S = 86400       # one wait for a semaphore at most


# -- in a plain thread

cdef int check_blocking(str what, str instead) except -1:
    if running_loop() is not None:
        raise RuntimeError(f"{what} would block the event loop that this thread runs: use {instead}")
    return 0


cdef double as_timeout(timeout) except? -2:
    """Seconds, or -1 for None."""
    cdef double t
    if timeout is None:
        return -1
    try:
        t = timeout
    except TypeError:
        raise TypeError(f"timeout takes None or seconds >= 0, not {timeout!r}") from None
    if isnan(t) or t < 0:
        raise ValueError(f"timeout takes None or seconds >= 0, not {timeout!r}")
    return t


cdef object block(Wait w, double timeout):
    """As await, in a thread that runs no loop; for `timeout` seconds, < 0 for ever."""
    cdef int r = w.begin(timeout != 0)
    if r != SYNC_WAIT:
        return w.at_once(r)
    if timeout == 0:
        w.node.stage = ENDED
        return w.expired()
    w.node.stage = PARKED
    try:
        wait_sem(w, timeout)
    except BaseException:
        w.quit()
        raise
    return w.finish()


cdef int wait_sem(Wait w, double timeout) except -1:
    cdef double deadline = gl_monotonic() + timeout
    cdef double left = DAY_S
    cdef int r
    cdef Rare rare = rare_of(w)
    rare.sem = PyThread_allocate_lock()
    if rare.sem == NULL:
        raise MemoryError()
    PyThread_acquire_lock_timed(rare.sem, 0, 0)
    rare.callback, w.node.how = PyThread_get_thread_ident(), BY_THREAD
    gl_wait_arm(&w.node.state)
    while load_flags(&w.node.state) & W_OUTCOME == W_PENDING:
        if timeout >= 0:
            left = deadline - gl_monotonic()
            if left <= 0:
                w.decide_here(W_EXPIRED)
                return 0
        with nogil:
            r = PyThread_acquire_lock_timed(rare.sem, <long long>(min(left, DAY_S) * 1e6) + 1, 1)
        if r == PY_LOCK_INTR:
            PyErr_CheckSignals()
    return 0


# -- who waits for what

ctypedef struct entry:
    PyObject *waiter
    PyObject *callback
    PyObject *loop
    unsigned index


cdef inline PyObject *whom(Wait w) noexcept:
    return <PyObject *>w.rare.callback if w.node.how >= BY_CALLBACK else <PyObject *>w.whom


cdef inline PyObject *loop_in(Wait w) noexcept:
    return <PyObject *>(<Future>w.whom).loop if w.node.how == BY_TASK else <PyObject *>w.whom


cdef entry *entries(size_t *n) noexcept:
    """All nodes in all queues whose waiter has said whom to wake; with references. NULL when there is none, or no
    memory. Whom to wake is forgotten only after the waiter has left all queues, so under their locks it is there."""
    cdef PyObject *o
    cdef gl_waitq *q
    cdef gl_wnode *node
    cdef entry *found = NULL
    cdef entry *more
    cdef size_t size = 0
    cdef int op
    n[0] = 0
    lock_list()
    o = first_shared()
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
                if load_flags(gl_wait_state(node)) & W_ARMED:
                    found[n[0]].waiter = gl_waiter_of(node)
                    found[n[0]].callback = whom(<Wait>gl_waiter_of(node))
                    found[n[0]].index = gl_wait_index(node)
                    Py_INCREF(<object>found[n[0]].waiter)
                    Py_INCREF(<object>found[n[0]].callback)
                    found[n[0]].loop = loop_in(<Wait>gl_waiter_of(node))
                    Py_INCREF(<object>found[n[0]].loop)
                    n[0] += 1
                node = node.next
        gl_unlock(&(<Shared>o).lock)
        o = (<Shared>o).after
    unlock_list()
    return found


def waiting():
    """Who waits at channels and locks: a list of (waiter, object, operation, loop or None, callback or thread ident)."""
    cdef size_t i, n
    cdef entry *found = entries(&n)
    cdef Wait w
    result = []
    for i in range(n):
        w = <Wait>found[i].waiter
        callback = <object>found[i].callback
        loop = <object>found[i].loop
        Py_DECREF(w)
        Py_DECREF(callback)
        Py_DECREF(loop)
        if isinstance(callback, G):         # in the place of its root task
            callback = callback.goroutine
        result.append((w, w.where(found[i].index), w.operation(), loop, callback))
    PyMem_RawFree(found)
    return result


def waits_in(G world not None):
    """How many operations wait in a world: its own count, which the hot path keeps."""
    return world.waits - load_flags(&world.waits_ended)


def forget_lost():
    """In the child of a fork: withdraw what waits in threads that are not here, or in loops that such threads, or this
    one, were running: gmploop's do not go on in the child."""
    cdef unsigned long me = PyThread_get_thread_ident()
    cdef Wait w
    for w, _, _, loop, who in waiting():
        if w.node.how == BY_THREAD:
            lost = who != me
        elif w.node.own:
            lost = gl_load_relaxed(&(<G>loop).w.owner) != 0
        else:
            thread = getattr(loop, "_thread_id", None)
            lost = thread is not None and thread != me
        if lost:
            w.decide_here(W_CANCELLED)
