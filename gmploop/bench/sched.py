"""The sched rows on gmploop's own runtime, in a process of their own. `contests` says what each row is."""

import asyncio
import random
import statistics
import threading
import time

import worlds
from loops import enter_child
from worlds import BATCH, HOPS, PAIRED_WORLDS, PARKED_TASKS, SPAWNS, WORLDS

SETTINGS = enter_child()

import gmploop  # noqa: E402
from gmploop import go  # noqa: E402
from gmploop.goroutine import percentile  # noqa: E402

PROCS = SETTINGS["threads"]


def run(main, procs=PROCS):
    return gmploop.run(main(), procs=procs, shutdown_timeout=60)


def many(body):
    """Milliseconds that WORLDS goroutines with this body take."""
    async def main():
        await asyncio.gather(*[go(body) for _ in range(WORLDS)])
    return lambda settings: worlds.repeated(lambda: worlds.seconds_of(run, main) * 1e3, settings["seconds"])


def scaling(body):
    """What two Ps take for PAIRED_WORLDS goroutines with this body, of one P's time."""
    async def main():
        await asyncio.gather(*[go(body) for _ in range(PAIRED_WORLDS)])
    return lambda settings: worlds.scaling(lambda procs: run(main, procs), settings["seconds"])


def in_a_goroutine(body):
    """What `body` returns, run by a goroutine."""
    async def main():
        return await go(body)
    return lambda settings: worlds.repeated(lambda: run(main), settings["seconds"])


async def spawn_many():
    start = time.perf_counter()
    for _ in range(SPAWNS // BATCH):
        for handle in [go(worlds.nothing) for _ in range(BATCH)]:
            await handle
    return (time.perf_counter() - start) / SPAWNS * 1e9


async def spawn_one():
    start = time.perf_counter()
    for _ in range(SPAWNS):
        await go(worlds.nothing)
    return (time.perf_counter() - start) / SPAWNS * 1e9


def hop(apart, hops):
    async def echo(there, back):
        if apart:
            gmploop.lock_os_thread()
        for _ in range(hops):
            await back.send(await there.recv())

    async def ask(there, back):
        if apart:
            gmploop.lock_os_thread()
        start = time.perf_counter()
        for number in range(hops):
            await there.send(number)
            await back.recv()
        return (time.perf_counter() - start) / (2 * hops) * 1e9

    async def main():
        channels = gmploop.Channel(), gmploop.Channel()
        other = go(echo, *channels)
        took = await go(ask, *channels)
        await other
        return took
    return lambda settings: worlds.repeated(lambda: run(main), settings["seconds"])


def parked(settings):
    never, count = gmploop.Event(), settings["count"]

    async def waits():
        await never.wait()

    async def main():
        before = worlds.resident()
        handles = [go(waits) for _ in range(count)]
        while not handles[-1].get_name():           # it has one from its first turn on
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.5)
        return {"value": (worlds.resident() - before) / count}
    return run(main)


def blocker(settings):
    async def main():
        done = threading.Event()
        blocking = go(worlds.block_until, done, worlds.BLOCKERS[settings["row"]])
        figures = await go(worlds.lateness, settings["seconds"])
        done.set()
        await blocking
        return figures
    return run(main)


def idle(settings):
    async def waits():
        await gmploop.Event().wait()

    async def main():
        for _ in range(PARKED_TASKS):
            go(waits)
        return {"value": await asyncio.to_thread(worlds.idle_switches, settings["seconds"])}
    return run(main)


def _waits():
    """Of all Ps: {ns: how many waits were shorter}."""
    total = {}
    for row in gmploop.stats()["per_proc"]:
        for below, n in row["latency_ns"].items():
            total[below] = total.get(below, 0) + n
    return total


def latency(settings):
    async def body(until):
        while time.monotonic() < until:
            worlds.compute(50e-6)
            await asyncio.sleep(0.004 * random.random())

    async def main():
        await go(asyncio.sleep, 0)          # a run's first goroutine begins its counters
        before, until = _waits(), time.monotonic() + settings["seconds"]
        await asyncio.gather(*[go(body, until) for _ in range(20)])
        return {below: n - before.get(below, 0) for below, n in _waits().items()}
    waits = run(main)
    p50, p99 = (percentile(waits, percent) / 1e3 for percent in (50, 99))
    return {"value": p99, "p50_us": p50, "samples": sum(waits.values())}


def retake(settings):
    """Two goroutines on one P: the first blocks, and the second, already runnable, says when it ran."""
    async def other():
        return time.perf_counter()

    async def blocks():
        waiting, start = go(other), time.perf_counter()
        time.sleep(0.03)
        return (await waiting - start) * 1e3

    async def main():
        end, took = time.perf_counter() + settings["seconds"], []
        while not took or time.perf_counter() < end:
            took.append(await go(blocks))
        return {"value": statistics.median(took), "min_ms": min(took), "max_ms": max(took), "samples": len(took)}
    return run(main)


ROWS = {"cpu": many(worlds.compute_in_turns), "tasks": many(worlds.queue_and_lock),
        "scaling-cpu": scaling(worlds.compute_in_turns), "scaling-tasks": scaling(worlds.queue_and_lock),
        "spawn": in_a_goroutine(spawn_many), "spawn-one": in_a_goroutine(spawn_one),
        "hop": hop(False, HOPS), "hop-threads": hop(True, HOPS // 10), "parked": parked,
        "blocker-sleep": blocker, "blocker-compute": blocker, "idle": idle, "latency": latency, "retake": retake}

worlds.answer(ROWS, SETTINGS)
