"""What a thread may and may not do with a loop that another one runs."""

import asyncio
import socket

import pytest

from support import Recorder, bounded, child_output, finish, link, turns, unix_pair

pytestmark = pytest.mark.timeout(60)


def on(loop, coro):
    return asyncio.run_coroutine_threadsafe(bounded(coro, 10), loop).result(15)


def test_a_loop_that_nobody_runs_may_be_used_from_any_thread(loop, in_thread):
    """Built in one thread, filled in another, run in a third."""
    seen = []
    near, far = unix_pair()

    def note(what):
        seen.append(what)
        if len(seen) == 5:
            loop.stop()

    def fill():
        loop.call_soon(note, "soon")
        loop.call_later(0.001, note, "later")
        loop.call_at(0, note, "at")
        loop.call_later(100, note, "never").cancel()
        loop.add_reader(near, lambda: (note(near.recv(10)), loop.remove_reader(near)))
        loop.create_task(asyncio.sleep(0)).add_done_callback(lambda _: note("task"))
        far.send(b"data")
    in_thread(fill).join()
    in_thread(loop.run_forever).join()
    assert set(seen) == {"soon", "later", "at", b"data", "task"} and len(seen) == 5
    near.close()
    far.close()
    in_thread(lambda: finish(loop)).join()
    assert loop.is_closed()


def test_a_transport_outlives_the_thread_that_ran_its_loop(loop, in_thread):
    near, far = unix_pair()
    far.settimeout(3)
    made = []
    in_thread(lambda: made.extend(loop.run_until_complete(loop.create_connection(Recorder, sock=near)))).join()
    transport, protocol = made
    transport.write(b"from another thread, while nobody runs the loop")
    assert far.recv(100).startswith(b"from")
    far.close()
    in_thread(lambda: loop.run_until_complete(asyncio.wait_for(protocol.lost, 5))).join()
    assert protocol.events == ["made", "eof", "lost"]


@pytest.mark.parametrize("own", [False, True], ids=["thread without a loop", "thread with a loop of its own"])
@pytest.mark.parametrize("debug", [False, True])
def test_call_soon_from_a_foreign_thread_runs_or_raises(running, loop_factory, debug, own):
    """In debug mode it is an error, as on stock. Otherwise the callback runs, once, and nothing is broken."""
    on(running, set_debug(running, debug))
    seen = []

    def call():
        for number in range(100):
            if debug:
                with pytest.raises(RuntimeError):
                    running.call_soon(seen.append, number)
            else:
                running.call_soon(seen.append, number)
    if own:
        mine = loop_factory()
        mine.call_soon(call)
        mine.run_until_complete(turns(2))
    else:
        call()
    on(running, turns(3))
    assert seen == ([] if debug else list(range(100)))


async def set_debug(loop, debug):
    loop.set_debug(debug)


@pytest.mark.gmploop_only
@pytest.mark.parametrize("way", ["call_later", "call_at"])
@pytest.mark.parametrize("own", [False, True], ids=["thread without a loop", "thread with a loop of its own"])
def test_timers_from_a_foreign_thread_are_refused(running, loop_factory, way, own):
    on(running, set_debug(running, False))  # in debug mode the message is stock's
    mine = loop_factory()

    async def main():
        return result_message(getattr(running, way), 1, int)
    message = mine.run_until_complete(main()) if own else result_message(getattr(running, way), 1, int)
    assert way in message and repr(running) in message
    assert message.count("<Loop ") == (2 if own else 1)
    assert on(running, asyncio.sleep(0.001, "unharmed")) == "unharmed"


def result_message(function, *args):
    with pytest.raises(RuntimeError) as caught:
        function(*args)
    return str(caught.value)


STREAM_CALLS = {
    "write": lambda t: t.write(b"x"), "writelines": lambda t: t.writelines([b"x"]),
    "write_eof": lambda t: t.write_eof(),
    "pause_reading": lambda t: t.pause_reading(), "resume_reading": lambda t: t.resume_reading(),
    "set_write_buffer_limits": lambda t: t.set_write_buffer_limits(10),
    "set_protocol": lambda t: t.set_protocol(asyncio.Protocol()),
}


@pytest.mark.gmploop_only
@pytest.mark.parametrize("call", STREAM_CALLS)
@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_stream_transport_calls_from_a_foreign_thread_are_refused(running, kind, call):
    async def main():
        async with link(kind) as (near, far):
            message = await running.run_in_executor(None, result_message, STREAM_CALLS[call], near.transport)
            assert repr(running) in message
            near.transport.write(b"unharmed")
            await far.received(8)
            assert far.data == b"unharmed"
    on(running, main())


@pytest.mark.gmploop_only
def test_sendto_from_a_foreign_thread_is_refused(running):
    async def main():
        transport, protocol = await running.create_datagram_endpoint(Recorder, local_addr=("127.0.0.1", 0))
        address = transport.get_extra_info("sockname")
        message = await running.run_in_executor(None, result_message, transport.sendto, b"x", address)
        assert repr(running) in message
        transport.close()
        await protocol.lost
    on(running, main())


@pytest.mark.gmploop_only
@pytest.mark.parametrize("call", ["close", "abort"])
@pytest.mark.parametrize("kind", ["tcp", "unix", "datagram"])
def test_close_and_abort_from_a_foreign_thread_are_forwarded(running, kind, call):
    async def main():
        if kind == "datagram":
            transport, protocol = await running.create_datagram_endpoint(Recorder, local_addr=("127.0.0.1", 0))
            await running.run_in_executor(None, getattr(transport, call))
            await protocol.lost
            return
        async with link(kind) as (near, far):
            await running.run_in_executor(None, getattr(near.transport, call))
            await near.lost
            await far.lost
    on(running, main())


@pytest.mark.parametrize("kind", ["tcp", "unix", "tls", "pipe"])
def test_questions_from_a_foreign_thread_are_answered(running, tls, kind):
    def ask(transport):
        return (transport.get_extra_info("socket" if kind != "pipe" else "pipe") is not None, transport.is_closing(),
                transport.get_extra_info("nothing", 3), transport.get_write_buffer_size(), bool(repr(transport)))

    async def main():
        async with link(kind, tls) as (near, _):
            assert await running.run_in_executor(None, ask, near.transport) == (True, False, 3, 0, True)
    on(running, main())


@pytest.mark.gmploop_only
def test_foreign_threads_hammering_a_loop_corrupt_nothing(loop_kind):
    """Everything at once from two threads, allowed or not: calls run or raise RuntimeError, and the loop lives."""
    output = child_output(loop_kind, """
        loop = new_loop()
        unexpected = []

        async def main():
            near, far = socket.socketpair()
            transport, _ = await loop.create_connection(asyncio.Protocol, sock=near)
            calls = [lambda: loop.call_soon(int), lambda: loop.call_later(0.001, int), lambda: transport.write(b"x"),
                     lambda: loop.call_soon_threadsafe(int), lambda: loop.call_soon(int).cancel(), loop.is_running,
                     lambda: transport.get_write_buffer_size(), transport.pause_reading, transport.resume_reading,
                     loop.time, lambda: repr(loop), lambda: repr(transport),
                     lambda: loop.call_soon_threadsafe(int).cancel()]

            def hammer():
                for number in range(20_000):
                    try:
                        calls[number % len(calls)]()
                    except RuntimeError:
                        pass
                    except BaseException as exc:
                        unexpected.append(exc)

            threads = [loop.run_in_executor(None, hammer) for _ in range(2)]
            while not all(thread.done() for thread in threads):
                loop.call_later(0.001, int)
                loop.call_later(1, int).cancel()
                await asyncio.sleep(0)
            await asyncio.gather(*threads)
            transport.abort()
            far.close()
            return await asyncio.sleep(0.001, "lives")

        print(loop.run_until_complete(main()), unexpected)
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
    """, timeout=50)
    assert output == "lives []\n"


@pytest.mark.stock_fault("a refused run_forever() makes the loop forget that it runs", ((3, 13), (3, 13, 15)))
def test_running_one_loop_in_two_threads_is_refused(running):
    with pytest.raises(RuntimeError, match="already running"):
        running.run_forever()
    assert running.is_running()
    with pytest.raises(RuntimeError):
        running.run_until_complete(running.create_future())
    with pytest.raises(RuntimeError):
        running.close()
    assert on(running, asyncio.sleep(0, "unharmed")) == "unharmed"


@pytest.mark.parametrize("family", [socket.AF_INET, socket.AF_UNIX])
def test_a_loop_in_a_thread_serves(running, family, tmp_path):
    path = str(tmp_path / "socket")

    async def start():
        async def handler(reader, writer):
            writer.write(await reader.readline())
            writer.close()
        if family == socket.AF_INET:
            return await asyncio.start_server(handler, "127.0.0.1", 0)
        return await asyncio.start_unix_server(handler, path)
    server = on(running, start())
    for _ in range(20):
        with socket.socket(family) as client:
            client.settimeout(5)
            client.connect(server.sockets[0].getsockname())
            client.send(b"line\n")
            assert client.recv(10) == b"line\n"
            assert client.recv(10) == b""

    async def stop():
        server.close()
        await turns(3)
    on(running, stop())
