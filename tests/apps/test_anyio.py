"""anyio's asyncio backend with the loop as its loop_factory."""

import asyncio
import os
import signal
import ssl
import sys
import threading

import pytest

anyio = pytest.importorskip("anyio")
from anyio.streams.buffered import BufferedByteReceiveStream
from anyio.streams.tls import TLSListener, TLSStream

import gmploop


@pytest.fixture
def run(loop_factory):
    def runner(main):
        return anyio.run(main, backend_options={"loop_factory": loop_factory})

    return runner


def test_task_groups_and_cancel_scopes(run):
    async def main():
        done = []

        async def worker(i):
            try:
                await anyio.sleep_forever()
            finally:
                with anyio.CancelScope(shield=True):
                    await anyio.sleep(0.01)
                    done.append(i)

        with anyio.move_on_after(0.1) as scope:
            async with anyio.create_task_group() as group:
                for i in range(100):
                    group.start_soon(worker, i)
        assert scope.cancelled_caught and sorted(done) == list(range(100))

        with pytest.raises(ExceptionGroup) as raised:
            async with anyio.create_task_group() as group:
                group.start_soon(worker, 100)
                await anyio.lowlevel.checkpoint()
                raise ZeroDivisionError
        assert raised.group_contains(ZeroDivisionError) and done[-1] == 100
        with pytest.raises(TimeoutError), anyio.fail_after(0.01):
            await anyio.sleep_forever()

    run(main)


def test_memory_streams(run):
    async def main():
        send, receive = anyio.create_memory_object_stream(10)
        got = []

        async def consume(stream):
            async with stream:
                async for item in stream:
                    got.append(item)

        async with anyio.create_task_group() as group:
            for _ in range(5):
                group.start_soon(consume, receive.clone())
            receive.close()
            async with send:
                for i in range(1000):
                    await send.send(i)
        assert sorted(got) == list(range(1000))

    run(main)


def test_threads(run):
    async def main():
        def in_thread(i):
            assert threading.current_thread() is not threading.main_thread()
            return anyio.from_thread.run(add, i)

        async def add(i):
            await anyio.sleep(0)
            return i + 1

        results = {}

        async def one(i):
            results[i] = await anyio.to_thread.run_sync(in_thread, i)

        async with anyio.create_task_group() as group:
            for i in range(100):
                group.start_soon(one, i)
        assert results == {i: i + 1 for i in range(100)}

    run(main)


def test_blocking_portal(loop_name, loop_factory):
    with anyio.from_thread.start_blocking_portal(backend_options={"loop_factory": loop_factory}) as portal:
        assert isinstance(portal.call(asyncio.get_running_loop), gmploop.Loop) == (loop_name == "gmploop")
        future = portal.start_task_soon(anyio.sleep_forever)
        future.cancel()
        assert [portal.start_task_soon(anyio.sleep, 0).result(5) for _ in range(50)] == [None] * 50


@pytest.mark.parametrize("kind", ["tcp", "unix", "tls"])
def test_listeners(run, kind, tmp_path, server_tls, client_tls):
    size = 4 << 20

    async def echo(stream):
        async with stream:
            async for data in stream:
                await stream.send(data)

    async def client(connect):
        async with await connect() as stream, anyio.create_task_group() as group:
            group.start_soon(stream.send, b"x" * size)
            received = BufferedByteReceiveStream(stream)
            assert await received.receive_exactly(size) == b"x" * size

    async def main():
        if kind == "unix":
            path = tmp_path / "socket"
            listener = await anyio.create_unix_listener(path)

            def connect():
                return anyio.connect_unix(path)
        else:
            listener = await anyio.create_tcp_listener(local_host="127.0.0.1")
            port = listener.extra(anyio.abc.SocketAttribute.local_port)

            def connect():
                return anyio.connect_tcp("localhost", port, ssl_context=client_tls if kind == "tls" else None)
            if kind == "tls":
                listener = TLSListener(listener, server_tls)
        async with listener, anyio.create_task_group() as group:
            group.start_soon(listener.serve, echo)
            async with anyio.create_task_group() as clients:
                for _ in range(5):
                    clients.start_soon(client, connect)
            group.cancel_scope.cancel()

    run(main)


def test_tls_over_a_connected_stream(run, server_tls, client_tls):
    async def main():
        listener = await anyio.create_tcp_listener(local_host="127.0.0.1")

        async def handler(stream):
            assert await stream.receive() == b"STARTTLS"
            await stream.send(b"GO")
            async with await TLSStream.wrap(stream, server_side=True, ssl_context=server_tls) as tls:
                await tls.send(await tls.receive())
                with pytest.raises(anyio.EndOfStream):
                    await tls.receive()

        async with listener, anyio.create_task_group() as group:
            group.start_soon(listener.serve, handler)
            stream = await anyio.connect_tcp("127.0.0.1", listener.extra(anyio.abc.SocketAttribute.local_port))
            await stream.send(b"STARTTLS")
            assert await stream.receive() == b"GO"
            async with await TLSStream.wrap(stream, hostname="localhost", ssl_context=client_tls) as tls:
                await tls.send(b"secret")
                assert await tls.receive() == b"secret"
                assert isinstance(tls.extra(anyio.streams.tls.TLSAttribute.ssl_object), ssl.SSLObject)
            group.cancel_scope.cancel()

    run(main)


def test_udp(run):
    async def main():
        async with await anyio.create_udp_socket(local_host="127.0.0.1") as server:
            port = server.extra(anyio.abc.SocketAttribute.local_port)
            async with await anyio.create_connected_udp_socket("127.0.0.1", port) as client:
                for i in range(50):
                    await client.send(f"packet {i}".encode())
                    data, address = await server.receive()
                    await server.sendto(data.upper(), *address)
                    assert await client.receive() == f"PACKET {i}".encode()

    run(main)


def test_subprocess(run):
    async def main():
        big = os.urandom(1 << 20)
        assert (await anyio.run_process(["cat"], input=big)).stdout == big
        with pytest.raises(Exception) as failed:
            await anyio.run_process([sys.executable, "-c", "import sys; sys.exit('told')"])
        assert (failed.value.returncode, failed.value.stderr) == (1, b"told\n")
        async with await anyio.open_process(["sleep", "20"]) as process:
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == -signal.SIGTERM
        with anyio.move_on_after(0.2) as scope:
            await anyio.run_process(["sleep", "20"])
        assert scope.cancelled_caught

    run(main)


def test_signals(run):
    async def main():
        with anyio.open_signal_receiver(signal.SIGUSR1, signal.SIGUSR2) as signals:
            for number in (signal.SIGUSR1, signal.SIGUSR2):
                os.kill(os.getpid(), number)
                assert await anext(signals) == number

    run(main)


def test_files(run, tmp_path):
    async def main():
        path = anyio.Path(tmp_path / "file")
        async with await anyio.open_file(path, "w") as f:
            for i in range(100):
                await f.write(f"line {i}\n")
        async with await anyio.open_file(path) as f:
            assert [line async for line in f] == [f"line {i}\n" for i in range(100)]
        assert (await path.stat()).st_size == sum(len(f"line {i}\n") for i in range(100))

    run(main)


def test_worker_process(run):
    async def main():
        assert await anyio.to_process.run_sync(os.getpid) != os.getpid()

    run(main)


def test_wait_readable(run):
    async def main():
        reading, writing = os.pipe()
        try:
            with anyio.move_on_after(0.05) as scope:
                await anyio.wait_readable(reading)
            assert scope.cancelled_caught
            os.write(writing, b"x")
            await anyio.wait_readable(reading)
            await anyio.wait_writable(writing)
        finally:
            anyio.notify_closing(reading)
            os.close(reading)
            os.close(writing)

    run(main)
