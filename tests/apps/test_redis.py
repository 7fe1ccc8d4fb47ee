"""redis-py's asyncio client against a real Redis."""

import asyncio
import contextlib

import pytest

redis = pytest.importorskip("redis.asyncio")


@pytest.fixture(params=["tcp", "unix"])
def client(request, redis_server, loop_factory):
    """client(**options) -> an async context manager: a client with an empty database."""
    @contextlib.asynccontextmanager
    async def connected(**options):
        where = {"port": redis_server.port} if request.param == "tcp" else {"unix_socket_path": redis_server.socket}
        async with redis.Redis(**where, **options) as r:
            await r.flushdb()
            yield r

    return connected


def test_values(run, client):
    big = bytes(range(256)) * (32 << 10)  # 8 MiB

    async def main():
        async with client() as r:
            await r.set("big", big)
            assert await r.get("big") == big
            assert sorted(await asyncio.gather(*(r.incr("n") for _ in range(50)))) == list(range(1, 51))
            with pytest.raises(redis.RedisError):
                await r.lpush("big", "not a list")

    run(main())


def test_pipelines(run, client):
    async def main():
        async with client(decode_responses=True) as r:
            async with r.pipeline(transaction=False) as pipe:
                for i in range(5000):
                    pipe.set(f"k{i}", i)
                assert all(await pipe.execute())
            assert await r.mget([f"k{i}" for i in range(5000)]) == [str(i) for i in range(5000)]
            async with r.pipeline() as pipe:
                await pipe.watch("k0")
                await r.set("k0", "changed")
                pipe.multi()
                pipe.set("k0", "mine")
                with pytest.raises(redis.WatchError):
                    await pipe.execute()

    run(main())


def test_pubsub(run, client):
    async def main():
        async with client(decode_responses=True) as r, r.pubsub() as pubsub:
            await pubsub.subscribe("news")
            await pubsub.psubscribe("wild.*")
            for _ in range(2):
                assert (await pubsub.get_message(timeout=5))["type"] in ("subscribe", "psubscribe")
            for i in range(100):
                await r.publish("news", f"message {i}")
            await r.publish("wild.card", "last")
            heard = []
            async for message in pubsub.listen():
                heard.append(message["data"])
                if message["type"] == "pmessage":
                    break
            assert heard == [*(f"message {i}" for i in range(100)), "last"]
            assert await pubsub.get_message(ignore_subscribe_messages=True, timeout=0.05) is None

    run(main())


def test_blocking_pop(run, client):
    """A cancelled pop takes nothing: what is pushed afterwards is there for the next one."""
    async def main():
        async with client(decode_responses=True) as r:
            assert await r.blpop("list", timeout=0.1) is None
            popping = asyncio.ensure_future(r.blpop("list", timeout=0))
            while not (await r.info("clients"))["blocked_clients"]:
                await asyncio.sleep(0.01)
            popping.cancel()
            with pytest.raises(asyncio.CancelledError):
                await popping
            while (await r.info("clients"))["blocked_clients"]:
                await asyncio.sleep(0.01)
            popping = asyncio.ensure_future(r.blpop("list", timeout=0))
            await r.rpush("list", "value")
            assert await popping == ("list", "value")

    run(main())


def test_100_connections(run, client):
    async def main():
        async with client(decode_responses=True, max_connections=200) as r:
            popping = [asyncio.ensure_future(r.blpop("list", timeout=20)) for _ in range(100)]
            while (await r.info("clients"))["blocked_clients"] < 100:
                await asyncio.sleep(0.01)
            await r.rpush("list", *range(100))
            assert {int(value) for _, value in await asyncio.gather(*popping)} == set(range(100))

    run(main())
