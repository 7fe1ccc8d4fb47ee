"""Loop: the hot half is core.runtime.LoopCore, the cold half is asyncio's own Unix loop.

What is not here or in the core is inherited: create_connection with happy eyeballs, getaddrinfo's threads, servers,
subprocess set-up, the shut-down of generators and executors. So each Python brings its own fixes. The core
replaces what those parts rest on: callbacks, timers, the cycle, `_add_reader` and its kin, the socket transports.
"""

import functools
import selectors
import socket
import ssl
import sys
import weakref
from asyncio import (base_events, constants, events, format_helpers, futures, protocols, tasks, trsock, unix_events)
from asyncio.log import logger

from gmploop import accepting, config, sharing, signals, tasks as own_tasks, transports
from gmploop.core import (
    accept, batch, datagram, fdwatch, handle, runtime, socket_writer, sockop, stream, sysmon, transport)

__all__ = ["Loop"]

_BaseLoop = unix_events._UnixSelectorEventLoop


def _format_callback(callback, args, debug):
    if sys.version_info >= (3, 12, 6):
        try:
            return format_helpers._format_callback_source(callback, args, debug=debug)
        except TypeError:
            pass
    return format_helpers._format_callback_source(callback, args)


class _SelectorView:
    """The poller as asyncio's cold parts look at it: as a selector that tells what is watched."""

    poller = None

    def get_key(self, fd):
        readable, writable = self.poller.events_of(_fileno(fd))
        if not (readable or writable):
            raise KeyError(f"{fd!r} is not registered")
        mask = readable * selectors.EVENT_READ | writable * selectors.EVENT_WRITE
        return selectors.SelectorKey(fd, _fileno(fd), mask, None)

    def close(self):
        pass


_base_create_task, _NEVER_EAGER = base_events.BaseEventLoop.create_task, None
if (3, 12) <= sys.version_info < (3, 13, 1):
    _NEVER_EAGER = "staggered_race.<locals>.run_one_coro"

    def _base_create_task(loop, coro, **options):
        """asyncio's race for the first connection breaks there if its tasks start eagerly (python/cpython#124309)."""
        if getattr(coro, "__qualname__", None) == _NEVER_EAGER:
            return tasks.Task(coro, loop=loop)
        task = base_events.BaseEventLoop.create_task(loop, coro, **options)
        if getattr(task, "_source_traceback", None):
            del task._source_traceback[-1]      # this function
        return task

handle.configure(_format_callback, events.Handle, events.TimerHandle, getattr(events, "_ThreadSafeHandle", None))
transport.configure(trsock.TransportSocket, logger)
socket_writer.configure(constants._SendfileMode.TRY_NATIVE, batch_max=config.BATCH_BYTES,
                        out_max=config.BATCH_TOTAL_BYTES)
stream.configure(transports.SocketTransport, protocols.BufferedProtocol)
datagram.configure(transports.DatagramTransport)
sockop.configure(ssl.SSLSocket, socket.socket)
own_tasks.connect()
runtime.configure(tasks, futures, _base_create_task, socket.socket, _NEVER_EAGER)
runtime.set_tunables(**config.turn_tunables())
runtime.watch_by(sysmon.watch_loops)


def _report_stall(loop, frame, seconds):
    from gmploop import stalls  # not before there is one

    return stalls.report(loop, frame, seconds)


sysmon.configure(_report_stall)


def _fileno(fd):
    """The descriptor's number; ValueError as the selectors module gives it."""
    if not isinstance(fd, int):
        try:
            fd = int(fd.fileno())
        except (AttributeError, TypeError, ValueError):
            raise ValueError(f"Invalid file object: {fd!r}") from None
    if fd < 0:
        raise ValueError(f"Invalid file descriptor: {fd}")
    return fd


def _set_nodelay(sock):
    """As asyncio, and for sockets whose protocol has the number 0 too, which for streams is TCP's: servers get such
    ones from a parent or supervisor, and without TCP_NODELAY a reply in two writes takes 40 ms."""
    if sock.proto == 0 and sock.family in (socket.AF_INET, socket.AF_INET6) and sock.type == socket.SOCK_STREAM:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    else:
        base_events._set_nodelay(sock)


@functools.cache
def _tune_batches():
    batch.configure(**config.batch_tunables())


@functools.cache
def _tune_malloc():
    if config.tunes_malloc() and runtime.keep_freed_memory(config.TRIM_BYTES, config.MMAP_BYTES):
        stream.read_in_bulk(config.BULK_BYTES)


class Loop(signals.SignalLoop, sharing.SharingLoop, accepting.AcceptingLoop, runtime.LoopCore, _BaseLoop):
    """An asyncio event loop. Every method of asyncio's Unix loop is there and means the same.

    Options and errors are those of gmploop.new_event_loop(). It may be made in any thread; its methods are for the thread
    that runs it, others use call_soon_threadsafe() and asyncio.run_coroutine_threadsafe(). While a thread runs it, a timer
    made or a transport written to from another raises RuntimeError, and so does call_soon() in debug mode.
    """

    _debug_told = None      # injected by gmploop.world: called with slow_callback_duration in debug mode
    _ended_by = None        # an exception with which run_forever() shall end
    _files = None           # what gmploop.fs does its work with, once it was used
    _tls_buffer = None      # what TLS connections read into, once there is one
    _tls_buffer_size = None         # bytes; as much as asyncio reads at once
    slow_callback_duration = 0.1    # seconds; asyncio's

    def __init__(self, *, poller="auto", debug=None, write_batching=None):
        poller = config.resolve_poller(poller)
        debug = config.resolve_debug(debug)
        write_batching = config.resolve_write_batching(write_batching)
        _tune_malloc()
        if write_batching:
            _tune_batches()
        if poller == "io_uring":
            accepting.poller_uring()
        self._ssock = self._csock = None
        self._outer_wakeup_fd = -1
        super().__init__(_SelectorView())
        if debug is not None:
            self.set_debug(debug)
        self._open(poller, write_batching)
        config.say_what_runs("loops", poller, self.poller.batches, batch.why_no_ring)
        self._use_own_tasks(config.makes_own_tasks())
        self._selector.poller = self.poller
        self._internal_fds += 1                 # the poller

    def __setattr__(self, name, value):
        super().__setattr__(name, value)
        if name == "time":              # a clock of this one loop
            self._use_own_clock()
        elif name == "call_soon":
            self._use_own_call_soon()
        elif name == "slow_callback_duration":
            self._watch_for_stalls()

    def set_debug(self, enabled):
        """Switch asyncio's debug mode on or off (any truth value), while the loop runs too.

        On, calls from a wrong thread raise RuntimeError, and callbacks that take slow_callback_duration seconds or more are
        logged, long ones while they go on (`stall_ms` in the README). From any thread.
        """
        super().set_debug(enabled)
        if enabled and self._debug_told is not None:
            self._debug_told(self.slow_callback_duration)
        self._watch_for_stalls()

    def _watch_for_stalls(self):
        self._tell_stalls(sysmon.told_from(self.slow_callback_duration) if self._debug else 0)

    # -- running and closing

    def run_forever(self):
        """Run until stop() is called."""
        self._check_closed()
        self._check_running()
        if self._csock is not None and self._forked():
            self._remake_self_pipe()
        if not sysmon.has_duties():
            sysmon.set_duties(**config.sysmon_duties())
        self._watch_for_stalls()
        wakeup = self._take_wakeup_fd()
        try:
            super().run_forever()
        finally:
            if wakeup:
                self._return_wakeup_fd()
        if self._ended_by is not None:
            exc, self._ended_by = self._ended_by, None
            raise exc

    def _end_by(self, exc):
        """Have run_forever() end with an exception."""
        self._ended_by = exc
        self.stop()

    def close(self):
        """Close the loop. It must not run. Callbacks that are queued are dropped."""
        if self.is_running():
            raise RuntimeError("Cannot close a running event loop")
        if self._closed:
            return
        try:
            if self._files is not None:
                self._files.close()
            super().close()
        finally:
            self._close_core()
            self._internal_fds -= 1
            for server in self._isolated or ():
                server.cancel()             # now: what their ends report is not posted here, to be dropped

    def _add_callback(self, handle):
        """asyncio's own way to queue a handle that it made (signal handlers)."""
        if not handle._cancelled:
            self.call_soon(handle._run)

    def _add_callback_signalsafe(self, handle):
        if not handle._cancelled:
            self.call_soon_threadsafe(handle._run)

    # -- what the core calls back

    def _callback_error(self, handle, exc):
        callback, args = handle._callback, handle._args
        context = {"message": f"Exception in callback {_format_callback(callback, args, self.get_debug())}",
                   "exception": exc, "handle": handle}
        trace = getattr(handle, "_source_traceback", None)
        if trace:
            context["source_traceback"] = trace
        self.call_exception_handler(context)

    def _event_error(self, watch, exc):
        """A transport's callback failed where asyncio too lets the exception handler know and goes on."""
        self.call_exception_handler({"message": f"Exception in callback of {watch!r}", "exception": exc,
                                     "transport": watch, "protocol": getattr(watch, "_protocol", None)})

    def _check_call(self, method, callback):
        self._check_thread()
        self._check_callback(callback, method)

    def _note_source(self, handle):
        handle._source_traceback = format_helpers.extract_stack(sys._getframe().f_back)

    def _describe_entry(self, entry):
        callback = getattr(entry, "_callback", None)
        task = getattr(callback, "__self__", None)
        return (task if isinstance(task, tasks.Task) else entry), callback, getattr(entry, "_args", None)

    def _report_slow(self, what, took):
        entry, callback, args = what
        text = repr(entry)
        if callback is not None and getattr(entry, "_callback", entry) is None:     # it ran: a handle holds it no more
            head, space, tail = text[:-1].partition(" ")
            text = f"{head} {_format_callback(callback, args, True)}{space}{tail}>"
        logger.warning("Executing %s took %.3f seconds", text, took)

    def _refuse_thread(self, what):
        here = events._get_running_loop()
        raise RuntimeError(f"{what} called while another thread runs {self!r}; this thread runs {here!r}: "
                           "use call_soon_threadsafe()")

    # -- descriptors

    def _number(self, fd):
        """The descriptor's number, of a closed file object the one under which it was registered."""
        try:
            return _fileno(fd)
        except ValueError:
            number = -1 if isinstance(fd, int) else fdwatch.find_closed(self.poller, fd)
            if number < 0:
                raise
            return number

    def _ensure_fd_no_transport(self, fd):
        number = self._number(fd)
        user = runtime.transport_of(self, number) if number < 1 << 31 else None
        if user is not None:
            raise RuntimeError(f"File descriptor {fd!r} is used by transport {user!r}")

    def _add_reader(self, fd, callback, *args, context=None):
        self._check_closed()
        return fdwatch.add_io(self, self.poller, _fileno(fd), False, callback, args, fd, context)

    def _remove_reader(self, fd):
        return self._remove_io(fd, False)

    def _add_writer(self, fd, callback, *args, context=None):
        self._check_closed()
        return fdwatch.add_io(self, self.poller, _fileno(fd), True, callback, args, fd, context)

    def _remove_writer(self, fd):
        return self._remove_io(fd, True)

    def _remove_io(self, fd, writing):
        if self._closed:
            return False
        number = self._number(fd)
        return number < 1 << 31 and fdwatch.remove_io(self, self.poller, number, writing)

    # -- sockets

    async def sock_connect(self, sock, address):
        """Connect a non-blocking socket; a host name is resolved first."""
        base_events._check_ssl_socket(sock)
        if self._debug and sock.gettimeout() != 0:
            raise ValueError("the socket must be non-blocking")
        if sock.family == socket.AF_INET or (base_events._HAS_IPv6 and sock.family == socket.AF_INET6):
            resolved = await self._ensure_resolved(address, family=sock.family, type=sock.type, proto=sock.proto,
                                                   loop=self)
            _, _, _, _, address = resolved[0]
        try:
            sock.connect(address)
            return
        except (BlockingIOError, InterruptedError):
            pass
        await runtime.sock_call(self, sock, True, _connected(sock, address))

    async def sock_accept(self, sock):
        """Accept a connection on a listening non-blocking socket; returns (socket, address)."""
        conn, address = await runtime.sock_call(self, sock, False, sock.accept)
        conn.setblocking(False)
        return conn, address

    # -- transports

    def _make_socket_transport(self, sock, protocol, waiter=None, *, extra=None, server=None, context=None):
        self._ensure_fd_no_transport(sock)
        _set_nodelay(sock)
        return stream.SocketTransport(self, self.poller, sock, protocol, waiter, extra, server, context)

    def _make_ssl_transport(self, rawsock, protocol, sslcontext, waiter=None, *, server_side=False,
                            server_hostname=None, extra=None, server=None, context=None, **timeouts):
        self._ensure_fd_no_transport(rawsock)
        ssl_protocol = transports.SSLProtocol(self, protocol, sslcontext, waiter, server_side, server_hostname,
                                              **timeouts)
        self._make_socket_transport(rawsock, ssl_protocol, extra=extra, server=server, context=context)
        return ssl_protocol._app_transport

    async def start_tls(self, transport, protocol, sslcontext, *, server_side=False, server_hostname=None, **timeouts):
        """Upgrade a transport to TLS. What a stream reader has read and nobody has taken goes to the TLS layer."""
        if not isinstance(sslcontext, ssl.SSLContext):
            raise TypeError(f"sslcontext is expected to be an instance of ssl.SSLContext, got {sslcontext!r}")
        if not getattr(transport, "_start_tls_compatible", False):
            raise TypeError(f"transport {transport!r} is not supported by start_tls()")
        waiter = self.create_future()
        ssl_protocol = transports.SSLProtocol(self, protocol, sslcontext, waiter, server_side, server_hostname,
                                              call_connection_made=False, **timeouts)
        if isinstance(transport, stream.SocketTransport):
            transport._unread(transports.take_unread(protocol))
        transport.pause_reading()           # until connection_made has run
        transport.set_protocol(ssl_protocol)
        begin = [self.call_soon(ssl_protocol.connection_made, transport), self.call_soon(transport.resume_reading)]
        try:
            await waiter
        except BaseException:
            transport.close()
            for handle in begin:
                handle.cancel()
            raise
        finally:
            del waiter                      # its exception's traceback holds this frame: no cycle
        return ssl_protocol._app_transport

    def _make_read_pipe_transport(self, pipe, protocol, waiter=None, extra=None):
        return transports.ReadPipeTransport(self, pipe, protocol, waiter, extra)

    def _make_write_pipe_transport(self, pipe, protocol, waiter=None, extra=None):
        return transports.WritePipeTransport(self, pipe, protocol, waiter, extra)

    if sys.version_info < (3, 14):
        def _child_watcher_callback(self, pid, returncode, transp):
            self.call_soon_threadsafe(transports.process_exited, transp, returncode)

    def _make_datagram_transport(self, sock, protocol, address=None, waiter=None, extra=None):
        self._ensure_fd_no_transport(sock)
        return datagram.DatagramTransport(self, self.poller, sock, protocol, address, waiter, extra)

    async def _sendfile_native(self, transp, file, offset, count):
        if not isinstance(transp, stream.SocketTransport):
            return await super()._sendfile_native(transp, file, offset, count)
        resume_reading = transp.is_reading()
        transp.pause_reading()
        await transp._make_empty_waiter()
        transp._lend_fd()
        try:
            return await self.sock_sendfile(transp._sock, file, offset, count, fallback=False)
        finally:
            transp._take_back_fd(self.poller)
            transp._reset_empty_waiter()
            if resume_reading:
                transp.resume_reading()

    def _start_serving(self, protocol_factory, sock, sslcontext=None, server=None, *options, **named):
        # asyncio's weak set finds abandoned transports, which the poller holds here. Ten times as dear as a set.
        if isinstance(getattr(server, "_clients", None), weakref.WeakSet):
            server._clients = set(server._clients)
        super()._start_serving(protocol_factory, sock, sslcontext, server, *options, **named)

    def _accept_connection(self, protocol_factory, sock, sslcontext=None, server=None, backlog=100,
                           ssl_handshake_timeout=constants.SSL_HANDSHAKE_TIMEOUT,
                           ssl_shutdown_timeout=constants.SSL_SHUTDOWN_TIMEOUT, context=None):
        # context: since Python 3.15; each connection gets a copy of it. Earlier Pythons neither give nor take it.
        more = () if context is None else (context,)
        options = sslcontext, server, backlog, ssl_handshake_timeout, ssl_shutdown_timeout, *more
        try:
            quick = (not self._debug and type(self)._serve_connection is Loop._serve_connection
                     and accept.accepts(sock))
            if isinstance(protocol_factory, sharing.Isolating):
                if quick and sslcontext is None:
                    protocol_factory.accept(sock, server, backlog + 1, context)
                else:
                    self._accept_each(protocol_factory, sock, *options)
            elif quick:
                make = protocol_factory
                if sslcontext is not None:
                    make = functools.partial(transports.SSLProtocol.of_server, self, protocol_factory, sslcontext,
                                             ssl_handshake_timeout, ssl_shutdown_timeout)
                accept.accept_connections(self, self.poller, sock, make, server, backlog + 1, context)
            else:
                self._accept_each(protocol_factory, sock, *options)
        except OSError as exc:
            if exc.errno not in accepting.OUT_OF_RESOURCES:
                raise
            self._accept_later(exc, protocol_factory, sock, *options)

    def _accept_each(self, protocol_factory, sock, sslcontext, server, backlog, *options):
        for _ in range(backlog + 1):
            try:
                conn, address = sock.accept()
            except ConnectionAbortedError:
                continue
            except (BlockingIOError, InterruptedError):
                return
            self._serve_connection(protocol_factory, conn, address, sslcontext, server, backlog, *options)

    def _serve_connection(self, protocol_factory, conn, address, sslcontext, server, backlog, ssl_handshake_timeout,
                          ssl_shutdown_timeout, context=None):
        if self._debug:
            logger.debug("%r got a new connection from %r: %r", server, address, conn)
        conn.setblocking(False)
        options = {"extra": {"peername": address}, "server": server}
        if sslcontext:
            options |= {"sslcontext": sslcontext, "server_side": True, "ssl_handshake_timeout": ssl_handshake_timeout,
                        "ssl_shutdown_timeout": ssl_shutdown_timeout}
        serve = self._serve_accepted
        if isinstance(protocol_factory, sharing.Isolating):
            protocol_factory, serve = None, protocol_factory.serve
        if context is None:
            serve(protocol_factory, conn, **options)
        else:
            own = context.copy()
            own.run(serve, protocol_factory, conn, context=own, **options)

    def _serve_accepted(self, protocol_factory, conn, sslcontext=None, **options):
        """Without a task for each connection, as asyncio makes one; what fails is told as there, in debug mode."""
        protocol = transport = waiter = None
        if sslcontext:
            waiter = self.create_future()
            options["sslcontext"] = sslcontext
        try:
            protocol = protocol_factory()
            make = self._make_ssl_transport if waiter is not None else self._make_socket_transport
            transport = make(conn, protocol, waiter=waiter, **options)
        except (SystemExit, KeyboardInterrupt):
            raise
        except BaseException as exc:
            conn.close()
            self._accept_failed(exc, protocol, transport)
        else:
            if waiter is not None:
                waiter.add_done_callback(functools.partial(self._handshake_ended, protocol, transport))

    def _handshake_ended(self, protocol, transport, waiter):
        if waiter.cancelled() or waiter.exception() is None:
            return
        transport.close()
        self._accept_failed(waiter.exception(), protocol, transport)

    def _accept_failed(self, exc, protocol, transport):
        if self._debug:
            context = {"message": "Error on transport creation for incoming connection", "exception": exc}
            if protocol is not None:
                context["protocol"] = protocol
            if transport is not None:
                context["transport"] = transport
            self.call_exception_handler(context)

    def _accept_later(self, exc, protocol_factory, sock, *rest):
        """Out of descriptors or memory: leave the clients in the backlog, say so once, look again in a second."""
        self.call_exception_handler({"message": "socket.accept() out of system resource", "exception": exc,
                                     "socket": trsock.TransportSocket(sock)})
        self._remove_reader(sock.fileno())
        self.call_later(constants.ACCEPT_RETRY_DELAY, self._accept_again, protocol_factory, sock, *rest)

    def _accept_again(self, protocol_factory, sock, *rest):
        if sock.fileno() != -1:             # the server may have been closed meanwhile
            self._start_serving(protocol_factory, sock, *rest)


def _connected(sock, address):
    """A call that raises BlockingIOError until the connection is made, or the error that ended it."""
    asked = False

    def check():
        nonlocal asked
        if not asked:
            asked = True
            raise BlockingIOError
        err = sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if err != 0:
            raise OSError(err, f"Connect call failed {address}")
    return check
