"""One listening socket for an address that several replicas serve, and who gets the connections.

A replica is a thread that runs loops as one of N (see replicas.py). The first of them to ask for an address binds it,
the others get duplicates of its socket; the n-th request for port 0 shares with the others' n-th. One thread, the
acceptor, accepts for all and deals each connection to the replica that has the fewest.

    create_server() ─ claim ─> Shared (an address) ── Listener (one socket of it) ──<  Seat (a replica's server at it)

How a connection travels: the acceptor picks a seat and puts the connection into its mail; the replica's loop takes it
from there. A seat that closes leaves its listener with its mail, which is dealt to the seats that are left. All that
happens under the dealer's lock, so a connection reaches exactly one replica, or is closed when nobody serves the
address any more. Nothing that waits or runs foreign code is called under the lock.

A replica's load is what it was dealt and has not taken yet (`waiting`, under the lock) and what it has open (`open`,
written by its own thread; a reader may be late by one).

Each descriptor has one owner: a seat's is its asyncio.Server's, the listener's is the acceptor's, which lets go of it
before it is closed. Closing the last seat waits for that, so that the address is free when close() returns.
"""

import contextlib
import contextvars
import os
import sys
import threading
from collections import deque
from concurrent import futures

from gmploop import config


class _Here(threading.local):
    replica = None          # which one this thread is


_here = _Here()


def current():
    """The replica that this thread is, or None."""
    return _here.replica


def enter(replica):
    """This thread is `replica` from now on (None: no longer one)."""
    _here.replica = replica


class Dealer:
    """The addresses that the replicas of a run share, and their acceptor."""

    def __init__(self):
        self.lock = threading.Lock()
        self.shared = {}                    # (address as it was asked for, which time) -> Shared
        self.acceptor = self.thread = None

    def claim(self, replica, address, any_port):
        """-> (Shared, whether the caller is the one who binds it)."""
        with self.lock:
            turn = 0
            if any_port:
                turn = replica.asked[address]
                replica.asked[address] += 1
            else:           # a replica that asks for what it has gets another socket, and so the kernel's refusal
                while (held := self.shared.get((address, turn))) is not None and replica in held.holders:
                    turn += 1
            key = address, turn
            mine = key not in self.shared
            if mine:
                self.shared[key] = Shared(self, key)
            shared = self.shared[key]
            shared.holders.add(replica)
            return shared, mine

    def update(self, listener):
        """Let the acceptor accept from the listener's socket, or let go of it, as `listener.serving()` says."""
        acceptor = self._running_acceptor()
        if threading.current_thread() is self.thread:
            acceptor.update(listener)
            return
        done = futures.Future()

        def update():
            try:
                done.set_result(acceptor.update(listener))
            except BaseException as exc:
                done.set_exception(exc)

        acceptor.call_soon_threadsafe(update)
        done.result(config.ACCEPTOR_ANSWERS_S)

    def _running_acceptor(self):
        with self.lock:
            if self.acceptor is None:
                self.acceptor = _make_acceptor()
                self.thread = threading.Thread(target=self.acceptor.run_forever, name="gmploop-accept", daemon=True)
                self.thread.start()
            return self.acceptor

    def leave(self, replica):
        """Close what the replica has left open: its thread serves nothing any more."""
        with self.lock:
            held = [shared for shared in self.shared.values() if replica in shared.holders]
            seats = [seat for shared in held for listener in shared.listeners for seat in listener.seats
                     if seat.replica is replica]
        for seat in seats:
            seat.close()
            seat.sock.close()

    def close(self):
        """End of the run. What replicas that were left behind still serve is closed."""
        with self.lock:
            replicas = {replica for shared in self.shared.values() for replica in shared.holders}
        for replica in replicas:
            self.leave(replica)
        if self.acceptor is not None:
            self.acceptor.call_soon_threadsafe(self.acceptor.stop)
            self.thread.join()
            self.acceptor.close()


class Shared:
    """An address that replicas share: one listener, or several where a host name stands for several addresses."""

    def __init__(self, dealer, key):
        self.dealer = dealer
        self.key = key
        self.holders = set()                # replicas that serve it or are about to
        self.listeners = []
        self.bound = futures.Future()       # whether the replica that had to has bound it
        self.given = {}                     # replica -> the socket that it passed as sock=
        self.unlink = None                  # (path, inode) of the Unix socket to remove at the end

    def open(self, replica, loop, socks):
        """The first server is bound to `socks`, which are its own."""
        with self.dealer.lock:
            for sock in socks:
                listener = Listener(self, sock.dup())
                self.listeners.append(listener)
                Seat(listener, replica, loop, sock)
        self.bound.set_result(True)

    def join(self, replica, loop):
        """Sockets for a further server."""
        with self.dealer.lock:
            return [Seat(listener, replica, loop, listener.sock.dup()).sock for listener in self.listeners]

    def give_up(self, replica):
        """The replica that holds it does not serve it any more, or never came to."""
        with self.dealer.lock:
            if any(seat.replica is replica for listener in self.listeners for seat in listener.seats):
                return
            self.holders.discard(replica)
            given = self.given.pop(replica, None)
            if given in self.given.values():
                given = None                # one socket object that several passed
            last = not self.holders and self.dealer.shared.get(self.key) is self
            if last:
                del self.dealer.shared[self.key]
        if given is not None:
            given.close()
        if not last:
            return
        for listener in self.listeners:
            listener.sock.close()
        if self.unlink is not None:
            path, inode = self.unlink
            with contextlib.suppress(OSError):
                if os.stat(path).st_ino == inode:
                    os.unlink(path)


class Listener:
    """One listening socket, its seats, and the dealing of its connections."""

    def __init__(self, shared, sock):
        self.shared = shared
        self.sock = sock
        self.seats = []
        self.turn = 0
        self.accepting = False              # the acceptor's

    def serving(self):
        return [seat for seat in self.seats if seat.serving]

    def deal(self, conn, address):
        """Give the connection to the replica that has the fewest; of several to the one that waited longest."""
        with self.shared.dealer.lock:
            seat = min(self.serving(), key=Seat.rank, default=None)
            if seat is not None:
                self.turn += 1
                seat.turn = self.turn
                seat.replica.waiting += 1
                seat.mail.append((conn, address))
        if seat is None:
            conn.close()
            return
        try:
            seat.loop.call_soon_threadsafe(seat.take, context=seat.context)
        except RuntimeError:                # its loop was closed before its server
            seat.close()


class Seat:
    """A replica's server at a listener. Made under the lock."""

    def __init__(self, listener, replica, loop, sock):
        self.listener = listener
        self.replica = replica
        self.loop = loop
        self.sock = sock                    # the server's own
        self.serving = False
        self.mail = deque()
        self.turn = 0
        listener.seats.append(self)
        if loop._seats is None:
            loop._seats = {}
        loop._seats[sock] = self

    def rank(self):
        return self.replica.waiting + self.replica.open, self.turn

    def start(self, factory, sslcontext, server, *rest):
        """From now on it gets connections."""
        self.factory, self.options = factory, (sslcontext, _Counting(server, self.replica), *rest)
        self.context = contextvars.copy_context()
        dealer = self.listener.shared.dealer
        with dealer.lock:
            self.serving = True
        dealer.update(self.listener)

    def _take_one(self):
        with self.listener.shared.dealer.lock:
            if not self.mail:
                return None
            self.replica.waiting -= 1
            return self.mail.popleft()

    def take(self):
        """In the replica's loop: serve what was dealt."""
        while (dealt := self._take_one()) is not None:
            self.loop._serve_connection(self.factory, *dealt, *self.options)

    def close(self):
        """The server is closed, or its loop or replica has ended. What it has not taken goes to the others."""
        shared = self.listener.shared
        with shared.dealer.lock:
            if self not in self.listener.seats:
                return
            self.loop._seats.pop(self.sock, None)
            self.listener.seats.remove(self)
            mail, self.mail = self.mail, deque()
            self.replica.waiting -= len(mail)
            last = self.serving and not self.listener.serving()
        if last:
            with contextlib.suppress(RuntimeError, futures.TimeoutError):
                shared.dealer.update(self.listener)
        for conn, address in mail:
            self.listener.deal(conn, address)
        shared.give_up(self.replica)


class _Counting:
    """What a transport takes for its server: it counts what the replica has open."""

    def __init__(self, server, replica):
        self.server, self.replica = server, replica

    def __repr__(self):
        return repr(self.server)

    def _attach(self, *transport):
        self.server._attach(*transport)
        self.replica.open += 1

    def _detach(self, *transport):
        self.replica.open -= 1
        self.server._detach(*transport)


def _make_acceptor():
    from gmploop.loop import Loop       # which is made of the class below

    class Acceptor(Loop):
        """The loop that accepts. What it serves with is a listener, in the place of a protocol factory."""

        def update(self, listener):
            with listener.shared.dealer.lock:
                wanted = bool(listener.serving())
            if wanted and not listener.accepting:
                self._start_serving(listener, listener.sock)
            elif not wanted:
                self._accept_no_more(listener.sock)
            listener.accepting = wanted

        def _serve_connection(self, listener, conn, address, *options):
            listener.deal(conn, address)

        def _accept_again(self, listener, sock, *options):
            if sock.fileno() != -1:
                listener.accepting = False
                self.update(listener)

    return Acceptor()


class Isolating:
    """A protocol factory's stand-in that makes a world for each connection: isolated.Isolated."""

    @staticmethod
    def of(loop, factory, isolate):
        if not isinstance(isolate, bool):
            raise TypeError(f"isolate takes True or False, not {isolate!r}")
        if not isolate:
            return factory
        from gmploop.isolated import Isolated       # not every program has goroutines

        return Isolated(loop, factory)


class SharingLoop:
    """The part of Loop that has to do with servers: isolated connections, and being one of several replicas."""

    _seats = None           # the server's socket -> its seat
    _isolated = None        # what makes worlds for the connections of its servers, once there is such a server

    async def create_server(self, protocol_factory, host=None, port=None, *, sock=None, start_serving=True,
                            isolate=False, **options):
        """As asyncio's. In a run of replicas those that ask for the same address share one listening socket.

        isolate: whether each connection is a goroutine: the factory is called, and the protocol lives, in a world of
        its own, which moves between threads and ends when connection_lost has run and no task is left. See
        gmploop.start_server() for what that means.
        """
        protocol_factory = Isolating.of(self, protocol_factory, isolate)
        replica, create = current(), super().create_server
        if replica is None or (sock is None) == (host is None and port is None):     # the latter it refuses
            return await create(protocol_factory, host, port, sock=sock, start_serving=start_serving, **options)

        async def bind(own):
            if own is not None:
                return await create(protocol_factory, sock=own, start_serving=False, **options)
            return await create(protocol_factory, host, port, start_serving=False, **options)

        if sock is not None:
            return await self._share(_identity(sock), False, sock, bind, start_serving)
        hosts = host if host is None or isinstance(host, (str, bytes)) else tuple(host)
        address = "tcp", hosts, port, options.get("family")
        return await self._share(address, port in (0, None, "0"), None, bind, start_serving)

    async def create_unix_server(self, protocol_factory, path=None, *, sock=None, start_serving=True, isolate=False,
                                 **options):
        """As asyncio's. In a run of replicas those that ask for the same path share one listening socket.

        isolate: as in create_server().
        """
        protocol_factory = Isolating.of(self, protocol_factory, isolate)
        replica, create = current(), super().create_unix_server
        if replica is None or (path is None) == (sock is None):
            return await create(protocol_factory, path, sock=sock, start_serving=start_serving, **options)
        cleanup = sys.version_info >= (3, 13)
        if cleanup:
            cleanup, options["cleanup_socket"] = options.get("cleanup_socket", True), False

        async def bind(own):
            return await create(protocol_factory, None if own else path, sock=own, start_serving=False, **options)

        key = ("unix", os.fspath(path)) if sock is None else _identity(sock)
        return await self._share(key, False, sock, bind, start_serving, cleanup)

    async def _share(self, address, any_port, given, bind, start_serving, cleanup=False):
        """A server at an address that other replicas may serve too. bind(sock or None) makes it."""
        replica = current()
        shared, mine = replica.dealer.claim(replica, address, any_port)
        try:
            if mine:
                server = await self._bind_first(replica, shared, given, bind, cleanup)
            elif await self._when_bound(shared):
                server = await self._bind_further(replica, shared, bind)
            else:
                server = None
        except BaseException:
            shared.give_up(replica)
            if any_port and mine:
                replica.asked[address] -= 1
            raise
        if server is None:                  # who had to bind it could not: it is our turn to try
            if any_port:
                replica.asked[address] -= 1
            return await self._share(address, any_port, given, bind, start_serving, cleanup)
        if given is not None:
            shared.given[replica] = given
        if start_serving:
            await server.start_serving()
        return server

    async def _when_bound(self, shared):
        waiter = self.create_future()

        def tell(bound):
            with contextlib.suppress(RuntimeError):         # closed
                self.call_soon_threadsafe(lambda: waiter.done() or waiter.set_result(bound.result()))

        shared.bound.add_done_callback(tell)
        return await waiter

    async def _bind_first(self, replica, shared, given, bind, cleanup):
        own = None if given is None else given.dup()
        try:
            server = await bind(own)
        except BaseException:
            if own is not None:
                own.close()
            with shared.dealer.lock:
                shared.dealer.shared.pop(shared.key, None)
            shared.bound.set_result(False)
            raise
        if cleanup:
            path = server._sockets[0].getsockname()
            if path and path[0] not in (0, "\0"):
                with contextlib.suppress(FileNotFoundError):
                    shared.unlink = path, os.stat(path).st_ino
        shared.open(replica, self, server._sockets)
        return server

    async def _bind_further(self, replica, shared, bind):
        socks = shared.join(replica, self)
        try:
            server = await bind(socks[0])
        except BaseException:
            for sock in socks:
                self._seats[sock].close()
                sock.close()
            raise
        server._sockets.extend(socks[1:])
        return server

    def _start_serving(self, protocol_factory, sock, *options, context=None):
        if context is not None:             # since Python 3.15, as the last of the options
            options += context,
        if isinstance(protocol_factory, Isolating):
            protocol_factory.sockets.add(sock)
        seat = self._seats.get(sock) if self._seats else None
        if seat is None:
            super()._start_serving(protocol_factory, sock, *options)
        else:
            seat.start(protocol_factory, *options)

    def _stop_serving(self, sock):
        for isolated in self._isolated or ():
            if sock in isolated.sockets:
                isolated.stopped(sock)
        seat = self._seats.get(sock) if self._seats else None
        if seat is None:
            super()._stop_serving(sock)
        else:
            sock.close()
            seat.close()

    def run_forever(self):
        replica = current()
        if replica is None:
            return super().run_forever()
        return replica.run_forever(self, super().run_forever)

    def run_until_complete(self, future):
        """Run until the future or coroutine is done; returns its result or raises its exception."""
        replica = current()
        if replica is None:
            return super().run_until_complete(future)
        return replica.run_until_complete(self, future, super().run_until_complete)


def _identity(sock):
    """The same for every duplicate of a socket."""
    status = os.fstat(sock.fileno())
    return "socket", status.st_dev, status.st_ino
