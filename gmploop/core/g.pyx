# cython: language_level=3, freethreading_compatible=True, binding=True
"""G: an asyncio world as the scheduler sees it: state word, ready ring, inbox, timers.

Who may touch what
- The ready ring and the heap belong to the thread that runs the world (w.owner). While nobody does, they are used under
  w.lock by any thread.
- The inbox takes posts from everywhere. It is a stack of handles pushed by CAS (release) and taken whole by an exchange
  (acquire) by the owner, who turns it round: so each poster's handles stay in the order it posted them, no handle can
  be taken twice (the exchange leaves NULL), and none is lost (a push that fails its CAS tries again on the new head).
  ABA cannot hurt: a push only links to the head it read, and whether that head is the same node as before or a reused
  one at the same address, it is the current list.
- The order in which callbacks run is that in which they were handed in, by whomever, as on asyncio: the owner appends to
  the ready ring what others have posted before it appends something itself. Not events, which a world that moves gets as
  posts: a loop looks for those when its turn begins, so they come behind what was handed in before that.
- No wake-up is lost: see gstate.h. A post is inbox first, then notify; the owner going to sleep makes its CAS
  RUNNING -> IDLE only after it found ring and inbox empty, and the CAS fails if a notify came in between.
- A timer is due when the clock, read after its deadline was set, has come to it: it never runs early, not by the clock's
  resolution either, which asyncio allows itself. What wakes the thread for it may come early: it looks, and waits again.

The collector: handles are not tracked by it, so a world's traverse visits what its queued handles hold, on their
behalf. That is sound although somebody else may hold the handle too: a handle in an unreachable world never runs.
"""
cimport cython
from cpython.ref cimport Py_INCREF, Py_DECREF, PyTypeObject
from cpython.object cimport PyObject
from gmploop.core.handle cimport (
    make_handle, CANCELLED, THREADSAFE, RUNNING, EVENT, GL_FREE_THREADED, gl_world_mine, gl_thread_ident, cancel_waits,
    gl_fetch_or_acq_rel, gl_fetch_and_acq_rel, load_flags,
    gl_timers_len, gl_timers_push, gl_timers_remove, gl_timers_free)

cdef extern from "Python.h":
    ctypedef int (*visitproc)(PyObject *, void *) noexcept
    ctypedef int (*traverseproc)(PyObject *, visitproc, void *) noexcept
    ctypedef int (*inquiry)(PyObject *) noexcept
    Py_ssize_t Py_REFCNT(PyObject *)
    Py_ssize_t PyDict_GET_SIZE(PyObject *)
    ctypedef struct SlotsOfType "PyTypeObject":
        traverseproc tp_traverse
        inquiry tp_clear

cdef extern from "atomics.h" nogil:
    void *gl_exchange_acq_rel(PyObject **, PyObject *)
    PyObject *load_head "gl_load_relaxed"(PyObject **)
    PyObject *load_inbox "gl_load_acquire"(PyObject **)
    int cas_ptr "gl_cas_ptr"(PyObject **, PyObject *, PyObject *)


cdef extern from *:
    """
    /* callback(*args) within context. -1: an exception is set. */
    static int gl_call_in(PyObject *context, PyObject *callback, PyObject *args) {
        PyObject *stack[5], *res;
        Py_ssize_t i, n = PyTuple_GET_SIZE(args);
        if (PyContext_Enter(context) < 0) return -1;
        if (n <= 4) {
            stack[0] = NULL;                    /* room for a bound method's self */
            for (i = 0; i < n; i++) stack[i + 1] = PyTuple_GET_ITEM(args, i);
            res = PyObject_Vectorcall(callback, stack + 1, (size_t)n | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
        } else res = PyObject_CallObject(callback, args);
        /* Leaving cannot fail: this frame entered it, and a callback that leaves it itself gets its error here. */
        if (res != NULL) {
            if (PyContext_Exit(context) < 0) PyErr_WriteUnraisable(context);
            Py_DECREF(res);
            return 0;
        }
        PyObject *t, *v, *tb;
        PyErr_Fetch(&t, &v, &tb);
        if (PyContext_Exit(context) < 0) PyErr_Clear();
        PyErr_Restore(t, v, tb);
        return -1;
    }
    #define gl_obj_fits() (offsetof(struct __pyx_obj_7gmploop_4core_1g_G, s) == GL_OBJ_HEAD)
    static int gl_has_weakrefs(PyObject *o) {
        return *(PyObject **)((char *)o + Py_TYPE(o)->tp_weaklistoffset) != NULL;
    }
    """
    int gl_call_in(PyObject *, PyObject *, PyObject *) noexcept
    int call_in_raising "gl_call_in"(PyObject *, PyObject *, PyObject *) except -1
    bint gl_has_weakrefs(object)
    bint gl_obj_fits()


cdef extern from *:
    """
    /* An exception is set already; tell Cython so. */
    static int raise_current(void) { return -1; }
    """
    int raise_current() except -1


cdef int call_in(object context, PyObject *callback, PyObject *args) except -1:
    """callback(*args) within context. An exception is the callback's own, or that the context is entered already."""
    return call_in_raising(<PyObject *>context, callback, args)


# asyncio's table {loop: current task}, where there is one, and what task.pyx does with a world that is freed and with a
# step that will not be made.
cdef dict current_tasks = None
cdef void (*forget_world)(G) noexcept
cdef int (*drop_step)(PyObject *) except -1


cdef int track_current(dict table) except -1:
    global current_tasks
    current_tasks = table
    return 0


cdef int track_steps(int (*drop)(PyObject *) except -1) except -1:
    global drop_step
    drop_step = drop
    return 0


cdef int track_worlds(void (*forget)(G) noexcept) except -1:
    global forget_world
    forget_world = forget
    return 0


@cython.no_gc_clear
cdef class G:
    def __dealloc__(self):
        if self.tasks != NULL:
            forget_world(self)
        self.drop_queues()
        gl_ring_free(&self.ready)
        gl_timers_free(&self.w.timers)

    def __hash__(self):
        """By identity. Whoever asks asyncio for the current task looks this loop up in a table, so that is the time to
        enter it there; a step of which nobody asks this costs nothing."""
        if self.current != NULL and not self.told and (not GL_FREE_THREADED or gl_world_mine(&self.w)):
            self.told = True                     # first: the table asks for the hash again
            if self.current == <PyObject *>self:
                self.show_root()
            current_tasks[self] = <object>self.current
        return (<PyTypeObject *>object).tp_hash(self)

    cdef bint steps_asyncios_task(self) except -1:
        """While no task of ours makes a step: whether asyncio's own Task does, where there is the table. That waits for
        asyncio's futures with 2,100 instructions less than for ours. aiohttp makes such tasks, to start them eagerly."""
        return (current_tasks is not None and PyDict_GET_SIZE(<PyObject *>current_tasks) != 0
                and self in current_tasks)

    cdef int drop_queues(self) except -1:
        """Let go of everything queued, without running it. Watches that stood in the ring are not touched otherwise."""
        cdef size_t entry
        cdef PyObject *p
        cdef Handle h
        while True:
            self.drain_inbox()
            entry = gl_ring_pop(&self.ready)
            if entry == 0:
                if not gl_timers_len(&self.w.timers):
                    return 0
                entry = <size_t>gl_timers_remove(&self.w.timers, gl_timers_len(&self.w.timers) - 1)
            p = <PyObject *>(entry & ~<size_t>3)
            if entry & 3 == 0:
                h = <Handle>p
                h.drop()
                h = None
            elif entry & 3 == 2:
                drop_step(p)
            elif entry & 3 == 3:            # the world
                continue
            Py_DECREF(<object>p)

    cdef int push_entry(self, size_t entry) except -1:
        """Append to the ready ring, behind what has been posted; the caller has made the reference."""
        if load_head(&self.inbox) != NULL:
            self.take_posts()
        if gl_ring_push(&self.ready, entry) < 0:
            Py_DECREF(<object><PyObject *>(entry & ~<size_t>3))
            raise MemoryError()
        return 0

    cdef Handle enqueue(self, object callback, tuple args, object context):
        """A new handle in the ready ring. By the owner."""
        cdef Handle h
        cdef PyObject *p
        cdef gl_pool *pool = <gl_pool *>self.s.pool
        if pool != NULL and pool.n:
            pool.n -= 1
            p = pool.a[pool.n]
            h = <Handle>p
            Py_DECREF(<object>p)
            Py_INCREF(callback)
            Py_INCREF(args)
            Py_INCREF(context)
            h.callback, h.args, h.context = <PyObject *>callback, <PyObject *>args, <PyObject *>context
        else:
            h = make_handle(callback, args, context)
        self.push_handle(h)
        return h

    cdef int push_handle(self, Handle h) except -1:
        h.w = &self.w
        Py_INCREF(h)
        return self.push_entry(<size_t><PyObject *>h)

    cdef int post(self, Handle h) except -1:
        """Hand a handle over from a thread that does not run this world; wakes it if it sleeps."""
        cdef PyObject *head
        h.w = &self.w
        Py_INCREF(h)
        while True:                         # release: pairs with the exchange in drain_inbox
            head = load_head(&self.inbox)
            h.next = head
            if cas_ptr(&self.inbox, head, <PyObject *>h):
                break
        if gl_g_notify(&self.s.state):
            self.wake()
        return 0

    cdef int drain_inbox(self) except -1:
        """Append what was posted to the ready ring, oldest first. By the owner."""
        if load_head(&self.inbox) != NULL and not self.take_inbox(False):
            raise MemoryError()
        return 0

    cdef int take_posts(self) noexcept:
        """The same with all but events. Without memory it is still there the next time."""
        cdef PyObject *p = load_inbox(&self.inbox)
        while p != NULL and load_flags(&(<Handle>p).flags) & EVENT:     # only the owner takes them away
            p = (<Handle>p).next
        if p != NULL:
            self.take_inbox(True)
        return 0

    cdef bint take_inbox(self, bint but_events) noexcept:
        """False without memory."""
        cdef PyObject *newest
        cdef PyObject *p
        cdef PyObject *next
        cdef PyObject *oldest = NULL
        cdef PyObject *events = NULL
        cdef size_t n = 0
        p = newest = <PyObject *>gl_exchange_acq_rel(&self.inbox, NULL)
        while p != NULL:
            n, p = n + 1, (<Handle>p).next
        if gl_ring_reserve(&self.ready, n) < 0:
            self.put_back(newest)
            return False
        while newest != NULL:
            next = (<Handle>newest).next
            (<Handle>newest).next = oldest
            oldest, newest = newest, next
        while oldest != NULL:
            p, oldest = oldest, (<Handle>oldest).next
            if but_events and load_flags(&(<Handle>p).flags) & EVENT:
                (<Handle>p).next, events = events, p
            else:
                (<Handle>p).next = NULL
                gl_ring_push(&self.ready, <size_t>p)
        if events != NULL:
            self.put_back(events)
        return True

    cdef int put_back(self, PyObject *taken) noexcept:
        """What was taken from the inbox, newest first, goes behind what was posted meanwhile."""
        cdef PyObject *newer
        cdef PyObject *p
        while not cas_ptr(&self.inbox, NULL, taken):
            newer = p = <PyObject *>gl_exchange_acq_rel(&self.inbox, NULL)
            while p != NULL and (<Handle>p).next != NULL:
                p = (<Handle>p).next
            if p != NULL:
                (<Handle>p).next, taken = taken, newer
        return 0

    cdef int add_timer(self, TimerHandle h, double key) noexcept:
        """Into the heap. By the owner, or under w.lock. -1 without memory."""
        h.w = &self.w
        Py_INCREF(h)
        if gl_timers_push(&self.w.timers, key, <PyObject *>h, &h.pos) < 0:
            Py_DECREF(h)
            return -1
        return 0

    cdef int take_due(self, double now) except -1:
        """Move the timers whose deadline has come to the ready ring, in the order of their deadlines."""
        while gl_timers_len(&self.w.timers) and self.w.timers.a[0].when <= now:
            if gl_ring_reserve(&self.ready, 1) < 0:
                raise MemoryError()             # it is still there the next time
            gl_ring_push(&self.ready, <size_t>gl_timers_remove(&self.w.timers, 0))
        return 0

    cdef int wake(self) except -1:
        """Make the thread that waits for this world's events look again. Overridden by what has a poller."""
        return 0

    cdef object new_future(self):
        return self.create_future()

    cdef bint gone(self) noexcept:
        """Whether nothing that is posted to it will ever run."""
        return False

    cdef int purge(self) except -1:
        """Drop what was posted after it was gone."""
        return 0

    cdef int post_event(self, PyObject *watch) except -1:
        """Tell the world, from another thread, that a watch of its has events: run_event(watch) follows."""
        cdef Handle h = Handle.__new__(Handle)
        Py_INCREF(<object>watch)
        h.callback, h.flags = watch, EVENT
        return self.post(h)

    cdef int run_event(self, PyObject *watch) except -1:
        return 0

    # -- for worlds that move between Ms

    cdef int show_root(self) except -1:
        """Make a task object of the root coroutine, if it has none."""
        return 0

    cdef int wake_root(self, bint mine, bint next) except -1:
        """What the root coroutine, without a task object, waits for has come. `mine`: on the M that runs it now. `next`:
        handed over, it goes before what is in the queue. Returns 1."""
        return 1

    cdef int entered(self, void *mp) except -1:
        """An M that runs another world now runs this one."""
        return 0

    cdef int run_turn(self, void *mp) except -1:
        """One turn on this M. Returns one of moving.pxd's TURN_ values."""
        return 0

    cdef int set_timers(self, void *pp) except -1:
        """Before it goes to sleep with timers: let this P know the earliest."""
        return 0

    cdef int run_handle(self, Handle h) except -1:
        """Run a handle that was taken from the ring. A callback's error is reported, not raised, unless it must end
        the loop (SystemExit, KeyboardInterrupt)."""
        cdef PyObject *cb
        cdef PyObject *args
        cdef PyObject *ctx
        cdef gl_pool *pool
        if load_flags(&h.flags) & (CANCELLED | EVENT):
            if load_flags(&h.flags) & EVENT:
                self.run_event(h.callback)
            h.drop()
            return 0
        if load_flags(&h.flags) & THREADSAFE and cancel_waits():
            h.next = <PyObject *><size_t>gl_thread_ident()
            if gl_fetch_or_acq_rel(&h.flags, RUNNING) & CANCELLED:
                gl_fetch_and_acq_rel(&h.flags, ~RUNNING)
                h.drop()
                return 0
        if GL_FREE_THREADED:
            if not h.take(&cb, &args, &ctx):
                return 0                    # cancelled in this moment
        else:
            cb, args, ctx = h.callback, h.args, h.context
            h.callback = h.args = h.context = NULL
            h.w = NULL
            if cb == NULL:
                return 0
        if gl_call_in(ctx, cb, args) < 0:
            return self.callback_failed(h, cb, args, ctx)
        Py_DECREF(<object>cb)
        Py_DECREF(<object>args)
        Py_DECREF(<object>ctx)
        if load_flags(&h.flags):
            if load_flags(&h.flags) & RUNNING:
                gl_fetch_and_acq_rel(&h.flags, ~RUNNING)
        else:
            pool = <gl_pool *>self.s.pool
            if pool != NULL and pool.n < POOL and Py_REFCNT(<PyObject *>h) == 1:
                if type(h) is Handle and not gl_has_weakrefs(h) and h.source_traceback == NULL:
                    Py_INCREF(h)
                    pool.a[pool.n] = <PyObject *>h
                    pool.n += 1
        return 0

    cdef int callback_failed(self, Handle h, PyObject *cb, PyObject *args, PyObject *ctx) except -1:
        try:
            raise_current()
        except BaseException as exc:
            h.put_back(cb, args, ctx)       # for its repr; dropped below
            try:
                if isinstance(exc, (SystemExit, KeyboardInterrupt)):
                    raise
                self._callback_error(h, exc)
            finally:
                gl_fetch_and_acq_rel(&h.flags, ~RUNNING)
                h.drop()
        return 0


# The collector's view: Cython's own traverse and clear, then the queues.
cdef traverseproc base_traverse
cdef inquiry base_clear


cdef inline int visit_entry(size_t entry, visitproc visit, void *arg) noexcept:
    cdef PyObject *p = <PyObject *>(entry & ~<size_t>3)
    cdef int r = 0
    if entry & 3:
        return visit(p, arg) if entry & 3 != 3 else 0
    if (<Handle>p).callback != NULL:
        r = visit((<Handle>p).callback, arg)
    if r == 0 and (<Handle>p).args != NULL:
        r = visit((<Handle>p).args, arg)
    if r == 0 and (<Handle>p).context != NULL:
        r = visit((<Handle>p).context, arg)
    return r


cdef int visit_list(PyObject *p, visitproc visit, void *arg) noexcept:
    cdef int r = 0
    while p != NULL and r == 0:
        r = visit_entry(<size_t>p, visit, arg)
        p = (<Handle>p).next
    return r


cdef int g_traverse(PyObject *o, visitproc visit, void *arg) noexcept:
    cdef size_t i
    cdef int r = base_traverse(o, visit, arg) if base_traverse != NULL else 0
    for i in range(gl_ring_len(&(<G>o).ready)):
        if r:
            return r
        r = visit_entry(gl_ring_at(&(<G>o).ready, i), visit, arg)
    for i in range(gl_timers_len(&(<G>o).w.timers)):
        if r:
            return r
        r = visit_entry(<size_t>(<G>o).w.timers.a[i].item, visit, arg)
    return r or visit_list((<G>o).inbox, visit, arg)


cdef int g_clear(PyObject *o) noexcept:
    if base_clear != NULL:
        base_clear(o)
    (<G>o).drop_queues()
    return 0


base_traverse = (<SlotsOfType *>G).tp_traverse
base_clear = (<SlotsOfType *>G).tp_clear
(<SlotsOfType *>G).tp_traverse = g_traverse
(<SlotsOfType *>G).tp_clear = g_clear

if not gl_obj_fits():
    raise SystemError("gl_obj() of gstate.h does not fit the layout of G")
