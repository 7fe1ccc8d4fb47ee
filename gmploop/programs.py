"""`python -m gmploop --replicas N program`: the program N times in one process.

Each replica executes the program in a __main__ module of its own, in a thread of its own; what the program imports is
shared, and so are sys.argv, sys.path, stdin and stdout. sys.modules["__main__"] stands for the module of the replica
whose thread looks (replica 0's for threads that are none), so that `import __main__`, pickle and multiprocessing find
the replica's own classes.
"""

import asyncio
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
