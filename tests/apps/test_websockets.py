"""The websockets library's server and client in one loop."""

import asyncio
import os

import pytest

websockets = pytest.importorskip("websockets")
from websockets.asyncio.client import connect
from websockets.asyncio.server import broadcast, serve


async def echo(ws):
    async for message in ws:
        await ws.send(message)


def url_of(server, scheme="ws"):
    return f"{scheme}://localhost:{server.sockets[0].getsockname()[1]}"


@pytest.mark.parametrize("tls", [False, True], ids=["plain", "tls"])
@pytest.mark.parametrize("compression", [None, "deflate"])
def test_big_messages(run, tls, compression, server_tls, client_tls):
    big = os.urandom(1 << 20) * (16 if compression is None else 2)
    options = {"max_size": None, "compression": compression}

    async def main():
        async with serve(echo, "127.0.0.1", 0, ssl=server_tls if tls else None, **options) as server:
            url = url_of(server, "wss" if tls else "ws")
            async with connect(url, ssl=client_tls if tls else None, **options) as ws:
                for message in (big, "text ü" * 100_000, b"", ""):
                    await ws.send(message)
                    assert await ws.recv() == message
                await ws.send([big[:1000], big[1000:2000]])  # in two frames
                assert await ws.recv() == big[:2000]

    run(main())


def test_ping_and_close_codes(run):
    async def main():
        codes = asyncio.Queue()

        async def handler(ws):
            try:
                await ws.recv()
                await ws.close(4000, "because")
            except websockets.ConnectionClosed:
                pass
            codes.put_nowait(ws.close_code)

        async with serve(handler, "127.0.0.1", 0) as server:
            async with connect(url_of(server)) as ws:
                assert await (await ws.ping()) < 5
                await ws.send("close")
                with pytest.raises(websockets.ConnectionClosedError) as closed:
                    await ws.recv()
                assert (closed.value.rcvd.code, closed.value.rcvd.reason) == (4000, "because")
            assert await codes.get() == 4000
            async with connect(url_of(server)):
                pass
            assert await codes.get() == 1000
            ws = await connect(url_of(server))
            ws.transport.abort()
            await ws.wait_closed()
            assert await codes.get() == 1006
            ws = await connect(url_of(server))
            server.close()
            await server.wait_closed()
            await ws.wait_closed()
            assert ws.close_code == 1001

    run(main())


def test_silent_peer_is_dropped_by_keepalive(run):
    async def main():
        lost = asyncio.get_running_loop().create_future()

        async def handler(ws):
            try:
                await ws.recv()
            except websockets.ConnectionClosedError as error:
                lost.set_result(error.sent.code)

        options = {"ping_interval": 0.1, "ping_timeout": 0.1, "close_timeout": 0.1}
        async with serve(handler, "127.0.0.1", 0, **options) as server:
            reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
            writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
                         b"Sec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\nSec-WebSocket-Version: 13\r\n\r\n")
            await reader.readuntil(b"\r\n\r\n")
            assert await lost == 1011
            writer.close()
            await writer.wait_closed()

    run(main())


def test_200_connections(run):
    async def main():
        everyone = set()

        async def handler(ws):
            everyone.add(ws)
            await ws.send(await ws.recv())
            await ws.wait_closed()

        async def client(url, i):
            async with connect(url) as ws:
                await ws.send(str(i))
                assert await ws.recv() == str(i)
                joined.release()
                return await ws.recv()

        joined = asyncio.Semaphore(0)
        async with serve(handler, "127.0.0.1", 0, backlog=256) as server:
            tasks = [asyncio.ensure_future(client(url_of(server), i)) for i in range(200)]
            for _ in tasks:
                await joined.acquire()
            broadcast(everyone, "to all")
            assert set(await asyncio.gather(*tasks)) == {"to all"}

    run(main())
