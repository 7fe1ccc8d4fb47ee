"""Goroutines and the process: exit, signals, fork, threads that come only when they are wanted."""

import os
import signal
import subprocess
import sys

import pytest

pytestmark = pytest.mark.timeout(60)

HEAD = "import asyncio, os, signal, sys, threading, time\nimport gmploop\nfrom gmploop import go\n"


def threads_of(pid):
    return len(os.listdir(f"/proc/{pid}/task"))


@pytest.mark.parametrize("settings, threads", [("", 2), ("stall_ms=0", 1)])
def test_without_goroutines_there_is_no_thread_but_sysmon(program, settings, threads):
    done = program("""
import asyncio, os, sys
import gmploop
async def main():
    await asyncio.sleep(0.01)
    print(len(os.listdir("/proc/self/task")), "gmploop.core.m" in sys.modules)
gmploop.run(main())
""", GMPLOOP_DEBUG=settings)
    assert (done.stdout, done.returncode) == (f"{threads} False\n", 0), done.stderr


@pytest.mark.parametrize("state", ["asyncio.sleep(1000)", "compute()", "block()"])
def test_the_interpreter_exits_with_goroutines_alive(program, state):
    done = program(HEAD + f"""
async def compute():
    while True:
        pass
async def block():
    time.sleep(1000)
gmploop.set_procs(2)
for _ in range(4):
    go({state})
time.sleep(0.1)
print("end")
""")
    assert (done.stdout, done.returncode) == ("end\n", 0), done.stderr


@pytest.mark.parametrize("lock_main", [True, False])
def test_sys_exit_in_a_goroutine_ends_the_program(program, lock_main):
    done = program(HEAD + f"""
async def quits():
    await asyncio.sleep(0.01)
    sys.exit(7)
async def main():
    go(quits)
    try:
        await asyncio.sleep(1000)
    finally:
        print("main ends")
gmploop.run(main(), lock_main={lock_main})
""")
    assert (done.stdout, done.returncode) == ("main ends\n", 7), done.stderr


@pytest.mark.parametrize("lock_main", [True, False])
@pytest.mark.parametrize("wait", ["await {}", "await asyncio.gather({})", "await asyncio.wait_for({}, 10)",
                                  "await asyncio.wait([{}])"])
def test_sys_exit_in_a_goroutine_that_is_awaited_is_all_that_is_said(program, wait, lock_main):
    done = program(HEAD + f"""
async def quits():
    sys.exit(7)
async def lingers():
    try:
        await asyncio.sleep(1000)
    finally:
        print("lingers ends")
async def main():
    go(lingers)
    await asyncio.sleep(0.01)
    {wait.format("go(quits)")}
gmploop.run(main(), lock_main={lock_main})
""")
    assert (done.stdout, done.stderr, done.returncode) == ("lingers ends\n", "", 7)


@pytest.mark.parametrize("ends", ["sys.exit(7)", "await go(quits)", ""])
def test_sys_exit_hides_no_other_error(program, ends):
    done = program(HEAD + f"""
async def quits():
    sys.exit(7)
async def fails():
    raise ValueError("of a task that nobody awaits")
async def main():
    global task
    go(int)
    task = asyncio.create_task(fails())
    await asyncio.sleep(0)
    {ends}
try:
    try:
        sys.exit(7)
    except SystemExit:
        gmploop.run(main())
finally:
    del task
""")
    assert done.stderr.count("ValueError: of a task that nobody awaits") == 1 and done.returncode == (7 if ends else 0)


@pytest.mark.parametrize("lock_main", [True, False])
def test_ctrl_c_cancels_main(lock_main):
    source = HEAD + f"""
async def lingering():
    try:
        await asyncio.sleep(1000)
    finally:
        print("goroutine ends")
async def main():
    go(lingering)
    await asyncio.sleep(0.01)
    print("ready", flush=True)
    try:
        await asyncio.sleep(1000)
    finally:
        print("main ends")
gmploop.run(main(), lock_main={lock_main})
"""
    import gmploop
    root = os.path.dirname(os.path.dirname(gmploop.__file__))
    process = subprocess.Popen([sys.executable, "-c", source], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                               env={**os.environ, "PYTHONPATH": root})
    assert process.stdout.readline() == "ready\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=20)
    assert out.splitlines() == ["main ends", "goroutine ends"] and process.returncode == -signal.SIGINT, err
    assert "KeyboardInterrupt" in err


def test_one_that_does_not_end_is_told_and_left(program):
    done = program(HEAD + """
import logging
logging.basicConfig()
async def main():
    go(time.sleep, 1000, name="stuck")
    await asyncio.sleep(0.05)
gmploop.run(main(), shutdown_timeout=0.1)
print("end")
""")
    assert (done.stdout, done.returncode) == ("end\n", 0)
    assert "1 goroutines did not end" in done.stderr and "stuck" in done.stderr


def test_a_signal_handler_of_main_runs_while_goroutines_work(program):
    done = program(HEAD + """
async def works():
    for _ in range(200):
        await asyncio.sleep(0.001)
async def main():
    got = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, got.set)
    goroutines = [go(works) for _ in range(10)]
    os.kill(os.getpid(), signal.SIGUSR1)
    await asyncio.wait_for(got.wait(), 5)
    print("got it")
gmploop.run(main())
""")
    assert (done.stdout, done.returncode) == ("got it\n", 0), done.stderr


def test_a_child_starts_with_a_fresh_runtime_and_the_parent_goes_on(program):
    done = program(HEAD + """
import warnings
warnings.simplefilter("ignore")
async def double(x):
    await asyncio.sleep(0.001)
    return 2 * x
async def main():
    return sum(await asyncio.gather(*[go(double, i) for i in range(100)]))
async def forks():
    lingering = [go(asyncio.sleep, 0.2, i) for i in range(20)]
    await asyncio.sleep(0.01)
    pid = os.fork()
    if not pid:
        os._exit(0 if child() == 9900 else 1)
    status = await asyncio.to_thread(os.waitpid, pid, 0)
    return status[1], sum(await asyncio.gather(*lingering))
def child():
    asyncio._set_running_loop(None)
    return gmploop.run(main(), procs=2)
print(gmploop.run(forks(), procs=2))
""")
    assert (done.stdout, done.returncode) == ("(0, 190)\n", 0), done.stderr


def test_goroutines_on_idle_make_no_wake_ups(program):
    done = program(HEAD + """
def switches():
    total = 0
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/status") as status:
            total += sum(int(line.split()[1]) for line in status if line.startswith("voluntary_ctxt"))
    return total
def measure():
    time.sleep(0.5)                                 # sysmon goes to sleep
    before = switches()
    time.sleep(1)
    return switches() - before
async def waits():
    await asyncio.Event().wait()
async def main():
    for _ in range(1000):
        go(waits)
    await asyncio.gather(*[go(asyncio.sleep, 0.01) for _ in range(100)])
    print(await asyncio.to_thread(measure))
    print(measure())                                # a callback that blocks for long: sysmon has seen it
gmploop.run(main(), procs=2)
""")
    assert all(int(count) <= 1 for count in done.stdout.split()), done.stderr      # the measuring thread's own sleep


def test_threads_have_names_and_are_reused(program):
    done = program(HEAD + """
async def name():
    await asyncio.sleep(0.001)
    return threading.current_thread().name
async def main():
    names = set()
    for _ in range(20):
        names |= set(await asyncio.gather(*[go(name) for _ in range(20)]))
    assert all(n.startswith("gmploop-M") for n in names), names
    print(len(names) <= 8)
gmploop.run(main(), procs=2)
""")
    assert (done.stdout, done.returncode) == ("True\n", 0), done.stderr


def test_threading_s_trace_function_sees_goroutines(program):
    done = program(HEAD + """
seen = set()
def trace(frame, event, arg):
    seen.add(frame.f_code.co_name)
threading.settrace(trace)
async def traced_one():
    await asyncio.sleep(0)
async def main():
    await go(traced_one)
gmploop.run(main())
print("traced_one" in seen)
""")
    assert (done.stdout, done.returncode) == ("True\n", 0), done.stderr


@pytest.mark.parametrize("lock_main", [True, False])
def test_keyboard_interrupt_in_a_goroutine_ends_the_program(program, lock_main):
    done = program(HEAD + f"""
async def raises():
    await asyncio.sleep(0.01)
    raise KeyboardInterrupt
async def main():
    go(raises)
    try:
        await asyncio.sleep(1000)
    finally:
        print("main ends")
try:
    gmploop.run(main(), lock_main={lock_main})
except KeyboardInterrupt:
    print("KeyboardInterrupt")
""")
    assert (done.stdout, done.returncode) == ("main ends\nKeyboardInterrupt\n", 0), done.stderr


def test_a_goroutine_forks_and_the_parent_s_go_on(program):
    done = program(HEAD + """
import warnings
warnings.simplefilter("ignore")
async def forks():
    pid = os.fork()
    if not pid:
        os._exit(7)
    return os.waitstatus_to_exitcode((await asyncio.to_thread(os.waitpid, pid, 0))[1])
async def main():
    others = [go(asyncio.sleep, 0.1, i) for i in range(20)]
    return [await go(forks) for _ in range(3)], sum(await asyncio.gather(*others))
print(gmploop.run(main(), procs=2))
""")
    assert (done.stdout, done.returncode) == ("([7, 7, 7], 190)\n", 0), done.stderr


def test_a_child_does_not_tell_the_parent_s_goroutines_of_its_signals(program):
    done = program(HEAD + """
import warnings
warnings.simplefilter("ignore")
got = []
async def handles(ready):
    asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, got.append, 1)
    ready.set()
    await gmploop.Event().wait()
async def main():
    ready = gmploop.Event()
    go(handles, ready)
    await ready.wait()
    pid = os.fork()
    if not pid:
        os.kill(os.getpid(), signal.SIGUSR1)
        os._exit(7)
    status = await asyncio.to_thread(os.waitpid, pid, 0)
    await asyncio.sleep(0.01)
    return os.waitstatus_to_exitcode(status[1]), got
print(gmploop.run(main(), procs=2))
""")
    assert (done.stdout, done.returncode) == ("(7, [])\n", 0), done.stderr
