cdef extern from "<stdint.h>":
    ctypedef unsigned long long uint64_t

cdef extern from "fileio.h":
    ctypedef struct gl_file_info:
        unsigned int mode, major, minor
        uint64_t size, mount

cdef enum:
    CACHED_MAX = 65536              # bytes copied inside the loop; above, a worker copies them (10 us on one machine)

cdef class Descriptor:
    cdef readonly int fd            # -1 once it was closed or taken to be closed
    cdef public int users           # operations that may still use it
    cdef public object name         # what was opened: for errors
    cdef object idle                # called once, when users falls to 0
    cdef readonly bint regular      # a regular file (or block device): has positions, and a short read means its end
    cdef readonly bint local        # on a filesystem whose open, stat and close wait for nobody but the disk
    cdef readonly bint is_dir
    cdef bint cached_first          # reads look into the page cache first

cdef int open_cached(const char *path, int flags, gl_file_info *info, gl_file_info *last) except -2
cdef bint fill_cached(Descriptor d, char *buf, Py_ssize_t n, long long offset, Py_ssize_t *done) noexcept
cdef object read_cached(Descriptor d, Py_ssize_t n, long long offset)
cdef object read_file_cached(bytes path, gl_file_info *last)
