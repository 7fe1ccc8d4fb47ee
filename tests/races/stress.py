"""Everything that threads share, used by several threads at once: `python stress.py [SECONDS] [SCENARIO...]`.

For a thread sanitizer (see README.md), which sees a race when two threads meet in it, however the race ends; so here is
little to assert: each scenario's own count, and that all of it ends.
"""

import asyncio
import contextlib
import os
import random
import socket
import sys
import threading
import time

os.environ.setdefault("GMPLOOP_DEBUG", "batch_min_ready=0,batch_wait_us=1")     # each small write waits for two threads

import gmploop
from gmploop import go
from gmploop.core import m, spawn


async def ask(reader, writer, lines):
    for number in range(lines):
        writer.write(b"%d\n" % number)
        assert await reader.readline() == b"%d\n" % number
    writer.close()
    await writer.wait_closed()


async def echo(reader, writer):
    while line := await reader.readline():
        writer.write(line)
        await writer.drain()
    writer.close()


async def asyncio_in_a_world(turns=10):
    queue, lock, event = asyncio.Queue(3), asyncio.Lock(), asyncio.Event()

    async def produce():
        for number in range(turns):
            async with lock:
                await queue.put(number)
            await asyncio.sleep(0 if number % 3 else 0.0002)
        event.set()
    async with asyncio.TaskGroup() as group:
        group.create_task(produce())
        got = [await queue.get() for _ in range(turns)]
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(asyncio.Event().wait(), 0.0005)
    await event.wait()
    return sum(got)


async def worlds():
    sums = await asyncio.gather(*[go(asyncio_in_a_world) for _ in range(40)])
    assert sums == [45] * 40


async def errors_and_names():
    async def fails(number):
        await asyncio.sleep(0)
        raise KeyError(number)
    handles = [go(fails, number, name=str(number)) for number in range(20)]
    for handle in handles:
        handle.get_name(), repr(handle), handle.done(), handle.get_loop()
    for number, error in enumerate(await asyncio.gather(*handles, return_exceptions=True)):
        assert error.args == (number,)


async def streams():
    async def serve():
        server = await asyncio.start_server(echo, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]

        async def client():
            await ask(*await asyncio.open_connection("127.0.0.1", port), 10)
        await asyncio.gather(*[go(client) for _ in range(10)])
        server.close()
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0.001)
    await go(serve)


async def isolated_connections():
    """A world for each connection; what it sends and how it ends meets its server's loop."""
    server = await gmploop.start_server(echo, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]

    async def client(number):
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        if number % 3:
            return await ask(reader, writer, 10)
        writer.write(b"unfinished")
        writer.transport.abort()
    await asyncio.gather(*[go(client, number) for number in range(12)])
    server.close()
    await server.wait_closed()


async def sockets():
    async def body():
        loop, pair = asyncio.get_running_loop(), socket.socketpair()
        for sock in pair:
            sock.setblocking(False)
        for _ in range(5):
            receiving = asyncio.create_task(loop.sock_recv(pair[0], 10))
            await asyncio.sleep(0)
            await loop.sock_sendall(pair[1], b"x")
            assert await receiving == b"x"
        for sock in pair:
            sock.close()
    await asyncio.gather(*[go(body) for _ in range(20)])


async def cancellation():
    async def victim():
        async with asyncio.TaskGroup() as group:
            for _ in range(3):
                group.create_task(asyncio.sleep(1000))
    handles = [go(victim) for _ in range(30)]
    await asyncio.sleep(random.random() * 0.002)
    for handle in handles:
        handle.cancel()
    for result in await asyncio.gather(*handles, return_exceptions=True):
        assert isinstance(result, asyncio.CancelledError)


async def channels():
    """Worlds and plain threads, by all the ways to send and receive."""
    items, senders = gmploop.Channel(4), 6

    async def send(me):
        for number in range(20):
            await items.send((me, number))

    def send_from_thread(me):
        for number in range(20):
            items.send_blocking((me, number))
    other = gmploop.Channel()

    async def receive():
        got = []
        async for item in items:
            got.append(item)
            with contextlib.suppress(TimeoutError):
                await gmploop.select(other, timeout=0.0002) if len(got) % 7 == 0 else None
        return got
    threads = [threading.Thread(target=send_from_thread, args=(me,)) for me in range(2)]
    receivers = [go(receive) for _ in range(3)]
    for thread in threads:
        thread.start()
    await asyncio.gather(*[go(send, me) for me in range(2, senders)])
    await asyncio.to_thread(lambda: [thread.join() for thread in threads])
    items.close()
    got = sorted(item for each in await asyncio.gather(*receivers) for item in each)
    assert got == [(me, number) for me in range(senders) for number in range(20)]


async def locks():
    mutex, shared, gate = gmploop.Mutex(), gmploop.RWMutex(), gmploop.Semaphore(2)
    once, group, opened = gmploop.Once(), gmploop.WaitGroup(), gmploop.Event()
    count = {"mutex": 0, "writes": 0}

    async def body():
        await opened.wait()
        for number in range(5):
            async with mutex:
                count["mutex"] += 1
            async with gate:
                await asyncio.sleep(0)
            if number % 3:
                async with shared.reader:
                    pass
            else:
                async with shared.writer:
                    count["writes"] += 1
        await once.do(asyncio.sleep, 0)
        group.done()

    def thread():
        opened.wait_blocking()
        for _ in range(20):
            mutex.acquire_blocking()
            count["mutex"] += 1
            mutex.release()
    group.add(20)
    handles, plain = [go(body) for _ in range(20)], threading.Thread(target=thread)
    plain.start()
    opened.set()
    await group.wait()
    await asyncio.gather(*handles)
    await asyncio.to_thread(plain.join)
    assert count == {"mutex": 120, "writes": 40}


async def posts():
    """call_soon_threadsafe to worlds and to a locked loop, from threads; run_coroutine_threadsafe, too."""
    home, got, done = asyncio.get_running_loop(), [], asyncio.Event()

    async def collect():
        mine, over = [], asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.take = lambda item: (mine.append(item), len(mine) == 60 and over.set())
        await over.wait()
        return mine
    handles = [go(collect) for _ in range(6)]
    while not all(hasattr(handle.get_loop(), "take") for handle in handles):
        await asyncio.sleep(0.0005)
    loops = [handle.get_loop() for handle in handles]

    def post(me):
        for number in range(30):
            for loop in loops:
                loop.call_soon_threadsafe(loop.take, (me, number))
            home.call_soon_threadsafe(int).cancel()
            home.call_soon_threadsafe(got.append, (me, number))
            if number % 10 == 0:
                time.sleep(0.0005)
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), home).result(60)
        home.call_soon_threadsafe(done.set)
    threads = [threading.Thread(target=post, args=(me,)) for me in range(2)]
    for thread in threads:
        thread.start()
    for mine in await asyncio.gather(*handles):
        assert [[item for item in mine if item[0] == me] for me in range(2)] == \
            [[(me, number) for number in range(30)] for me in range(2)]
    await done.wait()
    await asyncio.to_thread(lambda: [thread.join() for thread in threads])
    await asyncio.sleep(0)
    assert len(got) == 60


async def results_in_threads():
    def wait(handles, results):
        results.extend(handle.result(60) for handle in handles)
    handles, results = [go(asyncio_in_a_world, 4) for _ in range(10)], []
    threads = [threading.Thread(target=wait, args=(handles, results)) for _ in range(2)]
    for thread in threads:
        thread.start()
    await asyncio.gather(*handles)
    await asyncio.to_thread(lambda: [thread.join() for thread in threads])
    assert results == [6] * 20


async def spawning_from_threads():
    def spawn(results):
        for _ in range(20):
            results.append(go(pow, 2, 3).result(60))
    results = []
    threads = [threading.Thread(target=spawn, args=(results,)) for _ in range(3)]
    for thread in threads:
        thread.start()
    await asyncio.to_thread(lambda: [thread.join() for thread in threads])
    assert results == [8] * 60


async def blocking():
    async def body(number):
        for _ in range(3):
            if number % 3 == 0:
                gmploop.blocking(time.sleep, 0.001)
            elif number % 3 == 1:
                with gmploop.syscall():
                    time.sleep(0.001)
            else:
                time.sleep(0.012)               # sysmon takes the P
            await asyncio.sleep(0)
    await asyncio.gather(*[go(body, number) for number in range(9)])


async def locked_threads():
    async def body():
        gmploop.lock_os_thread()
        me = threading.get_ident()
        for _ in range(5):
            await asyncio.sleep(0.0003)
            assert threading.get_ident() == me
    await asyncio.gather(*[go(body) for _ in range(4)])


async def changing_procs():
    handles = [go(asyncio_in_a_world) for _ in range(20)]
    for n in 1, 4, 2, 8, 3, 2:
        gmploop.set_procs(n)
        await asyncio.sleep(0.001)
    await asyncio.gather(*handles)


async def looking_in():
    def look(until):
        while not until.is_set():
            gmploop.stats(), gmploop.events()
            [repr(handle) for handle in spawn.all_goroutines()], m.threads()
            time.sleep(0.001)
    until = threading.Event()
    gmploop.record_events()
    thread = threading.Thread(target=look, args=(until,))
    thread.start()
    await worlds()
    until.set()
    await asyncio.to_thread(thread.join)
    gmploop.record_events(False)


async def listing_tasks():
    """From another thread, while a loop and worlds make tasks and end them."""
    async def makes():
        for _ in range(20):
            await asyncio.gather(*[asyncio.create_task(asyncio.sleep(0)) for _ in range(10)])

    def look(until, loops):
        while not until.is_set():
            for task in [task for loop in loops for task in asyncio.all_tasks(loop)]:
                task.get_coro(), task.get_name(), task.done()
            time.sleep(0.0005)
    until, handles = threading.Event(), [go(makes) for _ in range(4)]
    loops = [asyncio.get_running_loop(), *filter(None, [handle.get_loop() for handle in handles])]
    thread = threading.Thread(target=look, args=(until, loops))
    thread.start()
    await asyncio.gather(makes(), *handles)
    until.set()
    await asyncio.to_thread(thread.join)


async def loops_in_threads():
    """Drop-in loops, a thread each, that talk through a channel."""
    there, back = gmploop.Channel(2), gmploop.Channel()

    async def serve():
        async for item in there:
            await back.send(item)

    def thread():
        with asyncio.Runner(loop_factory=gmploop.new_event_loop) as runner:
            runner.run(serve())
    threads = [threading.Thread(target=thread) for _ in range(2)]
    for each in threads:
        each.start()
    for number in range(30):
        await there.send(number)
        await back.recv()
    there.close()
    await asyncio.to_thread(lambda: [each.join() for each in threads])


SCENARIOS = [worlds, errors_and_names, streams, isolated_connections, sockets, cancellation, channels, locks, posts,
             results_in_threads, spawning_from_threads, blocking, locked_threads, changing_procs, looking_in,
             listing_tasks, loops_in_threads]


def main(seconds=60.0, *names):
    chosen = [scenario for scenario in SCENARIOS if not names or scenario.__name__ in names]
    end, rounds = time.monotonic() + float(seconds), 0
    while True:
        for scenario in chosen:
            for procs in 2, random.randrange(3, 9):
                gmploop.run(asyncio.wait_for(scenario(), 120), procs=procs)
        rounds += 1
        if time.monotonic() > end:
            break
    print(f"{rounds} rounds of {len(chosen)} scenarios")


if __name__ == "__main__":
    main(*sys.argv[1:])
