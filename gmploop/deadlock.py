"""A run that can never go on: who waits for what, and whether that is certain.

It is certain when every task of every world waits for a channel, a lock or a goroutine, and nothing from outside could
end one of these waits: no timer, no descriptor that is watched, no signal handler, no thread but the runtime's own and
executors' idle ones. A task that waits for anything else (an asyncio.Event, a future: who knows who has it) makes it
uncertain, and so does all that cannot be found out here (a goroutine that has used a ring for files watches that until
it ends): then nothing is raised, and dump() shows who waits.

When it is looked for: core/runtime.pyx (RestWatch), core/rest.pyx. `main`'s loop must be run by the main thread.
"""

import asyncio
import os
import sys
import threading

from gmploop import config, signals
from gmploop.core import rest, sched, sysmon, waiter
from gmploop.core.goroutine import Goroutine, Join, RootJoin

__all__ = ["DeadlockError"]

_LISTED = 100           # who waits, in the text of the error; guessed
# They are no M's, and wake nobody. The kernel's do what was asked of an io_uring: who waits for that waits for something else.
_OUR_THREADS = "gmploop-sysmon\n", "gmploop-flush\n", "iou-wrk-"
_Gathering = getattr(asyncio.tasks, "_GatheringFuture", ())


class DeadlockError(RuntimeError):
    """gmploop.run(): every goroutine and main() wait for each other, and nothing can wake them. Says who waits for what."""

    __module__ = "gmploop"


# -- who waits for what

def frames(task):
    """The frames of the coroutines by which a task waits, innermost last."""
    coro, found = task.get_coro(), []
    while coro is not None:
        frame = next((f for name in ("cr_frame", "gi_frame", "ag_frame") if (f := getattr(coro, name, None))), None)
        if frame is not None:
            found.append(frame)
        coro = next((c for name in ("cr_await", "gi_yieldfrom", "ag_await") if (c := getattr(coro, name, None))), None)
    return found


def describe(task):
    """What the task waits for, and where, as text of several lines."""
    on = getattr(task, "_fut_waiter", None)
    if task.done():
        text = "is done"
    elif on is None:
        text = "runs, or is about to"
    elif isinstance(on, waiter.Waiter) and not isinstance(on, Join):
        text = f"waits in {on.__qualname__} for {' or '.join(map(repr, on.waits_at))}"
    else:
        text = f"waits for {getattr(on, 'goroutine', on)!r}"
    lines = [f'  File "{frame.f_code.co_filename}", line {frame.f_lineno}, in {frame.f_code.co_name}'
             for frame in frames(task) if frame.f_lineno]       # compiled ones have none
    return "\n".join([text, *lines])


def _for_ours(on, within, depth=0):
    """Whether a task that awaits `on`, `within` the frame, waits for channels, locks and goroutines, or for tasks of its
    own world, which are looked at themselves."""
    if isinstance(on, asyncio.Task):
        return True
    if isinstance(on, (waiter.Waiter, Goroutine, RootJoin)):
        return not on.done()
    if depth < 10 and isinstance(on, _Gathering):
        return all(child.done() or _for_ours(child, None, depth + 1) for child in on._children)
    if within is None:
        return False
    if within.f_code.co_filename == asyncio.taskgroups.__file__:
        return True
    if within.f_code.co_filename == asyncio.tasks.__file__ and within.f_code.co_name == "_wait":
        return all(child.done() or _for_ours(child, None, depth + 1) for child in within.f_locals["fs"])
    return False


def _stuck(loop):
    """The tasks of a loop, if each of them waits for something of ours; else None."""
    tasks = [task for task in asyncio.all_tasks(loop) if not task.done()]
    for task in tasks:
        on, inner = getattr(task, "_fut_waiter", None), frames(task)
        if on is None or not _for_ours(on, inner[-1] if inner else None):
            return None
    return tasks or None


# -- what could wake one

def _idle_threads(executor):
    """The kernel's numbers of an executor's threads, if all of them wait for work."""
    count, queue = getattr(executor, "_idle_semaphore", None), getattr(executor, "_work_queue", None)
    threads = list(getattr(executor, "_threads", ()))
    if count is None or queue is None or not queue.empty() or getattr(count, "_value", -1) != len(threads):
        return set()
    return {thread.native_id for thread in threads}


def _threads_are_ours(executors):
    """Whether each thread of the process is the main one, one of the runtime's, or an executor's that waits for work."""
    known = {threading.main_thread().native_id} | rest.threads()
    for executor in executors:
        known |= _idle_threads(executor)
    try:
        for tid in os.listdir("/proc/self/task"):
            if int(tid) not in known:
                with open(f"/proc/self/task/{tid}/comm") as comm:
                    if not comm.read().startswith(_OUR_THREADS):
                        return False
    except (OSError, ValueError):           # no such file system; or a thread that has just ended
        return False
    return True


def _show_roots():
    """Make tasks of what goroutines wait by without one."""
    if sched.procs():
        from gmploop.core import spawn

        spawn.show_roots()


def _worlds():
    """The worlds of all goroutines; None if some come or go at this moment."""
    if not sched.procs():
        return []
    from gmploop.core import spawn

    worlds = [handle.get_loop() for handle in spawn.all_goroutines()]
    return worlds if None not in worlds and len(worlds) == spawn.count() else None


def find(main_loop):
    """The text of the error if the run can never go on; else None, or True if that may change without its doing: a thread
    may end.

    main_loop: the loop that this thread, the main one, runs and is about to sleep in; None if main() is a goroutine.
    """
    before = rest.progress()
    if before < 0 or signals.handled():
        return before == -2 or None
    if main_loop is not None and _stuck(main_loop) is None:
        return None
    worlds = _worlds()
    if worlds is None or not all(map(rest.sleeps, worlds)):
        return None
    executors = [world.__dict__.get("_own_executor") for world in worlds]
    if main_loop is not None:
        executors.append(main_loop._default_executor)
    if "gmploop.world" in sys.modules:
        executors.append(sys.modules["gmploop.world"]._executor)
    if not _threads_are_ours(filter(None, executors)) or sysmon.telling():
        return True                         # a stall is told: by a thread that may have had sysmon's name until now
    _show_roots()
    stuck = []
    for loop in [main_loop, *worlds] if main_loop is not None else worlds:
        tasks = _stuck(loop)
        if tasks is None:
            return None
        stuck += [(loop, task) for task in tasks]
    if not stuck or rest.progress() != before or main_loop is not None and rest.posted(main_loop):
        return True
    return _text(stuck, main_loop)


def _text(stuck, main_loop):
    lines = ["all goroutines are asleep - deadlock!"]
    for loop, task in stuck[:_LISTED]:
        goroutine = getattr(loop, "goroutine", None)
        who = "main" if loop is main_loop else f"goroutine {goroutine.get_name()!r}" if goroutine is not None else "?"
        lines.append(f"\n{who}, task {task.get_name()!r}, {describe(task)}")
    if len(stuck) > _LISTED:
        lines.append(f"\n... and {len(stuck) - _LISTED} more")
    return "\n".join(lines)


# -- whoever waits for the run

class Run:
    """One run of a coroutine `main`. When it can never go on, `main` is cancelled, and `error` says so."""

    error = None

    def __init__(self, main):
        self._main = main

    def at_rest(self, loop):
        """For LoopCore._watch_rest(), when `main` runs on `loop`, by the main thread."""
        watch = rest.watched(loop, -1 if loop._ssock is None else loop._ssock.fileno())
        if watch is not None:
            return None if watch is True else watch     # the end of what is under way wakes the loop, which looks again
        rest.want(loop._write_to_self)
        text = find(loop)
        if isinstance(text, str):
            self._end(text, next((task for task in asyncio.all_tasks(loop) if task.get_coro() is self._main), None))
        return text is True

    def _end(self, text, root):
        before, self.error = self.error, DeadlockError(text)
        if root is None or before is not None:          # it was told, and waits again
            raise self.error
        root.cancel()

    def wait_for(self, goroutine):
        """goroutine.result(), for the main thread when `main` is a goroutine."""
        woken = threading.Event()
        goroutine.add_done_callback(lambda _: woken.set())
        try:
            while not goroutine.done():
                rest.want(woken.set)
                for times in 1, 10, 100:
                    text = None if woken.wait(times * config.REST_MS / 1000) else find(None)
                    if isinstance(text, str):
                        self._end(text, goroutine)
                    if text is not True:
                        break
                woken.wait()
                woken.clear()
        finally:
            rest.want(None)
        return goroutine.result()
