"""Loops that are goroutines' worlds, and can be driven from outside as the loops of CPython's tests are.

A loop named "gmploop:movable" stands for that. Such a loop is a world as go() makes it: whichever thread of the runtime
takes it runs its turns. run_forever() in the test's thread lets it go and waits until it stops. In between it is held:
one of its callbacks keeps it, having given its P away, and carries out what the test's thread asks of the loop, since
only who runs a world may set timers in it and the like.
"""
import asyncio
import concurrent.futures
import contextvars
import os
import queue
import threading

import gmploop
from gmploop import world
from gmploop.core import moving, spawn

PROCS = 2
LOOK_UP_S = 0.01        # only the main thread runs signal handlers, and SIGCHLD wakes the thread that forked


class Held:
    """A method that is carried out where the world is held, if the caller is somewhere else."""

    def __set_name__(self, owner, name):
        self.name = name

    def __get__(self, loop, owner=None):
        if loop is None:
            return self
        method = getattr(super(MovableLoop, loop), self.name)
        return method if loop.lives_here() else lambda *args, **options: loop.ask(method, args, options)


class MovableLoop(world.World):
    let_go = True               # it runs; else it is held
    _default_executor = property(lambda self: self._own_executor, lambda self, one: setattr(self, "_own_executor", one))
    _own_executor = None        # not that of all worlds: the tests shut down the one of their loop

    def lives_here(self):
        return self.let_go or asyncio._get_running_loop() is self

    # -- in the world

    def hold(self):
        self.let_go = False
        self.held.set()
        gmploop.blocking(self.obey)

    def obey(self):
        while (order := self.orders.get()) is not None:
            method, args, options, answer = order
            try:
                answer.set_result(method(*args, **options))
            except BaseException as exc:
                answer.set_exception(exc)
            del order, method, args, options, answer

    async def _wind_up(self, root):
        """Unlike asyncio.run(), close() leaves tasks as they are."""

    # -- in the test's thread

    def ask(self, method, args, options):
        if method.__name__.startswith("call_"):
            options.setdefault("context", contextvars.copy_context())
        answer = concurrent.futures.Future()
        self.orders.put((method, args, options, answer))
        return answer.result()

    def release(self):
        self.fatal = None
        self.held.clear()
        self.let_go = True
        self.orders.put(None)

    def run_forever(self):
        self._check_closed()
        self._check_running()
        self.release()
        while not self.held.wait(LOOK_UP_S):
            pass
        if self.fatal is not None:
            raise self.fatal

    def stop(self):
        """The callbacks that are ready now still run."""
        if not self.stopping:
            self.stopping = True
            self.call_soon(self.stop_now)

    def stop_now(self):
        self.stopping = False
        self.hold()

    def is_running(self):
        return self.let_go and not self.is_closed()

    def close(self):
        if self.is_running():
            raise RuntimeError("Cannot close a running event loop")
        if not self.is_closed():
            super().call_soon_threadsafe(self.ended.set_result, None)
            self.release()
            self.handle.result()
            while not self.is_closed():
                os.sched_yield()

    run_until_complete = asyncio.BaseEventLoop.run_until_complete
    call_soon, call_later, call_at = Held(), Held(), Held()
    add_reader, remove_reader, add_writer, remove_writer = Held(), Held(), Held(), Held()
    _add_reader, _remove_reader, _add_writer, _remove_writer = Held(), Held(), Held(), Held()


def report_fatal(_, exc):
    """SystemExit and KeyboardInterrupt in a callback come out of run_forever()."""
    loop = asyncio._get_running_loop()
    loop.fatal = exc
    loop.hold()


def new_event_loop():
    ready = threading.Event()

    async def root_of_a_movable_loop():
        loop = asyncio.get_running_loop()
        loop.orders, loop.held = queue.SimpleQueue(), ready
        loop.stopping, loop.fatal, loop.ended = False, None, loop.create_future()
        loop.hold()
        await loop.ended
    handle = gmploop.go(root_of_a_movable_loop)
    ready.wait()
    loop = handle.get_loop()
    loop.handle = handle
    return loop


def put_in_place():
    """In this process, from now on."""
    gmploop.set_procs(PROCS)
    spawn.configure(MovableLoop)
    moving.configure(report_fatal)
    gmploop.new_event_loop = new_event_loop
    real = asyncio.all_tasks

    def all_tasks(loop=None):
        """Without the root tasks, which are none of the test's: worlds live by them."""
        return {task for task in real(loop)
                if getattr(getattr(task, "get_coro", int)(), "__name__", "") != "root_of_a_movable_loop"}
    asyncio.all_tasks = asyncio.tasks.all_tasks = all_tasks
