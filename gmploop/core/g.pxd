from cpython.object cimport PyObject
from gmploop.core.handle cimport Handle, TimerHandle, flag, gl_world

cdef extern from "ring.h" nogil:
    ctypedef struct gl_ring:
        pass
    size_t gl_ring_len(const gl_ring *)
    int gl_ring_push(gl_ring *, size_t)
    int gl_ring_reserve(gl_ring *, size_t)
    size_t gl_ring_pop(gl_ring *)
    size_t gl_ring_at(const gl_ring *, size_t)
    void gl_ring_free(gl_ring *)

cdef extern from "gstate.h" nogil:
    enum: G_IDLE, G_RUNNABLE, G_RUNNING, G_BLOCKED, G_DEAD, G_NOTIFIED
    int gl_g_cas(int *, int, int)
    int gl_g_set(int *, int)
    void gl_g_move(int *, int, int)
    int gl_g_notify(int *)
    void gl_g_clear_notified(int *)
    int gl_load_acquire(int *)
    ctypedef struct gl_g
    ctypedef struct gl_g:
        int state
        unsigned locked
        void *pool
        gl_g *all_next
    void *gl_obj(gl_g *)

cdef extern from "tasklist.h" nogil:
    ctypedef struct gl_node:
        gl_node *next
    ctypedef struct gl_tasks:
        pass
    ctypedef struct gl_own_tasks:
        gl_tasks list
        gl_node node
        unsigned shard

cdef extern from "world.h" nogil:
    ctypedef struct gl_pool:
        int n
        PyObject **a
    int POOL

cdef class G:
    cdef gl_g s             # state word and links of the scheduler: gstate.h. First, see gl_obj()
    cdef gl_world w         # owner, lock, timer heap
    cdef gl_ring ready      # Handle pointers, Watch pointers with bit 0 set, and pointers of tasks to be stepped with
                            # bit 1 set; each a reference. With both bits: the world itself, for a step of its root
                            # coroutine; no reference. Owner only
    cdef PyObject *inbox    # newest first list of Handles linked by `next`; pushed by CAS, taken whole by the owner
    cdef gl_own_tasks *tasks        # of ours, not done; NULL before the first. By the owner, read by anybody; task.pyx
    cdef PyObject *current  # the task of ours whose step runs, borrowed; where asyncio has _current_tasks. The world
                            # itself stands for its root task while nobody has asked for that
    cdef int watches        # of a world that moves: how many it has at the shared poller
    cdef flag told          # asyncio has been told of `current`
    cdef flag begun         # of a world that moves: its root coroutine has begun. By who runs it; any thread may ask
    cdef flag custom_call_soon      # callbacks go through it and not directly into the ring
    cdef int waits, waits_ended     # operations at channels, locks and the like (waiter.pyx): begun, less those ended,
                                    # by the owner; and ended by others, atomic. Those that wait are the difference
    cdef int push_entry(self, size_t entry) except -1
    cdef Handle enqueue(self, object callback, tuple args, object context)
    cdef int push_handle(self, Handle h) except -1
    cdef int post(self, Handle h) except -1
    cdef int drain_inbox(self) except -1
    cdef int take_posts(self) noexcept
    cdef bint take_inbox(self, bint but_events) noexcept
    cdef int put_back(self, PyObject *taken) noexcept
    cdef int take_due(self, double now) except -1
    cdef int add_timer(self, TimerHandle h, double key) noexcept
    cdef int run_handle(self, Handle h) except -1
    cdef int callback_failed(self, Handle h, PyObject *cb, PyObject *args, PyObject *ctx) except -1
    cdef bint steps_asyncios_task(self) except -1
    cdef int drop_queues(self) except -1
    cdef int wake(self) except -1
    cdef object new_future(self)
    cdef bint gone(self) noexcept
    cdef int purge(self) except -1
    cdef int run_event(self, PyObject *watch) except -1
    cdef int run_turn(self, void *mp) except -1
    cdef int entered(self, void *mp) except -1
    cdef int show_root(self) except -1
    cdef int wake_root(self, bint mine, bint next) except -1
    cdef int set_timers(self, void *pp) except -1
    cdef int post_event(self, PyObject *watch) except -1

cdef int call_in(object context, PyObject *callback, PyObject *args) except -1
cdef int track_current(dict current_tasks) except -1
cdef int track_steps(int (*drop)(PyObject *) except -1) except -1
cdef int track_worlds(void (*forget)(G) noexcept) except -1
