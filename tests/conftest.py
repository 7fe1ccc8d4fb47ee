"""Fixtures shared by all tests: which loops they run on, and what every test must leave behind (nothing)."""

import asyncio
import gc
import sys
import threading

import pytest

import support


def pytest_addoption(parser):
    parser.addoption("--loops", default=",".join(support.LOOPS), help="comma separated loops to test, of: %default")


def pytest_configure(config):
    config.addinivalue_line("markers", "stock_fault(reason, *ranges, **params): asyncio's own loop may fail this test, "
                            "with these parameters, on Pythons since <= version < until for one of the (since, until), "
                            "or on all; gmploop must not")
    config.addinivalue_line("markers", "gmploop_only: what stock does here is not specified, so it is not tested")
    config.addinivalue_line("markers", "long: takes minutes; runs only when asked for with -m long")
    config.stash[BODY_FAILED] = set()


BODY_FAILED = pytest.StashKey()


def pytest_generate_tests(metafunc):
    if "loop_kind" in metafunc.fixturenames:
        kinds = metafunc.config.getoption("--loops").split(",")
        unknown = set(kinds) - set(support.LOOPS)
        if unknown:
            raise pytest.UsageError(f"--loops takes {', '.join(support.LOOPS)}, not {', '.join(sorted(unknown))}")
        if metafunc.definition.get_closest_marker("gmploop_only"):
            kinds = [kind for kind in kinds if kind == "gmploop"]
        metafunc.parametrize("loop_kind", kinds, indirect=True, scope="function")


def pytest_collection_modifyitems(config, items):
    for item in items:
        if item.get_closest_marker("long") and "long" not in config.option.markexpr:
            item.add_marker(pytest.mark.skip(reason="takes minutes: run it with -m long"))
        kind = item.callspec.params.get("loop_kind") if hasattr(item, "callspec") else None
        for fault in item.iter_markers("stock_fault"):
            reason, *ranges = fault.args
            if kind == "asyncio" and support.version_in(ranges) and \
                    all(item.callspec.params[name] in values for name, values in fault.kwargs.items()):
                item.add_marker(pytest.mark.xfail(reason=reason))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    report = yield
    if call.when == "call" and call.excinfo is not None:
        item.config.stash[BODY_FAILED].add(item.nodeid)
    return report


@pytest.fixture
def body_failed(request):
    """A function that tells whether the test's body failed: what it left behind is then no news."""
    return lambda: request.node.nodeid in request.config.stash[BODY_FAILED]


@pytest.fixture(scope="session")
def warm(request):
    """Make each loop create once whatever it creates once per process, so that it does not look like a leak."""
    kinds = request.config.getoption("--loops").split(",")
    for kind in kinds:
        support.warm_up(support.LOOPS[kind]())
    gc.collect()
    gc.freeze()  # makes the many later collections cheap
    yield
    gc.unfreeze()


@pytest.fixture
def errors():
    """Contexts given to the exception handlers of the test's loops; a test takes out those it expects."""
    return []


RUN_OTHER_PROGRAMS = {"apps", "bench", "conformance", "servers", "uvloop_suite"}


@pytest.fixture(autouse=True)
def nothing_left(request, warm, errors, body_failed):
    """After each test: no descriptor, no thread and no unexpected report of an error.

    Not for the folders whose tests run other programs, some of them ahead of their test and beside others.
    """
    if RUN_OTHER_PROGRAMS & set(request.node.path.parts):
        yield
        return
    fds, threads = support.open_fds(), support.threads()
    yield
    if body_failed():
        return
    unexpected, errors[:] = list(errors), ()
    assert not unexpected, "the exception handler was called"
    assert not support.leftovers(support.open_fds, fds), "descriptors left open"
    assert not support.leftovers(support.threads, threads), "threads left running"


@pytest.fixture
def loop_kind(request):
    return request.param


@pytest.fixture
def loop_factory(loop_kind, errors, body_failed):
    """Makes loops of the kind under test. They are closed afterwards; a task left on one is a failure."""
    yield from support.factory_of(support.LOOPS[loop_kind], errors, body_failed)


@pytest.fixture
def loop(loop_factory):
    return loop_factory()


@pytest.fixture
def run(loop, request):
    """Runs a coroutine on the loop under test, for at most `timeout` seconds."""
    expected_to_fail = request.node.get_closest_marker("xfail")

    def runner(coro, timeout=20):
        timeout = min(timeout, 0.5) if expected_to_fail else timeout
        return loop.run_until_complete(support.bounded(coro, timeout))
    return runner


@pytest.fixture
def same_as_stock(errors):
    """Runs `scenario(loop)`, a coroutine function, on asyncio's loop and on gmploop's: the results must be equal."""
    def compare(scenario, timeout=20):
        results = {}
        for kind, make in support.LOOPS.items():
            loop = make()
            loop.set_exception_handler(lambda _, context: errors.append(context))
            try:
                results[kind] = loop.run_until_complete(support.bounded(scenario(loop), timeout))
            finally:
                left = support.finish(loop)
            assert not left, f"tasks left behind on {kind}"
        assert results["gmploop"] == results["asyncio"]
        return results["asyncio"]
    return compare


@pytest.fixture(params=["plain", pytest.param("eager", marks=pytest.mark.skipif(
    sys.version_info < (3, 12), reason="eager tasks came with Python 3.12"))])
def task_factory(request, loop):
    """The loop's tasks start on the next turn (plain) or at once (eager)."""
    loop.set_task_factory(asyncio.eager_task_factory if request.param == "eager" else None)
    return request.param


@pytest.fixture
def no_gc():
    """The collector is off, so that what dies has died by its reference count."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.fixture
def threads_take_turns_often():
    """With the GIL: races have a chance to be seen."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    yield
    sys.setswitchinterval(interval)


@pytest.fixture(scope="session")
def tls(tmp_path_factory):
    """A server's and a client's SSLContext that trust each other, for the name `localhost`."""
    return support.make_tls(tmp_path_factory.mktemp("tls"))


@pytest.fixture
def in_thread():
    """Runs functions in threads of their own; the first error is raised when the threads have ended."""
    threads, failures = [], []

    def start(function, *args):
        def body():
            try:
                function(*args)
            except BaseException as exc:
                failures.append(exc)
        thread = threading.Thread(target=body)
        threads.append(thread)
        thread.start()
        return thread
    yield start
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive()
    if failures:
        raise failures[0]


@pytest.fixture
def running(loop, in_thread):
    """The loop under test, run by another thread until the test ends."""
    thread = in_thread(loop.run_forever)
    support.wait_until(loop.is_running)
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join(10)
