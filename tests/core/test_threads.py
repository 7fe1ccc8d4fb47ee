"""Loops and threads: posts from everywhere, cancels from elsewhere, what is refused."""

import asyncio
import os
import sys
import threading
import time
import weakref

import gmploop
import pytest
from support import child_output

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("threads_take_turns_often")]

FREE_THREADED = not getattr(sys, "_is_gil_enabled", lambda: True)()
POSTS = 20000 if FREE_THREADED else 8000


class Threads:
    """Runs functions in threads; at the end all are joined and the first error is raised."""

    def __init__(self):
        self.threads, self.errors = [], []

    def start(self, function, *args):
        def body():
            try:
                function(*args)
            except BaseException as exc:
                self.errors.append(exc)
        thread = threading.Thread(target=body, daemon=True)
        self.threads.append(thread)
        thread.start()
        return thread

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        deadline = time.monotonic() + 10
        for thread in self.threads:
            thread.join(max(0, deadline - time.monotonic()))
        assert not any(thread.is_alive() for thread in self.threads), "a thread does not end"
        if self.errors and not exc[0]:
            raise self.errors[0]


# -- posts

def test_four_loops_and_four_producers_each_lose_nothing(loop_factory):
    """With pauses, so that loops go to sleep in between; each loop ends when it is told to and not before."""
    loops = [loop_factory() for _ in range(4)]
    taken = [[[] for _ in range(4)] for _ in loops]
    ended_early = []

    def produce(producer):
        for number in range(POSTS // 4):
            for index, loop in enumerate(loops):
                loop.call_soon_threadsafe(taken[index][producer].append, number)
            if number % 200 == producer * 50:           # let loops go to sleep: not to wait for anything
                time.sleep(0.001)

    def run(index):
        loops[index].run_forever()
        if sum(map(len, taken[index])) != POSTS:
            ended_early.append(index)
    with Threads() as threads:
        for index in range(4):
            threads.start(run, index)
        producers = [threads.start(produce, producer) for producer in range(4)]
        for thread in producers:
            thread.join(30)
        for loop in loops:
            loop.call_soon_threadsafe(loop.stop)
    assert not ended_early
    assert taken == [[list(range(POSTS // 4))] * 4] * 4


def test_ping_pong_between_two_loops_loses_no_wake_up(loop_factory):
    """Each post finds the other loop asleep or about to go to sleep."""
    one, two = loop_factory(), loop_factory()
    rounds = 3000

    def ping(left):
        two.call_soon_threadsafe(pong, left)

    def pong(left):
        if left:
            one.call_soon_threadsafe(ping, left - 1)
        else:
            one.call_soon_threadsafe(one.stop)
            two.stop()
    one.call_soon(ping, rounds)
    with Threads() as threads:
        threads.start(one.run_forever)
        threads.start(two.run_forever)


def test_posts_that_race_with_stop_run_in_the_next_run(loop):
    """The loop is run again and again while posts come; none is lost between two runs."""
    taken, count = [], 4000

    def produce():
        for number in range(count):
            loop.call_soon_threadsafe(taken.append, number)
            if number % 20 == 0:
                loop.call_soon_threadsafe(loop.stop)
                time.sleep(0.0001)
    with Threads() as threads:
        producer = threads.start(produce)
        runs = 0
        while producer.is_alive():
            stop = loop.call_later(0.001, loop.stop)
            loop.run_forever()
            stop.cancel()
            runs += 1
    loop.call_soon(loop.stop)
    loop.run_forever()
    assert taken == list(range(count))
    assert runs > 1


def test_call_soon_from_another_thread_is_posted(loop):
    """Not a right use, as on stock, but never corruption. Debug mode refuses it."""
    loop.set_debug(False)
    taken = [[] for _ in range(4)]

    def produce(producer):
        for number in range(2000):
            loop.call_soon(taken[producer].append, number)
    with Threads() as threads:
        producers = [threads.start(produce, producer) for producer in range(4)]
        loop.call_soon(asyncio.ensure_future, stop_after(loop, producers), context=None)
        loop.run_forever()
    assert taken == [list(range(2000))] * 4


async def stop_after(loop, threads):
    while any(thread.is_alive() for thread in threads):
        await asyncio.sleep(0.001)
    loop.call_soon_threadsafe(loop.stop)


def test_an_idle_loop_may_be_filled_by_many_threads_at_once(loop):
    """Nobody runs it: posts and timers go in under its lock."""
    taken = [[] for _ in range(4)]
    start = threading.Barrier(4)

    def fill(producer):
        start.wait(10)
        for number in range(1000):
            loop.call_soon(taken[producer].append, number)
            loop.call_later(1000, print)
            loop.call_later(1000, print).cancel()
    with Threads() as threads:
        for producer in range(4):
            threads.start(fill, producer)
    loop.run_until_complete(asyncio.sleep(0))
    assert taken == [list(range(1000))] * 4


# -- cancel

@pytest.mark.parametrize("debug", [False, True], ids=["plain", "debug"])
@pytest.mark.parametrize("way", ["loop.call_soon_threadsafe(", "loop.call_later(number % 7 / 20000, "],
                         ids=["call_soon_threadsafe", "call_later"])
def test_cancels_from_other_threads_while_the_loop_runs(way, debug):
    """Each handle runs or is cancelled before it ran; what it held is let go of, also when both happen at once. In a
    process of its own: it might crash."""
    assert child_output("gmploop", f"""
        import weakref
        sys.setswitchinterval(1e-5)
        rounds, alive, handles = {1000 if debug else 6000}, weakref.WeakSet(), []
        loop = new_loop()
        loop.set_debug({debug})
        loop.slow_callback_duration = 60        # on a busy machine a turn may take long

        class Callback:
            def __init__(self):
                alive.add(self)

            def __call__(self):
                pass

        def fill():
            for number in range(len(handles), min(len(handles) + 200, rounds)):
                handles.append({way}Callback()))
            if len(handles) < rounds:
                loop.call_soon(fill)

        def cancel(part):
            done = part
            while done < rounds:
                if done >= len(handles):
                    time.sleep(0)
                    continue
                handles[done].cancel()
                assert handles[done].cancelled()
                done += 3
            ended.append(part)
            if len(ended) == 3:
                loop.call_soon_threadsafe(loop.stop)
        ended = []
        threads = [threading.Thread(target=cancel, args=(part,)) for part in range(3)]
        loop.call_soon(fill)
        for thread in threads:
            thread.start()
        loop.run_forever()
        for thread in threads:
            thread.join(10)
        loop.run_until_complete(asyncio.sleep(0.002))
        assert len(handles) == rounds and not len(alive), len(alive)
        loop.close()
        print("survived")
    """) == "survived\n"


@pytest.mark.parametrize("batch", [10, 50])
def test_a_cancel_that_meets_the_moment_in_which_the_handle_runs(batch):
    """Both let go of what the handle held: who takes it must be decided once."""
    assert child_output("gmploop", f"""
        sys.setswitchinterval(1e-5)
        loop, handles, argument = new_loop(), [], {{}}
        end = time.monotonic() + 1
        callback = type("Callback", (), {{"__call__": lambda self, argument: None}})()
        references = sys.getrefcount(callback), sys.getrefcount(argument)

        def fill():
            handles[:] = [loop.call_soon(callback, argument) for _ in range({batch})]
            loop.call_soon(fill) if time.monotonic() < end else loop.stop()

        def cancel(order):
            while time.monotonic() < end:
                for handle in order(handles):
                    handle.cancel()
        threads = [threading.Thread(target=cancel, args=(order,)) for order in (iter, reversed)]
        loop.call_soon(fill)
        for thread in threads:
            thread.start()
        loop.run_forever()
        for thread in threads:
            thread.join()
        handles.clear()
        loop.run_until_complete(asyncio.sleep(0))
        assert references == (sys.getrefcount(callback), sys.getrefcount(argument))
        loop.close()
        print("survived")
    """) == "survived\n"


def test_a_far_timer_cancelled_from_another_thread_does_not_fire(loop):
    fired = []
    handle = loop.call_later(0.05, fired.append, "cancelled")
    loop.call_later(0.06, loop.stop)
    with Threads() as threads:
        loop.call_soon(threads.start, handle.cancel)
        loop.run_forever()
    assert not fired


def test_cancels_from_other_threads_while_nobody_runs_the_loop(loop):
    """Two threads cancel the same handles in opposite order, others set new ones."""
    payloads = weakref.WeakSet()

    class Payload:
        def __init__(self):
            payloads.add(self)

    handles = [loop.call_later(1000 + i % 13, print, Payload()) for i in range(3000)]
    handles += [loop.call_soon(print, Payload()) for _ in range(1000)]
    start = threading.Barrier(3)

    def cancel(those):
        start.wait(10)
        for handle in those:
            handle.cancel()

    def fill():
        start.wait(10)
        for _ in range(2000):
            loop.call_later(1000, int)
    with Threads() as threads:
        threads.start(cancel, handles)
        threads.start(cancel, handles[::-1])
        threads.start(fill)
    assert not len(payloads)
    loop.run_until_complete(asyncio.sleep(0))


# -- close

@pytest.mark.parametrize("seed", range(5))
def test_posts_while_the_loop_is_closed_run_or_are_refused(seed):
    """A post meets the open loop or the closed one; nothing else may happen."""
    for turn in range(6):
        loop = gmploop.new_event_loop()
        ran, posted, started = [0] * 3, [0] * 3, threading.Barrier(4)

        def count(producer, ran=ran):
            ran[producer] += 1

        def produce(producer, loop=loop, posted=posted, started=started, count=count):
            started.wait(10)
            while True:
                try:
                    loop.call_soon_threadsafe(count, producer)
                except RuntimeError as exc:
                    assert str(exc) == "Event loop is closed"
                    return
                posted[producer] += 1
        with Threads() as threads:
            for producer in range(3):
                threads.start(produce, producer)
            started.wait(10)
            loop.call_later(0.001 + seed / 2000, loop.stop)
            loop.run_forever()
            loop.close()
        assert all(0 <= ran[i] <= posted[i] for i in range(3))


def test_cancels_and_timers_while_the_loop_is_closed():
    """Other threads cancel what close() is dropping, and set timers. In a process of its own: it might crash."""
    assert child_output("gmploop", """
        sys.setswitchinterval(1e-5)

        def cancel(handles):
            start.wait(10)
            for handle in reversed(handles):
                handle.cancel()

        def set_timers(loop):
            start.wait(10)
            try:
                for _ in range(100000):
                    loop.call_later(1000, int)
            except RuntimeError as exc:
                refused.append(str(exc))

        for with_timers in [False, True] * 20:
            loop, start, refused = new_loop(), threading.Barrier(3 if with_timers else 2), []
            handles = [loop.call_later(1000 + i % 13, print, {}) for i in range(1500)]
            handles += [loop.call_soon(print, {}) for _ in range(500)]
            threads = [threading.Thread(target=cancel, args=(handles,))]
            if with_timers:
                threads.append(threading.Thread(target=set_timers, args=(loop,)))
            for thread in threads:
                thread.start()
            start.wait(10)
            loop.close()
            for thread in threads:
                thread.join()
            assert refused == ["Event loop is closed"] * with_timers
            assert all(handle._callback is None for handle in handles)
        print("survived")
    """) == "survived\n"


def test_handles_may_be_looked_at_from_other_threads_while_they_run():
    assert child_output("gmploop", """
        sys.setswitchinterval(1e-5)
        loop, handles, ended = new_loop(), [], threading.Event()

        class Callback:
            def __call__(self, *args):
                pass

        def fill(left):
            handles[:] = [loop.call_soon(Callback(), {}) for _ in range(200)]
            handles.extend(loop.call_later(0, Callback(), {}) for _ in range(50))
            loop.call_soon(fill, left - 1) if left else loop.stop()

        def look():
            while not ended.is_set():
                for handle in list(handles):
                    handle._callback, handle._args, handle.get_context(), repr(handle)
        threads = [threading.Thread(target=look) for _ in range(2)]
        for thread in threads:
            thread.start()
        loop.call_soon(fill, 1000)
        loop.run_forever()
        ended.set()
        for thread in threads:
            thread.join()
        loop.close()
        print("survived")
    """) == "survived\n"


# -- whose loop it is

def test_a_loop_built_in_one_thread_runs_in_another():
    made = []

    async def main():
        loop = asyncio.get_running_loop()
        await asyncio.sleep(0.001)
        return await loop.run_in_executor(None, int)

    def build():
        loop = gmploop.new_event_loop()
        loop.call_soon(made.append, "soon")
        loop.call_later(0.001, made.append, "later")
        made.append(loop)

    def run():
        loop = made.pop(0)
        assert loop.run_until_complete(main()) == 0
        loop.run_until_complete(asyncio.sleep(0.002))
        loop.run_until_complete(loop.shutdown_default_executor())
        made.append(loop)
    for function in build, run:
        with Threads() as threads:
            threads.start(function)
    made.pop().close()
    assert made == ["soon", "later"]


def test_a_loop_runs_in_one_thread_after_the_other(loop):
    seen = []

    def run():
        loop.call_soon(lambda: seen.append(threading.get_ident()))
        loop.call_soon(loop.stop)
        loop.run_forever()
    for _ in range(20):
        with Threads() as threads:
            threads.start(run)
        run()
    assert len(seen) == 40


def test_two_threads_cannot_run_one_loop():
    """Of many that try at once, one does; the others are told. In a process that can be ended if two do."""
    assert child_output("gmploop", """
        sys.setswitchinterval(1e-5)
        for _ in range(100):
            loop, results, start = new_loop(), [], threading.Barrier(4)

            def run():
                start.wait(10)
                try:
                    loop.run_forever()
                except RuntimeError as exc:
                    results.append(str(exc))
            threads = [threading.Thread(target=run) for _ in range(4)]
            for thread in threads:
                thread.start()
            deadline = time.monotonic() + 3
            while len(results) < 3:
                if time.monotonic() > deadline:
                    print(4 - len(results), "threads run the loop", flush=True)
                    os._exit(0)
                time.sleep(0)
            loop.call_soon_threadsafe(loop.stop)
            for thread in threads:
                thread.join(10)
            assert results == ["This event loop is already running"] * 3
            loop.close()
        print("one thread ran each loop")
    """) == "one thread ran each loop\n"


@pytest.mark.parametrize("call", ["call_later", "call_at"])
def test_a_timer_from_a_foreign_thread_is_refused_naming_both_loops(loop, call):
    loop.set_debug(False)       # which has a message of its own
    messages = []

    def foreign():
        other = gmploop.new_event_loop()

        async def inside():
            try:
                getattr(loop, call)(1, print)
            except RuntimeError as exc:
                messages.append((str(exc), repr(loop), repr(other)))
        try:
            other.run_until_complete(inside())
        finally:
            other.close()
            loop.call_soon_threadsafe(loop.stop)
    with Threads() as threads:
        loop.call_soon(threads.start, foreign)
        loop.run_forever()
    (message, mine, others), = messages
    assert mine in message and others in message and call in message


def test_a_timer_from_a_thread_without_a_loop_is_refused(loop):
    loop.set_debug(False)
    messages = []

    def foreign():
        try:
            loop.call_later(0, print)
        except RuntimeError as exc:
            messages.append(str(exc))
        loop.call_soon_threadsafe(loop.stop)
    with Threads() as threads:
        loop.call_soon(threads.start, foreign)
        loop.run_forever()
    assert len(messages) == 1 and "<Loop running=True" in messages[0] and "None" in messages[0]


def test_debug_mode_refuses_call_soon_from_a_foreign_thread(loop):
    loop.set_debug(True)
    results = []

    def foreign():
        try:
            loop.call_soon(results.append, "ran")
        except RuntimeError as exc:
            results.append(str(exc))
        loop.call_soon_threadsafe(loop.stop)
    with Threads() as threads:
        loop.call_soon(threads.start, foreign)
        loop.run_forever()
    assert len(results) == 1 and "Non-thread-safe operation" in results[0]


# -- sub-interpreters

@pytest.mark.parametrize("first", ["", "import gmploop"], ids=["never imported", "imported in the main interpreter"])
def test_sub_interpreters_cannot_import_it(first):
    assert child_output("asyncio", f"""
        {first}
        try:
            import _interpreters as interpreters
        except ImportError:
            import _xxsubinterpreters as interpreters
        other = interpreters.create()
        interpreters.run_string(other, '''if True:
            try:
                import gmploop
            except ImportError as exc:
                print("interpreter" in str(exc), flush=True)
        ''')
        interpreters.destroy(other)
        print("goes on")
    """) == "True\ngoes on\n"


# -- many short lives

def test_loops_made_run_and_closed_in_many_threads():
    before = len(os.listdir("/proc/self/fd"))

    def live():
        for _ in range(30):
            loop = gmploop.new_event_loop()
            loop.call_later(0, loop.call_soon_threadsafe, loop.stop)
            loop.run_forever()
            loop.close()
    with Threads() as threads:
        for _ in range(4):
            threads.start(live)
    assert len(os.listdir("/proc/self/fd")) == before
