"""Goroutines: go(), Group, and what a callback may ask of the thread that runs it.

A goroutine is a coroutine in an asyncio world of its own, which moves between threads. Whatever works in one asyncio
program works in one goroutine; objects of asyncio (tasks, futures, locks, queues) belong to the world that made them.
"""

import asyncio
import contextlib
import logging
import sys
import threading
import time
import traceback
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from gmploop import config, deadlock, sync, world  # noqa: F401: world tells the core what it needs
from gmploop.core import m, sched, spawn
from gmploop.core.goroutine import Goroutine
from gmploop.core.spawn import go

__all__ = ["Goroutine", "Group", "blocking", "dump", "events", "go", "lock_os_thread", "procs", "record_events",
           "set_procs", "stats", "syscall", "unlock_os_thread", "yield_now"]

_T = TypeVar("_T")


async def _over(goroutine):
    return await goroutine


class Group:
    """Goroutines that end together: asyncio.TaskGroup over goroutines, with its rules.

    async with Group() as group: group.go(fn, *args). Leaving waits for all; the first that fails cancels the others and
    the body; what failed is raised as an ExceptionGroup. To be entered once, in a task (else RuntimeError), and used in
    that task's world only, as a TaskGroup is in one loop; the goroutines run in worlds of their own.
    """

    def __init__(self) -> None:
        self._tasks = asyncio.TaskGroup()
        self._entered = self._over = False

    async def __aenter__(self) -> "Group":
        if self._entered:
            raise RuntimeError("a Group is entered once: make another")
        await self._tasks.__aenter__()
        self._entered = True
        return self

    async def __aexit__(self, *error: Any) -> None:
        try:
            await self._tasks.__aexit__(*error)
        finally:
            self._over = True

    def go(self, fn_or_coro: Any, *args: Any, name: str | None = None) -> Goroutine:
        """As gmploop.go(), in this group. RuntimeError if the group is not entered, or is ending."""
        if not self._entered or self._over:
            raise RuntimeError(f"the Group is {'over' if self._over else 'not entered: async with Group() as group'}")
        waiter = _over(goroutine := go(fn_or_coro, *args, name=name))
        try:
            self._tasks.create_task(waiter)
        except BaseException:
            waiter.close()
            goroutine.cancel()
            raise
        return goroutine


def blocking(fn: Callable[..., _T], *args: Any) -> _T:
    """Call fn(*args), which may block, and return its result: other goroutines go on meanwhile, without delay.

    Without it they wait until sysmon has seen that the callback blocks (10 ms). The goroutine that calls it waits, with
    all of its tasks. Raises what fn raises. From any thread; outside of goroutines it is a plain call, which holds up the
    thread's loop if it runs one.
    """
    inside = m.enter_blocking()
    try:
        return fn(*args)
    finally:
        if inside:
            m.leave_blocking()


class syscall:
    """with syscall(): the same as blocking(), for a block of statements without await. Raises nothing of its own.

    From any thread; such blocks may be nested.
    """

    _inside = False

    def __enter__(self) -> None:
        self._inside = m.enter_blocking()

    def __exit__(self, *error: Any) -> None:
        if self._inside:
            m.leave_blocking()


def yield_now() -> Awaitable[None]:
    """await yield_now(): let other tasks of this world, and other goroutines, go first; gives None.

    It is asyncio.sleep(0): for tasks of any loop, and cancelled as any await is.
    """
    return asyncio.sleep(0)


def lock_os_thread() -> None:
    """Tie the running goroutine to the thread it runs on: it runs there only, and nothing else does.

    Calls add up; unlock_os_thread() takes one back, and the goroutine's end all. In the loop of a plain thread, which is
    tied to its thread anyway, it does nothing.
    """
    m.lock_thread(1)


def unlock_os_thread() -> None:
    """Undo one lock_os_thread(). RuntimeError if there was none."""
    m.lock_thread(-1)


def procs() -> int:
    """How many goroutines may run at the same time; before the first one, how many it would then be.

    Before the first one it raises ValueError for a bad GMPLOOP_PROCS. From any thread.
    """
    return sched.procs() or config.resolve_procs()


def set_procs(n: int | None) -> None:
    """Let up to n goroutines run at the same time, from now on; callbacks that run go on. From any thread.

    None: as many as at the start, by GMPLOOP_PROCS as it is now, else by CPUs and GIL. Starts the scheduler, if no
    goroutine has. Raises TypeError for what is no int, ValueError for one that is not from 1 to 256 (config.MAX_PROCS) and
    for a bad GMPLOOP_PROCS, RuntimeError or OSError where it cannot be started: no thread, no poller.
    """
    m.start(config.resolve_procs(n))


def stats() -> dict[str, Any]:
    """Counters of the scheduler since the process began, with a list `per_proc` of one dict for each P.

    `latency_ns` of a P counts how long goroutines were runnable before that P ran them: {nanoseconds: how many waited
    less than that, and not less than the key before}, of one wait in eight. `latency_p50_ns` and `latency_p99_ns` are of
    all Ps together, None while nothing has run. From any thread.
    """
    counts = sched.counters() | {"goroutines": spawn.count()}
    waits: dict[int, int] = {}
    for row in counts["per_proc"]:
        for below, n in row["latency_ns"].items():
            waits[below] = waits.get(below, 0) + n
    return counts | {"latency_p50_ns": percentile(waits, 50), "latency_p99_ns": percentile(waits, 99)}


def percentile(buckets: dict[int, int], percent: int) -> int | None:
    """The upper end of the bucket in which it lies."""
    left = sum(buckets.values()) * percent / 100
    for below, n in sorted(buckets.items()):
        left -= n
        if left <= 0:
            return below
    return None


def record_events(on: bool = True) -> None:
    """Begin, or end, to write down what becomes of goroutines, Ps and Ms, for events().

    While it is on each transition costs about 50 ns. From any thread.
    """
    sched.record_events(on)


def events() -> list[tuple[int, str, int | None, int | None, int | None]]:
    """What record_events() or GMPLOOP_DEBUG=events=1 has written down: (time, kind, goroutine, P, M), oldest first.

    The time is time.monotonic_ns()'s. The kind is "G ", "P " or "M " and the new state: idle, runnable, running,
    blocked, dead of a G; idle, running, incall, dead of a P; running, spinning, parked, polling, orphan, dead of an M.
    The goroutine is the id() of its loop, the P and the M (the thread gmploop-M1 is 1) are numbers; None where there is
    none. Of each P, and of what happened without one, the newest 8192 are kept. Nobody is stopped while they are read:
    one that is being written then is left out. From any thread.
    """
    return sched.events()


def dump(file: Any = None) -> None:
    """Write who runs and who waits for what, as Go does for SIGQUIT: the scheduler's state, each goroutine with its
    tasks, the other loops from which goroutines came or in which somebody waits for them, and what each thread does. To
    `file`, sys.stderr if None. From any thread; in a signal handler too.

    GMPLOOP_DEBUG=sigquit=1 has run() do it on SIGQUIT (Ctrl-\\).
    """
    file = file or sys.stderr
    counts = stats()
    rows = counts.pop("per_proc")
    for row in rows:
        del row["latency_ns"]
    print("gmploop:", " ".join(f"{key}={value}" for key, value in counts.items()), file=file)
    for row in rows:
        print("  P", " ".join(f"{key}={value}" for key, value in row.items()), file=file)
    spawn.show_roots()
    waits = sync.waiting()
    loops = {asyncio._get_running_loop(): None} | {wait.loop: None for wait in waits}
    handles = spawn.all_goroutines()
    worlds = {handle.get_loop(): handle for handle in handles}
    loops |= {spawn.home_of(handle): None for handle in handles}
    for loop, handle in [*((loop, None) for loop in loops if loop not in worlds), *worlds.items()]:
        if loop is None:
            continue
        print(f"\n{handle or loop!r}", file=file)
        for task in asyncio.all_tasks(loop):
            with contextlib.suppress(Exception):        # its world goes on meanwhile
                print(f"task {task.get_name()!r}, {deadlock.describe(task)}", file=file)
    for wait in waits:
        if wait.loop is None:
            print(f"\n{wait.who!r} waits in {wait.operation} for {wait.object!r}", file=file)
    frames = sys._current_frames()
    names = {thread.ident: thread.name for thread in threading.enumerate()} | m.threads()
    for ident, name in names.items():
        print(f"\n{name}:" if ident in frames else f"\n{name} waits", file=file)
        if ident in frames:
            traceback.print_stack(frames[ident], file=file)


async def end_goroutines(home: Any, timeout: float | None) -> None:
    """Cancel what go() has started from the loop `home` and from its goroutines, and wait for it up to `timeout` s."""
    deadline = None if timeout is None else time.monotonic() + timeout
    servers = list(getattr(home, "_isolated", None) or ())
    for server in servers:
        server.hold()
    while left := spawn.all_goroutines(home):
        for handle in left:
            handle.cancel()
        waiting = [asyncio.ensure_future(_quietly(handle)) for handle in left]
        _, late = await asyncio.wait(waiting, timeout=deadline and max(0, deadline - time.monotonic()))
        if late:
            break
    for server in servers:
        server.sweep()
    if left := [handle for handle in left if not handle.done()]:
        logging.getLogger("asyncio").warning("%d goroutines did not end within %s seconds: %s", len(left), timeout,
                                             ", ".join(map(repr, left)))


async def _quietly(handle):
    over = asyncio.get_running_loop().create_future()
    handle.add_done_callback(lambda _: over.done() or over.set_result(None))
    await over
