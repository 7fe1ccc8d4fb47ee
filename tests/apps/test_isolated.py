"""uvicorn with a world for each connection, and a framework that cannot have one."""

import asyncio
import functools
import threading

import pytest

import gmploop

uvicorn = pytest.importorskip("uvicorn")


async def get(port, path="/"):
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n".encode())
    reply = await reader.read()
    writer.close()
    return reply.rpartition(b"\r\n\r\n")[2]


@pytest.mark.parametrize("http", ["h11", "httptools"])
def test_uvicorn_goes_on_while_a_request_blocks(http):
    pytest.importorskip(http)
    release, loops = threading.Event(), []

    async def app(scope, receive, send):
        loops.append(asyncio.get_running_loop())
        if scope["path"] == "/blocks":
            release.wait(20)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
        await send({"type": "http.response.body", "body": b"ok"})

    async def main():
        loop = asyncio.get_running_loop()
        loop.create_server = functools.partial(loop.create_server, isolate=True)
        server = uvicorn.Server(uvicorn.Config(app, port=0, http=http, lifespan="off", log_level="warning"))
        serving = asyncio.create_task(server.serve())
        while not server.started:
            await asyncio.sleep(0.001)
        port = server.servers[0].sockets[0].getsockname()[1]
        blocked = asyncio.create_task(get(port, "/blocks"))
        assert [await get(port) for _ in range(20)] == [b"ok"] * 20
        assert not blocked.done()
        release.set()
        assert await blocked == b"ok"
        assert loop not in loops
        server.should_exit = True
        await serving
    gmploop.run(asyncio.wait_for(main(), 25), procs=2)


def test_aiohttps_server_is_told_that_it_cannot():
    web = pytest.importorskip("aiohttp.web")
    errors = []

    async def main():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: errors.append(str(context["exception"])))
        runner = web.ServerRunner(web.Server(lambda request: web.Response()))
        await runner.setup()
        server = await loop.create_server(runner.server, "127.0.0.1", 0, isolate=True)
        with pytest.raises((ConnectionError, AssertionError)):
            assert await get(server.sockets[0].getsockname()[1])
        while not errors:
            await asyncio.sleep(0.001)
        server.close()
        await runner.cleanup()
    gmploop.run(asyncio.wait_for(main(), 25), procs=2)
    assert "for the server's loop" in errors[0]
