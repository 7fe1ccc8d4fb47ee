"""The loops by name, and what every child process does first.

Children are started as `python .../bench/micro.py JSON` and import this module as a sibling; the suite itself imports
it as `gmploop.bench.loops`. So only the standard library is imported here.
"""

import asyncio
import ctypes
import functools
import importlib
import importlib.metadata
import json
import os
import resource
import signal
import sys
from dataclasses import dataclass


@dataclass(frozen=True)
class LoopKind:
    """A loop that can be measured. A variant of one (another poller, an option) is one more entry of LOOPS."""

    module: str            # the package it comes from
    factory: str
    ours: bool = True      # False: a peer that is measured where it works; its failures do not fail the run
    options: tuple = ()    # (name, value) pairs for the factory
    makes_factory: bool = False        # `factory` returns the factory
    running: str = ""      # the first part of the running class's `__module__`: checked in the child; empty: `module`
    network_only: bool = False         # only its transports are its own: left out of the rows without a server

    @property
    def class_module(self):
        return self.running or self.module


LOOPS = {
    "asyncio": LoopKind("asyncio", "SelectorEventLoop"),
    "uvloop": LoopKind("uvloop", "new_event_loop"),
    "gmploop": LoopKind("gmploop", "new_event_loop"),
    "gmploop-eager": LoopKind("gmploop", "new_event_loop", options=(("write_batching", False),)),
    "gmploop-uring": LoopKind("gmploop", "new_event_loop", options=(("poller", "io_uring"),)),
    "gmploop-uring-eager": LoopKind("gmploop", "new_event_loop",
                                    options=(("poller", "io_uring"), ("write_batching", False))),
    "rloop": LoopKind("rloop", "new_event_loop", ours=False),
    "blazio": LoopKind("blazio", "new_event_loop", ours=False),
    "zloop": LoopKind("zloop", "new_event_loop", ours=False),
    "aiofastnet": LoopKind("aiofastnet", "loop_factory", ours=False, makes_factory=True, running="asyncio",
                           network_only=True),
}


@dataclass(frozen=True)
class CServer:
    """An echo server in C, measured beside the loops in the rows that it can serve.

    `PROGRAM [-n NET] [-u PATH] [-c CERTIFICATE -k KEY] [-C CPU]` listens and prints `{"port": N}`; -n is not given for
    "tcp". To add one: its source beside this file, and an entry here.
    """

    program: str           # PROGRAM.c
    title: str
    nets: tuple = ("tcp",)


C_SERVERS = {
    "c-epoll": CServer("echo_epoll", "C epoll", ("tcp", "unix", "udp", "tls")),
    "c-uring": CServer("echo_uring", "C io_uring"),
}


def enter_child():
    """Make this child ready and return its settings, the JSON object in `sys.argv[1]`.

    The child dies with its parent, runs on one core, may open as many files as the system lets it, and finds
    packages where an installed program would (not beside this file), gmploop where its parent has it from.

    It also brings malloc into the state of a program that has been running for a while. glibc maps and unmaps each
    block above a threshold (128 KB at first), and raises the threshold when such a block is freed. asyncio receives
    into blocks of 256 KB, so until something large was freed by chance, each receive costs stock about 17 µs more. One
    block freed here puts all loops beyond that chance; `cold_malloc` leaves it as it is.
    """
    settings = json.loads(sys.argv[1])
    if sys.platform == "linux":
        PR_SET_PDEATHSIG = 1
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != settings["parent"]:
        sys.exit("the benchmark has ended")
    if settings["cpu"] is not None:
        os.sched_setaffinity(0, {settings["cpu"]})
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    del sys.path[0]                             # the folder of this file
    if settings["root"] not in sys.path:        # before any other gmploop that is installed, but behind the library
        where = (i for i, path in enumerate(sys.path) if path.endswith(("site-packages", "dist-packages")))
        sys.path.insert(next(where, len(sys.path)), settings["root"])
    if not settings["cold_malloc"]:
        bytearray(1 << 20)          # freed at once
    return settings


def wait_to_be_counted(settings):
    """The warm-up is over: if system calls are to be counted, say so, and go on when the one who counts is there."""
    if settings.get("counted"):
        print("ready", flush=True)
        sys.stdin.readline()


def factory_of(name):
    """Import the loop called `name` and return the callable that makes one."""
    kind = LOOPS[name]
    factory = getattr(importlib.import_module(kind.module), kind.factory)
    if kind.makes_factory:
        return factory(**dict(kind.options))
    return functools.partial(factory, **dict(kind.options)) if kind.options else factory


def run_child(serve):
    """Run `serve(settings)` in this child on the loop that its settings name."""
    settings = enter_child()
    with asyncio.Runner(loop_factory=factory_of(settings["loop"])) as runner:
        runner.run(serve(settings))


def check_running(name):
    """Raise RuntimeError unless the running loop is of the kind called `name`; return its full class name."""
    loop_type = type(asyncio.get_running_loop())
    full_name = f"{loop_type.__module__}.{loop_type.__qualname__}"
    if loop_type.__module__.partition(".")[0] != LOOPS[name].class_module:
        raise RuntimeError(f"{name} was asked for, but the running loop is {full_name}")
    return full_name


def probe():
    """Tell whether this child's loop works at all: its class, version and file, and whether the GIL is on beside it."""
    settings = enter_child()
    name = settings["loop"]

    async def try_it():
        await asyncio.sleep(0.001)
        return check_running(name)

    with asyncio.Runner(loop_factory=factory_of(name)) as runner:
        loop_class = runner.run(try_it())
    module = sys.modules[LOOPS[name].module]
    try:
        version = importlib.metadata.version(module.__name__)
    except importlib.metadata.PackageNotFoundError:
        version = getattr(module, "__version__", None)
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    print(json.dumps({"loop": loop_class, "version": version or sys.version.split()[0], "file": module.__file__,
                      "gil": gil}))


if __name__ == "__main__":
    probe()
