"""A run that can never go on ends with an error that says who waits for what; one that might go on is left alone."""

import os
import signal
import subprocess
import sys
import textwrap

import gmploop
import pytest

pytestmark = pytest.mark.timeout(60)

#: REST_MS is how long a run must have had nothing to do before it is looked at: the shorter, the more can go wrong.
HEAD = """
import asyncio, faulthandler, os, signal, socket, subprocess, sys, threading, time, _thread
import gmploop
from gmploop import config, go
config.REST_MS = 2
jobs, lock = gmploop.Channel(name="jobs"), gmploop.Mutex(name="lock")
async def receives(channel=jobs):
    return await channel.recv()
"""

CERTAIN = {
    "main at a channel": "await jobs.recv()",
    "main at a goroutine": "await go(receives, name='worker')",
    "a lock nobody gives back": "await lock.acquire(); await go(lock.acquire)",
    "two locks in opposite order": """
        other, first, second = gmploop.Mutex(), gmploop.Event(), gmploop.Event()
        async def takes(one, two, mine, its):
            async with one:
                mine.set()
                await its.wait()
                async with two:
                    pass
        async with gmploop.Group() as group:
            group.go(takes, lock, other, first, second)
            group.go(takes, other, lock, second, first)""",
    "a wait group that is not done": "waits = gmploop.WaitGroup(); waits.add(); await waits.wait()",
    "a writer behind a reader": "rw = gmploop.RWMutex(); await rw.reader.acquire(); await rw.writer.acquire()",
    "select": "await gmploop.select(jobs, gmploop.Channel().sending(1))",
    "gather": "await asyncio.gather(go(receives), receives())",
    "TaskGroup": """
        async with asyncio.TaskGroup() as group:
            group.create_task(receives())
            go(receives)""",
    "wait": "await asyncio.wait([asyncio.ensure_future(go(receives)), asyncio.create_task(receives())])",
    "tasks of one world": "await asyncio.create_task(receives())",
    "goroutines that had timers": "go(asyncio.sleep, 0.02); await go(receives)",
    "a goroutine that had computed": "go(time.sleep, 0.03); await go(receives)",
    "one that is locked to its thread": """
        async def locked():
            gmploop.lock_os_thread()
            await receives()
        await go(locked)""",
    "an executor that is idle": "await asyncio.to_thread(int); await go(asyncio.to_thread, int); await jobs.recv()",
    "files that main has written": "await gmploop.fs.write_bytes(os.devnull, b'x' * 100000); await jobs.recv()",
    "files that a goroutine had written": "await go(gmploop.fs.write_bytes, os.devnull, b'x' * 100000); await go(receives)",
    "what was watched": """
        one, two = socket.socketpair()
        loop = asyncio.get_running_loop()
        loop.add_reader(one, int)
        loop.call_later(0.02, loop.remove_reader, one)
        await jobs.recv()""",
    "a signal that was handled": """
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, int)
        loop.call_later(0.02, loop.remove_signal_handler, signal.SIGUSR1)
        await jobs.recv()""",
}

#: Each of them waits as above, and `jobs.send_nowait` comes from somewhere later than REST_MS.
NOT_CERTAIN = {
    "a timer of main": "asyncio.get_running_loop().call_later(0.05, send); await receives()",
    "a timer of a goroutine": """
        async def sends():
            await asyncio.sleep(0.05)
            send()
        waits = go(receives)
        go(sends)
        await waits""",
    "a time limit": """
        try:
            async with asyncio.timeout(0.05):
                await go(receives)
        except TimeoutError:
            pass""",
    "a select with a time limit": "await gmploop.select(jobs, default=None, timeout=0.05)",
    "a thread": "later(threading.Thread(target=sends_late).start); await go(receives)",
    "a thread that threading does not know": "_thread.start_new_thread(sends_late, ()); await go(receives)",
    "a thread that itself waits": """
        asked = gmploop.Channel()
        thread = threading.Thread(target=lambda: (asked.recv_blocking(), send()))
        thread.start()
        async def asks():
            await asyncio.to_thread(time.sleep, 0.05)
            await asked.send(1)
        go(asks)
        await receives()
        thread.join()""",
    "a thread's loop": """
        thread = threading.Thread(target=lambda: asyncio.run(asyncio.sleep(0.05)) or send())
        thread.start()
        await receives()
        thread.join()""",
    "an executor that works": "go(asyncio.to_thread, sends_late); await receives()",
    "a callback that blocks": "go(sends_late); await receives()",
    "blocking()": "go(gmploop.blocking, sends_late); await receives()",
    "a callback that computes": """
        def computes():
            end = time.monotonic() + 0.05
            while time.monotonic() < end:
                pass
            send()
        go(computes)
        await go(receives)""",
    "one that is locked to its thread": """
        def locked():
            gmploop.lock_os_thread()
            sends_late()
        go(locked)
        await go(receives)""",
    "another process": "await go(subprocess_ends); await asyncio.gather(go(receives), after_process())",
    "another process, for main": "await asyncio.gather(receives(), after_process())",
    "a descriptor of main": """
        one, two = socket.socketpair()
        child = subprocess.Popen(["sh", "-c", "sleep 0.05; echo"], stdout=two)
        loop = asyncio.get_running_loop()
        loop.add_reader(one, lambda: (loop.remove_reader(one), send()))
        await go(receives)
        child.wait()""",
    "a descriptor of a goroutine": """
        one, two = socket.socketpair()
        one.setblocking(False)
        child = subprocess.Popen(["sh", "-c", "sleep 0.05; echo"], stdout=two)
        async def reads():
            await asyncio.get_running_loop().sock_recv(one, 9)
            send()
        go(reads)
        await go(receives)
        child.wait()""",
    "a signal handler of main": """
        asyncio.get_running_loop().add_signal_handler(signal.SIGALRM, send)
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        await go(receives)""",
    "a signal handler": """
        signal.signal(signal.SIGALRM, lambda *_: send())
        signal.setitimer(signal.ITIMER_REAL, 0.05)
        await go(receives)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)""",
    "a ping-pong that never sleeps": """
        ping, pong = gmploop.Channel(), gmploop.Channel()
        async def answers():
            async for item in ping:
                await pong.send(item)
        go(answers)
        end = time.monotonic() + 0.05
        while time.monotonic() < end:
            await ping.send(1)
            await pong.recv()""",
}

HELPERS = """
def send():
    jobs.send_nowait(1)
def sends_late():
    time.sleep(0.05)
    send()
def later(start):
    start()
async def subprocess_ends():
    await (await asyncio.create_subprocess_exec("true")).wait()
async def after_process():
    process = await asyncio.create_subprocess_exec("sleep", "0.05")
    await process.wait()
    send()
"""


def source_of(cases):
    """A program that runs each of the cases by gmploop.run, locked to the main thread or not, and prints how it ended."""
    bodies = "".join(f"async def case{i}():\n{textwrap.indent(textwrap.dedent(body).strip(), '    ')}\n"
                     for i, body in enumerate(cases.values()))
    return HEAD + HELPERS + bodies + f"""
for lock_main in True, False:
    for name, case in zip({list(cases)!r}, [{", ".join(f"case{i}" for i in range(len(cases)))}]):
        if not lock_main and ("signal" in name or "main has written" in name):
            continue                # for the main thread's loop
        lock.try_acquire()
        lock.release()
        try:
            gmploop.run(case(), lock_main=lock_main, procs=2)
            print(name, "goes on")
        except gmploop.DeadlockError as error:
            print(name, "is dead" if "all goroutines are asleep - deadlock!" in str(error) else error)
"""


def names(cases, unlocked, end):
    return [f"{name} {end}" for lock in (True, False) for name in cases if lock or name not in unlocked]


def test_what_is_certain_ends_the_run(program):
    cases = {name: body for name, body in CERTAIN.items() if name not in ("what was watched", "a signal that was handled")}
    done = program(source_of(cases))
    assert done.stdout.splitlines() == names(cases, ("files that main has written",), "is dead"), done.stderr


@pytest.mark.parametrize("env", [{}, {"GMPLOOP_POLLER": "io_uring"}, {"GMPLOOP_TASKS": "asyncio"}])
def test_what_is_certain_by_other_pollers_and_tasks(program, env):
    names_ = "main at a goroutine", "gather", "what was watched", "a signal that was handled", "an executor that is idle"
    source = source_of({name: CERTAIN[name] for name in names_}).replace("for lock_main in True, False", "for lock_main in True,")
    done = program(source, **env)
    assert done.stdout.splitlines() == [f"{name} is dead" for name in names_], done.stderr


@pytest.mark.parametrize("env", [{}, {"GMPLOOP_POLLER": "io_uring", "GMPLOOP_TASKS": "asyncio"}])
def test_what_may_go_on_is_left_alone(program, env):
    room = HEAD.replace('Channel(name="jobs")', 'Channel(1, name="jobs")')      # for an item that comes before its receiver
    done = program(source_of(NOT_CERTAIN).replace(HEAD, room), **env)
    assert done.stdout.splitlines() == names(NOT_CERTAIN, ("a signal handler of main", "a signal handler"), "goes on"), done.stderr


@pytest.fixture
def started_program():
    """Starts source text as a program; returns the process, whose output can be read."""
    root = os.path.dirname(os.path.dirname(gmploop.__file__))
    processes = []

    def start(source, **env):
        processes.append(subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                          text=True, env={**os.environ, "PYTHONPATH": root, **env}))
        return processes[-1]
    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.parametrize("body", [
    "await go(int); await asyncio.Event().wait()",
    "go(receives); await asyncio.get_running_loop().create_future()",
    "await asyncio.gather(go(receives), asyncio.get_running_loop().create_future())",
    "await asyncio.gather(go(receives), go(asyncio.Event().wait))",
    "await asyncio.wait([asyncio.ensure_future(go(receives)), asyncio.get_running_loop().create_future()])",
    "await asyncio.shield(asyncio.get_running_loop().create_future()) if await go(int) == 0 else None",
    "go(receives); go(asyncio.Queue().get); await jobs.recv()",
    "pool = __import__('concurrent').futures.ThreadPoolExecutor(); pool.submit(int).result(); await go(receives)",
    "faulthandler.dump_traceback_later(1000); await go(receives)",
    "signal.signal(signal.SIGUSR1, lambda *_: None); await go(receives)",
    "reader, writer = os.pipe(); asyncio.get_running_loop().add_reader(reader, int); await go(receives)",
])
def test_what_is_not_known_is_left_alone(started_program, body):
    """It is looked at, and goes on until Ctrl-C."""
    process = started_program(HEAD + f"""
from gmploop import deadlock
class Run(deadlock.Run):
    def at_rest(self, loop):
        watch = super().at_rest(loop)
        print("looked", flush=True)
        return watch
deadlock.Run = Run
async def main():
    {body}
gmploop.run(main())
""")
    assert process.stdout.readline() == "looked\n"
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=20)
    assert "KeyboardInterrupt" in err and "Deadlock" not in err


def test_an_idle_run_looks_three_times_and_sleeps(program):
    done = program(HEAD + """
from gmploop import deadlock
looks, real = [], deadlock.find
deadlock.find = lambda loop: looks.append(1) or real(loop)
def switches():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("voluntary_ctxt"))
def seen():
    return len(looks), switches()
def measures():
    while len(looks) < 3:       # this thread may end
        time.sleep(0.01)
    for _ in range(50):         # a look before the goroutine had come to rest began the three anew
        before = seen()
        time.sleep(0.3)         # longer than the longest pause between two looks
        if seen() == before:
            print("sleeps")
            break
    jobs.send_nowait(1)
async def main():
    threading.Thread(target=measures).start()
    await go(receives)
gmploop.run(main())
""")
    assert done.stdout == "sleeps\n", done.stderr


@pytest.mark.parametrize("lock_main", [True, False])
def test_main_and_goroutines_are_cancelled_as_ever(program, lock_main):
    done = program(HEAD + f"""
async def worker():
    try:
        await receives()
    finally:
        print("worker ends")
async def main():
    worker_ = go(worker, name="the worker")
    await asyncio.sleep(0.01)
    try:
        await lock.acquire()
        await lock.acquire()
    finally:
        await asyncio.sleep(0.01)
        print("main ends")
gmploop.run(main(), lock_main={lock_main})
""")
    assert (done.stdout, done.returncode) == ("main ends\nworker ends\n", 1)
    assert done.stderr.count("Traceback") == 1
    last = done.stderr[done.stderr.index("gmploop.DeadlockError: all goroutines are asleep - deadlock!"):]
    for text in ("waits in Mutex.acquire for <Mutex 'lock' locked, 1 waiting>", "goroutine 'the worker'",
                 "waits in Channel.recv for <Channel 'jobs' 0/0, 1 receiving, 0 sending>", "in main", "in worker"):
        assert text in last


@pytest.mark.parametrize("lock_main", [True, False])
def test_a_main_that_waits_again_is_left(program, lock_main):
    done = program(HEAD + f"""
async def main():
    try:
        await jobs.recv()
    except asyncio.CancelledError:
        print("once more")
        await jobs.recv()
gmploop.run(main(), lock_main={lock_main})
""")
    assert (done.stdout, done.returncode) == ("once more\n", 1)
    assert "gmploop.DeadlockError" in done.stderr


def test_a_run_in_another_thread_is_left_alone(program):
    done = program(HEAD + """
async def main():
    return await go(receives)
results = []
thread = threading.Thread(target=lambda: results.append(gmploop.run(main())))
thread.start()
time.sleep(0.1)
jobs.send_blocking("it goes on")
thread.join()
print(results)
""")
    assert done.stdout == "['it goes on']\n", done.stderr


def test_sigquit_prints_who_waits_for_what_and_the_run_goes_on(started_program):
    process = started_program(HEAD + """
async def main():
    thread = threading.Thread(target=lock.acquire_blocking, name="the thread")
    await lock.acquire()
    thread.start()
    go(receives, name="the worker")
    asyncio.create_task(gmploop.select(jobs, gmploop.Channel(name="results").sending(1)), name="the selecting")
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, lambda: (lock.release(), jobs.close()))
    loop.call_later(0.05, os.write, 1, b"ready\\n")
    try:
        await go(receives, name="another")
    except gmploop.ChannelClosed:
        print("closed")
gmploop.run(main())
""", GMPLOOP_DEBUG="sigquit=1")
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGQUIT)
    lines = []
    while not lines or "gmploop-M" not in lines[-1]:
        lines.append(process.stderr.readline())
    process.send_signal(signal.SIGUSR1)
    out, _ = process.communicate(timeout=20)
    assert out == "closed\n" and process.returncode == 0
    text = "".join(lines)
    for wanted in ("task 'the worker', waits in Channel.recv for <Channel 'jobs'", "<Goroutine pending name='another'>",
                   "task 'the selecting', waits in select for <Channel 'jobs' 0/0, 3 receiving, 0 sending> or <Channel 'results'",
                   "<Thread(the thread, started", "waits in acquire for <Mutex 'lock'", "in receives"):
        assert wanted in text


STALL = HEAD + """
config.REST_MS = 20             # it is looked for three times, and telling takes a while
import logging
class Slow(logging.Handler):
    def filter(self, record):
        return "has run for" in record.getMessage()
    def emit(self, record):
        time.sleep(0.3)
        told()
logging.getLogger("asyncio").addHandler(Slow())
async def stalls():
    time.sleep(0.3)
async def main():
    await go(stalls)
    return await receives()
try:
    print(gmploop.run(main(), debug=True))
except gmploop.DeadlockError:
    print("deadlock")
"""


@pytest.mark.parametrize("does, ends", [("pass", "deadlock"), ("jobs.send_blocking('woken')", "woken")])
def test_while_a_stall_is_told_nothing_is_certain_and_afterwards_it_is(program, does, ends):
    """The thread that tells runs what others have written: that may wake somebody."""
    done = program(STALL.replace("import logging", f"import logging\ndef told():\n    {does}", 1))
    assert done.stdout == f"{ends}\n", done.stderr
