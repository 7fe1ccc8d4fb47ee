# cython: language_level=3, freethreading_compatible=True, binding=True
"""Transport: what socket transports of all kinds share: birth and death, flow control, what they tell of themselves.

Life. The first turn (EV_START) runs connection_made, lets reading begin and tells whoever made the transport, in
stock's order. The end is connection_lost, scheduled once (`conn_lost`); after it has run the fd has left the poller and
the socket is closed, in this order.

Threads. All methods are for the thread that runs the loop, or for any while nobody runs it. close() and abort() may
come from elsewhere and are forwarded; get_extra_info() answers anywhere; the rest raises RuntimeError.

Contexts. Reads run in a copy of the context in which the transport was made, whoever resumes reading; what is sent
later, and resume_writing, in a copy of the one in which buffering began. A context that was given (Python 3.15) is
used for all of it, as it is.
"""
cimport cython
import _socket
import socket
import sys
import warnings
from cpython.bytes cimport PyBytes_FromStringAndSize, PyBytes_AS_STRING
from libc.errno cimport EBADF
from libc.string cimport memcpy
from gmploop.core.handle cimport gl_world_mine, gl_load_relaxed
from gmploop.core.poller cimport EV_START

cdef extern from "Python.h":
    object PyContext_CopyCurrent()
    int PyContext_Enter(object) except -1
    int PyContext_Exit(object) except -1
    object PyObject_CallMethodNoArgs(object, object)

cdef extern from "address.h":
    object gl_address(const sockaddr_storage *, socklen_t)

cdef extern from "sockets.h":
    void gl_no_sigpipe(int)
    int getpeername(int, sockaddr *, socklen_t *)
    int getsockname(int, sockaddr *, socklen_t *)
    int c_close "close"(int) nogil

cdef enum:
    LOG_LOST_WRITES = 5     # asyncio.constants.LOG_THRESHOLD_FOR_CONNLOST_WRITES
    HIGH_WATER = 65536      # asyncio's default for sockets; low is a quarter

# Injected by gmploop.loop.
cdef object TransportSocket = None
cdef object logger = None
cdef bint server_takes_transport = sys.version_info >= (3, 13)
cdef int non_blocking = getattr(socket, "SOCK_NONBLOCK", 0)


def configure(transport_socket, log):
    """Set what transports need of asyncio."""
    global TransportSocket, logger
    TransportSocket, logger = transport_socket, log


cdef inline bint takes_transport(server) except -1:
    return server_takes_transport or getattr(server, "takes_transport", False)


cdef object address_of(sockaddr_storage *a, socklen_t size):
    """The address as the socket module gives it. Of Internet and Unix sockets."""
    return gl_address(a, size)


cdef bint known_family(int family):
    return family == AF_INET or family == AF_INET6 or family == AF_UNIX


cdef class Transport(Watch):
    """A socket's transport; see the subclasses."""

    cdef int setup(self, G loop, Poller poller, int fd, sock, protocol, waiter, extra, server, context) except -1:
        """Take the socket: a socket object, or None and the bare descriptor."""
        cdef sockaddr_storage a
        cdef socklen_t size = sizeof(a)
        self.made = protocol.connection_made        # what is no protocol is refused before the socket is ours
        self.fd = fd
        self.g = loop
        gl_no_sigpipe(self.fd)
        self.sock = sock
        self.waiter = waiter
        self.extra = extra if extra else None
        if not self.peer_len and (self.extra is None or "peername" not in self.extra):
            if getpeername(fd, <sockaddr *>&a, &size) == 0:
                self.note_peer(&a, size)
        self.server = server
        self.high, self.low = HIGH_WATER, HIGH_WATER // 4
        self.given_context = context is not None
        self.context = context if self.given_context else PyContext_CopyCurrent()
        self.use_protocol(protocol)
        if server is not None:
            server._attach(self) if takes_transport(server) else server._attach()
        if isinstance(sock, socket.socket):
            sock._io_refs += 1      # who closes the socket object does not take the fd away from under the transport
        self.born = True
        poller.attach(self)
        self.push(EV_START)
        return 0

    cdef int note_peer(self, sockaddr_storage *a, socklen_t size) except -1:
        """Remember the peer's address; what is made of it is made when somebody asks."""
        if 0 < size <= PEER_MAX and known_family(a.ss_family):
            memcpy(self.peer, a, size)
            self.peer_len = <unsigned char>size
        elif known_family(a.ss_family):
            self.info()["peername"] = address_of(a, size)
        elif self.sock is not None:
            try:
                self.info()["peername"] = self.sock.getpeername()
            except OSError:
                pass
        return 0

    def __del__(self):
        if self.born and not self.gone:
            try:
                warnings.warn(f"unclosed transport {self!r}", ResourceWarning, source=self)
            finally:
                if self.poller is not None:
                    self.poller.detach(self)
                self.close_socket()
                self.detach_server()

    def __repr__(self):
        state = "closed" if self.gone else "closing" if self.closing else ""
        read = "polling" if self.started and self.is_reading() else "idle"
        write = "polling" if self.wsize else "idle"
        return (f"<{type(self).__name__} {state + ' ' if state else ''}fd={self.fd} read={read} "
                f"write=<{write}, bufsize={self.wsize}>>")

    # -- for the subclasses

    cdef uint32_t wanted(self):
        """The mask to watch for."""
        return 0

    cdef int send_out(self) except -1:
        """Send now what was to be sent at the end of the turn."""
        return 0

    cdef int start_watching(self) except -1:
        return self.poller.watch(self, self.wanted())

    cdef int clear_buffer(self) except -1:
        """Drop what was not sent."""
        return 0

    cdef int use_protocol(self, protocol) except -1:
        self.protocol = protocol
        return 0

    cdef int debug_log(self, str what) except -1:
        if self.g.w.debug:
            logger.debug("%r " + what, self)
        return 0

    cdef bint is_transport(self):
        return True

    cdef bint is_ended(self):
        return self.closing

    cdef int start(self) except -1:
        """connection_made, then reading begins, then whoever made the transport is told: stock's order."""
        made, self.made = self.made, None
        context = self.context if self.given_context else self.context.copy()
        try:
            context.run(made, self)
        except (SystemExit, KeyboardInterrupt):
            self.begin()                # for when the loop is run again
            raise
        except BaseException as exc:
            self.g.call_exception_handler({
                "message": f"Exception in callback {made!r}",
                "exception": exc, "transport": self, "protocol": self.protocol})
        return self.begin()

    cdef int begin(self) except -1:
        """Reading begins, and whoever made the transport is told."""
        waiter, self.waiter = self.waiter, None
        self.started = True
        if not self.conn_lost and not self.gone and self.poller is not None:
            try:
                self.start_watching()
            except OSError as exc:
                self.fatal(exc, "Fatal error: cannot watch the socket")
        if waiter is not None and not waiter.done():
            waiter.set_result(None)
        return 0

    cdef int displaced(self) except -1:
        """The fd is no longer ours: it was closed behind the transport's back."""
        return self.fatal(OSError(EBADF, "the transport's descriptor was closed or taken by another owner"),
                          "Fatal error on transport")

    cdef int call_lost(self, object exc) except -1:
        protocol, self.protocol = self.protocol, None
        try:
            if protocol is not None:
                protocol.connection_lost(exc)
        finally:
            self.note_sockname()
            if self.poller is not None:
                self.poller.detach(self)
            self.close_socket()
            self.detach_server()
            self.ended()
        return 0

    cdef int close_socket(self) except -1:
        """Once: `gone` says who did it, for somebody in another thread who asks for the socket."""
        cdef int fd = self.fd
        with cython.critical_section(self):
            self.gone = True
            sock = self.sock
        if sock is None:
            with nogil:             # the listening socket may have passed its SO_LINGER on
                c_close(fd)
            return 0
        if isinstance(sock, socket.socket):
            sock._decref_socketios()
        sock.close()
        return 0

    cdef object socket_object(self):
        """The socket object, made if need be. Everything between the look at `gone` and the end is C code, so that
        with the GIL nobody closes the descriptor meanwhile, and without it the critical section says so."""
        with cython.critical_section(self):
            sock = self.sock
            if sock is None and not self.gone:
                sock = socket.socket.__new__(socket.socket)
                sock._closed, sock._io_refs = False, 0
                _socket.socket.__init__(sock, self.family, self.type | non_blocking, self.proto, self.fd)
                if self.gone or self.sock is not None:          # an audit hook let other threads in
                    sock.detach()
                    sock = self.sock
                else:
                    self.sock = sock
                    sock._io_refs = 1
        if sock is None:                # what one that was made in time would be by now
            sock = socket.socket(self.family, self.type | non_blocking, self.proto)
            sock.close()
            return sock
        if not non_blocking and not self.gone and sock.gettimeout() != 0:
            sock.settimeout(0)
        return sock

    cdef int lose_soon(self, object exc) except -1:
        self.g.call_soon(self._call_connection_lost, exc, context=self.context if self.given_context else None)
        return 0

    cdef int buffering_begins(self) except -1:
        self.wcontext = self.context if self.given_context else PyContext_CopyCurrent()
        return 0

    def _call_connection_lost(self, exc):
        self.call_lost(exc)

    cdef int ended(self) except -1:
        """The socket is closed."""
        return 0

    def detach_server(self):
        server, self.server = self.server, None
        if server is not None:
            server._detach(self) if takes_transport(server) else server._detach()

    cdef int force_close(self, object exc) except -1:
        if self.conn_lost:
            return 0
        self.clear_buffer()
        self.closing = True
        self.conn_lost += 1
        self.lose_soon(exc)
        return 0

    def _force_close(self, exc):
        self.force_close(exc)

    cdef int fatal(self, object exc, str message) except -1:
        if isinstance(exc, OSError):
            if self.g.w.debug:
                logger.debug("%r: %s", self, message, exc_info=True)
        else:
            self.g.call_exception_handler({"message": message, "exception": exc, "transport": self,
                                           "protocol": self.protocol})
        return self.force_close(exc)

    def _fatal_error(self, exc, message="Fatal error on transport"):
        self.fatal(exc, message)

    def close(self):
        """Send what is buffered, then call connection_lost(None). Nothing is read any more. From any thread."""
        if self.foreign():
            self.g.call_soon_threadsafe(self.close)
            return
        if self.closing:
            return
        self.send_out()
        if self.closing:                # that found the connection broken
            return
        self.closing = True
        if not self.wsize:
            self.conn_lost += 1
            self.lose_soon(None)

    def abort(self):
        """Drop what is buffered and call connection_lost(None) soon. From any thread."""
        if self.foreign():
            self.g.call_soon_threadsafe(self.abort)
            return
        self.force_close(None)

    def is_closing(self):
        return self.closing

    cdef bint foreign(self) except -1:
        if self.g is None:
            raise RuntimeError("the transport's constructor has not run")
        cdef unsigned long owner = gl_load_relaxed(&self.g.w.owner)
        return owner != 0 and not gl_world_mine(&self.g.w)

    cdef int here(self, str what) except -1:
        """Refuse to go on in another thread while one runs the loop."""
        if self.foreign():
            self.g._refuse_thread(f"{what}() of {self!r}")
        return 0

    # -- writing

    cdef bint lost(self) except -1:
        """Whether the connection is gone; counts, and says so from the fifth write on."""
        if not self.conn_lost:
            return False
        if self.conn_lost >= LOG_LOST_WRITES:
            logger.warning("socket.send() raised exception.")
        self.conn_lost += 1
        return True

    cdef int flush(self) except -1:
        """Send as much of the buffer as the kernel takes; when it is empty, do what waited for that."""
        return 0

    cdef int flush_in_context(self) except -1:
        context = self.wcontext
        PyContext_Enter(context)
        try:
            self.flush()
        finally:
            PyContext_Exit(context)
        return 0

    # -- flow control

    cdef int maybe_pause(self) except -1:
        if self.wsize <= self.high or self.protocol_paused:
            return 0
        self.protocol_paused = True
        return self.call_protocol("pause_writing")

    cdef int maybe_resume(self) except -1:
        if not self.protocol_paused or self.wsize > self.low:
            return 0
        self.protocol_paused = False
        return self.call_protocol("resume_writing")

    cdef int call_protocol(self, str name) except -1:
        """Call its method; what that raises is reported."""
        try:
            PyObject_CallMethodNoArgs(self.protocol, name)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exc:
            self.g.call_exception_handler({"message": f"protocol.{name}() failed", "exception": exc,
                                           "transport": self, "protocol": self.protocol})
        return 0

    def set_write_buffer_limits(self, high=None, low=None):
        """Pause the protocol above `high` buffered bytes, resume it at `low` or fewer."""
        self.here("set_write_buffer_limits")
        if high is None:
            high = HIGH_WATER if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self.high, self.low = high, low
        self.maybe_pause()

    def get_write_buffer_limits(self):
        return self.low, self.high

    def get_write_buffer_size(self):
        return self.wsize

    # -- what others ask

    def set_protocol(self, protocol):
        self.here("set_protocol")
        self.use_protocol(protocol)

    def get_protocol(self):
        return self.protocol

    def note_sockname(self):
        """Before the socket is closed: what get_extra_info() answers afterwards."""
        cdef sockaddr_storage a
        cdef socklen_t size = sizeof(a)
        if self.extra is not None and "sockname" in self.extra:
            return
        if getsockname(self.fd, <sockaddr *>&a, &size) == 0:
            if known_family(a.ss_family):
                self.name = PyBytes_FromStringAndSize(<char *>&a, size)
            else:
                self.info()["sockname"] = self.sockname()

    cdef object sockname(self):
        cdef sockaddr_storage a
        cdef socklen_t size = sizeof(a)
        cdef int failed
        with cython.critical_section(self):
            name = self.name
            failed = self.gone or getsockname(self.fd, <sockaddr *>&a, &size)
        if name is not None:
            size = len(name)
            memcpy(&a, PyBytes_AS_STRING(name), size)
        elif failed:
            return None
        elif not known_family(a.ss_family):
            try:
                return self.socket_object().getsockname()
            except OSError:
                return None
        return address_of(&a, size)

    cdef object peername(self):
        cdef sockaddr_storage a
        if not self.peer_len:
            return None
        memcpy(&a, self.peer, self.peer_len)
        return address_of(&a, self.peer_len)

    cdef dict info(self):
        with cython.critical_section(self):
            if self.extra is None:
                self.extra = {}
        return self.extra

    def get_extra_info(self, name, default=None):
        cdef dict info = self.info()
        if name == "peername" or name == "sockname" or name == "socket":
            if name not in info:
                info[name] = (self.peername() if name == "peername" else self.sockname() if name == "sockname" else
                              TransportSocket(self.socket_object()))
        return info.get(name, default)

    @property
    def _extra(self):
        for name in ("peername", "socket", "sockname"):
            self.get_extra_info(name)
        return self.extra

    @property
    def _sock(self):
        return None if self.gone else self.socket_object()

    @property
    def _sock_fd(self):
        return self.fd

    @property
    def _loop(self):
        return None if self.gone else self.g

    @property
    def _protocol(self):
        return self.protocol

    @property
    def _paused(self):
        return self.paused

    @property
    def _closing(self):
        return self.closing

    @property
    def _protocol_paused(self):
        return self.protocol_paused

    @property
    def _server(self):
        return self.server
