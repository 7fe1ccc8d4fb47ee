"""write_batching: the small writes of a turn leave together when it ends, on each poller that can do so."""

import asyncio
import random

import gmploop
import pytest
from support import Recorder, child_output, link, reset, result_of, tcp_pair, turns, unix_pair

pytestmark = [pytest.mark.timeout(60), pytest.mark.gmploop_only]


def missing(name):
    made = result_of(gmploop.new_event_loop, poller=name)
    return made if made is OSError else made.close()


@pytest.fixture(autouse=True, params=[name for name in ("epoll", "io_uring") if missing(name) is None])
def poller(request, monkeypatch):
    monkeypatch.setenv("GMPLOOP_POLLER", request.param)
    monkeypatch.setenv("GMPLOOP_WRITE_BATCHING", "1")
    return request.param


def received(sock):
    return result_of(sock.recv, 1 << 20)


def test_what_a_callback_writes_leaves_when_the_turn_ends_and_in_order(run, loop):
    async def main():
        ends = [tcp_pair() for _ in range(5)]
        transports = [(await loop.create_connection(Recorder, sock=near))[0] for near, _ in ends]
        for size in 1, 100:
            for transport in transports:
                for text in b"a", bytearray(b"b"), b"c" * size:
                    transport.write(text)
                assert transport.get_write_buffer_size() == 2 + size
            assert [received(far) for _, far in ends] == [BlockingIOError] * 5
            assert [await loop.sock_recv(far, 1000) for _, far in ends] == [b"ab" + b"c" * size] * 5
            assert transports[0].get_write_buffer_size() == 0
        for transport in transports:
            transport.abort()
        await turns(2)
        for _, far in ends:
            far.close()
    run(main())


@pytest.mark.parametrize("what", ["close", "write_eof", "a large write", "writelines", "a view", "more than is kept"])
def test_whatever_else_is_done_sends_it_first(run, loop, what):
    async def main():
        near, far = tcp_pair()
        transport, end = await loop.create_connection(Recorder, sock=near)
        transport.write(b"first")
        then = {"close": transport.close, "write_eof": transport.write_eof,
                "a large write": lambda: transport.write(bytes(5000)),
                "writelines": lambda: transport.writelines([b"x", b"y"]),
                "a view": lambda: transport.write(memoryview(b"view")),
                "more than is kept": lambda: [transport.write(bytes(4096)) for _ in range(4)]}
        then[what]()
        assert received(far)[:5] == b"first"
        transport.abort()
        await end.lost
        far.close()
    run(main())


def test_nothing_waits_while_the_loop_is_not_run(loop):
    near, far = unix_pair()

    async def connect():
        return await loop.create_connection(Recorder, sock=near)
    transport, _ = loop.run_until_complete(connect())
    transport.write(b"while nobody runs it")
    assert received(far) == b"while nobody runs it"

    async def last_words():
        transport.write(b"last words")
    loop.run_until_complete(last_words())
    assert received(far) == b"last words"
    transport.abort()
    loop.run_until_complete(asyncio.sleep(0))
    far.close()


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_a_peer_that_does_not_read_gets_all_of_it_later(run, loop, kind):
    async def main():
        async with link(kind) as (near, far):
            near.transport.set_write_buffer_limits(high=20_000)
            far.transport.pause_reading()
            chosen, sent = random.Random(3), bytearray()
            while not near.count("pause"):
                sent += (text := chosen.randbytes(chosen.randrange(1, 4096)))
                near.transport.write(text)
                if chosen.random() < 0.5:
                    await turns(1)
            far.transport.resume_reading()
            await far.received(len(sent))
            assert far.data == sent and near.count("resume")
    run(main())


def test_a_broken_connection_is_told_and_does_not_hurt_the_others(run, loop):
    async def main():
        async with link("tcp") as (near, far), link("tcp") as (other, other_far):
            sock, peer = tcp_pair()
            transport, end = await loop.create_connection(Recorder, sock=sock)
            transport.pause_reading()
            reset(peer)
            for one in near.transport, transport, other.transport:
                one.write(b"x")
            assert isinstance(await end.lost, ConnectionError)
            await far.received(1)
            await other_far.received(1)
    run(main())


def test_abort_drops_what_waits(run, loop):
    async def main():
        near, far = tcp_pair()
        transport, end = await loop.create_connection(Recorder, sock=near)
        transport.write(b"dropped")
        transport.abort()
        await end.lost
        assert received(far) in (b"", ConnectionResetError)
        far.close()
    run(main())


def test_many_connections_more_than_a_ring_carries(run, loop):
    async def main():
        ends = [unix_pair() for _ in range(300)]
        transports = [(await loop.create_connection(Recorder, sock=near))[0] for near, _ in ends]
        for _ in range(3):
            for number, transport in enumerate(transports):
                transport.write(b"%d" % number)
            assert [await loop.sock_recv(far, 1000) for _, far in ends] == [b"%d" % number for number in range(300)]
        for transport in transports:
            transport.abort()
        await turns(2)
        for _, far in ends:
            far.close()
    run(main())


def test_in_a_forked_child_it_goes_on():
    assert child_output("gmploop", """
        loop = gmploop.new_event_loop()
        pairs = [socket.socketpair() for _ in range(3)]
        for near, _ in pairs:
            near.setblocking(False)

        async def use(text):
            for transport in transports:
                transport.write(text)
            await asyncio.sleep(0.001)
            return [far.recv(10) for _, far in pairs]
        transports = [loop.run_until_complete(loop.create_connection(asyncio.Protocol, sock=near))[0]
                      for near, _ in pairs]
        assert loop.run_until_complete(use(b"one")) == [b"one"] * 3
        child = os.fork()
        if not child:
            os._exit(loop.run_until_complete(use(b"two")) != [b"two"] * 3)
        print(os.waitpid(child, 0)[1])
        assert loop.run_until_complete(use(b"three")) == [b"three"] * 3
        for transport in transports:
            transport.abort()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        for _, far in pairs:
            far.close()
    """, options=["-W", "ignore::DeprecationWarning"]) == "0\n"


@pytest.mark.parametrize("end", ["close", "abort"])
def test_a_child_forked_in_mid_turn_sends_nothing_of_the_parent_s(end):
    assert child_output("gmploop", f"""
        async def main():
            near, far = socket.socketpair()
            near.setblocking(False)
            transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=near)
            transport.write(b"once")
            child = os.fork()
            if not child:
                transport.{end}()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            await asyncio.sleep(0.001)
            print(far.recv(100))
            transport.abort()
            far.close()
        gmploop.run(main())
    """, options=["-W", "ignore::DeprecationWarning"]) == "b'once'\n"
