"""Servers whose connections are worlds of their own: create_server(isolate=True), start_server().

    the server's loop ── accepts ──> Connection ── go() ──> a world that moves: factory, transport, handler, tasks
          asyncio.Server <── counts it ──┘   └── what the transport takes for its server

asyncio's Server is used as it is, in the loop that made it only. What it counts as a client is a Connection, whose
close() and abort() may be called from any thread; the transport in the new world is attached to the Connection. A
connection that has ended is put into `ended` by whatever thread ran its world, and the server's loop takes it from
there when it accepts the next one, or at once when the server is being closed, for then somebody may wait for it: so
that a connection's end costs that loop no wake-up.

Life of a connection: its root coroutine makes the protocol and the transport, and lasts until connection_lost has run
and, for streams, the handler has returned (which closes the transport), else no task is left. What is cancelled hangs
up. Where it runs: the new world is queued as any goroutine is. From the loop of a plain thread that is the global
queue, from which the first P without work takes it; from a goroutine its P's own, from which idle Ps steal.
"""

import asyncio
import inspect
import os
import sys
import threading
import weakref
from asyncio import coroutines, streams
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from gmploop import goroutine
from gmploop.core import m
from gmploop.core.accept import Accepted, accept_one
from gmploop.loop import Loop
from gmploop.sharing import Isolating

__all__ = ["start_server", "start_unix_server"]

_ATTACHES_TRANSPORT = sys.version_info >= (3, 13)
LIMIT = 1 << 16         # bytes; asyncio's
_LAST_TURNS = 3     # what is cancelled gets so many turns to send its farewell; one writes it, TLS may take another


class Isolated(Isolating):
    """What stands in the protocol factory's place: it makes a world for each connection."""

    def __init__(self, loop, factory):
        if not callable(factory):
            raise TypeError(f"isolate=True takes a protocol factory that can be called, not {factory!r}")
        if getattr(factory, "__module__", None) == "asyncio.streams":
            raise TypeError("asyncio.start_server() ties its streams to the calling loop: use gmploop.start_server()")
        m.start_default()
        self.loop, self.factory = loop, factory
        self.sockets = set()            # that it serves
        self.connections = set()        # that are open, as far as the server's loop has heard
        self.lock = threading.Lock()    # guards the next two
        self.ended = deque()
        self.closing = False            # tell the server's loop of each end at once
        if loop._isolated is None:
            loop._isolated = weakref.WeakSet()
        loop._isolated.add(self)

    def __repr__(self):
        return f"<a world for each connection: {self.factory!r}>"

    # -- in the server's loop

    def accept(self, sock, server, most, context):
        """In the place of core.accept.accept_connections()."""
        for _ in range(most):
            conn = accept_one(sock)
            if conn is None:
                return
            if context is None:
                self.serve(None, conn, server)
            else:
                own = context.copy()
                own.run(self.serve, None, conn, server, context=own)

    def serve(self, _, conn, server, **options):
        """In the place of Loop._serve_accepted(): start a world for an accepted connection."""
        self.take_ended()
        connection = Connection(self, conn, server, options)
        self.connections.add(connection)
        server._attach(connection) if _ATTACHES_TRANSPORT else server._attach()
        try:
            connection.goroutine = goroutine.go(connection.run)
        except BaseException:           # no thread to be had, or no memory
            conn.close()
            self.forget(connection)
            raise

    def take_ended(self):
        while True:
            with self.lock:
                if not self.ended:
                    return
                connection = self.ended.popleft()
            self.forget(connection)

    def forget(self, connection):
        self.connections.discard(connection)
        server = connection.server
        server._detach(connection) if _ATTACHES_TRANSPORT else server._detach()

    def stopped(self, sock):
        """The server is being closed: it serves this socket no more."""
        self.sockets.discard(sock)
        with self.lock:
            self.closing = True
        self.loop.call_soon(self.take_ended)

    def hold(self):
        """Accept nobody any more: the run is at its end."""
        for sock in self.sockets:
            self.loop._remove_reader(sock.fileno())

    def sweep(self):
        """After the goroutines were ended: what was cancelled before its first step."""
        self.take_ended()
        for connection in [each for each in self.connections if each.goroutine.done()]:
            connection.conn.close()
            self.forget(connection)

    def cancel(self):
        """The server's loop is being closed."""
        for connection in self.connections:
            connection.goroutine.cancel()

    # -- in any world

    def tell(self, callback, *args):
        """Call it in the server's loop; False if that is closed."""
        try:
            self.loop.call_soon_threadsafe(callback, *args)
        except RuntimeError:
            return False
        return True

    def end(self, connection):
        with self.lock:
            self.ended.append(connection)
            closing = self.closing
        if closing:
            self.tell(self.take_ended)

    def report(self, world, context):
        """Exception handler of the connections' worlds: the loop that made the server has one too."""
        if not self.tell(self.loop.call_exception_handler, context):
            world.default_exception_handler(context)


class Connection:
    """An accepted connection: to the server a client, to its transport the server."""

    takes_transport = True      # also where asyncio's Server does not
    transport = None            # that of the socket, also under TLS
    goroutine = None
    handler = writer = None     # the coroutine that start_server()'s handler has given, and what it writes to
    gone = False                # connection_lost has run

    def __init__(self, isolated, conn, server, options):
        self.isolated, self.conn, self.server, self.options = isolated, conn, server, options

    def __repr__(self):
        return f"<Connection transport={self.transport!r}>"

    # -- from any thread

    def close(self):
        """Close the transport when what is buffered is sent."""
        self._in_world(lambda: self.transport and self.transport.close())

    def abort(self):
        """Close the transport at once."""
        self._in_world(lambda: self.transport and self.transport.abort())

    def _in_world(self, callback):
        world = self.goroutine.get_loop()
        try:
            if world is not None:
                world.call_soon_threadsafe(callback)
        except RuntimeError:
            pass                        # it is over now

    # -- in its world

    def _attach(self, transport):
        self.transport = transport

    def _detach(self, transport):
        self.gone = True
        self._wake()

    def _wake(self):
        if not self.waiter.done():
            self.waiter.set_result(None)

    def _make_protocol(self):
        factory, home = self.isolated.factory, self.isolated.loop
        if isinstance(factory, Streams):
            return factory.make(self)
        protocol = factory()
        if getattr(protocol, "_loop", None) is not home and getattr(protocol, "loop", None) is not home:
            return protocol
        error = RuntimeError(f"the factory made {protocol!r} for the server's loop {home!r}; with isolate=True each "
                             "connection has a loop of its own, which is the running loop when the factory is called")
        if not self.world.get_debug():  # else it is told as any other error of a factory
            self.world.call_exception_handler({"message": "Error on transport creation for incoming connection",
                                               "exception": error, "protocol": protocol})
        raise error

    def _adopt(self, conn, context=None):
        """As Loop._serve_accepted(), for what accept() has accepted."""
        protocol = None
        try:
            protocol = self._make_protocol()
            conn.adopt(self.world, self.world.poller, protocol, self, context)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exc:
            conn.close()
            self.transport = None
            self.world._accept_failed(exc, protocol, None)

    def connected(self, reader, writer):
        """The streams are there: call the handler. Its coroutine is run by the root task, unless asyncio would run it
        in a context or a kind of task of another making."""
        handler = self.isolated.factory.handler
        work = handler(reader, writer)
        if coroutines.iscoroutine(work):
            plain = self.world.get_task_factory() is None and inspect.iscoroutinefunction(handler)
            self.handler, self.writer = work if plain else self.world.create_task(work), writer
            self._wake()

    async def run(self):
        """The root coroutine."""
        self.world = world = asyncio.get_running_loop()
        world.set_exception_handler(self.isolated.report)
        self.waiter = world.create_future()
        conn, self.conn = self.conn, None
        try:
            if type(conn) is Accepted:
                self._adopt(conn, **self.options)
            else:
                world._serve_accepted(self._make_protocol, conn, server=self, **self.options)
            conn = None
            if self.transport is not None:      # else it has failed, and was told
                await self._live()
        finally:
            self.isolated.end(self)
            self.transport = self.writer = self.handler = self.world = None

    async def _live(self):
        try:
            await self.waiter
            if self.handler is not None:
                await self._handle()
            while not self.gone:
                self.waiter = self.world.create_future()
                await self.waiter
            if self.writer is None:
                while left := self.world._other_tasks():
                    await asyncio.wait(left)
        except asyncio.CancelledError:
            if coroutines.iscoroutine(self.handler):
                self.handler.close()            # it may not have begun
            await self._hang_up()
            raise

    async def _handle(self):
        transport = self.writer.transport
        try:
            await self.handler
        except asyncio.CancelledError:
            raise
        except Exception as exc:
            self.world.call_exception_handler({"message": "Unhandled exception in client_connected_cb",
                                               "exception": exc, "transport": transport})
        self.writer.close()

    async def _hang_up(self):
        (self.writer or self.transport).close()
        for _ in range(_LAST_TURNS):
            if not self.gone:
                await asyncio.sleep(0)
        self.transport.abort()
        while not self.gone:
            self.waiter = self.world.create_future()
            await self.waiter


class Streams:
    """The protocol factory of start_server()."""

    def __init__(self, handler, limit):
        if not callable(handler):
            raise TypeError(f"start_server() takes a handler that can be called, not {handler!r}")
        if not isinstance(limit, int):
            raise TypeError(f"limit takes a number of bytes, not {limit!r}")
        if limit <= 0:
            raise ValueError(f"limit takes a number of bytes from 1 on, not {limit!r}")
        self.handler, self.limit = handler, limit

    def __call__(self):
        raise TypeError("it serves isolated connections only")

    def make(self, connection):
        reader = streams.StreamReader(limit=self.limit, loop=connection.world)
        return streams.StreamReaderProtocol(reader, connection.connected, loop=connection.world)


_Handler = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None] | None]


def _running(name: str) -> Loop:
    loop = asyncio.get_running_loop()
    if not isinstance(loop, Loop):
        raise RuntimeError(f"gmploop.{name}() is for gmploop's loops, not {loop!r}: run the program by gmploop.run()")
    return loop


async def start_server(handler: _Handler, host: str | Sequence[str] | None = None, port: int | str | None = None, *,
                       limit: int = LIMIT, **options: Any) -> asyncio.Server:
    """asyncio.start_server(), where each connection is a world of its own, which moves between threads.

    handler(reader, writer), a coroutine function or a plain one, is called in the connection's world, in a copy of the
    caller's context. A handler that blocks or computes holds up its own connection only (see go()); what handlers share
    is shared between threads. When its coroutine ends, the connection is closed, after what was written is sent, and
    the tasks that it left are cancelled; a plain function's world ends when connection and tasks have.
    host, port, limit (bytes that a reader holds) and options (ssl, sock, backlog, reuse_port, start_serving, ...): as
    in asyncio.start_server(). Returns asyncio's Server, which belongs to the calling loop; its wait_closed() waits for
    the connections where asyncio's does. What a handler raises goes to the exception handler of the calling loop.
    At the end of gmploop.run(), and when the calling loop is closed, connections that are left are cancelled.
    Raises as asyncio's does; TypeError or ValueError for a bad handler or limit, RuntimeError if the running loop is
    not gmploop's. From any loop of gmploop, goroutines included.
    """
    loop = _running("start_server")
    return await loop.create_server(Streams(handler, limit), host, port, isolate=True, **options)


async def start_unix_server(handler: _Handler, path: str | os.PathLike[str] | None = None, *, limit: int = LIMIT,
                            **options: Any) -> asyncio.Server:
    """The same at a Unix socket: options are asyncio.start_unix_server()'s."""
    loop = _running("start_unix_server")
    return await loop.create_unix_server(Streams(handler, limit), path, isolate=True, **options)
