"""Cancellation, task semantics, context variables and what shutdown finalises, with plain and with eager tasks."""

import asyncio
import contextvars
import gc
import sys

import pytest

from support import child, link, outcome, turns

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


# -- context variables

VARIABLE = contextvars.ContextVar("VARIABLE", default="unset")


class Contextual(asyncio.Protocol):
    """Notes the variable's value in each of its callbacks."""

    def __init__(self):
        self.seen = {}
        self.lost = asyncio.get_running_loop().create_future()

    def note(self, name):
        self.seen.setdefault(name, VARIABLE.get())

    def connection_made(self, transport):
        self.transport = transport
        self.note("made")

    def data_received(self, data):
        self.note("data")
        self.seen["last data"] = VARIABLE.get()

    def eof_received(self):
        self.note("eof")

    def pause_writing(self):
        self.note("pause")

    def resume_writing(self):
        self.note("resume")

    def connection_lost(self, exc):
        self.note("lost")
        self.lost.set_result(exc)


@pytest.mark.parametrize("kind", ["tcp", "unix", "tls", "pipe"])
def test_protocols_see_the_context_of_their_maker(same_as_stock, tls, kind):
    async def scenario(loop):
        VARIABLE.set("maker")
        async with link(kind, tls, near=Contextual, far=Contextual) as (near, far):
            VARIABLE.set("changed")

            async def other():
                VARIABLE.set("other")
                near.transport.write(b"x" * 2_000_000)
                near.transport.write(b"x" * 2_000_000)
            await loop.create_task(other())
            while "resume" not in near.seen:
                await asyncio.sleep(0.001)
            near.transport.close()
            await far.lost
            await near.lost
            return near.seen, far.seen
    same_as_stock(scenario)


def test_a_server_s_protocols_see_the_context_it_was_made_in(run):
    async def main():
        loop = asyncio.get_running_loop()
        made = []
        VARIABLE.set("server's")

        def factory():
            made.append(Contextual())
            return made[-1]
        server = await loop.create_server(factory, "127.0.0.1", 0)
        VARIABLE.set("later")
        transport, _ = await loop.create_connection(Contextual, *server.sockets[0].getsockname())
        transport.write(b"data")
        transport.write_eof()
        while not made or "eof" not in made[0].seen:
            await asyncio.sleep(0.001)
        await made[0].lost
        assert set(made[0].seen.values()) == {"server's"}
        transport.abort()
        server.close()
        await turns(3)
    run(main())


@pytest.mark.stock_fault("python/cpython#140947: reading goes on in the context of whoever resumed it",
                         ((3, 11), (3, 15)), kind=("tcp", "unix"))
@pytest.mark.stock_fault("reading goes on in the context of whoever resumed it", kind=("pipe",))
@pytest.mark.parametrize("kind", ["tcp", "unix", "tls", "pipe"])
def test_who_resumes_reading_does_not_lend_its_context(run, tls, kind):
    async def main():
        VARIABLE.set("maker")
        async with link(kind, tls, near=Contextual, far=Contextual) as (near, far):
            async def other():
                VARIABLE.set("other")
                far.transport.pause_reading()
                far.transport.resume_reading()
            near.transport.write(b"first")
            while "data" not in far.seen:
                await asyncio.sleep(0.001)
            await asyncio.create_task(other())
            del far.seen["last data"]
            near.transport.write(b"second")
            while "last data" not in far.seen:
                await asyncio.sleep(0.001)
            assert far.seen["last data"] == "maker"
            near.transport.close()
            await far.lost
            assert far.seen["lost"] == "maker"
    run(main())


SCHEDULERS = {
    "call_soon": lambda loop, function, **kwargs: loop.call_soon(function, **kwargs),
    "call_later": lambda loop, function, **kwargs: loop.call_later(0, function, **kwargs),
    "call_at": lambda loop, function, **kwargs: loop.call_at(0, function, **kwargs),
    "call_soon_threadsafe": lambda loop, function, **kwargs: loop.call_soon_threadsafe(function, **kwargs),
    "from another thread": lambda loop, function, **kwargs: loop.run_in_executor(
        None, lambda: loop.call_soon_threadsafe(function, **kwargs)),
    "future": lambda loop, function, **kwargs: done_future(loop).add_done_callback(lambda _: function(), **kwargs),
}


def done_future(loop):
    future = loop.create_future()
    future.set_result(None)
    return future


@pytest.mark.parametrize("given", [False, True], ids=["current context", "given context"])
@pytest.mark.parametrize("way", SCHEDULERS)
def test_callbacks_run_in_the_context_they_were_given_or_made_in(run, loop, way, given):
    async def main():
        VARIABLE.set("given" if given else "current")
        context = contextvars.copy_context()
        VARIABLE.set("current")
        seen = loop.create_future()

        def callback():
            seen.set_result(VARIABLE.get())
            VARIABLE.set("changed by the callback")
        handle = SCHEDULERS[way](loop, callback, **({"context": context} if given else {}))
        VARIABLE.set("later")
        # another thread's context is empty, if none is given
        expected = "given" if given else "unset" if way == "from another thread" else "current"
        assert await seen == expected
        assert VARIABLE.get() == "later"
        if given:
            assert context[VARIABLE] == "changed by the callback"
        del handle
    run(main())


# -- dropped asynchronous generators

DROPPED = """
    import logging
    logging.basicConfig(level=logging.ERROR)
    how, log = sys.argv[1], []

    async def generator():
        try:
            while True:
                yield 1
        finally:
            await asyncio.sleep(0)
            log.append("finally")

    async def main():
        one = generator()
        await one.__anext__()
        if how == "refcount":
            del one
        elif how == "cycle":
            holder = [one]
            holder.append(holder)
            del one, holder
            gc.collect()
        elif how == "thread":
            holder = [one]
            del one
            thread = threading.Thread(target=holder.clear)
            thread.start()
            await asyncio.get_running_loop().run_in_executor(None, thread.join)
        elif how == "kept":
            log.kept = one
            return
        for _ in range(200):
            if log:
                break
            await asyncio.sleep(0.01)

    class Log(list):
        pass

    log = Log()
    loop = new_loop()
    loop.set_debug(True)
    try:
        loop.run_until_complete(main())
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.run_until_complete(loop.shutdown_default_executor())
    finally:
        loop.close()
    print(*log)
"""


@pytest.mark.parametrize("how", ["refcount", "cycle", "thread", "kept"])
def test_a_dropped_generator_is_finalised(loop_kind, how):
    done = child(loop_kind, DROPPED, how, options=["-X", "dev"])
    assert (done.returncode, done.stdout, done.stderr) == (0, "finally\n", "")


@pytest.mark.skipif(not getattr(sys, "_is_gil_enabled", lambda: True)(),
                    reason="without a GIL an object is freed when the thread that made it next runs Python code")
def test_a_generator_dropped_on_another_thread_wakes_an_idle_loop(loop_kind):
    done = child(loop_kind, """
        finished = []

        async def generator():
            try:
                yield 1
            finally:
                finished.append(time.monotonic())
                loop.stop()

        loop = new_loop()
        holder = [generator()]

        async def start():
            await holder[0].__anext__()

        loop.run_until_complete(start())
        dropped = []

        def drop():
            time.sleep(0.1)
            dropped.append(time.monotonic())
            holder.clear()

        thread = threading.Thread(target=drop)
        thread.start()
        loop.call_later(10, loop.stop)
        loop.run_forever()
        thread.join()
        print(finished[0] - dropped[0] < 2)
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()
    """)
    assert (done.returncode, done.stdout, done.stderr) == (0, "True\n", "")


def test_a_task_that_is_dropped_while_waiting_is_reported(loop):
    messages = []
    loop.set_exception_handler(lambda _, context: messages.append(context["message"]))

    async def main():
        await asyncio.get_running_loop().create_future()
    task = loop.create_task(main())
    loop.run_until_complete(turns(2))
    del task
    gc.collect()
    loop.run_until_complete(turns(1))
    assert messages == ["Task was destroyed but it is pending!"]


def test_an_exception_nobody_asked_for_is_reported(loop, errors):
    async def main():
        asyncio.create_task(outcome_less())
        future = asyncio.get_running_loop().create_future()
        future.set_exception(KeyError("unasked"))
        del future
        await turns(3)

    async def outcome_less():
        raise ValueError("unasked")
    loop.run_until_complete(main())
    assert sorted(type(context["exception"]).__name__ for context in errors) == ["KeyError", "ValueError"]
    del errors[:]
