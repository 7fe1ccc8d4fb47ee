"""The contract of core/poller.pyx, as users of a loop see it, on each poller that this build has.

The other tests of the core run on the one that GMPLOOP_POLLER names. kqueue is tested on Linux against libkqueue, with
like_bsd.c preloaded. What else of libkqueue differs from a real kqueue is in kqueue.h; some things show in other
tests (libkqueue.args leaves those out):
- A thread of its own frees a kqueue, some time after close(), and not at all in a forked child. Python warns of it.
  Where threads are counted it is one too many, where they are named it looks like gmploop's sysmon (like_bsd.c).
- A kqueue() that fails, and one whose number is closed by somebody else, leaves what it had opened.
A real kqueue, too, can watch a plain file.
"""

import asyncio
import contextlib
import os
import socket
import sys
import threading
import time

import gmploop
import pytest
from gmploop import config
from support import Recorder, child_output, link, reset, result_of, set_up, tcp_pair, turns, unix_pair, wait_until

pytestmark = [pytest.mark.timeout(60), pytest.mark.gmploop_only]


def why_missing(name):
    """Why this build has no such poller, or None."""
    try:
        gmploop.new_event_loop(poller=name).close()
    except OSError as exc:
        return str(exc)


MISSING = {name: why_missing(name) for name in config.POLLERS[1:]}


@pytest.fixture(params=[name for name, why in MISSING.items() if why is None])
def poller(request):
    return request.param


@pytest.fixture(autouse=True)
def chosen(poller, monkeypatch):
    """By the environment, so that child processes use it too."""
    monkeypatch.setenv("GMPLOOP_POLLER", poller)


def test_the_poller_that_was_asked_for_runs(poller, loop):
    assert gmploop.poller_name() == loop.poller.name == poller


def test_auto_is_the_system_s_own(monkeypatch):
    monkeypatch.delenv("GMPLOOP_POLLER")
    assert gmploop.poller_name() == ("epoll" if sys.platform == "linux" else "kqueue")
    with contextlib.closing(gmploop.new_event_loop()) as loop:
        assert loop.poller.name == gmploop.poller_name()


def test_a_poller_that_cannot_be_had_says_why():
    for name, why in MISSING.items():
        if why is not None:
            with pytest.raises(OSError, match=f"{name} is|no {name}|{name} has no"):
                gmploop.new_event_loop(poller=name)


# -- readers and writers

def fill(sock):
    with contextlib.suppress(BlockingIOError):
        while True:
            sock.send(bytes(65536))


def test_a_reader_is_told_of_the_end_and_a_writer_of_a_closed_pipe(run, loop):
    async def main():
        for close, side in (1, "reader"), (0, "writer"):
            ends = os.pipe()
            os.set_blocking(ends[1], False)
            if side == "writer":
                with contextlib.suppress(BlockingIOError):
                    while os.write(ends[1], bytes(65536)):
                        pass
            told = asyncio.Event()
            getattr(loop, f"add_{side}")(ends[1 - close], told.set)
            await turns(5)
            assert not told.is_set()
            os.close(ends[close])
            await told.wait()
            getattr(loop, f"remove_{side}")(ends[1 - close])
            os.close(ends[1 - close])
    run(main())


# -- transports and sock_*(): edge-triggered

def test_what_comes_while_reading_is_paused_is_read_later(run, loop):
    async def main():
        async with link("tcp") as (near, far):
            for n in range(1, 4):
                far.transport.pause_reading()
                near.transport.write(b"x" * 1000)
                await turns(10)
                assert len(far.data) == 1000 * (n - 1)
                far.transport.resume_reading()
                await far.received(1000 * n)
    run(main())


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_data_and_end_that_come_while_reading_is_paused(run, loop, kind):
    size = 1 << 20          # several reads

    async def main():
        async with link(kind) as (near, far):
            far.eof_keeps_open = True
            far.transport.pause_reading()
            near.transport.write(bytes(size))
            near.transport.write_eof()
            await turns(20)
            assert not far.count("eof")
            far.transport.resume_reading()
            await far.until(lambda: far.count("eof"))
            assert len(far.data) == size
            far.transport.write(b"the other direction lives")
            await near.received(25)
    run(main())


def test_an_end_without_data_that_comes_while_reading_is_paused(run, loop):
    async def main():
        async with link("tcp") as (near, far):
            near.transport.write(b"x")
            await far.received(1)
            far.transport.pause_reading()
            near.transport.close()
            await near.lost
            await turns(10)
            assert not far.count("eof")
            far.transport.resume_reading()
            assert await far.lost is None
            assert far.events[-2:] == ["eof", "lost"]
    run(main())


def test_large_writes_in_both_directions_at_once(run, loop):
    size = 5_000_000

    async def main():
        async with link("tcp") as (near, far):
            for end in near, far:
                end.eof_keeps_open = True
                end.transport.write(bytes(size))
                end.transport.write_eof()
            for end in near, far:
                await end.until(lambda: end.count("eof") and end.count("resume"))
                assert len(end.data) == size
    run(main())


def test_sock_calls_wait_for_each_edge(run, loop):
    async def main():
        near, far = tcp_pair()
        with near, far:
            for n in range(20):
                waiting = loop.create_task(loop.sock_recv(near, 100))
                await turns(3)
                if n % 3 == 2:
                    waiting.cancel()
                    await asyncio.wait([waiting])
                far.send(b"x" * 10)
                assert await (waiting if n % 3 != 2 else loop.sock_recv(near, 4)) == b"x" * (10 if n % 3 != 2 else 4)
                if n % 3 == 2:
                    assert await loop.sock_recv(near, 100) == b"x" * 6
            sending = loop.create_task(loop.sock_sendall(near, bytes(3_000_000)))
            got = 0
            while got < 3_000_000:
                got += len(await loop.sock_recv(far, 65536))
            await sending
    run(main())


@pytest.mark.parametrize("way", ["accept", "recvfrom"])
def test_calls_that_may_leave_something_are_told_again(run, loop, way):
    async def main():
        if way == "accept":
            with set_up(socket.create_server(("127.0.0.1", 0))) as server:
                for _ in range(5):
                    first = loop.create_task(loop.sock_accept(server))
                    await turns(3)
                    clients = [socket.create_connection(server.getsockname()) for _ in range(3)]
                    for accepted in await first, await loop.sock_accept(server), await loop.sock_accept(server):
                        accepted[0].close()
                    for client in clients:
                        client.close()
        else:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as near:
                near.bind(("127.0.0.1", 0))
                near.setblocking(False)
                for _ in range(5):
                    first = loop.create_task(loop.sock_recvfrom(near, 10))
                    await turns(3)
                    for text in b"1", b"2", b"3":
                        near.sendto(text, near.getsockname())
                    assert [(await first)[0], *[(await loop.sock_recvfrom(near, 10))[0] for _ in "23"]] == \
                        [b"1", b"2", b"3"]
    run(main())


def test_a_call_that_has_second_thoughts_is_told_again(run, loop):
    class Shy(socket.socket):
        def recv(self, n):
            self.asked = not getattr(self, "asked", False)
            if self.asked:
                raise BlockingIOError
            return super().recv(n)

    async def main():
        near, far = unix_pair()
        with Shy(fileno=near.detach()) as shy, far:
            shy.setblocking(False)
            far.send(b"abc")
            assert [await loop.sock_recv(shy, 1) for _ in "abc"] == [b"a", b"b", b"c"]
    run(main())


def test_datagrams_that_come_while_reading_is_paused(run, loop):
    async def main():
        transport, end = await loop.create_datagram_endpoint(Recorder, ("127.0.0.1", 0))
        address = transport.get_extra_info("sockname")
        for n in range(1, 4):
            transport.pause_reading()
            for _ in range(20):
                transport.sendto(b"x", address)
            await turns(10)
            assert len(end.data) == 20 * (n - 1)
            transport.resume_reading()
            await end.received(20 * n)
        transport.close()
        await end.lost
    run(main())


# -- errors

@pytest.mark.parametrize("paused", [False, True])
def test_a_reset_ends_the_transport_with_the_error(run, loop, paused):
    async def main():
        near, far = tcp_pair()
        transport, end = await loop.create_connection(Recorder, sock=near)
        if paused:
            transport.pause_reading()
        reset(far)
        await turns(10)
        assert end.lost.done() is not paused
        transport.resume_reading()
        assert type(await end.lost) is ConnectionResetError
    run(main())


def test_a_reset_ends_calls_that_wait_in_either_direction(run, loop):
    async def main():
        for call in "recv", "send":
            near, far = tcp_pair()
            with near:
                if call == "send":
                    fill(near)
                waits = loop.sock_recv(near, 10) if call == "recv" else loop.sock_sendall(near, b"x")
                waiting = loop.create_task(waits)
                await turns(5)
                assert not waiting.done()
                reset(far)
                with pytest.raises((ConnectionResetError, BrokenPipeError)):
                    await waiting
    run(main())


def test_a_refused_connection_is_an_error(run, loop):
    async def main():
        with socket.create_server(("127.0.0.1", 0)) as server:
            address = server.getsockname()
        with pytest.raises(ConnectionRefusedError):
            await asyncio.open_connection(*address)
        transport, end = await loop.create_datagram_endpoint(Recorder, remote_addr=address)
        transport.sendto(b"x")
        await end.until(lambda: end.count("error"))
        transport.close()
        await end.lost
    run(main())


def test_a_pipe_whose_reader_went_away_ends_the_transport(run, loop):
    async def main():
        source, sink = os.pipe()
        transport, end = await loop.connect_write_pipe(Recorder, open(sink, "wb", 0))
        transport.write(b"x")
        os.close(source)
        assert type(await end.lost) in (BrokenPipeError, type(None))
    run(main())


# -- waiting

def test_a_timer_ends_the_wait_and_never_early(run, loop):
    async def main():
        for delay in 0.0002, 0.0015, 0.0123, 0.2:
            fired = loop.create_future()
            start, cpu = time.monotonic(), time.process_time()
            loop.call_later(delay, lambda: fired.set_result(time.monotonic() - start))
            assert await fired >= delay
        assert time.process_time() - cpu < 0.1, "it did not sleep"
    run(main())


def test_what_a_paused_transport_leaves_unread_keeps_nobody_awake(run, loop):
    async def main():
        async with link("tcp") as (near, far):
            far.transport.pause_reading()
            near.transport.write(b"x")
            await asyncio.sleep(0.01)
            cpu = time.process_time()
            await asyncio.sleep(0.2)
            assert time.process_time() - cpu < 0.1
    run(main())


# -- numbers that are used again

def test_an_event_of_a_file_that_lives_on_in_a_duplicate_reaches_nobody(run, loop, poller):
    if poller == "kqueue" and sys.platform == "linux":
        pytest.skip("libkqueue goes on with what it has freed")

    async def main():
        near, far = unix_pair()
        silent, silent_far = unix_pair()
        seen = []
        loop.add_reader(near, seen.append, "near")
        number, duplicate = near.fileno(), near.dup()
        near.close()
        assert loop.remove_reader(number)
        os.dup2(silent.fileno(), number)
        loop.add_reader(number, seen.append, "silent")
        far.send(b"x")
        await turns(10)
        assert not seen
        silent_far.send(b"x")
        await turns(10)
        assert set(seen) == {"silent"}
        loop.remove_reader(number)
        os.close(number)
        for sock in duplicate, far, silent, silent_far:
            sock.close()
    run(main())


def test_a_number_closed_behind_the_back_is_taken_over_by_a_transport(run, loop):
    async def main():
        (near, far), (new, new_far) = tcp_pair(), unix_pair()
        waiting = loop.create_task(loop.sock_recv(near, 10))
        await turns(3)
        number = near.detach()
        os.dup2(new.fileno(), number)       # closes it, too
        new.close()
        waiting.cancel()
        transport, end = await loop.create_connection(Recorder, sock=socket.socket(fileno=number))
        for n in range(1, 4):
            new_far.send(b"x")
            await end.received(n)
            transport.write(b"y")
            assert await loop.sock_recv(new_far, 9) == b"y"
        transport.close()
        await end.lost
        far.close()
        new_far.close()
    run(main())


def test_a_descriptor_may_change_its_owner_and_its_trigger(run, loop):
    """The same open socket: first edge-triggered for sock_recv, then level-triggered for a reader, and back."""
    async def main():
        near, far = unix_pair()
        far.send(b"x" * 10)
        await loop.sock_recv(near, 5)
        await loop.sock_recv(near, 5)
        waiting = loop.create_task(loop.sock_recv(near, 5))
        await turns(3)
        waiting.cancel()
        other = socket.socket(fileno=near.detach())
        other.setblocking(False)
        seen = []
        loop.add_reader(other, lambda: seen.append(other.recv(1)))
        far.send(b"abc")
        await turns(20)
        assert seen == [b"a", b"b", b"c"]
        loop.remove_reader(other)
        far.send(b"def")
        assert await loop.sock_recv(other, 10) == b"def"
        waiting = loop.create_task(loop.sock_recv(other, 10))
        await turns(3)
        far.send(b"ghi")
        assert await waiting == b"ghi"
        other.close()
        far.close()
    run(main())


# -- close and fork

@pytest.mark.parametrize("elsewhere", [True, False])
def test_the_port_of_a_server_is_free_when_close_returns(running, elsewhere):
    async def serve():
        return await running.create_server(Recorder, "127.0.0.1", 0)
    server = asyncio.run_coroutine_threadsafe(serve(), running).result(10)
    address = server.sockets[0].getsockname()
    if elsewhere:
        server.close()
    else:
        closed = threading.Event()
        running.call_soon_threadsafe(lambda: (server.close(), closed.set()))
        assert closed.wait(10)
    with socket.create_server(address):         # which sets SO_REUSEADDR: only a listener would refuse it
        pass


def test_a_server_that_another_thread_closes_does_not_wait_for_a_busy_loop(running):
    async def serve():
        return await running.create_server(Recorder, "127.0.0.1", 0)
    server = asyncio.run_coroutine_threadsafe(serve(), running).result(10)
    address, busy, go_on = server.sockets[0].getsockname(), threading.Event(), threading.Event()
    running.call_soon_threadsafe(lambda: (busy.set(), go_on.wait(10)))
    assert busy.wait(10)
    server.close()                              # the loop is at a callback that waits for what comes after this
    go_on.set()

    def is_free():
        with contextlib.suppress(OSError), socket.create_server(address):
            return True
    wait_until(is_free)

def test_a_wake_up_that_meets_close_touches_no_other_descriptor(loop_factory):
    """A thread posts to a loop while it is closed and its numbers are given to pipes: nothing is written to them."""
    for _ in range(50):
        loop = loop_factory()
        go = threading.Event()

        def post():
            go.set()
            while result_of(loop.call_soon_threadsafe, int) is not RuntimeError:
                loop._write_to_self()
            for _ in range(20):
                loop._write_to_self()
        thread = threading.Thread(target=post)
        thread.start()
        go.wait()
        loop.call_soon(loop.stop)
        loop.run_forever()
        loop.close()
        loop.close()
        ends = [end for _ in range(4) for end in os.pipe()]
        thread.join(10)
        for source in ends[::2]:
            os.set_blocking(source, False)
            with pytest.raises(BlockingIOError):
                os.read(source, 1)
        for end in ends:
            os.close(end)


def test_a_loop_goes_on_in_a_forked_child_with_what_it_watched():
    output = child_output("gmploop", """
        loop = new_loop()
        near, far = socket.socketpair()
        near.setblocking(False)
        seen = []
        loop.add_reader(near, lambda: (seen.append(near.recv(9)), loop.stop()))
        loop.run_until_complete(asyncio.sleep(0.001))
        child = os.fork()
        loop.call_later(5, loop.stop)
        if not child:
            far.send(b"y")
        if child:
            status = os.waitpid(child, 0)[1]    # the child has emptied the socket, which is theirs both
            far.send(b"x")
        loop.run_forever()
        loop.call_soon_threadsafe(loop.stop)
        loop.run_forever()
        loop.remove_reader(near)
        loop.close()
        if not child:
            os._exit(not seen)
        print("child", os.waitstatus_to_exitcode(status), seen)
    """, options=["-W", "ignore::DeprecationWarning"])
    assert output == "child 0 [b'x']\n"
