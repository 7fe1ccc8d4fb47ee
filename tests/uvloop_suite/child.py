"""Run one class of uvloop's own test-suite on an event loop (`child.py JSON`), or list the classes (`child.py list`).

The suite runs each of its mix-ins twice: as uvloop (`..._UV_...`) and as stock asyncio (`..._AIO_...`), which leaves
out what stock of its day did not pass. Both are run here, and both with the loop under test. `stand_in/` takes the
place of the package: its tests' base classes, and no libuv.
"""
import importlib.util
import json
import os
import sys
import types
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "conformance"))
import foreign_report
import sdist

LEFT_OUT = {    # they look into uvloop's package, its C structures or its command of `run`, not at a loop
    "test_cython", "test_dealloc", "test_fs_event", "test_libuv_api", "test_runner", "test_sourcecode", "test_testbase",
    "test_base.TestPolicy",
}


def prepare(new, loop):
    """Make the suite importable, here and in programs it starts, with `new` as what makes loops; returns its folder."""
    source, stand_in = sdist.fetch(), str(Path(__file__).with_name("stand_in"))
    os.environ.update(LOOP_UNDER_TEST=loop, UVLOOP_SOURCE=str(source),
                      PYTHONPATH=os.pathsep.join(filter(None, [stand_in, os.environ.get("PYTHONPATH")])))
    sys.path[:0] = [stand_in, str(source / "tests")]
    if importlib.util.find_spec("OpenSSL") is None:         # two tests use it; they then fail on stock too
        sys.modules["OpenSSL"] = types.SimpleNamespace(SSL=None)
    uvloop = importlib.import_module("uvloop")
    base = importlib.import_module("uvloop._testbase")
    uvloop.new_event_loop = base.UVTestCase.new_loop = base.AIOTestCase.new_loop = new
    # not the loop's type: a test must do the same on both loops, or they cannot be compared
    base.BaseTestCase.is_asyncio_loop = lambda self: self.implementation == "asyncio"
    return source / "tests"


def units(folder):
    found = []
    for path in sorted(folder.glob("test_*.py")):
        if path.stem not in LEFT_OUT:
            m = importlib.import_module(path.stem)
            found += [(path.stem, k) for k, v in sorted(vars(m).items())
                      if isinstance(v, type) and issubclass(v, unittest.TestCase) and v.__module__ == m.__name__
                      and f"{path.stem}.{k}" not in LEFT_OUT and unittest.defaultTestLoader.getTestCaseNames(v)]
    return found


def main(order):
    new = foreign_report.Factory(order["loop"])
    foreign_report.make_default(new)
    prepare(new, order["loop"])
    case = getattr(importlib.import_module(order["module"]), order["cls"])
    names = unittest.defaultTestLoader.getTestCaseNames(case)
    wanted = order["names"]
    foreign_report.run(case, [n for n in names if wanted is None or n in wanted], order["report"], order["hang_s"], new)


if __name__ == "__main__":
    if sys.argv[1] == "list":
        try:
            print(json.dumps(units(prepare(foreign_report.Factory("asyncio"), "asyncio"))), flush=True)
        except LookupError as e:
            sys.exit(str(e))
        except ImportError as e:
            sys.exit(f"{e}: uvloop's test-suite needs what requirements.txt beside {__file__} names")
        os._exit(0)
    main(json.loads(sys.argv[1]))
