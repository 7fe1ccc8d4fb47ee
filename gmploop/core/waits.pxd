from gmploop.core.wait cimport Wait

cdef object block(Wait w, double timeout)
cdef double as_timeout(timeout) except? -2
cdef int check_blocking(str what, str instead) except -1
