from gmploop.core.batch cimport SendBatch
from gmploop.core.handle cimport gl_spinlock
from gmploop.core.poller cimport Poller, Watch, uint32_t, int64_t

cdef extern from "epoll.h" nogil:
    ctypedef union epoll_data_t:
        unsigned long long u64
    struct epoll_event:
        uint32_t events
        epoll_data_t data

cdef enum:
    MAX_EVENTS = 256        # a kernel copy of 3 KB a call; more ready fds are told by the next poll, none is starved

cdef enum:
    MAX_ORPHANS = 64        # events of registrations that cannot be undone, before the epoll is made anew; guessed

cdef class EpollPoller(Poller):
    cdef int epfd
    cdef SendBatch batch        # None without write_batching
    cdef int orphans            # events since the last fresh start that no watch wanted
    cdef int wakefd             # written by the owner under wake_lock, used by any thread under it
    cdef gl_spinlock wake_lock
    cdef epoll_event events[MAX_EVENTS]
    cdef int open(self) except -1
    cdef int close_fds(self) except -1
    cdef int control(self, Watch w, int op, uint32_t mask) except -1
    cdef int lose(self, int error) except -1
    cdef int forget(self, Watch w) except -1
    cdef int tell(self, int n) except -1
