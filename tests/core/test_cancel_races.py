"""Ends and cancels that race with what the kernel still has to tell: on every poller, and on stock."""

import asyncio
import os
import socket
import time

import pytest
from support import Recorder, open_fds, turns

pytestmark = pytest.mark.timeout(60)


# -- a duplicate keeps the registration of a closed number alive (libuv/libuv#4323)

async def end_of_reader(loop, source, sink):
    ended = loop.create_future()
    loop.add_reader(source, lambda: os.read(source, 9) or ended.done() or ended.set_result(None))
    os.write(sink, b"x")
    os.close(sink)
    await ended
    loop.remove_reader(source)
    os.close(source)


async def end_of_transport(loop, source, sink):
    _, end = await loop.connect_read_pipe(Recorder, os.fdopen(source, "rb", 0))
    os.write(sink, b"x")
    os.close(sink)
    await end.lost


@pytest.mark.parametrize("end", [end_of_reader, end_of_transport])
def test_a_pipe_that_has_ended_and_lives_on_in_a_duplicate_disturbs_nobody(run, loop, end):
    """Its number's next owner hears its own data only, is not closed, and the loop sleeps."""
    async def main():
        source, sink = os.pipe()
        kept = os.dup(source)
        await end(loop, source, sink)
        new_source, new_sink = os.pipe()
        if new_source != source:
            os.dup2(new_source, source)
            os.close(new_source)
        inode, heard = os.fstat(source).st_ino, []
        loop.add_reader(source, lambda: heard.append(os.read(source, 9)))
        await turns(3)
        cpu = time.process_time()
        await asyncio.sleep(0.2)                # a measuring pause
        assert time.process_time() - cpu < 0.05
        assert not heard and os.fstat(source).st_ino == inode
        os.write(new_sink, b"new")
        while not heard:
            await asyncio.sleep(0.001)
        assert heard == [b"new"]
        loop.remove_reader(source)
        for fd in kept, source, new_sink:
            os.close(fd)
    run(main())


# -- descriptors that a cancelled operation brings all the same (tokio-rs/tokio-uring#129)

def test_a_thousand_accepts_cancelled_while_clients_come_lose_no_client_and_no_descriptor(run, loop):
    async def main():
        with socket.create_server(("127.0.0.1", 0), backlog=1000) as server:
            server.setblocking(False)
            before, served = open_fds(), 0
            for number in range(1000):
                task = loop.create_task(loop.sock_accept(server))
                await turns(number % 3)
                client = socket.create_connection(server.getsockname())
                await turns(number // 3 % 3)
                task.cancel()
                accepted, = await asyncio.gather(task, return_exceptions=True)
                served += isinstance(accepted, tuple)
                if not isinstance(accepted, tuple):
                    accepted = await asyncio.wait_for(loop.sock_accept(server), 5)
                with accepted[0] as sock, client:
                    sock.send(b"hello")
                    client.settimeout(3)
                    assert client.recv(10) == b"hello"
                del accepted, task
            assert open_fds() == before
            assert 0 < served < 1000
    run(main(), timeout=50)


def test_a_thousand_connections_cancelled_as_they_are_made_leave_no_descriptor(run, loop):
    """The server's side of each sees its end; the server serves those who come after."""
    async def main():
        made = []

        class Served(Recorder):
            def __init__(self):
                super().__init__()
                made.append(self)
        server = await loop.create_server(Served, "127.0.0.1", 0, backlog=1000)
        address = server.sockets[0].getsockname()
        await turns(2)
        before, kept = open_fds(), 0
        for number in range(1000):
            task = loop.create_task(loop.create_connection(Recorder, *address))
            await turns(number % 12)
            task.cancel()
            connection, = await asyncio.gather(task, return_exceptions=True)
            if isinstance(connection, tuple):
                kept += 1
                connection[0].abort()
                await connection[1].lost
            del connection, task
        while open_fds() != before:
            await asyncio.sleep(0.001)
        for end in made:
            await end.lost
        assert 0 < kept < 1000
        transport, end = await loop.create_connection(Recorder, *address)
        while not (served := [other for other in made if not other.lost.done()]):
            await asyncio.sleep(0.001)
        served[0].transport.write(b"hello")
        await end.received(5)
        transport.abort()
        await end.lost
        await served[0].lost
        server.close()
    run(main(), timeout=50)
