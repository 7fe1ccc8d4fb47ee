# cython: language_level=3, freethreading_compatible=True, binding=True
"""Open descriptors, and what can be done with files at once because nothing has to be waited for.

Cached reads are preadv2() with RWF_NOWAIT, cached opens openat2() with RESOLVE_CACHED; both fail where the answer is
not in memory. But an open may wait for more than its path: for the other end of a fifo, a server, a lease. So a file
is looked at first (O_PATH, statx without asking a server), and opened here only if it is a regular one on a filesystem
known to be local.
"""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, _PyBytes_Resize
from cpython.object cimport PyObject
from cpython.ref cimport Py_DECREF
from libc.errno cimport errno, EINTR, ENOSYS, EOPNOTSUPP

cdef extern from "Python.h":
    PyObject *PyBytes_FromStringAndSize(const char *, Py_ssize_t) except NULL

cdef extern from "fileio.h":
    int gl_file_look(int, gl_file_info *)
    Py_ssize_t gl_read_cached(int, void *, size_t, long long)
    int gl_openat2_cached(const char *, int)
    int c_close "close"(int)
    long lseek(int, long, int)
    bint S_ISREG(unsigned int), S_ISBLK(unsigned int), S_ISDIR(unsigned int)
    int O_DIRECT, O_CREAT, O_TRUNC, O_ACCMODE, O_RDONLY, O_CLOEXEC, O_NONBLOCK, O_PATH

# Filesystems on which a cached path opens, and a file closes, without asking a server or a process.
LOCAL_TYPES = frozenset({"ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "tmpfs", "overlay", "erofs", "squashfs"})
cdef dict local_mounts = {}


def mount_is_local(mount_id, major, minor):
    """Whether a mount, as statx tells it, is of LOCAL_TYPES. False when in doubt."""
    key = mount_id, major, minor            # an id is given out again after an unmount
    known = local_mounts.get(key)
    if known is None:
        known = False
        try:
            with open("/proc/self/mountinfo", "rb", 0) as file:
                table = file.readall().decode("utf-8", "replace")
        except OSError:
            table = ""
        for line in table.splitlines():
            if line.partition(" ")[0] == str(mount_id):
                known = line.partition(" - ")[2].partition(" ")[0] in LOCAL_TYPES
        local_mounts[key] = known
    return known


@cython.final
cdef class Descriptor:
    """An open file descriptor. Closed with its last reference, if nobody did so before."""

    def __cinit__(self, int fd, int flags, bint ring):
        cdef gl_file_info info
        self.fd = fd
        if fd < 0 or gl_file_look(fd, &info) < 0:
            return
        self.regular = S_ISREG(info.mode) or S_ISBLK(info.mode)
        self.is_dir = S_ISDIR(info.mode)
        self.local = info.mount != 0 and mount_is_local(info.mount, info.major, info.minor)
        # O_DIRECT would wait for the disk all the same.
        self.cached_first = ring and S_ISREG(info.mode) and not flags & O_DIRECT

    def __dealloc__(self):
        if self.fd >= 0:
            c_close(self.fd)

    def take_fd(self):
        """The number, for whoever closes it now."""
        fd, self.fd = self.fd, -1
        return fd

    def moved(self):
        """A new object for the same descriptor, which this one loses."""
        cdef Descriptor d = Descriptor.__new__(Descriptor, -1, 0, False)
        d.regular, d.local, d.is_dir, d.cached_first = self.regular, self.local, self.is_dir, self.cached_first
        d.fd, self.fd = self.fd, -1
        return d

    def close_now(self):
        if self.fd >= 0:
            c_close(self.take_fd())

    def when_idle(self, callback):
        """Call callback() once no operation uses the descriptor: now, or later from the loop."""
        if self.users:
            self.idle = callback
        else:
            callback()

    def hold(self):
        self.users += 1

    def release(self):
        self.users -= 1
        if not self.users and self.idle is not None:
            callback, self.idle = self.idle, None
            callback()

    def size_hint(self):
        """The file's size as far as it is known here without asking a server: exact where `local`."""
        cdef gl_file_info info
        return info.size if self.fd >= 0 and gl_file_look(self.fd, &info) == 0 else 0

    def own_position(self):
        """The position that the system keeps for the descriptor."""
        return lseek(self.fd, 0, 1)


cdef bint is_local(gl_file_info *info, gl_file_info *last) except -1:
    """As mount_is_local(), which is asked only when the mount is another than that of `last`."""
    if info.mount != last.mount or info.major != last.major or info.minor != last.minor:
        if not info.mount or not mount_is_local(info.mount, info.major, info.minor):
            return False
        last[0] = info[0]
    return True


cdef int open_cached(const char *path, int flags, gl_file_info *info, gl_file_info *last) except -2:
    """Open a local regular file for reading if nothing has to be waited for. The descriptor, with O_NONBLOCK, or -1;
    what the file is in `info`. `last` is the caller's own memory of the last local file, zeros at first."""
    cdef int fd
    cdef bint safe
    if flags & (O_CREAT | O_TRUNC | O_ACCMODE) != O_RDONLY:
        return -1
    fd = gl_openat2_cached(path, O_PATH | O_CLOEXEC)
    if fd < 0:
        return -1
    try:
        safe = gl_file_look(fd, info) == 0 and S_ISREG(info.mode) and is_local(info, last)
    finally:
        c_close(fd)
    if not safe:
        return -1
    # The path may lead to a fifo by now, or the file be leased: O_NONBLOCK keeps both from waiting.
    fd = gl_openat2_cached(path, flags | O_NONBLOCK)
    if fd >= 0 and (gl_file_look(fd, info) < 0 or not S_ISREG(info.mode)):
        c_close(fd)
        return -1
    return fd


cdef bint fill_cached(Descriptor d, char *buf, Py_ssize_t n, long long offset, Py_ssize_t *done) noexcept:
    """Read on from `done` what the page cache has; whether that was all: n bytes, or the end of the file was met."""
    cdef Py_ssize_t r
    while done[0] < n:
        if not d.cached_first or n - done[0] > CACHED_MAX:
            return False
        r = gl_read_cached(d.fd, buf + done[0], n - done[0], offset + done[0])
        if r == 0:
            return True
        if r > 0:
            done[0] += r
        elif errno != EINTR:
            if errno == EOPNOTSUPP or errno == ENOSYS:
                d.cached_first = False
            return False
    return True


cdef object shrunk(PyObject *data, Py_ssize_t n, bint whole):
    """The bytes object cut to n; None (and it is gone) unless whole."""
    if not whole:
        Py_DECREF(<object>data)
        return None
    if n != len(<object>data):
        _PyBytes_Resize(&data, n)
    result = <object>data
    Py_DECREF(result)
    return result


cdef object read_cached(Descriptor d, Py_ssize_t n, long long offset):
    """Up to n bytes from the offset, if the page cache has them all; else None."""
    cdef Py_ssize_t done = 0
    cdef PyObject *data
    cdef bint whole
    if n > CACHED_MAX or not d.cached_first or d.fd < 0:
        return None
    data = PyBytes_FromStringAndSize(NULL, n)
    whole = fill_cached(d, PyBytes_AS_STRING(<object>data), n, offset, &done)
    return shrunk(data, done, whole)


cdef object read_file_cached(bytes path, gl_file_info *last):
    """The content of a small file, if its path and all of it are cached; else None. `last` as for open_cached()."""
    cdef gl_file_info info
    cdef PyObject *data
    cdef Py_ssize_t n
    cdef int fd = open_cached(PyBytes_AS_STRING(path), O_RDONLY | O_CLOEXEC, &info, last)
    if fd < 0:
        return None
    try:
        if info.size == 0 or info.size >= CACHED_MAX:       # in /proc all have 0
            return None
        data = PyBytes_FromStringAndSize(NULL, info.size + 1)       # one byte more tells that it has grown
        n = gl_read_cached(fd, PyBytes_AS_STRING(<object>data), info.size + 1, 0)
        return shrunk(data, n, n == <Py_ssize_t>info.size)
    finally:
        c_close(fd)
