"""Tasks and futures of gmploop's own: what a user sees is what asyncio's show. Each test runs on stock's too."""

import asyncio
import contextvars
import io
import re
import sys
import weakref

import gmploop
import pytest
import support

from .task_kinds import kind, loop, make_loop, reports, run, same  # noqa: F401 (fixtures)

pytestmark = pytest.mark.timeout(60)


def test_kinds_differ(loop, kind, run):
    """Or else nothing is tested here."""
    async def main():
        return type(asyncio.current_task()), type(loop.create_future())
    made = run(main())
    assert (made == (gmploop.tasks.Task, gmploop.tasks.Future)) == (kind == "own")


async def type_of_future(loop):
    await asyncio.sleep(0)
    return type(loop.create_future())


def test_a_task_of_asyncios_own_gets_asyncios_futures(loop, kind, run):
    """It waits for those with less ado; whatever else asks gets the loop's own."""
    async def main():
        theirs = asyncio.Task(type_of_future(loop), loop=loop)
        ours = loop.create_task(type_of_future(loop))
        called = asyncio.Event()
        types = []
        loop.call_soon(lambda: (types.append(type(loop.create_future())), called.set()))
        await called.wait()
        return [await theirs, await ours, *types]
    own = gmploop.tasks.Future if kind == "own" else asyncio.Future
    has_table = sys.version_info < (3, 14)          # of current tasks; later it is not to be told without cost
    assert run(main()) == [asyncio.Future if has_table else own, own, own]


# -- what they are

def test_they_pass_for_asyncios(loop, run):
    async def main():
        task, future = asyncio.current_task(), loop.create_future()
        assert isinstance(task, asyncio.Task) and isinstance(task, asyncio.Future) and asyncio.isfuture(task)
        assert isinstance(future, asyncio.Future) and not isinstance(future, asyncio.Task) and asyncio.isfuture(future)
        assert task.__class__ is asyncio.Task and future.__class__ is asyncio.Future
        assert asyncio.ensure_future(future) is future and future.get_loop() is loop
        with pytest.raises(TypeError):
            iter(future).throw(1)
        with pytest.raises(TypeError):
            loop.create_task(main)
        task.note = future.note = 1
        assert future.note == weakref.ref(task)().note == 1
    run(main())


def test_representations(same):
    async def scenario(loop):
        texts = []
        gate, other = loop.create_future(), loop.create_future()

        async def waits():
            await gate

        async def fails():
            raise ValueError("so")

        def seen(future):
            pass

        def note(*things):
            texts.extend(re.sub(r"0x\w+|Task-\d+|line \d+|:\d+", "#", repr(thing)) for thing in things)
        waiting, failing = loop.create_task(waits(), name="w"), loop.create_task(fails())
        note(waiting, failing, gate)
        await asyncio.sleep(0)
        note(waiting, failing, gate, other)
        for _ in range(3):
            gate.add_done_callback(seen)
        note(gate)
        waiting.cancel()
        note(waiting, gate)
        await asyncio.wait([waiting])
        note(waiting, gate, failing)
        failing.exception()
        other.set_result("x" * 500)
        note(other)
        return texts
    same(scenario)


def test_stacks(same):
    async def scenario(loop):
        gate = loop.create_future()

        async def inner():
            await gate
            raise ValueError

        task = loop.create_task(inner())
        await asyncio.sleep(0)
        out = io.StringIO()
        task.print_stack(file=out)
        names = [frame.f_code.co_name for frame in task.get_stack()]
        gate.set_result(None)
        await asyncio.wait([task])
        task.print_stack(file=out)
        names += [frame.f_code.co_name for frame in task.get_stack()]
        return names, re.sub(r"Task-\d+", "#", out.getvalue()), type(task.exception())
    same(scenario)


def test_names_and_contexts(loop, run):
    var = contextvars.ContextVar("var")

    async def child():
        before = var.get()
        var.set("child")
        await asyncio.sleep(0)
        return before, var.get(), asyncio.current_task().get_context()[var] if sys.version_info >= (3, 12) else "child"

    async def main():
        var.set("main")
        task = loop.create_task(child(), name=17)
        assert task.get_name() == "17"
        task.set_name(18)
        assert task.get_name() == "18"
        assert await task == ("main", "child", "child") and var.get() == "main"
        context = contextvars.copy_context()
        await loop.create_task(child(), context=context)
        assert context[var] == "child"
        numbers = [int(re.fullmatch(r"Task-(\d+)", loop.create_task(child()).get_name())[1]) for _ in range(3)]
        assert numbers[0] < numbers[1] < numbers[2]
    run(main())


# -- who runs

def test_current_task(loop, run):
    seen = []

    async def child():
        seen.append(asyncio.current_task() is child_task)
        await asyncio.sleep(0)
        seen.append(asyncio.current_task(loop) is child_task)

    async def main():
        nonlocal child_task
        me = asyncio.current_task()
        child_task = loop.create_task(child())
        loop.call_soon(lambda: seen.append(asyncio.current_task() is None))
        await child_task
        seen.append(asyncio.current_task() is me)

    child_task = None
    run(main())
    assert seen == [True] * 4
    assert asyncio.current_task(loop) is None


@pytest.mark.skipif(not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="the loop's thread must stand still")
def test_current_task_from_another_thread(loop, run, in_thread):
    async def main():
        seen = []
        in_thread(lambda: seen.append(asyncio.current_task(loop))).join()
        assert seen == [asyncio.current_task()]
    run(main())


def test_all_tasks(loop, run, in_thread):
    async def main():
        gate, seen = asyncio.Event(), []

        async def waits():
            await gate.wait()
        fresh = [loop.create_task(waits()) for _ in range(3)]
        expected = {asyncio.current_task(), *fresh}
        assert asyncio.all_tasks() == expected
        await asyncio.sleep(0)
        in_thread(lambda: seen.append(asyncio.all_tasks(loop))).join()
        assert asyncio.all_tasks() == expected == seen[0]
        fresh.pop().cancel()
        await asyncio.sleep(0)
        assert asyncio.all_tasks() == {asyncio.current_task(), *fresh}
        gate.set()
        await asyncio.wait(fresh)
        assert asyncio.all_tasks() == {asyncio.current_task()}
    try:
        loop.run_until_complete(main())
    finally:
        assert asyncio.all_tasks(loop) == set()


def test_tasks_of_two_loops_are_told_apart(kind):
    loops = [make_loop(kind), make_loop(kind)]
    tasks = [loop.create_task(asyncio.sleep(0)) for loop in loops]
    assert [asyncio.all_tasks(loop) for loop in loops] == [{task} for task in tasks]
    for loop in loops:
        support.finish(loop)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
def test_eager_start(loop, run, kind):
    seen = []

    async def at_once():
        seen.append(asyncio.current_task() in asyncio.all_tasks() and asyncio.current_task() is not me)
        return 1

    async def later():
        await loop.create_task(at_once(), name="inner")
        await asyncio.sleep(0)
        seen.append(asyncio.current_task().get_name())

    async def main():
        nonlocal me
        me = asyncio.current_task()
        loop.set_task_factory(asyncio.eager_task_factory)
        done, waits = loop.create_task(at_once(), name="done"), loop.create_task(later(), name="waits")
        assert done.done() and done.result() == 1
        if kind == "own" or sys.version_info >= (3, 13):    # 3.12.1 crashes
            assert done.get_coro() is None
        assert not waits.done() and waits in asyncio.all_tasks() and asyncio.current_task() is me
        await waits
        loop.set_task_factory(None)
        assert asyncio.current_task() is me
    me = None
    run(main())
    assert seen == [True, True, "waits"]


# -- order

def test_callbacks_and_wake_ups_come_in_the_order_they_were_asked_for(same):
    async def scenario(loop):
        log, gate = [], loop.create_future()

        async def waits(name):
            await gate
            log.append(name)
            await asyncio.sleep(0)
            log.append(name + "'")

        def called(name):
            gate.add_done_callback(lambda _: log.append(name))
        tasks = []
        for i in range(3):
            tasks.append(loop.create_task(waits(f"task {i}")))
            await asyncio.sleep(0)
            called(f"callback {i}")
        loop.call_soon(log.append, "before")
        gate.set_result(None)
        loop.call_soon(log.append, "after")
        called("late")
        await asyncio.wait(tasks)
        return log
    assert len(same(scenario)) == 12


def test_a_replaced_call_soon_sees_every_step(kind):
    calls = []
    base = asyncio.SelectorEventLoop if kind == "stock" else gmploop.Loop

    class Loop(base):
        def call_soon(self, callback, *args, context=None):
            calls.append(callback)
            return super().call_soon(callback, *args, context=context)

    async def main():
        for _ in range(5):
            await asyncio.sleep(0)
    loop = Loop()
    if kind == "own":
        loop._use_own_tasks(True)
    loop.run_until_complete(main())
    loop.close()
    assert len(calls) == 7          # first step, 5 sleeps, the end


# -- errors and cancelling

@pytest.mark.parametrize("error", [SystemExit, KeyboardInterrupt])
def test_what_must_end_the_loop_does(loop, error, run):
    async def fails():
        await asyncio.sleep(0)
        raise error("now")
    task = loop.create_task(fails())
    with pytest.raises(error, match="now"):
        loop.run_forever()
    assert isinstance(task.exception(), error) and asyncio.current_task(loop) is None
    assert run(asyncio.sleep(0, "goes on")) == "goes on"


def test_cancelling(same):
    async def scenario(loop):
        log = []

        async def stubborn():
            for _ in range(2):
                try:
                    await asyncio.sleep(10)
                except asyncio.CancelledError as exc:
                    log.append((exc.args, asyncio.current_task().cancelling()))
            asyncio.current_task().uncancel()
            return "done"

        async def cancels_itself():
            asyncio.current_task().cancel("self")
            log.append(asyncio.current_task().cancelling())
            await asyncio.sleep(0)

        async def cancels_itself_and_ends():
            asyncio.current_task().cancel("end")

        async def never():
            log.append("never runs")
        first = loop.create_task(stubborn())
        for message in ("one", "two"):
            await asyncio.sleep(0)
            log.append(first.cancel(message))
        log.append((await first, first.cancel(), first.cancelling()))
        before = loop.create_task(never())
        before.cancel()
        for task in (loop.create_task(cancels_itself()), loop.create_task(cancels_itself_and_ends()), before):
            try:
                await task
            except asyncio.CancelledError as exc:
                log.append((exc.args, task.cancelled()))
        return log
    same(scenario)


def test_a_task_stepped_within_its_own_step(same):
    """By somebody who took the wake-up callback from the future."""
    async def scenario(loop):
        log, gate = [], loop.create_future()

        async def steps_itself():
            await gate
            try:
                wake(gate)
            except BaseException as exc:
                log.append(type(exc))
            await asyncio.sleep(0)
            log.append("went on")

        task = loop.create_task(steps_itself())
        await asyncio.sleep(0)
        wake = gate._callbacks[0][0]
        gate.set_result(None)
        for _ in range(4):
            await asyncio.sleep(0)
        return log, task.done(), repr(task.done() and not task.cancelled() and task.exception())
    same(scenario)


def test_awaiting_what_is_no_future(same):
    async def scenario(loop):
        class Like:
            _asyncio_future_blocking = None

            def __init__(self, loop):
                self._loop, self.callbacks = loop, []

            def add_done_callback(self, callback, *, context):
                self.callbacks.append((callback, context))
                loop.call_soon(callback, self, context=context)

            def result(self):
                raise LookupError("like")

            def __await__(self):
                self._asyncio_future_blocking = True
                yield self
                return self.result()

        class Yields:
            def __init__(self, what):
                self.what = what

            def __await__(self):
                yield self.what
        foreign = asyncio.SelectorEventLoop()
        log = []
        for what in (Like(loop), Yields(None), Yields(1), Yields(loop.create_future()), Yields(i for i in ()),
                     foreign.create_future(), Like(foreign), asyncio.Future()):
            async def body():
                await what
            if type(what) is asyncio.Future or isinstance(what, asyncio.Future) and what.get_loop() is loop:
                loop.call_soon(what.set_result, None)
            [outcome] = await asyncio.gather(loop.create_task(body()), return_exceptions=True)
            log.append((type(outcome), re.sub(r"0x\w+|Task-\d+|:\d+", "#", str(outcome))))
        foreign.close()
        return log
    assert [kind for kind, _ in same(scenario)][:4] == [LookupError, type(None), RuntimeError, RuntimeError]


# -- debug mode

def test_debug_mode_notes_where_they_were_made(loop, run):
    async def main():
        loop.set_debug(True)
        future, task = loop.create_future(), loop.create_task(asyncio.sleep(0))
        here = sys._getframe().f_code.co_name
        assert here in [frame.name for frame in future._source_traceback[-2:]]      # stock: create_future() is last
        assert task._source_traceback[-1].name == here and f"created at {__file__}:" in repr(task)
        await task
        loop.set_debug(False)
    run(main())
