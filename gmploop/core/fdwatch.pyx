# cython: language_level=3, freethreading_compatible=True, binding=True
"""Plain descriptors: add_reader/add_writer, and what the sock_*() calls (sockop.pyx) wait for.

FdWatch is one fd's registration for both.
- Reader and writer callbacks are level-triggered, as users of add_reader expect.
- The sock_*() calls leave the fd registered, edge-triggered, between calls, so that the usual call costs no epoll_ctl.
  The registration is bound to the identity of the socket object: another socket object with the same number (the first
  was closed and the number given out again) gets a registration of its own. The identity is a raw pointer that a weak
  reference resets when the socket object dies, so that it does not match a new object at the same address. Without a GIL
  the object may die in another thread, and the reset come later: there the weak reference is asked as well.
"""
cimport cython
from cpython.object cimport PyObject
from gmploop.core.g cimport call_in
from gmploop.core.handle cimport gl_load_relaxed, GL_FREE_THREADED
from gmploop.core.poller cimport EV_IN, EV_PRI, EV_OUT, EV_ERR, EV_HUP, EV_RDHUP, EV_LEVEL

cdef extern from "pythread.h":
    unsigned long PyThread_get_thread_ident()

cdef extern from "Python.h":
    object PyContext_CopyCurrent()


@cython.final
cdef class IOHandle:
    """What add_reader/add_writer set. cancel() keeps it from being called."""
    def __init__(self, callback, args, context=None):
        self.callback, self.args = callback, args
        self.context = PyContext_CopyCurrent() if context is None else context

    def cancel(self):
        self.cancelled_ = True
        self.callback = self.args = None

    def cancelled(self):
        return self.cancelled_

    @property
    def _cancelled(self):
        return self.cancelled_

    @property
    def _callback(self):
        return self.callback

    @property
    def _args(self):
        return self.args

    def __repr__(self):
        return f"<IOHandle {'cancelled' if self.cancelled_ else self.callback!r}>"


@cython.final
cdef class FdWatch(Watch):
    def __init__(self, G g not None, Poller poller not None, int fd):
        self.g, self.fd = g, fd
        self.readers, self.writers = [], []
        poller.attach(self)

    cdef bint is_ended(self):
        return False

    cdef bint is_of(self, G g, object sock) except -1:
        """Whether it is the registration that this world has for this very socket object."""
        if <PyObject *>self.g != <PyObject *>g or self.sock != <PyObject *>sock:
            return False
        if not GL_FREE_THREADED:
            return True
        ref = self.sock_ref             # forget_socket() may take it away meanwhile
        return ref is not None and ref() is sock

    cdef int update(self) except -1:
        """Make the registration fit what is waited for; leave the poller when that is nothing."""
        cdef uint32_t mask = 0
        if self.poller is None:
            return 0
        if self.reader is not None or self.writer is not None:
            mask = EV_LEVEL
            if self.reader is not None or self.readers:
                mask |= EV_IN
            if self.writer is not None or self.writers:
                mask |= EV_OUT
        elif self.sock != NULL:
            mask = EV_IN | EV_PRI | EV_RDHUP | (EV_OUT if self.writers or self.mask & (EV_OUT | EV_LEVEL) == EV_OUT else 0)
        self.poller.watch(self, mask)
        if not mask and self.poller is not None:
            self.poller.detach(self)
        return 0

    cdef int settle(self) except -1:
        """After add_/remove_ calls: drop the sock_*() state, whose edges may have been told to the other."""
        self.drained = False
        return self.update()

    cdef int on_events(self, uint32_t events) except -1:
        cdef bint readable = events & (EV_IN | EV_PRI | EV_RDHUP | EV_HUP | EV_ERR) != 0
        cdef bint writable = events & (EV_OUT | EV_HUP | EV_ERR) != 0
        cdef IOHandle r = self.reader
        cdef IOHandle w = self.writer
        if r is None and w is None and not self.readers and not self.writers and self.socket_closed():
            return self.poller.detach(self) if self.poller is not None else 0
        if events & (EV_RDHUP | EV_HUP | EV_ERR | EV_PRI):
            self.hangup = True
        if readable:
            self.drained = False
            if self.readers:
                self.tell(self.readers)
        if writable and self.writers:
            self.tell(self.writers)
        if self.mask & EV_LEVEL:
            self.update()               # whoever was told stops waiting; asked again, it waits again
        if r is not None and readable:
            self.call(r)
        if w is not None and writable:
            self.call(w)
        return 0

    cdef int tell(self, list futures) except -1:
        waiting = futures[:]
        futures.clear()
        for fut in waiting:
            if not fut.done():
                fut.set_result(None)
        return 0

    cdef int call(self, IOHandle h) except -1:
        if h.cancelled_:
            return 0
        callback, args = h.callback, h.args
        try:
            call_in(h.context, <PyObject *>callback, <PyObject *>args)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exc:
            self.g._callback_error(h, exc)
        return 0

    cdef bint socket_closed(self) except -1:
        """Whether this was the registration of a socket that has been closed: the number is another file's by now."""
        if self.sock_ref is None:
            return False
        sock = self.sock_ref()
        return sock is None or sock.fileno() != self.fd

    def forget_socket(self, ref):
        """The socket object is gone. A world that moves does the rest itself: the last reference may drop anywhere."""
        cdef G g = self.g if GL_FREE_THREADED else None
        cdef unsigned long owner = gl_load_relaxed(&g.w.owner) if g is not None else 0
        if g is not None and owner != PyThread_get_thread_ident() and (owner or g._moves):
            try:
                self.g.call_soon_threadsafe(self.forget_socket, ref)
            except RuntimeError:
                pass                        # closed: it lets go of all its watches
        elif self.sock_ref is ref:
            self.sock, self.sock_ref = NULL, None
            self.update()

    def __repr__(self):
        return f"<FdWatch fd={self.fd} reader={self.reader!r} writer={self.writer!r}>"


cdef FdWatch plain_watch(G g, Poller poller, int fd, bint make):
    """The fd's FdWatch, made if asked for. A transport that still uses the fd is refused by the caller."""
    cdef Watch w = poller.lookup(fd)
    if isinstance(w, FdWatch) and <PyObject *>w.g == <PyObject *>g and not (make and (<FdWatch>w).socket_closed()):
        return <FdWatch>w           # another world's has lost the number, unknown to it
    return FdWatch(g, poller, fd) if make else None


def find_closed(Poller poller not None, fileobj):
    """The number that a closed file object had when add_io() was called with it, or -1."""
    for w in poller.table:
        if isinstance(w, FdWatch) and (<FdWatch>w).fileobj is fileobj:
            return (<FdWatch>w).fd
    return -1


def add_io(G g not None, Poller poller not None, int fd, bint writing, callback, tuple args, fileobj=None,
           context=None):
    """Set the callback of one direction; returns its handle. The former one is cancelled."""
    cdef FdWatch w = plain_watch(g, poller, fd, True)
    w.fileobj = fileobj
    cdef IOHandle handle = IOHandle(callback, args, context)
    cdef IOHandle old = w.writer if writing else w.reader
    if writing:
        w.writer = handle
    else:
        w.reader = handle
    try:
        w.settle()
    except BaseException:
        if writing:
            w.writer = old
        else:
            w.reader = old
        if old is None and w.sock == NULL:
            poller.detach(w)
        raise
    if old is not None:
        old.cancel()
    return handle


def remove_io(G g not None, Poller poller not None, int fd, bint writing):
    """Take the callback of one direction away; returns whether there was one."""
    cdef FdWatch w = plain_watch(g, poller, fd, False)
    cdef IOHandle old
    if w is None:
        return False
    old = w.writer if writing else w.reader
    if old is None:
        return False
    if writing:
        w.writer = None
    else:
        w.reader = None
    old.cancel()
    w.settle()
    return True
