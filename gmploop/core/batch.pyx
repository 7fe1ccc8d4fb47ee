# cython: language_level=3, freethreading_compatible=True, binding=True
"""SendBatch: the small sends of a busy turn in one system call.

With write_batching a transport gives its small data to the batch while other callbacks of the turn are still to run; a
turn that has nothing else to do sends at once. When the loop polls, each becomes one SEND (so those of one socket cannot
overtake each other) with MSG_DONTWAIT, which never waits for anything: it has been done, in part or whole or not at
all, when the enter() that took it returns. A loop that does not poll within a millisecond sends what waits before its next
callback; and if that does not come soon, because one blocks or computes, a thread sends it: see flusher.h.

Who holds the bytes: w.out, until w.batch_sent(n) or take(w).

Sends that took all of their data post no completion (CQE_SKIP_SUCCESS). So that those which did not always do,
they have MSG_WAITALL: a short send then counts as failed, and tells how much it took.

Who may do a send: sends.h. A loop with a thread of its own has a SendBatch; for worlds that move each M has a SharedBatch.

The io_uring poller gives the sends to its own ring, in the enter in which it waits. For epoll flush() does it in a ring
of its own that is never waited in: a plain one, which any thread may go on with. One send alone goes by send(2), which
is cheaper. Where no ring is to be had nothing waits from then on.
"""
cimport cython
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from libc.stdlib cimport free, calloc
from libc.string cimport memset
from libc.errno cimport EACCES, EINVAL, ENOMEM, ENOSYS, EPERM
import atexit
import logging
import os
from cpython.object cimport PyObject
from gmploop.core.g cimport G
from gmploop.core.handle cimport gl_spinlock, gl_lock, gl_unlock
from gmploop.core.poller cimport fork_generation, EV_OUT

cdef extern from "flusher.h" nogil:
    """
    static gl_flusher gl_the_flusher = { .lock = PTHREAD_MUTEX_INITIALIZER };
    static void gl_forget_flusher(void) { gl_flusher_after_fork(&gl_the_flusher); }
    static void gl_flusher_watch_forks(void) { pthread_atfork(NULL, NULL, gl_forget_flusher); }
    """
    ctypedef struct gl_flusher:
        int64_t wait_ns, calm_ns
        int idle_looks, calm_looks
    gl_flusher gl_the_flusher
    void gl_flusher_watch_forks()
    int gl_flusher_watch(gl_flusher *, gl_writes *)
    void gl_flusher_forget(gl_flusher *, gl_writes *)
    void gl_flusher_stop(gl_flusher *)
    uint32_t gl_out_put(gl_out *)
    bint gl_out_settle(gl_send *)
    void gl_out_settled(gl_send *, bint)
    int gl_writes_add(gl_writes *, int, const char *, uint32_t, gl_out *, uint32_t, int *)
    int gl_writes_change(gl_writes *, int, const char *, uint32_t)
    uint32_t gl_writes_take(gl_writes *, gl_send **, uint32_t *)
    void gl_send_now(gl_send *)
    void gl_send_fill(gl_sqe *, gl_send *, uint64_t)
    int gl_sends_do(gl_uring *, gl_send *, uint32_t)

cdef extern from "atomics.h" nogil:
    uint32_t gl_fetch_or_acq_rel(uint32_t *, uint32_t)

cdef enum:
    FEAT_CQE_SKIP = 1 << 11     # IORING_FEAT_CQE_SKIP, since Linux 5.17
    NOBODY = 0xffffffff         # low half of user_data: what nobody waits for, as in poller_uring.pyx

cdef bint told_refusal = False


cdef inline bint is_send(gl_sqe *e):
    return e.opcode == GL_OP_SEND

# Tunables: config.py says where they come from.
cdef unsigned ENTRIES = 128
cdef size_t MIN_READY = 4


def configure(*, long long wait_ns, long long calm_ns, int idle_looks, int calm_looks, unsigned entries, size_t min_ready):
    """How long data may wait (ns), and after how many looks without any the thread that sees to it lets a loop alone; how
    far apart its looks are (ns) once so many have found nothing late; how many sends one call carries at most; how many
    callbacks must be ready beside the one that writes."""
    global ENTRIES, MIN_READY
    gl_the_flusher.wait_ns, gl_the_flusher.idle_looks = wait_ns, idle_looks
    gl_the_flusher.calm_ns, gl_the_flusher.calm_looks = calm_ns, calm_looks
    ENTRIES, MIN_READY = entries, min_ready


def stop_flusher():
    """Send what waits in all loops and end the thread; the next write that waits starts it again. From any thread."""
    with nogil:
        gl_flusher_stop(&gl_the_flusher)


cdef int try_ring(gl_uring *r) noexcept:
    """Open a ring for sends; 0, or why there is none."""
    cdef int e = gl_uring_open(r, ENTRIES, 4 * ENTRIES)
    if e >= 0 and not (r.has_op[<int>GL_OP_SEND] and r.features & FEAT_CQE_SKIP):
        gl_uring_free(r)
        e = -ENOSYS
    return -e if e < 0 else 0


cdef bint open_ring(gl_uring *r) except -1:
    """Open a ring for sends; whether there is one. If not, the log says so, once."""
    global told_refusal
    cdef int error = try_ring(r)
    if error and not told_refusal:
        told_refusal = True
        logging.getLogger("gmploop").info("write_batching: each write leaves at once, since %s", refusal(error))
    return not error


def refusal(int error, str needs="Linux 5.17", str sysctl="/proc/sys/kernel/io_uring_disabled"):
    """In words: why io_uring answers with this errno. `sysctl`: where it can be switched off for the whole system."""
    text = f"io_uring is not to be had: {os.strerror(error)}"
    if error == EPERM or error == EACCES:
        try:
            with open(sysctl) as file:
                disabled = file.read().strip()
        except OSError:
            disabled = "0"              # before Linux 6.6
        return f"{text}: " + ("a filter of system calls (seccomp) or a security module forbids it" if disabled == "0" else
                              f"kernel.io_uring_disabled is {disabled}")
    if error == ENOSYS or error == EINVAL:
        return f"{text}: it takes {needs} or newer, and an io_uring that nothing forbids"
    if error == ENOMEM:
        return f"{text}: memory, or the limit of locked memory (ulimit -l), is too small"
    return text


def why_no_ring():
    """"", or in words why no batch can be sent by a ring. Then the log has no need to say it again."""
    global told_refusal
    cdef gl_uring r
    cdef int error = try_ring(&r)
    gl_uring_free(&r)
    if error:
        told_refusal = True
    return refusal(error) if error else ""


gl_flusher_watch_forks()
os.register_at_fork(before=stop_flusher)
atexit.register(stop_flusher)          # a loop in a daemon thread may be in the middle of a turn


@cython.final
cdef class SendBatch:
    def __cinit__(self):
        self.waiting, self.sending = [], []
        self.r.fd = -1
        self.fork_gen = fork_generation()

    def __dealloc__(self):
        if self.fork_gen == fork_generation():
            gl_flusher_forget(&gl_the_flusher, &self.b)
        gl_uring_free(&self.r)
        free(self.b.a)
        free(self.now)

    cdef bint put(self, Watch w, bytes data, size_t ready) except -1:
        """Have data sent later, in the place of w.out; False: it is not to wait, or w.out was sent meanwhile."""
        cdef int at, watch = 0
        if w.batch_at < 0:
            return False
        if w.batch_at:
            if gl_writes_change(&self.b, w.batch_at - 1, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data)) != GL_PENDING:
                return False
            w.out = data                    # after the change: what it replaces may be freed now
            return True
        if ready < MIN_READY and not self.b.n or self.refused or self.fork_gen != fork_generation():
            return False
        at = gl_writes_add(&self.b, w.fd, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), NULL, 0, &watch)
        if at < 0:
            raise MemoryError()
        self.waiting.append(w)
        w.out, w.batch_at = data, at + 1
        if watch and gl_flusher_watch(&gl_the_flusher, &self.b) != 0:
            self.b.watched = 0              # no thread to be had
            self.take(w)
            w.out = None
            return False
        return True

    cdef int take(self, Watch w) except? -1:
        """Take w.out back. GL_PENDING: it was not sent; else what sending it gave, as for batch_sent()."""
        cdef int at = w.batch_at - 1
        if at == -1:
            return GL_PENDING
        w.batch_at = 0
        if at < 0:                      # one of now: this is called by what a flush() has called
            at = -2 - at
            self.sending[at] = None
            if self.is_pending(at):
                self.now[at].data = NULL
            return self.now[at].sent
        self.waiting[at] = None
        return gl_writes_change(&self.b, at, NULL, 0) if self.fork_gen == fork_generation() else GL_ALL

    cdef uint32_t begin(self) except? 0:
        """Make what waits the sends of now; how many these are: none while others are. Nothing that could let other code
        run is called between taking them and knowing whose they are."""
        cdef Watch w
        cdef list fresh = []
        cdef uint32_t n, i
        if self.sending:
            return 0
        n = gl_writes_take(&self.b, &self.now, &self.room)
        self.waiting, self.sending = fresh, self.waiting
        for i in range(n):
            w = <Watch>self.sending[i]
            if w is not None:
                w.batch_at = -1 - <int>i
        return n

    cdef bint is_pending(self, uint32_t i):
        """Whether a send of now is still to be done: it was not taken away, nor sent by the flusher."""
        return self.now[i].data != NULL and self.now[i].sent == GL_PENDING

    cdef int fill(self, gl_sqe *e, uint32_t i) except -1:
        gl_send_fill(e, &self.now[i], SEND_BIT | i)
        return 0

    cdef int note(self, uint32_t low, int res) except -1:
        """A completion: of a send that did not take all."""
        cdef uint32_t i = low & ~<uint32_t>SEND_BIT
        if i < <size_t>len(self.sending):
            self.now[i].sent = res
        return 0

    cdef bint is_queued(self, gl_uring *r):
        """Whether there are sends that the kernel has not taken."""
        cdef uint32_t i
        for i in range(gl_uring_queued(r)):
            if is_send(gl_uring_queued_at(r, i)):
                return True
        return False

    cdef int take_back(self, gl_uring *r) except -1:
        """Sends that the kernel has not taken are not done: their entries do nothing when it takes them."""
        cdef uint32_t i
        cdef gl_sqe *e
        for i in range(gl_uring_queued(r)):
            e = gl_uring_queued_at(r, i)
            if is_send(e):
                self.note(<uint32_t>e.user_data, 0)
                memset(e, 0, sizeof(e[0]))              # a NOP
                e.flags, e.user_data = GL_SQE_SKIP_SUCCESS, NOBODY
        return 0

    cdef int give_up(self, uint32_t i) except -1:
        """The sends from the i-th on are not done."""
        while i < <size_t>len(self.sending):
            if self.now[i].sent == GL_PENDING:
                self.now[i].sent = 0
            i += 1
        return 0

    cdef int settle(self) except -1:
        """All sends have been done: tell the owners. Whatever that calls may take back what was not told yet; it cannot
        begin another flush."""
        cdef size_t i
        cdef Watch w
        cdef object failed = None
        if self.telling:
            return 0
        self.telling = True
        for i in range(len(self.sending)):
            w = <Watch>self.sending[i]
            if w is None:
                continue
            self.sending[i] = None
            w.batch_at = 0
            try:
                w.batch_sent(self.now[i].sent)
            except BaseException as exc:            # the others are told all the same
                failed = exc if failed is None else failed
        self.sending = []
        self.telling = False
        if failed is not None:
            raise failed
        return 0

    cdef int flush(self) except -1:
        """Send what waits, now; not while that is under way."""
        cdef uint32_t n
        if self.sending:                # the last one has raised
            self.settle()
        n = self.begin()
        if n == 1:
            gl_send_now(self.now)
        elif n:
            if self.r.fd < 0 or self.fork_gen != fork_generation():
                self.open()
            with nogil:
                gl_sends_do(&self.r, self.now, n)
        return self.settle()

    cdef int open(self) except -1:
        gl_uring_free(&self.r)
        self.refused = self.refused or not open_ring(&self.r)
        return 0

    cdef int after_fork(self) except -1:
        """In a child: what waits is the parent's, and so is the ring."""
        cdef Watch w
        for w in self.sending + self.waiting:
            if w is not None:
                w.out, w.batch_at = None, 0
        self.waiting, self.sending = [], []
        free(self.b.a)
        memset(&self.b, 0, sizeof(self.b))
        gl_uring_free(&self.r)
        self.fork_gen = fork_generation()
        return 0

    cdef int close(self) except -1:
        cdef Watch w
        if self.fork_gen == fork_generation():
            gl_flusher_forget(&gl_the_flusher, &self.b)
        for w in self.sending + self.waiting:
            if w is not None:
                w.out, w.batch_at = None, 0
        self.waiting, self.sending = [], []
        gl_uring_free(&self.r)
        return 0


# -- worlds that move

# Rings for their Ms, as many as have flushed at the same time. None is freed: a child of fork() finds those in use, too.
cdef struct lent_ring:
    gl_uring r                  # by who has taken it
    bint taken                  # under rings_lock, as the next
    lent_ring *next

cdef lent_ring *rings = NULL
cdef gl_spinlock rings_lock


cdef lent_ring *take_ring() except? NULL:
    """A ring of nobody's, or a new one; its fd is -1 if none can be had. NULL without memory."""
    cdef lent_ring *at
    global rings
    gl_lock(&rings_lock)
    at = rings
    while at != NULL and at.taken:
        at = at.next
    if at == NULL:
        at = <lent_ring *>calloc(1, sizeof(lent_ring))
        if at != NULL:
            at.r.fd = -1
            at.next, rings = rings, at
    if at != NULL:
        at.taken = True
    gl_unlock(&rings_lock)
    if at != NULL and at.r.fd < 0:
        try:
            open_ring(&at.r)
        except BaseException:           # of a logging handler
            give_ring(at)
            raise
    return at


cdef int give_ring(lent_ring *at) except -1:
    gl_lock(&rings_lock)
    at.taken = False
    gl_unlock(&rings_lock)
    return 0


def close_rings():
    """Let go of all rings: in a child of fork(), where they are the parent's."""
    cdef lent_ring *at = rings
    gl_unlock(&rings_lock)                  # a thread that is not in this process may have held it
    while at != NULL:
        gl_uring_free(&at.r)
        at.taken, at = False, at.next


os.register_at_fork(after_in_child=close_rings)


def rings_to_be_had():
    """Whether there is a ring for worlds that move; where not, nothing of theirs is to wait."""
    cdef lent_ring *at = take_ring()
    cdef bint there
    if at == NULL:
        raise MemoryError()
    there = at.r.fd >= 0
    give_ring(at)
    return there


def open_rings():
    """The descriptors of the rings that nobody uses at this moment."""
    cdef lent_ring *at
    fds = []
    gl_lock(&rings_lock)
    at = rings
    gl_unlock(&rings_lock)
    while at != NULL:                       # what is in the list stays there
        if not at.taken and at.r.fd >= 0:
            fds.append(at.r.fd)
        at = at.next
    return fds


@cython.final
cdef class SharedBatch:
    """What the worlds that an M runs have written. The M flushes before it looks for work elsewhere, every so many turns,
    when it is asked to (`due`), and when its thread ends; an M whose callback blocks or computes leaves it to the flusher.
    All methods are for its thread. Rings are plain ones: any M may go on with one, and nothing in it waits for the M that
    used it last."""

    def __cinit__(self):
        self.waiting, self.sending = [], []
        self.fork_gen = fork_generation()

    def __dealloc__(self):
        if self.fork_gen == fork_generation():
            gl_flusher_forget(&gl_the_flusher, &self.b)
        free(self.b.a)
        free(self.now)

    cdef bint put(self, Watch w, bytes data, size_t ready) except -1:
        """Have data sent later, in the place of w.out, which no batch has; False: it is not to wait."""
        cdef int at, watch = 0
        cdef bytes before = w.out
        if self.b.n >= ENTRIES or ready < MIN_READY and not self.b.n:
            return False
        self.waiting.append(w)
        w.out, w.batch_at = data, <int>PyBytes_GET_SIZE(data)
        at = gl_writes_add(&self.b, w.fd, PyBytes_AS_STRING(data), PyBytes_GET_SIZE(data), &w.shared_out, gl_out_put(&w.shared_out), &watch)
        if at < 0 or watch and gl_flusher_watch(&gl_the_flusher, &self.b) != 0:     # no memory, or no thread, to be had
            if at < 0:
                self.waiting.pop()
            else:
                self.b.watched = 0
            gl_out_take(&w.shared_out)
            w.out, w.batch_at = before, 0
            return False
        return True

    cdef int flush(self) except -1:
        """Send what waits, now, and tell the worlds whose data the kernel has not taken."""
        cdef uint32_t n, i
        cdef lent_ring *ring = NULL
        cdef gl_uring none
        cdef object failed = None
        if self.fork_gen != fork_generation():
            return 0                        # it is the parent's
        none.fd = -1
        if self.b.n > 1:
            ring = take_ring()
        n = gl_writes_take(&self.b, &self.now, &self.room)
        self.waiting, self.sending = self.sending, self.waiting
        with nogil:
            if gl_sends_do(&ring.r if ring != NULL else &none, self.now, n) < 0 and ring != NULL:
                gl_uring_free(&ring.r)
        if ring != NULL:
            give_ring(ring)                 # before others are told: one of them may fork
        for i in range(n):
            try:
                self.settle(i)
            except BaseException as exc:    # the others are told all the same
                failed = exc if failed is None else failed
        self.sending.clear()
        if failed is not None:
            raise failed
        return 0

    cdef int settle(self, uint32_t i) except -1:
        cdef Watch w = <Watch>self.sending[i]
        cdef gl_send *s = &self.now[i]
        cdef G g
        if not gl_out_settle(s):
            return 0
        if s.sent >= <int>s.len:
            data, w.out = w.out, None
            gl_out_settled(s, True)         # nothing that may run other code comes before this
            return 0
        g = w.g
        gl_out_settled(s, False)
        if g is not None and gl_fetch_or_acq_rel(&w.posted, EV_OUT) == 0:
            g.post_event(<PyObject *>w)
        return 0
