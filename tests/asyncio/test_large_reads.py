"""Reads of much data and of little, mixed: each data_received() gets bytes of its own, and what comes behind them."""

import asyncio
import random
import socket
import struct

import pytest

from support import Recorder, link, pattern, tcp_pair

pytestmark = pytest.mark.timeout(60)


class Keeper(Recorder):
    """Keeps what it got, as it got it."""

    def __init__(self):
        super().__init__()
        self.pieces = []

    def data_received(self, data):
        self.pieces.append(data)
        super().data_received(data)


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_pieces_of_all_sizes_stay_as_they_were(run, kind):
    """A transport that read into the memory of an earlier piece would spoil that one."""
    sizes = [1, 20_000, 300_000, 5, 40_000, 40_000, 1, 1_000_000, 33_000, 3] * 6
    random.Random(1).shuffle(sizes)
    data = pattern(sum(sizes))

    async def main():
        async with link(kind, far=Keeper) as (near, far):
            at = 0
            for size in sizes:
                near.transport.write(data[at:at + size])
                at += size
                await far.received(at)
            assert all(type(piece) is bytes for piece in far.pieces)
            assert b"".join(far.pieces) == data
            assert max(map(len, far.pieces)) > 100_000, "nothing large was read at once: this shows nothing"
    run(main())


@pytest.mark.parametrize("last", [1, 100_000])
@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_the_end_comes_behind_a_large_read(run, kind, last):
    async def main():
        async with link(kind, far=Keeper) as (near, far):
            near.transport.write(pattern(500_000))
            await far.received(500_000)
            near.transport.write(pattern(last))
            near.transport.write_eof()
            await far.until(lambda: "eof" in far.events)
            assert far.data == pattern(500_000) + pattern(last)
            assert await far.lost is None
    run(main())


def test_a_reset_comes_behind_a_large_read(run):
    async def main():
        loop = asyncio.get_running_loop()
        peer, sock = tcp_pair()
        _, far = await loop.connect_accepted_socket(Keeper, sock)
        await loop.sock_sendall(peer, pattern(500_000))
        await far.received(500_000)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        peer.close()
        assert isinstance(await far.lost, ConnectionResetError)
        assert far.data == pattern(500_000)
    run(main())


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_reading_that_is_paused_in_a_large_read_goes_on(run, kind):
    class Pausing(Keeper):
        def data_received(self, data):
            super().data_received(data)
            self.transport.pause_reading()
            asyncio.get_running_loop().call_soon(self.transport.resume_reading)

    async def main():
        async with link(kind, far=Pausing) as (near, far):
            near.transport.write(pattern(3_000_000))
            await far.received(3_000_000)
            assert far.data == pattern(3_000_000)
            near.transport.write(b"end")
            await far.received(3_000_003)
    run(main())


def test_an_error_in_a_large_read_ends_the_connection(run, loop, errors):
    class Failing(Keeper):
        def data_received(self, data):
            super().data_received(data)
            if len(self.data) > 400_000:
                raise ZeroDivisionError

    async def main():
        async with link("tcp", far=Failing) as (near, far):
            near.transport.write(pattern(3_000_000))
            assert isinstance(await far.lost, ZeroDivisionError)
            assert len(far.data) < 3_000_000
            await near.lost
    run(main())
    assert [type(context["exception"]) for context in errors] == [ZeroDivisionError]
    errors.clear()


def test_a_protocol_that_is_set_between_large_reads_gets_the_rest(run):
    """Of a StreamReader's, too: large reads then go another way."""
    async def main():
        async with link("tcp", far=Keeper) as (near, far):
            near.transport.write(pattern(500_000))
            await far.received(500_000)
            reader = asyncio.StreamReader(limit=1 << 20)
            far.transport.set_protocol(asyncio.StreamReaderProtocol(reader))
            near.transport.write(pattern(600_000))
            assert await reader.readexactly(600_000) == pattern(600_000)
            assert len(far.data) == 500_000
            far.transport.set_protocol(far)
            near.transport.write(pattern(700_000))
            await far.received(1_200_000)
            assert far.data == pattern(500_000) + pattern(700_000)
    run(main())
