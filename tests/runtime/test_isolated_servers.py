"""Servers with a world for each connection: start_server(), create_server(isolate=True).

What asyncio's servers do too is asserted of theirs as well: `serve` starts either kind on the loop under test.
"""

import asyncio
import contextlib
import contextvars
import os
import resource
import socket
import ssl
import sys
import threading
import types

import gmploop
import pytest
from support import LOOPS, finish, outcome, settle

from .serving_isolated import GONE, HOST, EchoProtocol, ask, connect, echo, no_goroutines, port_of, until

pytestmark = pytest.mark.timeout(60)
var = contextvars.ContextVar("var", default="unset")


@pytest.fixture(params=["asyncio", "gmploop", "isolated"])
def serve(request):
    """How a server is made: asyncio's on its loop and on gmploop's, and the kind under test."""
    isolated = request.param == "isolated"
    start = gmploop.start_server if isolated else asyncio.start_server
    unix = gmploop.start_unix_server if isolated else asyncio.start_unix_server

    def create(factory, *args, **options):
        more = {"isolate": True} if isolated else {}
        return asyncio.get_running_loop().create_server(factory, *args, **options, **more)
    return types.SimpleNamespace(kind=request.param, isolated=isolated, start=start, unix=unix, create=create)


@pytest.fixture
def loop(serve, errors, body_failed):
    loop = LOOPS["asyncio" if serve.kind == "asyncio" else "gmploop"]()
    loop.set_exception_handler(lambda _, context: errors.append(context))
    yield loop
    left = finish(loop)
    assert body_failed() or not left, "tasks left behind"


@pytest.fixture
def run(loop, serve):
    """A coroutine on the loop under test. What it has left of connections is over when it returns."""
    async def body(coro, timeout):
        async with asyncio.timeout(timeout):
            result = await coro
            if serve.isolated:
                await no_goroutines()
            return result
    return lambda coro, timeout=20: loop.run_until_complete(body(coro, timeout))


# -- as any server

def test_streams_echo(run, serve):
    async def main():
        async with await serve.start(echo, HOST, 0) as server:
            reader, writer = await connect(server)
            for size in (1, 1000, 300_000):
                writer.write(b"a" * size)
                assert await reader.readexactly(size) == b"a" * size
            writer.write_eof()
            assert await reader.read() == b""
            writer.close()
    run(main())


def test_protocols_echo(run, serve):
    async def main():
        async with await serve.create(EchoProtocol, HOST, 0) as server:
            assert await ask(server, b"abc", 3) == b"abc"
    run(main())


def test_the_server_has_its_methods(run, serve):
    async def main():
        server = await serve.start(echo, HOST, 0, start_serving=False, backlog=5, reuse_address=True)
        assert isinstance(server, asyncio.Server) and not server.is_serving()
        assert server.get_loop() is asyncio.get_running_loop()
        await server.start_serving()
        assert server.is_serving() and len(server.sockets) == 1
        assert await ask(server, b"abc", 3) == b"abc"
        port = port_of(server)
        server.close()
        assert not server.is_serving() and server.sockets == ()
        await server.wait_closed()
        with pytest.raises(OSError):
            await asyncio.open_connection(HOST, port)
        again = await serve.start(echo, HOST, port)
        again.close()
    run(main())


def test_serve_forever_is_ended_by_cancelling_it(run, serve):
    async def main():
        server = await serve.start(echo, HOST, 0)
        task = asyncio.create_task(server.serve_forever())
        await settle()
        assert await ask(server, b"abc", 3) == b"abc"
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not server.is_serving()
    run(main())


@pytest.mark.skipif(sys.version_info < (3, 12, 1), reason="asyncio's wait_closed() waits for connections since 3.12.1")
def test_wait_closed_waits_for_the_connections(run, serve):
    async def main():
        server = await serve.start(echo, HOST, 0)
        reader, writer = await connect(server)
        writer.write(b"a")
        await reader.readexactly(1)
        server.close()
        closed = asyncio.create_task(server.wait_closed())
        await settle()
        assert not closed.done()
        writer.write(b"b")                  # a handler outlives its server's close()
        assert await reader.readexactly(1) == b"b"
        writer.close()
        await closed
    run(main())


@pytest.mark.skipif(sys.version_info < (3, 13), reason="came with Python 3.13")
@pytest.mark.parametrize("how", ["close_clients", "abort_clients"])
def test_clients_are_closed_and_aborted(run, serve, how):
    lost = []

    class Waits(EchoProtocol):
        def connection_lost(self, exc):
            lost.append(exc)

    async def main():
        server = await serve.create(Waits, HOST, 0)
        ends = [await connect(server) for _ in range(5)]
        for reader, writer in ends:
            writer.write(b"a")
            await reader.readexactly(1)
        server.close()
        getattr(server, how)()
        for reader, writer in ends:
            assert await reader.read() == b""
            writer.close()
        await server.wait_closed()
        assert lost == [None] * 5
    run(main())


def test_a_handlers_error_reaches_the_loops_exception_handler_and_closes(run, serve, errors):
    async def fails(reader, writer):
        await reader.readexactly(1)
        raise ZeroDivisionError("of the handler")

    async def main():
        async with await serve.start(fails, HOST, 0) as server:
            assert await ask(server) == b""
            await until(lambda: errors)
    run(main())
    context, = errors
    errors.clear()
    assert context["message"] == "Unhandled exception in client_connected_cb"
    assert isinstance(context["exception"], ZeroDivisionError)
    assert isinstance(context["transport"], asyncio.Transport)


def test_the_exception_handler_is_called_in_the_servers_loop(run, serve, loop):
    async def fails(reader, writer):
        await reader.readexactly(1)
        raise ZeroDivisionError

    seen = []
    loop.set_exception_handler(lambda of, _: seen.append((of, asyncio.get_running_loop(), threading.current_thread())))

    async def main():
        async with await serve.start(fails, HOST, 0) as server:
            await ask(server)
            await until(lambda: seen)
    run(main())
    assert seen == [(loop, loop, threading.current_thread())]


def test_a_protocols_error_reaches_it_too(run, serve, errors):
    class Fails(EchoProtocol):
        def connection_made(self, transport):
            raise ZeroDivisionError

        def data_received(self, data):
            raise KeyError

    async def main():
        async with await serve.create(Fails, HOST, 0) as server:
            assert await ask(server) == b""
            await until(lambda: len(errors) == 2)
    run(main())
    kinds = [type(context["exception"]) for context in errors]
    errors.clear()
    assert kinds == [ZeroDivisionError, KeyError]


def test_a_factorys_error_closes_the_connection_only(run, serve, errors):
    calls = []

    def factory():
        calls.append(1)
        if len(calls) == 1:
            raise ZeroDivisionError
        return EchoProtocol()

    async def main():
        async with await serve.create(factory, HOST, 0) as server:
            assert await outcome(ask(server)) in GONE
            assert await ask(server, b"abc", 3) == b"abc"
    run(main())
    assert not errors                       # outside debug mode nobody is told, as on stock


def test_handlers_get_a_copy_of_the_context_of_the_servers_maker(run, serve):
    async def tells(reader, writer):
        await reader.readexactly(1)
        writer.write(var.get().encode())
        var.set("changed")
        writer.close()

    async def main():
        var.set("made")
        async with await serve.start(tells, HOST, 0) as server:
            var.set("later")
            return [await ask(server) for _ in range(2)], var.get()
    assert run(main()) == ([b"made", b"made"], "later")


def test_a_readers_limit(run, serve):
    async def reads(reader, writer):
        try:
            await reader.readuntil(b"\n")
        except asyncio.LimitOverrunError:
            writer.write(b"overrun")
        writer.close()

    async def main():
        async with await serve.start(reads, HOST, 0, limit=100) as server:
            return await ask(server, b"a" * 1000)
    assert run(main()) == b"overrun"


def test_half_close(run, serve):
    """The end of what the client sends is not the end of what it gets."""
    async def counts(reader, writer):
        writer.write(str(len(await reader.read())).encode())
        writer.write_eof()
        await writer.drain()
        writer.close()

    async def main():
        async with await serve.start(counts, HOST, 0) as server:
            reader, writer = await connect(server)
            writer.write(b"a" * 200_000)
            writer.write_eof()
            assert await reader.read() == b"200000"
            writer.close()
    run(main())


def test_a_slow_reader_holds_the_handler_up(run, serve):
    """drain() waits while the peer does not read, and all arrives when it does."""
    progress = []

    async def sends(reader, writer):
        writer.transport.set_write_buffer_limits(1000)
        for _ in range(100):
            writer.write(b"a" * 100_000)
            await writer.drain()
            progress.append(1)
        writer.close()

    async def main():
        async with await serve.start(sends, HOST, 0) as server:
            reader, writer = await connect(server, limit=1000)
            await until(lambda: progress)
            seen = 0
            while seen != len(progress):
                seen = len(progress)
                await asyncio.sleep(0.05)
            assert seen < 100
            total = 0
            while data := await reader.read(65536):
                total += len(data)
            writer.close()
        return total
    assert run(main()) == 10_000_000
    assert len(progress) == 100


def test_tls(run, serve, tls):
    async def main():
        async with await serve.start(echo, HOST, 0, ssl=tls.server) as server:
            for size in (1, 300_000):
                assert await ask(server, b"a" * size, size, ssl=tls.client, server_hostname="localhost") == b"a" * size
    run(main())


def test_a_tls_handshake_that_does_not_come_times_out(run, serve, tls):
    async def main():
        async with await serve.start(echo, HOST, 0, ssl=tls.server, ssl_handshake_timeout=0.1) as server:
            reader, writer = await connect(server)
            assert await reader.read() == b""
            writer.close()
            with pytest.raises(ssl.SSLError):       # what it takes for TLS is none
                plain = await ask(server, b"plain text\r\n" * 10)
                raise ssl.SSLError(plain)
            assert await ask(server, b"a", 1, ssl=tls.client, server_hostname="localhost") == b"a"
    run(main())


def test_starttls(run, serve, tls):
    async def upgrades(reader, writer):
        writer.write(await reader.readexactly(1))
        await writer.start_tls(tls.server)
        writer.write(await reader.readexactly(3))
        await writer.drain()
        writer.close()

    async def main():
        async with await serve.start(upgrades, HOST, 0) as server:
            reader, writer = await connect(server)
            writer.write(b"a")
            assert await reader.readexactly(1) == b"a"
            await writer.start_tls(tls.client, server_hostname="localhost")
            writer.write(b"abc")
            assert await reader.read() == b"abc"
            writer.close()
    run(main())


def test_unix_sockets(run, serve, tmp_path):
    path = str(tmp_path / "socket")

    async def main():
        async with await serve.unix(echo, path):
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(b"abc")
            assert await reader.readexactly(3) == b"abc"
            writer.close()
    run(main())


def test_a_plain_function_may_leave_the_work_to_a_task(run, serve):
    tasks = []

    def handler(reader, writer):
        tasks.append(asyncio.ensure_future(echo(reader, writer)))

    async def main():
        async with await serve.start(handler, HOST, 0) as server:
            assert await ask(server, b"abc", 3) == b"abc"
            await until(lambda: tasks[0].done())
    run(main())


def test_out_of_descriptors_the_clients_wait(run, serve, errors):
    """Said once per second, and served when there are descriptors again."""
    if not serve.isolated and os.environ.get("GMPLOOP_POLLER") == "io_uring":
        pytest.skip("the kernel goes by the limit that was there when it was asked to accept")

    async def main():
        async with await serve.start(echo, HOST, 0) as server:
            clients = [socket.socket() for _ in range(5)]
            soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 1, hard))
            taken = []
            try:
                with contextlib.suppress(OSError):
                    while True:
                        taken.append(os.dup(0))
                for client in clients:
                    client.setblocking(False)
                    client.connect_ex((HOST, port_of(server)))
                await until(lambda: errors)
            finally:
                for fd in taken:
                    os.close(fd)
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            loop = asyncio.get_running_loop()
            for client in clients:
                await loop.sock_sendall(client, b"abc")
                assert await loop.sock_recv(client, 10) == b"abc"
                client.close()
    run(main())
    assert {context["message"] for context in errors} == {"socket.accept() out of system resource"}
    errors.clear()
