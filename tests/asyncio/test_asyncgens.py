"""Asynchronous generators and tasks that are dropped half-way."""

import asyncio
import gc
import sys

import pytest

from support import child, turns

pytestmark = pytest.mark.timeout(30)

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
