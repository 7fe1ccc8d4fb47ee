"""Unmodified asyncio code in worlds that move, on several Ps: nothing lost, nothing out of order."""

import asyncio
import collections
import os
import random
import signal
import socket
import threading
import time

import gmploop
import pytest
from gmploop import go

pytestmark = pytest.mark.timeout(120)


async def worker(i, turns):
    """Queues, locks, events, tasks, timers: returns what depends on all of them having worked."""
    queue, lock, event = asyncio.Queue(3), asyncio.Lock(), asyncio.Event()
    inside = 0

    async def produce():
        for k in range(turns):
            await queue.put(k)
            if k % 7 == 0:
                await asyncio.sleep(0)
        event.set()

    async def critical():
        nonlocal inside
        async with lock:
            assert inside == 0
            inside += 1
            await asyncio.sleep(0)
            inside -= 1
    async with asyncio.TaskGroup() as group:
        group.create_task(produce())
        for _ in range(3):
            group.create_task(critical())
        got = [await queue.get() for _ in range(turns)]
    assert got == list(range(turns))
    await event.wait()
    async with asyncio.timeout(10):
        await asyncio.sleep(0.0005)
    return i, sum(got)


@pytest.mark.parametrize("procs", [1, 2, 8])
def test_asyncio_workloads_of_many_worlds(run, procs):
    async def main():
        return await asyncio.gather(*[go(worker, i, 20) for i in range(150)])
    assert run(main(), procs=procs, timeout=60) == [(i, 190) for i in range(150)]


@pytest.mark.parametrize("procs", [2, 8])
def test_posts_from_threads_run_once_and_in_order(run, procs, in_thread):
    worlds, each, posters = 20, 300, 3

    async def collect(total):
        loop, got, done = asyncio.get_running_loop(), collections.defaultdict(list), asyncio.Event()
        count = 0

        def take(poster, number):
            nonlocal count
            got[poster].append(number)
            count += 1
            if count == total:
                done.set()
        loop.take = take
        await done.wait()
        return got

    def post(me, loops):
        for number in range(each):
            for loop in loops:
                loop.call_soon_threadsafe(loop.take, me, number)
            if number % 50 == me:
                time.sleep(0.001)       # so that worlds go to sleep between
    async def main():
        handles = [go(collect, each * posters) for _ in range(worlds)]
        loops = [handle.get_loop() for handle in handles]
        while not all(hasattr(loop, "take") for loop in loops):
            await asyncio.sleep(0.001)
        for me in range(posters):
            in_thread(post, me, loops)
        return await asyncio.gather(*handles)
    for got in run(main(), procs=procs, timeout=60):
        assert got == {me: list(range(each)) for me in range(posters)}


def test_only_one_thread_at_a_time_is_in_a_world(run):
    async def body():
        threads, inside = set(), False

        def enter():
            nonlocal inside
            assert not inside
            inside = True
            threads.add(threading.get_ident())
            inside = False
        loop = asyncio.get_running_loop()
        for i in range(100):
            loop.call_soon(enter)
            loop.call_later(random.random() * 1e-4, enter)
            await asyncio.sleep(0)
            assert asyncio.get_running_loop() is loop
        await asyncio.sleep(0.002)
        return len(threads)

    async def main():
        return await asyncio.gather(*[go(body) for _ in range(40)])
    assert all(run(main(), procs=8))


def test_timers_are_kept_while_the_world_moves_and_never_fire_early(run):
    async def body(seed):
        loop, rnd, fired = asyncio.get_running_loop(), random.Random(seed), []
        due = [loop.time() + rnd.random() * 0.02 for _ in range(30)]
        cancelled = [loop.call_at(when, fired.append, None) for when in due]
        for when in due:
            loop.call_at(when, lambda when=when: fired.append((when, loop.time())))
        for handle in cancelled:
            handle.cancel()
        while len(fired) < len(due):
            await asyncio.sleep(rnd.random() * 0.002)
        assert [when for when, _ in fired] == sorted(due)
        assert all(when <= now for when, now in fired)

    async def main():
        await asyncio.gather(*[go(body, seed) for seed in range(30)])
    run(main(), procs=4)


def test_streams_between_worlds(run):
    async def serve(reader, writer):
        while line := await reader.readline():
            writer.write(line)
            await writer.drain()
        writer.close()

    async def client(port, me):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for number in range(20):
            writer.write(b"%d %d\n" % (me, number))
            assert await reader.readline() == b"%d %d\n" % (me, number)
        writer.close()
        await writer.wait_closed()

    async def server_world():
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        await asyncio.gather(*[go(client, port, me) for me in range(30)])
        server.close()
        while len(asyncio.all_tasks()) > 1:             # what serves the clients sees their end
            await asyncio.sleep(0.001)
        await server.wait_closed()

    async def main():
        await go(server_world)
    run(main(), timeout=30)


def test_readers_writers_and_sock_calls(run):
    async def body(i):
        loop = asyncio.get_running_loop()
        a, b = socket.socketpair()
        a.setblocking(False)
        b.setblocking(False)
        got = []

        def readable():
            got.append(os.read(a.fileno(), 1))      # one byte at a time: a level-triggered watch tells again
        loop.add_reader(a, readable)
        await loop.sock_sendall(b, b"abc")
        while len(got) < 3:
            await asyncio.sleep(0.001)
        assert loop.remove_reader(a) and got == [b"a", b"b", b"c"]
        receiving = asyncio.create_task(loop.sock_recv(a, 100))
        await asyncio.sleep(0.001)
        await loop.sock_sendall(b, b"%d" % i)
        result = await receiving
        a.close()
        b.close()
        return int(result)

    async def main():
        return await asyncio.gather(*[go(body, i) for i in range(40)])
    assert run(main()) == list(range(40))


def test_what_a_world_leaves_watched_is_let_go(run):
    async def body(sock):
        asyncio.get_running_loop().add_reader(sock, print)

    async def main():
        before = gmploop.stats()["watched_fds"]
        a, b = socket.socketpair()
        with a, b:
            await go(body, a)
            assert gmploop.stats()["watched_fds"] == before
    run(main())


def test_subprocesses_and_threads(run):
    async def body(i):
        process = await asyncio.create_subprocess_exec("echo", str(i), stdout=-1)
        out, _ = await process.communicate()
        return int(out) + await asyncio.to_thread(lambda: i)

    async def main():
        return await asyncio.gather(*[go(body, i) for i in range(4)])
    assert run(main()) == [0, 2, 4, 6]


def test_a_goroutine_s_child_process_can_be_ended_by_signals(run):
    async def body():
        process = await asyncio.create_subprocess_exec("sleep", "60")
        process.terminate()
        return await process.wait()

    async def main():
        return await asyncio.gather(*[go(body) for _ in range(3)])
    assert run(main()) == [-signal.SIGTERM] * 3


def test_an_async_generator_is_finalised_in_the_world_that_iterated_it(run):
    closed = []

    async def generator(i):
        try:
            while True:
                yield i
        finally:
            await asyncio.sleep(0)
            closed.append((i, asyncio.get_running_loop().goroutine.get_name()))

    async def body(i):
        for _ in range(3):
            async for _ in generator(i):
                await asyncio.sleep(0)
                break
            await asyncio.sleep(0.001)

    async def main():
        await asyncio.gather(*[go(body, i, name=str(i)) for i in range(20)])
    run(main(), procs=4)
    assert sorted(closed) == sorted((i, str(i)) for i in range(20) for _ in range(3))


def test_cancellation_storm(run):
    async def victim():
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(asyncio.sleep(1000))

    async def main():
        for _ in range(10):
            handles = [go(victim) for _ in range(30)]
            await asyncio.sleep(random.random() * 0.003)
            for handle in handles:
                handle.cancel()
            results = await asyncio.gather(*handles, return_exceptions=True)
            assert all(isinstance(result, asyncio.CancelledError) for result in results)
    run(main(), procs=4)
    assert gmploop.stats()["goroutines"] == 0


@pytest.mark.parametrize("lock_main", [True, False])
def test_the_end_of_run_cancels_goroutines(lock_main):
    ended = []

    async def lingering():
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append(1)

    async def main():
        for _ in range(5):
            go(lingering)
        await asyncio.sleep(0.01)
        return "done"
    assert gmploop.run(main(), lock_main=lock_main) == "done"
    assert len(ended) == 5 and gmploop.stats()["goroutines"] == 0


def test_events_come_behind_what_a_turn_hands_in(run):
    """As on asyncio, which looks for them between turns: what a callback prepares is there when they come."""
    async def look():
        loop, log = asyncio.get_running_loop(), []
        near, far = socket.socketpair()
        loop.add_reader(near, log.append, "event")
        await asyncio.sleep(0.01)
        far.send(b"x")
        gmploop.blocking(time.sleep, 0.02)      # another thread sees it
        thread = threading.Thread(target=loop.call_soon_threadsafe, args=[log.append, "posted"])
        thread.start()
        thread.join()
        loop.call_soon(log.append, "called")
        while "event" not in log:
            await asyncio.sleep(0)
        loop.remove_reader(near)
        near.close()
        far.close()
        return log[:3]

    async def main():
        return [await go(look) for _ in range(5)]
    assert run(main()) == [["posted", "called", "event"]] * 5
