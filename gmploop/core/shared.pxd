from cpython.object cimport PyObject
from gmploop.core.handle cimport gl_spinlock
from gmploop.core.waitq cimport gl_chain, gl_waitq, gl_wnode

ctypedef int (*visitproc)(PyObject *, void *) noexcept

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

cdef int set_slots(type t) except -1
cdef object raise_closed(Shared at, case)
cdef void lock_list() noexcept                  # of all objects; then the first, or NULL, and its `after`s
cdef void unlock_list() noexcept
cdef PyObject *first_shared() noexcept
