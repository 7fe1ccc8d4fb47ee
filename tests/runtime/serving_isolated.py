"""What the tests of isolated connections share: handlers, and clients."""

import asyncio
import contextlib

import gmploop

HOST = "127.0.0.1"
GONE = b"", ConnectionResetError        # what reading gives when the peer has closed; the latter if it left data unread


def port_of(server):
    return server.sockets[0].getsockname()[1]


def connect(server, **options):
    return asyncio.open_connection(HOST, port_of(server), **options)


async def ask(server, data=b"x", count=None, **options):
    """What comes back for `data`, up to `count` bytes or the end."""
    reader, writer = await connect(server, **options)
    try:
        writer.write(data)
        return await (reader.read() if count is None else reader.readexactly(count))
    finally:
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()


async def until(predicate):
    while not predicate():
        await asyncio.sleep(0.001)


async def no_goroutines():
    await until(lambda: gmploop.stats()["goroutines"] == 0)


async def echo(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.close()


class EchoProtocol(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)
