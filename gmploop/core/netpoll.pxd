from gmploop.core.sched cimport gl_m
from gmploop.core.handle cimport gl_spinlock
from gmploop.core.poller cimport Poller, Watch, uint32_t, int64_t

cdef class SharedPoller(Poller):
    cdef gl_spinlock lock           # guards the table
    cdef Watch swap(self, int fd, Watch w)
    cdef int count(self, Watch w, bint on) except -1
    cdef int control(self, Watch w, int op, uint32_t mask) except -1
    cdef int close_watches_of(self, object world) except -1

cdef SharedPoller shared_poller()
cdef int dispatch(gl_m *mp, int n) except -1
