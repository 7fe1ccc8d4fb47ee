"""The poller's contract, as far as it shows through descriptors, sock_*() calls and transports."""

import asyncio
import contextlib
import errno
import functools
import os
import resource
import signal
import socket
import statistics
import threading
import time

import gmploop
import pytest
from support import Recorder, bounded, open_fds, reopened, reset, result_of, tcp_pair, turns, unix_pair

pytestmark = pytest.mark.timeout(60)


@contextlib.contextmanager
def pipes(count=1):
    ends = [os.pipe() for _ in range(count)]
    for source, sink in ends:
        os.set_blocking(source, False)
        os.set_blocking(sink, False)
    yield ends
    for pair in ends:
        for fd in pair:
            with contextlib.suppress(OSError):
                os.close(fd)


async def until(predicate, timeout=5):
    async with asyncio.timeout(timeout):
        while not predicate():
            await asyncio.sleep(0.0005)


# -- readers and writers are level-triggered

def test_a_reader_that_leaves_data_is_called_again(run, loop):
    async def main():
        with pipes() as [(source, sink)]:
            seen = bytearray()
            loop.add_reader(source, lambda: seen.extend(os.read(source, 1)))
            os.write(sink, b"abcdefgh")
            await until(lambda: len(seen) == 8)
            calls = []
            loop.add_reader(source, calls.append, 1)            # reads nothing at all
            os.write(sink, b"x")
            await until(lambda: len(calls) > 5)
            loop.remove_reader(source)
            count = len(calls)
            await turns(5)
            assert (bytes(seen), len(calls)) == (b"abcdefgh", count)
    run(main())


def test_a_reader_set_on_a_descriptor_that_is_ready_already_is_called(run, loop):
    async def main():
        with pipes() as [(source, sink)]:
            os.write(sink, b"x")
            for _ in range(3):                                  # nothing is read in between
                called = loop.create_future()
                loop.add_reader(source, lambda called=called: called.done() or called.set_result(None))
                await bounded(called, 5)
                loop.remove_reader(source)
    run(main())


def test_a_writer_is_called_as_long_as_there_is_room(run, loop):
    async def main():
        with pipes() as [(source, sink)]:
            calls = []
            loop.add_writer(sink, calls.append, 1)
            await until(lambda: len(calls) > 5)
            with contextlib.suppress(BlockingIOError):
                while True:
                    os.write(sink, bytes(65536))
            await turns(3)
            count = len(calls)
            await asyncio.sleep(0.01)
            assert len(calls) == count
            os.read(source, 65536)
            await until(lambda: len(calls) > count)
            loop.remove_writer(sink)
    run(main())


def test_reader_and_writer_of_one_descriptor_come_and_go_apart(run, loop):
    async def main():
        near, far = unix_pair()
        seen = {"read": 0, "write": 0}

        def note(what):
            seen[what] += 1

        async def active():
            await turns(3)
            before = dict(seen)
            await turns(10)
            return {what for what in seen if seen[what] > before[what]}
        far.send(b"x")
        loop.add_reader(near, note, "read")
        assert await active() == {"read"}
        loop.add_writer(near, note, "write")
        assert await active() == {"read", "write"}
        assert loop.remove_reader(near)
        assert await active() == {"write"}
        loop.add_reader(near, note, "read")
        assert loop.remove_writer(near) and not loop.remove_writer(near)
        assert await active() == {"read"}
        near.recv(1)
        assert await active() == set()
        assert loop.remove_reader(near) and not loop.remove_reader(near)
        near.close()
        far.close()
    run(main())


def test_readers_live_together_with_sock_calls_on_the_same_socket(run, loop):
    """One registration serves the level-triggered callbacks and the edge-triggered calls."""
    async def main():
        near, far = unix_pair()
        seen = []
        both = asyncio.gather(loop.sock_recv(near, 9), loop.sock_sendall(far, b"one"))
        assert await bounded(both, 5) == [b"one", None]
        writable = loop.create_future()
        loop.add_writer(near, lambda: writable.done() or writable.set_result("writable"))
        receiving = asyncio.ensure_future(loop.sock_recv(near, 9))
        await turns(3)
        far.send(b"two")
        assert await bounded(receiving, 5) == b"two"
        assert await bounded(writable, 5) == "writable"
        loop.remove_writer(near)
        for text in b"three", b"four":
            receiving = asyncio.ensure_future(loop.sock_recv(near, 9))
            await turns(3)
            far.send(text)
            seen.append(await bounded(receiving, 5))
        assert seen == [b"three", b"four"]
        near.close()
        far.close()
    run(main())


def test_a_callback_that_removes_another_ready_descriptor_keeps_it_from_being_called(run, loop):
    async def main():
        with pipes(10) as ends:
            called = []

            def read(index):
                called.append(index)
                for source, _ in ends:
                    loop.remove_reader(source)
            for index, (source, _) in enumerate(ends):
                loop.add_reader(source, read, index)
            for _, sink in ends:
                os.write(sink, b"x")
            await until(lambda: called)
            await turns(3)
            assert len(called) == 1
    run(main())


# -- two loops on one descriptor

def run_both(factory, body):
    """Run body(loop, index) on two loops in two threads; returns the results."""
    results = [None, None]

    def thread(index):
        loop = loops[index]
        try:
            results[index] = loop.run_until_complete(bounded(body(loop, index), 20))
        except BaseException as exc:
            results[index] = exc
    loops = [factory(), factory()]
    threads = [threading.Thread(target=thread, args=(index,)) for index in range(2)]
    for one in threads:
        one.start()
    for one in threads:
        one.join(30)
    for result in results:
        if isinstance(result, BaseException):
            raise result
    return results


MESSAGES = 10000


@pytest.mark.parametrize("kind", ["eventfd", "socketpair", "sock_recv"])
def test_two_loops_on_one_descriptor_read_each_message_once(loop_factory, kind):
    """Each is woken, one reads, the other finds nothing: that is tolerated, and none is lost."""
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    near.setblocking(False)
    eventfd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_SEMAPHORE)
    ready, taken = threading.Barrier(3), [[], []]

    def all_taken():
        return len(taken[0]) + len(taken[1]) >= MESSAGES

    async def body(loop, index):
        def read():
            with contextlib.suppress(BlockingIOError):
                taken[index].extend([os.eventfd_read(eventfd)] if kind == "eventfd" else near.recv(1))

        async def receive():
            while True:
                taken[index].extend(await loop.sock_recv(near, 1))
        task = loop.create_task(receive()) if kind == "sock_recv" else None
        if not task:
            loop.add_reader(eventfd if kind == "eventfd" else near, read)
        await turns(2)
        ready.wait(10)
        await until(all_taken, 15)
        if task:
            task.cancel()
            await asyncio.wait([task])
        else:
            loop.remove_reader(eventfd if kind == "eventfd" else near)
        return await asyncio.sleep(0.001, "alive")

    def feed():
        ready.wait(10)
        for number in range(MESSAGES):
            os.eventfd_write(eventfd, 1) if kind == "eventfd" else far.send(bytes([number % 256]))
            if number % 500 == 0:
                time.sleep(0.0005)              # both loops go to sleep: not to wait for anything
    feeder = threading.Thread(target=feed)
    feeder.start()
    try:
        assert run_both(loop_factory, body) == ["alive", "alive"]
    finally:
        feeder.join(10)
        near.close()
        far.close()
        os.close(eventfd)
    expected = [1] * MESSAGES if kind == "eventfd" else sorted(number % 256 for number in range(MESSAGES))
    assert sorted(taken[0] + taken[1]) == expected


# -- more at once than one poll tells

@pytest.fixture
def many_descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4096:
        pytest.skip("the limit of descriptors is too low for a thousand connections")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 4096), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def test_a_thousand_descriptors_ready_at_once_are_all_served(run, loop, many_descriptors):
    async def main():
        with pipes(1000) as ends:
            seen = []
            for index, (source, sink) in enumerate(ends):
                os.write(sink, b"x")
                loop.add_reader(source, lambda index=index, source=source: (seen.append(index), os.read(source, 9)))
            await until(lambda: len(seen) >= 1000)
            assert sorted(seen) == list(range(1000))
            for source, _ in ends:
                loop.remove_reader(source)
    run(main())


def test_none_of_a_thousand_descriptors_that_stay_ready_is_starved(run, loop, many_descriptors):
    """They are never read, so each poll could tell of the same ones again."""
    async def main():
        with pipes(1000) as ends:
            calls = [0] * 1000

            def called(index):
                calls[index] += 1
            for index, (source, sink) in enumerate(ends):
                os.write(sink, b"x")
                loop.add_reader(source, called, index)
            await until(lambda: min(calls) >= 3)
            assert max(calls) <= 3 * min(calls) + 10
            for source, _ in ends:
                loop.remove_reader(source)
    run(main())


def test_a_thousand_waiting_calls_and_connections_are_all_served(run, loop, many_descriptors):
    async def main():
        ends = [unix_pair() for _ in range(500)]
        links = [unix_pair() for _ in range(500)]
        protocols = [(await loop.create_connection(Recorder, sock=near))[1] for near, _ in links]
        calls = [asyncio.ensure_future(loop.sock_recv(near, 9)) for near, _ in ends]
        await turns(3)
        for _, far in ends + links:
            far.send(b"x")
        assert await bounded(asyncio.gather(*calls), 5) == [b"x"] * 500
        await bounded(asyncio.gather(*(protocol.received(1) for protocol in protocols)), 5)
        for protocol in protocols:
            protocol.transport.abort()
        await bounded(asyncio.gather(*(protocol.lost for protocol in protocols)), 5)
        for sock in (sock for pair in ends for sock in pair):
            sock.close()
        for _, far in links:
            far.close()
    run(main())


def test_edges_that_come_while_a_transport_is_paused_are_not_lost(run, loop):
    async def main():
        near, far = tcp_pair()
        transport, protocol = await loop.create_connection(Recorder, sock=near)
        for number in range(50):
            transport.pause_reading()
            far.send(b"x")
            if number % 2:
                await asyncio.sleep(0.0005)
            transport.resume_reading()
            if number % 3 == 0:
                far.send(b"y")
            await bounded(protocol.received(len(protocol.data) + 1), 5)
        transport.pause_reading()
        reset(far)
        await asyncio.sleep(0.001)
        transport.resume_reading()
        await bounded(protocol.lost, 5)
    run(main())


# -- wake-ups

def test_wakes_from_threads_reach_a_loop_that_waits_for_ever(loop):
    """It has no timer and no descriptor: nothing but the wake-ups ends its waits."""
    woken = threading.Semaphore(0)

    def wake():
        for _ in range(500):
            loop.call_soon_threadsafe(woken.release)
            assert woken.acquire(timeout=10)
        loop.call_soon_threadsafe(loop.stop)
    thread = threading.Thread(target=wake)
    thread.start()
    loop.run_forever()
    thread.join(10)
    assert not thread.is_alive()


def test_threads_run_beside_callbacks_that_are_all_c(loop):
    """Where no Python code runs in the loop's thread the interpreter hands over no GIL: the poller has to."""
    again = functools.partial(loop.call_soon)
    again.__setstate__((loop.call_soon, (again,), {}, {}))
    ran = []

    def stop():
        ran.extend(range(1000))
        loop.call_soon_threadsafe(loop.stop)
    thread = threading.Timer(0.01, stop)
    loop.call_soon(again)
    thread.start()
    began = time.monotonic()
    loop.run_forever()
    assert len(ran) == 1000 and time.monotonic() - began < 5
    thread.join()
    again.__setstate__((int, (), {}, {}))


def test_threads_that_do_io_are_not_held_up_by_a_loop_that_never_sleeps(loop, run):
    """Each time they want the GIL back they would wait for a switch interval, 5 ms. The best of the rounds counts."""
    async def never_sleeps():
        while True:
            await asyncio.sleep(0)

    async def median(fd):
        took = []
        for _ in range(50):
            began = time.monotonic()
            assert len(await loop.run_in_executor(None, os.pread, fd, 100, 0)) == 100
            took.append(time.monotonic() - began)
        return statistics.median(took)

    async def main():
        busy, best = asyncio.create_task(never_sleeps()), 1
        with open(__file__, "rb") as file:
            for _ in range(6):
                if best >= 0.002:
                    best = min(best, await median(file.fileno()))
        busy.cancel()
        await loop.shutdown_default_executor()
        return best
    assert run(main()) < 0.002


def test_a_wake_that_comes_before_the_wait_counts(loop):
    for _ in range(200):
        loop.call_soon_threadsafe(loop.stop)
        loop.run_forever()
    thread = threading.Thread(target=lambda: [loop._write_to_self() for _ in range(1000)])
    thread.start()
    loop.run_until_complete(asyncio.sleep(0.005))
    thread.join(10)


# -- signals

@pytest.fixture
def signal_storm():
    """A signal with a Python handler each millisecond."""
    count = []
    old = signal.signal(signal.SIGALRM, lambda *_: count.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    yield count
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, old)


def test_traffic_and_timers_go_on_under_a_storm_of_signals(run, loop, signal_storm):
    async def main():
        near, far = tcp_pair()
        reader, writer = await asyncio.open_connection(sock=near)
        start, late = loop.time(), []

        async def echo():
            while data := await loop.sock_recv(far, 4096):
                await loop.sock_sendall(far, data)

        async def ticks():
            for _ in range(100):
                deadline = loop.time() + 0.0017
                await asyncio.sleep(0.0017)
                late.append(loop.time() - deadline)
        echoing, ticking = asyncio.ensure_future(echo()), asyncio.ensure_future(ticks())
        exchanged = 0
        while not ticking.done():
            text = os.urandom(1 + exchanged % 5000)
            writer.write(text)
            assert await bounded(reader.readexactly(len(text)), 5) == text
            exchanged += 1
        await ticking
        writer.close()
        await bounded(echoing, 5)
        far.close()
        return exchanged, late, loop.time() - start
    exchanged, late, took = run(main())
    assert exchanged > 20 and min(late) > -1e-6
    assert len(signal_storm) > took * 1000 / 20


def test_a_wait_is_not_lengthened_by_signals(loop, signal_storm):
    """Interrupted again and again, it still ends in time; and the handlers ran meanwhile."""
    start = loop.time()
    loop.call_later(0.15, loop.stop)
    loop.run_forever()
    assert 0.15 <= loop.time() - start < 0.6
    assert len(signal_storm) > 20


def test_a_handler_that_raises_ends_the_wait_with_its_error(loop):
    class Raised(Exception):
        pass

    def handler(*_):
        raise Raised
    old = signal.signal(signal.SIGALRM, handler)
    try:
        for _ in range(3):
            signal.setitimer(signal.ITIMER_REAL, 0.01)
            with pytest.raises(Raised):
                loop.run_forever()
            assert not loop.is_running()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    loop.run_until_complete(asyncio.sleep(0.001))


# -- a poller that fails

def kernel_objects():
    """Descriptors of what a poller waits in: its ring, or else its epoll."""
    wanted = "[io_uring]" if gmploop.poller_name() == "io_uring" else "[eventpoll]"
    return {fd for fd, target in open_fds() if target == f"anon_inode:{wanted}"}


@pytest.mark.parametrize("idle", [True, False], ids=["about to wait", "busy"])
@pytest.mark.parametrize("used", [True, False], ids=["with descriptors", "with nothing"])
def test_a_closed_descriptor_of_the_poller_ends_run_forever_with_its_error(used, idle):
    before = kernel_objects()
    loop = gmploop.new_event_loop()
    own, = kernel_objects() - before
    with pipes(2) as [(source, sink), _]:
        near, far = unix_pair()
        if used:
            loop.add_reader(source, int)
            transport, protocol = loop.run_until_complete(loop.create_connection(Recorder, sock=near))
        loop.call_later(10, loop.stop)
        loop.call_soon(os.close, own)

        def spin():
            loop.call_soon(spin)
        if not idle:
            loop.call_soon(spin)
        with pytest.raises(OSError) as caught:
            loop.run_forever()
        assert caught.value.errno == errno.EBADF
        assert not loop.is_running()
        with pytest.raises(OSError):
            loop.run_forever()
        if used:
            loop.remove_reader(source)
            transport.abort()
        loop.close()
        loop.close()
        assert loop.is_closed()
        if used:
            protocol.transport = None
            transport._sock.close()
        near.close()
        far.close()


@pytest.mark.filterwarnings("ignore::ResourceWarning")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_loop_that_cannot_have_its_descriptors_says_so_and_leaves_none():
    """With room for none, one, two ... descriptors, until it can be made."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    before, made = open_fds(), None
    spare = os.dup(0)
    os.close(spare)
    limits = 0
    try:
        for room in range(10):
            resource.setrlimit(resource.RLIMIT_NOFILE, (spare + room, hard))
            made = result_of(gmploop.new_event_loop)
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
            if not isinstance(made, type):
                break
            limits += 1
            assert issubclass(made, OSError)
            assert open_fds() == before
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert limits >= 1
    made.run_until_complete(asyncio.sleep(0))
    made.close()


def test_a_descriptor_that_cannot_be_watched_leaves_no_trace(run, loop, tmp_path):
    """epoll refuses plain files; the number serves something else afterwards."""
    async def main():
        with open(tmp_path / "file", "wb") as file:
            fd = file.fileno()
            for add in loop.add_reader, loop.add_writer:
                with pytest.raises(PermissionError):
                    add(file, int)
            assert not loop.remove_reader(file) and not loop.remove_writer(file)
        near, far = reopened(fd)
        heard = loop.create_future()
        loop.add_reader(fd, lambda: heard.done() or heard.set_result(near.recv(9)))
        far.send(b"heard")
        assert await bounded(heard, 5) == b"heard"
        loop.remove_reader(fd)
        near.close()
        far.close()
    run(main())
