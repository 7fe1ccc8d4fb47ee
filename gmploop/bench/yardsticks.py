"""What others take for rows of sched.py: Go, and on this interpreter asyncio, uvloop and tonio, each if it is there."""

import asyncio
import importlib.util
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path

SPAWNS = 20000


def go():
    """spawn, channel hop, and p99 beside a blocker."""
    if not shutil.which("go"):
        print("go       left out: there is no go program (Debian: golang-go)")
        return
    source = Path(__file__).with_name("yardstick.go")
    print(subprocess.run(["go", "run", source], capture_output=True, text=True, check=True).stdout, end="")


async def _nothing():
    pass


async def _spawn_tasks():
    start = time.perf_counter()
    for _ in range(SPAWNS // 100):
        for task in [asyncio.create_task(_nothing()) for _ in range(100)]:
            await task
    return (time.perf_counter() - start) / SPAWNS * 1e9


def _a_loop_per_thread(factory, threads):
    """ns a task, of all threads together."""
    def run():
        with asyncio.Runner(loop_factory=factory) as runner:
            took.append(runner.run(_spawn_tasks()))
    took = []
    pool = [threading.Thread(target=run) for _ in range(threads)]
    for thread in pool:
        thread.start()
    for thread in pool:
        thread.join()
    return max(took) / threads


def tonio_here(threads):
    """Once in a process, as its runtime."""
    import tonio.colored as tonio

    async def main():
        took = []
        for _ in range(5):
            start = time.perf_counter()
            for _ in range(SPAWNS // 100):
                await tonio.spawn(*[_nothing() for _ in range(100)])
            took.append((time.perf_counter() - start) / SPAWNS * 1e9)
        return min(took)
    print(tonio.run(main(), threads=threads))


def _tonio(threads):
    source = f"from gmploop.bench import yardsticks; yardsticks.tonio_here({threads})"
    return float(subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True).stdout)


def _uvloop(threads):
    import uvloop
    return _a_loop_per_thread(uvloop.new_event_loop, threads)


def _asyncio(threads):
    return _a_loop_per_thread(asyncio.SelectorEventLoop, threads)


def peers():
    """Making a task and awaiting it: by asyncio and uvloop in a loop per thread, by tonio's scheduler."""
    for name, measure in ("asyncio", _asyncio), ("uvloop", _uvloop), ("tonio", _tonio):
        if not importlib.util.find_spec(name):
            print(f"peers    {name}: not installed")
            continue
        for threads in 1, 2:
            print(f"peers    {name}: spawn {min(measure(threads) for _ in range(5)):.0f} ns on {threads} threads")
