"""nginx as a reverse proxy before aiohttp's server and before uvicorn; aiohttp's client asks."""

import asyncio
import contextlib
import hashlib

import pytest

aiohttp = pytest.importorskip("aiohttp")
from aiohttp import web

BLOCK = bytes(range(256)) * 256
COUNT = 256  # blocks of 64 KiB in a large body


async def body():
    for _ in range(COUNT):
        yield BLOCK


class Aiohttp:
    """The application on aiohttp; `left` is done when a download's peer has gone."""

    def __init__(self):
        self.left = asyncio.get_running_loop().create_future()
        self.peers = set()

    async def hash(self, request):
        self.peers.add(request.transport.get_extra_info("peername"))
        seen = hashlib.sha256()
        async for chunk in request.content.iter_any():
            seen.update(chunk)
        return web.json_response({"sha256": seen.hexdigest()})

    async def blocks(self, request):
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(int(request.match_info["count"])):
            await response.write(BLOCK)
        return response

    async def endless(self, request):
        response = web.StreamResponse()
        try:
            await response.prepare(request)
            while True:
                await response.write(BLOCK)
        except (ConnectionError, asyncio.CancelledError):
            self.left.set_result(None)
            raise

    async def slow(self, request):
        try:
            await asyncio.sleep(float(request.match_info["seconds"]))
        except asyncio.CancelledError:
            self.left.set_result(None)
            raise
        return web.Response()

    async def ws(self, request):
        socket = web.WebSocketResponse(max_msg_size=0)
        await socket.prepare(request)
        async for message in socket:
            await socket.send_bytes(message.data)
        return socket

    @contextlib.asynccontextmanager
    async def serving(self, path):
        app = web.Application()
        app.add_routes([web.post("/hash", self.hash), web.get("/blocks/{count}", self.blocks), web.get("/ws", self.ws),
                        web.get("/endless", self.endless), web.get("/slow/{seconds}", self.slow)])
        runner = web.AppRunner(app, handler_cancellation=True)
        await runner.setup()
        await (web.UnixSite(runner, path) if path else web.TCPSite(runner, "127.0.0.1", 0)).start()
        try:
            yield f"unix:{path}" if path else f"127.0.0.1:{runner.addresses[0][1]}"
        finally:
            await runner.cleanup()


class Uvicorn:
    """The application on FastAPI and uvicorn."""

    def __init__(self):
        pytest.importorskip("uvicorn")
        pytest.importorskip("fastapi")
        from . import asgi
        self.left = asyncio.get_running_loop().create_future()
        self.app = asgi.make_app()
        self.app.state.happened = lambda event: event == "left" and self.left.set_result(None)

    @contextlib.asynccontextmanager
    async def serving(self, path):
        from .serve import uvicorn_serving
        async with uvicorn_serving(self.app, path=path) as url:
            yield f"unix:{path}" if path else url.removeprefix("http://").replace("localhost", "127.0.0.1")


@pytest.fixture(params=[Aiohttp, Uvicorn])
def proxied(request, nginx, tmp_path):
    """proxied(unix) -> an async context manager: the application, and a session whose base is nginx before it."""
    @contextlib.asynccontextmanager
    async def start(unix=False):
        app = request.param()
        async with app.serving(str(tmp_path / "app.sock") if unix else None) as upstream:
            # starting nginx looks whether it accepts, which needs nothing of this loop
            server = nginx(upstream)
            async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session:
                yield app, session
            server.stop()

    return start


@pytest.mark.parametrize("unix", [False, True], ids=["tcp", "unix"])
def test_large_bodies_both_ways(run, proxied, unix):
    async def main():
        expected = hashlib.sha256(BLOCK * COUNT).hexdigest()

        async def upload(session):
            async with session.post("/hash", data=body()) as response:
                return (await response.json())["sha256"]

        async def download(session):
            seen = hashlib.sha256()
            async with session.get(f"/blocks/{COUNT}") as response:
                async for chunk in response.content.iter_any():
                    seen.update(chunk)
            return seen.hexdigest()

        async with proxied(unix) as (_, session):
            assert set(await asyncio.gather(upload(session), download(session), upload(session))) == {expected}

    run(main())


def test_many_small_requests_over_kept_connections(run, proxied):
    async def main():
        async def one(session, i):
            async with session.post("/hash", data=str(i)) as response:
                return (await response.json())["sha256"]

        async with proxied() as (app, session):
            for start in range(0, 200, 8):
                numbers = range(start, start + 8)
                assert await asyncio.gather(*(one(session, i) for i in numbers)) == [
                    hashlib.sha256(str(i).encode()).hexdigest() for i in numbers]
            if isinstance(app, Aiohttp):
                assert len(app.peers) < 50

    run(main())


def test_proxy_closes_because_its_client_left(run, proxied):
    async def main():
        async with proxied() as (app, session):
            async with session.get("/endless") as response:
                await response.content.readexactly(1 << 20)
            await app.left

    run(main())


def test_proxy_closes_because_the_answer_is_late(run, nginx, proxied):
    async def main():
        async with proxied() as (app, session):
            async with session.get("/slow/3") as response:  # nginx waits 1 s
                assert response.status == 504
            if isinstance(app, Aiohttp):  # uvicorn tells an application only when it asks
                await app.left
            async with session.post("/hash", data=b"") as response:
                assert response.status == 200

    run(main())


def test_websocket_through_the_proxy(run, proxied):
    async def main():
        async with proxied() as (_, session), session.ws_connect("/ws", max_msg_size=0) as ws:
            for size in (1, 1000, 1 << 22):
                await ws.send_bytes(b"x" * size)
                assert await ws.receive_bytes() == b"x" * size

    run(main())
