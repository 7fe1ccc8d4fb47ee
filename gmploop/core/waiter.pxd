from gmploop.core.g cimport G
from gmploop.core.shared cimport Shared
from gmploop.core.wait cimport Wait, loop_of, rare_of, NEW, PARKED, ENDED, BY_NOTHING, BY_TASK, BY_ROOT, BY_CALLBACK

cdef class Waiter(Wait):
    cdef bint may_arm(self, G g) noexcept
    cdef int arm(self, object callback, object context) except -1
    cdef int arm_root(self) except -1

cdef Waiter operation(Shared at, int op)
cdef int set_next(type t) except -1
