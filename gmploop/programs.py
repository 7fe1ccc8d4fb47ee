"""`python -m gmploop --replicas N program`: the program N times in one process.

Each replica executes the program in a __main__ module of its own, in a thread of its own; what the program imports is
shared, and so are sys.argv, sys.path, stdin and stdout. sys.modules["__main__"] stands for the module of the replica
whose thread looks, so that `import __main__`, pickle and multiprocessing find the replica's own classes. Threads that a
replica starts (executors, multiprocessing.Pool's) see replica 0's: what they pickle belongs in a module.
"""

import asyncio
import runpy
import sys
import types

from gmploop import replicas, sharing


class _Main(types.ModuleType):
    """sys.modules["__main__"]: each replica sees its own module in it."""

    def __getattribute__(self, name):
        return getattr(_mine(self), name)

    def __setattr__(self, name, value):
        setattr(_mine(self), name, value)

    def __delattr__(self, name):
        delattr(_mine(self), name)

    def __dir__(self):
        return dir(_mine(self))


def _mine(main):
    modules = object.__getattribute__(main, "__dict__")["modules"]
    replica = sharing.current()
    return modules[replica.index if replica is not None else 0]


def run_replicas(count, main, run, *args):
    """Call run(*args), which executes sys.modules["__main__"], in `count` replicas; `main` is a fresh such module.

    A replica that ends by SystemExit(0) has ended well; by another one it ends the others too, and this raises it.
    Else as replicas.Run.run().
    """
    modules = [main]
    for _ in range(1, count):
        modules.append(types.ModuleType("__main__"))
        vars(modules[-1]).clear()
        vars(modules[-1]).update(vars(main))
        if "__annotations__" in vars(main):
            modules[-1].__annotations__ = {}
    if run is runpy._run_module_as_main:
        run = _module_code(*args)
        args = ()
    facade = _Main("__main__")
    object.__getattribute__(facade, "__dict__")["modules"] = modules
    sys.modules["__main__"] = facade

    def body():
        try:
            with _current_loop():
                run(*args)
        except SystemExit as error:
            if error.code not in (None, 0):
                raise

    replicas.Run(count).run(body)


def _module_code(*args):
    """What runpy executes for a module, folder or zip file, found once: it takes sys.modules apart to find it."""
    found, run_code = [], runpy._run_code
    runpy._run_code = lambda *what: found.append(what)
    try:
        runpy._run_module_as_main(*args)
    finally:
        runpy._run_code = run_code
    code, _, *rest = found[0]
    return lambda: run_code(code, sys.modules["__main__"].__dict__, *rest)


class _current_loop:
    """asyncio.get_event_loop() makes a loop in the main thread if there is none, where it still does that. So that a
    program that relies on it runs in the other replicas, they have one made."""

    def __enter__(self):
        self.loop = None
        if replicas.index() and sys.version_info < (3, 14):
            self.loop = asyncio.new_event_loop()
            asyncio.set_event_loop(self.loop)

    def __exit__(self, *exc):
        if self.loop is not None:
            self.loop.close()
