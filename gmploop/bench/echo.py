"""The echo servers of the echo, unix, tls, udp, growth and memory rows, in a process of their own; see `rows` for what each is to show.

They are written the way their API is meant to be used: what comes in is written back, nothing else is done.
"""

import asyncio
import json
import os
import socket
import ssl
import traceback

BUFFER_SIZE = 1 << 18      # as much as asyncio's own transports read at once
BACKLOG = 1024
HOST = "127.0.0.1"


class Echo(asyncio.Protocol):
    __slots__ = ("transport",)

    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)


class BufferedEcho(asyncio.BufferedProtocol):
    __slots__ = ("transport", "view")

    def connection_made(self, transport):
        self.transport = transport
        self.view = memoryview(bytearray(BUFFER_SIZE))

    def get_buffer(self, sizehint):
        return self.view

    def buffer_updated(self, nbytes):
        # a copy, because a transport may keep what the socket did not take, and the buffer is filled again meanwhile
        self.transport.write(bytes(self.view[:nbytes]))


class EchoDatagrams(asyncio.DatagramProtocol):
    __slots__ = ("transport",)

    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, address):
        self.transport.sendto(data, address)


async def listen(where, factory):
    loop = asyncio.get_running_loop()
    if where.path:
        return await loop.create_unix_server(factory, where.path, backlog=BACKLOG)
    return _port_of(await loop.create_server(factory, HOST, 0, backlog=BACKLOG, ssl=where.tls))


async def serve_protocol(where):
    return await listen(where, Echo)


async def serve_buffered(where):
    return await listen(where, BufferedEcho)


async def serve_streams(where):
    async def handle(reader, writer):
        while data := await reader.read(read_size):
            writer.write(data)
            await writer.drain()
        writer.close()

    read_size = max(where.size, 1 << 16)
    if where.path:
        return await asyncio.start_unix_server(handle, where.path, backlog=BACKLOG)
    return _port_of(await asyncio.start_server(handle, HOST, 0, backlog=BACKLOG, ssl=where.tls))


def start(coroutine, tasks=set()):
    """Run a coroutine as a task. Its error ends the server, or it would go unseen."""
    def ended(task):
        tasks.discard(task)
        if error := task.exception():
            traceback.print_exception(error)
            os._exit(1)

    task = asyncio.get_running_loop().create_task(coroutine)
    tasks.add(task)
    task.add_done_callback(ended)


async def serve_sock(where):
    loop = asyncio.get_running_loop()
    read_size = max(where.size, 1 << 16)
    if where.path:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(where.path)
        listener.listen(BACKLOG)
    else:
        listener = socket.create_server((HOST, 0), backlog=BACKLOG)
    listener.setblocking(False)

    async def handle(connection):
        with connection:
            while data := await loop.sock_recv(connection, read_size):
                await loop.sock_sendall(connection, data)

    async def accept():
        while True:
            connection, _ = await loop.sock_accept(listener)
            if not where.path:
                connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)     # as transports do
            start(handle(connection))

    start(accept())
    return None if where.path else listener.getsockname()[1]


async def serve_datagrams(where):
    transport, _ = await asyncio.get_running_loop().create_datagram_endpoint(EchoDatagrams, local_addr=(HOST, 0))
    return transport.get_extra_info("sockname")[1]


async def serve_datagram_sock(where):
    loop = asyncio.get_running_loop()
    sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    sock.bind((HOST, 0))
    sock.setblocking(False)

    async def echo():
        while True:
            data, address = await loop.sock_recvfrom(sock, 1 << 16)
            await loop.sock_sendto(sock, data, address)

    start(echo())
    return sock.getsockname()[1]


SERVERS = {"protocol": serve_protocol, "buffered": serve_buffered, "streams": serve_streams, "sock": serve_sock}
DATAGRAM_SERVERS = {"protocol": serve_datagrams, "sock": serve_datagram_sock}


def _port_of(server):
    return server.sockets[0].getsockname()[1]


def announce(port, loop_class):
    """Tell the parent that connections are served."""
    print(json.dumps({"port": port if isinstance(port, int) else 0, "loop": loop_class}), flush=True)


class Where:
    """Where and how a server listens: `path` of a Unix socket or "", `tls` context or None, `size` of messages."""

    def __init__(self, settings):
        self.size, self.tls = settings["size"], None
        self.path = settings["path"] if settings["net"] == "unix" else ""
        if settings["net"] == "tls":
            self.tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
            self.tls.load_cert_chain(settings["certificate"], settings["key"])


async def serve(settings):
    from loops import check_running
    loop_class = check_running(settings["loop"])
    servers = DATAGRAM_SERVERS if settings["net"] == "udp" else SERVERS
    announce(await servers[settings["kind"]](Where(settings)), loop_class)
    await asyncio.Event().wait()           # until killed


if __name__ == "__main__":
    from loops import run_child
    run_child(serve)
