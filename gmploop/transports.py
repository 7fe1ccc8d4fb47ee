"""Transports that are not hot: asyncio's own pipe, subprocess and TLS classes, with what they lack on some Pythons.

Each difference from the class that is inherited from is named where it is made. The hot transports (sockets) are in
`core.stream` and `core.datagram`; the two classes here of these names are what isinstance() sees of them.
"""

import contextvars
import functools
import ssl
from asyncio import log, sslproto, streams, transports, unix_events

from gmploop.core import buffered, reader, tls

__all__ = ["DatagramTransport", "ReadPipeTransport", "SSLProtocol", "SSLTransport", "SocketTransport",
           "WritePipeTransport", "process_exited", "take_unread"]


class StreamReader(streams.StreamReader):
    """asyncio's, with a compiled read() and wait: what readers of our transports are made."""

    read = reader.read
    _wait_for_data = reader.wait_for_data


reader.configure(streams.StreamReaderProtocol, streams.StreamReader, StreamReader)
tls.configure(sslproto.SSLProtocolState, sslproto.SSLAgainErrors, ssl.SSLObject, ssl.MemoryBIO,
              getattr(getattr(ssl, "_ssl", None), "_SSLSocket", None), log.logger)


class SocketTransport(transports._FlowControlMixin):
    """What isinstance() and __class__ say of the core's transports, which cannot inherit from asyncio's classes."""


class DatagramTransport(transports._FlowControlMixin, transports.DatagramTransport):
    """The same for datagrams."""


def as_bytes(data):
    """data itself, unless it is a view whose items are not bytes: len() and slices of those do not count bytes."""
    return bytes(data) if isinstance(data, memoryview) and (data.itemsize != 1 or data.ndim != 1) else data


class ReadPipeTransport(unix_events._UnixReadPipeTransport):
    """Reads run in the context in which the transport was made, also after somebody else resumed reading."""

    def __init__(self, *args, **kwargs):
        self._context = contextvars.copy_context()
        super().__init__(*args, **kwargs)

    def _read_ready(self):
        self._context.run(super()._read_ready)


class WritePipeTransport(unix_events._UnixWritePipeTransport):
    """Views of any format are written whole; abort() after the end does nothing."""

    def write(self, data):
        super().write(as_bytes(data))

    def abort(self):
        if self._loop is not None:
            super().abort()


def _for_its_thread(name):
    """The method of asyncio's TLS transport, which another thread than the one that runs the loop may not call."""
    method = getattr(sslproto._SSLProtocolTransport, name)

    @functools.wraps(method)
    def checked(self, *args, **kwargs):
        tls.here(self, name)
        return method(self, *args, **kwargs)
    return checked


class SSLTransport(sslproto._SSLProtocolTransport):
    """What the application writes to: asyncio's, with a compiled write(). Threads may do with it what they may with a
    socket's transport."""

    write = tls.write
    pause_reading, resume_reading, set_protocol, set_read_buffer_limits, set_write_buffer_limits, writelines = map(
        _for_its_thread, ("pause_reading", "resume_reading", "set_protocol", "set_read_buffer_limits",
                          "set_write_buffer_limits", "writelines"))

    def close(self):
        if tls.foreign(self):
            self._loop.call_soon_threadsafe(self.close)
        else:
            super().close()

    def abort(self):
        if tls.foreign(self):
            self._loop.call_soon_threadsafe(self.abort)
        else:
            super().abort()


class _Handshake:
    """The waiter of a handshake for which nobody waits: one that fails closes the transport."""

    __slots__ = ("_loop", "_protocol", "_transport")

    def __init__(self, loop, protocol):
        self._loop, self._protocol, self._transport = loop, protocol, None

    def cancelled(self):
        return False

    def set_result(self, result):
        pass

    def set_exception(self, exc):
        self._loop.call_soon(self._failed, exc() if isinstance(exc, type) else exc)

    def _failed(self, exc):
        self._transport.close()
        self._loop._accept_failed(exc, self._protocol, self._transport)


class SSLProtocol(tls.SSLCore, sslproto.SSLProtocol):
    """asyncio's handshake and farewell over the compiled data path, where views of any format are written whole. A
    server's failed handshake leaves no cycle through its traceback. A loop's connections read into one buffer, which
    each empties as soon as it is filled."""

    def __init__(self, loop, *args, **kwargs):
        self.max_size = 0           # of the buffer that the base class makes
        super().__init__(loop, *args, **kwargs)
        del self.max_size
        if loop._tls_buffer is None:
            loop._tls_buffer = buffered.Buffer(loop._tls_buffer_size or self.max_size)
        self._share_buffer(loop._tls_buffer)

    @classmethod
    def of_server(cls, loop, protocol_factory, sslcontext, handshake_timeout, shutdown_timeout):
        """The TLS layer of a connection that a server has accepted, over a protocol of the factory."""
        protocol = protocol_factory()
        waiter = _Handshake(loop, protocol)
        self = cls(loop, protocol, sslcontext, waiter, True, ssl_handshake_timeout=handshake_timeout,
                   ssl_shutdown_timeout=shutdown_timeout)
        waiter._transport = self._app_transport
        return self

    def _do_handshake(self):
        if self._incoming.pending or not self._server_side:     # a server has nothing to say before the client does
            super()._do_handshake()

    def _set_app_protocol(self, app_protocol):
        super()._set_app_protocol(app_protocol)
        reader.hasten_reader(app_protocol)

    def _get_app_transport(self):
        if self._app_transport is None and not self._app_transport_created:
            self._app_transport, self._app_transport_created = SSLTransport(self._loop, self), True
        return super()._get_app_transport()

    def _on_handshake_complete(self, handshake_exc):
        try:
            super()._on_handshake_complete(handshake_exc)
            if isinstance(handshake_exc, BaseException) and self._server_side:
                handshake_exc.__traceback__ = None
        finally:
            del handshake_exc       # this frame hangs on its traceback: no cycle


def take_unread(protocol):
    """What a stream reader holds unread, taken from it: behind start_tls() it belongs to the TLS layer."""
    reader = protocol._stream_reader if isinstance(protocol, streams.StreamReaderProtocol) else None
    if reader is None or not reader._buffer:
        return b""
    data = bytes(reader._buffer)
    reader._buffer.clear()
    reader._maybe_resume_transport()
    return data


def process_exited(transport, returncode):
    """Tell a subprocess transport of its child's end, and who waits for that: before the pipes are at their end, which
    a grandchild may put off. (Later Pythons do so themselves.)"""
    transport._process_exited(returncode)
    waiters = transport._exit_waiters
    if waiters:
        transport._exit_waiters = type(waiters)()
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(returncode)
