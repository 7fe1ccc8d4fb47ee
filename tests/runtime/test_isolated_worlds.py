"""What holds for servers with a world for each connection, and for no others; see test_isolated_servers.py."""

import asyncio
import contextlib
import gc
import logging
import queue
import socket
import threading
import time

import gmploop
import pytest
from gmploop.isolated import Connection
from support import outcome

from .serving_isolated import GONE, HOST, EchoProtocol, ask, connect, echo, no_goroutines, port_of, until

pytestmark = pytest.mark.timeout(60)


@pytest.fixture
def runtime(errors):
    """A coroutine by gmploop.run(), for what is specified of isolated connections only."""
    def runner(coro, procs=2, timeout=30, **options):
        async def main():
            asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
            async with asyncio.timeout(timeout):
                return await coro
        return gmploop.run(main(), procs=procs, **options)
    return runner


def client_of(handler):
    """A loop that has run, and a client of its server, which is closed; the handler has written an "a" and lives."""
    async def main():
        server = await gmploop.start_server(handler, HOST, 0)
        client = socket.create_connection((HOST, port_of(server)))
        client.setblocking(False)
        assert await asyncio.get_running_loop().sock_recv(client, 1) == b"a"
        server.close()
        return client
    loop = gmploop.new_event_loop()
    client = loop.run_until_complete(main())
    client.settimeout(10)
    return loop, client


def test_each_connection_has_a_world_of_its_own(runtime):
    worlds = []

    async def tells(reader, writer):
        worlds.append(asyncio.get_running_loop())
        assert writer.transport._loop is worlds[-1]
        await echo(reader, writer)

    async def main():
        async with await gmploop.start_server(tells, HOST, 0) as server:
            for _ in range(3):
                assert await ask(server, b"a", 1) == b"a"
            await no_goroutines()
            assert len({id(world) for world in [*worlds, asyncio.get_running_loop()]}) == 4
    runtime(main())


def test_a_connection_cancelled_before_its_handler_begins_just_ends(runtime, monkeypatch, recwarn):
    attach = Connection._attach

    def attach_and_cancel(connection, transport):
        attach(connection, transport)
        connection.world.goroutine.cancel()
    monkeypatch.setattr(Connection, "_attach", attach_and_cancel)

    async def main():
        async with await gmploop.start_server(echo, HOST, 0) as server:
            reader, writer = await connect(server)
            assert await reader.read() == b""
            writer.close()
            await no_goroutines()
    runtime(main())
    gc.collect()
    assert not [str(warning.message) for warning in recwarn]


def test_handlers_run_on_different_threads_at_once(runtime):
    """Two that wait for each other, each holding its thread."""
    meet = threading.Barrier(2)

    async def blocks(reader, writer):
        await reader.readexactly(1)
        meet.wait(20)
        writer.close()

    async def main():
        async with await gmploop.start_server(blocks, HOST, 0) as server:
            await asyncio.gather(ask(server), ask(server))
    runtime(main())


def test_busy_connections_share_the_ps(runtime):
    """A P that has nothing to do steals: neither of two does nearly all, unless the machine is busy elsewhere."""
    def runs():
        return [proc["runs"] for proc in gmploop.stats()["per_proc"][:2]]

    async def works(reader, writer):
        await reader.readexactly(1)
        for _ in range(20):
            end = time.thread_time() + 0.0005
            while time.thread_time() < end:
                pass
            await asyncio.sleep(0)
        writer.close()

    async def main():
        before = runs()
        async with await gmploop.start_server(works, HOST, 0) as server:
            await asyncio.gather(*[ask(server) for _ in range(32)])
        turns = [after - old for after, old in zip(runs(), before, strict=True)]
        assert sum(turns) >= 32 * 20
        return min(turns) / sum(turns)
    assert any(runtime(main()) > 0.1 for _ in range(5))


@pytest.mark.parametrize("procs", [1, 2])
def test_two_handlers_that_block_do_not_hold_up_a_third(runtime, procs):
    release = threading.Event()

    async def handler(reader, writer):
        if await reader.readexactly(1) == b"b":
            release.wait(30)
        writer.write(b"done")
        writer.close()

    async def main():
        async with await gmploop.start_server(handler, HOST, 0) as server:
            blocked = [asyncio.create_task(ask(server, b"b")) for _ in range(2)]
            for _ in range(10):
                assert await ask(server, b"q") == b"done"
            assert not any(task.done() for task in blocked)
            release.set()
            assert await asyncio.gather(*blocked) == [b"done"] * 2
    runtime(main(), procs=procs)


def test_a_thousand_connections_come_and_go(runtime):
    async def client(server, number):
        data = b"%d" % number
        assert await ask(server, data, len(data)) == data

    async def main():
        async with await gmploop.start_server(echo, HOST, 0, backlog=200) as server:
            for start in range(0, 1000, 100):
                await asyncio.gather(*[client(server, number) for number in range(start, start + 100)])
            await no_goroutines()
            assert asyncio.all_tasks() == {asyncio.current_task()}
    runtime(main())
    gc.collect()
    assert gmploop.stats()["goroutines"] == 0
    assert not [each for each in gc.get_objects() if type(each).__name__ in ("World", "Connection")]


@pytest.mark.parametrize("where", ["a plain loop", "a goroutine"])
def test_servers_are_made_anywhere(runtime, loop_factory, where):
    async def main():
        async with await gmploop.start_server(echo, HOST, 0) as server:
            assert await ask(server, b"abc", 3) == b"abc"
        await server.wait_closed()
        return True

    async def in_goroutine():
        return await gmploop.go(main)
    if where == "a goroutine":
        assert runtime(in_goroutine())
    else:
        loop = gmploop.new_event_loop()
        assert loop.run_until_complete(main())
        loop.run_until_complete(no_goroutines())
        loop.close()


def test_what_the_handler_has_written_is_sent_after_it_has_returned(runtime):
    async def sends(reader, writer):
        await reader.readexactly(1)
        writer.write(b"a" * 3_000_000)

    async def main():
        async with await gmploop.start_server(sends, HOST, 0) as server:
            assert len(await ask(server)) == 3_000_000
    runtime(main())


def test_tasks_that_the_handler_leaves_are_cancelled(runtime):
    cancelled = []

    async def lasts():
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            cancelled.append(1)
            raise

    async def handler(reader, writer):
        await reader.readexactly(1)
        asyncio.get_running_loop().left = asyncio.create_task(lasts())
        await asyncio.sleep(0)

    async def main():
        async with await gmploop.start_server(handler, HOST, 0) as server:
            assert await ask(server) == b""
            await until(lambda: cancelled)
    runtime(main())


def test_a_protocols_world_lasts_until_its_last_task(runtime):
    ended = threading.Event()

    class Leaves(EchoProtocol):
        def data_received(self, data):
            self.transport.close()

        def connection_lost(self, exc):
            asyncio.get_running_loop().left = asyncio.create_task(self.later())

        async def later(self):
            await asyncio.sleep(0.01)
            ended.set()

    async def main():
        loop = asyncio.get_running_loop()
        async with await loop.create_server(Leaves, HOST, 0, isolate=True) as server:
            await ask(server)
            await until(ended.is_set)
    runtime(main())


def test_the_end_of_the_run_cancels_handlers(runtime):
    seen = []

    async def waits(reader, writer):
        writer.write(b"a")
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            seen.append("cancelled")
            writer.write(b"bye")
            raise

    class Waits(EchoProtocol):
        def connection_lost(self, exc):
            seen.append("lost")

    async def main():
        loop = asyncio.get_running_loop()
        one = await gmploop.start_server(waits, HOST, 0)
        two = await loop.create_server(Waits, HOST, 0, isolate=True)
        for server in one, two:
            client = socket.create_connection((HOST, port_of(server)))
            client.sendall(b"a")
            client.settimeout(10)
            clients.append(client)
            client.setblocking(False)
            assert await loop.sock_recv(client, 1) == b"a"
            server.close()
    clients = []
    runtime(main())
    assert sorted(seen) == ["cancelled", "lost"]
    for client, data in zip(clients, (b"bye", b""), strict=True):
        with client:
            client.settimeout(10)
            assert client.recv(10) == data


def test_closing_the_loop_cancels_handlers():
    ended = threading.Event()

    async def waits(reader, writer):
        writer.write(b"a")
        try:
            await asyncio.sleep(1000)
        finally:
            ended.set()

    loop, client = client_of(waits)
    loop.close()
    with client:
        assert ended.wait(10) and client.recv(1) == b""


def test_other_threads_may_close_and_look_and_nothing_else(runtime, tls):
    for options, client in ({}, {}), ({"ssl": tls.server}, {"ssl": tls.client, "server_hostname": "localhost"}):
        runtime(_other_threads(options, client))


async def _other_threads(options, client):
    writers = []

    async def tells(reader, writer):
        writers.append(writer)
        writer.write(b"a")
        await reader.read()

    async with await gmploop.start_server(tells, HOST, 0, **options) as server:
        reader, writer = await connect(server, **client)
        assert await reader.readexactly(1) == b"a"
        transport = writers[0].transport
        world = transport._loop
        assert transport.get_extra_info("peername") == writer.get_extra_info("sockname")
        assert transport.get_extra_info("sockname") == writer.get_extra_info("peername")
        assert transport.get_extra_info("nothing", 5) == 5
        for name, *args in (("write", b"x"), ("writelines", [b"x"]), ("pause_reading",), ("resume_reading",),
                            ("set_protocol", EchoProtocol()), ("set_write_buffer_limits", 10)):
            with pytest.raises(RuntimeError) as refused:
                getattr(transport, name)(*args)
            assert repr(world) in str(refused.value) and repr(asyncio.get_running_loop()) in str(refused.value)
        transport.close()
        assert await reader.read() == b""
        writer.close()
        await no_goroutines()


@pytest.mark.parametrize("method", ["close", "abort"])
def test_from_a_plain_thread_too(runtime, in_thread, method):
    writers = []

    async def tells(reader, writer):
        writers.append(writer)
        writer.write(b"a")
        await reader.read()

    async def main():
        async with await gmploop.start_server(tells, HOST, 0) as server:
            reader, writer = await connect(server)
            assert await reader.readexactly(1) == b"a"
            in_thread(getattr(writers[0].transport, method))
            assert await outcome(reader.read()) in GONE
            writer.close()
    runtime(main())


def test_objects_of_a_connection_cannot_be_awaited_elsewhere(runtime):
    streams = []

    async def tells(reader, writer):
        streams.append(reader)
        writer.write(b"a")
        await asyncio.Event().wait()

    async def main():
        server = await gmploop.start_server(tells, HOST, 0)
        reader, writer = await connect(server)
        assert await reader.readexactly(1) == b"a"
        with pytest.raises(RuntimeError, match="different loop|another loop"):
            await streams[0].read()
        writer.close()
        server.close()
    runtime(main())


def test_bad_options_are_refused(runtime):
    async def main():
        loop = asyncio.get_running_loop()
        for bad, error, match in (
                (lambda: loop.create_server(EchoProtocol, HOST, 0, isolate="yes"), TypeError, "isolate"),
                (lambda: loop.create_server(None, HOST, 0, isolate=True), TypeError, "factory"),
                (lambda: gmploop.start_server(None, HOST, 0), TypeError, "handler"),
                (lambda: gmploop.start_server(echo, HOST, 0, limit=0), ValueError, "limit"),
                (lambda: gmploop.start_server(echo, HOST, 0, limit="1"), TypeError, "limit"),
                (lambda: gmploop.start_server(echo, HOST, 0, no_such=1), TypeError, "no_such"),
                (lambda: gmploop.start_server(echo), ValueError, "host"),
                (lambda: asyncio.start_server(echo, HOST, 0, isolate=True), TypeError, "gmploop.start_server"),
                (lambda: loop.create_unix_server(EchoProtocol, "/x", isolate=1), TypeError, "isolate")):
            with pytest.raises(error, match=match):
                await bad()
    runtime(main())


def test_start_server_wants_gmploops_loop():
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        with pytest.raises(RuntimeError, match="gmploop's loops"):
            runner.run(gmploop.start_server(echo, HOST, 0))


def test_a_factory_that_uses_the_servers_loop_is_told(runtime, errors):
    class Bound(EchoProtocol):
        def __init__(self, loop):
            self._loop = loop

    async def main():
        loop = asyncio.get_running_loop()
        async with await loop.create_server(lambda: Bound(loop), HOST, 0, isolate=True) as server:
            assert await outcome(ask(server)) in GONE
            await until(lambda: errors)
    runtime(main())
    context, = errors
    errors.clear()
    assert "for the server's loop" in str(context["exception"])


def test_an_error_after_the_servers_loop_is_closed_is_logged():
    async def fails(reader, writer):
        writer.write(b"a")
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            raise ZeroDivisionError from None

    loop, client = client_of(fails)
    logged, handler = queue.SimpleQueue(), logging.Handler()
    handler.emit = logged.put
    logging.getLogger("asyncio").addHandler(handler)
    try:
        with client:
            loop.close()
            assert client.recv(1) == b""
            assert "Unhandled exception in client_connected_cb" in logged.get(timeout=10).getMessage()
    finally:
        logging.getLogger("asyncio").removeHandler(handler)


def test_quiet_connections_beside_one_that_blocks(runtime):
    """A loose bound for busy machines: a loop that is blocked would be late by 200 ms each time."""
    async def handler(reader, writer):
        with contextlib.suppress(ConnectionError):
            while await reader.read(1):
                time.sleep(0.2)
                writer.write(b"x")

    async def main():
        async with (await gmploop.start_server(handler, HOST, 0) as slow,
                    await gmploop.start_server(echo, HOST, 0) as quick):
            _, blocked = await connect(slow)
            blocked.write(b"x" * 10)
            reader, writer = await connect(quick)
            late = []
            for _ in range(50):
                start = time.perf_counter()
                writer.write(b"x")
                await reader.readexactly(1)
                late.append(time.perf_counter() - start)
                await asyncio.sleep(0.01)
            blocked.transport.abort()
            writer.close()
            assert sorted(late)[40] < 0.1
    runtime(main())
