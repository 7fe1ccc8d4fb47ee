"""Programs that asyncio starts: real pipes, signals, many at once. And two libraries that are no server: gRPC, aiofiles."""

import asyncio
import hashlib
import os
import signal
import stat
import sys

import pytest


def test_communicate_megabytes(run):
    big = os.urandom(8 << 20)

    async def main():
        process = await asyncio.create_subprocess_exec("cat", stdin=-1, stdout=-1)
        out, _ = await process.communicate(big)
        assert out == big and process.returncode == 0

    run(main())


def test_standard_streams_are_pipes(run):
    script = "import os; print(*(os.fstat(i).st_mode for i in range(3))); print(open('/dev/stdin').read())"

    async def main():
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdin=-1, stdout=-1, stderr=-1)
        out, err = await process.communicate(b"reopened")
        modes, text = out.decode().splitlines()
        assert all(stat.S_ISFIFO(int(mode)) for mode in modes.split()) and text == "reopened" and not err

    run(main())


def test_shell_pipeline_by_hand(run):
    """Two children joined by this process, line by line."""
    async def main():
        count = await asyncio.create_subprocess_shell("seq 20000", stdout=-1)
        total = await asyncio.create_subprocess_shell("sha256sum", stdin=-1, stdout=-1)
        async for line in count.stdout:
            total.stdin.write(line)
            await total.stdin.drain()
        total.stdin.close()
        expected = hashlib.sha256("".join(f"{i}\n" for i in range(1, 20001)).encode()).hexdigest()
        assert (await total.stdout.read()).split()[0].decode() == expected
        assert [await count.wait(), await total.wait()] == [0, 0]

    run(main())


def test_50_children_at_once(run):
    async def main():
        async def one(i):
            process = await asyncio.create_subprocess_shell(f"read x; echo $x; exit {i}", stdin=-1, stdout=-1)
            out, _ = await process.communicate(f"{i}\n".encode())
            return int(out), process.returncode

        assert await asyncio.gather(*(one(i) for i in range(50))) == [(i, i) for i in range(50)]

    run(main())


def test_killed_and_cancelled_children(run):
    async def main():
        process = await asyncio.create_subprocess_exec("sleep", "20")
        process.terminate()
        assert await process.wait() == -signal.SIGTERM
        process = await asyncio.create_subprocess_exec("cat", stdin=-1, stdout=-1)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(process.stdout.read(), 0.1)
        process.kill()
        assert await process.wait() == -signal.SIGKILL
        process = await asyncio.create_subprocess_exec("true", stdin=-1)
        await process.wait()
        with pytest.raises((BrokenPipeError, ConnectionResetError)):
            while True:
                process.stdin.write(b"x" * 65536)
                await process.stdin.drain()

    run(main())


def test_grpc(loop_factory):
    """grpc.aio polls on threads of its own, whose descriptors live as long as the process, and wakes the loop."""
    grpc = pytest.importorskip("grpc")

    async def upper(request, context):
        return request.upper()

    async def count(request, context):
        for i in range(int(request)):
            yield str(i).encode()

    async def total(requests, context):
        return str(sum([len(r) async for r in requests])).encode()

    async def never(request, context):
        await asyncio.sleep(20)

    async def main():
        server = grpc.aio.server()
        server.add_generic_rpc_handlers([grpc.method_handlers_generic_handler("test", {
            "upper": grpc.unary_unary_rpc_method_handler(upper), "count": grpc.unary_stream_rpc_method_handler(count),
            "total": grpc.stream_unary_rpc_method_handler(total), "never": grpc.unary_unary_rpc_method_handler(never)})])
        port = server.add_insecure_port("127.0.0.1:0")
        await server.start()
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            calls = [channel.unary_unary("/test/upper")(f"call {i}".encode()) for i in range(100)]
            assert await asyncio.gather(*calls) == [f"CALL {i}".encode() for i in range(100)]
            assert [int(i) async for i in channel.unary_stream("/test/count")(b"500")] == list(range(500))
            assert await channel.stream_unary("/test/total")(iter([b"x" * 100_000] * 20)) == b"2000000"
            with pytest.raises(grpc.aio.AioRpcError) as late:
                await channel.unary_unary("/test/never")(b"", timeout=0.2)
            assert late.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
            call = channel.unary_unary("/test/never")(b"")
            call.cancel()
            with pytest.raises(asyncio.CancelledError):
                await call
        await server.stop(0)

    with asyncio.Runner(loop_factory=loop_factory) as runner:
        runner.run(main())


def test_aiofiles(run, tmp_path):
    aiofiles = pytest.importorskip("aiofiles")

    async def main():
        async def one(i):
            async with aiofiles.open(tmp_path / str(i), "w+") as f:
                await f.write(f"{i}\n" * 100)
                await f.seek(0)
                return [line async for line in f]

        assert await asyncio.gather(*(one(i) for i in range(20))) == [[f"{i}\n"] * 100 for i in range(20)]

    run(main())
