# cython: language_level=3, freethreading_compatible=True, binding=True
"""File operations on an io_uring of the loop's own. fs.py makes files of them.

A FileOp is one operation, awaited once:
    NEW --first step--> [done at once] ENDED
                    --> FLYING --its completion--> LANDED --result taken--> ENDED
                               --(abandoned)-----> ENDED
Who owns its buffers: while it is FLYING the kernel does. Nothing but the operation's own completion ends that, and
never a cancel's: a task that is cancelled gets its CancelledError at once and leaves the operation to the ring, which
holds a reference (one that the garbage collector cannot see, so that not even a dead cycle lets go of it). So a
bytearray that was given to readinto() cannot be resized (BufferError), and its bytes may still change, until then.
What an abandoned operation brings is put away: the descriptor of an open is closed. A close is never cancelled.

A Descriptor (descriptor.pyx) counts the operations that fly on it. It is closed when none is left, so its number is
never given out again while the kernel may still look it up.

Only the thread that runs the loop touches the ring. It is plain (COOP_TASKRUN), so that another thread may run the
loop later. Completions write to an eventfd that the loop's poller watches (edge-triggered, never read): nobody ever
waits in the ring, so an idle one shows neither as CPU nor as iowait.

Submission: operations are collected until the turn's other callbacks have run, or go at once when there are none.
With more than one flying they are marked IOSQE_ASYNC: the kernel's workers then do them side by side, where it would
otherwise do them one after the other inside the call. A full submission queue is handed over and refilled; completions
beyond the completion queue stay inside the kernel, which says so by a flag, and are fetched.

Reads and opens look first whether all of it is cached (descriptor.pyx): a third of a microsecond that usually saves the
rest. So that they cannot starve others, only so many of them may end without a turn of the loop in between.

After fork() the child has a copy of everything; it unmaps and closes its copy without touching the shared queues, and
gets a ring of its own. What flew there ends with ECANCELED: it goes on in the parent alone.
"""
cimport cython
from cpython.buffer cimport PyObject_GetBuffer, PyBuffer_Release, PyBUF_SIMPLE, PyBUF_WRITABLE
from cpython.bytes cimport PyBytes_AS_STRING, _PyBytes_Resize
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF, Py_DECREF, Py_XDECREF
from libc.errno cimport errno, EAGAIN, EBUSY, EINTR, EIO, ENOMEM, ENOSYS
import collections
import os
from gmploop.core.descriptor cimport (
    Descriptor, CACHED_MAX, open_cached, fill_cached, read_cached, read_file_cached)
from gmploop.core.g cimport G, gl_ring_len
from gmploop.core.handle cimport gl_monotonic, gl_world_mine
from gmploop.core.operation cimport NEW, FLYING, LANDED, ENDED
from gmploop.core.poller cimport Poller, EV_IN, EV_START, fork_generation

cdef extern from "Python.h":
    PyObject *PyBytes_FromStringAndSize(const char *, Py_ssize_t) except NULL

cdef extern from "fileio.h":
    int gl_eventfd()
    int gl_wait_readable(int, int) nogil
    int c_close "close"(int)
    int fcntl(int, int, ...)
    int ECANCELED, O_ACCMODE, O_CLOEXEC, O_NONBLOCK, F_SETFL

cdef enum:
    CHUNK_MAX = 0x7ffff000      # Linux moves no more in one call

# Tunables: config.py says where they come from.
cdef unsigned ENTRIES = 128, CQ_ENTRIES = 1024
cdef int CREDIT = 64, CREDIT_BYTES = 16384, FILE_CREDIT = 8, DRAIN_MS = 5000


def configure(*, unsigned entries, unsigned cq_entries, int credit, int credit_bytes, int file_credit, int drain_ms):
    """Sizes of the rings' queues; how many cached operations may end without a turn of the loop in between, how many
    bytes cost one more and what a whole small file costs; how long close() waits for what flies."""
    global ENTRIES, CQ_ENTRIES, CREDIT, CREDIT_BYTES, FILE_CREDIT, DRAIN_MS
    ENTRIES, CQ_ENTRIES, CREDIT, CREDIT_BYTES = entries, cq_entries, credit, credit_bytes
    FILE_CREDIT, DRAIN_MS = file_credit, drain_ms

cdef enum:
    HURRY_MS = 100          # between two requests to end, when a loop closes; guessed

cdef uint64_t NOBODY = <uint64_t>-1     # user_data of cancels

cdef object os_error(int error, object name):
    return OSError(error, os.strerror(error)) if name is None else OSError(error, os.strerror(error), name)


@cython.final
@cython.no_gc_clear
cdef class FileOp(Operation):
    def __dealloc__(self):
        self.drop()

    def when_settled(self, callback):
        """Call callback() when the kernel is done with the operation: now, or later from the loop."""
        if self.state == FLYING:
            self.settled = callback
        else:
            callback()

    cdef object step(self):
        if self.state == NEW:
            if self.ring.credit <= 0 and self.kind != GL_OP_CLOSE:
                self.ring.credit = CREDIT
                return None                 # others' turn; asked again in the next one
            self.begin()
            if self.state == FLYING:
                self.fut = self.ring.g.new_future()
                self.fut._asyncio_future_blocking = True
                return self.fut
            self.ring.credit -= 1 + <int>(self.done // CREDIT_BYTES)
        elif self.state == FLYING:
            raise RuntimeError("await wasn't used with future")
        elif self.state == ENDED:
            raise RuntimeError("cannot reuse already awaited file operation")
        return self.take()

    cdef int begin(self) except -1:
        """Do it at once if that cannot wait, else give it to the ring."""
        self.ring.check()
        if self.d is not None:
            self.fd = self.d.fd
            if self.fd < 0:
                raise ValueError("I/O operation on closed file")
        if self.kind == GL_OP_READ or self.kind == GL_OP_WRITE:
            if self.data is not None:
                PyObject_GetBuffer(self.data, &self.view, PyBUF_WRITABLE if self.kind == GL_OP_READ else PyBUF_SIMPLE)
                self.has_view = True
                self.buf, self.n = <char *>self.view.buf, self.view.len
            else:
                self.fresh = PyBytes_FromStringAndSize(NULL, self.n)
                self.buf = PyBytes_AS_STRING(<object>self.fresh)
            if self.n == 0 or self.kind == GL_OP_READ and self.read_now():
                self.state = LANDED
                return 0
        elif self.kind == GL_OP_OPENAT and self.open_now():
            self.state = LANDED
            return 0
        elif self.kind == GL_OP_CLOSE:
            self.d.fd = -1
            if self.d.local:
                self.res = -errno if c_close(self.fd) < 0 else 0
                self.state = LANDED
                return 0
            self.name, self.d = self.d.name, None       # does not count as its user
        self.ring.start(self)
        return 0

    cdef bint read_now(self):
        return fill_cached(self.d, self.buf, self.n, self.offset, &self.done)

    cdef int open_now(self) except -1:
        """1 if the file could be opened at once; else 0, for the ring to do it and to say what is wrong."""
        cdef gl_file_info info
        cdef int fd = open_cached(PyBytes_AS_STRING(self.data), self.flags, &info, &self.ring.last_local)
        if fd < 0:
            return 0
        self.res = fd
        if not self.flags & O_NONBLOCK:
            fcntl(fd, F_SETFL, self.flags & ~(O_CLOEXEC | O_ACCMODE))
        return 1

    cdef object take(self):
        """The result, or its error."""
        self.state = ENDED
        self.settled = None
        try:
            if self.res < 0:
                raise os_error(-self.res, self.name if self.d is None else self.d.name)
            return self.value()
        finally:
            self.drop()

    cdef object value(self):
        cdef PyObject *p
        if self.fresh != NULL:
            if self.done < self.n:
                _PyBytes_Resize(&self.fresh, self.done)
            p, self.fresh = self.fresh, NULL
            result = <object>p
            Py_DECREF(result)
            return result
        if self.kind == GL_OP_READ or self.kind == GL_OP_WRITE:
            return self.done
        if self.kind == GL_OP_OPENAT:
            fd, self.res = self.res, -1
            return Descriptor(fd, self.flags, True)
        return None

    cdef int abandon(self) except -1:
        """Nobody waits any more. What flies goes on until its own completion."""
        if self.state == FLYING:
            if not self.abandoned:
                self.abandoned = True
                self.fut = None
                if gl_world_mine(&self.ring.g.w):
                    self.ring.cancel(self)
        elif self.state != ENDED:
            self.state = ENDED
            self.drop()
        return 0

    cdef int drop(self) except -1:
        """Let go of buffers, and of a descriptor that nobody took. Never while FLYING."""
        cdef PyObject *p = self.fresh
        self.fresh = NULL
        Py_XDECREF(p)
        if self.has_view:
            self.has_view = False
            PyBuffer_Release(&self.view)
        if self.kind == GL_OP_OPENAT and self.res >= 0:
            c_close(self.res)
            self.res = -1
        self.fut = self.data = self.d = None
        return 0

    cdef int fill(self, gl_sqe *e) except -1:
        e.opcode = self.kind
        e.fd = self.fd
        e.user_data = self.key
        if self.kind == GL_OP_READ or self.kind == GL_OP_WRITE:
            e.addr = <uint64_t><size_t>(self.buf + self.done)
            e.len = <uint32_t>min(self.n - self.done, <Py_ssize_t>CHUNK_MAX)
            e.off = <uint64_t>-1 if self.offset < 0 else <uint64_t>(self.offset + self.done)
            if self.again or self.n > CACHED_MAX:
                e.flags = GL_SQE_ASYNC
        elif self.kind == GL_OP_OPENAT:
            e.fd = -100                     # AT_FDCWD
            e.addr = <uint64_t><size_t>PyBytes_AS_STRING(self.data)
            e.op_flags = self.flags
            e.len = <uint32_t>self.n
            e.flags = GL_SQE_ASYNC          # else a fifo would be opened without waiting for its other end
        elif self.kind == GL_OP_FSYNC:
            e.op_flags = self.flags
        elif self.kind == GL_OP_FTRUNCATE:
            e.off = <uint64_t>self.offset
        return 0


@cython.final
cdef class FileRing(Watch):
    """The ring of one loop. Raises OSError if none can be had. `entries`, `cq_entries`: sizes of its queues, 0: usual."""

    def __cinit__(self, G loop not None, *, unsigned entries=0, unsigned cq_entries=0):
        self.r.fd = self.fd = -1
        self.g = loop
        self.entries, self.cq_entries = entries or ENTRIES, cq_entries or CQ_ENTRIES
        self.slots, self.free_slots, self.waiting = [], [], collections.deque()
        self.credit = CREDIT
        self.open()

    def __dealloc__(self):
        gl_uring_free(&self.r)              # nothing flies: each operation that does holds a reference to its ring
        if self.fd >= 0:
            c_close(self.fd)

    cdef bint is_ended(self):
        return False

    cdef int asked(self):
        return self.flying

    cdef int open(self) except -1:
        cdef Poller poller = self.g.poller
        cdef int e = gl_uring_open(&self.r, self.entries, self.cq_entries)
        self.fork_gen = fork_generation()
        if e >= 0:
            for op in (GL_OP_READ, GL_OP_WRITE, GL_OP_OPENAT, GL_OP_CLOSE, GL_OP_FSYNC, GL_OP_ASYNC_CANCEL):
                if not self.r.has_op[<int>op]:
                    e = -ENOSYS
        if e >= 0:
            e = self.fd = gl_eventfd()
        if e >= 0:
            e = gl_uring_register(&self.r, GL_REGISTER_EVENTFD, &self.fd, 1)
        if e < 0:
            self.let_go()
            raise os_error(-e, None)
        try:
            poller.attach(self)
            poller.watch(self, EV_IN)
        except BaseException:
            self.let_go()
            raise
        return 0

    cdef int let_go(self) except -1:
        """Give up ring and eventfd. The kernel is done with all buffers, or is the parent's."""
        if self.poller is not None:
            self.poller.detach(self)
        gl_uring_free(&self.r)
        if self.fd >= 0:
            c_close(self.fd)
        self.fd = -1
        return 0

    cdef int check(self) except -1:
        if not gl_world_mine(&self.g.w):
            raise RuntimeError(f"the file belongs to {self.g!r}, which this thread does not run")
        if self.closed:
            raise RuntimeError("Event loop is closed")
        if self.fork_gen != fork_generation():
            self.renew()
        elif self.r.fd < 0:
            self.open()                     # there was none to be had after the fork
        return 0

    cdef int renew(self) except -1:
        """In a child of fork(): a ring of its own. The parent's is not touched."""
        cdef FileOp op
        self.let_go()
        self.waiting.clear()
        self.pumping = False                # if another thread forked
        for op in self.slots[:]:
            if op is not None:
                self.settle(op, -ECANCELED)
        self.open()
        return 0

    # -- what the caches have

    def read_now(self, Descriptor d not None, Py_ssize_t n, long long offset):
        """What read() would give, if all of it is cached and this turn's budget allows it; else None."""
        self.check()
        if self.credit <= 0:
            return None
        data = read_cached(d, n, offset)
        if data is not None:
            self.credit -= 1 + <int>(len(<bytes>data) // CREDIT_BYTES)
        return data

    def read_file_now(self, bytes path not None):
        """The whole content of a small file, if that needs no waiting and this turn's budget allows it; else None."""
        self.check()
        if self.credit <= 0:
            return None
        self.credit -= FILE_CREDIT
        return read_file_cached(path, &self.last_local)

    # -- the operations

    def open_file(self, bytes path not None, int flags, int mode, name):
        """Operation: open `path`; a Descriptor. `name` is for the error."""
        cdef FileOp op = FileOp.__new__(FileOp)
        op.ring, op.kind, op.data, op.flags, op.n, op.name = self, GL_OP_OPENAT, path, flags | O_CLOEXEC, mode, name
        op.res = -1                         # 0 would be a descriptor
        return op

    def read(self, Descriptor d not None, Py_ssize_t n, long long offset):
        """Operation: up to n bytes from offset (< 0: from the file's own position), fewer only at its end."""
        cdef FileOp op = FileOp.__new__(FileOp)
        op.ring, op.kind, op.d, op.n, op.offset = self, GL_OP_READ, d, n, offset
        return op

    def readinto(self, Descriptor d not None, buf not None, long long offset):
        """Operation: the same into buf; the number of bytes."""
        cdef FileOp op = FileOp.__new__(FileOp)
        op.ring, op.kind, op.d, op.data, op.offset = self, GL_OP_READ, d, buf, offset
        return op

    def write(self, Descriptor d not None, data not None, long long offset):
        """Operation: write all of data at offset (< 0: at the file's own position); the number of bytes."""
        cdef FileOp op = FileOp.__new__(FileOp)
        op.ring, op.kind, op.d, op.data, op.offset = self, GL_OP_WRITE, d, data, offset
        return op

    def fsync(self, Descriptor d not None, bint data_only=False):
        """Operation: have the disk keep what was written."""
        cdef FileOp op = FileOp.__new__(FileOp)
        op.ring, op.kind, op.d, op.flags = self, GL_OP_FSYNC, d, data_only
        return op

    def truncate(self, Descriptor d not None, long long size):
        """Operation: cut or lengthen the file; None where the kernel has no such operation (before Linux 6.9)."""
        cdef FileOp op
        if not self.r.has_op[<int>GL_OP_FTRUNCATE]:
            return None
        op = FileOp.__new__(FileOp)
        op.ring, op.kind, op.d, op.offset = self, GL_OP_FTRUNCATE, d, size
        return op

    def close_file(self, Descriptor d not None):
        """Operation: close the descriptor, which nothing uses any more."""
        cdef FileOp op = FileOp.__new__(FileOp)
        op.ring, op.kind, op.d = self, GL_OP_CLOSE, d
        return op

    # -- the ring

    cdef int on_events(self, uint32_t events) except -1:
        self.pump_queued = False
        if self.closed:
            return 0
        if self.fork_gen != fork_generation():
            try:
                return self.renew()
            except OSError:
                return 0                    # the next operation tries again, and says so
        return self.pump() if self.r.fd >= 0 else 0

    cdef int start(self, FileOp op) except -1:
        cdef size_t slot
        if self.free_slots:
            slot = self.free_slots.pop()
            self.slots[slot] = op
        else:
            slot = len(self.slots)
            self.slots.append(op)
        self.next_op_gen = <uint32_t>(self.next_op_gen + 1) or 1        # no key is 0
        op.key = <uint64_t>slot | <uint64_t>self.next_op_gen << 32
        op.state = FLYING
        Py_INCREF(op)                       # the kernel's: settle() drops it
        self.flying += 1
        if op.d is not None:
            op.d.users += 1
        self.enqueue(op)
        if not self.pump_queued:
            if gl_ring_len(&self.g.ready) == 0:
                self.pump()
            else:
                self.pump_queued = True
                self.push(EV_START)
        return 0

    cdef int enqueue(self, FileOp op) except -1:
        """Into the submission queue, or behind those that wait for a place in it."""
        cdef gl_sqe *e = NULL
        self.pump_wanted = True
        if not self.waiting:
            e = gl_uring_sqe(&self.r)
            if e == NULL and not self.pumping:
                self.pump()
                e = gl_uring_sqe(&self.r) if not self.waiting else NULL
        op.waits = e == NULL
        if e != NULL:
            op.fill(e)
        else:
            self.waiting.append(op)
        return 0

    cdef int pump(self) except -1:
        """Submit what is queued and take what has completed, until there is neither."""
        cdef int e
        if self.pumping:
            return 0
        self.pumping = True
        try:
            while True:
                self.pump_wanted = False
                e = self.submit()
                self.reap()
                if e:
                    e = self.submit()       # completions made room
                    self.reap()
                    if e:
                        self.refused(e)
                        return 0
                self.refill()
                if not self.pump_wanted:
                    return 0
        finally:
            self.pumping = False

    cdef int submit(self) except -1:
        """0, or the positive errno with which the kernel refused the rest."""
        cdef int e
        if gl_uring_queued(&self.r) == 0:
            return 0
        if self.flying > 1:
            gl_uring_make_async(&self.r)
        with nogil:
            e = gl_uring_submit(&self.r)
        return -e

    cdef int reap(self) except -1:
        cdef gl_cqe c
        cdef size_t slot
        cdef FileOp op
        cdef int e
        while True:
            while gl_uring_next(&self.r, &c):
                slot = c.user_data & 0xffffffff
                if slot >= <size_t>len(self.slots):
                    continue                # a cancel's own
                op = self.slots[slot]
                if op is not None and op.key == c.user_data:
                    self.land(op, c.res)
            if not gl_uring_more_inside(&self.r):
                return 0
            with nogil:
                e = gl_uring_enter(&self.r, 0, 0, GL_ENTER_GETEVENTS)
            if e < 0 and e != -EINTR:
                return 0                    # again with the next completion

    cdef int refill(self) except -1:
        """Give those that wait for a place in the submission queue what there is."""
        cdef gl_sqe *e
        cdef FileOp op
        while self.waiting:
            self.pump_wanted = True
            op = self.waiting[0]
            e = gl_uring_sqe(&self.r) if not op.abandoned else NULL
            if e == NULL and not op.abandoned:
                return 0
            self.waiting.popleft()
            op.waits = False
            if e != NULL:
                op.fill(e)
            else:
                self.settle(op, -ECANCELED)
        return 0

    cdef int refused(self, int error) except -1:
        """The kernel does not take what is queued. While others fly their completions bring the next try; else these
        end with the error."""
        cdef uint64_t key
        cdef size_t slot
        cdef FileOp op
        while True:
            key = gl_uring_take_back(&self.r)
            if key == 0:
                break
            slot = key & 0xffffffff
            if slot < <size_t>len(self.slots):
                op = self.slots[slot]
                op.waits = True
                self.waiting.appendleft(op)
        if error in (EAGAIN, EBUSY, ENOMEM) and self.flying > len(self.waiting):
            return 0
        while self.waiting:
            op = self.waiting.popleft()
            self.settle(op, -ECANCELED if op.kind == GL_OP_CLOSE else -error)
        return 0

    cdef int land(self, FileOp op, int res) except -1:
        """The completion of what was submitted last for the operation: its end, unless there is more to do."""
        if not op.abandoned:
            # A thread that ends has its operations cancelled, though the loop goes on in another.
            if res == -EINTR or res == -ECANCELED or (res == -EAGAIN and not op.again):
                op.again = res == -EAGAIN
                return self.enqueue(op)
            if res > 0 and (op.kind == GL_OP_READ or op.kind == GL_OP_WRITE):
                op.done += res
                res = 0
                if op.done < op.n and (op.kind == GL_OP_WRITE or op.d.regular and not op.read_now()):
                    return self.enqueue(op)
            elif res == 0 and op.kind == GL_OP_WRITE:
                res = -EIO                  # it would say so for ever
        return self.settle(op, res)

    cdef int settle(self, FileOp op, int res) except -1:
        """The kernel is done with the operation."""
        cdef Descriptor d = op.d
        op.res = res
        self.slots[op.key & 0xffffffff] = None
        self.free_slots.append(op.key & 0xffffffff)
        self.flying -= 1
        if op.kind == GL_OP_CLOSE and res == -ECANCELED:
            c_close(op.fd)                  # it never began
            op.res = 0
        if op.abandoned:
            op.state = ENDED
            op.drop()
        else:
            op.state = LANDED
            if op.fut is not None:
                fut, op.fut = op.fut, None
                if not fut.done():
                    fut.set_result(None)
        settled, op.settled = op.settled, None
        Py_DECREF(op)
        if d is not None:
            d.release()
        if settled is not None:
            settled()
        return 0

    cdef int cancel(self, FileOp op) except -1:
        """Ask the kernel to hurry. What it answers does not matter: the operation's own completion ends it."""
        cdef gl_sqe *e
        if self.fork_gen != fork_generation() or op.waits or op.kind == GL_OP_CLOSE:
            return 0
        e = gl_uring_sqe(&self.r)
        if e == NULL and not self.pumping:
            self.pump()
            e = gl_uring_sqe(&self.r) if op.state == FLYING else NULL
        if e != NULL:
            e.opcode, e.fd, e.addr, e.user_data = GL_OP_ASYNC_CANCEL, -1, op.key, NOBODY
            self.pump_wanted = True
            self.pump()
        return 0

    def close(self):
        """End the ring: what flies is cancelled, and waited for. From the loop's close()."""
        cdef FileOp op
        cdef int fd, flying = self.flying + 1
        cdef double deadline = 0
        if self.closed:
            return
        self.closed = True
        if self.fork_gen != fork_generation():
            self.waiting.clear()
            for op in self.slots[:]:
                if op is not None:
                    op.abandoned, op.fut = True, None
                    self.settle(op, -ECANCELED)
            self.let_go()
            return
        for op in self.slots[:]:
            if op is not None and op.state == FLYING:
                op.abandoned, op.fut = True, None
        while self.flying:
            if self.flying < flying:
                flying, deadline = self.flying, gl_monotonic() + DRAIN_MS / 1000.0
            elif gl_monotonic() > deadline:
                break
            for op in self.slots[:]:            # again, too: one that a worker has just begun can miss it
                if op is not None and op.state == FLYING:
                    self.cancel(op)
            self.pump()
            fd = self.r.fd
            if self.flying:
                with nogil:
                    gl_wait_readable(fd, HURRY_MS)
                self.pump()
        if not self.flying:
            self.let_go()
            return
        # A disk or server that does not answer. What it may still write to is never freed.
        Py_INCREF(self)
        self.poller.detach(self)
        self.g.call_exception_handler({"message": f"{self.flying} file operations did not end; their buffers are kept"})
