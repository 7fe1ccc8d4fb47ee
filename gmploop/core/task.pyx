# cython: language_level=3, freethreading_compatible=True, binding=True
"""Task: asyncio's, in a form that a world which moves between threads can use. See future.pyx.

Steps
- "Step this task" is an entry of the ready ring of its own (bit 1 set), without a handle: the first step, the one after
  a bare yield, and the one after the future it waits for is done, in whose list of callbacks the task itself stands.
  A step looks at `fut_waiter` for what to throw. Only steps that carry an error ("Task got bad yield") and tasks of
  other loops go by call_soon().
- current_task(): asyncio keeps a table {loop: task} up to 3.13. A step notes its task in the world only, and the
  world's __hash__ enters it into the table when that is read (g.pyx). From 3.14 on the thread knows its task, and each
  step tells asyncio, by the functions that it offers to other tasks.
- all_tasks(): a new task is linked into a list of its world and asyncio's weak set is made to look there
  (gmploop/tasks.py), since entering each task into that set costs more than all the rest of making it.

The order of what happens, messages and special cases are asyncio's C implementation's.

Thread safety: as future.pyx. The lists of tasks may be read by any thread: all_tasks.pyx.
"""
cimport cython
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_DECREF, Py_XDECREF
from libc.stdlib cimport calloc, free
from gmploop.core.future cimport (
    Future, PENDING, CANCELLED, FINISHED, CANCEL_MESSAGE, CANCELLED_EXC, SOURCE_TRACEBACK, visit_future, clear_future)
from gmploop.core.g cimport G, gl_tasks, gl_own_tasks, track_current, track_steps, track_worlds
from gmploop.core.handle cimport make_handle, gl_world_mine, GL_FREE_THREADED
from gmploop.core.wait cimport Wait, set_task_hooks
from gmploop.core.waiter cimport Waiter

cdef extern from "tasklist.h" nogil:
    void gl_tasks_add(gl_tasks *, gl_node *)
    void gl_tasks_remove(gl_tasks *, gl_node *)
    bint gl_tasks_in(const gl_node *)

cdef extern from "atomics.h" nogil:
    bint cas_tasks "__sync_bool_compare_and_swap"(gl_own_tasks **, gl_own_tasks *, gl_own_tasks *)
    unsigned gl_shard_here()
    unsigned long long gl_task_number(unsigned long long *)

cdef extern from "raised.h":
    PyObject *gl_take_exception()
    int gl_raise_again(object) except -1

cdef extern from "Python.h":
    ctypedef int (*visitproc)(PyObject *, void *) noexcept
    ctypedef int (*traverseproc)(PyObject *, visitproc, void *) noexcept
    ctypedef int (*inquiry)(PyObject *) noexcept
    ctypedef struct SlotsOfType "PyTypeObject":
        traverseproc tp_traverse
        inquiry tp_clear
    object PyContext_CopyCurrent()
    int PyContext_Enter(object) except -1
    int PyContext_Exit(object) except -1
    bint PyContext_CheckExact(object)
    bint PyCoro_CheckExact(object)
    int PyIter_Send(PyObject *, PyObject *, PyObject **) noexcept
    enum: PYGEN_NEXT
    PyObject *PyObject_CallMethodOneArg(PyObject *, PyObject *, PyObject *)
    bint PyErr_GivenExceptionMatches(PyObject *, PyObject *)
    object PyMethod_New(object, object)
    PyObject *PyWeakref_NewRef(object, PyObject *) except NULL

# Injected by gmploop.tasks: asyncio's parts that these types rest on.
cdef object task_class = None, InvalidStateError = None, CancelledError = None
cdef object task_repr = None, task_get_stack = None, task_print_stack = None, is_coroutine = None
cdef object register_task = None, enter_task = None, leave_task = None, swap_current = None
cdef bint tells_each_step = False       # 3.14 on: there is no table that is read by the loop's hash
cdef bint checks_context = False, uncancel_forgets = False
cdef object THROW = "throw"
cdef unsigned long long task_counter = 0
cdef gl_shard shards[GL_SHARDS]


def configure(*, task_type, errors, base_tasks, iscoroutine, register, enter, leave, swap, table, bint context_check,
              bint uncancel_resets):
    """Set asyncio's Task and what it is made of; see gmploop/tasks.py."""
    global task_class, InvalidStateError, CancelledError, task_repr, task_get_stack, task_print_stack, is_coroutine
    global register_task, enter_task, leave_task, swap_current, tells_each_step, checks_context, uncancel_forgets
    task_class, is_coroutine, checks_context = task_type, iscoroutine, context_check
    InvalidStateError, CancelledError = errors
    task_repr, task_get_stack, task_print_stack = base_tasks
    register_task, enter_task, leave_task, swap_current = register, enter, leave, swap
    uncancel_forgets, tells_each_step = uncancel_resets, table is None
    track_current(table)


cdef inline int drop(PyObject **field) noexcept:
    cdef PyObject *p = field[0]
    field[0] = NULL
    Py_XDECREF(p)
    return 0


cdef class Task(Future):
    """asyncio.Task; see there for what its methods do."""

    def __init__(self, coro, *, loop=None, name=None, context=None, eager_start=False):
        if self.coro != NULL:
            if self.own:
                self.unlist()
            clear_task(<PyObject *>self)
        self.init(loop)
        self.must_cancel = self.quiet = False
        self.cancels = 0
        if not PyCoro_CheckExact(coro) and not is_coroutine(coro):
            self.quiet = True
            raise TypeError(f"a coroutine was expected, got {coro!r}")
        if context is None:
            context = PyContext_CopyCurrent()
        elif checks_context and not PyContext_CheckExact(context):
            self.quiet = True
            raise TypeError(f"a contextvars.Context was expected, got {type(context).__name__}")
        if name is not None and type(name) is not str:
            name = str(name)
        self.start(coro, context, name)
        if eager_start and swap_current is not None and self.runs_here():
            self.start_eagerly()
        else:
            self.step_soon(NULL)
            self.enlist()

    cdef bint runs_here(self) except -1:
        return gl_world_mine(&(<G>self.loop).w) if self.own else self.loop.is_running()

    cdef int start(self, object coro, object context, object name) except -1:
        Py_INCREF(coro)
        Py_INCREF(context)
        self.coro, self.context = <PyObject *>coro, <PyObject *>context
        if name is None:
            self.number = next_number()
        else:
            Py_INCREF(name)
            self.name = <PyObject *>name
        return 0

    cdef int enlist(self) except -1:
        """Be found by all_tasks()."""
        cdef G g
        if not self.own:
            register_task(self)
            return 0
        g = <G>self.loop
        if GL_FREE_THREADED and self.wref == NULL:
            self.wref = PyWeakref_NewRef(self, NULL)
        if g.tasks == NULL:
            list_world(g)
        gl_tasks_add(&g.tasks.list, &self.node)
        return 0

    cdef int unlist(self) noexcept:
        if gl_tasks_in(&self.node):
            gl_tasks_remove(&(<G>self.loop).tasks.list, &self.node)
        return 0

    cdef int on_done(self) except -1:
        if self.own:
            self.unlist()
        return 0

    def __dealloc__(self):
        if self.own:
            self.unlist()
        drop(&self.wref)
        clear_task(<PyObject *>self)

    def __del__(self):
        if self.own:
            self.unlist()       # also if it comes back to life
        if self.state == PENDING and not self.quiet and self.coro != NULL:
            self.report({"task": self, "message": "Task was destroyed but it is pending!"})
        if self.log_traceback:
            self.report_never_retrieved()

    @property
    def __class__(self):
        return task_class if type(self) is Task else type(self)

    def __repr__(self):
        return task_repr(self)

    # -- stepping

    cdef int step_soon(self, PyObject *exc) except -1:
        if exc == NULL:
            if self.direct():
                Py_INCREF(self)
                return (<G>self.loop).push_entry(<size_t><PyObject *>self | 2)
            self.loop.call_soon(self.method(task_step), context=self.context_or_none())
        else:
            self.loop.call_soon(self.method(task_step), <object>exc, context=self.context_or_none())
        return 0

    cdef object method(self, function):
        return PyMethod_New(function, self)

    cdef int wake_by(self, Future source) except -1:
        self.loop.call_soon(self.method(task_wakeup), source, context=self.context_or_none())
        return 0

    cdef object wake_entry(self):
        return self.method(task_wakeup), self.context_or_none()

    cdef object context_or_none(self):
        """None when the collector has been here."""
        return <object>self.context if self.context != NULL else None

    cdef int start_eagerly(self) except -1:
        """The first step at once, as current task in place of the one that runs."""
        cdef PyObject *outer = NULL
        cdef bint was_told = False
        cdef G g = <G>self.loop if self.own else None
        PyContext_Enter(<object>self.context)
        try:
            before = swap_current(self.loop, self)      # asks for the loop's hash: the outer task is entered by now
            if g is not None:
                outer, was_told = g.current, g.told
                g.current, g.told = <PyObject *>self, True
            try:
                self.enlist()
                self.step_coro(NULL)
            finally:
                if g is not None:
                    g.current, g.told = outer, was_told
                swap_current(self.loop, before)
        finally:
            PyContext_Exit(<object>self.context)
            if self.state != PENDING:
                drop(&self.coro)
        return 0

    cdef int step(self, PyObject *exc) except -1:
        """One step as the current task, within the context that the caller has entered."""
        cdef G g
        if tells_each_step or not self.own:
            enter_task(self.loop, self)
            try:
                self.step_coro(exc)
            except BaseException:
                leave_task(self.loop, self)
                raise
            leave_task(self.loop, self)
            return 0
        g = <G>self.loop
        if g.current != NULL:
            enter_task(g, self)         # raises what asyncio does
        g.current, g.told = <PyObject *>self, False
        try:
            self.step_coro(exc)
        finally:
            g.current = NULL
            if g.told:
                g.told = False
                leave_task(g, self)
        return 0

    cdef int step_coro(self, PyObject *exc) except -1:
        cdef PyObject *coro
        cdef PyObject *result = NULL
        cdef int status
        made = None
        with cython.critical_section(self):
            if self.state != PENDING:
                raise InvalidStateError(f"__step(): already done: {self!r} {<object>exc if exc != NULL else None!r}")
            if self.must_cancel:
                if exc == NULL or not PyErr_GivenExceptionMatches(exc, <PyObject *>CancelledError):
                    made = self.cancelled_error()
                    exc = <PyObject *>made
                self.must_cancel = False
            drop(&self.fut_waiter)
            coro = self.coro
            if coro == NULL:
                raise RuntimeError("uninitialized Task object")
            Py_INCREF(<object>coro)
        if exc == NULL:
            status = PyIter_Send(coro, <PyObject *>None, &result)
        else:
            result = PyObject_CallMethodOneArg(coro, <PyObject *>THROW, exc)
            status = PYGEN_NEXT
        Py_DECREF(<object>coro)
        return self.stepped(status, result, gl_take_exception() if result == NULL else NULL)

    cdef int stepped(self, int status, PyObject *result, PyObject *raised) except -1:
        """What has come of a step: the coroutine has yielded or returned `result`, or raised. Takes the references."""
        try:
            if raised == NULL:
                return self.suspend(result) if status == PYGEN_NEXT else self.finish(result)
            if PyErr_GivenExceptionMatches(raised, <PyObject *>StopIteration):     # thrown into, it has returned
                value = (<object>raised).value
                return self.finish(<PyObject *>value)
            return self.fail(raised)
        finally:
            Py_XDECREF(result)
            Py_XDECREF(raised)

    cdef int finish(self, PyObject *result) except -1:
        with cython.critical_section(self):
            if self.must_cancel:        # cancelled right before the coroutine returned
                self.must_cancel = False
                self.do_cancel(self.get_rare(CANCEL_MESSAGE))
            else:
                self.do_set_result(result)
        return 0

    cdef int fail(self, PyObject *exc) except -1:
        if PyErr_GivenExceptionMatches(exc, <PyObject *>CancelledError):
            with cython.critical_section(self):
                Py_INCREF(<object>exc)
                self.set_rare(CANCELLED_EXC, exc)
                self.do_cancel(NULL)
            return 0
        with cython.critical_section(self):
            self.do_set_exception(<object>exc)
        if isinstance(<object>exc, (KeyboardInterrupt, SystemExit)):
            gl_raise_again(<object>exc)
        return 0

    cdef int suspend(self, PyObject *on) except -1:
        """The coroutine has yielded `on`."""
        if type(<object>on) is Future or type(<object>on) is Task:
            return self.wait_for_own(<Future>on)
        if on == <PyObject *>None:
            return self.step_soon(NULL)
        if self.own and isinstance(<object>on, Waiter) and (<Waiter>on).may_arm(<G>self.loop):
            (<Waiter>on).arm(self, None)
            return self.waits_for(<object>on)
        return self.wait_for_foreign(<object>on)

    cdef int wait_for_own(self, Future on) except -1:
        if <PyObject *>on == <PyObject *>self:
            return self.error_soon(f"Task cannot await on itself: {self!r}")
        if on.loop is not self.loop:
            return self.error_soon(f"Task {self!r} got Future {on!r} attached to a different loop")
        with cython.critical_section(on):
            if on.blocking:
                on.blocking = False
                if self.own:
                    on.add_waiter(<PyObject *>self)
                else:
                    callback = self.method(task_wakeup)
                    on.add_callback(<PyObject *>callback, self.context)
                return self.waits_for(on)
        return self.error_soon(f"yield was used instead of yield from in task {self!r} with {on!r}")

    cdef int wait_for_foreign(self, object on) except -1:
        blocking = getattr(on, "_asyncio_future_blocking", None)
        if blocking is None:
            if isinstance(on, GeneratorType):
                return self.error_soon("yield was used instead of yield from for generator in task "
                                       f"{self!r} with {on!r}")
            return self.error_soon(f"Task got bad yield: {on!r}")
        if on is self:
            return self.error_soon(f"Task cannot await on itself: {self!r}")
        get_loop = getattr(on, "get_loop", None)
        if (get_loop() if get_loop is not None else on._loop) is not self.loop:
            return self.error_soon(f"Task {self!r} got Future {on!r} attached to a different loop")
        if not blocking:
            return self.error_soon(f"yield was used instead of yield from in task {self!r} with {on!r}")
        on._asyncio_future_blocking = False
        on.add_done_callback(self.method(task_wakeup), context=self.context_or_none())
        return self.waits_for(on)

    cdef int waits_for(self, object on) except -1:
        Py_INCREF(on)
        self.fut_waiter = <PyObject *>on
        if self.must_cancel:
            message = self.rare_or_none(CANCEL_MESSAGE)
            if on.cancel(msg=message):
                self.must_cancel = False
        return 0

    cdef int error_soon(self, str message) except -1:
        error = RuntimeError(message)
        return self.step_soon(<PyObject *>error)

    # -- cancelling

    cdef bint do_cancel_task(self, object msg) except -1:
        with cython.critical_section(self):
            self.log_traceback = False
            if self.state != PENDING:
                return False
            self.cancels += 1
            waiter = <object>self.fut_waiter if self.fut_waiter != NULL else None
        if waiter is not None and waiter.cancel(msg=msg):
            return True         # it stays our waiter: it may be a task that does not end by this, and so be asked again
        with cython.critical_section(self):
            self.must_cancel = True
            Py_INCREF(msg)
            self.set_rare(CANCEL_MESSAGE, <PyObject *>msg)
        return True

    def cancel(self, msg=None):
        """Have CancelledError thrown into the coroutine; False if the task is done already."""
        self.check_alive()
        return self.do_cancel_task(msg)

    def cancelling(self):
        """The number of cancel() calls that were not taken back by uncancel()."""
        return self.cancels

    def uncancel(self):
        """Take one cancel() back; returns how many are left."""
        with cython.critical_section(self):
            if self.cancels > 0:
                self.cancels -= 1
                if self.cancels == 0 and uncancel_forgets:
                    self.must_cancel = False
            return self.cancels

    def set_result(self, result, /):
        raise RuntimeError("Task does not support set_result operation")

    def set_exception(self, exception, /):
        raise RuntimeError("Task does not support set_exception operation")

    # -- looking in

    def get_coro(self):
        return self._coro

    def get_context(self):
        return self.context_or_none()

    def get_name(self):
        with cython.critical_section(self):
            if self.name == NULL:
                if self.coro == NULL and self.number == 0:
                    return None
                name = f"Task-{self.number}"
                Py_INCREF(name)
                self.name = <PyObject *>name
            return <object>self.name

    def set_name(self, value, /):
        if type(value) is not str:
            value = str(value)
        with cython.critical_section(self):
            drop(&self.name)
            Py_INCREF(value)
            self.name = <PyObject *>value

    def get_stack(self, *, limit=None):
        return task_get_stack(self, limit)

    def print_stack(self, *, limit=None, file=None):
        return task_print_stack(self, limit, file)

    @property
    def _coro(self):
        with cython.critical_section(self):
            return <object>self.coro if self.coro != NULL else None

    @property
    def _fut_waiter(self):
        with cython.critical_section(self):
            return <object>self.fut_waiter if self.fut_waiter != NULL else None

    @property
    def _must_cancel(self):
        return self.must_cancel

    @property
    def _num_cancels_requested(self):
        return self.cancels

    @property
    def _log_destroy_pending(self):
        return not self.quiet

    @_log_destroy_pending.setter
    def _log_destroy_pending(self, value):
        self.quiet = not value

    @_log_destroy_pending.deleter
    def _log_destroy_pending(self):
        raise AttributeError("cannot delete attribute")


from types import GeneratorType


def task_step(Task task not None, exc=None):
    """One step, as a callback."""
    task.step(<PyObject *>exc if exc is not None else NULL)


def task_wakeup(Task task not None, future):
    """What a task is called back by when `future` is done."""
    wake(task, future)


cdef int wake(Task task, object future) except -1:
    cdef PyObject *value = NULL
    cdef int how = 0
    if isinstance_exactly(future):
        with cython.critical_section(future):
            how = (<Future>future).outcome(&value)
        if how < 0:
            raise InvalidStateError("Result is not set.")
    else:
        try:
            future.result()
        except BaseException as exc:
            Py_INCREF(exc)
            value, how = <PyObject *>exc, 1
    try:
        return task.step(value if how else NULL)
    finally:
        Py_XDECREF(value)


cdef inline bint isinstance_exactly(object future):
    return type(future) is Future or type(future) is Task


task_step.__qualname__ = "Task.task_step"
task_wakeup.__qualname__ = "Task.task_wakeup"


cdef Task new_task(G loop, object coro, object context, object name):
    cdef Task t = Task.__new__(Task)
    if loop.w.debug:
        t.init(loop)
    else:
        t.loop, t.own = loop, True
    t.start(coro, context, name)
    return t


cdef Task make_task(G loop, object coro, object context, object name):
    cdef Task t = new_task(loop, coro, context, name)
    t.step_soon(NULL)
    t.enlist()
    return t


def create_task(G loop not None, coro, *, name=None, context=None):
    """A new task of this loop, scheduled."""
    if not PyCoro_CheckExact(coro) and not is_coroutine(coro):
        raise TypeError(f"a coroutine was expected, got {coro!r}")
    if name is not None and type(name) is not str:
        name = str(name)
    return make_task(loop, coro, PyContext_CopyCurrent() if context is None else context, name)


cdef int run_task(G loop, PyObject *p) except -1:
    cdef Task t = <Task>p
    Py_DECREF(t)
    if t.context == NULL:       # the collector has been here
        return 0
    try:
        PyContext_Enter(<object>t.context)
        try:
            if t.fut_waiter == NULL:
                t.step(NULL)
            else:
                step_from_waiter(t)
        finally:
            PyContext_Exit(<object>t.context)
    except BaseException as exc:
        if isinstance(exc, (SystemExit, KeyboardInterrupt)):
            raise
        loop._callback_error(make_handle(t.method(task_step), (), <object>t.context), exc)
    return 0


cdef int step_from_waiter(Task t) except -1:
    """As task_wakeup(), with what the task waits for."""
    cdef Future f
    cdef PyObject *value = NULL
    cdef int how
    waiter = <object>t.fut_waiter
    if not isinstance_exactly(waiter):
        return t.step(NULL)
    f = <Future>waiter
    with cython.critical_section(f):
        how = f.outcome(&value)
    try:
        return t.step(value if how == 1 else NULL)
    finally:
        Py_XDECREF(value)


# -- channels and locks (waiter.pyx)

cdef int resume(object who, Wait w, bint mine) except -1:
    cdef Task t
    t = <Task>who
    if not mine or not t.direct():
        return w.send_grant(mine, t.context_or_none())
    Py_INCREF(t)
    return (<G>t.loop).push_entry(<size_t><PyObject *>t | 2) == 0


cdef int step_waiting(object task, Wait w) except -1:
    return wake(<Task>task, w)


cdef int drop_step(PyObject *task) except -1:
    """The step that stood in a queue will not be made: what it was to take from a channel or lock goes to the next."""
    cdef PyObject *on = (<Task>task).fut_waiter
    if on != NULL and isinstance(<object>on, Waiter):
        (<Waiter>on).abandon()
    return 0


set_task_hooks(resume, step_waiting)
track_steps(drop_step)


# -- the lists in which all_tasks.pyx looks

cdef void forget(G g) noexcept:
    gl_tasks_remove(&shards[g.tasks.shard].list, &g.tasks.node)
    free(g.tasks)
    g.tasks = NULL


cdef int list_world(G g) except -1:
    cdef gl_own_tasks *made = <gl_own_tasks *>calloc(1, sizeof(gl_own_tasks))
    if made == NULL:
        raise MemoryError()
    made.shard = gl_shard_here()
    if cas_tasks(&g.tasks, NULL, made):
        gl_tasks_add(&shards[made.shard].list, &made.node)
    else:
        free(made)                  # two threads make tasks in a loop that nobody runs
    return 0


cdef gl_shard *shards_of_tasks() noexcept:
    return shards


track_worlds(forget)


cdef unsigned long long next_number() noexcept:
    return gl_task_number(&task_counter)


cdef bint has_table() noexcept:
    return not tells_each_step


cdef int leave(G loop, Task task) except -1:
    leave_task(loop, task)
    return 0


# -- the collector

cdef traverseproc base_traverse


cdef int visit_task(PyObject *o, visitproc visit, void *arg) noexcept:
    cdef int i, r = visit_future(o, visit, arg)
    cdef PyObject **fields = [(<Task>o).coro, (<Task>o).context, (<Task>o).name, (<Task>o).fut_waiter, (<Task>o).wref]
    for i in range(5):
        if r == 0 and fields[i] != NULL:
            r = visit(fields[i], arg)
    return r


cdef int clear_task(PyObject *o) noexcept:
    clear_future(o)
    drop(&(<Task>o).coro)
    drop(&(<Task>o).context)
    drop(&(<Task>o).name)
    drop(&(<Task>o).fut_waiter)
    return 0


(<SlotsOfType *>Task).tp_traverse = visit_task
(<SlotsOfType *>Task).tp_clear = clear_task
