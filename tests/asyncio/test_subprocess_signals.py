"""Child processes and signals."""

import asyncio
import contextlib
import os
import signal
import sys
import threading
import time

import pytest

from support import child, child_output, turns

pytestmark = pytest.mark.timeout(60)

WAITS_FOR_PIPES = "python/cpython#119710: wait() waits for the pipes as well"


@contextlib.asynccontextmanager
async def shell(script, **pipes):
    """A shell that runs `script`, whose first line of output is the process id of its sleeping child."""
    process = await asyncio.create_subprocess_exec("sh", "-c", script, stdout=-1, **pipes)
    sleeper = int(await process.stdout.readline())
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(sleeper, signal.SIGKILL)
        await process.stdout.read()
        await process.wait()


@pytest.mark.stock_fault(WAITS_FOR_PIPES, ((3, 11), (3, 13, 15)), when=("before",))
@pytest.mark.parametrize("when", ["before", "after"])
def test_wait_does_not_wait_for_a_grandchild_that_holds_the_pipe(run, when):
    async def main():
        script = "sleep 60 & echo $!; " + ("read line; exit 3" if when == "before" else "exit 3")
        async with shell(script, stdin=-1, stderr=-1) as process:
            if when == "before":
                waiting = asyncio.ensure_future(process.wait())
                await turns(3)
                process.stdin.write(b"go\n")
                status = await asyncio.wait_for(waiting, 3)
            else:
                while process.returncode is None:
                    await asyncio.sleep(0.001)
                status = await asyncio.wait_for(process.wait(), 3)
            assert status == process.returncode == 3
            assert await asyncio.gather(process.wait(), process.wait()) == [3, 3]
    run(main())


@pytest.mark.stock_fault(WAITS_FOR_PIPES, ((3, 11), (3, 13, 15)))
def test_wait_returns_for_a_child_killed_with_a_full_pipe(run):
    async def main():
        process = await asyncio.create_subprocess_exec("yes", stdout=-1, limit=1024)
        await process.stdout.read(10)
        process.kill()
        assert await asyncio.wait_for(process.wait(), 3) == -signal.SIGKILL
        await process.stdout.read()
    run(main())


def test_the_protocol_is_told_of_exit_and_end_of_each_pipe(run):
    events = []

    class Protocol(asyncio.SubprocessProtocol):
        def connection_made(self, transport):
            events.append("made")

        def pipe_data_received(self, fd, data):
            events.append((fd, data))

        def pipe_connection_lost(self, fd, exc):
            events.append((fd, exc))

        def process_exited(self):
            events.append("exited")

        def connection_lost(self, exc):
            events.append("lost")
            self.done.set_result(exc)

    async def main():
        loop = asyncio.get_running_loop()
        Protocol.done = loop.create_future()
        transport, _ = await loop.subprocess_shell(Protocol, "echo out; echo err >&2; exit 4", stdin=None)
        assert await Protocol.done is None
        assert transport.get_returncode() == 4
        transport.close()
    run(main())
    assert events[0], events[-1] == ("made", "lost")
    assert set(events) == {"made", (1, b"out\n"), (2, b"err\n"), (1, None), (2, None), "exited", "lost"}
    assert len(events) == 7


# -- the child's stdin

def test_drain_waits_for_a_child_that_does_not_read(run):
    async def main():
        process = await asyncio.create_subprocess_exec("sleep", "60", stdin=-1)
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                for _ in range(100):
                    process.stdin.write(b"x" * 32 * 1024)
                    await process.stdin.drain()
        process.kill()
        assert await process.wait() == -signal.SIGKILL
        with pytest.raises(ConnectionError):
            for _ in range(100):
                process.stdin.write(b"x" * 32 * 1024)
                await process.stdin.drain()
                await asyncio.sleep(0.001)
    run(main())


@pytest.mark.parametrize("size", [0, 1, 65_536, 65_537, 262_148, 3_000_000])
def test_communicate_passes_any_size_through_a_child(run, size):
    async def main():
        process = await asyncio.create_subprocess_exec("cat", stdin=-1, stdout=-1, stderr=-1)
        data = bytes(range(251)) * (size // 251) + b"x" * (size % 251)
        assert await process.communicate(data) == (data, b"")
        assert process.returncode == 0
    run(main())


def test_a_child_that_closes_its_stdin_is_noticed_without_a_write(run):
    async def main():
        process = await asyncio.create_subprocess_shell("exec 0<&-; echo closed; exec sleep 60", stdin=-1, stdout=-1)
        assert await process.stdout.readline() == b"closed\n"
        await asyncio.wait_for(process.stdin.wait_closed(), 3)
        process.kill()
        await process.wait()
        await process.stdout.read()
    run(main())


def test_writing_to_a_child_that_is_gone_ends_in_connection_lost(run):
    async def main():
        process = await asyncio.create_subprocess_exec("true", stdin=-1)
        await process.wait()
        with pytest.raises(ConnectionError):
            for _ in range(100):
                process.stdin.write(b"x" * 100_000)
                await process.stdin.drain()
                await asyncio.sleep(0.001)
    run(main())


DESCRIBE_STDIO = """
import os, stat, sys
for fd, path in enumerate(("/dev/stdin", "/dev/stdout", "/proc/self/fd/2")):
    opened = os.open(path, os.O_RDONLY if fd == 0 else os.O_WRONLY)
    print(fd, stat.S_ISFIFO(os.fstat(fd).st_mode), stat.S_ISFIFO(os.fstat(opened).st_mode), file=sys.stderr)
print(os.get_blocking(0), os.get_blocking(1), os.get_blocking(2), file=sys.stderr)
"""


def test_the_child_may_open_its_stdio_by_path(run):
    async def main():
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", DESCRIBE_STDIO, stdin=-1, stdout=-1, stderr=-1)
        _, told = await process.communicate(b"")
        assert told.decode().split("\n")[:-1] == [*(f"{fd} True True" for fd in range(3)), "True True True"]
    run(main())


def test_the_child_gets_no_descriptor_and_no_blocked_signal_of_the_loop(run):
    async def main():
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, int)
        script = "import os, signal; print(*os.listdir('/proc/self/fd'), signal.pthread_sigmask(0, []), " \
                 "signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL)"
        process = await asyncio.create_subprocess_exec(sys.executable, "-c", script, stdout=-1)
        told, _ = await process.communicate()
        assert told.decode() == "0 1 2 3 set() True\n"  # 3 is the listing's own
        asyncio.get_running_loop().remove_signal_handler(signal.SIGUSR1)
    run(main())


def test_many_children_at_once(run):
    async def one(number):
        process = await asyncio.create_subprocess_exec("sh", "-c", f"cat; exit {number}", stdin=-1, stdout=-1)
        out, _ = await process.communicate(b"%d" % number)
        return out, process.returncode

    async def main():
        assert await asyncio.gather(*map(one, range(20))) == [(b"%d" % number, number) for number in range(20)]
    run(main())


def children():
    """Process ids of this process's children, unreaped ones included; some belong to other tests' servers."""
    me = str(os.getpid())
    found = set()
    for pid in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError), open(f"/proc/{pid}/stat") as stat:
            if stat.read().rpartition(")")[2].split()[1] == me:
                found.add(int(pid))
    return found


def test_a_cancelled_start_leaves_no_child_and_no_descriptor(run):
    async def main():
        before = children()
        for steps in range(6):
            starting = asyncio.ensure_future(asyncio.create_subprocess_exec("sleep", "60", stdin=-1, stdout=-1))
            await turns(steps)
            starting.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                process = await starting
                process.kill()
                await process.communicate()
        await asyncio.sleep(0.01)
        for _ in range(200):
            if children() <= before:
                return
            await asyncio.sleep(0.01)
        raise AssertionError("a child is left")
    run(main())


@pytest.mark.parametrize("program", ["/no/such/program", "/etc/passwd"])
def test_a_program_that_cannot_be_started_leaves_nothing(run, program):
    async def main():
        with pytest.raises(FileNotFoundError if "such" in program else PermissionError):
            await asyncio.create_subprocess_exec(program, stdin=-1, stdout=-1, stderr=-1)
    run(main())


def test_the_subprocess_is_watched_from_a_loop_in_a_thread(loop_factory):
    results = []

    async def main():
        process = await asyncio.create_subprocess_exec("sh", "-c", "cat; exit 5", stdin=-1, stdout=-1)
        results.append((await process.communicate(b"data"), process.returncode))

    def thread():
        loop = loop_factory()
        loop.run_until_complete(asyncio.wait_for(main(), 10))
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
    running = threading.Thread(target=thread)
    running.start()
    running.join(15)
    assert results == [((b"data", None), 5)]


# -- signals

def test_an_inner_loop_does_not_take_the_signals_of_the_outer(loop_kind):
    output = child_output(loop_kind, """
        outer, seen = new_loop(), []

        def nested():
            inner = new_loop()
            asyncio._set_running_loop(None)
            inner.run_until_complete(asyncio.sleep(0.01))
            inner.close()
            asyncio._set_running_loop(outer)
            os.kill(os.getpid(), signal.SIGUSR1)

        def handler():
            seen.append(time.monotonic())
            outer.stop()

        outer.add_signal_handler(signal.SIGUSR1, handler)
        before = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(before)
        outer.call_soon(nested)
        outer.call_later(5, outer.stop)
        outer.run_forever()
        print(len(seen), signal.set_wakeup_fd(before) == before, before != -1)
        outer.remove_signal_handler(signal.SIGUSR1)
        outer.close()
        print(signal.set_wakeup_fd(-1), signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL)
    """)
    assert output == "1 True True\n-1 True\n"


@pytest.mark.parametrize("wakeup", ["none", "user's own"])
def test_running_a_loop_leaves_the_wakeup_descriptor_as_it_was(loop_kind, wakeup):
    output = child_output(loop_kind, """
        if sys.argv[1] == "none":
            mine = -1
        else:
            source, mine = os.pipe()
            os.set_blocking(mine, False)
            signal.set_wakeup_fd(mine)
        loop = new_loop()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        print(signal.set_wakeup_fd(-1) == mine)
    """, wakeup)
    assert output == "True\n"


def test_ctrl_c_ends_an_idle_loop_at_once(loop_kind):
    output = child_output(loop_kind, """
        loop = new_loop()
        moment = []

        def interrupt():
            time.sleep(0.2)
            moment.append(time.monotonic())
            signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

        thread = threading.Thread(target=interrupt)
        loop.call_soon(thread.start)
        try:
            loop.run_forever()
        except KeyboardInterrupt:
            print("interrupted", time.monotonic() - moment[0] < 0.2)
        thread.join()
        print(loop.run_until_complete(asyncio.sleep(0, "goes on")))
        loop.close()
    """)
    assert output == "interrupted True\ngoes on\n"


def test_ctrl_c_cancels_what_asyncio_runs(loop_kind):
    done = child(loop_kind, """
        async def main():
            asyncio.get_running_loop().call_later(0.05, os.kill, os.getpid(), signal.SIGINT)
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                print("cancelled")
                raise

        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(main())
    """)
    assert done.stdout == "cancelled\n"
    assert done.stderr.endswith("KeyboardInterrupt\n")
    assert done.returncode == -signal.SIGINT


def test_a_plain_signal_handler_runs_while_the_loop_is_idle(loop):
    """It runs promptly, the loop goes on, and timers keep their time."""
    seen, sent = [], []

    def send():
        for _ in range(3):
            time.sleep(0.05)
            sent.append(time.monotonic())
            signal.pthread_kill(main_thread, signal.SIGUSR1)

    main_thread = threading.main_thread().ident
    before = signal.signal(signal.SIGUSR1, lambda *args: seen.append(time.monotonic()))
    thread = threading.Thread(target=send)
    try:
        start = loop.time()
        loop.call_soon(thread.start)
        loop.call_later(0.4, loop.stop)
        loop.run_forever()
        assert 0.4 - time.get_clock_info("monotonic").resolution <= loop.time() - start < 0.8
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)
    assert len(seen) == 3
    assert all(late - early < 0.2 for early, late in zip(sent, seen))


def test_a_plain_signal_handler_may_raise_out_of_the_loop(loop):
    class Alarm(Exception):
        pass

    def handler(*args):
        raise Alarm
    before = signal.signal(signal.SIGUSR1, handler)
    thread = threading.Timer(0.05, signal.pthread_kill, (threading.main_thread().ident, signal.SIGUSR1))
    try:
        loop.call_soon(thread.start)
        with pytest.raises(Alarm):
            loop.run_forever()
        assert not loop.is_running()
        assert loop.run_until_complete(asyncio.sleep(0.001, "goes on")) == "goes on"
    finally:
        thread.join()
        signal.signal(signal.SIGUSR1, before)


def test_signal_handlers_get_their_arguments_and_context(run, loop):
    seen = []

    async def main():
        loop.add_signal_handler(signal.SIGUSR1, lambda *args: seen.append(args), 1, "two")
        os.kill(os.getpid(), signal.SIGUSR1)
        while not seen:
            await asyncio.sleep(0)
        loop.add_signal_handler(signal.SIGUSR1, seen.append, "replaced")
        os.kill(os.getpid(), signal.SIGUSR1)
        while len(seen) < 2:
            await asyncio.sleep(0)
        assert loop.remove_signal_handler(signal.SIGUSR1) is True
        assert loop.remove_signal_handler(signal.SIGUSR1) is False
    run(main())
    assert seen == [(1, "two"), "replaced"]
    assert signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL
