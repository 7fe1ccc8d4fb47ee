"""The sched rows on tonio, whose one scheduler steps single tasks on so many threads; see `contests`.

It has no event loop of asyncio's: the work is the same, by its own means (yield_now, its channel, its lock).
"""

import threading
import time

import worlds
from loops import enter_child
from worlds import BATCH, HOPS, PARKED_TASKS, SPAWNS, WORLDS

SETTINGS = enter_child()

import tonio.colored as tonio  # noqa: E402
from tonio.colored.sync import Lock  # noqa: E402
from tonio.colored.sync.channel import channel  # noqa: E402


async def compute_in_turns():
    for _ in range(40):
        total = 0
        for k in range(1000):
            total += k * k
        await tonio.yield_now()


async def queue_and_lock():
    (sender, receiver), lock = channel(100), Lock()

    async def produce():
        for k in range(100):
            async with lock:
                await sender.send(k)
    for _ in range(3):
        producer = tonio.spawn(produce())
        for _ in range(100):
            await receiver.receive()
        await producer


def timed(body, operations, unit):
    """`body`'s time for an operation, again and again in the one run that a process can have."""
    async def main(settings):
        values, end = [], time.perf_counter() + settings["seconds"]
        await body()
        while not values or time.perf_counter() < end:
            start = time.perf_counter()
            await body()
            values.append((time.perf_counter() - start) / operations * unit)
        values.sort()
        return {"value": values[len(values) // 2], "repeated": len(values)}
    return main


def many(body):
    async def all_of_them():
        await tonio.spawn(*[body() for _ in range(WORLDS)])
    return timed(all_of_them, 1, 1e3)


async def spawn_many():
    for _ in range(SPAWNS // BATCH):
        await tonio.spawn(*[worlds.nothing() for _ in range(BATCH)])


async def spawn_one():
    for _ in range(SPAWNS):
        await tonio.spawn(worlds.nothing())


async def hop():
    (ask, asked), (reply, replies) = channel(1), channel(1)

    async def echo():
        for _ in range(HOPS):
            await reply.send(await asked.receive())
    other = tonio.spawn(echo())
    for number in range(HOPS):
        await ask.send(number)
        await replies.receive()
    await other


async def parked(settings):
    never, count = tonio.Event(), settings["count"]

    async def waits():
        await never.wait()
    before = worlds.resident()
    waiting = tonio.spawn(*[waits() for _ in range(count)])
    await tonio.sleep(2)
    took = worlds.resident() - before
    never.set()
    await waiting
    return {"value": took / count}


async def blocker(settings):
    done, block = threading.Event(), worlds.BLOCKERS[settings["row"]]

    async def blocks():
        while not done.is_set():
            block()
            await tonio.yield_now()
    blocking = tonio.spawn(blocks())
    figures = await worlds.lateness(settings["seconds"], tonio.sleep)
    done.set()
    await blocking
    return figures


async def idle(settings):
    never = tonio.Event()

    async def waits():
        await never.wait()
    waiting = tonio.spawn(*[waits() for _ in range(PARKED_TASKS)])
    await tonio.sleep(0.5)
    before = worlds.switches()
    await tonio.sleep(settings["seconds"])
    value = (worlds.switches() - before - 1) / settings["seconds"]       # the sleep's own end
    never.set()
    await waiting
    return {"value": value}


def alone(main):
    return lambda settings: tonio.run(main(settings), threads=settings["threads"])


ROWS = {"cpu": alone(many(compute_in_turns)), "tasks": alone(many(queue_and_lock)),
        "spawn": alone(timed(spawn_many, SPAWNS, 1e9)), "spawn-one": alone(timed(spawn_one, SPAWNS, 1e9)),
        "hop": alone(timed(hop, 2 * HOPS, 1e9)), "parked": alone(parked),
        "blocker-sleep": alone(blocker), "blocker-compute": alone(blocker), "idle": alone(idle)}

worlds.answer(ROWS, SETTINGS)
