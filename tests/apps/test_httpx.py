"""httpx's AsyncClient against uvicorn, both in one loop."""

import asyncio
import contextlib
import hashlib

import pytest

httpx = pytest.importorskip("httpx")
pytest.importorskip("uvicorn")
pytest.importorskip("fastapi")

from . import asgi
from .serve import uvicorn_serving


@contextlib.asynccontextmanager
async def client_of(app, verify=True, tls=None, path=None, **options):
    transport = httpx.AsyncHTTPTransport(uds=path, verify=verify, limits=options.pop("limits", httpx.Limits()))
    async with uvicorn_serving(app, tls=tls, path=path) as url:
        async with httpx.AsyncClient(base_url=url, transport=transport, **options) as client:
            yield client


@pytest.mark.parametrize("kind", ["tcp", "tls", "unix"])
def test_200_requests_over_20_connections(run, kind, tmp_path, certificates, client_tls):
    async def main():
        options = {"tcp": {}, "tls": {"tls": certificates, "verify": client_tls}, "unix": {"path": str(tmp_path / "s")}}
        async with client_of(asgi.make_app(), limits=httpx.Limits(max_connections=20), **options[kind]) as client:
            answers = await asyncio.gather(*(client.get(f"/items/{i}") for i in range(200)))
            assert [a.json()["item"] for a in answers] == list(range(200))

    run(main())


def test_big_bodies_over_tls(run, certificates, client_tls):
    count = 64

    async def body():
        for _ in range(count):
            yield asgi.BLOCK
            await asyncio.sleep(0)

    async def main():
        async with client_of(asgi.make_app(), tls=certificates, verify=client_tls) as client:
            posted, got = await asyncio.gather(client.post("/hash", content=body()), client.get(f"/blocks/{count}"))
            assert posted.json()["sha256"] == hashlib.sha256(got.content).hexdigest()
            assert got.content == asgi.BLOCK * count

    run(main())


def test_timeout_and_cancel_leave_the_pool_usable(run):
    app = asgi.make_app()

    async def main():
        entered = asyncio.Queue()
        app.state.happened = entered.put_nowait
        async with client_of(app, timeout=0.2, limits=httpx.Limits(max_connections=2)) as client:
            with pytest.raises(httpx.ReadTimeout):
                await client.get("/slow/1")
            tasks = [asyncio.ensure_future(client.get("/slow/1", timeout=5)) for _ in range(2)]
            for _ in range(3):
                await entered.get()
            with pytest.raises(httpx.PoolTimeout):
                await client.get("/items/1")
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
            assert all(task.cancelled() for task in tasks)
            assert (await client.get("/items/1", timeout=5)).json()["item"] == 1

    run(main())


def test_refused_connection(run):
    async def main():
        async with httpx.AsyncClient() as client:
            with pytest.raises(httpx.ConnectError):
                await client.get("http://127.0.0.1:1/")

    run(main())
