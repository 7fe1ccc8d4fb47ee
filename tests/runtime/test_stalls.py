"""A loop with a thread of its own, main()'s or any other, whose callback goes on for long: that is counted, and told."""

import re
import sys
import textwrap

import pytest

pytestmark = pytest.mark.timeout(60)

HEAD = """
import asyncio, logging, os, sys, threading, time
import gmploop
logging.basicConfig()
told = threading.Event()

class Telling(logging.Handler):
    def emit(self, record):
        if "has run for" in record.getMessage():
            told.set()
logging.getLogger("asyncio").addHandler(Telling())

def stalls():
    return gmploop.stats()["stalls"]

def culprit(seconds=20, pause=time.sleep):
    # until that is noticed, and longer; at most so long
    before, end = stalls(), time.monotonic() + seconds
    debug = asyncio.get_running_loop().get_debug()
    while time.monotonic() < end and not (told.is_set() if debug else stalls() > before):
        pause(0.005)
    pause(0.2)

def computes(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass

async def inner(*args):
    culprit(*args)

async def main(*args):
    await asyncio.create_task(inner(*args), name="the sleeper")

def drop_in(main, **options):
    with asyncio.Runner(loop_factory=gmploop.new_event_loop, **options) as runner:
        runner.run(main)
"""
TOLD = "A callback has run for"


@pytest.fixture
def ends(program):
    """Runs a program; it must end well. What it has printed, and what was logged."""
    def run(source, **env):
        done = program(HEAD + textwrap.dedent(source), **env)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip(), done.stderr
    return run


WAYS = {
    "main": "gmploop.run(main(){})",
    "drop-in": "drop_in(main(){})",
    "beside goroutines": "async def both():\n    await gmploop.go(int)\n    await main()\ngmploop.run(both(){})",
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("tasks", ["own", "asyncio"])
def test_it_is_told_with_thread_task_and_stack_in_debug_mode(ends, way, tasks):
    counted, told = ends(WAYS[way].format(", debug=True") + "\nprint(stalls())", GMPLOOP_TASKS=tasks)
    assert int(counted) >= 1
    assert "in the loop of thread 'MainThread', task 'the sleeper', inner:" in told and "in culprit" in told
    assert len(re.findall(f"{TOLD}.*'the sleeper'", told)) == 1
    assert float(re.search(TOLD + r" ([0-9.]+) .*'the sleeper'", told)[1]) >= 0.1


@pytest.mark.parametrize("way", WAYS)
def test_without_debug_mode_it_is_counted_only(ends, way):
    counted, told = ends(WAYS[way].format("") + "\nprint(stalls())")
    assert int(counted) >= 1 and told == ""


def test_of_a_loop_in_another_thread_and_of_one_that_computes(ends):
    counted, told = ends("""
        async def body():
            asyncio.get_running_loop().call_soon(culprit, 20, computes)
            await asyncio.sleep(0)
        thread = threading.Thread(target=drop_in, args=(body(),), kwargs={"debug": True}, name="worker")
        thread.start()
        thread.join()
        print(stalls())
    """)
    assert int(counted) >= 1
    assert "in the loop of thread 'worker', culprit:" in told


def test_each_is_counted_once_and_waiting_is_none(ends):
    counted, _ = ends("""
        async def body():
            found = set()
            for _ in range(3):
                before = stalls()
                culprit()
                time.sleep(0.3)
                first = stalls()
                await asyncio.sleep(0.25)
                found.add((first - before, stalls() - first))
            print((1, 0) in found, max(found)[0])       # a busy machine makes stalls of its own
        gmploop.run(body())
    """)
    assert counted == "True 1"


def test_a_long_turn_of_short_callbacks_is_none(ends):
    counted, _ = ends("""
        async def body():
            loop = asyncio.get_running_loop()
            for _ in range(800):
                loop.call_soon(time.sleep, 0.0003)
            await asyncio.sleep(0)
            await asyncio.sleep(0)
        start = time.monotonic()
        gmploop.run(body())
        print(stalls(), time.monotonic() - start)
    """)
    counted, seconds = counted.split()
    assert counted == "0" or float(seconds) > 0.8


@pytest.mark.parametrize("settings, counts", [("stall_ms=0", False), ("stall_ms=100", True), ("stall_ms=5000", False),
                                              ("preempt=observe", True), ("retake_ms=0,queue_ms=0,latepoll_ms=0", True)])
def test_settings(ends, settings, counts):
    counted, told = ends(f"drop_in(main({20 if counts else 0.3}), debug=True)\nprint(stalls())", GMPLOOP_DEBUG=settings)
    assert (int(counted) > 0) == (f"{TOLD}" in told) == counts


def test_the_loop_s_slow_callback_duration_says_from_when_it_is_told(ends):
    body = """
        async def body():
            asyncio.get_running_loop().slow_callback_duration = {}
            await main({})
        drop_in(body(), debug=True)
    """
    def seconds(source, **env):
        return [float(text) for text in re.findall(TOLD + r" ([0-9.]+) .*'the sleeper'", ends(source, **env)[1])]
    # asyncio's own line comes at the end of what takes less than a second
    assert min(seconds(body.format(0.02, 20))) >= 1
    assert min(seconds(body.format(1.3, 20))) >= 1.3
    assert any(seconds(body.format(0.02, 20), GMPLOOP_DEBUG="stall_ms=20")[0] < 0.9 for _ in range(5))     # or it is busy
    assert seconds(body.format(30, 0.3)) == []
    assert len(seconds(body.format(30, 20), GMPLOOP_DEBUG="stall_ms=50")) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="threads are counted in /proc")
def test_fork_is_done_without_the_thread_and_both_processes_are_watched_again(ends):
    """Python warns of a fork with threads from 3.12 on: here that would be an error, on each version."""
    printed, told = ends("""
        def threads():
            return len(os.listdir("/proc/self/task"))

        async def parent():
            await asyncio.sleep(0.001)
            with_sysmon = threads()
            seen = []
            os.register_at_fork(before=lambda: None, after_in_parent=lambda: seen.append(threads()))
            child = os.fork()
            if not child:
                asyncio._set_running_loop(None)
                gmploop.run(main())
                print("child", stalls() > 0, flush=True)
                os._exit(0)
            os.waitpid(child, 0)
            await asyncio.sleep(0.001)
            print(with_sysmon, seen, threads())
            await main()
        gmploop.run(parent())
        print(stalls() > 0)
    """, PYTHONWARNINGS="error::DeprecationWarning")
    assert printed.splitlines() == ["child True", "2 [1] 2", "True"] and told == ""


def test_a_loop_that_was_idle_is_watched_in_the_child(ends):
    printed, _ = ends("""
        loop = gmploop.new_event_loop()
        loop.run_until_complete(asyncio.sleep(0.001))
        child = os.fork()
        if not child:
            loop.run_until_complete(main())
            os._exit(stalls())
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) > 0, stalls())
        loop.close()
    """)
    assert printed == "True 0"


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's counts are in /proc")
def test_a_loop_that_sleeps_is_not_looked_at_and_one_that_wakes_is(ends):
    printed, _ = ends("""
        def switches():
            for task in os.listdir("/proc/self/task"):
                with open(f"/proc/self/task/{task}/status") as status:
                    lines = dict(line.rstrip().partition(":\\t")[::2] for line in status)
                if lines["Name"] == "gmploop-sysmon":
                    return int(lines["voluntary_ctxt_switches"])

        async def body():
            slept = []
            while switches() is None:           # it has yet to start, or to give itself its name
                await asyncio.sleep(0.001)
            for _ in range(3):
                first = switches()
                await asyncio.sleep(0.5)
                slept.append(switches() - first)
            first = switches()
            for _ in range(100):
                await asyncio.sleep(0.001)      # this has no thread woken a hundred times
            print(min(slept), switches() - first < 60)
            await asyncio.sleep(0.3)
            await main()
            print(stalls() > 0)
        gmploop.run(body())
    """)
    slept, few, seen = printed.split()
    # Looking itself wakes it for a few naps; awake all the time it would make 50.
    assert int(slept) <= 12 and (few, seen) == ("True", "True")
