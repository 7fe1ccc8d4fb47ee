"""A pytest plugin for foreign test-suites: sets the event loop policy and writes each test's outcome to a file.

SUITE_LOOP is "asyncio" or "gmploop", SUITE_RESULTS the file: lines of JSON [test, outcome, text]. A test that has
begun and not ended (the process crashed) stays "begun".
"""

import asyncio
import json
import os
import warnings

import gmploop

RESULTS = open(os.environ["SUITE_RESULTS"], "w", buffering=1)
if os.environ["SUITE_LOOP"] == "gmploop":
    with warnings.catch_warnings():  # policies are deprecated from Python 3.14 on
        warnings.simplefilter("ignore", DeprecationWarning)
        asyncio.set_event_loop_policy(gmploop.EventLoopPolicy())
loop = asyncio.new_event_loop()
assert isinstance(loop, gmploop.Loop) == (os.environ["SUITE_LOOP"] == "gmploop")
loop.close()


def write(*line):
    RESULTS.write(json.dumps(line) + "\n")


def pytest_runtest_logstart(nodeid):
    write(nodeid, "begun", "")


def pytest_runtest_logreport(report):
    # setup, call and tear-down each report: one that is not passed stays
    if report.when == "setup" or not report.passed:
        write(report.nodeid, report.outcome, report.longreprtext[-2000:] if report.failed else "")
