"""The database clients of the db rows, in a process of their own: its CPU time for an operation is what is measured.

WORKERS tasks, each with a connection of its own, carry out one operation after the other against a real server, which
runs on the other core. What comes back is checked.
"""

import asyncio
import contextlib
import json
import os
import resource
import sys
import time

WORKERS = 10
ROWS = 1000
PIPELINE = 100
VALUE = b"v" * 100


async def asyncpg_row(where, stack):
    """Each operation: one row by its primary key."""
    connection = await _connect_asyncpg(where, stack)
    await connection.execute("CREATE TABLE IF NOT EXISTS numbers (id int PRIMARY KEY, square bigint)")
    await connection.execute("INSERT INTO numbers SELECT i, i::bigint * i FROM generate_series(0, 999) AS i "
                             "ON CONFLICT DO NOTHING")

    async def worker(number):
        connection = await _connect_asyncpg(where, stack)
        i = number * 97

        async def operation():
            nonlocal i
            i = (i + 1) % 1000
            if await connection.fetchval("SELECT square FROM numbers WHERE id = $1", i) != i * i:
                raise RuntimeError("PostgreSQL's answer is wrong")

        return operation

    return worker, 1


async def asyncpg_rows(where, stack):
    """Each operation: a result of ROWS rows."""
    async def worker(number):
        connection = await _connect_asyncpg(where, stack)

        async def operation():
            rows = await connection.fetch("SELECT i, 'row ' || i AS name FROM generate_series(1, $1::int) AS i", ROWS)
            if len(rows) != ROWS or rows[-1]["name"] != f"row {ROWS}":
                raise RuntimeError("PostgreSQL's answer is wrong")

        return operation

    return worker, 1


async def _connect_asyncpg(where, stack):
    import asyncpg
    connection = await asyncpg.connect(host="127.0.0.1", port=where["port"], user=where["user"], database="postgres")
    stack.push_async_callback(connection.close)
    return connection


async def redis_pairs(where, stack):
    """Each operation: a SET or a GET."""
    async def worker(number):
        client, key, turn = _redis_client(where, stack), f"key-{number}", False

        async def operation():
            nonlocal turn
            turn = not turn
            if turn:
                await client.set(key, VALUE)
            elif await client.get(key) != VALUE:
                raise RuntimeError("Redis' answer is wrong")

        return operation

    return worker, 1


async def redis_pipeline(where, stack):
    """Each operation: one command of a pipeline of PIPELINE."""
    async def worker(number):
        client, key = _redis_client(where, stack), f"list-{number}"

        async def operation():
            async with client.pipeline(transaction=False) as pipe:
                for _ in range(PIPELINE // 2):
                    pipe.set(key, VALUE).get(key)
                if (await pipe.execute())[1::2] != [VALUE] * (PIPELINE // 2):
                    raise RuntimeError("Redis' answer is wrong")

        return operation

    return worker, PIPELINE


def _redis_client(where, stack):
    import redis.asyncio
    client = redis.asyncio.Redis(host="127.0.0.1", port=where["port"], single_connection_client=True)
    stack.push_async_callback(client.aclose)
    return client


CLIENTS = {"asyncpg": asyncpg_row, "asyncpg-rows": asyncpg_rows, "redis": redis_pairs, "redis-pipeline": redis_pipeline}


async def measure(settings):
    from loops import wait_to_be_counted
    async with contextlib.AsyncExitStack() as stack:
        make, weight = await CLIENTS[settings["kind"]](settings["service"], stack)
        operations = [await make(number) for number in range(WORKERS)]
        done = 0

        async def repeat(operation, end):
            nonlocal done
            while time.perf_counter() < end:
                await operation()
                done += 1

        async def all_for(seconds):
            nonlocal done
            done = 0
            end = time.perf_counter() + seconds
            await asyncio.gather(*[repeat(operation, end) for operation in operations])

        await all_for(settings["warmup"])
        wait_to_be_counted(settings)
        wall, cpu = time.perf_counter(), time.process_time()
        user, system = _times()
        await all_for(settings["seconds"])
        took, cpu = time.perf_counter() - wall, time.process_time() - cpu
        user, system = (after - before for after, before in zip(_times(), (user, system)))
        count = done * weight
        return {"cpu_us": cpu * 1e6 / count, "user_us": user * 1e6 / count, "sys_us": system * 1e6 / count,
                "requests": count, "operations": count, "requests_per_s": count / took, "cpu_share": cpu / took,
                "rss_kb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss}


def _times():
    times = os.times()
    return times.user, times.system


def main():
    from loops import check_running, enter_child, factory_of
    settings = enter_child()

    async def run():
        return {"loop": check_running(settings["loop"]), **await measure(settings)}

    with asyncio.Runner(loop_factory=factory_of(settings["loop"])) as runner:
        json.dump(runner.run(run()), sys.stdout)


if __name__ == "__main__":
    main()
