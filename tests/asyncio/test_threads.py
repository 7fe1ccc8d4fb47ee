"""Threads: waking a loop from outside, several loops at once, and what a foreign thread may and may not do."""

import asyncio
import concurrent.futures
import os
import socket
import sys
import threading
import time

import pytest

from support import LOOPS, Recorder, bounded, child_output, finish, link, result_of, turns, unix_pair, wait_until

pytestmark = pytest.mark.timeout(60)

@pytest.fixture
def in_thread():
    """Runs functions in threads of their own; the first error is raised when the threads have ended."""
    threads, failures = [], []

    def start(function, *args):
        def body():
            try:
                function(*args)
            except BaseException as exc:
                failures.append(exc)
        thread = threading.Thread(target=body)
        threads.append(thread)
        thread.start()
        return thread
    yield start
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    if failures:
        raise failures[0]


@pytest.fixture
def running(loop, in_thread):
    """The loop under test, run by another thread until the test ends."""
    thread = in_thread(loop.run_forever)
    wait_until(loop.is_running)
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)


def on(loop, coro):
    return asyncio.run_coroutine_threadsafe(bounded(coro, 10), loop).result(15)


# -- call_soon_threadsafe

def test_thread_safe_calls_are_neither_lost_nor_doubled_nor_reordered(loop_factory, in_thread):
    """Four loops, four producers each. Pauses let the loops go idle, so that each has to be woken again and again."""
    loops, count = [loop_factory() for _ in range(4)], 5000
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
            if number % 500 == producer:
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
    """Threads look at the tasks of a loop that makes and ends many."""
    output = child_output(loop_kind, """
        loop, over = new_loop(), threading.Event()
        failures = []

        async def work():
            await asyncio.sleep(0)

        async def main():
            for _ in range(200):
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


# -- what a foreign thread may do

def test_a_loop_that_nobody_runs_may_be_used_from_any_thread(loop, in_thread):
    """Built in one thread, filled in another, run in a third."""
    seen = []
    near, far = unix_pair()

    def fill():
        loop.call_soon(seen.append, "soon")
        loop.call_later(0.001, seen.append, "later")
        loop.call_at(0, seen.append, "at")
        loop.call_later(100, seen.append, "never").cancel()
        loop.add_reader(near, lambda: (seen.append(near.recv(10)), loop.remove_reader(near)))
        loop.create_task(asyncio.sleep(0)).add_done_callback(lambda _: seen.append("task"))
        loop.call_later(0.02, loop.stop)
        far.send(b"data")
    in_thread(fill).join()
    in_thread(loop.run_forever).join()
    assert set(seen) == {"soon", "later", "at", b"data", "task"} and len(seen) == 5
    near.close()
    far.close()
    in_thread(lambda: finish(loop)).join()
    assert loop.is_closed()


def test_a_transport_outlives_the_thread_that_ran_its_loop(loop, in_thread):
    near, far = unix_pair()
    far.settimeout(3)
    made = []
    in_thread(lambda: made.extend(loop.run_until_complete(loop.create_connection(Recorder, sock=near)))).join()
    transport, protocol = made
    transport.write(b"from another thread, while nobody runs the loop")
    assert far.recv(100).startswith(b"from")
    far.close()
    in_thread(lambda: loop.run_until_complete(asyncio.wait_for(protocol.lost, 5))).join()
    assert protocol.events == ["made", "eof", "lost"]


@pytest.mark.parametrize("own", [False, True], ids=["thread without a loop", "thread with a loop of its own"])
@pytest.mark.parametrize("debug", [False, True])
def test_call_soon_from_a_foreign_thread_runs_or_raises(running, loop_factory, debug, own):
    """In debug mode it is an error, as on stock. Otherwise the callback runs, once, and nothing is broken."""
    on(running, set_debug(running, debug))
    seen = []

    def call():
        for number in range(100):
            if debug:
                with pytest.raises(RuntimeError):
                    running.call_soon(seen.append, number)
            else:
                running.call_soon(seen.append, number)
    if own:
        mine = loop_factory()
        mine.call_soon(call)
        mine.run_until_complete(turns(2))
    else:
        call()
    on(running, turns(3))
    assert seen == ([] if debug else list(range(100)))


async def set_debug(loop, debug):
    loop.set_debug(debug)


@pytest.mark.gmploop_only
@pytest.mark.parametrize("way", ["call_later", "call_at"])
@pytest.mark.parametrize("own", [False, True], ids=["thread without a loop", "thread with a loop of its own"])
def test_timers_from_a_foreign_thread_are_refused(running, loop_factory, way, own):
    mine = loop_factory()

    async def main():
        return result_message(getattr(running, way), 1, int)
    message = mine.run_until_complete(main()) if own else result_message(getattr(running, way), 1, int)
    assert way in message and repr(running) in message
    assert message.count("<Loop ") == (2 if own else 1)
    assert on(running, asyncio.sleep(0.001, "unharmed")) == "unharmed"


def result_message(function, *args):
    with pytest.raises(RuntimeError) as caught:
        function(*args)
    return str(caught.value)


STREAM_CALLS = {
    "write": lambda t: t.write(b"x"), "writelines": lambda t: t.writelines([b"x"]), "write_eof": lambda t: t.write_eof(),
    "pause_reading": lambda t: t.pause_reading(), "resume_reading": lambda t: t.resume_reading(),
    "set_write_buffer_limits": lambda t: t.set_write_buffer_limits(10),
    "set_protocol": lambda t: t.set_protocol(asyncio.Protocol()),
}


@pytest.mark.gmploop_only
@pytest.mark.parametrize("call", STREAM_CALLS)
@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_stream_transport_calls_from_a_foreign_thread_are_refused(running, kind, call):
    async def main():
        async with link(kind) as (near, far):
            message = await running.run_in_executor(None, result_message, STREAM_CALLS[call], near.transport)
            assert repr(running) in message
            near.transport.write(b"unharmed")
            await far.received(8)
            assert far.data == b"unharmed"
    on(running, main())


@pytest.mark.gmploop_only
def test_sendto_from_a_foreign_thread_is_refused(running):
    async def main():
        transport, protocol = await running.create_datagram_endpoint(Recorder, local_addr=("127.0.0.1", 0))
        address = transport.get_extra_info("sockname")
        message = await running.run_in_executor(None, result_message, transport.sendto, b"x", address)
        assert repr(running) in message
        transport.close()
        await protocol.lost
    on(running, main())


@pytest.mark.gmploop_only
@pytest.mark.parametrize("call", ["close", "abort"])
@pytest.mark.parametrize("kind", ["tcp", "unix", "datagram"])
def test_close_and_abort_from_a_foreign_thread_are_forwarded(running, kind, call):
    async def main():
        if kind == "datagram":
            transport, protocol = await running.create_datagram_endpoint(Recorder, local_addr=("127.0.0.1", 0))
            await running.run_in_executor(None, getattr(transport, call))
            await protocol.lost
            return
        async with link(kind) as (near, far):
            await running.run_in_executor(None, getattr(near.transport, call))
            await near.lost
            await far.lost
    on(running, main())


@pytest.mark.parametrize("kind", ["tcp", "unix", "tls", "pipe"])
def test_questions_from_a_foreign_thread_are_answered(running, tls, kind):
    def ask(transport):
        return (transport.get_extra_info("socket" if kind != "pipe" else "pipe") is not None, transport.is_closing(),
                transport.get_extra_info("nothing", 3), transport.get_write_buffer_size(), bool(repr(transport)))

    async def main():
        async with link(kind, tls) as (near, _):
            assert await running.run_in_executor(None, ask, near.transport) == (True, False, 3, 0, True)
    on(running, main())


@pytest.mark.gmploop_only
def test_foreign_threads_hammering_a_loop_corrupt_nothing(loop_kind):
    """Everything at once from two threads, allowed or not: calls run or raise RuntimeError, and the loop lives."""
    output = child_output(loop_kind, """
        loop = new_loop()
        unexpected = []

        async def main():
            near, far = socket.socketpair()
            transport, _ = await loop.create_connection(asyncio.Protocol, sock=near)
            calls = [lambda: loop.call_soon(int), lambda: loop.call_later(0.001, int), lambda: transport.write(b"x"),
                     lambda: loop.call_soon_threadsafe(int), lambda: loop.call_soon(int).cancel(), loop.is_running,
                     lambda: transport.get_write_buffer_size(), transport.pause_reading, transport.resume_reading,
                     loop.time, lambda: repr(loop), lambda: repr(transport), lambda: loop.call_soon_threadsafe(int).cancel()]

            def hammer():
                for number in range(20_000):
                    try:
                        calls[number % len(calls)]()
                    except RuntimeError:
                        pass
                    except BaseException as exc:
                        unexpected.append(exc)

            threads = [loop.run_in_executor(None, hammer) for _ in range(2)]
            while not all(thread.done() for thread in threads):
                loop.call_later(0.001, int)
                loop.call_later(1, int).cancel()
                await asyncio.sleep(0)
            await asyncio.gather(*threads)
            transport.abort()
            far.close()
            return await asyncio.sleep(0.001, "lives")

        print(loop.run_until_complete(main()), unexpected)
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
    """, timeout=50)
    assert output == "lives []\n"


@pytest.mark.stock_fault("a refused run_forever() makes the loop forget that it runs", ((3, 13), (3, 13, 15)))
def test_running_one_loop_in_two_threads_is_refused(running):
    with pytest.raises(RuntimeError, match="already running"):
        running.run_forever()
    assert running.is_running()
    with pytest.raises(RuntimeError):
        running.run_until_complete(running.create_future())
    with pytest.raises(RuntimeError):
        running.close()
    assert on(running, asyncio.sleep(0, "unharmed")) == "unharmed"


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX])
def test_a_loop_in_a_thread_serves(running, family, tmp_path):
    path = str(tmp_path / "socket")

    async def start():
        async def handler(reader, writer):
            writer.write(await reader.readline())
            writer.close()
        if family == socket.AF_INET:
            return await asyncio.start_server(handler, "127.0.0.1", 0)
        return await asyncio.start_unix_server(handler, path)
    server = on(running, start())
    for _ in range(20):
        with socket.socket(family) as client:
            client.settimeout(5)
            client.connect(server.sockets[0].getsockname())
            client.send(b"line\n")
            assert client.recv(10) == b"line\n"
            assert client.recv(10) == b""

    async def stop():
        server.close()
        await turns(3)
    on(running, stop())
