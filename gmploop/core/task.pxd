from cpython.object cimport PyObject
from gmploop.core.future cimport Future
from gmploop.core.g cimport G, gl_node, gl_tasks
from gmploop.core.handle cimport flag

cdef extern from "tasklist.h" nogil:
    ctypedef struct gl_shard:
        gl_tasks list
    enum: GL_SHARDS

cdef class Task(Future):
    cdef PyObject *coro
    cdef PyObject *context
    cdef PyObject *name         # NULL until somebody asks: "Task-" and the number then
    cdef PyObject *fut_waiter   # what it waits for; as on stock it stays when that is done, until the next step
    cdef PyObject *wref         # free-threaded builds: the way for other threads to a reference
    cdef gl_node node           # in its world's list while not done
    cdef unsigned long long number
    cdef int cancels
    cdef flag must_cancel, quiet    # quiet: not _log_destroy_pending
    cdef int start(self, object coro, object context, object name) except -1
    cdef int enlist(self) except -1
    cdef int unlist(self) noexcept
    cdef bint runs_here(self) except -1
    cdef int step_soon(self, PyObject *exc) except -1
    cdef int start_eagerly(self) except -1
    cdef int step(self, PyObject *exc) except -1
    cdef int step_coro(self, PyObject *exc) except -1
    cdef int stepped(self, int status, PyObject *result, PyObject *raised) except -1
    cdef int finish(self, PyObject *result) except -1
    cdef int fail(self, PyObject *exc) except -1
    cdef int suspend(self, PyObject *on) except -1
    cdef int wait_for_own(self, Future on) except -1
    cdef int wait_for_foreign(self, object on) except -1
    cdef int waits_for(self, object on) except -1
    cdef int error_soon(self, str message) except -1
    cdef object method(self, function)
    cdef object context_or_none(self)
    cdef bint do_cancel_task(self, object msg) except -1

# A new task of this world, scheduled. `coro` is a coroutine, `context` a contextvars.Context, `name` a str or None.
# Makes no call into Python if the world runs on this thread and is not in debug mode.
cdef Task make_task(G loop, object coro, object context, object name)
# The same, but its first step is not queued, nor is it found by all_tasks() before enlist().
cdef Task new_task(G loop, object coro, object context, object name)
# Make the step for which `p` stood in the ready ring, and drop that reference. An error in what surrounds the step is
# reported as a callback's; only SystemExit and KeyboardInterrupt are raised.
cdef int run_task(G loop, PyObject *p) except -1
# The next number for a task's name.
cdef unsigned long long next_number() noexcept
# Whether asyncio's current task is looked up by the loop's hash (g.pyx), which must then be told when that step ends.
cdef bint has_table() noexcept
cdef int leave(G loop, Task task) except -1
# The worlds that have tasks of ours: GL_SHARDS lists.
cdef gl_shard *shards_of_tasks() noexcept
