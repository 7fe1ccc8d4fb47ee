"""The ways in that are calls: policy, install, run, new_event_loop and their options."""

import asyncio
import subprocess
import sys
import threading
import warnings

import gmploop
import pytest
from gmploop import config

POLICIES = pytest.mark.skipif(sys.version_info >= (3, 16), reason="this Python has no event loop policies")
WATCHERS = pytest.mark.skipif(sys.version_info >= (3, 14), reason="this Python has no child watchers")


def python(code, *flags):
    return subprocess.run([sys.executable, *flags, "-c", code], capture_output=True, text=True, timeout=60)


async def running():
    return asyncio.get_running_loop()


@pytest.fixture(params=["stock", "gmploop"])
def policy(request):
    """Each default policy in turn, set as the current one."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        before = asyncio.get_event_loop_policy()
        new = asyncio.DefaultEventLoopPolicy() if request.param == "stock" else gmploop.EventLoopPolicy()
        asyncio.set_event_loop_policy(new)
    yield new
    asyncio.set_event_loop(None)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        asyncio.set_event_loop_policy(before)


# -- run --------------------------------------------------------------------------------------------------------------


def test_run_returns_the_result_of_main_on_a_gmploop_loop_that_is_closed_after():
    loop = gmploop.run(running())
    assert isinstance(loop, gmploop.Loop) and loop.is_closed()


@pytest.mark.parametrize("runner", [asyncio.run, gmploop.run])
def test_run_makes_its_loop_the_current_one_and_leaves_none(runner):
    async def main():
        if sys.version_info >= (3, 14):
            return asyncio.get_event_loop()
        return asyncio.get_event_loop_policy().get_event_loop()

    assert runner(main()).is_closed()
    with warnings.catch_warnings(), pytest.raises(RuntimeError, match="no current event loop"):
        warnings.simplefilter("error")
        asyncio.get_event_loop()


@pytest.mark.parametrize("main", [5, None, running, "text"])
def test_run_refuses_what_asyncio_run_refuses(main):
    with pytest.raises(Exception) as stock:
        asyncio.run(main)
    with pytest.raises(stock.type, match="^" + stock.value.args[0][:12]):
        gmploop.run(main)


@pytest.mark.parametrize("runner", [asyncio.run, gmploop.run])
def test_run_within_a_running_loop(runner):
    async def main():
        inner = running()
        with pytest.raises(RuntimeError, match="cannot be called from a running event loop"):
            runner(inner)
        inner.close()

    runner(main())


@pytest.mark.parametrize("runner", [asyncio.run, gmploop.run])
def test_run_cancels_what_is_left_and_finishes_generators_and_executor(runner):
    log = []

    async def left():
        try:
            await asyncio.Event().wait()
        finally:
            log.append("task")

    async def generator():
        try:
            yield
        finally:
            log.append("generator")

    async def main():
        global kept, tasks
        tasks = asyncio.create_task(left())
        kept = generator()
        await anext(kept)
        await asyncio.to_thread(log.append, "thread")

    runner(main())
    assert log == ["thread", "task", "generator"]
    assert not [t for t in threading.enumerate() if t.name.startswith("asyncio_")]


@pytest.mark.parametrize("debug", [True, False])
def test_run_debug(debug):
    assert gmploop.run(running(), debug=debug).get_debug() is debug


def test_run_with_a_loop_factory_of_the_users():
    made = []

    def factory():
        made.append(gmploop.new_event_loop())
        return made[0]

    assert gmploop.run(running(), loop_factory=factory) is made[0]


@pytest.mark.parametrize("call", [gmploop.new_event_loop, gmploop.install, gmploop.Loop])
def test_an_unknown_option_is_named(call):
    with pytest.raises(TypeError, match="prcs"):
        call(prcs=2)


def test_run_names_options_it_cannot_take():
    main = running()
    with pytest.raises(TypeError, match="prcs"):
        gmploop.run(main, prcs=2)
    with pytest.raises(ValueError, match="poller takes 'auto' or 'io_uring' or 'epoll' or 'kqueue', not 'kpoll'"):
        gmploop.run(main, poller="kpoll")
    with pytest.raises(TypeError, match="poller.*loop_factory"):
        gmploop.run(main, poller="epoll", loop_factory=gmploop.new_event_loop)
    main.close()


# -- options ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("call", ["new_event_loop", "install", pytest.param("EventLoopPolicy", marks=POLICIES)])
@pytest.mark.parametrize("option, value, error", [
    ("poller", "kpoll", ValueError), ("poller", "", ValueError), ("poller", 3, TypeError),
    ("poller", b"epoll", TypeError),
    ("debug", "yes", TypeError), ("debug", 1.0, TypeError), ("write_batching", "yes", TypeError),
])
def test_a_bad_value_is_named_with_what_the_option_takes(call, option, value, error):
    with pytest.raises(error, match=f"^{option} takes .*, not {value!r}$"):
        getattr(gmploop, call)(**{option: value})


@pytest.mark.parametrize("poller", ["auto", "epoll", None])
def test_pollers(poller, monkeypatch):
    monkeypatch.delenv("GMPLOOP_POLLER", raising=False)
    gmploop.new_event_loop(poller=poller).close()
    assert config.resolve_poller(poller) == gmploop.poller_name() == "epoll"


def test_environment_and_its_bad_values(monkeypatch):
    monkeypatch.setenv("GMPLOOP_POLLER", "kpoll")
    for call in gmploop.poller_name, gmploop.new_event_loop:
        with pytest.raises(ValueError, match="^GMPLOOP_POLLER takes 'auto' or 'io_uring' or 'epoll' or 'kqueue', not 'kpoll'$"):
            call()
    gmploop.new_event_loop(poller="epoll").close()  # what the code says goes first
    monkeypatch.setenv("GMPLOOP_POLLER", "")
    monkeypatch.setenv("GMPLOOP_DEBUG", "asyncio=1")
    assert gmploop.run(running()).get_debug()
    assert not gmploop.run(running(), debug=False).get_debug()
    for bad, part in ("asyncio", "''"), ("asyncio=yes", "'yes'"), ("asyncio=0,asynci=1", "'asynci'"):
        monkeypatch.setenv("GMPLOOP_DEBUG", bad)
        with pytest.raises(ValueError, match=f"^GMPLOOP_DEBUG.*not {part}$"):
            gmploop.new_event_loop()


# -- policies ---------------------------------------------------------------------------------------------------------


@POLICIES
@pytest.mark.filterwarnings("ignore:.*event loop:DeprecationWarning")
def test_policy_makes_gmploop_loops_wherever_asyncio_makes_one(policy):
    ours = isinstance(policy, gmploop.EventLoopPolicy)
    assert isinstance(asyncio.run(running()), gmploop.Loop) is ours
    with asyncio.Runner() as runner:
        assert isinstance(runner.get_loop(), gmploop.Loop) is ours
    loop = asyncio.new_event_loop()
    assert isinstance(loop, gmploop.Loop) is ours
    asyncio.set_event_loop(loop)
    assert asyncio.get_event_loop() is loop
    loop.close()


@POLICIES
def test_get_event_loop_without_a_loop(policy):
    """3.11 makes one for the main thread, 3.12 and 3.13 warn as well, 3.14 refuses. Other threads never get one."""
    def in_a_thread():
        with pytest.raises(RuntimeError, match="no current event loop"):
            asyncio.get_event_loop()
        done.append(True)

    done = []
    thread = threading.Thread(target=in_a_thread)
    thread.start()
    thread.join()
    assert done
    if sys.version_info >= (3, 14):
        with pytest.raises(RuntimeError, match="no current event loop"):
            asyncio.get_event_loop()
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loop = asyncio.get_event_loop()
    assert isinstance(loop, gmploop.Loop) is isinstance(policy, gmploop.EventLoopPolicy)
    # 3.12.0 and later warn; where they do, they blame this file
    assert len(caught) == (sys.version_info >= (3, 12)) and all(w.filename == __file__ for w in caught)
    assert asyncio.get_event_loop() is loop
    loop.close()


@POLICIES
def test_set_event_loop_refuses_what_is_no_loop(policy):
    with pytest.raises((TypeError, AssertionError)):
        asyncio.set_event_loop("loop")


@POLICIES
@WATCHERS
@pytest.mark.filterwarnings("ignore:.*hild.*atcher:DeprecationWarning")
@pytest.mark.parametrize("kind", [None, "ThreadedChildWatcher", "SafeChildWatcher", "PidfdChildWatcher"])
def test_child_watchers(policy, kind):
    async def main():
        process = await asyncio.create_subprocess_exec("sh", "-c", "exit 7")
        return await process.wait()

    if kind is None:
        assert isinstance(asyncio.get_child_watcher(), asyncio.AbstractChildWatcher)
        assert asyncio.run(main()) == 7
        return
    watcher = getattr(asyncio, kind)()
    asyncio.set_child_watcher(watcher)
    assert asyncio.get_child_watcher() is watcher
    assert asyncio.run(main()) == 7
    if isinstance(policy, gmploop.EventLoopPolicy):
        assert gmploop.run(main()) == 7
    asyncio.set_child_watcher(None)


@POLICIES
def test_policy_options_reach_its_loops():
    loop = gmploop.EventLoopPolicy(debug=True, poller="epoll").new_event_loop()
    assert loop.get_debug()
    loop.close()


# -- the import, and Pythons to come ----------------------------------------------------------------------------------

SHOW = """
import asyncio
async def main():
    return isinstance(asyncio.get_running_loop(), gmploop.Loop)
print(asyncio.run(main()))
"""


@pytest.mark.parametrize("line", ["pass", "gmploop.install()", "gmploop.install(debug=True)"])
def test_import_and_install_warn_on_no_python(line):
    done = python(f"import gmploop\n{line}\n{SHOW}", "-W", "error")
    assert (done.stdout, done.stderr) == (f"{line != 'pass'}\n", "")


def test_where_asyncio_has_no_policies():
    """As 3.16 will be, for all that gmploop can see of it."""
    hide = """
import asyncio, sys
from asyncio import events, unix_events
for module in asyncio, events, unix_events:
    for name in [n for n in vars(module) if n.endswith("Policy") or n.endswith("_event_loop_policy")]:
        delattr(module, name)
sys.version_info = (3, 16, 0, "final", 0)
events.new_event_loop = asyncio.new_event_loop = unix_events._UnixSelectorEventLoop
current = []
events.set_event_loop = asyncio.set_event_loop = current.append
import gmploop
assert not hasattr(gmploop, "EventLoopPolicy") and "EventLoopPolicy" not in gmploop.__all__
from gmploop import *
print(type(gmploop.run(asyncio.sleep(0, 5))))
install(debug=True)
"""
    done = python(hide + SHOW, "-W", "error")
    assert (done.stdout, done.stderr) == ("<class 'int'>\nTrue\n", "")


@pytest.mark.skipif(not hasattr(sys, "_is_gil_enabled") or sys._is_gil_enabled(), reason="needs a free-threaded Python")
def test_import_leaves_the_gil_off():
    done = python("import sys, gmploop; print(sys._is_gil_enabled())", "-W", "error")
    assert (done.stdout, done.stderr) == ("False\n", "")
