"""Cancellation, task semantics, context variables and what shutdown finalises, with plain and with eager tasks."""

import asyncio
import sys

import pytest

from support import outcome, turns

pytestmark = pytest.mark.timeout(30)

FACTORIES = ["plain", pytest.param("eager", marks=pytest.mark.skipif(
    sys.version_info < (3, 12), reason="eager tasks came with Python 3.12"))]


# -- cancel against result, in one callback

async def suppressing(awaitable):
    try:
        return await awaitable
    except asyncio.CancelledError:
        return "swallowed"


WAITERS = {
    "bare": lambda future: future,
    "wait_for": lambda future: asyncio.wait_for(future, 10),
    "wait_for without end": lambda future: asyncio.wait_for(future, None),
    "shield": lambda future: asyncio.shield(future),
    "gather": lambda future: asyncio.gather(future, return_exceptions=True),
    "wait": lambda future: asyncio.wait([future]),
    "timeout": lambda future: in_timeout(future),
    "task group": lambda future: in_group(future),
    "queue": lambda future: from_queue(future),
    "event": lambda future: on_event(future),
    "suppressing": suppressing,
}


async def in_timeout(future):
    async with asyncio.timeout(10):
        return await future


async def in_group(future):
    async with asyncio.TaskGroup() as group:
        task = group.create_task(passing(future))
    return task.result()


async def passing(future):
    return await future


async def from_queue(future):
    queue = asyncio.Queue()
    future.add_done_callback(lambda _: queue.put_nowait("from queue"))
    return await queue.get()


async def on_event(future):
    event = asyncio.Event()
    future.add_done_callback(lambda _: event.set())
    return await event.wait()


def describe(task):
    if not task.done():
        return "pending"
    if task.cancelled():
        return "cancelled"
    return type(task.exception()) if task.exception() else type(task.result())


ORDERS = {
    "result, then cancel": lambda future, task: (future.set_result("result"), task.cancel()),
    "cancel, then result": lambda future, task: (task.cancel(), future.cancelled() or future.set_result("result")),
    "exception, then cancel": lambda future, task: (future.set_exception(KeyError("x")), task.cancel()),
    "future cancelled, then task": lambda future, task: (future.cancel(), task.cancel()),
    "cancelled twice": lambda future, task: (task.cancel(), task.cancel()),
    "cancelled and uncancelled": lambda future, task: (task.cancel(), task.uncancel()),
    "cancelled with a message": lambda future, task: task.cancel("because"),
    "only the result": lambda future, task: future.set_result("result"),
}


@pytest.mark.parametrize("factory", FACTORIES)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("waiter", WAITERS)
def test_cancel_and_result_in_one_turn(same_as_stock, waiter, order, factory):
    async def scenario(loop):
        loop.set_task_factory(getattr(asyncio, "eager_task_factory", None) if factory == "eager" else None)
        future = loop.create_future()
        task = loop.create_task(passing(WAITERS[waiter](future)))
        await turns(3)
        loop.call_soon(ORDERS[order], future, task)
        await turns(8)
        told = describe(task), task.cancelling(), future.done()
        if not task.done():
            task.cancel()
            await asyncio.wait([task])
        if not future.done():
            future.cancel()
        elif not future.cancelled():
            future.exception()
        return told
    same_as_stock(scenario)


@pytest.mark.stock_fault("python/cpython#86296: wait_for() lets the result win", ((3, 11), (3, 12)))
def test_wait_for_does_not_swallow_a_cancel(run, loop, loop_kind):
    if loop_kind == "gmploop" and sys.version_info < (3, 12):
        pytest.xfail("wait_for() is asyncio's own, with the fault that Python 3.12 mended")

    async def main():
        future = loop.create_future()
        task = loop.create_task(asyncio.wait_for(future, 10))
        await turns(2)
        loop.call_soon(lambda: (future.set_result(1), task.cancel()))
        await turns(5)
        assert task.cancelled()
    run(main())


@pytest.mark.parametrize("factory", FACTORIES)
@pytest.mark.parametrize("delay", [0, -1, 1e-9, 0.001])
@pytest.mark.parametrize("work", [0, 1, 3])
def test_timeouts_race_with_results_as_on_stock(same_as_stock, delay, work, factory):
    """Timeouts so short that what they bound has no time, whichever way it is bounded."""
    async def scenario(loop):
        loop.set_task_factory(getattr(asyncio, "eager_task_factory", None) if factory == "eager" else None)

        async def bounded():
            async with asyncio.timeout(delay):
                await turns(work)
                if delay > 0:
                    await asyncio.sleep(10)
            return "in time"
        return [await outcome(bounded()), await outcome(asyncio.wait_for(turns(work), delay)),
                asyncio.current_task().cancelling()]
    same_as_stock(scenario)


# -- order of execution

def record_order(name, log):
    async def inner():
        log.append(f"{name} starts")
        await asyncio.sleep(0)
        log.append(f"{name} goes on")
        await asyncio.sleep(0)
        log.append(f"{name} ends")
    return inner()


@pytest.mark.parametrize("factory", FACTORIES)
def test_tasks_callbacks_and_futures_run_in_stock_s_order(same_as_stock, factory):
    async def scenario(loop):
        loop.set_task_factory(getattr(asyncio, "eager_task_factory", None) if factory == "eager" else None)
        log = []
        loop.call_soon(log.append, "first callback")
        one = loop.create_task(record_order("one", log))
        loop.call_soon(log.append, "second callback")
        future = loop.create_future()
        future.add_done_callback(lambda _: log.append("future's callback"))
        loop.call_soon(future.set_result, None)
        two = loop.create_task(record_order("two", log))
        two.add_done_callback(lambda _: log.append("two's callback"))
        loop.call_soon_threadsafe(log.append, "thread-safe callback")
        loop.call_soon(lambda: loop.call_soon(log.append, "callback of a callback"))
        await asyncio.gather(one, two)
        await turns(3)
        return log
    same_as_stock(scenario)


@pytest.mark.parametrize("factory", FACTORIES)
def test_current_task_is_right_everywhere(same_as_stock, factory):
    """In tasks, in callbacks, in tasks started inside tasks, and after each of them has ended."""
    async def scenario(loop):
        loop.set_task_factory(getattr(asyncio, "eager_task_factory", None) if factory == "eager" else None)
        seen = []

        def note(where):
            task = asyncio.current_task()
            seen.append((where, task.get_coro().__name__ if task else None))

        async def innermost():
            note("innermost")
            await asyncio.sleep(0)
            note("innermost later")

        async def inner():
            note("inner")
            task = loop.create_task(innermost())
            note("inner after create_task")
            await task
            note("inner later")

        loop.call_soon(note, "callback")
        loop.call_soon(lambda: (loop.create_task(inner()), note("callback after create_task")))
        task = loop.create_task(inner())
        note("main after create_task")
        task.add_done_callback(lambda _: note("done callback"))
        await task
        note("main later")
        await turns(6)
        return seen
    same_as_stock(scenario)


@pytest.mark.parametrize("factory", FACTORIES)
def test_all_tasks_lists_each_living_task_once(same_as_stock, factory):
    async def scenario(loop):
        loop.set_task_factory(getattr(asyncio, "eager_task_factory", None) if factory == "eager" else None)
        asyncio.current_task().set_name("main")
        tasks = [loop.create_task(asyncio.sleep(10), name=f"sleeper {number}") for number in range(5)]
        quick = loop.create_task(turns(1), name="quick")
        found = [sorted(task.get_name() for task in asyncio.all_tasks(loop))]
        await quick
        found.append(sorted(task.get_name() for task in asyncio.all_tasks()))
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        found.append(sorted(task.get_name() for task in asyncio.all_tasks()))
        return found
    same_as_stock(scenario)


# -- task groups

@pytest.mark.parametrize("factory", FACTORIES)
@pytest.mark.parametrize("failing", ["none", "at once", "later", "two", "body", "cancelled from outside",
                                     "child cancels the parent"])
def test_task_groups_end_as_on_stock(same_as_stock, factory, failing):
    async def scenario(loop):
        loop.set_task_factory(getattr(asyncio, "eager_task_factory", None) if factory == "eager" else None)
        log = []

        async def work(name, steps, fails):
            try:
                await turns(steps)
                if fails:
                    raise KeyError(name)
                log.append(f"{name} done")
            except asyncio.CancelledError:
                log.append(f"{name} cancelled")
                raise

        async def parent():
            async with asyncio.TaskGroup() as group:
                group.create_task(work("one", 0, failing == "at once"))
                group.create_task(work("two", 3, failing in ("later", "two")))
                group.create_task(work("three", 3, failing == "two"))
                group.create_task(work("four", 20, False))
                if failing == "body":
                    raise ValueError
                if failing == "child cancels the parent":
                    group.create_task(passing_cancel(asyncio.current_task()))
            return "whole"

        async def passing_cancel(task):
            task.cancel()

        task = loop.create_task(parent())
        if failing == "cancelled from outside":
            loop.call_later(0.001, task.cancel)
            await turns(2)
            task.cancel()
        await asyncio.wait([task])
        if task.cancelled():
            return "cancelled", log
        if exc := task.exception():
            return [repr(inner) for inner in getattr(exc, "exceptions", [exc])], log
        return task.result(), log
    same_as_stock(scenario)
