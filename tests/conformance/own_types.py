"""gmploop's own Task and Future in the places of asyncio's C types, for CPython's tests of tasks and futures.

A loop named "gmploop:own" stands for that: every loop makes own tasks, and CPython's TestLoop, which has a clock of its
own, is made of a gmploop loop, so that the ready ring is what is tested. "gmploop:own-foreign" leaves TestLoop as it
is, a loop of somebody else, and lets the debug mode on that asyncio.Runner is asked for.
"""
import asyncio
import os
from asyncio import futures, tasks

MODULES = """test_tasks test_futures test_futures2 test_taskgroups test_timeouts test_eager_task_factory test_waitfor
    test_locks test_queues test_graph""".split()
MODES = ("own", "own-foreign")


def put_in_place(mode):
    """In this process, from now on."""
    import _asyncio

    import gmploop
    from gmploop import tasks as own
    os.environ["GMPLOOP_TASKS"] = "own"
    for module in (asyncio, tasks, _asyncio):
        module.Task = own.Task
    for module in (asyncio, futures, _asyncio):
        module.Future = own.Future
    tasks._CTask, futures._CFuture = own.Task, own.Future
    for name in ("future_add_to_awaited_by", "future_discard_from_awaited_by"):
        if hasattr(futures, name):
            setattr(futures, "_c_" + name, getattr(futures, name))
    if hasattr(tasks, "create_eager_task_factory"):
        asyncio.eager_task_factory = tasks.eager_task_factory = tasks.create_eager_task_factory(own.Task)
    own.configure()
    if mode == "own":
        replace_test_loop(gmploop.Loop)
        without_debug_mode()


def without_debug_mode():
    """Debug mode goes by call_soon() for every step."""
    class Runner(asyncio.Runner):
        def __init__(self, *, debug=None, **options):
            super().__init__(debug=False, **options)

    asyncio.Runner = Runner


def adapt(module):
    """What a loaded test module reads of stock's loop from inside."""
    if hasattr(module, "GatherTestsBase"):      # it runs the loop until `_ready` is empty
        module.GatherTestsBase._run_loop = lambda self, loop: [module.test_utils.run_briefly(loop) for _ in range(9)]


def replace_test_loop(base):
    from test.test_asyncio import utils
    stock = utils.TestLoop

    class TestLoop(base):
        """One turn at a time, without waiting; the test's generator says how far the clock goes after each."""

        def __init__(self, gen=None):
            self._time = 0
            self._stop_wanted = False
            super().__init__()
            self._check_on_close, self._timers = gen is not None, []
            self._gen = gen() if gen is not None else iter([None])
            next(self._gen)

        def close(self):
            was_open = not self.is_closed()
            super().close()
            if self._check_on_close and was_open:
                try:
                    self._gen.send(0)
                except StopIteration:
                    return
                raise AssertionError("Time generator is not finished")

        def stop(self):
            self._stop_wanted = True

        def run_forever(self):
            self._stop_wanted = self._stopping or self._stop_wanted
            try:
                super().run_forever()
            finally:
                self._stop_wanted = False

        def _run_once(self):
            self._stopping = True               # one turn
            super()._run_once()
            self._stopping = self._stop_wanted
            timers, self._timers = self._timers, []
            for when in timers:
                self.advance_time(self._gen.send(when))

        def call_at(self, when, callback, *args, context=None):
            self._timers.append(when)
            return super().call_at(when, callback, *args, context=context)

        time, advance_time = stock.time, stock.advance_time

    utils.TestLoop = TestLoop


