"""Writing: nothing is lost, and a producer that is faster than the reader is held back."""

import array
import asyncio
import socket

import pytest

from support import LINKS, NEVER, Recorder, link, pattern, result_of, tcp_pair, settle, unix_pair

pytestmark = pytest.mark.timeout(60)

WRITELINES = ("writelines", "many_writelines", "writelines_of_an_iterator")
UNBOUNDED = pytest.mark.stock_fault("python/cpython#127655: writelines() has no high-water check",
                                    ((3, 12), (3, 12, 9)), ((3, 13), (3, 13, 2)), kind=("tcp", "unix"), way=WRITELINES)


def pieces(data, size):
    return [data[start:start + size] for start in range(0, len(data), size)]


WAYS = {
    "one_write": lambda transport, data: transport.write(data),
    "many_writes": lambda transport, data: [transport.write(piece) for piece in pieces(data, 50_000)],
    "writelines": lambda transport, data: transport.writelines(pieces(data, 50_000)),
    "many_writelines": lambda transport, data: [transport.writelines([piece]) for piece in pieces(data, 50_000)],
    "writelines_of_an_iterator": lambda transport, data: transport.writelines(iter(pieces(data, 50_000))),
}


@UNBOUNDED
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["tcp", "unix", "pipe"])
def test_producer_is_paused_once_and_resumed_once(run, kind, way):
    data = pattern(4_000_000)

    async def main():
        async with link(kind) as (near, far):
            far.transport.pause_reading()
            near.transport.set_write_buffer_limits(high=64 * 1024, low=16 * 1024)
            WAYS[way](near.transport, data)
            assert near.count("pause") == 1
            assert near.transport.get_write_buffer_size() > 64 * 1024
            await settle()
            assert near.events == ["made", "pause"]
            far.transport.resume_reading()
            await near.until(lambda: "resume" in near.events)
            await far.received(len(data))
            assert near.events == ["made", "pause", "resume"]
            assert far.data == data
            assert near.transport.get_write_buffer_size() == 0
    run(main())


@UNBOUNDED
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", LINKS)
def test_a_producer_that_heeds_pause_writing_needs_little_memory(run, tls, kind, way):
    """While the far end does not read, a producer that stops when told to does not get far; then all arrives."""
    piece = pattern(100_000)

    class Producer(Recorder):
        paused, sent = False, 0

        def produce(self):
            while not self.paused and self.sent < 60:
                self.sent += 1
                WAYS[way](self.transport, piece)

        def pause_writing(self):
            super().pause_writing()
            self.paused = True

        def resume_writing(self):
            super().resume_writing()
            self.paused = False
            self.produce()

    async def main():
        async with link(kind, tls, near=Producer) as (near, far):
            far.transport.pause_reading()
            near.produce()
            await settle()
            assert near.sent < 30
            far.transport.resume_reading()
            await far.received(60 * len(piece))
            assert far.data == piece * 60
            assert 0 <= near.count("pause") - near.count("resume") <= 1
    run(main())


@UNBOUNDED
@pytest.mark.parametrize("way", ["write", "writelines"])
@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_drain_waits_for_a_slow_reader(run, kind, way):
    data = pattern(1_500_000)

    async def main():
        one, two = tcp_pair() if kind == "tcp" else unix_pair()
        with two:
            _, writer = await asyncio.open_connection(sock=one)
            writer.write(data) if way == "write" else writer.writelines(pieces(data, 10_000))
            drained = asyncio.ensure_future(writer.drain())
            await settle()
            assert not drained.done()
            received = bytearray()
            loop = asyncio.get_running_loop()
            while len(received) < len(data):
                received += await loop.sock_recv(two, 1 << 20)
            await drained
            assert received == data
            writer.close()
            await writer.wait_closed()
    run(main())


CHUNKS = {
    "100_chunks_and_a_marker": [b"x" * 6500] * 100 + [b"END"],
    "more_chunks_than_one_call_takes": [b"%07d" % number for number in range(5000)] + [b"END"],
    "many_larger_chunks": [bytes([number % 251]) * 300 for number in range(2500)] + [b"END"],
    "one_byte_each": [bytes([number % 251]) for number in range(3000)] + [b"END"],
    "mixed_types": [b"a" * 50_000, bytearray(b"b" * 50_000), memoryview(b"c" * 50_000)] * 10 + [b"END"],
    "with_empty_chunks": [b"", b"a" * 70_000, b"", b"", b"b" * 70_000] * 10 + [b"END"],
    "nothing_but_empty_chunks_before": [b""] * 2000 + [b"END"],
}


@pytest.mark.stock_fault("nothing but empty pieces is taken for something to send", ((3, 12), (3, 14)),
                         kind=("tcp", "unix"), chunks=("nothing_but_empty_chunks_before",))
@pytest.mark.parametrize("small_buffer", [False, True], ids=["default_buffer", "small_buffer"])
@pytest.mark.parametrize("chunks", CHUNKS)
@pytest.mark.parametrize("kind", LINKS)
def test_every_chunk_of_writelines_arrives(run, tls, kind, chunks, small_buffer):
    lines = CHUNKS[chunks]
    data = b"".join(lines)

    async def main():
        async with link(kind, tls) as (near, far):
            if small_buffer and kind != "pipe":
                near.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
            near.transport.writelines(lines)
            await far.received(len(data))
            assert far.data == data
    run(main(), timeout=5)


@pytest.mark.parametrize("kind", LINKS)
def test_empty_chunks_at_the_end_keep_the_loop_idle(run, tls, kind, loop):
    """A buffer of nothing but empty pieces must not count as something to send."""
    data = pattern(1_500_000)

    async def main():
        async with link(kind, tls) as (near, far):
            near.transport.writelines([data, b"", b""])
            await far.received(len(data))
            await settle()
            assert near.transport.get_write_buffer_size() == 0
            near.transport.writelines([b"", b""])
            near.transport.writelines([])
            near.transport.write(b"")
            assert near.transport.get_write_buffer_size() == 0
            near.transport.write(b"END")
            await far.received(len(data) + 3)
            assert far.data[-3:] == b"END"
    run(main(), timeout=5)


@pytest.mark.parametrize("kind", LINKS)
def test_close_flushes_what_was_written(run, tls, kind):
    data = pattern(2_000_000)

    async def main():
        async with link(kind, tls) as (near, far):
            near.transport.write(data)
            near.transport.close()
            near.transport.close()
            await far.lost
            assert far.data == data
            assert await near.lost is None
    run(main())


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_half_close_after_a_large_write_keeps_the_other_direction(run, kind):
    data = pattern(2_000_000)

    async def main():
        async with link(kind) as (near, far):
            far.eof_keeps_open = True
            near.transport.write(data)
            near.transport.write_eof()
            await far.until(lambda: "eof" in far.events)
            assert far.data == data
            far.transport.write(data)
            await near.received(len(data))
            assert near.data == data
            with pytest.raises(RuntimeError):
                near.transport.write(b"more")
    run(main())


@pytest.mark.parametrize("kind", LINKS)
def test_resume_writing_may_write_to_other_transports_and_close_them(run, tls, kind):
    data = pattern(600_000)

    class Forwarder(Recorder):
        def resume_writing(self):
            super().resume_writing()
            if self.count("resume") == 1:
                self.transport.write(b"again")
                self.other.write(data)
                self.closed.close()

    async def main():
        async with link(kind, tls, near=Forwarder) as (a, a_end), link(kind, tls) as (b, b_end), \
                link(kind, tls) as (c, c_end):
            a.other, a.closed = b.transport, c.transport
            a_end.transport.pause_reading()
            a.transport.set_write_buffer_limits(high=64 * 1024)
            c.transport.write(b"last")
            a.transport.write(data)
            a.transport.write(b"!" * 200_000)  # a second write: TLS passes one of any size down before it pauses
            assert a.count("pause") == 1
            a_end.transport.resume_reading()
            await a_end.received(len(data) + 200_005)
            await b_end.received(len(data))
            await c_end.lost
            assert (a_end.data, b_end.data, c_end.data) == (data + b"!" * 200_000 + b"again", data, b"last")
    run(main())


def test_many_flushing_transports_may_write_to_each_other(run):
    """Each write that gets through starts the next transport's: nothing is sent late and nothing is lost."""
    count, size = 30, 600_000

    class Next(Recorder):
        def resume_writing(self):
            super().resume_writing()
            if self.count("resume") == 1:
                self.next.transport.write(b"n" * size)

    async def main():
        loop = asyncio.get_running_loop()
        nears, fars = [], []
        for _ in range(count):
            one, two = unix_pair()
            nears.append((await loop.create_connection(Next, sock=one))[1])
            fars.append((await loop.create_connection(Recorder, sock=two))[1])
        for far in fars:
            far.transport.pause_reading()
        for here, there in zip(nears, nears[1:] + nears[:1]):
            here.next = there
            here.transport.write(b"m" * size)
        for far in fars:
            far.transport.resume_reading()
        for far in fars:
            await far.received(2 * size)
            assert far.data.count(b"m") == far.data.count(b"n") == size
        for end in nears + fars:
            end.transport.abort()
            await end.lost
    run(main())


# -- buffers that are not plain bytes

def int_view():
    return memoryview(array.array("I", range(125_000)))


VIEWS = {
    "array_of_int": int_view,
    "two_dimensions": lambda: memoryview(pattern(1_000_000)).cast("B", shape=(1000, 1000)),
    "read_only_doubles": lambda: memoryview(array.array("d", range(125_000))).toreadonly(),
}
BY_ITEM = "python/cpython#135862: slices a view by item but counts bytes"


@pytest.mark.stock_fault(BY_ITEM, kind=("tcp", "unix", "pipe"), way=("write",))
@pytest.mark.stock_fault(BY_ITEM, ((3, 12), NEVER), kind=("tcp", "unix"), way=("writelines", "write_behind_others"))
@pytest.mark.parametrize("way", ["write", "writelines", "write_behind_others"])
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("kind", LINKS)
def test_views_with_items_of_several_bytes_are_sent_whole(run, tls, kind, view, way):
    async def main():
        view_ = VIEWS[view]()
        async with link(kind, tls) as (near, far):
            far.transport.pause_reading()
            expected = bytes(view_)
            if way == "write_behind_others":
                near.transport.write(b"x" * 1_500_000)
                before = near.transport.get_write_buffer_size()
                near.transport.write(view_)
                if kind != "tls":       # there the size counts what records add, or what is still unencrypted
                    assert near.transport.get_write_buffer_size() == before + len(expected)
                expected = b"x" * 1_500_000 + expected
            else:
                near.transport.write(view_) if way == "write" else near.transport.writelines([view_])
                assert kind == "tls" or 0 < near.transport.get_write_buffer_size() <= len(expected)
            far.transport.resume_reading()
            await far.received(len(expected))
            assert far.data == expected
            near.transport.close()
            await far.lost
            assert far.data == expected
    run(main(), timeout=5)


@pytest.mark.stock_fault(BY_ITEM)
@pytest.mark.parametrize("view", VIEWS)
@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_sock_sendall_sends_such_views_whole(run, kind, view):
    async def main():
        loop = asyncio.get_running_loop()
        one, two = tcp_pair() if kind == "tcp" else unix_pair()
        with one, two:
            sending = asyncio.ensure_future(loop.sock_sendall(one, VIEWS[view]()))
            expected = bytes(VIEWS[view]())
            received = bytearray()
            while len(received) < len(expected):
                received += await loop.sock_recv(two, 1 << 20)
            await sending
            assert received == expected
    run(main(), timeout=5)


@pytest.mark.parametrize("kind", ["udp", "unix_datagram"])
def test_datagrams_of_such_views_are_sent_whole(run, kind):
    async def main():
        loop = asyncio.get_running_loop()
        view = memoryview(array.array("I", range(200)))
        family = socket.AF_INET if kind == "udp" else socket.AF_UNIX
        one, two = socket.socket(family, socket.SOCK_DGRAM), socket.socket(family, socket.SOCK_DGRAM)
        for sock in one, two:
            sock.setblocking(False)
            sock.bind(("127.0.0.1", 0) if kind == "udp" else "")  # an empty Unix name: the kernel picks one
        address = two.getsockname()
        near, _ = await loop.create_datagram_endpoint(Recorder, sock=one)
        _, far = await loop.create_datagram_endpoint(Recorder, sock=two)
        near.sendto(view, address)
        await far.received(800)
        assert far.data == bytes(view)
        near.close()
        far.transport.close()
        await far.lost
    run(main(), timeout=5)


@pytest.mark.parametrize("way", ["write", "writelines"])
@pytest.mark.parametrize("kind", LINKS)
def test_a_view_with_gaps_is_taken_as_stock_takes_it(same_as_stock, errors, tls, kind, way):
    async def scenario(loop):
        async with link(kind, tls) as (near, far):
            gaps = memoryview(b"abcdef")[::2]
            raised = result_of(near.transport.write, gaps) if way == "write" \
                else result_of(near.transport.writelines, [gaps])
            await settle()
            lost = type(near.lost.result()) if near.lost.done() else None
            if lost is None and raised is None:
                await far.received(3)
            return raised, lost, bytes(far.data)
    same_as_stock(scenario)
    del errors[:]  # whether the handler is told is part of stock's way of failing here


@pytest.mark.stock_fault("the rest of a bytearray is not copied", ((3, 12), NEVER))
def test_the_producer_may_change_its_bytearray_after_write(run):
    """Once write() has returned, the caller's buffer is the caller's: it may be resized and overwritten."""
    async def main():
        async with link("tcp") as (near, far):
            far.transport.pause_reading()
            near.transport.write(b"x" * 1_500_000)
            data = bytearray(b"y" * 1000)
            near.transport.write(data)
            data[:] = b"z" * 1000
            del data[:]
            far.transport.resume_reading()
            await far.received(1_501_000)
            assert far.data[1_500_000:] == b"y" * 1000
    run(main())
