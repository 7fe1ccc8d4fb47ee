"""The ways in: new_event_loop, run, install, EventLoopPolicy."""

import asyncio
import sys
import threading
from asyncio import events
from collections.abc import Callable, Coroutine
from contextlib import suppress
from functools import partial
from typing import Any, TypeVar, overload

from gmploop import config, signals
from gmploop.core import sched
from gmploop.loop import Loop

_T = TypeVar("_T")

# 3.14 deprecated asyncio's policies and gave the classes private names, 3.16 has none.
if sys.version_info >= (3, 16):
    DefaultPolicy = None
elif sys.version_info >= (3, 14):
    from asyncio.unix_events import _DefaultEventLoopPolicy as DefaultPolicy
else:
    from asyncio import DefaultEventLoopPolicy as DefaultPolicy


def new_event_loop(*, poller: str | None = "auto", debug: bool | None = None, write_batching: bool | None = None) -> Loop:
    """Make a loop. Fit for every `loop_factory` parameter.

    poller: "auto" (GMPLOOP_POLLER, else the fastest), "io_uring", "epoll" (Linux) or "kqueue" (macOS, BSD). debug:
    asyncio's debug mode; None leaves it to GMPLOOP_DEBUG and asyncio. write_batching: whether a turn's small writes leave
    together at its end; None leaves it to GMPLOOP_WRITE_BATCHING, else they do (Linux). Returns a Loop that is not set
    as the current one; close() it. Raises ValueError or TypeError naming the option, OSError if the poller cannot be had
    here. Callable from any thread.
    """
    return Loop(poller=poller, debug=debug, write_batching=write_batching)


if sys.version_info < (3, 16):

    class EventLoopPolicy(DefaultPolicy):
        """asyncio's default policy, child watchers included, whose loops are gmploop's.

        Takes the options of new_event_loop, checked here, and gives them to each loop that it makes.
        """

        def __init__(self, *, poller: str | None = "auto", debug: bool | None = None,
                     write_batching: bool | None = None) -> None:
            config.resolve_poller(poller)
            config.resolve_debug(debug)
            config.resolve_write_batching(write_batching)
            super().__init__()
            self._new_loop = partial(new_event_loop, poller=poller, debug=debug, write_batching=write_batching)

        def new_event_loop(self) -> Loop:
            return self._new_loop()


def install(*, poller: str | None = "auto", debug: bool | None = None, write_batching: bool | None = None) -> None:
    """Make asyncio use gmploop wherever it makes a loop itself: asyncio.run, Runner, new_event_loop, get_event_loop.

    Takes the options of new_event_loop. ValueError or TypeError for a bad one come from here, OSError for a poller that
    cannot be had when a loop is made. It works for the whole process and warns on no Python, also where
    asyncio.set_event_loop_policy does. Loops that were made before stay as they are. From any thread.
    """
    if sys.version_info >= (3, 16):
        config.resolve_poller(poller)
        config.resolve_debug(debug)
        config.resolve_write_batching(write_batching)
        # what Runner and the user call
        events.new_event_loop = asyncio.new_event_loop = partial(
            new_event_loop, poller=poller, debug=debug, write_batching=write_batching)
    elif sys.version_info >= (3, 14):
        events._set_event_loop_policy(EventLoopPolicy(poller=poller, debug=debug, write_batching=write_batching))
    else:
        events.set_event_loop_policy(EventLoopPolicy(poller=poller, debug=debug, write_batching=write_batching))


@overload
def run(
    main: Coroutine[Any, Any, _T],
    *,
    debug: bool | None = None,
    poller: str | None = None,
    write_batching: bool | None = None,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
    procs: int | None = None,
    lock_main: bool = True,
    shutdown_timeout: float | None = config.SHUTDOWN_S,
    replicas: None = None,
) -> _T: ...
@overload
def run(
    main: Callable[[], Coroutine[Any, Any, _T]],
    *,
    debug: bool | None = None,
    poller: str | None = None,
    write_batching: bool | None = None,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
    procs: int | None = None,
    shutdown_timeout: float | None = config.SHUTDOWN_S,
    replicas: int,
) -> list[_T]: ...
def run(
    main: Any,
    *,
    debug: bool | None = None,
    poller: str | None = None,
    write_batching: bool | None = None,
    loop_factory: Callable[[], asyncio.AbstractEventLoop] | None = None,
    procs: int | None = None,
    lock_main: bool = True,
    shutdown_timeout: float | None = config.SHUTDOWN_S,
    replicas: int | None = None,
) -> Any:
    """Run a coroutine on a new loop and return its result: asyncio.run on gmploop.

    debug: as for asyncio.run. poller, write_batching: as for new_event_loop. loop_factory makes the loop
    instead of new_event_loop.
    procs: how many goroutines may run at once (None: as it is, at first GMPLOOP_PROCS or what the machine has).
    lock_main=False: `main` is a goroutine too, and moves between threads. shutdown_timeout: seconds.
    replicas: run the coroutine function `main` that many times, in as many threads with a loop each, and return the
    list of results (see gmploop.replicas.run_replicas).
    Ctrl-C cancels `main`, as in asyncio.run. At the end the goroutines that came from it are cancelled and waited for,
    those that do not end in shutdown_timeout (None: no limit) logged and left; the tasks left are cancelled, async
    generators and the default executor shut down, and the loop is closed. Raises what `main` raises; ValueError or
    TypeError as asyncio.run does for something that is no coroutine; RuntimeError inside a running loop. From any
    thread, though only the main thread's answers Ctrl-C.
    """
    if procs is not None:
        procs = config.resolve_procs(procs)
    if config.dumps_on_sigquit():
        signals.dump_on_sigquit()
    if sched.procs():
        signals.serve_goroutines()
    if not isinstance(lock_main, bool):
        raise TypeError(f"lock_main takes True or False, not {lock_main!r}")
    config.resolve_debug(debug)
    config.check_seconds("shutdown_timeout", shutdown_timeout)
    if not lock_main and replicas is not None:
        raise TypeError("each replica's main is locked to its thread: no lock_main=False with replicas")
    if not lock_main:
        if poller is not None or write_batching is not None or loop_factory is not None:
            raise TypeError("poller, write_batching and loop_factory are for a loop of main's own: not with lock_main=False")
        if events._get_running_loop() is not None:
            raise RuntimeError("gmploop.run() cannot be called from a running event loop")
        return _run_unlocked(main, debug, procs, shutdown_timeout)
    if loop_factory is None:
        loop_factory = partial(new_event_loop, poller=poller, write_batching=write_batching)
    elif poller is not None or write_batching is not None:
        option = "poller" if poller is not None else "write_batching"
        raise TypeError(f"{option} is an option of gmploop's own loops: it cannot be given together with loop_factory")
    if events._get_running_loop() is not None:
        raise RuntimeError("gmploop.run() cannot be called from a running event loop")
    if replicas is not None:
        from gmploop.replicas import run_replicas

        options = {"debug": debug, "procs": procs, "shutdown_timeout": shutdown_timeout}
        return run_replicas(main, replicas, loop_factory=loop_factory, **options)
    runner = asyncio.Runner(debug=debug, loop_factory=loop_factory)
    # asyncio.run() makes its loop the thread's current one, a Runner with a loop_factory does not
    asyncio.set_event_loop(runner.get_loop())
    try:
        with runner:
            fatal: BaseException | None = None
            if procs is not None:
                _goroutines().set_procs(procs)
            try:
                return _run_main(runner, main)
            except BaseException as exc:
                fatal = exc
                if isinstance(exc, OSError) and isinstance(runner.get_loop(), Loop):
                    runner.get_loop().poller.outlive()
                raise
            finally:
                try:
                    _end_goroutines(runner.get_loop(), shutdown_timeout, fatal)
                finally:
                    fatal = None        # its traceback holds this frame
    finally:
        asyncio.set_event_loop(None)


def _run_main(runner: asyncio.Runner, main: Any) -> Any:
    """runner.run(main), unless it can never go on."""
    loop = runner.get_loop()
    if not isinstance(loop, Loop) or threading.current_thread() is not threading.main_thread():
        return runner.run(main)
    run = None

    def at_rest():
        nonlocal run
        if run is None:
            run = _deadlock().Run(main)
        return run.at_rest(loop)

    loop._watch_rest(at_rest, config.REST_MS * 1_000_000)
    try:
        result = runner.run(main)
    except asyncio.CancelledError:
        if run is None or run.error is None:
            raise
    finally:
        loop._watch_rest(None, 0)
        if run is not None:
            _deadlock().rest.want(None)
    if run is not None and run.error is not None:
        raise run.error from None
    return result


def _goroutines() -> Any:
    from gmploop import goroutine  # not every program has goroutines

    return goroutine


def _deadlock() -> Any:
    from gmploop import deadlock  # not before a run might need it

    return deadlock


def _end_goroutines(loop: asyncio.AbstractEventLoop, timeout: float | None, ended_by: BaseException | None) -> None:
    if not sched.procs() or loop.is_closed():
        return
    # Who awaits a goroutine that has ended the run gets the error that ended it, here: that is on its way already.
    fatal = ended_by if isinstance(ended_by, (SystemExit, KeyboardInterrupt)) else None
    tasks = asyncio.all_tasks(loop) if fatal is not None else ()
    ending = loop.create_task(_goroutines().end_goroutines(loop, timeout))
    while not ending.done():
        try:
            loop.run_until_complete(ending)
        except (SystemExit, KeyboardInterrupt) as exc:
            if exc is not fatal:
                raise
    for task in tasks:
        if getattr(task, "_exception", None) is fatal and task.done():
            task.exception()            # it need not be told again


def _run_unlocked(main: Any, debug: bool | None, procs: int | None, timeout: float | None) -> Any:
    if not asyncio.iscoroutine(main):
        raise ValueError(f"a coroutine was expected, got {main!r}")
    goroutine = _goroutines()
    if procs is not None:
        goroutine.set_procs(procs)

    async def in_a_world():
        if debug is not None:
            asyncio.get_running_loop().set_debug(debug)
        try:
            return await main
        finally:
            await goroutine.end_goroutines(asyncio.get_running_loop(), timeout)

    handle = goroutine.go(in_a_world(), name="main")
    run = None
    if threading.current_thread() is threading.main_thread():
        run = _deadlock().Run(main)
    try:
        result = handle.result() if run is None else run.wait_for(handle)
    except asyncio.CancelledError:
        if (fatal := goroutine.world.fatal.pop(handle, None)) is not None:  # sys.exit() in another goroutine
            raise fatal from None
        if run is None or run.error is None:
            raise
    except KeyboardInterrupt:
        if not handle.done():
            handle.cancel()
            with suppress(asyncio.CancelledError):
                handle.result()
        raise
    if run is not None and run.error is not None:
        raise run.error from None
    return result


def poller_name() -> str:
    """The poller that a loop made now with poller="auto" runs on. Raises ValueError for a bad GMPLOOP_POLLER."""
    return config.resolve_poller()


def uvicorn_worker() -> type:
    """gunicorn's `-k gmploop.UvicornWorker`: uvicorn's worker on gmploop. Made when asked for: it needs both."""
    try:
        from uvicorn_worker import UvicornWorker as Base
    except ImportError:
        from uvicorn.workers import UvicornWorker as Base

    class UvicornWorker(Base):
        CONFIG_KWARGS = {**Base.CONFIG_KWARGS, "loop": "gmploop:new_event_loop"}

    return UvicornWorker
