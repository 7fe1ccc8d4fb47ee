from gmploop.core.shared cimport Shared, visitproc
from gmploop.core.waitq cimport gl_chain, gl_waitq, gl_wnode

# For what else is waited at (locks.pyx).
cdef int at_once(Shared at, gl_wnode *n) except -1              # the operation of a node of no waiter
cdef Py_ssize_t count(str what, value, Py_ssize_t least) except -1
cdef void drop_queue(gl_waitq *q, gl_chain *out) noexcept       # under the lock
cdef int visit_queue(gl_waitq *q, visitproc visit, void *arg) noexcept
