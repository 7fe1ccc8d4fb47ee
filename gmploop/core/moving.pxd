from cpython.object cimport PyObject
from gmploop.core.goroutine cimport Goroutine
from gmploop.core.handle cimport flag
from gmploop.core.runtime cimport LoopCore
from gmploop.core.task cimport Task

cdef enum:
    TURN_IDLE = 0       # nothing left to do
    TURN_MORE = 1       # callbacks are ready
    TURN_DEAD = 2       # the world is over

cdef enum:
    NEW = 0             # its root task is not made yet
    LIVE = 1
    WINDING = 2         # the root task is done; what it left is cancelled and waited for
    OVER = 3

cdef class MovingCore(LoopCore):
    cdef Goroutine handle           # who waits for the root task; None once it was told
    cdef object coro                # the root coroutine, until it has a task object; that then (`shown`); when it has ended
                                    # without one (`status` is not PENDING) what it returned or raised
    cdef object context
    cdef object waits_for           # what the root coroutine waits for: a Waiter or a Goroutine
    cdef flag cancelled_early       # cancel() has come before begin(); set by any thread
    cdef flag woken                 # what the root coroutine waits for has come; set by any thread, taken by its M
    cdef flag inner                 # tasks were made beside it
    cdef unsigned char phase, status
    cdef flag parked                # `woken` will be set
    cdef flag shown                 # `coro` is a task. By who runs it; others may look
    cdef public flag has_asyncgens
    cdef Task root(self)
    cdef object origin(self)
    cdef int begin(self) except -1
    cdef int die(self) except -1
    cdef int push_root(self) except -1
    cdef int step_root(self) except -1
    cdef PyObject *for_task(self, PyObject *result) except? NULL
    cdef int root_stepped(self, int status, PyObject *result, PyObject *raised) except -1
    cdef int step_failed(self, object exc) except -1
    cdef int root_failed(self, object exc) except -1
    cdef int end_root(self, int status, object value) except -1
    cdef int adopt(self, Task t) except -1
    cdef int root_over(self) except -1

cdef object new_task(object loop, object coro, object name, object context)
