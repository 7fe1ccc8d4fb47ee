from gmploop.core.poller cimport Watch

cdef class Acceptor(Watch):
    cdef object sock            # the listener
    cdef object serve           # called with a descriptor, in `context`
    cdef object failed          # called with an OSError; nothing is accepted any more
    cdef object context
    cdef list accepted          # descriptors that were not served yet
    cdef int error              # errno that the accept ended with
    cdef int drop(self) except -1
    cdef int leave_to_parent(self) except -1
