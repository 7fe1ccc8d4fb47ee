# cython: language_level=3, freethreading_compatible=True, binding=True
"""Acceptor: a listening socket whose poller accepts by itself. See poller_uring.pyx, which gives it what has come."""
cimport cython
from libc.errno cimport ECHILD
import os
from gmploop.core.g cimport G
from gmploop.core.poller cimport Poller, uint32_t, EV_IN

cdef extern from "Python.h":
    object PyContext_CopyCurrent()

cdef extern from "<unistd.h>":
    int c_close "close"(int)


@cython.final
cdef class Acceptor(Watch):
    """A listening socket whose connections the kernel accepts, until detach() or an error that ends it.

    serve(fd) is called for each, in a copy of the current context; it owns the descriptor then. failed(exc) is called
    once, after which the socket is no longer watched. In a child of fork() too, with ECHILD.
    """

    def __init__(self, G g not None, Poller poller not None, sock, serve, failed):
        self.g, self.fd = g, sock.fileno()
        self.sock, self.serve, self.failed = sock, serve, failed
        self.context, self.accepted = PyContext_CopyCurrent(), []
        poller.attach(self)
        poller.receive(self, True)

    def __dealloc__(self):
        self.drop()

    cdef bint is_ended(self):
        return False

    cdef int drop(self) except -1:
        """Close what was accepted and is not served."""
        while self.accepted:
            c_close(self.accepted.pop())
        return 0

    cdef int leave_to_parent(self) except -1:
        self.drop()
        self.rx_wanted, self.error = False, ECHILD
        return self.push(EV_IN)

    def stop(self):
        """Accept no more. When this returns the kernel has let go of the socket; who was not served sees the end."""
        if self.poller is not None:
            self.poller.detach(self)
        self.drop()

    cdef int on_events(self, uint32_t events) except -1:
        cdef int error
        try:
            while self.accepted:
                self.context.run(self.serve, self.accepted.pop(0))
        except BaseException:
            self.push(EV_IN)                # for those that are left, and for the error
            raise
        error, self.error = self.error, 0
        if error and self.poller is not None:
            self.poller.detach(self)
            self.context.run(self.failed, OSError(error, os.strerror(error)))
        return 0

    def __repr__(self):
        return f"<Acceptor {self.sock!r}>"


def stop_accepting(Poller poller not None, int fd):
    """Stop the Acceptor of a listener, if it has one. Before its descriptor is closed."""
    cdef Watch w = poller.lookup(fd)
    if isinstance(w, Acceptor):
        (<Acceptor>w).stop()
