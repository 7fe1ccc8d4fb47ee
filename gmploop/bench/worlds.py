"""What the children of the sched rows share: the work of the worlds, repeating it, and the answer. See `contests`.

The work is written against asyncio alone, so that gmploop's goroutines, asyncio and uvloop run the very same code.
"""

import asyncio
import json
import os
import resource
import statistics
import sys
import time

WORLDS = 200
PAIRED_WORLDS = 100         # of the rows whose value is a ratio
SPAWNS, HOPS = 10_000, 10_000
BATCH = 100
BLOCK_S = 0.2
PARKED_TASKS = 1000         # of the idle row


async def compute_in_turns():
    """40 turns that compute."""
    for _ in range(40):
        total = 0
        for k in range(1000):
            total += k * k
        await asyncio.sleep(0)


async def queue_and_lock():
    """Tasks, a queue and a lock."""
    queue, lock = asyncio.Queue(), asyncio.Lock()

    async def produce():
        for k in range(100):
            async with lock:
                await queue.put(k)
    for _ in range(3):
        task = asyncio.create_task(produce())
        for _ in range(100):
            await queue.get()
        await task


async def nothing():
    pass


def compute(seconds):
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        sum(range(200))


BLOCKERS = {"blocker-sleep": lambda: time.sleep(BLOCK_S), "blocker-compute": lambda: compute(BLOCK_S)}


async def block_until(done, block):
    while not done.is_set():
        block()
        await asyncio.sleep(0)


async def lateness(seconds, sleep=asyncio.sleep):
    """How late sleeps of a millisecond end, as percentiles; at least a hundred of them where that takes no minute."""
    late, start = [], time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds or len(late) < 100 and passed < 10 * seconds:
        began = time.perf_counter()
        await sleep(0.001)
        late.append((time.perf_counter() - began) * 1e3 - 1)
    late.sort()
    p50, p99 = (late[int(len(late) * share)] for share in (0.5, 0.99))
    return {"value": p99, "p50_ms": p50, "max_ms": late[-1], "samples": len(late)}


def repeated(measure, seconds):
    """The median of what `measure()` returns, as often as there is time for after a first one that warms up."""
    values, end = [], time.perf_counter() + seconds
    measure()
    while not values or time.perf_counter() < end:
        values.append(measure())
    return {"value": statistics.median(values), "repeated": len(values)}


def scaling(run, seconds, least=5):
    """The time that `run(2)` takes over that of `run(1)`: the median of pairs, one after the other, after one to warm up.
    What changes on the machine within a second hits both."""
    ratios, end = [], time.perf_counter() + seconds
    seconds_of(run, 2)
    while len(ratios) < least or time.perf_counter() < end:
        one = seconds_of(run, 1)
        ratios.append(seconds_of(run, 2) / one)
    ratios.sort()
    return {"value": statistics.median(ratios), "least": ratios[0], "most": ratios[-1], "repeated": len(ratios)}


def seconds_of(run, *args):
    start = time.perf_counter()
    run(*args)
    return time.perf_counter() - start


def resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def switches():
    """Voluntary context switches of all threads until now."""
    total = 0
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/status") as status:
            total += sum(int(line.split()[1]) for line in status if line.startswith("voluntary_ctxt"))
    return total


def idle_switches(seconds):
    """Switches a second while the process does nothing; by a thread that nobody waits for but a loop that sleeps."""
    time.sleep(0.5)         # what looked after the loop, or spun, has gone to sleep
    before = switches()
    time.sleep(seconds)
    return (switches() - before - 1) / seconds          # this thread's own


def cpu_time():
    """Seconds, children that have ended included."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def answer(rows, settings):
    """Measure the row that `settings` names, and print its figures."""
    cpu, wall = cpu_time(), time.perf_counter()
    figures = rows[settings["row"]](settings)
    share = (cpu_time() - cpu) / (time.perf_counter() - wall)
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    json.dump({**figures, "cpu_share": share, "gil": gil}, sys.stdout)
