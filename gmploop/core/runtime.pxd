from gmploop.core.g cimport G, gl_pool
from gmploop.core.handle cimport TimerHandle, flag
from gmploop.core.poller cimport Poller, Watch
from gmploop.core.sched cimport gl_watched

cdef class RestWatch:
    cdef object at_rest
    cdef long long after_ns
    cdef int looks              # calls of at_rest() since something has come
    cdef Watch alive
    cdef long long wait_ns(self, LoopCore loop)
    cdef int waited(self, LoopCore loop, long long delay_ns) except -1

cdef class Apart:                       # what few worlds have
    cdef object task_factory
    cdef object exception_handler       # of a world that moves, as the next
    cdef object home                    # the loop from which it came, or None

cdef class OwnThread(Apart):
    cdef gl_pool *pool                  # the world's
    cdef RestWatch rest                 # None but in gmploop.run()
    cdef dict task_kwargs               # {"loop": the loop}, made once; None when it is closed
    cdef unsigned long long polled_at   # gl_ticks() of the last poll
    cdef unsigned long long sent_at     # and of when, within a turn, what that had written was sent last
    cdef gl_watched watched             # as sysmon sees the loop

cdef class LoopCore(G):
    cdef readonly Poller poller
    cdef object apart                   # of a loop with a thread of its own: its OwnThread; of a world that moves: the loop
                                        # from which it came, or an Apart, which worlds share and nobody changes
    cdef readonly flag own_tasks        # create_task() and create_future() give the types of task.pyx and future.pyx
    cdef flag custom_call_at            # call_later() then goes through it, as asyncio's does
    cdef flag custom_time               # a subclass overrides time(): virtual clocks
    cdef public flag _stopping
    cdef flag closed                    # any thread may ask; its runner sets it
    cdef unsigned char skipped, skip    # turns since the last poll; how many may pass while work is ready
    cdef unsigned char empty_polls
    cdef Apart own_apart(self)
    cdef dict task_kwargs(self)
    cdef double clock(self) except? -1
    cdef int poll_io(self) except -1
    cdef int turn(self) except -1
    cdef bint sends_wait(self, size_t n) noexcept
    cdef long long wait_ns(self) except? -2
    cdef int own(self) except -1
    cdef int disown(self) except -1
    cdef int enter(self) except -1
    cdef int leave(self) except -1
    cdef int check_open(self) except -1
    cdef object timer(self, when, callback, args, context, str what)
    cdef object set_timer(self, double deadline, double now, callback, args, context, str what, int flags)
    cdef int add_timer_idle(self, TimerHandle h, double key, str what) except -1
    cdef int debug_turn(self, size_t n) except -1
    cdef int run_entry(self, size_t entry) except -1
