"""The sched rows on stock asyncio and uvloop, with a loop in each of so many threads; see `contests`."""

import asyncio
import threading
import time

import worlds
from loops import enter_child, factory_of
from worlds import BATCH, HOPS, PAIRED_WORLDS, PARKED_TASKS, SPAWNS, WORLDS

SETTINGS = enter_child()


THREADS = SETTINGS["threads"]
FACTORY = factory_of(SETTINGS["of"])


def on_a_loop(main, *args):
    with asyncio.Runner(loop_factory=FACTORY) as runner:
        return runner.run(main(*args))


def on_each(*mains):
    """Run each of these in a thread and a loop of its own; return what they return."""
    results = [None] * len(mains)

    def run(place, main):
        results[place] = on_a_loop(main)
    threads = [threading.Thread(target=run, args=item) for item in enumerate(mains)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if None in results:
        raise RuntimeError("a thread failed")
    return results


def many(body):
    """Milliseconds that WORLDS tasks with this body take, an equal part of them in each thread."""
    async def main():
        await asyncio.gather(*[body() for _ in range(WORLDS // THREADS)])
        return True
    return lambda settings: worlds.repeated(lambda: worlds.seconds_of(on_each, *[main] * THREADS) * 1e3,
                                            settings["seconds"])


def scaling(body):
    """What two threads take for PAIRED_WORLDS tasks with this body, half of them each, of one thread's time."""
    def run(threads):
        async def main():
            await asyncio.gather(*[body() for _ in range(PAIRED_WORLDS // threads)])
            return True
        on_each(*[main] * threads)
    return lambda settings: worlds.scaling(run, settings["seconds"])


def of_all_threads(main):
    """What an operation takes where all threads do what `main` does."""
    return lambda settings: worlds.repeated(lambda: max(on_each(*[main] * THREADS)) / THREADS, settings["seconds"])


async def spawn_many():
    start = time.perf_counter()
    for _ in range(SPAWNS // BATCH):
        for task in [asyncio.create_task(worlds.nothing()) for _ in range(BATCH)]:
            await task
    return (time.perf_counter() - start) / SPAWNS * 1e9


async def spawn_one():
    start = time.perf_counter()
    for _ in range(SPAWNS):
        await asyncio.create_task(worlds.nothing())
    return (time.perf_counter() - start) / SPAWNS * 1e9


async def hop():
    """Two tasks of one loop, by asyncio.Queue."""
    async def echo():
        for _ in range(HOPS):
            await back.put(await there.get())
    there, back = asyncio.Queue(1), asyncio.Queue(1)
    other = asyncio.create_task(echo())
    start = time.perf_counter()
    for number in range(HOPS):
        await there.put(number)
        await back.get()
    took = time.perf_counter() - start
    await other
    return took / (2 * HOPS) * 1e9


def hop_threads(settings):
    """Two loops on two threads: call_soon_threadsafe() puts the number into the other's queue."""
    hops = HOPS // 10

    def measure():
        ready, boxes = threading.Barrier(2), {}

        def party(mine, other, asks):
            async def main():
                loop, queue = asyncio.get_running_loop(), asyncio.Queue()
                boxes[mine] = loop, queue
                await loop.run_in_executor(None, ready.wait)
                far, far_queue = boxes[other]
                start = time.perf_counter()
                for number in range(hops):
                    if not asks:
                        number = await queue.get()
                    far.call_soon_threadsafe(far_queue.put_nowait, number)
                    if asks:
                        await queue.get()
                took = time.perf_counter() - start
                await loop.run_in_executor(None, ready.wait)
                return took
            return main
        return max(on_each(party(0, 1, True), party(1, 0, False))) / (2 * hops) * 1e9
    return worlds.repeated(measure, settings["seconds"])


def parked(settings):
    async def main():
        never, count = asyncio.Event(), settings["count"]
        before = worlds.resident()
        tasks = [asyncio.create_task(never.wait()) for _ in range(count)]
        await asyncio.sleep(0.5)
        took = worlds.resident() - before
        never.set()
        for task in tasks:
            await task
        return {"value": took / count}
    return on_a_loop(main)


def blocker(settings):
    """With two threads the one that blocks has a loop of its own."""
    done, block = threading.Event(), worlds.BLOCKERS[settings["row"]]

    async def quiet():
        figures = await worlds.lateness(settings["seconds"])
        done.set()
        return figures

    async def blocks():
        await worlds.block_until(done, block)
        return True

    async def together():
        blocking = asyncio.create_task(worlds.block_until(done, block))
        figures = await quiet()
        await blocking
        return figures
    return on_a_loop(together) if THREADS == 1 else on_each(quiet, blocks)[0]


def idle(settings):
    async def main():
        never = asyncio.Event()
        tasks = [asyncio.create_task(never.wait()) for _ in range(PARKED_TASKS)]
        value = await asyncio.to_thread(worlds.idle_switches, settings["seconds"])
        never.set()
        await asyncio.gather(*tasks)
        return {"value": value}
    return on_a_loop(main)


ROWS = {"cpu": many(worlds.compute_in_turns), "tasks": many(worlds.queue_and_lock),
        "scaling-cpu": scaling(worlds.compute_in_turns), "scaling-tasks": scaling(worlds.queue_and_lock),
        "spawn": of_all_threads(spawn_many), "spawn-one": of_all_threads(spawn_one), "hop": of_all_threads(hop),
        "hop-threads": hop_threads, "parked": parked, "blocker-sleep": blocker, "blocker-compute": blocker, "idle": idle}

worlds.answer(ROWS, SETTINGS)
