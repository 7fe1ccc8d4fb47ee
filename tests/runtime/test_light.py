"""A goroutine's root coroutine has no task object until somebody asks, and what awaits it needs no future: neither shows."""

import asyncio
import gc
import io
import sys
import threading
import types
import weakref

import gmploop
import pytest
from gmploop import go

pytestmark = pytest.mark.timeout(60)


async def until(condition):
    while not condition():
        await asyncio.sleep(0.001)


@pytest.mark.parametrize("before", ["nothing", "yield", "channel", "goroutine", "future"])
def test_the_current_task_is_one_and_the_same_from_whenever_it_is_asked_for(run, before):
    async def body(channel):
        if before == "yield":
            await asyncio.sleep(0)
        elif before == "channel":
            assert await channel.recv() == 1
        elif before == "goroutine":
            assert await go(asyncio.sleep, 0, 2) == 2
        elif before == "future":
            await asyncio.sleep(0.001)
        task = asyncio.current_task()
        assert isinstance(task, asyncio.Task) and task.get_name() == "body" and not task.done()
        await asyncio.sleep(0)
        assert asyncio.current_task() is task and asyncio.all_tasks() == {task}
        await channel.recv()
        assert asyncio.current_task() is task
        async with asyncio.timeout(10):
            await go(asyncio.sleep, 0.001)
        assert asyncio.current_task() is task
        return "done"

    async def main():
        channel = gmploop.Channel(2)
        goroutine = go(body, channel, name="body")
        await channel.send(1)
        await channel.send(2)
        return await goroutine
    assert run(main()) == "done"


def test_all_tasks_has_the_root_task_before_anybody_asked_for_it(run):
    async def body():
        helper = asyncio.create_task(asyncio.sleep(10))
        tasks = asyncio.all_tasks()
        assert len(tasks) == 2 and helper in tasks and asyncio.current_task() in tasks
        helper.cancel()

    async def main():
        await go(body)
    run(main())


def test_a_name_is_made_when_somebody_asks_and_stays(run):
    async def body(inside):
        await inside.wait()
        return asyncio.current_task().get_name()

    async def main():
        inside = gmploop.Event()
        goroutine = go(body, inside)
        await until(goroutine.get_name)
        name = goroutine.get_name()
        inside.set()
        assert await goroutine == name == goroutine.get_name() and name.startswith("Task-")
    run(main())


def test_cancelled_at_a_channel_it_leaves_the_item_to_the_next(run):
    async def receive(channel):
        return await channel.recv()

    async def main():
        for _ in range(50):
            channel = gmploop.Channel()
            first = go(receive, channel)
            await until(lambda: gmploop.sync.waiting())
            second = go(receive, channel)
            first.cancel()
            await channel.send("item")
            results = await asyncio.gather(first, *([second] if first.cancelled() else []), return_exceptions=True)
            if "item" not in results:
                assert await second == "item"
            elif not second.done():
                await channel.send("another")
                assert await second == "another"
    run(main())


def test_cancelling_reaches_the_goroutine_that_it_awaits_which_may_refuse(run):
    async def stubborn():
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            return "stayed"

    async def awaits(inner):
        return await inner

    coros = []

    def begin(function, *args):
        coros.append(function(*args))
        return coros[-1]

    async def main():
        inner = go(begin, stubborn)
        outer = go(begin, awaits, inner)
        await until(lambda: [coro.cr_suspended for coro in coros] == [True] * 2)
        outer.cancel()
        assert await outer == "stayed"
        inner = go(begin, asyncio.sleep, 1000)
        outer = go(begin, awaits, inner)
        await until(lambda: [coro.cr_suspended for coro in coros[2:]] == [True] * 2)
        outer.cancel()
        with pytest.raises(asyncio.CancelledError):
            await outer
        assert inner.cancelled() and outer.cancelled()
    run(main())


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="there a goroutine has its task from the start, which takes awaitables")
@pytest.mark.parametrize("asked", [False, True])
def test_a_goroutine_that_is_yielded_bare_is_waited_for(run, asked):
    @types.coroutine
    def bare(goroutine):
        yield goroutine

    async def body():
        goroutine = go(asyncio.sleep, 0.01)
        if asked:
            assert asyncio.current_task()
        await bare(goroutine)
        return goroutine.done()

    async def main():
        return await go(body)
    assert run(main())


def test_bad_yields_fail_in_the_goroutine(run):
    @types.coroutine
    def bare(thing):
        yield thing

    async def body(thing):
        await bare(thing)

    async def main():
        for thing, message in (5, "bad yield"), (asyncio.get_running_loop().create_future(), "different loop"):
            with pytest.raises(RuntimeError, match=message):
                await go(body, thing)
    run(main())


@pytest.mark.parametrize("asked", [False, True])
def test_a_goroutine_cannot_await_itself(run, asked):
    async def body(handles):
        if asked:
            assert asyncio.current_task()
        await (await handles.recv())

    async def main():
        handles = gmploop.Channel(1)
        goroutine = go(body, handles)
        await handles.send(goroutine)
        with pytest.raises(RuntimeError, match="await itself"):
            await goroutine
    run(main())


def test_what_was_ready_before_the_end_still_runs_and_what_came_after_does_not(run):
    seen = []

    async def body():
        loop = asyncio.get_running_loop()
        loop.call_soon(seen.append, 1)
        loop.call_soon(lambda: loop.call_soon(seen.append, 3))
        seen.append(0)
        return 2

    async def main():
        assert await go(body) == 2
    run(main())
    assert seen == [0, 1]


def test_who_waits_shows_as_the_goroutine_and_where_it_stands(run):
    async def deep(event):
        await event.wait()

    async def body(event):
        await deep(event)

    async def main():
        event = gmploop.Event()
        goroutine = go(body, event, name="waits here")
        await until(lambda: gmploop.sync.waiting())
        entry, = gmploop.sync.waiting()
        assert entry.who is goroutine or entry.who.get_name() == "waits here"       # from 3.14 on it has a task
        assert entry.object is event and entry.loop is goroutine.get_loop()
        gmploop.dump(out := io.StringIO())
        assert "waits here" in out.getvalue() and "in deep" in out.getvalue() and "in body" in out.getvalue()
        event.set()
        await goroutine
    run(main())


def test_many_may_wait_for_one(run):
    async def body(gate):
        await gate.wait()
        return "value"

    async def awaits(goroutine):
        return await goroutine

    async def awaits_as_task(goroutine):
        assert asyncio.current_task()
        return await asyncio.shield(goroutine)

    async def main():
        gate, called, got = gmploop.Event(), [], []
        goroutine = go(body, gate)
        goroutine.add_done_callback(called.append)
        thread = threading.Thread(target=lambda: got.append(goroutine.result(30)))
        thread.start()
        others = [go(awaits, goroutine), go(awaits, goroutine), go(awaits_as_task, goroutine)]
        here = asyncio.ensure_future(goroutine)
        await asyncio.sleep(0.01)
        gate.set()
        assert await asyncio.gather(here, *others) == ["value"] * 4
        await until(lambda: got and called)
        thread.join()
        assert got == ["value"] and called == [goroutine]
    run(main())


def test_in_a_loop_of_another_make():
    async def main():
        assert await go(asyncio.sleep, 0.001, "first") == "first"
        goroutine = go(asyncio.sleep, 1000)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(goroutine, 0.01)
        assert goroutine.cancelled()
        return await asyncio.gather(*[go(asyncio.sleep, 0, k) for k in range(10)])
    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        assert runner.run(main()) == list(range(10))


def test_a_task_may_join_without_a_wait_that_is_left_behind(run):
    async def main():
        goroutine = go(asyncio.sleep, 0.05, "value")
        joiner = goroutine.__await__()
        assert next(joiner) is joiner
        joiner.close()
        return await goroutine
    assert run(main()) == "value"


def test_an_inner_task_that_waits_with_its_world_s_root(run):
    """Both kinds of wake-up in one world, from inside and from other threads."""
    async def body(to, back):
        async def inner():
            async for item in to:
                await back.send(item + 1)
        task = asyncio.create_task(inner())
        mine, lock = gmploop.Channel(), gmploop.Mutex()
        async with lock:
            waits = asyncio.create_task(lock.acquire())
            await asyncio.sleep(0)
            asyncio.create_task(mine.send("own"))
            assert await mine.recv() == "own"
        await waits
        await task
        return "over"

    async def main():
        to, back = gmploop.Channel(), gmploop.Channel()
        goroutine = go(body, to, back)
        for k in range(200):
            await to.send(k)
            assert await back.recv() == k + 1
        to.close()
        return await goroutine
    assert run(main()) == "over"


def test_a_thousand_joins_and_hops_between_ps_lose_no_wake_up(run):
    async def leaf(k):
        if k % 3 == 0:
            await asyncio.sleep(0)
        return k

    async def tree(depth):
        if depth == 0:
            return 1
        return sum([await half for half in [go(tree, depth - 1), go(tree, depth - 1)]])

    async def ring(left, right, rounds):
        for _ in range(rounds):
            await right.send(await left.recv() + 1)

    async def main():
        assert [await g for g in [go(leaf, k) for k in range(1000)]] == list(range(1000))
        for _ in range(10):
            assert await go(tree, 7) == 128
        channels = [gmploop.Channel() for _ in range(8)]
        rings = [go(ring, channels[k], channels[k + 1], 300) for k in range(7)]
        for k in range(300):
            await channels[0].send(k)
            assert await channels[7].recv() == k + 7
        await asyncio.gather(*rings)
    run(main())


def test_nothing_stays_of_a_goroutine_that_is_over(run):
    class Canary:
        pass

    async def body(canary, kind):
        if kind == "channel":
            await gmploop.Channel(1).send(canary)
        elif kind == "fails":
            raise ValueError(kind)
        elif kind == "task":
            asyncio.current_task().set_name("asked")
        return asyncio.get_running_loop()

    async def one(kind):
        canary = Canary()
        goroutine = go(body, canary, kind)
        try:
            world = weakref.ref(await goroutine)
        except ValueError:
            world = None
        return weakref.ref(canary), world, weakref.ref(goroutine)

    async def main():
        left = [await go(one, kind) for kind in ("plain", "channel", "fails", "task")]
        await go(asyncio.sleep, 0)          # a thread's last world stays until the next one
        await go(asyncio.sleep, 0.01)
        for _ in range(3):
            gc.collect()
        return left
    left = run(main())
    gc.collect()
    assert [canary() for canary, _, _ in left] == [None] * 4
    assert [goroutine() for _, _, goroutine in left] == [None] * 4
