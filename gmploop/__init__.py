"""An asyncio event loop with Go's G-M-P scheduler."""

import sys
from typing import TYPE_CHECKING

from gmploop.loop import Loop
from gmploop.policy import install, new_event_loop, poller_name, run
from gmploop.sync import (
    Channel,
    ChannelClosed,
    Event,
    Mutex,
    Once,
    RWMutex,
    Semaphore,
    WaitGroup,
    WouldBlock,
    select,
    select_blocking,
)

if TYPE_CHECKING:
    from gmploop.deadlock import DeadlockError
    from gmploop.goroutine import (
        Goroutine,
        Group,
        blocking,
        dump,
        events,
        go,
        lock_os_thread,
        procs,
        record_events,
        set_procs,
        stats,
        syscall,
        unlock_os_thread,
        yield_now,
    )
    from gmploop.isolated import start_server, start_unix_server

__all__ = ["Loop", "install", "new_event_loop", "poller_name", "run"]
__all__ += ["Goroutine", "Group", "blocking", "dump", "events", "go", "lock_os_thread", "procs", "record_events"]
__all__ += ["set_procs", "start_server", "start_unix_server", "stats", "syscall", "unlock_os_thread", "yield_now"]
__all__ += ["Channel", "ChannelClosed", "Event", "Mutex", "Once", "RWMutex", "Semaphore", "WaitGroup", "WouldBlock"]
__all__ += ["DeadlockError", "select", "select_blocking"]
__version__ = "0.1.0"

if sys.version_info < (3, 16):  # asyncio has policies until then
    from gmploop.policy import EventLoopPolicy

    __all__ += ["EventLoopPolicy"]

if not TYPE_CHECKING:

    def __dir__():
        return {*globals(), *__all__}

    def __getattr__(name):
        if name == "UvicornWorker":  # made when asked for: it imports gunicorn and uvicorn
            from gmploop.policy import uvicorn_worker

            return uvicorn_worker()
        if name in __all__:  # likewise: not every program has goroutines
            from gmploop import goroutine, isolated

            if name == "DeadlockError":
                from gmploop.deadlock import DeadlockError as value
            else:
                value = getattr(isolated if name in isolated.__all__ else goroutine, name)
            globals()[name] = value
            return value
        if name == "fs":  # likewise: not every program reads files
            import gmploop.fs

            return gmploop.fs
        if name == "EventLoopPolicy":
            raise AttributeError("this Python's asyncio has no policies: use gmploop.run or gmploop.install")
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
