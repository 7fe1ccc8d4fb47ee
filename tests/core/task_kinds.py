"""Fixtures for tests of tasks: a loop that makes stock's tasks and one that makes gmploop's own."""

import asyncio

import gmploop
import pytest
import support


def make_loop(kind):
    if kind == "stock":
        return asyncio.SelectorEventLoop()
    loop = gmploop.new_event_loop()
    loop._use_own_tasks(True)
    return loop


@pytest.fixture(params=["stock", "own"])
def kind(request):
    return request.param


@pytest.fixture
def reports():
    return []


@pytest.fixture
def loop(kind, reports):
    loop = make_loop(kind)
    loop.set_exception_handler(lambda _, context: reports.append(context))
    yield loop
    support.finish(loop)


@pytest.fixture
def run(loop):
    return lambda coro: loop.run_until_complete(support.bounded(coro, 20))


@pytest.fixture
def same(reports):
    """Runs scenario(loop) on both kinds; the results must be equal."""
    def compare(scenario):
        results = []
        for kind in ("stock", "own"):
            loop = make_loop(kind)
            loop.set_debug(False)       # it notes where a future was made: there stock names a line of its own
            loop.set_exception_handler(lambda _, context: reports.append(context))
            results.append(loop.run_until_complete(support.bounded(scenario(loop), 20)))
            support.finish(loop)
        assert results[1] == results[0]
        return results[0]
    return compare
