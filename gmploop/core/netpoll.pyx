# cython: language_level=3, freethreading_compatible=True, binding=True
"""SharedPoller: the one poller of all worlds that move. Contract: poller.pyx; the kernel's side: netpoll.h.

Who waits: one M, as the scheduler chooses (`polling`). Events are not dispatched there: each goes to the inbox of its
watch's world (`posted` collects what has not been taken yet, so a watch stands there once), which wakes it. So all of a
watch but `posted` belongs to the M that runs its world.
What a world writes in a busy time waits in the SharedBatch of its M (batch.pyx).
The table is guarded by `lock`, and so is whether a watch is counted in `watchers`: it is while it has its place and the
kernel looks for it, however its world ends. A watch that leaves it is dropped after the lock was let go: a finaliser may run then.
"""
import sys
from cpython.exc cimport PyErr_SetFromErrno
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_GET_SIZE
from cpython.object cimport PyObject
from cpython.ref cimport Py_INCREF
from libc.stdlib cimport malloc
from gmploop.core.g cimport G
from gmploop.core.handle cimport gl_lock, gl_unlock
from gmploop.core.poller cimport EV_LEVEL, EV_KERNEL, RBUF
from gmploop.core.batch cimport SharedBatch, GL_ALL, GL_PENDING, gl_out_take
from gmploop.core.sched cimport sched, current_m, gl_m, gl_runq_len
from gmploop.core import batch

cdef extern from "epoll.h":
    ctypedef union epoll_data_t:
        unsigned long long u64
    struct epoll_event:
        uint32_t events
        epoll_data_t data

cdef extern from "netpoll.h" nogil:
    ctypedef struct gl_net:
        int epfd
    enum: GL_NET_EVENTS
    int gl_net_open(gl_net *)
    void gl_net_forget(gl_net *)
    const char *GL_NET_NAME
    int gl_net_control(gl_net *, int, int, uint32_t, uint32_t, bint)
    int gl_net_wait(gl_net *, epoll_event *, int64_t)
    void gl_net_wake(gl_net *)

cdef extern from *:
    """
    #include "scheduler.h"
    static gl_net gl_the_net = { -1, -1 };
    static __thread char *gl_my_buffer;
    static int gl_count(int *p, int n) { return __atomic_add_fetch(p, n, __ATOMIC_SEQ_CST); }
    static void (*gl_net_broken)(int error);
    static int gl_net_is_broken;
    /* Broken, it is told once, its descriptors are let go (somebody else's by now, perhaps), and only time passes. */
    static int gl_net_poll(gl_m *mp, int64_t delay_ns) {
        int n;
        if (!mp->events && !(mp->events = malloc(GL_NET_EVENTS * sizeof(struct epoll_event)))) return 0;
        if (!gl_load_relaxed(&gl_net_is_broken)) {
            n = gl_net_wait(&gl_the_net, (struct epoll_event *)mp->events, delay_ns);
            if (n >= 0 || errno == EINTR) return n;
            n = errno;
            if (gl_cas_int(&gl_net_is_broken, 0, 1)) {
                gl_store_relaxed(&gl_the_net.epfd, -1);
                gl_store_relaxed(&gl_the_net.wakefd, -1);
                gl_net_broken(n);
            }
        }
        if (delay_ns) {
            struct timespec t = { 0, delay_ns < 0 || delay_ns > 1000000 ? 1000000 : delay_ns };
            nanosleep(&t, NULL);
        }
        return 0;
    }
    static void gl_net_break(void) { gl_net_wake(&gl_the_net); }
    """
    gl_net gl_the_net
    char *gl_my_buffer
    int gl_count(int *, int)
    int gl_net_poll(gl_m *, int64_t) noexcept nogil
    void (*gl_net_broken)(int) noexcept nogil
    int gl_net_is_broken
    void gl_net_break() noexcept nogil

cdef extern from "Python.h":
    Py_ssize_t PyList_GET_SIZE(PyObject *)
    PyObject *PyList_GET_ITEM(PyObject *, Py_ssize_t)

cdef extern from "sockets.h" nogil:
    Py_ssize_t send(int, const void *, size_t, int)
    int MSG_NOSIGNAL, MSG_DONTWAIT

cdef extern from "atomics.h" nogil:
    uint32_t gl_fetch_or_acq_rel(uint32_t *, uint32_t)

cdef SharedPoller the_poller = None

# Injected by gmploop.world: called with the errno when the poller breaks; whether to batch writes.
cdef object tell_broken = None, want_batches = None


def configure(on_broken, write_batching):
    global tell_broken, want_batches
    tell_broken, want_batches = on_broken, write_batching


cdef void report_broken(int error) noexcept nogil:
    with gil:
        try:
            tell_broken(error)
        except BaseException:
            sys.excepthook(*sys.exc_info())


gl_net_broken = report_broken


cdef SharedPoller shared_poller():
    return the_poller


def poller_name():
    return GL_NET_NAME.decode()


def open_shared():
    """Open the poller and give it to the scheduler. OSError says why it cannot be had."""
    global the_poller
    if the_poller is None or the_poller.forked():
        the_poller = SharedPoller(None)
        sched().poll, sched().poll_break = gl_net_poll, gl_net_break


cdef class SharedPoller(Poller):
    def __cinit__(self, g):
        self.name = poller_name()
        global gl_net_is_broken
        if self.fork_gen:                       # the parent's objects are the parent's
            gl_net_forget(&gl_the_net)
            gl_net_is_broken = 0
        if gl_the_net.epfd < 0 and gl_net_open(&gl_the_net) < 0:
            PyErr_SetFromErrno(OSError)
        self.shared = True
        self.batches = want_batches() and batch.rings_to_be_had()

    cdef char *read_buffer(self) except NULL:
        """Each thread has its own."""
        global gl_my_buffer
        if gl_my_buffer == NULL:
            gl_my_buffer = <char *>malloc(RBUF)
            if gl_my_buffer == NULL:
                raise MemoryError()
        return gl_my_buffer

    cdef Watch lookup(self, int fd):
        cdef Watch w = None
        gl_lock(&self.lock)
        if 0 <= fd < len(self.table):
            w = <Watch>self.table[fd]
        gl_unlock(&self.lock)
        return w

    cdef Watch swap(self, int fd, Watch w):
        """Put w in the fd's place; returns who was there, for the caller to drop."""
        cdef Watch old
        gl_lock(&self.lock)
        try:
            while len(self.table) <= fd:
                self.table.append(None)
        except MemoryError:
            gl_unlock(&self.lock)
            raise
        old = <Watch>self.table[fd]
        self.table[fd] = w
        if old is not None and not self.forked():
            self.count(old, False)
        if w is not None:
            self.next_gen += 1
            w.gen = self.next_gen
        gl_unlock(&self.lock)
        return old

    cdef int count(self, Watch w, bint on) except -1:
        """Under the lock."""
        if w.counted != on:
            w.counted = on
            gl_count(&sched().watchers, 1 if on else -1)
        return 0

    cdef bint owns(self, Watch w):
        """By the M that runs its world. One that has lost its place has left."""
        if self.lookup(w.fd) is w:
            return True
        if w.poller is self and w.g is not None:
            w.g.watches -= 1
        if w.batch_at and not self.forked():
            gl_out_take(&w.shared_out)          # the number is another file's
        w.batch_at = 0
        w.poller = None
        w.mask = 0
        return False

    cdef int attach(self, Watch w) except -1:
        cdef Watch old
        w.mask = 0
        old = self.swap(w.fd, w)
        w.poller = self
        if old is not None and not self.forked():
            gl_out_take(&old.shared_out)    # the number is another file's
        w.g.watches += 1
        return 0

    cdef int detach(self, Watch w) except -1:
        if w.poller is not self:
            return 0
        if w.batch_at and self.take_back(w) == GL_PENDING and self.lookup(w.fd) is w:    # without a batch it had left
            send(w.fd, PyBytes_AS_STRING(w.out), PyBytes_GET_SIZE(w.out), MSG_NOSIGNAL | MSG_DONTWAIT)
        w.out = None
        if w.mask and not self.forked():
            self.watch(w, 0)
        if not self.owns(w):
            return 0
        gl_lock(&self.lock)
        if PyList_GET_ITEM(<PyObject *>self.table, w.fd) == <PyObject *>w:
            self.table[w.fd] = None         # our caller has a reference
        gl_unlock(&self.lock)
        w.poller = None
        w.mask = 0
        w.g.watches -= 1
        return 0

    cdef int watch(self, Watch w, uint32_t mask) except -1:
        cdef int op
        if mask == w.mask or not self.owns(w):
            return 0
        if self.forked():
            raise RuntimeError("this world was running when the process forked: it goes on in the parent only")
        op = 0 if not mask else 2 if w.mask else 1
        self.control(w, op, mask)
        w.mask = mask
        return 0

    cdef int rearm(self, Watch w) except -1:
        if self.owns(w) and w.mask and not self.forked():
            self.control(w, 2, w.mask)
        return 0

    cdef int control(self, Watch w, int op, uint32_t mask) except -1:
        """Tell the kernel, if the watch has its fd's place: under the lock, for the fd may have been closed behind our back
        and its number be given out again, to a world that another thread runs."""
        cdef int r = 0
        gl_lock(&self.lock)
        if w.fd < PyList_GET_SIZE(<PyObject *>self.table) and PyList_GET_ITEM(<PyObject *>self.table, w.fd) == <PyObject *>w:
            r = gl_net_control(&gl_the_net, op, w.fd, w.gen, mask & EV_KERNEL, mask & EV_LEVEL != 0)
            if r >= 0:
                self.count(w, op != 0)
        gl_unlock(&self.lock)
        if r < 0:
            PyErr_SetFromErrno(OSError)
        return 0

    cdef bint send_later(self, Watch w, bytes data) except -1:
        cdef gl_m *mp = current_m()
        if mp == NULL or mp.curg == NULL or self.forked():
            return False
        if mp.sends == NULL:
            made = SharedBatch()
            Py_INCREF(made)
            mp.sends = <void *>made
        return (<SharedBatch>mp.sends).put(w, data, gl_runq_len(&mp.p.q) if mp.p != NULL else 0)

    cdef int take_back(self, Watch w) except? -1:
        if w.batch_at == 0:
            return GL_PENDING
        w.batch_at = 0
        return GL_ALL if self.forked() else gl_out_take(&w.shared_out)

    cdef int wake(self) except -1:
        gl_net_wake(&gl_the_net)
        return 0

    cdef int close_watches_of(self, object world) except -1:
        """Let go of what a world that ends still watches."""
        cdef Watch w
        cdef int fd
        for fd in range(len(self.table)):
            w = self.lookup(fd)
            if w is not None and w.g is world:
                self.detach(w)
        return 0


cdef int dispatch(gl_m *mp, int n) except -1:
    """Tell the worlds of the n events that this M's poll has brought."""
    cdef epoll_event *events = <epoll_event *>mp.events
    cdef unsigned long long token
    cdef Watch w
    cdef G g
    cdef int i
    for i in range(n):
        token = events[i].data.u64
        if token == 0:
            continue
        w = the_poller.lookup(<int>(token & 0x7fffffff))
        if w is None or w.gen != <uint32_t>(token >> 32):
            continue
        g = w.g
        if g is not None and gl_fetch_or_acq_rel(&w.posted, events[i].events) == 0:
            g.post_event(<PyObject *>w)
    return 0
