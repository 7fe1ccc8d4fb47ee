"""What goroutines cost: `python -m gmploop.bench.sched [ROW...]`. Each row is printed as it is measured.

cpu      worlds that compute between turns: seconds on one P and on two, and their ratio (free-threaded builds)
tasks    worlds whose work is tasks, queues and locks: the same
spawn    go() and await of an empty goroutine from a goroutine, ns: by a hundred, and one after the other
hop      from one goroutine to another by a Channel, ns: as the scheduler places them, which is on one P, and with each
         locked to a thread of its own
parked   bytes of resident memory for each goroutine that waits at an Event
blocker  p99 of a 1 ms sleep beside a goroutine that blocks 200 ms at a time, ms
idle     context switches a second of a process with 1,000 parked goroutines
latency  from runnable to running, p50 and p99, at half load: 20 goroutines that compute 50 us and sleep 2 ms; published
         for a tuned Go: 5.1 and 22 us
retake   how late sysmon takes the P from a callback that blocks: after its 10 ms another goroutine runs; least, median, most
steps    what each step of looking for work costs (C, one thread; needs a compiler); published for Go: local ring 28 ns,
         global queue 112 ns, poll 320 ns, steal 1.7 us
go, peers  Go itself, and asyncio, uvloop (a loop per thread) and tonio on this interpreter: spawn and join, and more
"""

import asyncio
import os
import random
import statistics
import subprocess
import sys
import threading
import time

import gmploop
from gmploop import go
from gmploop.bench import native, yardsticks
from gmploop.goroutine import percentile

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

    async def one_by_one():
        start = time.perf_counter()
        for _ in range(n):
            await go(nothing)
        return (time.perf_counter() - start) / n * 1e9

    async def main(spawns):
        return await go(spawns)
    for procs in 1, 2:
        many, one = (best(lambda: gmploop.run(main(spawns), procs=procs)) for spawns in (spawner, one_by_one))
        print(f"spawn    {many:.0f} ns by a hundred, {one:.0f} ns one after the other, on {procs} P")


def hop(n=20000, apart=False):
    async def echo(there, back):
        if apart:
            gmploop.lock_os_thread()
        for _ in range(n):
            await back.send(await there.recv())

    async def ask(there, back):
        if apart:
            gmploop.lock_os_thread()
        start = time.perf_counter()
        for number in range(n):
            await there.send(number)
            await back.recv()
        return (time.perf_counter() - start) / (2 * n) * 1e9

    async def main():
        channels = gmploop.Channel(), gmploop.Channel()
        other = go(echo, *channels)
        took = await go(ask, *channels)
        await other
        return took
    if apart:
        return print(f"hop      {best(lambda: gmploop.run(main(), procs=2), 3):.0f} ns from thread to thread")
    for procs in 1, 2:
        print(f"hop      {best(lambda: gmploop.run(main(), procs=procs)):.0f} ns on {procs} P")
    hop(n // 10, apart=True)


def _resident():
    with open("/proc/self/statm") as statm:
        return int(statm.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def parked(n=1_000_000):
    never = gmploop.Event()

    async def waits():
        await never.wait()

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


def _waits():
    """Of all Ps: {ns: how many waits were shorter}."""
    total = {}
    for row in gmploop.stats()["per_proc"]:
        for below, n in row["latency_ns"].items():
            total[below] = total.get(below, 0) + n
    return total


def latency(seconds=3):
    async def body(until):
        while time.monotonic() < until:
            end = time.perf_counter() + 50e-6
            while time.perf_counter() < end:
                pass
            await asyncio.sleep(0.004 * random.random())

    async def main():
        await go(asyncio.sleep, 0)          # a run's first goroutine begins its counters
        before = _waits()
        await asyncio.gather(*[go(body, time.monotonic() + seconds) for _ in range(20)])
        return {below: n - before.get(below, 0) for below, n in _waits().items()}
    for procs in 1, 2:
        waits = gmploop.run(main(), procs=procs)
        p50, p99 = (percentile(waits, percent) / 1e3 for percent in (50, 99))
        print(f"latency  p50 {p50:.1f} us   p99 {p99:.1f} us on {procs} P, of {sum(waits.values())} waits sampled")


def retake(times=50):
    """Two goroutines on one P: the first blocks, and the second, already runnable, says when it ran."""
    async def other():
        return time.perf_counter()

    async def blocks():
        waiting, start = go(other), time.perf_counter()
        time.sleep(0.03)
        return (await waiting - start) * 1e3

    async def main():
        return [await go(blocks) for _ in range(times)]
    took = gmploop.run(main(), procs=1)
    print(f"retake   after {min(took):.2f}, {statistics.median(took):.2f}, {max(took):.2f} ms")


def steps():
    try:
        program = native.build("sched_steps")
    except native.NoCompiler as error:
        print(f"steps    {error}")
        return
    done = subprocess.run([program], capture_output=True, text=True, check=True)
    local, queue, poll, steal = done.stdout.split()
    print(f"steps    local ring {local} ns, global queue {queue} ns, poll {poll} ns, steal {steal} ns")


ROWS = {"cpu": cpu, "tasks": tasks, "spawn": spawn, "hop": hop, "parked": parked, "blocker": blocker, "idle": idle,
        "latency": latency, "retake": retake, "steps": steps, "go": yardsticks.go, "peers": yardsticks.peers}

if __name__ == "__main__":
    for row in sys.argv[1:] or ROWS:
        ROWS[row]()
