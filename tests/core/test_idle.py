"""An idle loop makes no wake-ups. Looked at from outside, over a measuring pause."""

import os
import subprocess
import sys
import time

import gmploop
import pytest

pytestmark = pytest.mark.timeout(60)

PROGRAM = """
import asyncio, os, sys
import gmploop

async def serve():
    loop = asyncio.get_running_loop()
    server = await loop.create_server(asyncio.Protocol, "127.0.0.1", 0)
    return [await loop.create_connection(asyncio.Protocol, *server.sockets[0].getsockname()) for _ in range(100)]

async def prepare(kind):
    loop = asyncio.get_running_loop()
    if kind == "connections":
        loop.kept = await serve()
    elif kind == "timer":
        loop.call_later(1000, print)
        loop.call_later(1e300, print)
    elif kind == "tasks":
        loop.kept = [loop.create_task(asyncio.sleep(100)) for _ in range(100)], loop.create_task(asyncio.Event().wait())
    elif kind == "after work":
        for _ in range(2000):
            await asyncio.sleep(0)
        await loop.run_in_executor(None, int)
        loop.call_later(5, print).cancel()
    elif kind == "reader":
        loop.kept = os.pipe()
        loop.add_reader(loop.kept[0], print)

loop = gmploop.new_event_loop()
loop.run_until_complete(prepare(sys.argv[1]))
loop.call_later(0.01, os.write, 1, b".")
loop.run_forever()
"""

KINDS = ["nothing", "connections", "timer", "tasks", "after work", "reader"]


def activity(pid):
    """Context switches that the process's threads made of their own will, and their CPU time (ns)."""
    switches = cpu_ns = 0
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/status") as status:
            switches += sum(int(line.split()[1]) for line in status if line.startswith("voluntary_ctxt_switches"))
        with open(f"/proc/{pid}/task/{task}/schedstat") as stat:
            cpu_ns += int(stat.read().split()[0])
    return switches, cpu_ns


def asleep(pid):
    """Whether each thread of the process sleeps."""
    states = []
    for task in os.listdir(f"/proc/{pid}/task"):
        with open(f"/proc/{pid}/task/{task}/stat") as stat:
            states.append(stat.read().rpartition(")")[2].split()[0])
    return set(states) == {"S"}


def looked_at(processes):
    return [activity(process.pid)[0] for process in processes.values()]


@pytest.fixture(scope="module")
def idle_second():
    """What each kind of idle process did in one second, all measured side by side."""
    env = {**os.environ, "PYTHONPATH": os.path.dirname(os.path.dirname(gmploop.__file__))}
    processes = {kind: subprocess.Popen([sys.executable, "-P", "-c", PROGRAM, kind], stdout=subprocess.PIPE, env=env)
                 for kind in KINDS}
    try:
        for process in processes.values():
            assert process.stdout.read(1) == b"."
        deadline = time.monotonic() + 10
        last = None
        # sysmon goes to sleep a few naps after its loop
        while not all(asleep(process.pid) for process in processes.values()) or last != (last := looked_at(processes)):
            assert time.monotonic() < deadline, "a loop with nothing to do does not go to sleep"
            time.sleep(0.1)
        before = {kind: activity(process.pid) for kind, process in processes.items()}
        time.sleep(1)                   # the measuring pause
        after = {kind: activity(process.pid) for kind, process in processes.items()}
        still = [kind for kind, process in processes.items() if process.poll() is None]
    finally:
        for process in processes.values():
            process.kill()
            process.wait()
            process.stdout.close()
    assert still == KINDS
    return {kind: tuple(b - a for a, b in zip(before[kind], after[kind])) for kind in KINDS}


@pytest.mark.parametrize("kind", KINDS)
def test_an_idle_loop_makes_no_wake_ups_and_uses_no_cpu(idle_second, kind):
    switches, cpu_ns = idle_second[kind]
    assert switches == 0
    assert cpu_ns < 1_000_000           # 0.1 % of the second; 0 but for the kernel's own accounting
