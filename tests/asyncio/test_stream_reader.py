"""StreamReader means the same, however it is fed and read underneath."""

import asyncio
import collections.abc
import gc
import inspect
import warnings

import pytest

pytestmark = pytest.mark.timeout(60)


async def pair(limit=2 ** 16):
    """A connection of two streams: (server, (reader, writer) of the server's side, (reader, writer) of the client's)."""
    accepted = asyncio.get_running_loop().create_future()
    server = await asyncio.start_server(lambda *streams: accepted.set_result(streams), "127.0.0.1", 0, limit=limit)
    client = await asyncio.open_connection(*server.sockets[0].getsockname(), limit=limit)
    return server, await accepted, client


async def close(server, *sides):
    for _, writer in sides:
        writer.close()
    for _, writer in sides:
        await writer.wait_closed()
    server.close()
    await server.wait_closed()


@pytest.fixture
def with_pair(run):
    """Runs scenario(server's reader, client's writer), a coroutine function, on a connection."""
    def runner(scenario, **options):
        async def main():
            server, ours, theirs = await pair(**options)
            try:
                return await scenario(ours[0], theirs[1])
            finally:
                await close(server, ours, theirs)
        return run(main())
    return runner


def test_reads_of_all_kinds(with_pair):
    async def scenario(reader, writer):
        writer.write(b"abcdefgh\nline\nexactly|rest")
        got = [await reader.read(0), await reader.read(3), await reader.readline(), await reader.readline(),
               await reader.readexactly(7), await reader.readuntil(b"|")]
        writer.write(b" and more")
        writer.write_eof()
        return got + [await reader.read(-1), await reader.read(10), await reader.read(), reader.at_eof()]
    assert with_pair(scenario) == [b"", b"abc", b"defgh\n", b"line\n", b"exactly", b"|", b"rest and more", b"", b"", True]


@pytest.mark.parametrize("n", [2 ** 70, True, 5])
def test_sizes_that_are_unusual(with_pair, n):
    async def scenario(reader, writer):
        writer.write(b"12345")
        return await reader.read(n)
    assert with_pair(scenario) == (b"1" if n is True else b"12345")


@pytest.mark.parametrize("n", ["1", None, 1.5])
def test_a_wrong_size_is_an_error(with_pair, n):
    async def scenario(reader, writer):
        writer.write(b"12345")
        with pytest.raises(TypeError):
            await reader.read(n)
        return len(await reader.read(100))
    assert with_pair(scenario) in (0, 5)


def test_a_second_reader_is_refused_and_the_first_gets_the_data(with_pair):
    async def scenario(reader, writer):
        first = asyncio.ensure_future(reader.read(10))
        await asyncio.sleep(0)
        for name, call in {"read": reader.read(10), "readuntil": reader.readline(),
                           "readexactly": reader.readexactly(3)}.items():
            with pytest.raises(RuntimeError, match=rf"^{name}\(\) called while another coroutine is already waiting"):
                await call
        writer.write(b"data")
        return await first
    assert with_pair(scenario) == b"data"


def test_a_cancelled_read_takes_nothing(with_pair):
    async def scenario(reader, writer):
        task = asyncio.ensure_future(reader.read(10))
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(reader.read(10), 0.01)
        writer.write(b"data")
        return await reader.read(10)
    assert with_pair(scenario) == b"data"


def test_an_error_of_the_connection_reaches_the_read(with_pair):
    async def scenario(reader, writer):
        task = asyncio.ensure_future(reader.read(10))
        await asyncio.sleep(0)
        reader.set_exception(OSError("broken"))
        for read in task, reader.read(10), reader.read(-1):
            with pytest.raises(OSError, match="broken"):
                await read
    with_pair(scenario)


def test_a_reader_above_its_limit_pauses_the_transport_and_goes_on(with_pair):
    async def scenario(reader, writer):
        data = bytes(range(256)) * 4000
        sending = asyncio.ensure_future(send(writer, data))
        while not reader._paused:
            await asyncio.sleep(0)
        held = len(reader._buffer)
        got = b""
        while len(got) < len(data):
            got += await reader.read(1000)
        await sending
        assert got == data
        return 2 * 1024 < held < len(data)

    async def send(writer, data):
        writer.write(data)
        await writer.drain()
    assert with_pair(scenario, limit=1024)


def test_what_is_put_in_the_place_of_a_method_is_called(with_pair):
    async def scenario(reader, writer):
        seen = []

        def feed_data(data, feed=reader.feed_data):
            seen.append(bytes(data))
            feed(data.upper())
        reader.feed_data = feed_data
        writer.write(b"one")
        first = await reader.read(10)
        del reader.feed_data
        protocol = reader._transport.get_protocol()
        protocol.data_received = lambda data: feed_data(data + b"!")
        writer.write(b"two")
        return seen, first, await reader.read(10)
    assert with_pair(scenario) == ([b"one", b"two!"], b"ONE", b"TWO!")


@pytest.mark.parametrize("limit", [float("inf"), 2 ** 64, 2 ** 63 - 1])
def test_a_limit_may_be_as_large_as_one_likes(with_pair, limit):
    async def scenario(reader, writer):
        writer.write(b"abc")
        assert await reader.read(10) == b"abc"
        writer.write(b"def")
        return await reader.read(10)
    assert with_pair(scenario, limit=limit) == b"def"


def test_a_feed_that_is_put_in_the_class_later_is_called(with_pair, monkeypatch):
    async def scenario(reader, writer):
        writer.write(b"one")
        first = await reader.read(10)

        def feed_data(self, data, feed=asyncio.StreamReader.feed_data):
            feed(self, b"fed " + bytes(data))
        monkeypatch.setattr(asyncio.StreamReader, "feed_data", feed_data)
        writer.write(b"two")
        return first, await reader.read(10)
    assert with_pair(scenario) == (b"one", b"fed two")


def test_a_read_that_is_dropped_while_it_waits_is_over(with_pair):
    async def scenario(reader, writer):
        call = reader.read(10)
        call.send(None)
        del call
        gc.collect()
        writer.write(b"data")
        return await reader.read(10)
    assert with_pair(scenario) == b"data"


def test_what_is_put_in_the_place_of_the_class_s_method_is_called(with_pair, monkeypatch):
    async def scenario(reader, writer):
        async def read(self, n=-1, read=asyncio.StreamReader.read):
            return b"read " + await read(self, n)
        monkeypatch.setattr(asyncio.StreamReader, "read", read)
        writer.write(b"it")
        return await reader.read(10)
    assert with_pair(scenario) == b"read it"


def test_a_buffer_that_somebody_looks_at_is_a_lost_connection_or_none(with_pair, errors):
    async def scenario(reader, writer):
        writer.write(b"some")
        await reader._wait_for_data("test")
        with memoryview(reader._buffer):
            with pytest.raises(BufferError):
                await reader.read(10)
        return await reader.read(10)
    assert with_pair(scenario) == b"some"


def test_a_subclass_is_left_as_it_is(run):
    class Reader(asyncio.StreamReader):
        async def read(self, n=-1):
            return (await super().read(n)).upper()

    async def main():
        loop = asyncio.get_running_loop()
        readers = []

        def factory():
            readers.append(Reader(loop=loop))
            return asyncio.StreamReaderProtocol(readers[0], loop=loop)
        server = await loop.create_server(factory, "127.0.0.1", 0)
        client = await asyncio.open_connection(*server.sockets[0].getsockname())
        client[1].write(b"data")
        got = []
        while not readers:
            await asyncio.sleep(0)
        assert type(readers[0]) is Reader
        got.append(await readers[0].read(10))
        client[1].close()
        await client[1].wait_closed()
        assert await readers[0].read(10) == b""
        readers[0]._transport.close()
        server.close()
        await server.wait_closed()
        return got
    assert run(main()) == [b"DATA"]


def test_a_call_is_a_coroutine_and_a_reader_a_stream_reader(with_pair):
    async def scenario(reader, writer):
        assert isinstance(reader, asyncio.StreamReader)
        assert repr(reader).startswith("<StreamReader")
        call = reader.read(10)
        assert asyncio.iscoroutine(call) and isinstance(call, collections.abc.Coroutine) and inspect.isawaitable(call)
        task = asyncio.create_task(call)
        await asyncio.sleep(0)
        assert "StreamReader.read" in repr(task.get_coro())
        writer.write(b"data")
        assert await task == b"data"
        with pytest.raises(RuntimeError, match="cannot reuse already awaited coroutine"):
            await call
    with_pair(scenario)


def test_a_call_that_is_not_awaited_says_so(with_pair):
    async def scenario(reader, writer):
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            reader.read(10)
            gc.collect()
        return [str(warning.message).partition("\n")[0] for warning in caught]
    assert with_pair(scenario) == ["coroutine 'StreamReader.read' was never awaited"]
