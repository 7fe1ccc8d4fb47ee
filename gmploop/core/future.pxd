from cpython.object cimport PyObject
from gmploop.core.g cimport G
from gmploop.core.handle cimport flag

cdef enum:
    PENDING = 0
    CANCELLED = 1
    FINISHED = 2

cdef enum:                  # indices of what only few futures have
    SOURCE_TRACEBACK, CANCEL_MESSAGE, CANCELLED_EXC, TRACEBACK, AWAITED_BY, RARE

cdef class Future:
    # All references but `loop` are raw: a new future needs no None in any of them. NULL stands for "none".
    cdef object loop        # None until __init__() has run
    cdef PyObject *cb0      # the first callback, and its context; without a context: a task of ours that waits for this
    cdef PyObject *ctx0
    cdef PyObject *callbacks    # a list of (callback, context) after the first; (task, None) for a waiting task of ours
    cdef PyObject *value    # FINISHED: the result, or if `failed` the exception
    cdef PyObject **rare    # RARE references, or NULL while there are none
    cdef PyObject *attrs    # __dict__
    cdef object __weakref__
    cdef signed char state
    cdef flag failed, log_traceback, blocking
    cdef flag own           # loop is a G
    cdef int init(self, loop) except -1
    cdef int report(self, dict context) except -1
    cdef int report_never_retrieved(self) except -1
    cdef object rare_or_none(self, int which)
    cdef int check_alive(self) except -1
    cdef int check_asked(self) except -1
    cdef bint direct(self) noexcept
    cdef PyObject *get_rare(self, int which) noexcept
    cdef int set_rare(self, int which, PyObject *value) except -1
    cdef int settle(self, int state) except -1
    cdef int call_soon(self, PyObject *callback, PyObject *context) except -1
    cdef int wake_by(self, Future source) except -1
    cdef object wake_entry(self)
    cdef int on_done(self) except -1
    cdef int add_waiter(self, PyObject *task) except -1
    cdef int add_callback(self, PyObject *callback, PyObject *context) except -1
    cdef int do_set_result(self, PyObject *result) except -1
    cdef int do_set_exception(self, exception) except -1
    cdef bint do_cancel(self, PyObject *message) except -1
    cdef object cancelled_error(self)
    cdef int outcome(self, PyObject **value) except -2

cdef Future make_future(G loop)
cdef int visit_future(PyObject *o, int (*visit)(PyObject *, void *) noexcept, void *arg) noexcept
cdef int clear_future(PyObject *o) noexcept
