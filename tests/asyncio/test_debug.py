"""Debug mode and what is told when something goes wrong."""

import asyncio
import contextvars
import logging
import socket
import sys
import threading
import time

import pytest

from support import Recorder, child, link, turns

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def debugging(loop):
    loop.set_debug(True)
    loop.slow_callback_duration = 0.1  # long enough for a busy machine
    return loop


def warnings_of(caplog):
    return [record.getMessage() for record in caplog.records
            if record.name == "asyncio" and record.levelno >= logging.WARNING]


# -- slow callbacks

async def blocking(seconds):
    time.sleep(seconds)


def test_a_task_that_blocks_is_reported_once_with_name_and_time(debugging, caplog):
    async def main():
        await debugging.create_task(blocking(0.15), name="the blocking one")
    with caplog.at_level(logging.WARNING, "asyncio"):
        debugging.run_until_complete(main())
    (message,) = [text for text in warnings_of(caplog) if "took" in text]
    assert "the blocking one" in message and "blocking" in message
    assert 0.15 <= float(message.split(" took ")[1].split()[0]) < 1


SLOW = {
    "call_soon": lambda loop: loop.call_soon(time.sleep, 0.15),
    "call_later": lambda loop: loop.call_later(0, time.sleep, 0.15),
    "call_at": lambda loop: loop.call_at(0, time.sleep, 0.15),
    "call_soon_threadsafe": lambda loop: loop.call_soon_threadsafe(time.sleep, 0.15),
    "future": lambda loop: loop.create_task(turns(1)).add_done_callback(lambda _: time.sleep(0.15)),
    "reader": lambda loop: slow_reader(loop),
    "protocol": lambda loop: loop.create_task(slow_protocol(loop)),
}


def slow_reader(loop):
    near, far = socket.socketpair()
    far.send(b"x")

    def callback():
        loop.remove_reader(near)
        near.close()
        far.close()
        time.sleep(0.15)
    loop.add_reader(near, callback)


async def slow_protocol(loop):
    class Slow(Recorder):
        def data_received(self, data):
            super().data_received(data)
            time.sleep(0.15)
    async with link("unix", far=Slow) as (near, far):
        near.transport.write(b"x")
        await far.received(1)


@pytest.mark.parametrize("way", SLOW)
def test_slow_callbacks_of_every_sort_are_reported(debugging, caplog, way):
    async def main():
        SLOW[way](debugging)
        await asyncio.sleep(0.2)
        await turns(5)
    with caplog.at_level(logging.WARNING, "asyncio"):
        debugging.run_until_complete(main())
    reports = [text for text in warnings_of(caplog) if "took" in text]
    assert len(reports) == 1 and reports[0].startswith("Executing <")


def test_fast_callbacks_are_not_reported(debugging, caplog):
    debugging.slow_callback_duration = 1
    with caplog.at_level(logging.WARNING, "asyncio"):
        debugging.run_until_complete(turns(100))
        debugging.run_until_complete(asyncio.sleep(0.02))
    assert not warnings_of(caplog)


def test_slow_callbacks_are_not_reported_outside_debug_mode(loop, caplog):
    loop.set_debug(False)
    loop.slow_callback_duration = 0.01
    with caplog.at_level(logging.WARNING, "asyncio"):
        loop.run_until_complete(blocking(0.05))
    assert not warnings_of(caplog)


def test_debug_mode_may_be_switched_while_running(loop, caplog):
    loop.slow_callback_duration = 0.01

    async def main():
        loop.set_debug(True)
        await asyncio.sleep(0)
        await loop.create_task(blocking(0.03), name="seen")
        loop.set_debug(False)
        await asyncio.sleep(0)
        await loop.create_task(blocking(0.03), name="unseen")
    with caplog.at_level(logging.WARNING, "asyncio"):
        loop.run_until_complete(main())
    reports = [text for text in warnings_of(caplog) if "took" in text]
    assert len(reports) == 1 and "seen" in reports[0] and "unseen" not in reports[0]


# -- source of handles and tasks

def test_handles_remember_where_they_were_made(debugging):
    handles = [debugging.call_soon(int), debugging.call_later(1, int), debugging.call_at(0, int),
               debugging.call_soon_threadsafe(int)]
    for handle in handles:
        assert f"created at {__file__}:" in repr(handle)
        handle.cancel()
    debugging.run_until_complete(turns(2))


def test_reports_of_exceptions_tell_where_the_callback_was_made(debugging, errors):
    debugging.call_soon(int, "x")
    debugging.run_until_complete(turns(2))
    (context,) = errors
    assert any(frame.filename == __file__ for frame in context["source_traceback"])
    assert context["message"].startswith("Exception in callback int('x')")
    assert isinstance(context["exception"], ValueError)
    del errors[:]


def test_tasks_remember_where_they_were_made(debugging):
    async def main():
        task = debugging.create_task(turns(1))
        assert f"created at {__file__}" in repr(task)
        await task
    debugging.run_until_complete(main())


@pytest.mark.parametrize("debug", [False, True])
def test_representations(loop, debug):
    loop.set_debug(debug)
    assert f"debug={debug}" in repr(loop) and "running=False" in repr(loop) and "closed=False" in repr(loop)
    handle, timer = loop.call_soon(int, 1), loop.call_later(5, print, "x")
    assert repr(handle).startswith("<Handle int(") and repr(timer).startswith("<TimerHandle when=")
    assert not debug or "int(1)" in repr(handle) and "print('x')" in repr(timer)
    handle.cancel()
    timer.cancel()
    assert "cancelled" in repr(handle) and "cancelled" in repr(timer)
    assert isinstance(handle, asyncio.Handle) and isinstance(timer, asyncio.TimerHandle)


# -- the environment and options

@pytest.mark.parametrize("options, environment, expected", [
    ([], {}, "False"), (["-X", "dev"], {}, "True"), ([], {"PYTHONASYNCIODEBUG": "1"}, "True"),
    (["-E"], {"PYTHONASYNCIODEBUG": "1"}, "False"),
])
def test_debug_mode_comes_from_outside(loop_kind, monkeypatch, options, environment, expected):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    done = child(loop_kind, "loop = new_loop(); print(loop.get_debug()); loop.close()", options=options)
    assert (done.stdout, done.stderr) == (expected + "\n", "")


def test_a_loop_left_open_is_warned_of(loop_kind):
    done = child(loop_kind, "loop = new_loop(); loop.run_until_complete(asyncio.sleep(0)); del loop; gc.collect()",
                 options=["-W", "default"])
    assert "ResourceWarning: unclosed event loop" in done.stderr and done.returncode == 0


@pytest.mark.parametrize("kind", ["stream", "datagram", "pipe"])
def test_a_transport_left_open_is_warned_of_and_closed(loop_kind, kind):
    done = child(loop_kind, """
        async def main():
            loop = asyncio.get_running_loop()
            near, far = socket.socketpair()
            if sys.argv[1] == "stream":
                transport, _ = await loop.create_connection(asyncio.Protocol, sock=near)
                transport.pause_reading()
            elif sys.argv[1] == "pipe":
                transport, _ = await loop.connect_read_pipe(asyncio.Protocol, near)
                transport.pause_reading()
            else:
                near, far = socket.socketpair(type=socket.SOCK_DGRAM)
                transport, _ = await loop.create_datagram_endpoint(asyncio.DatagramProtocol, sock=near)
            await asyncio.sleep(0)
            return transport

        loop = new_loop()
        transport = loop.run_until_complete(main())
        loop.close()
        del transport
        gc.collect()
        gc.collect()
    """, kind, options=["-W", "default"])
    assert "ResourceWarning: unclosed transport" in done.stderr and done.returncode == 0


# -- exception handlers

def test_the_default_handler_logs_message_and_traceback(loop, caplog):
    loop.set_exception_handler(None)
    loop.call_soon(int, "not a number")
    with caplog.at_level(logging.ERROR, "asyncio"):
        loop.run_until_complete(turns(2))
    (record,) = caplog.records
    assert record.name == "asyncio" and "Exception in callback int(" in record.getMessage()
    assert record.exc_info[0] is ValueError


def test_contexts_of_the_exception_handler(same_as_stock):
    async def scenario(loop):
        contexts = []
        told = "exception", "handle", "protocol"
        loop.set_exception_handler(lambda own, context: contexts.append((own is loop, sorted(context), {
            key: type(value).__name__ for key, value in context.items() if key in told})))

        class Raising(Recorder):
            def data_received(self, data):
                raise KeyError(data)
        loop.call_soon(int, "x")
        loop.call_later(0, int, "x")
        async with link("unix", far=Raising) as (near, far):
            near.transport.write(b"x")
            await near.lost
        future = loop.create_future()
        future.set_exception(KeyError())
        del future
        loop.call_exception_handler({"message": "by hand", "extra": 5})
        await turns(3)
        return [(own, keys, {**kinds, "handle": kinds.get("handle") and "Handle" in kinds["handle"]})
                for own, keys, kinds in contexts]
    same_as_stock(scenario)


@pytest.mark.parametrize("raising", [SystemExit, KeyboardInterrupt])
def test_system_exit_and_ctrl_c_go_through(loop, raising):
    def callback():
        raise raising
    ran = []
    loop.call_soon(callback)
    loop.call_soon(ran.append, 1)
    with pytest.raises(raising):
        loop.run_forever()
    loop.run_until_complete(turns(2))
    assert ran == [1]  # what was ready behind it is not lost


def test_an_exception_handler_that_raises_is_logged(loop, caplog):
    loop.set_exception_handler(lambda *args: 1 / 0)
    loop.call_soon(int, "x")
    with caplog.at_level(logging.ERROR, "asyncio"):
        loop.run_until_complete(turns(2))
    assert any("Unhandled error in exception handler" in record.getMessage() for record in caplog.records)


def test_the_exception_handler_runs_in_the_context_of_the_callback(loop):
    variable, seen = contextvars.ContextVar("variable", default="unset"), []
    loop.set_exception_handler(lambda *args: seen.append(variable.get()))
    context = contextvars.copy_context()
    context.run(variable.set, "callback's")
    loop.call_soon(int, "x", context=context)
    loop.run_until_complete(turns(2))
    assert seen == ["callback's" if sys.version_info >= (3, 12) else "unset"]


# -- threads

def test_call_soon_from_another_thread_is_an_error_in_debug_mode(debugging):
    results = []

    def foreign():
        for call in (lambda: debugging.call_soon(int), lambda: debugging.call_later(0, int),
                     lambda: debugging.call_at(0, int)):
            try:
                call()
            except RuntimeError as exc:
                results.append(str(exc))

    async def main():
        thread = threading.Thread(target=foreign)
        thread.start()
        while thread.is_alive():
            await asyncio.sleep(0.001)
    debugging.run_until_complete(main())
    assert len(results) == 3 and all(results)


def test_a_run_in_debug_mode_does_what_a_plain_run_does(loop_kind):
    """A workload of everything: the same results, no warning."""
    source = """
        import logging
        logging.basicConfig(level=logging.WARNING)

        async def main():
            loop = asyncio.get_running_loop()
            async def echo(reader, writer):
                writer.write(await reader.readline())
                writer.close()
            server = await asyncio.start_server(echo, "127.0.0.1", 0)
            results = []
            for number in range(5):
                reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
                writer.write(b"%d\\n" % number)
                results.append(await reader.read())
                writer.close()
                await writer.wait_closed()
            server.close()
            process = await asyncio.create_subprocess_exec("cat", stdin=-1, stdout=-1)
            results.append((await process.communicate(b"cat"))[0])
            results.append(await loop.run_in_executor(None, sum, [1, 2]))
            near, far = socket.socketpair()
            near.setblocking(False)
            far.setblocking(False)
            await loop.sock_sendall(near, b"sock")
            results.append(await loop.sock_recv(far, 10))
            near.close()
            far.close()
            await asyncio.sleep(0.001)
            print(results)

        loop = new_loop()
        loop.run_until_complete(main())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
    """
    runs = [child(loop_kind, source, options=options) for options in ([], ["-X", "dev"])]
    assert [done.returncode for done in runs] == [0, 0]
    assert runs[0].stdout == runs[1].stdout and runs[0].stdout.startswith("[b'0")
    assert runs[0].stderr == runs[1].stderr == ""
