"""TLS: data comes through whole, however its records are cut, whoever reads it, whatever callbacks do meanwhile."""

import array
import asyncio
import gc
import ssl
import weakref

import pytest

from support import Recorder, link, settle, tcp_pair
from test_tls import MemoryClient

pytestmark = pytest.mark.timeout(60)

MESSAGE = bytes(range(256)) * 400       # seven records


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3], ids=["1.2", "1.3"])
def test_records_cut_anywhere(run, tls, version):
    """Three records, in pieces of 1 to 80 bytes and in one; the farewell comes with the last."""
    context = ssl.create_default_context(cafile=tls.cert)
    context.maximum_version = version

    async def talk(size):
        loop = asyncio.get_running_loop()
        one, two = tcp_pair()
        client = MemoryClient(context)
        with two:
            accepting = asyncio.ensure_future(loop.connect_accepted_socket(Recorder, one, ssl=tls.server))
            await loop.sock_sendall(two, client.hello())
            await client.go_on(loop, two, lambda: client.tls.do_handshake() or True)
            _, protocol = await accepting
            for piece in b"a" * 30, b"b", b"c" * 50:
                client.tls.write(piece)
            try:
                client.tls.unwrap()
            except ssl.SSLWantReadError:
                pass
            records = client.outgoing.read()
            for offset in range(0, len(records), size):
                await loop.sock_sendall(two, records[offset:offset + size])
                await asyncio.sleep(0)
            await protocol.lost
            assert bytes(protocol.data) == b"a" * 30 + b"b" + b"c" * 50
            assert protocol.events[-2:] == ["eof", "lost"]

    async def main():
        for size in (*range(1, 12), 29, 35, 80, 10_000):
            await talk(size)
    run(main())


class Filled(Recorder, asyncio.BufferedProtocol):
    """Reads into a buffer of its own, of a given size and kind."""
    make = bytearray
    size = 1000

    def connection_made(self, transport):
        self.buffer = self.make(self.size)
        super().connection_made(transport)

    def get_buffer(self, sizehint):
        return self.buffer

    def buffer_updated(self, nbytes):
        self.data_received(memoryview(self.buffer).cast("B")[:nbytes])


@pytest.mark.parametrize("size", [1, 1000, 16_384, 300_000])
@pytest.mark.parametrize("make", [lambda size: memoryview(bytearray(size)), bytearray,
                                  lambda size: array.array("I", bytes(4 * size))],
                         ids=["view", "bytearray", "integers"])
def test_a_buffer_of_any_size_and_kind(run, tls, loop_kind, make, size):
    if loop_kind == "asyncio" and type(make(1)) is not memoryview:
        pytest.skip("there all but the first record of a read goes into a copy of the buffer")
    message = MESSAGE[:5000] if size == 1 else MESSAGE

    def protocol():
        made = Filled()
        made.make, made.size = make, size
        return made

    async def main():
        async with link("tls", tls, far=protocol) as (near, far):
            near.transport.write(message)
            await far.received(len(message))
            assert far.data == message
    run(main())


def test_a_buffer_may_grow_in_the_callback_that_is_told_of_it(run, tls):
    class Growing(Filled):
        def buffer_updated(self, nbytes):
            super().buffer_updated(nbytes)
            self.buffer.extend(b"x" * 100)

    async def main():
        async with link("tls", tls, far=Growing) as (near, far):
            near.transport.write(b"first")
            await far.received(5)
            near.transport.write(b"second")
            await far.received(11)
            assert far.data == b"firstsecond"
    run(main())


def test_writelines_of_all_kinds(run, tls):
    lines = [b"", b"a", bytearray(b"bc"), memoryview(b"def"), memoryview(array.array("I", [1, 2, 3])),
             memoryview(MESSAGE).cast("B", (400, 256)), b"x" * 400_000, b"end"]
    whole = b"".join(bytes(line) for line in lines)

    async def main():
        async with link("tls", tls) as (near, far):
            near.transport.writelines([])
            near.transport.writelines([b""])
            near.transport.writelines(lines[:-2])
            near.transport.writelines(iter(lines[-2:]))
            await far.received(len(whole))
            assert far.data == whole
    run(main())


def test_data_may_be_changed_once_it_is_written(run, tls):
    async def main():
        async with link("tls", tls) as (near, far):
            data = bytearray(b"a" * 1_000_000)
            near.transport.write(data)
            near.transport.writelines([data, data])
            data[:] = b"b" * len(data)
            await far.received(3_000_000)
            assert far.data == b"a" * 3_000_000
    run(main())


def test_a_slow_reader_pauses_the_writer_and_all_arrives(run, tls):
    async def main():
        async with link("tls", tls) as (near, far):
            far.transport.pause_reading()
            near.transport.set_write_buffer_limits(high=100_000, low=10_000)
            for _ in range(20):
                near.transport.write(MESSAGE)
            await settle()
            assert near.count("pause") == 1
            while len(far.data) < 20 * len(MESSAGE):
                far.transport.resume_reading()
                await far.received(len(far.data) + 1)
                far.transport.pause_reading()
            await near.until(lambda: near.count("resume"))
            assert near.transport.get_write_buffer_size() == 0
            assert far.data == MESSAGE * 20
    run(main())


def test_tls_in_tls(run, tls):
    async def main():
        loop = asyncio.get_running_loop()
        async with link("tls", tls) as (near, far):
            outer = near.transport, far.transport
            near.transport, far.transport = await asyncio.gather(
                loop.start_tls(outer[0], near, tls.client, server_hostname="localhost"),
                loop.start_tls(outer[1], far, tls.server, server_side=True))
            near.transport.write(MESSAGE * 10)
            far.transport.write(b"back")
            await far.received(10 * len(MESSAGE))
            await near.received(4)
            assert (far.data, near.data) == (MESSAGE * 10, b"back")
            near.transport.close()
            await far.lost
            await near.lost
    run(main())


# -- callbacks that do what they like

ACTIONS = {
    "closes": lambda end: end.transport.close(),
    "closes twice": lambda end: (end.transport.close(), end.transport.close()),
    "aborts": lambda end: end.transport.abort(),
    "aborts and writes": lambda end: (end.transport.abort(), end.transport.write(b"x" * 100)),
    "writes and aborts": lambda end: (end.transport.write(MESSAGE * 20), end.transport.abort()),
    "writes and closes": lambda end: (end.transport.write(MESSAGE), end.transport.close()),
    "closes and writes": lambda end: (end.transport.close(), end.transport.write(MESSAGE)),
    "closes the socket's transport": lambda end: end.transport._ssl_protocol._transport.close(),
    "aborts the socket's transport": lambda end: end.transport._ssl_protocol._transport.abort(),
    "raises": lambda end: 1 / 0,
}


@pytest.mark.parametrize("buffered", [False, True], ids=["data_received", "buffer_updated"])
@pytest.mark.parametrize("action", ACTIONS)
def test_data_received_ends_the_connection(same_as_stock, tls, action, buffered):
    class Acting(Filled if buffered else Recorder):
        def data_received(self, data):
            super().data_received(data)
            if self.count("data") == 1:
                ACTIONS[action](self)

    async def scenario(loop):
        loop.set_exception_handler(lambda loop, context: None)
        async with link("tls", tls, far=Acting) as (near, far):
            near.transport.write(b"x")
            lost = await far.lost
            await near.lost
            return type(lost), far.events, far.data, len(near.data) if "aborts" not in action else None
    same_as_stock(scenario, timeout=5)


@pytest.mark.parametrize("size", [1, 100_000, 1_000_000])
def test_data_received_pauses_writes_and_changes_the_protocol(run, tls, size):
    class Acting(Recorder):
        def data_received(self, data):
            super().data_received(data)
            transport = self.transport
            transport.pause_reading()
            transport.write(bytes(data))
            transport.resume_reading()
            other = type(self).last = Acting()
            other.transport, other.data = transport, self.data
            transport.set_protocol(other)

    async def main():
        async with link("tls", tls, far=Acting) as (near, far):
            Acting.last = far
            for _ in range(3):
                before = len(near.data)
                near.transport.write(b"x" * size)
                await near.received(before + size)
            assert len(near.data) == 3 * size
            near.transport.close()
            await Acting.last.lost
            far.lost.set_result(None)
    run(main())


def test_writing_and_closing_from_the_flow_control_callbacks(run, tls):
    class Pushy(Recorder):
        def pause_writing(self):
            super().pause_writing()
            self.transport.write(b"p")

        def resume_writing(self):
            super().resume_writing()
            self.transport.write(b"r")
            self.transport.close()

    async def main():
        async with link("tls", tls, near=Pushy) as (near, far):
            near.transport.write(MESSAGE * 5)       # the socket's buffers are full
            near.transport.write(MESSAGE * 10)
            await far.lost
            await near.lost
            assert far.data == MESSAGE * 15 + b"pr"
            assert near.events == ["made", "pause", "resume", "eof", "lost"]
    run(main())


@pytest.mark.stock_fault("the exception of a callback that raised keeps the protocol")
def test_no_connection_outlives_its_end(run, tls):
    """By reference counts alone, whatever ended it."""
    async def talk(action):
        class Acting(Recorder):
            def data_received(self, data):
                super().data_received(data)
                ACTIONS[action](self)
        async with link("tls", tls, far=Acting) as (near, far):
            protocol = weakref.ref(far.transport._ssl_protocol)
            near.transport.write(MESSAGE)
            await far.lost
            await near.lost
            far.transport = near.transport = None
        await settle()
        return protocol

    async def main():
        asyncio.get_running_loop().set_exception_handler(lambda loop, context: None)
        for action in ACTIONS:
            protocol = await talk(action)
            assert protocol() is None, action
    gc.collect()
    gc.disable()
    try:
        run(main())
    finally:
        gc.enable()
