# cython: language_level=3, freethreading_compatible=True, binding=True
"""Handles: a callback with its arguments and context, queued in a world.

A Handle is not tracked by the collector: that halves its cost. In return it must never hold anything longer than it
has to: running takes callback and arguments out, cancelling drops them at once, a timer leaves the heap when it is
cancelled, and closing a loop empties its queues. While a handle is queued, the world's own traverse visits what the
handle holds (`g.pyx`), so that cycles through a queued callback are found.

Their memory is kept for the next ones (KEPT of each type; not on free-threaded builds): freeing leaves a handle as a new
one is, but for what PyObject_Init() sets.

Thread safety: all methods from any thread. On free-threaded builds whoever takes or reads callback, args and context
holds the handle's LOCKED bit for that moment, and takes all three; queues and heap are the owner's (`world.h`), so
another thread's cancel() leaves the emptied handle where it is queued, and the runner drops it.
"""
cimport cython
from cpython.ref cimport Py_INCREF, Py_DECREF, Py_XDECREF
from cpython.object cimport PyObject, Py_LT, Py_LE, Py_EQ, Py_NE, Py_GT

cdef extern from *:
    """
    static int gl_in_main_interpreter(void) { return PyInterpreterState_Get() == PyInterpreterState_Main(); }
    """
    bint gl_in_main_interpreter()

cdef extern from "atomics.h" nogil:
    """
    #define GL_LOCKED 8
    static inline void lock_handle(int *flags) {
        while (__atomic_fetch_or(flags, GL_LOCKED, __ATOMIC_ACQUIRE) & GL_LOCKED) sched_yield();
    }
    static inline void unlock_handle(int *flags) { __atomic_fetch_and(flags, ~GL_LOCKED, __ATOMIC_RELEASE); }
    """
    void lock_handle(int *)
    void unlock_handle(int *)

cdef extern from "<unistd.h>" nogil:
    int usleep(unsigned int)

if not gl_in_main_interpreter():
    raise ImportError("gmploop runs in the main interpreter only, not in sub-interpreters")

# Injected by gmploop.loop: (callback, args, debug) -> str, and the classes that stock users test against.
cdef object format_callback = None
cdef type stock_handle = None
cdef type stock_timer_handle = None
cdef type stock_threadsafe_handle = None


def configure(formatter, handle_type, timer_handle_type, threadsafe_handle_type):
    """Set what handles need of asyncio: the formatter of callbacks and the types that isinstance() should answer.

    With a type for thread-safe handles (Python 3.14 on), cancel() and cancelled() of those wait, as there, until a
    callback that another thread is running has ended.
    """
    global format_callback, stock_handle, stock_timer_handle, stock_threadsafe_handle
    format_callback, stock_handle, stock_timer_handle = formatter, handle_type, timer_handle_type
    stock_threadsafe_handle = threadsafe_handle_type


cdef bint cancel_waits():
    return stock_threadsafe_handle is not None


cdef inline gl_world *look(Handle h, unsigned long *owner, int *debug) noexcept:
    """The world in which it is queued, or NULL; who runs that, and whether in debug mode. From any thread."""
    if GL_FREE_THREADED:
        lock_handle(&h.flags)
    cdef gl_world *w = h.w
    if w != NULL:
        owner[0], debug[0] = gl_load_relaxed(&w.owner), w.debug
    if GL_FREE_THREADED:
        unlock_handle(&h.flags)
    return w


cdef enum:
    KEPT = 256

ctypedef struct gl_kept:
    int n
    PyObject *a[KEPT]

cdef gl_kept kept_handles, kept_timers

cdef extern from "Python.h":
    PyObject *PyObject_Init(PyObject *, type)
    void PyObject_ClearWeakRefs(PyObject *)
    ctypedef struct SlotsOfType "PyTypeObject":
        void (*tp_dealloc)(PyObject *) noexcept
        void (*tp_free)(void *) noexcept
    SlotsOfType *Py_TYPE(PyObject *)

cdef extern from *:
    """
    static int gl_has_weakrefs(PyObject *o) {
        return *(PyObject **)((char *)o + Py_TYPE(o)->tp_weaklistoffset) != NULL;
    }
    """
    bint gl_has_weakrefs(PyObject *)


cdef void free_handle(PyObject *p) noexcept:
    """tp_dealloc of both types: Cython's own would save an exception around it and set up the next object anew."""
    cdef gl_kept *kept = NULL
    if gl_has_weakrefs(p):
        PyObject_ClearWeakRefs(p)
    clear_ref(&(<Handle>p).callback)
    clear_ref(&(<Handle>p).args)
    clear_ref(&(<Handle>p).context)
    clear_ref(&(<Handle>p).source_traceback)
    clear_ref(&(<Handle>p).cancelled_repr)
    if not GL_FREE_THREADED:
        if Py_TYPE(p) == <SlotsOfType *>TimerHandle:
            kept = &kept_timers
        elif Py_TYPE(p) == <SlotsOfType *>Handle:
            kept = &kept_handles
        if kept != NULL and kept.n < KEPT:
            (<Handle>p).flags = 0
            (<Handle>p).w = NULL
            (<Handle>p).next = NULL
            kept.a[kept.n] = p
            kept.n += 1
            return
    Py_TYPE(p).tp_free(p)


cdef inline void clear_ref(PyObject **at) noexcept:
    cdef PyObject *p = at[0]
    at[0] = NULL
    Py_XDECREF(p)


cdef inline object new_of(gl_kept *kept, type t):
    cdef PyObject *p
    kept.n -= 1
    p = PyObject_Init(kept.a[kept.n], t)
    o = <object>p
    Py_DECREF(o)
    return o


@cython.no_gc
cdef class Handle:
    @property
    def __class__(self):
        if self.flags & THREADSAFE and stock_threadsafe_handle is not None:
            return stock_threadsafe_handle
        return stock_handle if stock_handle is not None else Handle

    cdef bint take(self, PyObject **callback, PyObject **args, PyObject **context) noexcept:
        """Move callback, args and context, with their references, to the caller. False if they were taken before.

        It lets go of its world, too: under the lock, so that cancel() in another thread finds that alive or not at all."""
        if GL_FREE_THREADED:
            lock_handle(&self.flags)
        callback[0], args[0], context[0] = self.callback, self.args, self.context
        self.callback = self.args = self.context = NULL
        self.w = NULL
        if GL_FREE_THREADED:
            unlock_handle(&self.flags)
        return callback[0] != NULL

    cdef object peek(self, int which):
        """One of callback (0), args (1), context (2); None once they are taken."""
        cdef PyObject *p
        if GL_FREE_THREADED:
            lock_handle(&self.flags)
        p = self.callback if which == 0 else self.args if which == 1 else self.context
        value = <object>p if p != NULL else None
        if GL_FREE_THREADED:
            unlock_handle(&self.flags)
        return value

    cdef int put_back(self, PyObject *callback, PyObject *args, PyObject *context) except -1:
        if GL_FREE_THREADED:
            lock_handle(&self.flags)
        self.callback, self.args, self.context = callback, args, context
        if GL_FREE_THREADED:
            unlock_handle(&self.flags)
        return 0

    cdef int drop(self) except -1:
        """Let go of callback, arguments and context."""
        cdef PyObject *cb
        cdef PyObject *args
        cdef PyObject *ctx
        if self.take(&cb, &args, &ctx):
            Py_DECREF(<object>cb)
            Py_XDECREF(args)
            Py_XDECREF(ctx)
        return 0

    cdef int do_cancel(self) except -1:
        cdef unsigned long owner = 0
        cdef int debug = False
        cdef gl_world *w = look(self, &owner, &debug)
        cdef int before = self.flags
        if GL_FREE_THREADED:
            before = gl_fetch_or_acq_rel(&self.flags, CANCELLED)
        else:                               # all who write it have the GIL, and a locked operation takes 5 ns
            self.flags |= CANCELLED
        if before & CANCELLED:
            return self.wait_while_running()
        if debug:
            text = repr(self)                       # what it was, before that is dropped
            Py_INCREF(text)
            self.cancelled_repr = <PyObject *>text
        if not GL_FREE_THREADED or w == NULL or owner == gl_thread_ident():
            self.unqueue()
        elif owner == 0:
            self.unqueue_idle(w)
        self.drop()
        return self.wait_while_running()

    cdef int wait_while_running(self) except -1:
        """Either the runner sees CANCELLED after it has set RUNNING and skips the callback, or it is seen here."""
        while load_flags(&self.flags) & RUNNING and <size_t>self.next != gl_thread_ident():
            with nogil:
                usleep(50)
        return 0

    cdef int unqueue(self) except -1:
        """Leave the heap, if this is a timer in one."""
        return 0

    cdef int unqueue_idle(self, gl_world *w) except -1:
        """The same while nobody runs the world: under the lock that whoever enters it takes first."""
        return 0

    def cancel(self):
        """Keep the callback from being run and drop what it holds. From any thread; a second call does nothing."""
        self.do_cancel()

    def cancelled(self):
        """Whether cancel() was called."""
        self.wait_while_running()
        return self.flags & CANCELLED != 0

    def get_context(self):
        """The contextvars.Context in which the callback runs."""
        return self.peek(2)

    @property
    def _cancelled(self):
        return self.flags & CANCELLED != 0

    @property
    def _callback(self):
        return self.peek(0)

    @property
    def _args(self):
        return self.peek(1)

    @property
    def _context(self):
        return self.peek(2)

    @property
    def _source_traceback(self):
        return <object>self.source_traceback if self.source_traceback != NULL else None

    @_source_traceback.setter
    def _source_traceback(self, value):
        cdef PyObject *old = self.source_traceback
        Py_INCREF(value)
        self.source_traceback = <PyObject *>value
        Py_XDECREF(old)

    def _repr_info(self):
        cdef unsigned long owner
        cdef int debug = False
        look(self, &owner, &debug)
        info = [type(self).__name__]
        if self.flags & CANCELLED:
            info.append("cancelled")
        callback, args = self.peek(0), self.peek(1)
        if callback is not None and args is not None:
            info.append(format_callback(callback, args, debug))
        trace = self._source_traceback
        if trace:
            frame = trace[-1]
            info.append(f"created at {frame[0]}:{frame[1]}")
        return info

    def __repr__(self):
        if self.cancelled_repr != NULL:
            return <object>self.cancelled_repr
        return f"<{' '.join(self._repr_info())}>"


@cython.final
@cython.no_gc
cdef class TimerHandle(Handle):
    def __cinit__(self):
        self.pos = -1

    @property
    def __class__(self):
        return stock_timer_handle if stock_timer_handle is not None else TimerHandle

    cdef int unqueue(self) except -1:
        cdef PyObject *me
        if self.pos >= 0 and self.w != NULL:
            me = <PyObject *>gl_timers_remove(&self.w.timers, self.pos)
            self.w = NULL
            Py_DECREF(<object>me)       # the heap's reference; the caller holds another
        return 0

    cdef int unqueue_idle(self, gl_world *w) except -1:
        cdef PyObject *me = NULL
        gl_lock(&w.lock)
        if gl_load_relaxed(&w.owner) == 0 and self.pos >= 0:
            me = <PyObject *>gl_timers_remove(&w.timers, self.pos)
            self.w = NULL
        gl_unlock(&w.lock)
        if me != NULL:
            Py_DECREF(<object>me)
        return 0

    def when(self):
        """The deadline, in seconds on the loop's clock."""
        return self.deadline()

    cdef object deadline(self):
        return int(self.when_) if self.flags & WHOLE else self.when_

    @property
    def _when(self):
        return self.deadline()

    @property
    def _scheduled(self):
        return self.pos >= 0

    def _repr_info(self):
        info = Handle._repr_info(self)
        info.insert(2 if self.flags & CANCELLED else 1, f"when={self.deadline()}")
        return info

    def __hash__(self):
        return hash(self.when_)

    def __richcmp__(self, other, int op):
        if type(other) is not TimerHandle:
            return NotImplemented
        cdef TimerHandle o = <TimerHandle>other
        cdef double x = self.when_, y = o.when_
        if op == Py_EQ or op == Py_NE:
            same = self is o or (x == y and self._callback == o._callback and self._args == o._args
                                 and self._cancelled == o._cancelled)
            return same if op == Py_EQ else not same
        if op == Py_LT:
            return x < y
        if op == Py_GT:
            return x > y
        return x <= y if op == Py_LE else x >= y


cdef Handle make_handle(object callback, tuple args, object context):
    cdef Handle h = <Handle>new_of(&kept_handles, Handle) if kept_handles.n else Handle.__new__(Handle)
    Py_INCREF(callback)
    Py_INCREF(args)
    Py_INCREF(context)
    h.callback, h.args, h.context = <PyObject *>callback, <PyObject *>args, <PyObject *>context
    return h


cdef TimerHandle make_timer(double when, object callback, tuple args, object context):
    cdef TimerHandle h = <TimerHandle>new_of(&kept_timers, TimerHandle) if kept_timers.n else TimerHandle.__new__(TimerHandle)
    Py_INCREF(callback)
    Py_INCREF(args)
    Py_INCREF(context)
    h.callback, h.args, h.context = <PyObject *>callback, <PyObject *>args, <PyObject *>context
    h.when_ = when
    return h


(<SlotsOfType *>Handle).tp_dealloc = free_handle
(<SlotsOfType *>TimerHandle).tp_dealloc = free_handle
