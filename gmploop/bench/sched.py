"""What goroutines cost: `python -m gmploop.bench.sched [ROW...]`. Each row is printed as it is measured.

cpu      worlds that compute between turns: seconds on one P and on two, and their ratio (free-threaded builds)
tasks    worlds whose work is tasks, queues and locks: the same
spawn    go() and await of an empty goroutine from a goroutine, ns
parked   bytes of resident memory for each goroutine that waits
blocker  p99 of a 1 ms sleep beside a goroutine that blocks 200 ms at a time, ms
idle     context switches a second of a process with 1,000 parked goroutines
"""

import asyncio
import os
import sys
import threading
import time

import gmploop
from gmploop import go

WORLDS = 200


def best(measure, times=5):
    """The least of several measurements: others use the machine too."""
    return min(measure() for _ in range(times))


def seconds(main, procs):
    start = time.perf_counter()
    gmploop.run(main(), procs=procs)
    return time.perf_counter() - start


async def _compute():
    for _ in range(40):
        total = 0
        for k in range(1000):
            total += k * k
        await asyncio.sleep(0)


async def _tasks():
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


def _on_one_and_two(name, body):
    async def main():
        await asyncio.gather(*[go(body) for _ in range(WORLDS)])
    one, two = (best(lambda: seconds(main, procs)) for procs in (1, 2))
    print(f"{name:8} 1 P {one:.3f} s   2 Ps {two:.3f} s   ratio {one / two:.2f}")


def cpu():
    _on_one_and_two("cpu", _compute)


def tasks():
    _on_one_and_two("tasks", _tasks)


def spawn(n=20000):
    async def nothing():
        pass

    async def spawner():
        start = time.perf_counter()
        for _ in range(n // 100):
            for handle in [go(nothing) for _ in range(100)]:
                await handle
        return (time.perf_counter() - start) / n * 1e9

    async def main():
        return await go(spawner)
    for procs in 1, 2:
        print(f"spawn    {best(lambda: gmploop.run(main(), procs=procs)):.0f} ns on {procs} P")


def _resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def parked(n=100000):
    async def waits():
        await asyncio.Event().wait()

    async def main():
        before = _resident()
        handles = [go(waits) for _ in range(n)]
        while not handles[-1].get_name():
            await asyncio.sleep(0.01)
        await asyncio.sleep(0.5)
        print(f"parked   {(_resident() - before) / n:.0f} bytes each of {n}")
    gmploop.run(main(), procs=1, shutdown_timeout=60)


def blocker():
    async def blocks(until):
        while not until.is_set():
            time.sleep(0.2)
            await asyncio.sleep(0)

    async def ticks(late):
        for _ in range(1500):
            start = time.perf_counter()
            await asyncio.sleep(0.001)
            late.append(time.perf_counter() - start - 0.001)

    async def main():
        until, late = threading.Event(), []
        blocking = go(blocks, until)
        await go(ticks, late)
        until.set()
        await blocking
        return sorted(late)[int(len(late) * 0.99)] * 1e3
    for procs in 1, 2:
        print(f"blocker  p99 {gmploop.run(main(), procs=procs):.2f} ms on {procs} P")


def _switches():
    total = 0
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/status") as status:
            total += sum(int(line.split()[1]) for line in status if line.startswith("voluntary_ctxt"))
    return total


def idle():
    async def waits():
        await asyncio.Event().wait()

    async def main():
        for _ in range(1000):
            go(waits)
        await asyncio.sleep(0.5)
        before = _switches()
        time.sleep(2)
        print(f"idle     {(_switches() - before - 1) / 2:.1f} context switches a second")
    gmploop.run(main(), procs=2)


ROWS = {"cpu": cpu, "tasks": tasks, "spawn": spawn, "parked": parked, "blocker": blocker, "idle": idle}

if __name__ == "__main__":
    for row in sys.argv[1:] or ROWS:
        ROWS[row]()
