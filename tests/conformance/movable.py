"""Loops that are goroutines' worlds, and can be driven from outside as the loops of CPython's tests are.

A loop named "gmploop:movable" stands for that. Such a loop is a world as go() makes it: whichever thread of the runtime
takes it runs its turns. run_forever() in the test's thread lets it go and waits until it stops. In between one of its
callbacks waits, having given its P away, and lends the world to the test's thread, which may use it so as one may use a
loop that does not run: make tasks, set timers, write to its transports.
"""
import asyncio
import os
import queue
import threading

import gmploop
from gmploop import world
from gmploop.core import moving, spawn

PROCS = 2
LOOK_UP_S = 0.01        # only the main thread runs signal handlers, and SIGCHLD wakes the thread that forked


class MovableLoop(world.World):
    let_go = True               # it runs; else a callback of it waits
    _default_executor = property(lambda self: self._own_executor, lambda self, one: setattr(self, "_own_executor", one))
    _own_executor = None        # not that of all worlds: the tests shut down the one of their loop

    # -- in the world

    def hold(self):
        gmploop.blocking(self.wait)

    def wait(self):
        self._lend(self.driver)
        self.let_go = False
        self.held.set()
        self.go_on.get()
        self._lend(threading.get_ident())

    async def _wind_up(self, root):
        """Unlike asyncio.run(), close() leaves tasks as they are."""

    # -- in the test's thread

    def drive(self):
        """The calling thread is the one that does, from now on."""
        self._check_closed()
        self._check_running()
        self.driver = threading.get_ident()
        self._lend(self.driver)

    def release(self):
        self.fatal = None
        self.held.clear()
        self.let_go = True
        self.go_on.put(None)

    def run_forever(self):
        self.drive()
        self.release()
        while not self.held.wait(LOOK_UP_S):
            pass
        if self.fatal is not None:
            raise self.fatal

    def run_until_complete(self, future):
        self.drive()
        return asyncio.BaseEventLoop.run_until_complete(self, future)

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
            if self._own_executor is not None:
                self._own_executor.shutdown(wait=False)


def report_fatal(_, exc):
    """SystemExit and KeyboardInterrupt in a callback come out of run_forever()."""
    loop = asyncio._get_running_loop()
    loop.fatal = exc
    loop.hold()


def new_event_loop():
    held, driver = threading.Event(), threading.get_ident()

    async def root_of_a_movable_loop():
        loop = asyncio.get_running_loop()
        loop.go_on, loop.held, loop.driver = queue.SimpleQueue(), held, driver
        loop.stopping, loop.fatal, loop.ended = False, None, loop.create_future()
        loop.call_soon(loop.hold)
        await loop.ended
    handle = gmploop.go(root_of_a_movable_loop)
    held.wait()
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
