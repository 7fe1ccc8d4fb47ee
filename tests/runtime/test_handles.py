"""Goroutine handles: who waits for one, when its end, a cancel or an error falls together with something else."""

import asyncio
import gc
import threading

import gmploop
import pytest
from gmploop import go

pytestmark = pytest.mark.timeout(60)


@pytest.fixture(params=["a task", "a root"])
def runs(request):
    """Runs a coroutine function as a task of main(), or as a goroutine's root, which has no task object at first."""
    def runner(function):
        async def main():
            other = asyncio.create_task(function()) if request.param == "a task" else go(function)
            return await other
        return gmploop.run(main(), procs=2)
    return runner


def test_a_callback_that_raises_keeps_nobody_from_hearing(caplog):
    async def waits(started):
        started.set()
        await asyncio.sleep(0.01)
        return 5

    async def main():
        started, heard = threading.Event(), []
        handle = go(waits, started)

        def from_a_thread():
            handle.add_done_callback(lambda _: 1 / 0)
            handle.add_done_callback(heard.append)
            heard.append(handle.result(20))
        thread = threading.Thread(target=from_a_thread)
        thread.start()
        result = await handle
        await asyncio.to_thread(thread.join)
        return result, set(map(repr, heard)) == {"5", repr(handle)}
    assert gmploop.run(main()) == (5, True)
    assert "ZeroDivisionError" in caplog.text


async def lasting():
    """A world that goes on for a while after its root coroutine has returned."""
    async def child():
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.05)
    asyncio.create_task(child())
    await asyncio.sleep(0)


def test_a_cancel_that_finds_the_awaited_one_at_its_end_is_not_lost(runs):
    async def waits():
        with pytest.raises(TimeoutError if hasattr(asyncio, "timeout") else asyncio.TimeoutError):
            await asyncio.wait_for(joins(), 0.02)
        return "in time"

    async def joins():
        while True:
            await go(lasting)
    assert runs(waits) == "in time"


def test_cancels_at_any_moment_end_who_joins_for_ever():
    async def one():
        return 1

    async def for_ever():
        while True:
            await go(one)

    async def main():
        for i in range(200):
            handle = go(for_ever)
            for _ in range(i % 7):
                await asyncio.sleep(0)
            assert handle.cancel()
            with pytest.raises(asyncio.CancelledError):
                await handle
    gmploop.run(main(), procs=2)


def test_one_that_refuses_a_cancel_gives_its_result(runs):
    begun = gmploop.Event()

    async def refuses():
        try:
            begun.set()
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            return "no"

    async def joins():
        return await go(refuses)

    async def cancels():
        task = asyncio.create_task(joins())
        await begun.wait()
        task.cancel()
        return await task
    assert runs(cancels) == "no"


def test_the_traceback_of_an_error_does_not_grow_with_those_who_see_it():
    async def fails():
        raise ValueError

    async def main():
        handle, depths = go(fails), set()
        for _ in range(5):
            try:
                await handle
            except ValueError as exc:
                trace, n = exc.__traceback__, 0
                while trace is not None:
                    trace, n = trace.tb_next, n + 1
                depths.add(n)
        return len(depths)
    assert gmploop.run(main()) <= 2         # the first comes another way


def test_polling_result_leaves_nothing():
    async def main():
        handle = go(asyncio.sleep, 1000)

        def polls():
            for _ in range(50):
                with pytest.raises(TimeoutError):
                    handle.result(0)
        gc.collect()
        before = sum(isinstance(each, threading.Event) for each in gc.get_objects())
        await asyncio.to_thread(polls)
        gc.collect()
        left = sum(isinstance(each, threading.Event) for each in gc.get_objects()) - before
        handle.cancel()
        return left
    assert gmploop.run(main()) < 10


def test_the_message_of_a_cancel_reaches_the_awaiter():
    async def main():
        handle = go(asyncio.sleep, 1000)
        await asyncio.sleep(0.01)
        handle.cancel("why")
        with pytest.raises(asyncio.CancelledError) as caught:
            await handle
        return caught.value.args
    assert gmploop.run(main()) == ("why",)


def test_the_message_of_a_cancel_that_comes_first_reaches_the_awaiter(runs):
    async def cancels():
        handle = go(asyncio.sleep, 1000)
        handle.cancel("first")
        handle.cancel("why")
        with pytest.raises(asyncio.CancelledError) as caught:
            await handle
        return caught.value.args
    assert runs(cancels) in (("first",), ("why",))     # it may begin, on another thread, in between


def test_the_message_of_the_only_cancel_that_comes_first_reaches_the_awaiter():
    async def main():
        for _ in range(100):
            handle = go(asyncio.sleep, 1000)
            handle.cancel("why")
            with pytest.raises(asyncio.CancelledError) as caught:
                await handle
            assert caught.value.args == ("why",)
    gmploop.run(main(), procs=2)


@pytest.mark.parametrize("size", [2, 3])
@pytest.mark.parametrize("kind", ["roots", "tasks"])
def test_goroutines_that_await_each_other_in_a_ring_end_when_one_is_cancelled(size, kind):
    """On stock, cancel() of tasks that do so raises RecursionError."""
    async def waits_for_the_next(number, ring, waiting):
        waiting.done()
        await waiting.wait()
        if kind == "roots":
            await ring[(number + 1) % size]
        else:
            await asyncio.create_task(joins(ring[(number + 1) % size]))

    async def joins(handle):
        await handle

    async def main():
        ring, waiting = [], gmploop.WaitGroup()
        waiting.add(size + 1)
        ring += [go(waits_for_the_next, number, ring, waiting) for number in range(size)]
        waiting.done()
        await waiting.wait()
        await asyncio.sleep(0.05)
        ring[0].cancel("enough")
        ended = await asyncio.gather(*ring, return_exceptions=True)
        return [type(error) for error in ended]
    assert gmploop.run(main(), procs=2) == [asyncio.CancelledError] * size
