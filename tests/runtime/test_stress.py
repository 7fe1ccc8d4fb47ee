"""What breaks schedulers of single tasks: gather with wait_for, Lock, Queue, cancellation storms, posts, on several Ps.

Each scenario counts what it did and what must have come of it. The short form is for every run; `-m long` takes ten
minutes for each of the two tests.
"""

import asyncio
import collections
import os
import random
import time

import gmploop
import pytest
from gmploop import go

SHORT_S, LONG_S = 1.2, 120     # for each of the five scenarios


async def gather_with_wait_for(rnd):
    """Half of the waits end by their timeout, some in the same moment as what they wait for."""
    async def piece(pause):
        await asyncio.sleep(pause)
        return pause
    pauses = [rnd.random() * 0.002 for _ in range(20)]
    results = await asyncio.gather(*[asyncio.wait_for(piece(pause), 0.001) for pause in pauses], return_exceptions=True)
    for pause, result in zip(pauses, results, strict=True):
        assert result == pause or isinstance(result, TimeoutError), result
    return len(results)


async def lock(rnd):
    """Nobody is inside twice, although some who wait are cancelled."""
    mutex, inside, entered = asyncio.Lock(), 0, 0

    async def enter():
        nonlocal inside, entered
        async with mutex:
            inside += 1
            assert inside == 1
            try:
                await asyncio.sleep(0)
            finally:
                inside -= 1
            entered += 1
    tasks = [asyncio.create_task(enter()) for _ in range(20)]
    for _ in range(rnd.randrange(5)):
        await asyncio.sleep(0)
    for task in rnd.sample(tasks, 5):
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    assert entered == results.count(None) >= 15 and not mutex.locked()
    return entered


async def queues(rnd):
    """Each item comes out once and in order, although consumers are cancelled while they wait."""
    queue, got, number = asyncio.Queue(rnd.randrange(1, 5)), [], 60

    async def produce():
        for item in range(number):
            await queue.put(item)
            if rnd.random() < 0.1:
                await asyncio.sleep(0)

    async def consume():
        while True:
            got.append(await queue.get())
            queue.task_done()
            await asyncio.sleep(0)
    producer, consumers = asyncio.create_task(produce()), [asyncio.create_task(consume())]
    while not producer.done():
        await asyncio.sleep(0)
        consumers[-1].cancel()
        consumers.append(asyncio.create_task(consume()))
        await asyncio.sleep(0)
    await queue.join()
    for consumer in consumers:
        consumer.cancel()
    await asyncio.gather(*consumers, return_exceptions=True)
    assert got == list(range(number))
    return number


async def cancellation_storm(rnd):
    """Goroutines with task groups, cancelled at any moment of their lives: each ends as one or the other."""
    async def victim():
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(asyncio.sleep(rnd.random() * 0.002))
        return "done"
    handles = [go(victim) for _ in range(10)]
    await asyncio.sleep(rnd.random() * 0.002)
    for handle in handles:
        handle.cancel()
    results = await asyncio.gather(*handles, return_exceptions=True)
    assert all(result == "done" or isinstance(result, asyncio.CancelledError) for result in results)
    return len(results)


async def between_worlds(rnd):
    """A channel and a mutex for several worlds, with receivers that give up: nothing is lost or doubled."""
    channel, mutex, got = gmploop.Channel(2), gmploop.Mutex(), collections.Counter()

    async def receive():
        while True:
            try:
                item = await asyncio.wait_for(channel.recv(), rnd.random() * 0.001)
            except TimeoutError:
                continue
            except gmploop.ChannelClosed:
                return
            async with mutex:
                got[item] += 1
    receivers = [go(receive) for _ in range(3)]
    for item in range(40):
        await channel.send(item)
    channel.close()
    await asyncio.gather(*receivers)
    assert got == collections.Counter(range(40))
    return 40

SCENARIOS = [gather_with_wait_for, lock, queues, cancellation_storm, between_worlds]


def run_scenarios(run, seconds, worlds=8):
    """Each for so many seconds, in several worlds on two Ps; returns what they counted."""
    counts, seed = {}, int.from_bytes(os.urandom(4), "little")

    async def repeat(scenario, number, until):
        rnd, count = random.Random(seed + number), 0
        while time.monotonic() < until:
            count += await scenario(rnd)
        return count

    async def main():
        for scenario in SCENARIOS:
            until = time.monotonic() + seconds
            parts = await asyncio.gather(*[go(repeat, scenario, number, until) for number in range(worlds)])
            assert all(parts)
            counts[scenario.__name__] = sum(parts)
    run(main(), procs=2, timeout=seconds * len(SCENARIOS) + 60)
    assert gmploop.stats()["goroutines"] == 0
    return counts


@pytest.mark.timeout(90)
def test_scenarios(run):
    run_scenarios(run, SHORT_S)


@pytest.mark.long
@pytest.mark.timeout(LONG_S * len(SCENARIOS) + 120)
def test_scenarios_for_ten_minutes(run):
    print(run_scenarios(run, LONG_S))


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("procs", [2, 4, 8])
def test_a_million_posts_run_once_and_in_order(run, procs, in_thread):
    """From three threads to twenty worlds that also sleep, yield and lose their Ps."""
    worlds, posters, each = 20, 3, 17000

    async def collect():
        last, count, done = dict.fromkeys(range(posters), -1), 0, asyncio.Event()

        def take(poster, number):
            nonlocal count
            assert number == last[poster] + 1
            last[poster] = number
            count += 1
            if count == posters * each:
                done.set()
        asyncio.get_running_loop().take = take
        while not done.is_set():
            await asyncio.sleep(random.choice((0, 0, 0.001)))
            if random.random() < 0.001:
                gmploop.blocking(time.sleep, 0.001)
        return count

    def post(me, loops):
        for number in range(each):
            for loop in loops:
                loop.call_soon_threadsafe(loop.take, me, number)

    async def main():
        handles = [go(collect) for _ in range(worlds)]
        loops = [handle.get_loop() for handle in handles]
        while not all(hasattr(loop, "take") for loop in loops):
            await asyncio.sleep(0.001)
        threads = [in_thread(post, me, loops) for me in range(posters)]
        counts = await asyncio.gather(*handles)
        await asyncio.to_thread(lambda: [thread.join() for thread in threads])
        return sum(counts)
    assert run(main(), procs=procs, timeout=1100) == worlds * posters * each > 1_000_000
