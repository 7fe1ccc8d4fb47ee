"""AcceptingLoop: the part of Loop that has to do with pollers that accept connections by themselves (io_uring)."""

import concurrent.futures
import contextlib
import errno
import functools
import socket
import threading
import weakref
from asyncio import constants

from gmploop import config, sharing
from gmploop.core import stream

OUT_OF_RESOURCES = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM)


@functools.cache
def poller_uring():
    """The module, loaded when it is first wanted."""
    from gmploop.core import poller_uring
    poller_uring.configure(**config.uring_sizes())
    return poller_uring


class AcceptingLoop:
    """Servers whose poller accepts by itself. Not on sockets that other processes may have: an accept that
    the kernel has would keep one open that its owner closes, and take the connections of the others while this process
    is busy. Those are sockets that were given, that are served later than they are made, when there may have been a
    fork, and the parent's in a child."""

    _shared_socks = ()      # those sockets

    async def create_server(self, protocol_factory, host=None, port=None, *, sock=None, start_serving=True, **options):
        self._note_shared(sock)
        return self._note_later(start_serving, await super().create_server(
            protocol_factory, host, port, sock=sock, start_serving=start_serving, **options))

    async def create_unix_server(self, protocol_factory, path=None, *, sock=None, start_serving=True, **options):
        self._note_shared(sock)
        return self._note_later(start_serving, await super().create_unix_server(
            protocol_factory, path, sock=sock, start_serving=start_serving, **options))

    def _note_shared(self, *socks):
        for sock in socks:
            if self.poller.accepts and isinstance(sock, socket.socket):
                self._shared_socks = self._shared_socks or weakref.WeakSet()
                self._shared_socks.add(sock)

    def _note_later(self, start_serving, server):
        if not start_serving:
            self._note_shared(*server._sockets or ())
        return server

    def _start_serving(self, protocol_factory, sock, sslcontext=None, server=None, *more, **named):
        options = sslcontext, server, *more, *named.values()        # since Python 3.15 there is a context, the last
        if (not self.poller.accepts or not isinstance(sock, socket.socket) or sock in self._shared_socks
                or isinstance(protocol_factory, sharing.Isolating)):
            return super()._start_serving(protocol_factory, sock, *options)
        from gmploop.loop import Loop       # which is made of this class

        context = options[5] if len(options) > 5 else None
        quick = (sslcontext is None and type(self)._serve_connection is Loop._serve_connection and stream.accepts(sock))

        def serve(fd):
            if quick and not self._debug:
                return stream.serve_accepted(self, self.poller, fd, sock, protocol_factory, server, context)
            conn = socket.socket(sock.family, sock.type, sock.proto, fd)
            try:
                address = conn.getpeername()
            except OSError:
                address = stream.peer_of_lost(fd, sock)
            self._serve_connection(protocol_factory, conn, address, *options)

        def failed(exc):
            if exc.errno == errno.ECHILD:           # this is a child
                self._note_shared(sock)
                return self._start_serving(protocol_factory, sock, *options)
            if exc.errno not in OUT_OF_RESOURCES:
                self.call_later(constants.ACCEPT_RETRY_DELAY, self._accept_again, protocol_factory, sock, *options)
                raise exc
            self._accept_later(exc, protocol_factory, sock, *options)

        poller_uring().Acceptor(self, self.poller, sock, serve, failed)

    def _stop_serving(self, sock):
        if self.poller.accepts:
            self._stop_accepting(sock.fileno())
        super()._stop_serving(sock)

    def _accept_no_more(self, sock):
        """As _stop_serving(), but the socket stays open."""
        if self.poller.accepts:
            self._stop_accepting(sock.fileno())
        self._remove_reader(sock.fileno())

    def _stop_accepting(self, fd):
        """When it returns the kernel has let go of the listener, unless another thread runs the loop and is busy."""
        stopped = concurrent.futures.Future()

        def stop():
            if stopped.set_running_or_notify_cancel():
                stopped.set_result(poller_uring().stop_accepting(self.poller, fd))

        if self._thread_id in (None, threading.get_ident()):
            return stop()
        with contextlib.suppress(RuntimeError, TimeoutError):       # closed by now; busy
            self.call_soon_threadsafe(stop)
            return stopped.result(config.ACCEPTS_END_S)
        if stopped.cancel():
            poller_uring().stop_accepting(self.poller, fd)
