"""Without memory for a moment: what asked for it gets MemoryError, or is done later; no thread and no goroutine is lost."""

import os
import pathlib
import platform
import subprocess
import sys

import pytest
from gmploop import config

pytestmark = [pytest.mark.timeout(60),
              pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="the memory that is refused is glibc's"),
              pytest.mark.skipif("san" in os.environ.get("LD_PRELOAD", ""), reason="a sanitizer has a malloc() of its own")]

HEAD = """
import asyncio, ctypes, sys, time
import gmploop
from gmploop import go
libc = ctypes.CDLL(None)
left, size, done = (ctypes.c_int.in_dll(libc, "refuse"), ctypes.c_size_t.in_dll(libc, "refuse_size"),
                    ctypes.c_int.in_dll(libc, "refused"))
def refuse(n, of=0):
    size.value, left.value = of, n
RING = 16 + 4 * 8           # the first block of a ring: ring.h
PLACE = 16                  # gl_place of ptimers.h
"""


# There the wake-up is a task's, which is asyncio's: it asks for memory of its own, and what wakes it hears of it.
no_task_at_first = pytest.mark.skipif(sys.version_info >= (3, 14), reason="each goroutine has a task from Python 3.14 on")


@pytest.fixture(scope="module")
def no_memory(tmp_path_factory):
    library = tmp_path_factory.mktemp("preload") / "no_memory.so"
    try:
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, pathlib.Path(__file__).with_name("no_memory.c"), "-ldl"],
                       check=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("no C compiler")
    return str(library)


@pytest.fixture
def short_of_memory(program, no_memory):
    def run(source, **env):
        return program(HEAD + source, LD_PRELOAD=f"{no_memory} {os.environ.get('LD_PRELOAD', '')}", **env)
    return run


def test_a_goroutine_that_goes_to_sleep_without_memory_for_its_timer_wakes_all_the_same(short_of_memory):
    done = short_of_memory("""
async def sleeps():
    asyncio.get_running_loop().call_later(1000, int)        # a heap of its own; the P's knows nothing of it yet
    refuse(3, PLACE)
    await asyncio.sleep(0.05)
    return "awake"
async def main():
    print(await asyncio.wait_for(go(sleeps), 10), done.value)
    print(await asyncio.wait_for(go(pow, 2, 3), 10))
gmploop.run(main(), procs=1)
""")
    refused = done.stderr.count("\nMemoryError")
    assert 1 <= refused <= 3                    # fewer if the time has come meanwhile
    assert done.stdout == f"awake {refused}\n8\n", done.stderr


@no_task_at_first
def test_a_root_coroutine_that_is_woken_without_memory_is_stepped_later(short_of_memory):
    done = short_of_memory("""
event = gmploop.Event()
async def waits():
    def sets():
        asyncio.get_running_loop().call_soon(int)   # the ring has its only place taken
        refuse(2, RING)
        event.set()
    asyncio.get_running_loop().call_soon(sets)
    await event.wait()
    return "woken"
async def main():
    print(await asyncio.wait_for(go(waits), 10), done.value)
    print(await asyncio.wait_for(go(pow, 2, 3), 10))
gmploop.run(main(), procs=1)
""")
    assert done.stdout.splitlines()[1:] == ["8"] and done.stdout.startswith("woken "), done.stderr
    assert int(done.stdout.split()[1]) >= 1 and done.stderr == ""


def test_a_root_coroutine_that_others_wake_without_memory_is_stepped_later(short_of_memory):
    done = short_of_memory("""
items = gmploop.Channel(1)
async def main():
    waits = go(items.recv)
    await asyncio.sleep(0.05)
    blocks = go(time.sleep, 0.1)                    # the only P: what follows is seen by one turn
    await asyncio.sleep(0.05)
    waits.get_loop().call_soon_threadsafe(int)
    items.send_nowait("item")
    refuse(2, RING)
    print(await asyncio.wait_for(waits, 10), done.value >= 1)
    await blocks
    print(await asyncio.wait_for(go(pow, 2, 3), 10))
gmploop.run(main(), procs=1)
""", GMPLOOP_DEBUG="retake_ms=0,queue_ms=0,latepoll_ms=0")
    assert done.stdout == "item True\n8\n", done.stderr


def test_timers_that_are_due_without_memory_are_run_later(short_of_memory):
    done = short_of_memory("""
async def body():
    loop, ran = asyncio.get_running_loop(), []
    over = asyncio.Event()
    waits = loop.create_task(over.wait())       # what is refused is the ring's, no task's
    await asyncio.sleep(0.001)
    for i in range(3):
        loop.call_later(0.01, ran.append, i)
    loop.call_later(0.01, over.set)
    time.sleep(0.02)
    refuse(2, RING)
    await waits
    return ran, done.value
async def main():
    print(await asyncio.wait_for(go(body), 10))
gmploop.run(main(), procs=1)
""")
    assert done.stdout == "([0, 1, 2], 2)\n", done.stderr
    assert "MemoryError" in done.stderr


@pytest.mark.skipif(not config.gil_enabled(), reason="CPython's hooks are not made for threads at once")
def test_who_waits_for_a_goroutine_without_memory_gets_an_error_and_holds_no_lock(program):
    pytest.importorskip("_testcapi")
    done = program("""
        import _testcapi, asyncio
        import gmploop
        async def main():
            over, told, refused = gmploop.Event(), [], 0
            waits = gmploop.go(over.wait)
            for i in range(200):
                start = i % 12
                callback = told.append
                _testcapi.set_nomemory(start, start + 1)
                try:
                    waits.add_done_callback(callback)
                except MemoryError:
                    refused += 1
                finally:
                    _testcapi.remove_mem_hooks()
                waits.done(), waits.get_loop()          # these take the lock
            over.set()
            await waits
            await asyncio.sleep(0.01)
            print(len(told) + refused, refused > 0)
        gmploop.run(main())
    """)
    assert done.stdout == "200 True\n", done.stderr


@no_task_at_first
def test_a_root_coroutine_that_cannot_have_a_task_without_memory_gets_an_error(short_of_memory):
    done = short_of_memory("""
async def body():
    later = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_later(0.01, later.set_result, "later")
    refuse(1)
    try:
        await later
    except MemoryError:
        return await later
async def main():
    print(await asyncio.wait_for(go(body), 10), done.value)
gmploop.run(main(), procs=1)
""")
    assert (done.stdout, done.stderr) == ("later 1\n", "")
