from cpython.object cimport PyObject
from gmploop.core.g cimport G
from gmploop.core.shared cimport Shared
from gmploop.core.waitq cimport gl_chain, gl_wnode

cdef extern from "waiters.h":
    PyObject *gl_waiter_of(gl_wnode *) nogil

cdef enum:
    NEW = 0             # not awaited yet
    PARKED = 1          # waits in a queue, or was decided and has not resumed
    ENDED = 2

cdef enum:              # whom a waiter wakes
    BY_NOTHING = 0      # it has not been told yet
    BY_TASK = 1         # a task of ours, `whom`
    BY_ROOT = 2         # the root coroutine of its world, which has no task
    BY_CALLBACK = 3     # `rare.callback`, in a context
    BY_THREAD = 4       # a plain thread that waits by a semaphore; `rare.callback` is its identity

# For tasks that know of waiters: instead of a callback they arm a waiter with themselves and no context. The resumer
# makes the task's next step run in its world, from any thread, `mine` on the one that runs that world now. It returns
# whether the world still lives: if not, what was granted goes to the next. Who drops a step so made without running it
# calls w.abandon(). It may use w.send_grant(): then the stepper makes the step, within the context given there.
ctypedef int (*task_resumer)(object task, Wait w, bint mine) except -1
ctypedef int (*task_stepper)(object task, Wait w) except -1
cdef int set_task_hooks(task_resumer resume, task_stepper step) except -1

# Queues a Grant in the waiter's loop, which delivers it in that context; 0 if the loop is closed. See grant.pyx.
ctypedef int (*granter)(Wait w, bint mine, object context) except -1
cdef int set_granter(granter send) except -1

cdef class Rare:
    cdef object callback            # of BY_CALLBACK and BY_THREAD
    cdef object context             # of the callback
    cdef list more                  # further callbacks, with contexts
    cdef object message             # of a cancel
    cdef void *sem                  # a plain thread waits by this

cdef class Wait:
    # In the node, all by the waiter's own thread but what is said to be another's:
    #   state       waitq.h; decided by any thread, once
    #   stage       NEW, PARKED, ENDED
    #   how         whom to wake; published, as `whom`, by ARMED
    #   own         the loop is a G
    #   blocking    _asyncio_future_blocking
    #   delivered   the callback was called
    #   sent        a Grant stands in a queue, or has stood; by who wakes
    cdef gl_wnode node
    cdef Shared at                  # what it waits at (a select: nothing)
    cdef object whom                # BY_TASK: the task, until it needs no waking any more; else the loop, once it is parked
    cdef Rare rare                  # made when it is needed
    cdef object __weakref__

    cdef int begin(self, bint park) except -1
    cdef object start(self)
    cdef object finish(self)
    cdef object closed(self)
    cdef object granted(self)
    cdef gl_wnode *winner(self) noexcept
    cdef Shared winner_at(self)
    cdef bint decide_here(self, int outcome) except -1
    cdef object expired(self)
    cdef object cancelled_error(self)
    cdef int set_message(self, object message) except -1
    cdef object at_once(self, int r)
    cdef int clean_up(self) except -1
    cdef int forget_callback(self) except -1
    cdef int quit_for_ever(self) except -1
    cdef Shared where(self, unsigned index)
    cdef int park(self) except -1
    cdef int unpark(self) except -1
    cdef int quit(self) except -1
    cdef int wake(self) except -1
    cdef int send_grant(self, bint mine, object context) except -1
    cdef int tell_more(self) except -1
    cdef int deliver(self) except -1
    cdef int abandon(self) except -1
    cdef int put_back(self, gl_chain *out) except -1
    cdef str operation(self)

cdef int flush(gl_chain *) except -1
cdef object running_loop()
cdef object loop_of(Wait w)
cdef int undo(Shared at, gl_wnode *n) except -1
cdef Rare rare_of(Wait w)
