"""aiohttp's server and client in one loop."""

import asyncio
import contextlib
import hashlib
import os
import signal

import pytest

aiohttp = pytest.importorskip("aiohttp")
from aiohttp import web

from .servers import free_port

MEGABYTE = 1 << 20
BLOCK = bytes(range(256)) * 256  # 64 KiB


async def blocks(total):
    for _ in range(total // len(BLOCK)):
        yield BLOCK


def digest(total):
    return hashlib.sha256(BLOCK * (total // len(BLOCK))).hexdigest()


@contextlib.asynccontextmanager
async def serving(*routes, tls=None, path=None, **runner_options):
    """The base URL of an application with these routes, on TCP, TLS or (with `path`) a Unix socket."""
    app = web.Application(client_max_size=64 * MEGABYTE)
    app.add_routes(routes)
    runner = web.AppRunner(app, **runner_options)
    await runner.setup()
    try:
        if path:
            await web.UnixSite(runner, path).start()
            yield "http://localhost"
        else:
            await web.TCPSite(runner, "127.0.0.1", 0, ssl_context=tls).start()
            port = runner.addresses[0][1]
            yield f"https://localhost:{port}" if tls else f"http://127.0.0.1:{port}"
    finally:
        await runner.cleanup()


async def hash_upload(request):
    seen = hashlib.sha256()
    async for chunk in request.content.iter_any():
        seen.update(chunk)
    return web.Response(text=seen.hexdigest())


async def send_blocks(request):
    response = web.StreamResponse()
    await response.prepare(request)
    async for block in blocks(int(request.query["size"])):
        await response.write(block)
    return response


def test_keep_alive_uses_one_connection(run):
    async def peer(request):
        return web.json_response([*request.transport.get_extra_info("peername"), await request.text()])

    async def main():
        async with serving(web.post("/", peer)) as url, aiohttp.ClientSession() as session:
            answers = []
            for i in range(50):
                async with session.post(url, data=f"body {i}") as response:
                    answers.append(await response.json())
        assert [a[-1] for a in answers] == [f"body {i}" for i in range(50)]
        assert len({a[1] for a in answers}) == 1

    run(main())


def test_200_clients_at_once(run):
    async def main():
        async def answer(request):
            await asyncio.sleep(0.01)
            return web.Response(text=request.query["i"])

        async def ask(session, url, i):
            async with session.get(url, params={"i": i}) as response:
                return int(await response.text())

        connector = aiohttp.TCPConnector(limit=0)
        async with serving(web.get("/", answer)) as url, aiohttp.ClientSession(connector=connector) as session:
            assert await asyncio.gather(*(ask(session, url, i) for i in range(200))) == list(range(200))

    run(main())


@pytest.mark.parametrize("kind", ["tcp", "unix", "tls"])
def test_streams_megabytes_both_ways(run, kind, tmp_path, server_tls, client_tls):
    size = 8 * MEGABYTE

    async def main():
        path = str(tmp_path / "socket") if kind == "unix" else None
        tls = server_tls if kind == "tls" else None
        connector = aiohttp.UnixConnector(path) if path else aiohttp.TCPConnector(ssl=client_tls)
        routes = web.post("/", hash_upload), web.get("/", send_blocks)
        async with serving(*routes, tls=tls, path=path) as url, aiohttp.ClientSession(connector=connector) as session:
            async with session.post(url, data=blocks(size)) as response:
                assert await response.text() == digest(size)
            async with session.get(url, params={"size": size}) as response:
                assert response.headers["Transfer-Encoding"] == "chunked"
                seen = hashlib.sha256()
                async for chunk in response.content.iter_chunked(100_000):
                    seen.update(chunk)
                assert seen.hexdigest() == digest(size)

    run(main())


def test_slow_reader_holds_the_writer_back(run):
    """The server can be ahead of the client by what the buffers hold, not by the whole body."""
    size = 64 * MEGABYTE

    async def main():
        sent, stalled = 0, asyncio.Event()

        async def produce(request):
            nonlocal sent
            response = web.StreamResponse()
            await response.prepare(request)
            async for block in blocks(size):
                writing = asyncio.ensure_future(response.write(block))
                done, _ = await asyncio.wait([writing], timeout=0.3)
                if not done:
                    stalled.set()
                await writing
                sent += len(block)
            return response

        async with serving(web.get("/", produce)) as url, aiohttp.ClientSession() as session:
            async with session.get(url) as response:
                await stalled.wait()
                assert 0 < sent < size // 2
                received = 0
                async for chunk in response.content.iter_any():
                    received += len(chunk)
                assert received == size

    run(main())


@pytest.mark.parametrize("kind", ["tcp", "tls"])
def test_file_response(run, kind, tmp_path, server_tls, client_tls):
    path = tmp_path / "file"
    path.write_bytes(os.urandom(5 * MEGABYTE + 123))

    async def main():
        async def send_file(_):
            return web.FileResponse(path)

        tls = server_tls if kind == "tls" else None
        async with serving(web.get("/", send_file), tls=tls) as url, aiohttp.ClientSession() as session:
            async with session.get(url, ssl=client_tls) as response:
                assert await response.read() == path.read_bytes()
            async with session.get(url, ssl=client_tls, headers={"Range": "bytes=1000000-1999999"}) as response:
                assert response.status == 206
                assert await response.read() == path.read_bytes()[1_000_000:2_000_000]

    run(main())


def test_websocket(run):
    big = BLOCK * 32

    async def main():
        async def echo(request):
            ws = web.WebSocketResponse(max_msg_size=0)
            await ws.prepare(request)
            async for message in ws:
                if message.data == "close":
                    await ws.close(code=4001, message=b"asked")
                elif message.type == aiohttp.WSMsgType.TEXT:
                    await ws.send_str(message.data)
                else:
                    await ws.send_bytes(message.data)
            return ws

        async with serving(web.get("/", echo)) as url, aiohttp.ClientSession() as session:
            for compress in (0, 15):
                async with session.ws_connect(url, max_msg_size=0, compress=compress, autoping=False) as ws:
                    for i in range(100):
                        await ws.send_str(f"message {i}")
                    assert [await ws.receive_str() for _ in range(100)] == [f"message {i}" for i in range(100)]
                    await ws.send_bytes(big)
                    assert await ws.receive_bytes() == big
                    await ws.ping(b"ping")
                    assert (await ws.receive()).type == aiohttp.WSMsgType.PONG
                    await ws.send_str("close")
                    last = await ws.receive()
                    assert (last.type, last.data, last.extra) == (aiohttp.WSMsgType.CLOSE, 4001, "asked")

    run(main())


def test_client_timeout_and_cancel_reach_the_handler(run):
    async def main():
        entered, cancelled = asyncio.Queue(), asyncio.Queue()

        async def never(_):
            entered.put_nowait(None)
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                cancelled.put_nowait(None)
                raise

        async def fine(_):
            return web.Response(text="fine")

        routes = [web.get("/", never), web.get("/fine", fine)]
        async with serving(*routes, handler_cancellation=True) as url, aiohttp.ClientSession() as session:
            with pytest.raises(asyncio.TimeoutError):
                await session.get(url, timeout=aiohttp.ClientTimeout(total=0.2))
            await entered.get()
            await cancelled.get()
            task = asyncio.ensure_future(session.get(url))
            await entered.get()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await cancelled.get()
            async with session.get(f"{url}/fine") as response:
                assert await response.text() == "fine"

    run(main())


def test_client_that_leaves_ends_the_download(run):
    async def main():
        ended = asyncio.get_running_loop().create_future()

        async def endless(request):
            response = web.StreamResponse()
            await response.prepare(request)
            try:
                while True:
                    await response.write(BLOCK)
            except (ConnectionError, asyncio.CancelledError) as error:
                ended.set_result(error)
                raise

        async with serving(web.get("/", endless)) as url, aiohttp.ClientSession() as session:
            async with session.get(url) as response:
                await response.content.readexactly(MEGABYTE)
            assert isinstance(await ended, (ConnectionError, asyncio.CancelledError))

    run(main())


def test_tls_refuses_an_unknown_authority(run, server_tls):
    async def main():
        async with serving(web.post("/", hash_upload), tls=server_tls) as url, aiohttp.ClientSession() as session:
            with pytest.raises(aiohttp.ClientConnectorCertificateError):
                await session.post(url)

    run(main())


def test_run_app_ends_by_sigterm_after_the_request(loop_factory):
    """run_app leaves the loop by an exception out of a signal handler; the request under way is still answered."""
    events, tasks, port = [], [], free_port()

    async def slow(_):
        os.kill(os.getpid(), signal.SIGTERM)
        await asyncio.sleep(0.1)
        events.append("handled")
        return web.Response(text="done")

    async def ask():
        connector = aiohttp.TCPConnector()
        async with aiohttp.ClientSession(connector=connector) as session:
            while not events:
                with contextlib.suppress(aiohttp.ClientConnectorError):  # the server is about to listen
                    async with session.get(f"http://127.0.0.1:{port}") as response:
                        events.append(await response.text())
                await asyncio.sleep(0.01)

    async def start_client(_):
        tasks.append(asyncio.ensure_future(ask()))

    app = web.Application()
    app.add_routes([web.get("/", slow)])
    app.on_startup.append(start_client)
    app.on_cleanup.append(lambda _: asyncio.wait(tasks))
    web.run_app(app, host="127.0.0.1", port=port, loop=loop_factory(), print=None, shutdown_timeout=5)
    assert events == ["handled", "done"]
