from cpython.object cimport PyObject
from gmploop.core.g cimport G
from gmploop.core.poller cimport Watch, Poller, uint32_t

cdef class IOHandle:
    cdef object callback, args, context
    cdef bint cancelled_
    cdef object __weakref__

cdef class FdWatch(Watch):
    cdef IOHandle reader, writer    # add_reader / add_writer; level-triggered while there is one
    cdef object fileobj             # what add_reader was called with, if not a number: known also when it is closed
    cdef PyObject *sock             # identity of the socket that sock_*() calls were made with; NULL once it is gone
    cdef object sock_ref            # weak reference that resets `sock`
    cdef list readers, writers      # futures of sock_*() calls that wait
    cdef bint drained               # the last sock_recv emptied the socket and no event has come since
    cdef bint hangup
    cdef bint stream                # of a stream socket: a short read means that there is no more
    cdef int update(self) except -1
    cdef bint is_of(self, G g, object sock) except -1
    cdef bint socket_closed(self) except -1
    cdef int settle(self) except -1
    cdef int tell(self, list futures) except -1
    cdef int call(self, IOHandle h) except -1
