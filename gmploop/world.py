"""World: the loop of a goroutine. The hot half is core.moving.MovingCore; here is what makes it light, and its end.

A Loop that is made by the thousand cannot run asyncio's constructor: what that sets stands on the class here, or is made
when it is first asked for.
"""

import _thread
import asyncio
import collections
import contextlib
import os
import signal
import sys
import threading
import weakref
from asyncio import coroutines, unix_events
from asyncio.log import logger
from concurrent.futures import ThreadPoolExecutor

from gmploop import config, signals, stalls
from gmploop.core import all_tasks, batch, m, moving, netpoll, sched, spawn, sysmon
from gmploop.loop import Loop


class _OnDemand:
    """An attribute that is made when it is first asked for."""

    def __init__(self, make):
        self._make = make

    def __set_name__(self, owner, name):
        self._name = name

    def __get__(self, world, owner=None):
        if world is None:
            return self
        value = world.__dict__[self._name] = self._make()
        return value


def _child_watcher():
    """From Python 3.14 on each loop has one."""
    pidfd = unix_events.can_use_pidfd()
    return unix_events._PidfdChildWatcher() if pidfd else unix_events._ThreadedChildWatcher()


_executor = None
_executor_lock = threading.Lock()


def shared_executor():
    """The one executor of all worlds that have none of their own."""
    global _executor
    with _executor_lock:
        if _executor is None:
            _executor = ThreadPoolExecutor(thread_name_prefix="gmploop")
        return _executor


def _forget_executor():
    global _executor
    _executor = None


class World(moving.MovingCore, Loop):
    """The loop of a goroutine: any thread of the runtime runs it, one at a time."""

    _clock_resolution = 1e-9
    _current_handle = None
    _executor_shutdown_called = False
    _asyncgens_shutdown_called = False
    _coroutine_origin_tracking_enabled = False
    _coroutine_origin_tracking_saved_depth = None
    _internal_fds = 0
    _old_agen_hooks = None
    _outer_wakeup_fd = -1
    _selector = None
    _ssock = _csock = None
    _tls_buffer_size = config.WORLD_TLS_BYTES
    _timer_cancelled_count = 0
    slow_callback_duration = 0.1
    _asyncgens = _OnDemand(weakref.WeakSet)
    _ready = _OnDemand(collections.deque)
    _scheduled = _OnDemand(list)
    _signal_handlers = _OnDemand(dict)
    _transports = _OnDemand(weakref.WeakValueDictionary)
    _unix_server_sockets = _OnDemand(dict)
    _watcher = _OnDemand(_child_watcher)
    __setattr__ = object.__setattr__

    def __init__(self):
        raise TypeError("worlds are made by gmploop.go()")

    # -- inheritance from the maker

    def _inherit_nothing(self):
        if coroutines._is_debug_mode():
            self._debug = True

    def _inherit(self, maker):
        self._debug = maker.get_debug()
        self._exception_handler = maker.get_exception_handler()
        self._task_factory = maker.get_task_factory()
        if maker.slow_callback_duration != World.slow_callback_duration:
            self.slow_callback_duration = maker.slow_callback_duration
        if self._debug:
            sysmon.tell_from(self.slow_callback_duration)

    # -- the shared executor

    @property
    def _default_executor(self):
        return self.__dict__.get("_own_executor") or shared_executor()

    @_default_executor.setter
    def _default_executor(self, executor):
        self.__dict__["_own_executor"] = executor

    async def shutdown_default_executor(self, timeout=None):
        """Shut down an executor that was set for this world; the shared one goes on."""
        executor = self.__dict__.pop("_own_executor", None)
        if executor is not None:
            await asyncio.to_thread(executor.shutdown)

    # -- running

    def run_forever(self):
        """A world is run by the runtime: RuntimeError."""
        raise RuntimeError("This event loop is already running")

    def close(self):
        """A world closes itself when its goroutine is over: RuntimeError before."""
        if not self._closed:
            raise RuntimeError("Cannot close a running event loop")

    def _asyncgen_firstiter_hook(self, agen):
        self.has_asyncgens = True
        super()._asyncgen_firstiter_hook(agen)

    _moves = True

    def add_signal_handler(self, sig, callback, *args):
        """As in the main thread's loop, until the goroutine ends or removes it; a signal reaches all who handle it."""
        if signal.getsignal(signal.SIGURG) is not signals._deliver:
            raise RuntimeError("goroutines get signals from the main thread: the first go(), or gmploop.run(), must be "
                               "there, and SIGURG not be used otherwise")
        self.has_asyncgens = True               # so that the end of the world has something to wind up
        super().add_signal_handler(sig, callback, *args)

    def _other_tasks(self):
        """The tasks of this world that are not done, but the running one. Of those that no task factory made, without a
        look at all worlds."""
        me = asyncio.current_task()
        tasks = all_tasks.unfinished_of(self) if self._task_factory is None else asyncio.all_tasks(self)
        return [task for task in tasks if task is not me]

    async def _wind_up(self, root):
        """End what the root task left, as asyncio.run() does."""
        tasks = self._other_tasks()
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.gather(*tasks, return_exceptions=True)
        for task in tasks:
            if not task.cancelled() and task.exception() is not None:
                self.call_exception_handler({"message": "unhandled exception during the end of a goroutine",
                                             "exception": task.exception(), "task": task})
        if self.has_asyncgens:
            await self.shutdown_asyncgens()
        if self.__dict__.get("_signal_handlers"):
            signals.forget(self)
        await self.shutdown_default_executor()


fatal = weakref.WeakKeyDictionary()     # goroutine from which others came: SystemExit or KeyboardInterrupt of one of them


def report_fatal(home, exc):
    """SystemExit or KeyboardInterrupt in a world: they end the program as they do in asyncio.run(), through the loop from
    which the goroutines came; where that is none, SystemExit ends nothing and KeyboardInterrupt goes to the main thread.
    """
    if isinstance(home, World):
        first = home.goroutine
        if first is not None:
            fatal[first] = exc
            first.cancel()
    elif home is not None and not home.is_closed():
        home.call_soon_threadsafe(_raise, exc)
    elif not isinstance(exc, SystemExit):
        _thread.interrupt_main()


def _raise(exc):
    raise exc


def report_broken(error):
    """The poller that all goroutines share is no more: the runs from which they came end with the error."""
    exc = OSError(error, f"the poller that goroutines share is broken: {os.strerror(error)}")
    logger.error("%s", exc)
    homes = {spawn.home_of(handle) for handle in spawn.all_goroutines()}
    for home in homes:
        if isinstance(home, Loop) and not isinstance(home, World):
            with contextlib.suppress(RuntimeError):         # closed
                home.call_soon_threadsafe(home._end_by, exc)
    for handle in spawn.all_goroutines():
        if spawn.home_of(handle) is None:                  # by a plain thread: main() of lock_main=False, perhaps
            fatal[handle] = exc
            handle.cancel()


def _before_start(procs):
    """The first goroutine starts the runtime: hand the settings to the core."""
    n = config.resolve_procs(procs)
    signals.serve_goroutines()
    sched.set_tunables(**config.scheduler_tunables())
    if config.parse_debug(os.environ.get("GMPLOOP_DEBUG", "")).get("events"):
        sched.record_events()
    sysmon.set_duties(**config.sysmon_duties())
    if stalls.debug_from_outside():
        sysmon.tell_from(World.slow_callback_duration)
    if n > 1 and config.gil_enabled():
        logger.info("gmploop: %d procs; with the GIL they share one core for Python code", n)
    return n


def _batch_writes():
    """Whether what worlds write in a busy time leaves together."""
    batching = config.resolve_write_batching()
    if batching:
        batch.configure(**config.batch_tunables())
    config.say_what_runs("goroutines", netpoll.poller_name(), batching, batch.why_no_ring)
    return batching


moving.configure(report_fatal)
spawn.configure(World)
m.configure(_before_start)
netpoll.configure(report_broken, _batch_writes)
Loop._debug_told = staticmethod(sysmon.tell_from)
os.register_at_fork(after_in_child=_forget_executor)
