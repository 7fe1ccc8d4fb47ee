"""The child's half: run one TestCase class and write what happens to each test into a file, line by line.

Lines are JSON `[what, name, why]` with `what` one of plan, start, pass, skip, fail, done. A file and not stdout,
since the tests print, close descriptors and fork.
"""
import asyncio
import faulthandler
import importlib
import json
import os
import unittest
import warnings


class Factory:
    """Makes loops and counts them. An object, not a function, so that it does not bind when a class holds it."""

    def __init__(self, name):
        self.new = asyncio.SelectorEventLoop if name == "asyncio" else importlib.import_module(name).new_event_loop
        self.made = 0

    def __call__(self, *args):
        self.made += 1
        return self.new()


def make_default(new):
    """Let every way in which asyncio makes a loop on its own accord call `new`."""
    from asyncio import events, unix_events
    name = "DefaultEventLoopPolicy" if hasattr(unix_events, "DefaultEventLoopPolicy") else "_DefaultEventLoopPolicy"
    policy = type("Policy", (getattr(unix_events, name),), {"_loop_factory": new})
    setattr(unix_events, name, policy)
    if name in vars(asyncio):
        setattr(asyncio, name, policy)
    events._event_loop_policy = policy()
    for name in ("set_event_loop_policy", "_set_event_loop_policy"):    # test modules set None when they end
        if (real := getattr(events, name, None)) is not None:
            def set_policy(value, real=real):
                real(policy() if value is None else value)
            setattr(events, name, set_policy)
            if hasattr(asyncio, name):
                setattr(asyncio, name, set_policy)
    asyncio.new_event_loop = events.new_event_loop = new
    if hasattr(asyncio, "EventLoop"):
        asyncio.EventLoop = new


class Report(unittest.TestResult):
    def __init__(self, path, hang_s):
        super().__init__()
        self.file, self.hang_s, self.home = open(path, "a", buffering=1), hang_s, os.getpid()

    def say(self, what, test, why=""):
        if os.getpid() != self.home:        # a forked child that came back through the test has nothing to report
            return
        test = getattr(test, "test_case", test)                 # a subtest speaks for its test
        name = getattr(test, "_testMethodName", None) or str(test).split()[0]       # else setUpClass (...)
        self.file.write(json.dumps([what, name, why]) + "\n")

    def startTest(self, test):
        super().startTest(test)
        faulthandler.dump_traceback_later(self.hang_s, exit=True)
        self.say("start", test)

    def stopTest(self, test):
        super().stopTest(test)
        faulthandler.cancel_dump_traceback_later()

    def addSuccess(self, test):
        self.say("pass", test)

    def addExpectedFailure(self, test, err):
        self.say("pass", test)

    def addSkip(self, test, reason):
        self.say("skip", test, reason)

    def addFailure(self, test, err):
        self.say("fail", test, self._exc_info_to_string(err, test))

    addError = addFailure

    def addUnexpectedSuccess(self, test):
        self.say("fail", test, "passed, and is marked as an expected failure")

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self.addFailure(test, err)


def run(case, names, report, hang_s, factory):
    """Run the tests `names` of class `case`, report them, and end the process."""
    faulthandler.enable()
    warnings.simplefilter("ignore", DeprecationWarning)         # policies, from 3.14 on
    out = Report(report, hang_s)
    for name in names:
        out.say("plan", name)
    unittest.TestSuite(map(case, names)).run(out)
    out.say("done", str(factory.made))
    os._exit(0)                             # threads that a failed test left behind must not hold the process
