"""asyncpg against a real PostgreSQL."""

import asyncio
import io

import pytest

asyncpg = pytest.importorskip("asyncpg")


@pytest.fixture(params=["tcp", "unix"])
def where(request, postgres):
    """Arguments of asyncpg.connect."""
    host = {"tcp": "127.0.0.1", "unix": postgres.folder}[request.param]
    return {"host": host, "port": postgres.port, "user": "tester", "database": "postgres", "ssl": False}


@pytest.fixture
def tcp(postgres):
    return {"host": "127.0.0.1", "port": postgres.port, "user": "tester", "database": "postgres", "ssl": False}


def test_queries(where, run):
    async def main():
        conn = await asyncpg.connect(**where)
        assert await conn.fetchval("select $1::int + 1", 41) == 42
        rows = await conn.fetch("select i, repeat('x', i) as text from generate_series(1, 2000) as i")
        assert [len(row["text"]) for row in rows] == list(range(1, 2001))
        big = b"\x01" * (8 << 20)
        assert await conn.fetchval("select $1::bytea", big) == big
        with pytest.raises(asyncpg.DivisionByZeroError):
            await conn.fetch("select 1 / 0")
        statement = await conn.prepare("select $1::text || $2::text")
        assert [await statement.fetchval("a", str(i)) for i in range(50)] == [f"a{i}" for i in range(50)]
        await conn.close()

    run(main())


def test_transactions(where, run):
    async def main():
        conn = await asyncpg.connect(**where)
        await conn.execute("create temp table t (n int)")
        with pytest.raises(ZeroDivisionError):
            async with conn.transaction():
                await conn.execute("insert into t values (1)")
                raise ZeroDivisionError
        async with conn.transaction():
            await conn.executemany("insert into t values ($1)", [(i,) for i in range(1000)])
            with pytest.raises(asyncpg.PostgresError):
                async with conn.transaction():
                    await conn.execute("insert into t values (0), ('none')")
            cursor = [row["n"] async for row in conn.cursor("select n from t order by n", prefetch=7)]
        assert cursor == list(range(1000))
        assert await conn.fetchval("select count(*) from t") == 1000
        await conn.close()

    run(main())


def test_pool(where, run):
    async def main():
        async with asyncpg.create_pool(**where, min_size=2, max_size=8) as pool:
            async def one(i):
                async with pool.acquire() as conn:
                    return await conn.fetchrow("select $1::int, pg_backend_pid()", i)

            rows = await asyncio.gather(*(one(i) for i in range(200)))
            assert [row[0] for row in rows] == list(range(200))
            assert 2 <= len({row[1] for row in rows}) <= 8
            async with asyncio.timeout(5):
                waiting = [asyncio.ensure_future(pool.fetchval("select pg_sleep(20)")) for _ in range(8)]
                while pool.get_idle_size():
                    await asyncio.sleep(0.01)
                with pytest.raises(asyncio.TimeoutError):
                    await pool.acquire(timeout=0.1)
                for task in waiting:
                    task.cancel()
                await asyncio.wait(waiting)
                assert await pool.fetchval("select 1") == 1

    run(main())


def test_listen_notify(where, run):
    async def main():
        heard = asyncio.Queue()
        listener, speaker = await asyncpg.connect(**where), await asyncpg.connect(**where)
        await listener.add_listener("channel", lambda conn, pid, channel, payload: heard.put_nowait((pid, payload)))
        for i in range(100):
            await speaker.execute(f"notify channel, 'message {i}'")
        pid = speaker.get_server_pid()
        assert [await heard.get() for _ in range(100)] == [(pid, f"message {i}") for i in range(100)]
        await listener.close()
        await speaker.close()

    run(main())


def test_copy(where, run):
    records = [(i, "text " * (i % 50)) for i in range(20_000)]

    async def main():
        conn = await asyncpg.connect(**where)
        await conn.execute("create temp table t (n int, s text)")
        await conn.copy_records_to_table("t", records=records)
        out = io.BytesIO()
        await conn.copy_from_query("select * from t order by n", output=out, format="csv")
        assert out.getvalue().count(b"\n") == len(records)
        await conn.execute("truncate t")
        await conn.copy_to_table("t", source=io.BytesIO(out.getvalue()), format="csv")
        assert await conn.fetchval("select md5(string_agg(n || s, '|' order by n)) from t") == await conn.fetchval(
            "select md5($1)", "|".join(f"{n}{s}" for n, s in records))
        await conn.close()

    run(main())


def test_cancelling_a_running_query(where, run):
    """asyncpg cancels over a second connection and the first one goes on to work."""
    async def main():
        conn = await asyncpg.connect(**where)
        async with asyncio.timeout(5):
            with pytest.raises(asyncio.TimeoutError):
                await asyncio.wait_for(conn.fetch("select pg_sleep(20)"), 0.1)
            with pytest.raises(asyncio.TimeoutError):
                await conn.fetch("select pg_sleep(20)", timeout=0.1)
            task = asyncio.ensure_future(conn.fetch("select pg_sleep(20)"))
            asyncio.get_running_loop().call_later(0.1, task.cancel)
            with pytest.raises(asyncio.CancelledError):
                await task
            assert await conn.fetchval("select 1") == 1
        await conn.close()

    run(main())


def test_server_ends_the_connection(tcp, run):
    async def main():
        terminated = asyncio.Event()
        conn, other = await asyncpg.connect(**tcp), await asyncpg.connect(**tcp)
        conn.add_termination_listener(lambda _: terminated.set())
        running = asyncio.ensure_future(conn.fetch("select pg_sleep(20)"))
        await asyncio.sleep(0)
        await other.execute("select pg_terminate_backend($1)", conn.get_server_pid())
        with pytest.raises((asyncpg.PostgresError, ConnectionError)):
            await running
        await terminated.wait()
        assert conn.is_closed()
        await other.close()

    run(main())


def test_tls(tcp, run, client_tls):
    """PostgreSQL's TLS begins in the clear and goes on by the loop's start_tls."""
    async def main():
        conn = await asyncpg.connect(**{**tcp, "host": "localhost", "ssl": client_tls})
        assert await conn.fetchval("select ssl from pg_stat_ssl where pid = pg_backend_pid()")
        big = "x" * (4 << 20)
        assert await conn.fetchval("select $1::text", big) == big
        await conn.close()

    run(main())
