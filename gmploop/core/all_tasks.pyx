# cython: language_level=3, freethreading_compatible=True, binding=True
"""What asyncio.all_tasks() gets to see of our tasks. By any thread; tasklist.h has the locks, task.pyx keeps the lists.

A list owns no reference. With the GIL a task found there that has a reference can be taken; without, its references might
be going to zero at that moment in another thread, so that every task gets a weak reference which the reader asks.
"""
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF
from libc.stdlib cimport realloc, free
from gmploop.core.g cimport G, gl_node, gl_tasks, gl_own_tasks
from gmploop.core.handle cimport GL_FREE_THREADED
from gmploop.core.task cimport Task, gl_shard, GL_SHARDS, shards_of_tasks

cdef extern from "tasklist.h" nogil:
    void gl_tasks_lock(gl_tasks *)
    void gl_tasks_unlock(gl_tasks *)
    gl_node *gl_tasks_next(gl_tasks *, gl_node *)
    gl_own_tasks *gl_own_tasks_of(gl_node *)

cdef extern from "atomics.h" nogil:
    gl_own_tasks *load_tasks "gl_load_acquire"(gl_own_tasks **)
    PyObject *load_object "gl_load_acquire"(PyObject **)

cdef extern from "Python.h":
    Py_ssize_t Py_REFCNT(PyObject *)

cdef extern from *:
    """
    static PyObject *gl_weakref_target(PyObject *ref) {
    #if PY_VERSION_HEX >= 0x030D0000
        PyObject *o = NULL;
        PyWeakref_GetRef(ref, &o);
        return o;
    #else
        PyObject *o = PyWeakref_GetObject(ref);
        return o == Py_None ? NULL : Py_XNewRef(o);
    #endif
    }
    static void take_reference(PyObject *o) { Py_INCREF(o); }
    #define gl_container(node, offset) ((PyObject *)((char *)(node) - (offset)))
    """
    PyObject *gl_weakref_target(PyObject *)
    PyObject *gl_container(gl_node *, Py_ssize_t)
    void take_reference(PyObject *)

cdef object get_running_loop = None         # injected by gmploop.tasks


def configure(running_loop):
    """Set asyncio's _get_running_loop()."""
    global get_running_loop
    get_running_loop = running_loop


cdef struct found:
    PyObject **items        # strong references to tasks, or to their weak references
    size_t n, room


cdef int gather_list(gl_tasks *tasks, found *f) noexcept:
    """Add the tasks of a list. -1 without memory."""
    cdef gl_node *n
    cdef PyObject *task
    cdef PyObject **more
    cdef int r = 0
    gl_tasks_lock(tasks)
    n = gl_tasks_next(tasks, NULL)
    while n != NULL:
        if f.n == f.room:
            more = <PyObject **>realloc(f.items, (f.room * 2 + 64) * sizeof(PyObject *))
            if more == NULL:
                r = -1
                break
            f.items, f.room = more, f.room * 2 + 64
        task = gl_container(n, task_node)
        if GL_FREE_THREADED:
            f.items[f.n] = (<Task>task).wref
            take_reference(f.items[f.n])
            f.n += 1
        elif Py_REFCNT(task) > 0:       # else it is being freed
            f.items[f.n] = task
            take_reference(task)
            f.n += 1
        n = gl_tasks_next(tasks, n)
    gl_tasks_unlock(tasks)
    return r


cdef list strong(found *f, int failed):
    """The tasks that were found and live."""
    cdef list tasks = []
    cdef PyObject *task
    cdef size_t i
    try:
        if failed:
            raise MemoryError()
        for i in range(f.n):
            task = gl_weakref_target(f.items[i]) if GL_FREE_THREADED else f.items[i]
            if task != NULL:
                tasks.append(<object>task)
                if GL_FREE_THREADED:
                    Py_DECREF(<object>task)
    finally:
        for i in range(f.n):
            Py_DECREF(<object>f.items[i])
        free(f.items)
    return tasks


def unfinished():
    """All tasks of ours, of all loops, that are not done. From any thread; of a goroutine that another thread runs, the
    root task only if somebody there has asked for it."""
    cdef found f = found(NULL, 0, 0)
    cdef gl_shard *shards = shards_of_tasks()
    cdef gl_node *n
    cdef int i, r = 0
    here = get_running_loop()
    if isinstance(here, G):
        (<G>here).show_root()
    for i in range(GL_SHARDS):
        gl_tasks_lock(&shards[i].list)
        n = gl_tasks_next(&shards[i].list, NULL)
        while n != NULL and r == 0:
            r = gather_list(&gl_own_tasks_of(n).list, &f)
            n = gl_tasks_next(&shards[i].list, n)
        gl_tasks_unlock(&shards[i].list)
    return strong(&f, r)


def unfinished_of(G loop):
    """The same of one loop."""
    cdef found f = found(NULL, 0, 0)
    cdef gl_own_tasks *tasks = load_tasks(&loop.tasks)
    cdef int r = gather_list(&tasks.list, &f) if tasks != NULL else 0
    return strong(&f, r)


def running_of(G loop):
    """The task of ours whose step runs in a loop, as far as that can be said of another thread's; the loop itself stands
    for the root coroutine of a goroutine that has no task; None: neither. From any thread."""
    cdef PyObject *current = load_object(&loop.current)
    if current == <PyObject *>loop:
        return loop
    if current != NULL:
        for task in unfinished_of(loop):
            if <PyObject *>task == current:
                return task
    return None


cdef Task probe = Task.__new__(Task)
cdef Py_ssize_t task_node = <char *>&probe.node - <char *><PyObject *>probe      # where the node is in a task
probe = None
