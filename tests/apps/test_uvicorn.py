"""uvicorn with Starlette and FastAPI applications: in the test's loop, and as a program of its own."""

import asyncio
import contextlib
import hashlib
import http.client
import json
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("fastapi")
httpx = pytest.importorskip("httpx")
websockets = pytest.importorskip("websockets")

from . import asgi
from .serve import uvicorn_serving
from .servers import HERE, Server, free_port


@pytest.fixture(params=["h11", "httptools"])
def http_options(request):
    pytest.importorskip(request.param)
    return {"http": request.param}


@contextlib.asynccontextmanager
async def client_of(app, **options):
    async with uvicorn_serving(app, **options) as url, httpx.AsyncClient(base_url=url) as client:
        yield client


def watch(app):
    """A queue that gets each event of `app`."""
    events = asyncio.Queue()
    app.state.happened = events.put_nowait
    return events


def test_requests(run, http_options):
    app = asgi.make_app()

    async def main():
        events = watch(app)
        async with client_of(app, **http_options) as client:
            assert (await client.get("/items/7", params={"q": "ü"})).json() == {"item": 7, "q": "ü", "base": 40}
            assert (await client.get("/items/x")).status_code == 422
            assert (await client.get("/nothing")).status_code == 404
            assert (await client.get("/loop")).json()["started"] is True
            await client.get("/background")
            assert await events.get() == "background"
        assert app.state.events == ["startup", "background", "shutdown"]

    run(main())


def test_starlette(run):
    from starlette.applications import Starlette
    from starlette.middleware import Middleware
    from starlette.middleware.gzip import GZipMiddleware
    from starlette.responses import PlainTextResponse
    from starlette.routing import Route

    def in_thread(request):
        return PlainTextResponse(request.path_params["word"] * 10_000)

    async def main():
        app = Starlette(routes=[Route("/{word}", in_thread)], middleware=[Middleware(GZipMiddleware)])
        async with client_of(app) as client:
            answers = await asyncio.gather(*(client.get(f"/w{i}") for i in range(50)))
            assert {a.headers["content-encoding"] for a in answers} == {"gzip"}
            assert [a.text for a in answers] == [f"w{i}" * 10_000 for i in range(50)]

    run(main())


def test_streams_megabytes_both_ways(run, http_options):
    count = 128  # of 64 KiB

    async def body():
        for _ in range(count):
            yield asgi.BLOCK

    async def main():
        async with client_of(asgi.make_app(), **http_options) as client:
            expected = hashlib.sha256(asgi.BLOCK * count).hexdigest()
            assert (await client.post("/hash", content=body())).json() == {"sha256": expected}
            seen = hashlib.sha256()
            async with client.stream("GET", f"/blocks/{count}") as response:
                async for chunk in response.aiter_bytes():
                    seen.update(chunk)
            assert seen.hexdigest() == expected

    run(main())


def test_client_that_leaves_ends_the_response(run, http_options):
    app = asgi.make_app()

    async def main():
        events = watch(app)
        async with client_of(app, **http_options) as client:
            async with client.stream("GET", "/endless") as response:
                await anext(response.aiter_bytes())
            assert await events.get() == "left"

    run(main())


@pytest.mark.parametrize("implementation", ["websockets", "websockets-sansio"])
def test_websocket(run, implementation):
    app = asgi.make_app()

    async def main():
        events = watch(app)
        async with uvicorn_serving(app, ws=implementation) as url:
            url = url.replace("http", "ws") + "/ws"
            async with websockets.connect(url, max_size=None) as ws:
                for message in ("text ü", b"bytes", asgi.BLOCK * 16):
                    await ws.send(message)
                    assert await ws.recv() == message
                await ws.send("close")
                with pytest.raises(websockets.ConnectionClosed) as closed:
                    await ws.recv()
                assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (4001, "asked")
            async with websockets.connect(url) as ws:
                await ws.close(4002)
            assert await events.get() == "ws 4002"

    run(main())


class Uvicorn(Server):
    """`python -m uvicorn` on the named loop."""

    def __init__(self, folder, loop_name, *options):
        port = free_port()
        loop = {"asyncio": "asyncio", "gmploop": "gmploop:new_event_loop"}[loop_name]
        os.environ["LIFESPAN_FILE"] = str(folder / "lifespan")
        super().__init__(port, [sys.executable, "-m", "uvicorn", "--app-dir", str(HERE), "asgi:app", "--loop", loop,
                                "--port", str(port), *options], folder / "uvicorn.log")
        del os.environ["LIFESPAN_FILE"]

    def get(self, path):
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=15)
        with contextlib.closing(connection):
            connection.request("GET", path)
            return json.loads(connection.getresponse().read())


def test_command_line_shuts_down_gracefully(loop_name, tmp_path):
    """SIGTERM: the request under way is answered, the lifespan ends, and the process dies by that signal."""
    with Uvicorn(tmp_path, loop_name) as server, ThreadPoolExecutor(1) as pool:
        assert server.get("/loop")["loop"].startswith(loop_name)
        answer = pool.submit(server.get, "/slow/1")
        while "slow" not in server.get("/events"):
            pass
        server.process.send_signal(signal.SIGTERM)
        assert answer.result(10) == {"slept": 1}
        assert server.process.wait(10) == -signal.SIGTERM
        assert (tmp_path / "lifespan").read_text() == "shutdown"
        with pytest.raises(ConnectionRefusedError):
            server.get("/loop")


def test_command_line_ends_by_ctrl_c(loop_name, tmp_path):
    with Uvicorn(tmp_path, loop_name) as server:
        assert server.get("/items/1")["item"] == 1
        server.process.send_signal(signal.SIGINT)
        try:
            assert server.process.wait(10) in (0, 130, -signal.SIGINT)
        except subprocess.TimeoutExpired:
            pytest.fail(server.log.read_text())
        log = server.log.read_text()
        assert "Application shutdown complete" in log
