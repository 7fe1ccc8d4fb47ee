"""Threads: waking a loop from outside and several loops at once."""

import asyncio
import concurrent.futures
import os
import sys
import threading
import time

import pytest

from support import LOOPS, bounded, child_output, result_of, turns, unix_pair, wait_until

pytestmark = pytest.mark.timeout(60)


def on(loop, coro):
    return asyncio.run_coroutine_threadsafe(bounded(coro, 10), loop).result(15)


# -- call_soon_threadsafe

def elsewhere(fn, *args):
    thread = threading.Thread(target=fn, args=args)
    thread.start()
    thread.join()


def test_what_a_thread_posts_comes_before_what_is_called_later(run):
    """While a callback runs: into the queue, before the callback's own."""
    async def main():
        loop, log = asyncio.get_running_loop(), []
        future = loop.create_future()
        future.add_done_callback(lambda _: log.append("future"))
        loop.call_soon(log.append, "call_soon")
        elsewhere(loop.call_soon_threadsafe, log.append, "posted")
        loop.call_soon(log.append, "call_soon again")
        elsewhere(loop.call_soon_threadsafe, log.append, "posted again")
        future.set_result(None)
        elsewhere(loop.call_soon_threadsafe, log.append, "posted last")
        loop.call_soon_threadsafe(log.append, "own")
        await turns(3)
        return log
    assert run(main()) == ["call_soon", "posted", "call_soon again", "posted again", "future", "posted last", "own"]


@pytest.mark.parametrize("awaits", [1, 2])
def test_a_task_that_a_thread_has_cancelled_notices_at_its_next_await(run, awaits):
    async def cancelled():
        await asyncio.sleep(0)
        elsewhere(asyncio.get_running_loop().call_soon_threadsafe, asyncio.current_task().cancel)
        for _ in range(awaits):
            await asyncio.sleep(0)

    async def main():
        with pytest.raises(asyncio.CancelledError):
            await asyncio.create_task(cancelled())
    run(main())

def test_thread_safe_calls_are_neither_lost_nor_doubled_nor_reordered(loop_factory, in_thread):
    """Four loops, four producers each. Pauses let the loops go idle, so that each has to be woken again and again."""
    loops, count = [loop_factory() for _ in range(4)], 20_000
    received = {}

    def run(loop):
        async def main():
            done = asyncio.Event()
            lists = received[loop] = [[] for _ in range(4)]

            def receive(producer, number):
                lists[producer].append(number)
                if all(len(numbers) == count for numbers in lists):
                    done.set()
            for producer in range(4):
                in_thread(produce, loop, receive, producer)
            await asyncio.wait_for(done.wait(), 40)
            await turns(3)
        loop.run_until_complete(main())

    def produce(loop, receive, producer):
        for number in range(count):
            loop.call_soon_threadsafe(receive, producer, number)
            if number % 1000 == producer:
                time.sleep(0.002)
    for thread in [in_thread(run, loop) for loop in loops]:
        thread.join(50)
    assert all(received[loop] == [list(range(count))] * 4 for loop in loops)


def test_an_idle_loop_is_woken_every_time(running):
    """One call at a time, each only when the loop has gone to sleep again."""
    worst = 0
    for _ in range(300):
        event = threading.Event()
        start = time.monotonic()
        running.call_soon_threadsafe(event.set)
        assert event.wait(5), "a wake-up was lost"
        worst = max(worst, time.monotonic() - start)
        if _ % 10 == 0:
            time.sleep(0.001)
    assert worst < 2


def test_a_call_made_while_the_loop_goes_to_sleep_is_not_missed(loop, in_thread):
    """Producer and loop race at the moment of going idle: each answer triggers the next call at once."""
    count, left = 3000, [3000]
    ready = threading.Semaphore(0)

    def answer():
        left[0] -= 1
        ready.release()
        if not left[0]:
            loop.stop()

    def produce():
        for _ in range(count):
            loop.call_soon_threadsafe(answer)
            assert ready.acquire(timeout=5), "a wake-up was lost"
    in_thread(produce)
    loop.run_forever()
    assert left == [0]


def test_stop_from_a_thread_stops_once(loop, in_thread):
    for _ in range(50):
        in_thread(loop.call_soon_threadsafe, loop.stop)
        loop.run_forever()
    assert loop.run_until_complete(asyncio.sleep(0, "still works")) == "still works"


def test_thread_safe_calls_to_a_closed_loop_raise(loop, in_thread):
    loop.close()
    seen = []
    in_thread(lambda: seen.append(result_of(loop.call_soon_threadsafe, int))).join()
    assert seen == [RuntimeError]


def test_closing_races_with_thread_safe_calls(loop_kind, in_thread):
    """Either the call is taken or it raises RuntimeError; nothing else, and no crash."""
    for _ in range(30):
        loop = LOOPS[loop_kind]()
        begun = threading.Event()

        def produce(loop=loop, begun=begun):
            begun.set()
            for _ in range(2000):
                if result_of(loop.call_soon_threadsafe, int) is RuntimeError:
                    return
        thread = in_thread(produce)
        begun.wait(5)
        loop.run_until_complete(turns(5))
        loop.close()
        thread.join()


@pytest.mark.parametrize("debug", [False, True])
def test_calls_before_the_loop_runs_are_run_in_order(loop, in_thread, debug):
    loop.set_debug(debug)
    seen = []
    for number in range(50):
        in_thread(loop.call_soon_threadsafe, seen.append, number).join()
        loop.call_soon_threadsafe(seen.append, -number)
    loop.run_until_complete(turns(2))
    assert seen == [value for number in range(50) for value in (number, -number)]


def test_futures_of_other_threads_reach_the_loop(running):
    async def main():
        with concurrent.futures.ThreadPoolExecutor(4) as pool:
            loop = asyncio.get_running_loop()
            return sum(await asyncio.gather(*(loop.run_in_executor(pool, pow, number, 2) for number in range(500))))
    assert on(running, main()) == sum(number ** 2 for number in range(500))


def test_cancelling_from_a_thread_reaches_the_task(running):
    cancelled = threading.Event()

    async def main():
        try:
            await asyncio.sleep(60)
        finally:
            cancelled.set()
    future = asyncio.run_coroutine_threadsafe(main(), running)
    on(running, turns(2))
    future.cancel()
    assert cancelled.wait(5)


# -- several loops at once

def test_each_thread_sees_its_own_loop(loop_factory, in_thread):
    loops = [loop_factory() for _ in range(6)]
    barrier = threading.Barrier(6)

    def run(loop):
        async def main():
            for _ in range(20):
                assert asyncio.get_running_loop() is loop
                assert asyncio.current_task().get_loop() is loop
                await loop.run_in_executor(None, barrier.wait, 10)
                await asyncio.sleep(0.0005)
        loop.run_until_complete(main())
        loop.run_until_complete(loop.shutdown_default_executor())
    for loop in loops:
        in_thread(run, loop)


def test_two_loops_share_a_descriptor(loop_factory, in_thread):
    """Both watch one socket and one counter. Each byte is read once, whoever gets it; nobody stops, nothing is lost."""
    loops, total = [loop_factory() for _ in range(2)], 10_000
    near, far = unix_pair()
    counter = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_SEMAPHORE)
    received, tokens = [[], []], [[], []]

    def watch(loop, data, taken):
        def read_socket():
            try:
                data.append(near.recv(10))
            except BlockingIOError:
                pass

        def read_counter():
            try:
                taken.append(os.eventfd_read(counter))
            except BlockingIOError:
                pass
        loop.add_reader(near, read_socket)
        loop.add_reader(counter, read_counter)
        loop.run_forever()
        loop.remove_reader(near)
        loop.remove_reader(counter)

    def counted():
        return sum(len(data) for data in received[0] + received[1]), len(tokens[0]) + len(tokens[1])
    for loop, data, taken in zip(loops, received, tokens):
        in_thread(watch, loop, data, taken)
    wait_until(lambda: all(loop.is_running() for loop in loops))
    far.setblocking(True)
    for number in range(total):
        far.send(b"%c" % (number % 256))
        os.eventfd_write(counter, 1)
        if number % 1000 == 0:
            time.sleep(0.002)
    wait_until(lambda: counted() == (total, total), 20)
    everything = b"".join(received[0] + received[1])
    assert all(everything.count(bytes([value])) == len(range(value, total, 256)) for value in range(256))
    for loop in loops:
        assert on(loop, asyncio.sleep(0.001, "alive")) == "alive"
        loop.call_soon_threadsafe(loop.stop)
    wait_until(lambda: not any(loop.is_running() for loop in loops))
    near.close()
    far.close()
    os.close(counter)


def test_a_future_of_another_loop_is_refused(loop_factory, in_thread):
    one, two = loop_factory(), loop_factory()
    future = one.create_future()

    async def main():
        await future
    with pytest.raises(RuntimeError, match="different loop"):
        two.run_until_complete(main())


@pytest.mark.skipif(sys.version_info < (3, 12), reason="all_tasks() could fail with several threads before Python 3.12")
def test_listing_tasks_from_other_threads(loop_kind):
    """Four threads look at the tasks of a loop that makes and ends 100,000."""
    output = child_output(loop_kind, """
        loop, over = new_loop(), threading.Event()
        failures = []

        async def work():
            await asyncio.sleep(0)

        async def main():
            for _ in range(1000):
                await asyncio.gather(*(work() for _ in range(100)))

        def look():
            while not over.is_set():
                try:
                    for task in asyncio.all_tasks(loop):
                        task.get_coro(), task.done(), task.get_name()
                    asyncio.current_task(loop)
                except RuntimeError as exc:
                    if "Set changed size" not in str(exc):
                        failures.append(exc)
                time.sleep(0.0005)

        threads = [threading.Thread(target=look) for _ in range(4)]
        for thread in threads:
            thread.start()
        loop.run_until_complete(main())
        over.set()
        for thread in threads:
            thread.join()
        loop.close()
        print("ended", failures)
    """, timeout=50)
    assert output == "ended []\n"
