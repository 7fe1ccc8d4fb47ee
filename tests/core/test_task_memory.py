"""Tasks and futures of gmploop's own: reports of what is lost, memory, wrong threads, the end. On stock's types too."""

import asyncio
import gc
import sys
import weakref

import pytest
import support

from .task_kinds import kind, loop, make_loop, reports, run  # noqa: F401 (fixtures)

pytestmark = pytest.mark.timeout(60)


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


def test_a_pending_task_that_is_freed_is_reported(loop, run, reports, kind):
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
    [report] = reports
    assert (report["message"], report["task"].get_name()) == ("Task was destroyed but it is pending!", "lost")
    if kind == "own" or sys.version_info < (3, 14):
        assert asyncio.all_tasks(loop) == set()     # though its report keeps it


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
@pytest.mark.filterwarnings("ignore:coroutine:RuntimeWarning")
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
        assert last - first < 400       # a block lost in each round would be 500
        count = sys.getrefcount(None)
        await rounds(500)
        assert sys.getrefcount(None) - count < 400      # immortal from 3.12 on
    run(main())


# -- from the wrong thread

@pytest.mark.gmploop_only
def test_wrong_threads_do_no_harm(loop, run, in_thread):
    """Nothing is promised but that the interpreter goes on and this loop's own tasks end well."""
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


# -- the end

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
