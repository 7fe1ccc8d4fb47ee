# cython: language_level=3, freethreading_compatible=True, binding=True
"""Grant: the callback by which a loop resumes what has waited; of the loops that do not know of waits any better way.

A Grant that is dropped without having been called (its loop was closed) gives what was granted to the next in line.
"""
cimport cython
from gmploop.core.g cimport G
from gmploop.core.handle cimport flag, make_handle
from gmploop.core.wait cimport Wait, BY_TASK, loop_of, running_loop, set_granter

cdef extern from "Python.h":
    void PyErr_WriteUnraisable(object)

cdef enum:
    TRIES = 3           # to post to a loop of another make, when signal handlers raise meanwhile


@cython.final
@cython.no_gc_clear
@cython.freelist(64)
cdef class Grant:
    """What a loop calls to resume a waiter, once."""
    cdef Wait w
    cdef flag fired

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
        if self.w.node.how == BY_TASK:
            return self.w.whom if self.w.whom is not None else self.w
        return getattr(self.w.rare.callback, "__self__", self.w)

    def __repr__(self):
        return f"<wake-up of {self.__self__!r}>"


cdef int send_grant(Wait w, bint mine, object context) except -1:
    cdef G g = <G>loop_of(w) if w.node.own else None
    cdef Grant grant = Grant.__new__(Grant)
    grant.w = w
    w.node.sent = True
    if mine:
        g.enqueue(grant, (), context)
        return 1
    if g is None:
        return wake_foreign(w, grant, context)
    if g.gone():
        grant.fired = True
        return 0
    g.post(make_handle(grant, (), context))
    if g.gone():                # close() may have emptied the inbox before the post
        g.purge()
    return 1


cdef int wake_foreign(Wait w, Grant grant, object context) except -1:
    """By a loop of another make, whose methods may be Python code in which signal handlers raise: a Grant does its
    work once, however often it was queued."""
    loop, error = loop_of(w), None
    for _ in range(TRIES):
        try:
            if running_loop() is loop:
                loop.call_soon(grant, context=context)
            else:
                loop.call_soon_threadsafe(grant, context=context)
        except Exception:
            if not loop.is_closed():
                PyErr_WriteUnraisable(loop)
            break
        except BaseException as exc:
            error = exc
            continue
        if error is not None:
            raise error
        return 1
    grant.fired = True
    if error is not None:
        w.abandon()
        raise error
    return 0


set_granter(send_grant)
