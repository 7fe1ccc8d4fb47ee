"""The echo servers of the echo rows, in a process of their own; see `rows` for what each is to show.

They are written the way their API is meant to be used: what comes in is written back, nothing else is done.
"""

import asyncio
import json
import os
import socket
import traceback

BUFFER_SIZE = 1 << 18      # as much as asyncio's own transports read at once
BACKLOG = 1024


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


async def serve_protocol(size):
    return _port_of(await asyncio.get_running_loop().create_server(Echo, "127.0.0.1", 0, backlog=BACKLOG))


async def serve_buffered(size):
    return _port_of(await asyncio.get_running_loop().create_server(BufferedEcho, "127.0.0.1", 0, backlog=BACKLOG))


async def serve_streams(size):
    async def handle(reader, writer):
        while data := await reader.read(read_size):
            writer.write(data)
            await writer.drain()
        writer.close()

    read_size = max(size, 1 << 16)
    return _port_of(await asyncio.start_server(handle, "127.0.0.1", 0, backlog=BACKLOG))


async def serve_sock(size):
    loop = asyncio.get_running_loop()
    read_size = max(size, 1 << 16)
    tasks = set()
    listener = socket.create_server(("127.0.0.1", 0), backlog=BACKLOG)
    listener.setblocking(False)

    def start(coroutine):
        task = loop.create_task(coroutine)
        tasks.add(task)
        task.add_done_callback(ended)

    def ended(task):
        tasks.discard(task)
        if error := task.exception():      # ends the server, or it would go unseen
            traceback.print_exception(error)
            os._exit(1)

    async def handle(connection):
        with connection:
            while data := await loop.sock_recv(connection, read_size):
                await loop.sock_sendall(connection, data)

    async def accept():
        while True:
            connection, _ = await loop.sock_accept(listener)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)     # as transports do
            start(handle(connection))

    start(accept())
    return listener.getsockname()[1]


SERVERS = {"protocol": serve_protocol, "buffered": serve_buffered, "streams": serve_streams, "sock": serve_sock}


def _port_of(server):
    return server.sockets[0].getsockname()[1]


def announce(port, loop_class):
    """Tell the parent that connections are served."""
    print(json.dumps({"port": port, "loop": loop_class}), flush=True)


async def serve(settings):
    from loops import check_running
    loop_class = check_running(settings["loop"])
    announce(await SERVERS[settings["kind"]](settings["size"]), loop_class)
    await asyncio.Event().wait()           # until killed


def main():
    from loops import enter_child, factory_of
    settings = enter_child()
    with asyncio.Runner(loop_factory=factory_of(settings["loop"])) as runner:
        runner.run(serve(settings))


if __name__ == "__main__":
    main()
