"""Signal handlers in goroutines: each world that handles a signal gets it, and Ctrl-C is main()'s."""

import pytest

pytestmark = pytest.mark.timeout(60)

HEAD = """
import asyncio, os, signal, sys, threading, time
import gmploop
from gmploop import go
ready = gmploop.Channel()
def send(sig=signal.SIGUSR1):
    os.kill(os.getpid(), sig)
async def handles(name, sig=signal.SIGUSR1, times=1):
    loop, got = asyncio.get_running_loop(), asyncio.Queue()
    loop.add_signal_handler(sig, got.put_nowait, name)
    await ready.send(name)
    for _ in range(times):
        await got.get()
    return name
"""


@pytest.mark.parametrize("lock_main", [True, False])
@pytest.mark.parametrize("poller", ["epoll", "io_uring"])
def test_a_signal_reaches_all_goroutines_that_handle_it(program, lock_main, poller):
    done = program(HEAD + f"""
async def main():
    goroutines = [go(handles, i, signal.SIGUSR1, 3) for i in range(5)]
    for _ in goroutines:
        await ready.recv()
    for _ in range(3):
        send()
        await asyncio.sleep(0.01)
    print(await asyncio.gather(*goroutines))
gmploop.run(main(), procs=2, lock_main={lock_main})
print(signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL)
""", GMPLOOP_POLLER=poller)
    assert (done.stdout, done.returncode) == ("[0, 1, 2, 3, 4]\nTrue\n", 0), done.stderr


@pytest.mark.parametrize("first", [True, False])
def test_main_and_goroutines_handle_the_same_signal(program, first):
    done = program(HEAD + f"""
async def main():
    loop, got = asyncio.get_running_loop(), asyncio.Queue()
    def add():
        loop.add_signal_handler(signal.SIGUSR1, got.put_nowait, "main")
    if {first}:
        add()
    one, two = go(handles, "one"), go(handles, "two", signal.SIGUSR1, 2)
    await ready.recv()
    await ready.recv()
    if not {first}:
        add()
    send()
    print(await got.get(), await one)
    send()                                      # one has gone, two goes
    print(await got.get(), await two)
    send()
    print(await got.get())
    print(loop.remove_signal_handler(signal.SIGUSR1), loop.remove_signal_handler(signal.SIGUSR1))
    print(signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL)
gmploop.run(main(), procs=2)
""")
    assert done.stdout == "main one\nmain two\nmain\nTrue False\nTrue\n", done.stderr


def test_main_removes_its_handler_and_goroutines_keep_theirs(program):
    done = program(HEAD + """
async def main():
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, print, "not to be seen")
    one = go(handles, "one")
    await ready.recv()
    loop.remove_signal_handler(signal.SIGUSR1)
    send()
    print(await one)
    loop.add_signal_handler(signal.SIGUSR2, print, "main")
    send(signal.SIGUSR2)
    await asyncio.sleep(0.01)
gmploop.run(main(), procs=2)
""")
    assert done.stdout == "one\nmain\n", done.stderr


def test_a_goroutine_removes_its_handler(program):
    done = program(HEAD + """
async def changes():
    loop, got = asyncio.get_running_loop(), asyncio.Event()
    loop.add_signal_handler(signal.SIGUSR1, print, "not to be seen")
    loop.add_signal_handler(signal.SIGUSR1, got.set)        # in its place
    send()
    await got.wait()
    before = signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    return [before, loop.remove_signal_handler(signal.SIGUSR1), loop.remove_signal_handler(signal.SIGUSR1),
            signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL]
async def main():
    print(await go(changes))
gmploop.run(main(), procs=2)
""")
    assert done.stdout == "[False, True, False, True]\n", done.stderr


def test_what_cannot_be_handled_is_refused_as_on_asyncio(program):
    done = program(HEAD + """
async def coroutine():
    pass
async def tries(loop):
    for sig, callback in (signal.SIGKILL, int), (0, int), ("x", int), (signal.SIGUSR1, coroutine):
        try:
            loop.add_signal_handler(sig, callback)
        except Exception as exc:
            print(type(exc).__name__, end=" ")
    print()
async def inside():
    await tries(asyncio.get_running_loop())
async def main():
    await tries(asyncio.get_running_loop())
    await go(inside)
gmploop.run(main())
""")
    here, there = done.stdout.splitlines()
    assert here == there != "", done.stderr


def test_the_main_thread_serves_while_a_callback_blocks_it(program):
    done = program(HEAD + """
async def main():
    goroutine = go(handles, "it")
    asyncio.get_running_loop().call_later(0.05, time.sleep, 0.3)
    await ready.recv()
    threading.Timer(0.1, send).start()          # into the sleep
    print(await goroutine)
gmploop.run(main(), procs=2)
""")
    assert done.stdout == "it\n", done.stderr


def test_ctrl_c_cancels_main_and_nothing_else(program):
    done = program(HEAD + """
async def works():
    try:
        await gmploop.Event().wait()
    except asyncio.CancelledError:
        print("goroutine after main:", ended)
        raise
ended = []
async def main():
    go(works)
    asyncio.get_running_loop().call_later(0.05, send, signal.SIGINT)
    try:
        await asyncio.sleep(1000)
    except asyncio.CancelledError:
        await asyncio.sleep(0.05)
        ended.append("main")
        raise
try:
    gmploop.run(main(), procs=2)
except KeyboardInterrupt:
    print("KeyboardInterrupt")
""")
    assert done.stdout == "goroutine after main: ['main']\nKeyboardInterrupt\n", done.stderr


def test_a_goroutine_may_have_ctrl_c_for_itself_and_gives_it_back(program):
    done = program(HEAD + """
async def main():
    goroutine = go(handles, "it", signal.SIGINT)
    await ready.recv()
    send(signal.SIGINT)
    print(await goroutine)
    asyncio.get_running_loop().call_soon(send, signal.SIGINT)
    await asyncio.sleep(1000)
try:
    gmploop.run(main(), procs=2)
except KeyboardInterrupt:
    print("KeyboardInterrupt")
""")
    assert done.stdout == "it\nKeyboardInterrupt\n", done.stderr


def test_a_signal_wakes_goroutines_that_wait_for_each_other(program):
    done = program(HEAD + """
gmploop.config.REST_MS = 1
async def main():
    goroutine = go(handles, "it")
    await ready.recv()
    threading.Timer(0.2, send).start()
    print(await goroutine)
gmploop.run(main(), procs=2)
""")
    assert done.stdout == "it\n", done.stderr
