from cpython.object cimport PyObject

cdef extern from "<stdbool.h>":
    ctypedef bint flag "_Bool"      # a bint of one byte, for fields of objects that are made by the million

cdef extern from "world.h" nogil:
    ctypedef struct gl_spinlock:
        pass
    ctypedef struct gl_timer:
        double when
        void *item
    ctypedef struct gl_timers:
        gl_timer *a
    ctypedef struct gl_timers_head:
        void *place
    gl_timers_head *gl_timers_head_of(gl_timers *)
    size_t gl_timers_len(gl_timers *)
    ctypedef struct gl_world:
        unsigned long owner
        gl_spinlock lock
        unsigned char debug, timers_due
        gl_timers timers
    bint gl_world_mine(gl_world *)
    unsigned long gl_thread_ident()
    bint GL_FREE_THREADED
    double gl_monotonic()
    unsigned long long gl_ticks()
    unsigned long long GL_TICKS_LITTLE
    void gl_lock(gl_spinlock *)
    void gl_unlock(gl_spinlock *)
    int gl_timers_push(gl_timers *, double, void *, Py_ssize_t *)
    void *gl_timers_remove(gl_timers *, size_t)
    void gl_timers_free(gl_timers *)
    unsigned long gl_load_relaxed(unsigned long *)
    int gl_fetch_or_acq_rel(int *, int)
    int gl_fetch_and_acq_rel(int *, int)
    int load_flags "gl_load_acquire"(int *)

cdef enum:
    CANCELLED = 1       # set by cancel() from any thread; the runner skips the callback
    THREADSAFE = 2      # made by call_soon_threadsafe()
    RUNNING = 4         # set by the runner on a THREADSAFE handle while the callback runs
    WHOLE = 32          # a timer whose deadline was given as an int, and is given back as one
    EVENT = 16          # no callback: a watch with events stands in its place, without args and context
    LOCKED = 8          # free-threaded builds: somebody reads or takes callback, args, context

cdef class Handle:
    cdef PyObject *callback         # NULL once the callback was taken to be run, or cancelled
    cdef PyObject *args             # a tuple
    cdef PyObject *context
    cdef PyObject *next             # link of the inbox, owned by whoever holds the list; while RUNNING: the runner's
                                    # thread identity
    cdef gl_world *w                # borrowed; set while queued
    cdef int flags
    cdef PyObject *source_traceback # of debug mode; NULL or a reference, as the next
    cdef PyObject *cancelled_repr
    cdef object __weakref__
    cdef bint take(self, PyObject **callback, PyObject **args, PyObject **context) noexcept
    cdef object peek(self, int which)
    cdef int put_back(self, PyObject *callback, PyObject *args, PyObject *context) except -1
    cdef int drop(self) except -1
    cdef int do_cancel(self) except -1
    cdef int wait_while_running(self) except -1
    cdef int unqueue(self) except -1
    cdef int unqueue_idle(self, gl_world *w) except -1

cdef class TimerHandle(Handle):
    cdef double when_
    cdef Py_ssize_t pos             # index in the heap, -1 outside
    cdef object deadline(self)

cdef bint cancel_waits()
cdef Handle make_handle(object callback, tuple args, object context)
cdef TimerHandle make_timer(double when, object callback, tuple args, object context)
