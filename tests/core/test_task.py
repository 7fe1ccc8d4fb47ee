"""Tasks and futures of gmploop's own: what a user sees is what asyncio's show. Each test runs on stock's too."""

import asyncio
import contextvars
import gc
import io
import re
import sys
import weakref

import gmploop
import pytest
import support

pytestmark = pytest.mark.timeout(60)


def make_loop(kind):
    if kind == "stock":
        return asyncio.SelectorEventLoop()
    loop = gmploop.new_event_loop()
    loop._use_own_tasks(True)
    return loop


@pytest.fixture(params=["stock", "own"])
def kind(request):
    return request.param


@pytest.fixture
def reports():
    return []


@pytest.fixture
def loop(kind, reports):
    loop = make_loop(kind)
    loop.set_exception_handler(lambda _, context: reports.append(context))
    yield loop
    support.finish(loop)


@pytest.fixture
def run(loop):
    return lambda coro: loop.run_until_complete(support.bounded(coro, 20))


@pytest.fixture
def same(reports):
    """Runs scenario(loop) on both kinds; the results must be equal."""
    def compare(scenario):
        results = []
        for kind in ("stock", "own"):
            loop = make_loop(kind)
            loop.set_exception_handler(lambda _, context: reports.append(context))
            results.append(loop.run_until_complete(support.bounded(scenario(loop), 20)))
            support.finish(loop)
        assert results[1] == results[0]
        return results[0]
    return compare


def test_kinds_differ(loop, kind, run):
    """Or else nothing is tested here."""
    async def main():
        return type(asyncio.current_task()), type(loop.create_future())
    made = run(main())
    assert (made == (gmploop.tasks.Task, gmploop.tasks.Future)) == (kind == "own")


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


@pytest.mark.skipif(not getattr(sys, "_is_gil_enabled", lambda: True)(), reason="needs the loop's thread to stand still")
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
def test_eager_start(loop, run):
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
        assert done.done() and done.result() == 1 and done.get_coro() is None
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
            log.append((type(outcome), re.sub(r"0x\w+|Task-\d+|:\d+|[\w.]*EventLoop.*?>|[\w.]*\.Loop .*?>", "#", str(outcome))))
        foreign.close()
        return log
    assert [kind for kind, _ in same(scenario)][:4] == [LookupError, type(None), RuntimeError, RuntimeError]


# -- nobody looks

def test_an_exception_that_nobody_took_is_reported(loop, run, reports):
    async def fails():
        raise ValueError("lost")

    async def main():
        loop.create_task(fails())
        loop.create_future().set_exception(ValueError("lost too"))
        taken = loop.create_future()
        taken.set_exception(ValueError)
        taken.exception()
        await asyncio.sleep(0)
    run(main())
    gc.collect()
    assert [(r["message"], str(r["exception"])) for r in reports] == [
        ("Future exception was never retrieved", "lost too"), ("Task exception was never retrieved", "lost")]


def test_a_pending_task_that_is_freed_is_reported(loop, run, reports):
    async def main():
        async def waits():
            await loop.create_future()
        loop.create_task(waits(), name="lost")
        quiet = loop.create_task(waits())
        quiet._log_destroy_pending = False
        del quiet
        await asyncio.sleep(0)
        gc.collect()
    run(main())
    assert [(r["message"], r["task"].get_name()) for r in reports] == [("Task was destroyed but it is pending!", "lost")]
    assert asyncio.all_tasks(loop) == set()         # though its report keeps it


# -- memory

def test_nothing_is_left_of_a_finished_task(loop, run):
    """By counting references alone."""
    class Thing:
        pass

    async def child(thing):
        await asyncio.sleep(0)
        return thing

    async def fails(thing):
        raise ValueError(thing)

    async def waits(thing):
        await thing.future

    async def main():
        things = [Thing() for _ in range(3)]
        things[2].future = loop.create_future()
        tasks = [loop.create_task(body(thing)) for body, thing in zip((child, fails, waits), things)]
        refs = [weakref.ref(x) for x in (*things, *tasks)]
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        things[2].future.set_result(None)
        await asyncio.gather(*tasks, return_exceptions=True)
        tasks[1].exception().__traceback__ = None
        del things, tasks
        await asyncio.sleep(0)
        return [ref() for ref in refs]
    gc.disable()
    try:
        assert run(main()) == [None] * 6
    finally:
        gc.enable()


@pytest.mark.parametrize("state", ["to be started", "to be woken", "waiting"])
@support.left_open
def test_a_loop_and_its_tasks_that_nobody_has_are_collected(kind, state):
    class Thing:
        pass

    def build():
        loop, thing = make_loop(kind), Thing()
        loop.set_exception_handler(lambda *_: None)
        thing.loop = loop

        async def body(thing):
            await thing.future
        thing.future = loop.create_future()
        thing.task = loop.create_task(body(thing))
        if state != "to be started":
            loop.run_until_complete(asyncio.sleep(0))
        if state == "to be woken":
            loop.call_soon(thing.future.set_result, None)
            loop.call_soon(loop.stop)
            loop.run_forever()          # the wake-up comes in the next turn
        return weakref.ref(thing)
    ref = build()
    gc.collect()
    gc.collect()
    assert ref() is None


def test_the_collector_in_the_middle_of_a_step(loop, run):
    async def child(depth):
        gc.collect()
        if depth:
            await loop.create_task(child(depth - 1))
        fut = loop.create_future()
        loop.call_soon(fut.set_result, depth)
        gc.collect()
        return await fut
    assert run(child(5)) == 5


def test_memory_stays_flat(loop, run):
    """The net count of blocks and objects over many rounds of everything."""
    async def fails():
        raise ValueError

    async def waits(future):
        await future

    async def main():
        async def rounds(n):
            for _ in range(n):
                future = loop.create_future()
                lost = loop.create_future()
                tasks = [loop.create_task(waits(f)) for f in (lost, future, future)] + [loop.create_task(fails())]
                await asyncio.sleep(0)
                tasks[0].cancel("why")
                future.add_done_callback(id)
                future.remove_done_callback(id)
                asyncio.all_tasks()
                future.set_result(None)
                await asyncio.gather(*tasks, return_exceptions=True)
                iter(future).close()
                [t.get_name() for t in tasks]
                async with asyncio.timeout(1):
                    pass
            tasks = future = lost = None
            gc.collect()
            return sys.getallocatedblocks()
        await rounds(50)
        first, last = await rounds(50), await rounds(500)
        assert last - first < 200
        count = sys.getrefcount(None)
        await rounds(500)
        assert sys.getrefcount(None) - count < 400      # immortal from 3.12 on
    run(main())


# -- from the wrong thread

def test_wrong_threads_do_no_harm(loop, run, in_thread):
    """Nothing is promised but that the interpreter goes on and this loop's own tasks end well."""
    if type(loop).__name__ != "Loop":
        pytest.skip("stock on free-threaded builds is not under test")

    async def waits(future):
        try:
            await future
        except asyncio.CancelledError:
            pass

    async def main():
        shared, stop = [], []

        def hammer():
            while not stop:
                for thing in shared[-8:]:
                    try:
                        thing.cancel("no")
                        thing.add_done_callback(id)
                        thing.remove_done_callback(id)
                        repr(thing), thing._callbacks, thing.done(), hash(loop), asyncio.all_tasks(loop)
                        thing.set_result(1)
                    except (RuntimeError, asyncio.InvalidStateError):
                        pass
        threads = [in_thread(hammer) for _ in range(2)]
        for _ in range(1500):
            future = loop.create_future()
            task = loop.create_task(waits(future))
            shared += future, task
            await asyncio.sleep(0)
            if not future.done():
                try:
                    future.set_result(None)
                except asyncio.InvalidStateError:
                    pass
            await asyncio.sleep(0)
            del shared[:-8]
        stop.append(1)
        for thread in threads:
            while thread.is_alive():
                await asyncio.sleep(0.001)
    run(main())


# -- debug mode, the end

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


def test_the_interpreter_ends_with_tasks_alive(kind):
    """Running, waiting, never started, and one that an atexit handler looks at."""
    ended = support.child("gmploop", """
        class Late:                 # freed after the modules
            pass
        loop = asyncio.SelectorEventLoop()
        if sys.argv[1] == "own":
            loop = new_loop()
            loop._use_own_tasks(True)
        async def waits():
            await future
        async def main():
            global task, future, held
            future = loop.create_future()
            task = loop.create_task(waits())
            held = [loop.create_task(waits()) for _ in range(5)]
            await asyncio.sleep(0)
            held.append(loop.create_task(waits()))
            sys.late = Late()
            sys.late.task = loop.create_task(waits())
            await asyncio.sleep(0)
            raise SystemExit(3)
        import atexit
        atexit.register(lambda: print(len(asyncio.all_tasks(loop)), task.done()))
        loop.run_until_complete(main())
        """, kind)
    assert ended.returncode == 3, ended.stderr
    assert ended.stdout.split() == ["8", "False"]
    assert "Fatal" not in ended.stderr and "excepthook" not in ended.stderr
