from cpython.object cimport PyObject
from libc.stdint cimport uint64_t
from gmploop.core.g cimport G, gl_ring
from gmploop.core.handle cimport flag, gl_spinlock

cdef extern from "waitq.h" nogil:
    enum: W_OUTCOME, W_PENDING, W_GRANTED, W_CLOSED, W_CANCELLED, W_EXPIRED, W_ARMED, W_TAKEN, W_INDEX_SHIFT
    enum: SYNC_DONE, SYNC_WAIT, SYNC_CLOSED, SYNC_NO_MEMORY
    enum: OP_RECV, OP_NEXT, OP_SEND, OP_PERMIT, OP_READ, OP_WRITE, OP_PASS
    ctypedef struct gl_waitq
    ctypedef struct gl_wnode:
        gl_wnode *next
        gl_wnode *link
        gl_waitq *q
        int *state
        void *owner
        void *item
        uint64_t seq
        unsigned index
        unsigned char op
        unsigned char wake
    ctypedef struct gl_waitq:
        gl_wnode *first
        size_t n
    ctypedef struct gl_chain:
        gl_wnode *first
        gl_wnode *spare
    ctypedef struct gl_chan:
        gl_waitq recvq, sendq, returned
        gl_ring buf
        size_t capacity
        int closed
    ctypedef struct gl_gate:
        gl_waitq q
        long long value
    int gl_wait_decide(int *, int, unsigned)
    bint gl_wait_arm(int *)
    bint gl_wait_take(int *)
    void gl_chain_add(gl_chain *, gl_wnode *, int)
    void gl_q_append(gl_waitq *, gl_wnode *)
    bint gl_q_remove(gl_wnode *)
    size_t gl_chan_len(gl_chan *)
    int gl_chan_recv(gl_chan *, void **, uint64_t *, gl_chain *)
    int gl_chan_send(gl_chan *, void *, gl_chain *)
    int gl_chan_restore(gl_chan *, gl_wnode *, gl_chain *)
    void gl_chan_close(gl_chan *, gl_chain *)
    int gl_gate_try(gl_gate *, int)
    void gl_gate_settle(gl_gate *, gl_chain *)
    int gl_gate_leave(gl_gate *, int, gl_chain *)

cdef enum:
    NEW = 0             # not awaited yet
    PARKED = 1          # waits in a queue, or was decided and has not resumed
    ENDED = 2

ctypedef int (*visitproc)(PyObject *, void *) noexcept

# For tasks that know of waiters: instead of a callback they arm a waiter with themselves and no context. The resumer
# makes the task's next step run in its world, from any thread, `mine` on the one that runs that world now. It returns
# whether the world still lives: if not, what was granted goes to the next. Who drops a step so made without running it
# calls w.abandon(). It may use w.send_grant(): then the stepper makes the step, within the context given there.
ctypedef int (*task_resumer)(object task, Waiter w, bint mine) except -1
ctypedef int (*task_stepper)(object task, Waiter w) except -1
cdef int set_task_hooks(task_resumer resume, task_stepper step) except -1

cdef class Shared:
    cdef gl_spinlock lock           # guards queues, buffers, values; sections of a few loads and stores (waitq.h)
    cdef PyObject *before           # neighbours in the list of all objects, under its lock
    cdef PyObject *after
    cdef readonly object name       # for repr and dumps only
    cdef object __weakref__
    # Under the lock, without a call to Python:
    cdef int attempt(self, gl_wnode *n, gl_chain *out) noexcept      # n's operation: a SYNC_ code
    cdef gl_waitq *queue(self, int op) noexcept                     # where that operation waits
    cdef int restore(self, gl_wnode *n, gl_chain *out) noexcept      # undo it; whether n stands in a queue now
    cdef void left(self, gl_chain *out) noexcept                    # somebody has left a queue undecided
    cdef int visit(self, visitproc visit, void *arg) noexcept
    # Not under the lock:
    cdef int empty(self) except -1                                  # let go of all that waits and is buffered
    cdef str describe(self)
    cdef int undo(self, gl_wnode *n) except -1

cdef class Waiter:
    cdef int state                  # waitq.h; decided by any thread, once
    cdef unsigned char stage        # NEW, PARKED, ENDED; this and all below by the waiter's own thread
    cdef flag own                   # the loop is a G
    cdef flag blocking              # _asyncio_future_blocking
    cdef flag delivered             # the callback was called
    cdef flag sent                  # a Grant stands in a queue, or has stood
    cdef flag root                  # wakes the root coroutine of its world, which has no task: there is no callback
    cdef gl_wnode node
    cdef Shared at                  # what it waits at (a select: nothing)
    cdef object loop
    cdef object callback, context   # whom to wake; published by ARMED. Of a plain thread its identity
    cdef list more                  # further callbacks, with contexts
    cdef object message             # of a cancel
    cdef void *sem                  # a plain thread waits by this
    cdef object __weakref__

    cdef int begin(self, bint park) except -1
    cdef object start(self)
    cdef object finish(self)
    cdef object closed(self)
    cdef object granted(self)
    cdef gl_wnode *winner(self) noexcept
    cdef Shared winner_at(self)
    cdef bint decide_here(self, int outcome) except -1
    cdef object expired(self)
    cdef object cancelled_error(self)
    cdef object at_once(self, int r)
    cdef int clean_up(self) except -1
    cdef int forget_callback(self) except -1
    cdef int quit_for_ever(self) except -1
    cdef Shared where(self, unsigned index)
    cdef int park(self) except -1
    cdef int unpark(self) except -1
    cdef int quit(self) except -1
    cdef bint may_arm(self, G g) noexcept
    cdef int arm(self, object callback, object context) except -1
    cdef int arm_root(self) except -1
    cdef int wake(self) except -1
    cdef int send_grant(self, bint mine, object context) except -1
    cdef int wake_foreign(self, Grant grant) except -1
    cdef int tell_more(self) except -1
    cdef int deliver(self) except -1
    cdef int abandon(self) except -1
    cdef int put_back(self, gl_chain *out) except -1
    cdef object block(self, double timeout)
    cdef int wait_sem(self, double timeout) except -1
    cdef str operation(self)

cdef class Grant:
    cdef Waiter w
    cdef flag fired

cdef Waiter operation(Shared at, int op)
cdef int flush(gl_chain *) except -1
cdef object running_loop()
cdef object raise_closed(Shared at, case)
cdef double as_timeout(timeout) except? -2
cdef int check_blocking(str what, str instead) except -1
cdef int set_slots(type t) except -1
cdef int set_next(type t) except -1
