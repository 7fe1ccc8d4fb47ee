"""Run a class of CPython's own test_asyncio on an event loop (`child.py JSON`), or list the classes (`child.py list`).

Two kinds of tests: the mix-ins that CPython runs on each of its own loops, with the method that makes the loop
replaced, and whole modules run with the loop as the process's default. Left out: modules that test one of stock's own
loops from inside (selector_events, base_events, proactor, unix_events but for TestFork) and test_runners, which drives
mock loops.
"""
import importlib
import json
import os
import sys
import unittest

import foreign_report

MIXINS = {      # module: {mix-in: the method that makes the loop}
    "test_events": {"EventLoopTestsMixin": "create_event_loop", "SubprocessTestsMixin": "create_event_loop"},
    "test_sock_lowlevel": {"BaseSockTestsMixin": "create_event_loop"},
    "test_server": {"BaseStartServer": "new_loop"},
    "test_buffered_proto": {"BaseTestBufferedProtocol": "new_loop"},
    "test_sendfile": {"SendfileTestsBase": "create_event_loop", "SockSendfileMixin": "create_event_loop"},
    "test_sslproto": {"BaseStartTLS": "new_loop"},
}
MODULES = """
    test_streams test_tasks test_futures test_futures2 test_locks test_queues test_timeouts test_taskgroups test_context
    test_pep492 test_eager_task_factory test_waitfor test_staggered test_threads test_subprocess test_ssl test_sslproto
    test_buffered_proto test_server test_sock_lowlevel test_sendfile test_free_threading test_graph test_unix_events
""".split()
ONLY = {"test_unix_events": ["TestFork"]}


def load(module):
    return importlib.import_module("test.test_asyncio." + module)


def method_names(cls):
    return unittest.defaultTestLoader.getTestCaseNames(cls)


def units():
    try:
        load("utils")
    except ImportError:
        sys.exit(f"CPython's test package is not installed for {sys.executable}")
    found = [(m, mixin) for m, mixins in MIXINS.items() for mixin in mixins]
    for name in MODULES:
        try:
            m = load(name)
        except ImportError:                 # this Python has no such module
            continue
        found += [(name, k) for k, v in sorted(vars(m).items())
                  if isinstance(v, type) and issubclass(v, unittest.TestCase) and v.__module__ == m.__name__
                  and method_names(v) and k in ONLY.get(name, [k])]
    return found


def test_case(m, name, hook, new):
    """The class itself, or a TestCase made from a mix-in; and its tests' names."""
    if hook is None:
        return getattr(m, name), method_names(getattr(m, name))
    from test.test_asyncio import utils
    bases = [getattr(m, name)]
    names = method_names(type(name, (bases[0], unittest.TestCase), {}))
    if name == "SubprocessTestsMixin":      # its setUp lives in the sibling
        bases.append(m.EventLoopTestsMixin)
    return type(name, (*bases, utils.TestCase), {hook: lambda self: new(), "__module__": m.__name__}), names


def main(order):
    loop, _, mode = order["loop"].partition(":")
    if mode == "movable":
        import movable
        movable.put_in_place()
    elif mode:
        import own_types
        own_types.put_in_place(mode)
    new = foreign_report.Factory(loop)
    foreign_report.make_default(new)
    m = load(order["module"])
    if mode == "own":
        own_types.adapt(m)
    hook = MIXINS.get(order["module"], {}).get(order["cls"])
    case, names = test_case(m, order["cls"], hook, new)
    wanted = order["names"]
    foreign_report.run(case, [n for n in names if wanted is None or n in wanted], order["report"], order["hang_s"], new)


if __name__ == "__main__":
    if sys.argv[1] == "list":
        print(json.dumps(units()), flush=True)
        os._exit(0)
    main(json.loads(sys.argv[1]))
