# cython: language_level=3, freethreading_compatible=True, binding=True
"""Servers: from a listening socket to transports, without a socket object for each connection. One is made when somebody
asks for it. What is accepted has one owner at a time, which closes it if what comes next fails.
"""
cimport cython
import _socket
import socket
from cpython.exc cimport PyErr_SetFromErrno
from libc.errno cimport errno, ECONNABORTED
from gmploop.core.g cimport G
from gmploop.core.poller cimport Poller
from gmploop.core.stream cimport SocketTransport
from gmploop.core.transport cimport address_of, AF_INET, AF_INET6, AF_UNIX, sockaddr, sockaddr_storage, socklen_t

cdef extern from "sockets.h":
    bint gl_would_block()
    int gl_accept(int, sockaddr *, socklen_t *)
    socklen_t gl_peer(int, int, sockaddr_storage *)
    int SOCK_STREAM
    int c_close "close"(int)

cdef extern from "descr.h":
    object gl_get(object, object)

# Plain numbers, where the properties of socket.socket make enumerations of them.
cdef object socket_family = _socket.socket.family
cdef object socket_type = _socket.socket.type
cdef object socket_proto = _socket.socket.proto


def accepts(sock):
    """Whether accept_connections() can take the connections of this listening socket."""
    if type(sock) is not socket.socket or <int>gl_get(socket_type, sock) != SOCK_STREAM:
        return False
    cdef int family = gl_get(socket_family, sock)
    return family == AF_INET or family == AF_INET6 or family == AF_UNIX


def accept_connections(G loop not None, Poller poller not None, sock, factory, server, int most, context):
    """Accept what waits at a listening socket, `most` connections at most, and make a transport with a protocol of the
    factory for each. The socket object of a connection is made when somebody asks for it. OSError as accept() has it;
    an error of the factory goes to loop._accept_failed(), and the connection is closed."""
    cdef sockaddr_storage a
    cdef socklen_t size
    cdef int listener, conn, i
    cdef int family = gl_get(socket_family, sock), proto = gl_get(socket_proto, sock)
    for i in range(most):
        listener = sock.fileno()
        if listener < 0:                    # a factory closed the server
            return
        size = sizeof(a)
        conn = gl_accept(listener, <sockaddr *>&a, &size)
        if conn < 0:
            if errno == ECONNABORTED:
                continue
            if not gl_would_block():
                PyErr_SetFromErrno(OSError)
            return
        serve(loop, poller, conn, family, proto, &a, size, factory, server, context)


def peer_of_lost(int conn, sock):
    """The peer's address of a connection from the listening socket that was reset before anybody asked; or None."""
    cdef sockaddr_storage a
    cdef socklen_t size = gl_peer(conn, gl_get(socket_family, sock), &a) if accepts(sock) else 0
    return address_of(&a, size) if size else None


def serve_accepted(G loop not None, Poller poller not None, int conn, sock, factory, server, context):
    """The same for one connection that was accepted by other means from the listening socket. conn is taken over."""
    cdef sockaddr_storage a
    cdef socklen_t size = gl_peer(conn, gl_get(socket_family, sock), &a)
    serve(loop, poller, conn, gl_get(socket_family, sock), gl_get(socket_proto, sock), &a, size, factory, server, context)


cdef int serve(G loop, Poller poller, int conn, int family, int proto, sockaddr_storage *a, socklen_t size, factory, server,
               context) except -1:
    cdef SocketTransport t = None
    own = protocol = None
    try:
        if context is None:
            protocol = factory()
        else:
            own = context.copy()
            protocol = own.run(factory)
        t = SocketTransport.__new__(SocketTransport)
        t.accepted(loop, poller, conn, family, proto, a, size, protocol, server, own)
    except BaseException as exc:
        if t is None or not t.born:
            c_close(conn)
        if isinstance(exc, (SystemExit, KeyboardInterrupt)):
            raise
        loop._accept_failed(exc, protocol, t if t is not None and t.born else None)
    return 0


@cython.final
cdef class Accepted:
    """An accepted connection without a transport: one is made of it in the world that shall have it. Dropped, it closes."""
    cdef int fd, family, proto
    cdef sockaddr_storage a
    cdef socklen_t size

    def __cinit__(self):
        self.fd = -1

    def __dealloc__(self):
        self.close()

    def close(self):
        fd, self.fd = self.fd, -1
        if fd >= 0:
            c_close(fd)

    def adopt(self, G loop not None, Poller poller not None, protocol, server, context):
        """Make the transport. If that fails the connection is closed."""
        cdef SocketTransport t = SocketTransport.__new__(SocketTransport)
        try:
            t.accepted(loop, poller, self.fd, self.family, self.proto, &self.a, self.size, protocol, server, context)
        finally:
            if t.born:
                self.fd = -1
            self.close()


def accept_one(sock):
    """The next connection that waits at a listening socket which accepts() approves of; None if none does."""
    cdef Accepted conn = Accepted.__new__(Accepted)
    conn.family, conn.proto = gl_get(socket_family, sock), gl_get(socket_proto, sock)
    while sock.fileno() >= 0:
        conn.size = sizeof(conn.a)
        conn.fd = gl_accept(sock.fileno(), <sockaddr *>&conn.a, &conn.size)
        if conn.fd >= 0:
            return conn
        if errno != ECONNABORTED:
            if not gl_would_block():
                PyErr_SetFromErrno(OSError)
            return None
