"""What is logged of a callback that goes on for long: by sysmon's wish, by a thread of its own, while it goes on."""

import asyncio
import functools
import os
import threading
import traceback
import types
from asyncio import base_events, coroutines
from asyncio.log import logger

from gmploop import config
from gmploop.core import all_tasks

_RUN = base_events.BaseEventLoop.run_forever.__code__


def stall_given():
    """Whether the environment says from when on stalls are told."""
    return "stall_ms" in config.parse_debug(os.environ.get("GMPLOOP_DEBUG", ""))


def debug_from_outside():
    """Whether the environment asks for debug mode."""
    return coroutines._is_debug_mode() or bool(config.resolve_debug())


def report(loop, frame, seconds):
    """What logs what a callback does that has run so long, if its loop or the one that its goroutine came from is in debug
    mode, else None; or, if it is too early, when to ask again, in seconds.

    Of a loop with a thread of its own asyncio says at the callback's end that it was slow: programs count those lines. So
    it is told of here only when it goes on for config.TOLD_S."""
    home = getattr(loop, "home", None)
    asks = loop if loop.get_debug() else home if home is not None and home.get_debug() else None
    if asks is None and not debug_from_outside():
        return None
    slow = (asks or loop).slow_callback_duration
    if not hasattr(loop, "goroutine"):
        slow = max(slow, config.TOLD_S)
    if seconds < slow and not stall_given():
        return float(slow)
    stack = "".join(traceback.format_stack(frame))
    return functools.partial(logger.warning, "A callback has run for %.3f seconds and goes on, in %s:\n%s", seconds,
                             _who_runs(loop, frame), stack)


def _who_runs(loop, frame):
    """Names of the goroutine, or of the thread whose loop it is, of the task and of its coroutine, or of the function that
    is the callback."""
    while frame.f_back is not None and frame.f_back.f_code is not _RUN:
        frame = frame.f_back
    task = all_tasks.running_of(loop)
    if task is None:
        task = asyncio.current_task(loop)       # of another make, and from Python 3.14 on
    text = _name(loop)
    if task is None or task is loop:
        return f"{text}, {frame.f_code.co_qualname}"
    coro = task.get_coro()                      # of a plain function's goroutine: none of Python's
    name = coro.__qualname__ if isinstance(coro, types.CoroutineType) else frame.f_code.co_qualname
    return f"{text}, task {task.get_name()!r}, {name}"


def _name(loop):
    if hasattr(loop, "goroutine"):
        goroutine = loop.goroutine
        return f"goroutine {goroutine and goroutine.get_name()!r}"
    thread = next((thread for thread in threading.enumerate() if thread.ident == loop._thread_id), None)
    return f"the loop of thread {thread and thread.name!r}"
