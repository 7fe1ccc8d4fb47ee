"""Channels and locks between loops on several threads, and plain threads: blocking calls, loops that end, storms."""

import asyncio
import collections
import contextlib
import gc
import itertools
import random
import signal
import sys
import time

import gmploop
import pytest
from gmploop import (
    Channel, ChannelClosed, Event, Mutex, Once, RWMutex, Semaphore, WaitGroup, select, select_blocking)
from gmploop.core import waits
from support import LOOPS, child_output, wait_until

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("threads_take_turns_often")]

FREE_THREADED = not getattr(sys, "_is_gil_enabled", lambda: True)()
MAKERS = list(LOOPS.values())


def run_loop(coro, number=0):
    """In this thread, on a loop of a make chosen by `number`."""
    with asyncio.Runner(loop_factory=MAKERS[number % len(MAKERS)]) as runner:
        return runner.run(coro)


def waits_at(what):
    return [entry for entry in gmploop.sync.waiting() if entry.object is what]


# -- plain threads

def test_two_threads_talk(in_thread):
    requests, replies = Channel(), Channel(1)

    def serve():
        with contextlib.suppress(ChannelClosed):
            while True:
                replies.send_blocking(requests.recv_blocking() + 1, timeout=20)
    in_thread(serve)
    for number in range(200):
        requests.send_blocking(number)
        assert replies.recv_blocking(timeout=20) == number + 1
    requests.close()


@pytest.mark.parametrize("kind", LOOPS)
def test_a_thread_and_a_loop_talk(in_thread, kind):
    requests, replies = Channel(), Channel()

    async def serve():
        async for number in requests:
            await replies.send(number + 1)
    in_thread(run_with, LOOPS[kind], serve())
    for number in range(200):
        requests.send_blocking(number)
        assert replies.recv_blocking() == number + 1
    requests.close()


def run_with(factory, coro):
    with asyncio.Runner(loop_factory=factory) as runner:
        return runner.run(coro)


@pytest.mark.parametrize("one, two", list(itertools.product(LOOPS, LOOPS)))
def test_two_loops_on_two_threads_talk(in_thread, one, two):
    requests, replies = Channel(), Channel(2)

    async def serve():
        async for number in requests:
            await replies.send(number + 1)

    async def ask():
        for number in range(300):
            await requests.send(number)
            assert await replies.recv() == number + 1
        requests.close()
    in_thread(run_with, LOOPS[one], serve())
    run_with(LOOPS[two], ask())


@pytest.mark.parametrize("timeout", [0, 0.01])
def test_blocking_calls_time_out(timeout):
    empty, mutex, rw, semaphore = Channel(), Mutex(), RWMutex(), Semaphore(0)
    group, event = WaitGroup(), Event()
    group.add()
    mutex.acquire_blocking()
    rw.writer.acquire_blocking(timeout=1)
    for call in (empty.recv_blocking, lambda timeout: empty.send_blocking(1, timeout), mutex.acquire_blocking,
                 rw.reader.acquire_blocking, semaphore.acquire_blocking, group.wait_blocking, event.wait_blocking,
                 lambda timeout: select_blocking(empty, timeout=timeout)):
        start = time.monotonic()
        with pytest.raises(TimeoutError):
            call(timeout)
        assert time.monotonic() - start >= timeout
    assert repr(empty) == "<Channel 0/0, 0 receiving, 0 sending>" and repr(mutex) == "<Mutex locked, 0 waiting>"
    assert select_blocking(empty, default=5) == select_blocking(empty, default=5, timeout=timeout) == (-1, 5)


@pytest.mark.parametrize("timeout", [-1, float("nan"), "1"])
def test_bad_timeouts_are_named(timeout):
    with pytest.raises((ValueError, TypeError), match="timeout takes|must be real number"):
        Channel().recv_blocking(timeout)


def test_blocking_calls_are_refused_where_a_loop_runs():
    channel, rw = Channel(1), RWMutex()

    async def main():
        for call, instead in ((lambda: channel.send_blocking(1), r"await send\(\)"), (channel.recv_blocking, "await recv"),
                              (Mutex().acquire_blocking, r"await Mutex.acquire\(\)"), (Event().wait_blocking, "await"),
                              (rw.writer.acquire_blocking, "await RWMutex.writer.acquire"),
                              (WaitGroup().wait_blocking, "await"), (Semaphore().acquire_blocking, "await"),
                              (lambda: select_blocking(channel, default=1), "await select"),
                              (lambda: Once().do_blocking(print), "await"), (Mutex().__enter__, "await")):
            with pytest.raises(RuntimeError, match=f"would block the event loop that this thread runs: use .*{instead}"):
                call()
        assert not len(channel)
    for number in range(2):
        run_loop(main(), number)


def test_with_in_threads(in_thread):
    mutex, rw, count = Mutex(), RWMutex(), 0

    def work(lock):
        nonlocal count
        for _ in range(500):
            with lock:
                seen = count
                count = seen + 1
    for lock in mutex, rw.writer:
        threads = [in_thread(work, lock) for _ in range(3)]
        for thread in threads:
            thread.join()
        assert not lock.locked()
    assert count == 3000


def test_once_from_threads(in_thread):
    once, calls, results = Once(), [], []

    def make():
        calls.append(1)
        time.sleep(0.001)       # let the others come: not to wait for anything
        return "made"
    threads = [in_thread(lambda: results.append(once.do_blocking(make))) for _ in range(4)]
    for thread in threads:
        thread.join()
    assert calls == [1] and results == ["made"] * 4


def test_select_blocking(in_thread):
    one, two = Channel(), Channel()
    thread = in_thread(lambda: two.send_blocking("item"))
    assert select_blocking(one.receiving(), two.receiving(), timeout=20) == (1, "item")
    thread.join()
    got = []
    thread = in_thread(lambda: got.append(one.recv_blocking(timeout=20)))
    assert select_blocking(one.sending("sent"), two) == (0, None)
    thread.join()
    assert got == ["sent"]


def test_threads_that_wait_are_listed(in_thread):
    channel = Channel()
    thread = in_thread(lambda: pytest.raises(ChannelClosed, channel.recv_blocking))
    wait_until(lambda: waits_at(channel))
    assert waits_at(channel) == [(channel, "recv", None, thread)]
    channel.close()


def test_a_signal_handler_s_error_ends_a_blocking_call_and_leaves_nothing():
    """In the main thread; Ctrl-C is such an error."""
    channel, mutex = Channel(), Mutex()
    mutex.acquire_blocking()
    for call in channel.recv_blocking, mutex.acquire_blocking, lambda timeout: select_blocking(channel, timeout=timeout):
        with interrupt_soon(), pytest.raises(KeyboardInterrupt):
            call(timeout=30)
    assert repr(channel) == "<Channel 0/0, 0 receiving, 0 sending>" and repr(mutex) == "<Mutex locked, 0 waiting>"


@contextlib.contextmanager
def interrupt_soon():
    def interrupt(*_):
        raise KeyboardInterrupt
    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.02)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def test_a_signal_handler_that_raises_nothing_does_not_end_a_blocking_call(in_thread):
    channel, seen = Channel(), []
    before = signal.signal(signal.SIGALRM, lambda *_: seen.append(1) or in_thread(channel.send_blocking, "item"))
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.02)
        assert channel.recv_blocking(timeout=30) == "item"
    finally:
        signal.signal(signal.SIGALRM, before)
    assert seen == [1]


# -- loops that end

@pytest.mark.parametrize("kind", LOOPS)
def test_what_was_granted_in_a_loop_that_is_closed_goes_to_the_next(kind):
    """Granted to a task that never resumes, since its loop stopped and is closed; the task itself lives on."""
    channel, mutex = Channel(1), Mutex()
    assert mutex.try_acquire()
    loop = LOOPS[kind]()

    async def start(coro):
        task = asyncio.ensure_future(coro)
        await asyncio.sleep(0)
        return task
    tasks = [loop.run_until_complete(start(coro)) for coro in (channel.recv(), mutex.acquire(), select(channel))]
    channel.send_nowait("one")
    channel.send_nowait("two")
    mutex.release()
    assert len(channel) == 0 and mutex.locked()
    loop.close()
    assert [channel.recv_nowait(), channel.recv_nowait()] == ["one", "two"]
    assert not mutex.locked()
    for task in tasks:
        task._log_destroy_pending = False


@pytest.mark.parametrize("kind", LOOPS)
def test_who_waits_in_a_closed_loop_is_passed_over(kind):
    channel, loop, last = Channel(1), LOOPS[kind](), LOOPS[kind]()

    async def start():
        tasks = [asyncio.ensure_future(channel.recv()) for _ in range(3000)]
        await asyncio.sleep(0)
        return tasks
    tasks = loop.run_until_complete(start())
    loop.close()

    async def main():
        receiver = asyncio.ensure_future(channel.recv())
        await asyncio.sleep(0)
        channel.send_nowait("item")
        return await receiver
    assert last.run_until_complete(main()) == "item"
    last.close()
    for task in tasks:
        task._log_destroy_pending = False


@pytest.mark.parametrize("kind", LOOPS)
def test_a_stopped_loop_gets_its_item_when_it_runs_again(kind):
    channel, loop = Channel(1), LOOPS[kind]()
    receiver = loop.create_task(channel.recv())
    loop.run_until_complete(asyncio.sleep(0))
    channel.send_nowait("item")
    assert loop.run_until_complete(receiver) == "item"
    loop.close()


def test_a_loop_that_closes_while_others_send_to_it_keeps_nothing(in_thread):
    """Items sent while it closes are received by it or are still there. (Stock's loop may take a callback from another
    thread while it closes, and never run it.)"""
    for _ in range(30 if FREE_THREADED else 15):
        channel, got = Channel(100), []

        async def receive():
            async for item in channel:
                got.append(item)

        def serve():
            loop = gmploop.new_event_loop()
            tasks = [loop.create_task(receive()) for _ in range(3)]
            loop.call_later(0.001, loop.stop)
            loop.run_forever()
            loop.close()
            for task in tasks:
                task._log_destroy_pending = False
        thread = in_thread(serve)
        sent = 0
        while thread.is_alive():
            sent += select_blocking(channel.sending(sent), default=0) == (0, None)
        thread.join()
        gc.collect()
        rest = []
        while len(channel):
            rest.append(channel.recv_nowait())
        assert sorted(got + rest) == list(range(sent)) and rest == sorted(rest)


# -- KeyboardInterrupt between grant and resume

class RudeLoop(asyncio.SelectorEventLoop):
    """Raises now and then in the methods that wake it, before or after they have done their work, as a signal handler
    may."""

    turn = 0

    def rude(self, call, *args, **options):
        type(self).turn += 1
        if self.turn % 3 == 0:
            raise KeyboardInterrupt
        result = call(*args, **options)
        if self.turn % 3 == 1:
            raise KeyboardInterrupt
        return result

    def call_soon_threadsafe(self, *args, **options):
        return self.rude(super().call_soon_threadsafe, *args, **options)


def test_an_interrupted_wake_up_is_made_nevertheless():
    channel, mutex = Channel(1), Mutex()
    loop = RudeLoop()
    for turn in range(6):
        RudeLoop.turn = turn
        receiver = loop.create_task(channel.recv())
        loop.run_until_complete(asyncio.sleep(0))
        with contextlib.suppress(KeyboardInterrupt):
            channel.send_nowait(turn)
        assert loop.run_until_complete(asyncio.wait_for(receiver, 5)) == turn
        assert mutex.try_acquire()
        acquirer = loop.create_task(mutex.acquire())
        loop.run_until_complete(asyncio.sleep(0))
        with contextlib.suppress(KeyboardInterrupt):
            mutex.release()
        loop.run_until_complete(asyncio.wait_for(acquirer, 5))
        mutex.release()
    loop.close()


def test_an_item_is_not_lost_when_waking_a_sender_raises():
    channel = Channel(1)
    loop = RudeLoop()
    channel.send_nowait("first")
    sender = loop.create_task(channel.send("second"))
    loop.run_until_complete(asyncio.sleep(0))
    RudeLoop.turn = 0
    with pytest.raises(KeyboardInterrupt):
        channel.recv_nowait()
    loop.run_until_complete(asyncio.wait_for(sender, 5))
    assert [channel.recv_nowait(), channel.recv_nowait()] == ["first", "second"]
    loop.close()


# -- storms: items exactly once and in order, whoever is cancelled

async def now_and_then_cancelled(rnd, coro):
    """Awaits it in a task that may be cancelled: (True, result), or (False, None) if it did not happen."""
    task = asyncio.ensure_future(coro)
    for _ in range(rnd.randrange(3)):
        await asyncio.sleep(0)
    task.cancel()
    try:
        return True, await task
    except asyncio.CancelledError:
        return coro.done() and not coro.cancelled() and coro.__name__ == "send", None


class Storm:
    """Worlds and threads that send and receive on one channel; each receiver keeps what it got."""

    def __init__(self, in_thread, seed, worlds, items, cancelling):
        self.in_thread, self.items, self.cancelling = in_thread, items, cancelling
        self.channel = Channel(seed % 3)
        self.taken, self.left = [], WaitGroup()
        self.senders = [(world, number) for world in range(worlds) for number in range(2)] + ["thread"]
        self.left.add(len(self.senders))
        self.threads = [in_thread(run_loop, self.world(world, random.Random(seed * 10 + world)), world)
                        for world in range(worlds)]
        self.threads += [in_thread(self.send_in_thread), in_thread(self.receive_in_thread, random.Random(seed))]

    def new_taken(self):
        taken = []
        self.taken.append(taken)
        return taken

    async def send(self, name, rnd):
        number = 0
        while number < self.items:
            send = self.channel.send((name, number))
            if self.cancelling and rnd.random() < 0.3:
                number += (await now_and_then_cancelled(rnd, send))[0]
            else:
                await send
                number += 1
        self.left.done()

    async def receive(self, rnd):
        taken, never = self.new_taken(), Channel()
        with contextlib.suppress(ChannelClosed):
            while True:
                how = rnd.random()
                if how < 0.3:
                    with contextlib.suppress(TimeoutError):
                        taken.append((await select(never, self.channel, timeout=rnd.choice([0, 1e-4, None])))[1])
                elif self.cancelling and how < 0.6:
                    happened, item = await now_and_then_cancelled(rnd, self.channel.recv())
                    if happened:
                        taken.append(item)
                else:
                    taken.append(await self.channel.recv())

    async def world(self, world, rnd):
        await asyncio.gather(self.end(), *(self.send((world, number), rnd) for number in range(2)),
                             *(self.receive(rnd) for _ in range(2)))

    async def end(self):
        await self.left.wait()
        self.channel.close()

    def send_in_thread(self):
        for number in range(self.items):
            self.channel.send_blocking(("thread", number), timeout=50)
        self.left.done()

    def receive_in_thread(self, rnd):
        taken = self.new_taken()
        with contextlib.suppress(ChannelClosed):
            while True:
                with contextlib.suppress(TimeoutError):
                    taken.append(self.channel.recv_blocking(timeout=rnd.choice([None, 0, 1e-4, 0.01])))

    def check(self):
        for thread in self.threads:
            thread.join(50)
        rest = self.new_taken()
        with contextlib.suppress(ChannelClosed):
            while True:
                rest.append(self.channel.recv_nowait())
        counts = collections.Counter(itertools.chain(*self.taken))
        assert counts == collections.Counter(itertools.product(self.senders, range(self.items)))
        for taken in self.taken if not self.cancelling else ():
            last = {}
            for name, number in taken:
                assert last.get(name, -1) < number
                last[name] = number
        assert not waits_at(self.channel)


@pytest.mark.parametrize("cancelling", [False, True])
def test_storm(in_thread, cancelling):
    for seed in range(60 if FREE_THREADED else 40):
        Storm(in_thread, seed, 2 + seed % 3, 100, cancelling).check()


@pytest.mark.long
@pytest.mark.timeout(1200)
@pytest.mark.parametrize("cancelling", [False, True])
def test_long_storm(in_thread, cancelling):
    for seed in range(400):
        Storm(in_thread, seed, 2 + seed % 7, 200, cancelling).check()


def test_locks_in_a_storm(in_thread):
    """Who is inside, is inside alone; nobody is left waiting, nothing stays locked."""
    locks = [Mutex(), RWMutex(), Semaphore(1)]
    inside, most = [0] * len(locks), [0] * len(locks)

    def enter(index, by=1):
        inside[index] += by
        most[index] = max(most[index], inside[index])
        assert inside[index] == 1
        inside[index] -= by

    async def use(rnd):
        for _ in range(150):
            index = rnd.randrange(len(locks))
            side = locks[index] if index != 1 else rnd.choice([locks[1].reader, locks[1].writer])
            task = asyncio.ensure_future(locked(side, index, rnd))
            if rnd.random() < 0.4:
                for _ in range(rnd.randrange(3)):
                    await asyncio.sleep(0)
                task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await task

    async def locked(side, index, rnd):
        async with side:
            if "reader" not in repr(side):
                enter(index)
            if rnd.random() < 0.2:
                await asyncio.sleep(0)

    async def world(seed):
        await asyncio.gather(*(use(random.Random(seed * 10 + number)) for number in range(3)))

    def plain(rnd):
        for _ in range(150):
            index = rnd.randrange(len(locks))
            side = locks[index] if index != 1 else locks[1].writer
            with contextlib.suppress(TimeoutError):
                side.acquire_blocking(timeout=rnd.choice([None, 0, 1e-4]))
                enter(index)
                side.release()
    threads = [in_thread(run_loop, world(number), number) for number in range(3)]
    threads += [in_thread(plain, random.Random(number)) for number in range(2)]
    for thread in threads:
        thread.join(50)
    assert [repr(lock) for lock in locks] == ["<Mutex unlocked, 0 waiting>", "<RWMutex unlocked, 0 waiting>",
                                             "<Semaphore 1 left, 0 waiting>"]
    assert most == [1, 1, 1]


def test_each_world_counts_its_waits(in_thread):
    channel, mutex = Channel(), Mutex()
    mutex.try_acquire()

    async def main():
        loop = asyncio.get_running_loop()
        tasks = [asyncio.ensure_future(coro) for coro in (channel.recv(), select(channel), mutex.acquire(),
                                                          channel.recv(), channel.recv())]
        await asyncio.sleep(0)
        assert waits.waits_in(loop) == 5
        tasks[3].cancel()
        await asyncio.wait(tasks[3:4])
        assert waits.waits_in(loop) == 4
        in_thread(lambda: (mutex.release(), [channel.send_blocking(number) for number in range(3)]))
        await asyncio.gather(*tasks[:3], tasks[4])
        assert waits.waits_in(loop) == 0
    run_with(gmploop.new_event_loop, main())


# -- fork, the end of the interpreter

def test_fork():
    """In the child nobody waits who is not there, and all works; the parent notices nothing."""
    assert child_output("gmploop", """
        import asyncio, gmploop, os, threading, warnings
        warnings.simplefilter("ignore")
        channel, mutex, rw = gmploop.Channel(1), gmploop.Mutex(), gmploop.RWMutex()
        loop = gmploop.new_event_loop()
        got, held = [], rw.reader.acquire_blocking()

        async def receive():
            got.append(await channel.recv())

        async def main():
            tasks = [asyncio.ensure_future(coro) for coro in (channel.recv(), rw.writer.acquire())]
            ready.set()
            await asyncio.gather(*tasks, return_exceptions=True)
        ready = threading.Event()
        threads = [threading.Thread(target=asyncio.run, args=(main(),)),
                   threading.Thread(target=lambda: gmploop.run(main())),
                   threading.Thread(target=lambda: got.append(channel.recv_blocking()))]
        for thread in threads:
            thread.start()
        while len(gmploop.sync.waiting()) < 5:
            time.sleep(0.001)
        task = loop.create_task(receive())
        loop.run_until_complete(asyncio.sleep(0))
        pid = os.fork()
        if not pid:
            assert len(gmploop.sync.waiting()) == 1
            assert rw.reader.try_acquire()
            channel.send_nowait("to the child's idle loop")
            loop.run_until_complete(task)
            assert got == ["to the child's idle loop"]
            os._exit(5)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 5
        rw.reader.release()
        for number in range(4):
            channel.send_blocking(number)
        loop.run_until_complete(task)
        rw.writer.release()
        for thread in threads:
            thread.join()
        loop.close()
        print("well", len(got))
        """) == "well 2\n"


def test_the_interpreter_ends_while_threads_and_tasks_wait():
    assert child_output("gmploop", """
        import asyncio, gmploop, threading
        channel, mutex = gmploop.Channel(1), gmploop.Mutex()
        mutex.try_acquire()

        async def main():
            await asyncio.gather(channel.recv(), gmploop.select(channel, gmploop.Channel()), mutex.acquire())
        for call in channel.recv_blocking, mutex.acquire_blocking, lambda: asyncio.run(main()):
            threading.Thread(target=call, daemon=True).start()
        while len(gmploop.sync.waiting()) < 6:
            time.sleep(0.001)
        loop = new_loop()
        left = loop.create_task(channel.recv())
        loop.run_until_complete(asyncio.sleep(0))
        left._log_destroy_pending = False
        print("ends")
        """) == "ends\n"
