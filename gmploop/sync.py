"""Objects by which event loops that run on different threads, and plain threads, talk: channels, select, locks.

All of them work in tasks of any asyncio loop, and in threads by their *_blocking methods. They serve in the order of the
calls and hand over directly: what is released goes to the first who waits, nobody can snatch it.
"""

import asyncio
import inspect
import os
import threading
from asyncio import events
from typing import NamedTuple

from gmploop.core import wait as _wait, waiter as _waiter, waits as _waits
from gmploop.core.locks import Event, Mutex, RWMutex, Semaphore, WaitGroup
from gmploop.core.shared import ChannelClosed
from gmploop.core.sync import Channel, WouldBlock, select, select_blocking

__all__ = ["Channel", "ChannelClosed", "Event", "Mutex", "Once", "RWMutex", "Semaphore", "WaitGroup", "Waiting",
           "WouldBlock", "select", "select_blocking", "waiting"]

_wait.configure(events._get_running_loop, asyncio.CancelledError)
_waiter.configure(asyncio.InvalidStateError)
os.register_at_fork(after_in_child=_waits.forget_lost)


class Once:
    """Does something once. Others who ask meanwhile wait until it is done.

    A call that raises or is cancelled has not been done: the next in line does it. From any thread: do() in tasks of any
    loop, do_blocking() in plain threads. What is done must not ask the same Once: it would wait for itself.
    """

    def __init__(self, *, name=None):
        self._mutex = Mutex(name=name)
        self._done = False
        self._result = None

    async def do(self, fn, *args):
        """Call fn(*args), and await what it returns if that is awaitable, unless something was done before.

        Returns what the first one gave; raises what fn raises, to the caller that ran it only.
        """
        if not self._done:
            async with self._mutex:
                if not self._done:
                    result = fn(*args)
                    self._finish(await result if inspect.isawaitable(result) else result)
        return self._result

    def do_blocking(self, fn, *args):
        """As do(), with a plain function, in a thread that runs no event loop (else RuntimeError)."""
        if not self._done:
            with self._mutex:
                if not self._done:
                    self._finish(fn(*args))
        return self._result

    def _finish(self, result):
        self._result = result
        self._done = True

    def done(self):
        """Whether it was done, at this moment. From any thread."""
        return self._done

    def __repr__(self):
        return f"<Once {'done' if self._done else 'not done'}, {self._mutex!r}>"


class Waiting(NamedTuple):
    """One who waits, as of waiting()."""

    object: object
    operation: str
    loop: asyncio.AbstractEventLoop | None
    who: object


def waiting():
    """Who waits at channels, locks and the like: a list of (object, operation, loop, task), and of (object, operation,
    None, thread) for plain threads; a select is there once for each of its cases. From any thread, at any time."""
    threads = {thread.ident: thread for thread in threading.enumerate()}
    return [Waiting(what, operation, loop, threads.get(who, who) if loop is None else getattr(who, "__self__", who))
            for _, what, operation, loop, who in _waits.waiting()]
