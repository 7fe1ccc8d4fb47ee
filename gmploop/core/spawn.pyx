# cython: language_level=3, freethreading_compatible=True, binding=True
"""go(): how a goroutine begins; and all those that there are."""
import asyncio
import inspect
from cpython.object cimport PyObject, PyTypeObject
from cpython.ref cimport Py_INCREF
from gmploop.core.g cimport G_IDLE, G_RUNNABLE, gl_g, gl_g_cas, gl_g_notify, gl_g_set, gl_obj
from gmploop.core.goroutine cimport Goroutine, PENDING, gl_fate_begin, named
from gmploop.core.handle cimport flag, gl_lock, gl_timers_len, gl_unlock
from gmploop.core.moving cimport MovingCore
from gmploop.core.netpoll cimport shared_poller
from gmploop.core.runtime cimport Apart
from gmploop.core.sched cimport current_m, gl_all_add, gl_m, gl_ready, sched
from gmploop.core import m as m_module

cdef extern from "Python.h":
    object PyContext_CopyCurrent()

cdef extern from *:
    """
    /* A new object without a call of its type. */
    static PyObject *gl_new(PyTypeObject *type, PyObject *no_args) { return type->tp_new(type, no_args, NULL); }
    /* Instances are made and freed by the thousand, in all threads: without a finaliser, and without counting how many
     * there are, for which all threads would write to one place. The count that was asked for makes it immortal. */
    static void gl_lighten(PyTypeObject *type) {
        type->tp_finalize = NULL;
        Py_SET_REFCNT((PyObject *)type, PY_SSIZE_T_MAX / 2);
    }
    /* Whether a call makes a coroutine: 1, or 0. */
    static int gl_makes_coroutine(PyObject *fn) {
        return PyFunction_Check(fn) && ((PyCodeObject *)PyFunction_GET_CODE(fn))->co_flags & CO_COROUTINE;
    }
    """
    object gl_new(type, tuple)
    void gl_lighten(type)
    bint gl_makes_coroutine(object)

cdef extern from "world.h" nogil:
    unsigned long GL_BETWEEN_MS

cdef extern from "atomics.h" nogil:
    void gl_fence_seq_cst()
    int load_int "gl_load_acquire"(int *)
    int cas_int "gl_cas_int"(int *, int, int)
    flag load_flag "gl_load_acquire"(flag *)
    PyObject *load_inbox "gl_load_acquire"(PyObject **)
    void gl_store_relaxed(unsigned long *, unsigned long)

cdef enum:
    CO_COROUTINE = 0x80
    CO_ITERABLE_COROUTINE = 0x100
    CO_GENERATORS = 0x20 | 0x200        # CO_GENERATOR, CO_ASYNC_GENERATOR

cdef object get_running_loop = asyncio._get_running_loop

# Injected by gmploop.world.
cdef type World = None


def configure(world_type):
    """Set the class of worlds."""
    global World
    World = world_type
    gl_lighten(World)


async def call(fn, args):
    """The root coroutine of a goroutine whose function is a plain one."""
    result = fn(*args)
    return await result if inspect.isawaitable(result) else result


cdef object coroutine_of(fn, args):
    if gl_makes_coroutine(fn):
        return fn(*args)
    if asyncio.iscoroutine(fn):
        if args:
            raise TypeError("go() takes arguments for a function, not for a coroutine")
        return fn
    code = getattr(fn, "__code__", None)        # of a method, too
    if code is not None and code.co_flags & (CO_COROUTINE | CO_ITERABLE_COROUTINE):
        return fn(*args)
    if code is not None and code.co_flags & CO_GENERATORS:
        raise TypeError(f"go() takes a coroutine or a function, not the generator function {fn!r}, which nobody would run")
    if not callable(fn):
        raise TypeError(f"go() takes a coroutine or a function, not {fn!r}")
    return call(fn, args)


def go(fn_or_coro, *args, name=None):
    """Start a goroutine: fn_or_coro(*args), or a coroutine, as the root task of a world of its own.

    fn may be a coroutine function or a plain function. It gets a copy of the caller's context, and inherits debug mode,
    exception handler and task factory of the caller's loop. name: of the root task. Returns its Goroutine at once.
    Raises TypeError for something else. From any thread.
    """
    if name is not None and type(name) is not str:
        if not isinstance(name, str):
            raise TypeError(f"name takes a str, not {name!r}")
        name = str(name)
    cdef gl_m *mp = current_m()
    if load_int(&sched().procs) == 0:
        m_module.start_default()
    coro = coroutine_of(fn_or_coro, args)
    maker = <object>gl_obj(mp.curg) if mp != NULL and mp.curg != NULL else get_running_loop()
    cdef MovingCore w = <MovingCore>gl_new(World, ())
    cdef Goroutine handle = Goroutine.__new__(Goroutine)
    w.poller = shared_poller()
    w.handle = handle
    gl_fate_begin(&handle.fate, <void *>w)
    handle.maker = maker if name is None else named(maker, name)
    w.apart = maker
    w.coro, w.context = coro, PyContext_CopyCurrent()
    w.closed = False
    gl_store_relaxed(&w.w.owner, GL_BETWEEN_MS)
    if isinstance(maker, MovingCore):
        apart = (<MovingCore>maker).apart
        if apart is not None and (type(apart) is not Apart or (<Apart>apart).home is not None):
            w.apart = apart
        elif apart is not None:
            w._inherit(maker)
        if (<MovingCore>maker).w.debug:
            w._inherit(maker)
    elif maker is not None:
        w._inherit(maker)
    else:
        w._inherit_nothing()
    Py_INCREF(w)                            # the scheduler's, until death
    gl_g_set(&w.s.state, G_RUNNABLE)        # before others can find it: they leave it to us then
    gl_all_add(sched(), &w.s, mp.id & 15 if mp != NULL else 0)
    gl_ready(sched(), mp, &w.s, True)
    return handle


def home_of(Goroutine handle not None):
    """The loop from which a goroutine came; None for a plain thread's, and when it is over."""
    w = handle.get_loop()
    return (<MovingCore>w).home if w is not None else None


def show_roots():
    """Make task objects of the root coroutines of worlds that sleep. Returns how many were made. From any thread: a world
    that was made runnable is, until it is queued, in the hands of who has done that."""
    cdef MovingCore w
    made = 0
    for handle in all_goroutines():
        world = handle.get_loop()
        if world is None:
            continue
        w = <MovingCore>world
        if not load_flag(&w.shown) and gl_g_cas(&w.s.state, G_IDLE, G_RUNNABLE):
            try:
                made += not w.shown and w.coro is not None and w.status == PENDING
                w.show_root()
            finally:
                put_back(w)
    return made


cdef int put_back(MovingCore w) except -1:
    """To sleep again, without a turn. Who posted meanwhile saw RUNNABLE and left it to us; of timers nothing is seen."""
    if gl_timers_len(&w.w.timers) == 0 and cas_int(&w.s.state, G_RUNNABLE, G_IDLE):
        gl_fence_seq_cst()          # with the post, or the exchange in wake_root()
        if (load_inbox(&w.inbox) == NULL and not load_flag(&w.woken)) or not gl_g_notify(&w.s.state):
            return 0
    gl_ready(sched(), current_m(), &w.s, False)
    return 0


def count():
    """How many goroutines are not over."""
    cdef int i
    n = 0
    for i in range(16):
        gl_lock(&sched().all[i].lock)
        n += sched().all[i].n
        gl_unlock(&sched().all[i].lock)
    return n


def all_goroutines(home=None):
    """The handles of all goroutines that are not over, or of those that came from the loop `home`."""
    cdef MovingCore w
    cdef gl_g *gp
    cdef int i
    worlds = []
    for i in range(16):
        gl_lock(&sched().all[i].lock)
        gp = sched().all[i].first
        while gp != NULL:
            worlds.append(<object>gl_obj(gp))
            gp = gp.all_next
        gl_unlock(&sched().all[i].lock)
    return [handle for w in worlds if (handle := w.goroutine) is not None and (home is None or w.home is home)]
