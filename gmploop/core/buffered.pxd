cdef class Buffer:
    cdef readonly object view       # a memoryview of all of it
    cdef char *mem
    cdef Py_ssize_t size
    cdef void *at                   # what the window shows
    cdef Py_ssize_t n
    cdef object show(self, void *at, Py_ssize_t n)

cdef class BufferedCore:
    cdef Buffer shared              # None until _share_buffer()
    cdef int updated(self, Py_ssize_t n) except -1
