"""Open transports that are called wrongly, and protocols that misbehave: as on stock, and nobody else is harmed."""

import asyncio
import re
import socket

import pytest

import gmploop

from support import NEVER, Recorder, child_output, link, result_of, settle, unix_pair

pytestmark = [pytest.mark.timeout(30), pytest.mark.filterwarnings("ignore::ResourceWarning")]

# -- calls of an open transport

CALLS = {
    "write text": lambda t: t.write("text"), "write None": lambda t: t.write(None),
    "write a number": lambda t: t.write(5),
    "write a list": lambda t: t.write([1]), "write nothing at all": lambda t: t.write(),
    "writelines of a number": lambda t: t.writelines(5), "writelines of text": lambda t: t.writelines("text"),
    "writelines of texts": lambda t: t.writelines(["a", "b"]), "writelines of numbers": lambda t: t.writelines([1, 2]),
    "writelines of bytes": lambda t: t.writelines(b""),
    "writelines of an iterator that raises": lambda t: t.writelines(1 // 0 for _ in "x"),
    "writelines of a generator": lambda t: t.writelines(piece for piece in (b"a", b"b")),
    "limits: high of -1": lambda t: t.set_write_buffer_limits(high=-1),
    "limits: low above high": lambda t: t.set_write_buffer_limits(high=1, low=2),
    "limits: low of -1": lambda t: t.set_write_buffer_limits(low=-1),
    "limits: text": lambda t: t.set_write_buffer_limits("x"),
    "limits: low only": lambda t: (t.set_write_buffer_limits(low=10), t.get_write_buffer_limits())[1],
    "limits: high only": lambda t: (t.set_write_buffer_limits(high=10), t.get_write_buffer_limits())[1],
    "limits: none": lambda t: (t.set_write_buffer_limits(), t.get_write_buffer_limits())[1],
    "limits: zero": lambda t: (t.set_write_buffer_limits(high=0), t.get_write_buffer_limits())[1],
    "pause_reading twice": lambda t: (t.pause_reading(), t.pause_reading(), t.is_reading())[2],
    "resume_reading twice": lambda t: (t.resume_reading(), t.resume_reading(), t.is_reading())[2],
    "pause_reading with an argument": lambda t: t.pause_reading(1),
    "get_extra_info of nothing": lambda t: t.get_extra_info(),
    "get_extra_info of a list": lambda t: t.get_extra_info([]),
    "get_extra_info of None": lambda t: t.get_extra_info(None),
    "set_protocol of nothing": lambda t: t.set_protocol(),
    "abort with an argument": lambda t: t.abort(1), "close with an argument": lambda t: t.close(1),
    "write_eof twice": lambda t: (t.write_eof(), t.write_eof()),
    "write after write_eof": lambda t: (t.write_eof(), t.write(b"x")),
    "writelines after write_eof": lambda t: (t.write_eof(), t.writelines([b"x"])),
    "an attribute that is not there": lambda t: t.no_such_attribute,
    "socket: blocking mode": lambda t: t.get_extra_info("socket").setblocking(True),
    "socket: send": lambda t: t.get_extra_info("socket").send(b"x"),
}


@pytest.mark.parametrize("kind", ["tcp", "unix", "tls"])
@pytest.mark.parametrize("call", CALLS)
def test_call_of_an_open_transport(same_as_stock, errors, tls, kind, call):
    async def scenario(loop):
        async with link(kind, tls) as (near, far):
            far.eof_keeps_open = True
            told = result_of(CALLS[call], near.transport)
            await settle()
            if kind == "tls":  # stock's TLS takes to heart what it has refused to write
                return told
            lost = near.lost.done()
            if not lost and not near.transport.is_closing() and "eof" not in call:
                near.transport.write(b"alive")
                await far.until(lambda: b"alive" in far.data)
            return told, lost, bytes(far.data), sorted(type(c.get("exception")).__name__ for c in errors)
    same_as_stock(scenario)
    del errors[:]


NOT_FOR_PIPES = ("eof", "reading", "socket", "write text", "write None", "write a ")


@pytest.mark.parametrize("call", [call for call in CALLS if not any(word in call for word in NOT_FOR_PIPES)])
def test_call_of_an_open_write_pipe(same_as_stock, errors, call):
    async def scenario(loop):
        async with link("pipe") as (near, far):
            told = result_of(CALLS[call], near.transport)
            await settle()
            return told, near.lost.done(), bytes(far.data)
    same_as_stock(scenario)
    del errors[:]


@pytest.mark.stock_fault("what was good of a refused writelines() blocks the rest", ((3, 15), NEVER))
@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_a_refused_writelines_sends_nothing_and_spoils_nothing(run, kind):
    async def main():
        async with link(kind) as (near, far):
            with pytest.raises(TypeError):
                near.transport.writelines([b"a", "b"])
            near.transport.write(b"alive")
            await far.received(5)
            assert far.data == b"alive"
    run(main(), timeout=5)


# -- protocols that misbehave

class Misbehaving(Recorder):
    """Raises in one of its callbacks."""
    where = None

    def note(self, name):
        super().note(name)
        if name == self.where:
            raise KeyError(name)


def misbehaving(where):
    return type("Misbehaving", (Misbehaving,), {"where": where})


@pytest.mark.parametrize("where", ["made", "data", "eof", "lost", "pause", "resume"])
@pytest.mark.parametrize("kind", ["tcp", "unix", "pipe"])
def test_a_protocol_that_raises(same_as_stock, errors, kind, where):
    """The exception is reported as on stock, and the connection ends or goes on as on stock."""
    async def scenario(loop):
        del errors[:]
        one, other = (misbehaving(where), Recorder) if where in ("pause", "resume") else (Recorder, misbehaving(where))
        async with link(kind, near=one, far=other) as (near, far):
            far.transport.pause_reading()
            await settle()
            for _ in range(2):
                near.transport.write(b"x" * 300_000)
            await settle()
            far.transport.resume_reading()
            for _ in range(5):
                await settle()
            near.transport.close()
            for _ in range(10):
                await settle()
                if near.events[-1:] == far.events[-1:] == ["lost"]:
                    break
            reports = [(re.sub(" callback .*", " callback", context["message"]), type(context["exception"]))
                       for context in errors]
            told = sorted(set(near.events)), sorted(set(far.events)), set(reports)
            for end in near, far:
                if end.events[-1] == "lost" and not end.lost.done():
                    end.lost.set_result(None)  # the callback raised before it could say so
            return told
    same_as_stock(scenario)
    del errors[:]


class NoMethods:
    pass


PROTOCOLS = {"None": lambda: None, "an object without methods": NoMethods, "a number": lambda: 5,
             "a plain BaseProtocol": asyncio.BaseProtocol, "a DatagramProtocol": asyncio.DatagramProtocol}


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("when", ["at once", "later"])
def test_what_is_no_protocol(same_as_stock, errors, protocol, when):
    async def scenario(loop):
        del errors[:]
        near, far = unix_pair()
        with near, far:
            factory = PROTOCOLS[protocol]
            task = loop.create_task(loop.create_connection(factory if when == "at once" else Recorder, sock=near))
            await settle()
            told = "pending"
            if task.done():
                told = type(task.exception())
                if not task.exception():
                    transport, _ = task.result()
                    if when == "later":
                        result_of(transport.set_protocol, factory())
            else:
                task.cancel()
            result_of(far.send, b"data")
            await settle()
            far.close()
            await settle()
            if told is type(None):
                transport.abort()
                await settle()
            return told, {type(context.get("exception")) for context in errors}, near.fileno() == -1
    same_as_stock(scenario)
    del errors[:]


def test_a_server_hangs_up_when_its_factory_makes_no_protocol():
    # stock leaves the connection open until it is collected
    async def main():
        server = await asyncio.get_running_loop().create_server(lambda: None, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        assert await asyncio.wait_for(reader.read(), 5) == b""
        writer.close()
        server.close()
    gmploop.run(main())


# -- buffered protocols

class Buffered(asyncio.BufferedProtocol):
    """Gives the buffers it is told to give, one after the other."""

    def __init__(self, buffers):
        self.buffers, self.updates, self.hints = list(buffers), [], []
        self.lost = asyncio.get_running_loop().create_future()

    def connection_made(self, transport):
        self.transport = transport

    def get_buffer(self, sizehint):
        self.hints.append(sizehint)
        buffer = self.buffers.pop(0) if len(self.buffers) > 1 else self.buffers[0]
        if isinstance(buffer, Exception):
            raise buffer
        return buffer

    def buffer_updated(self, nbytes):
        self.updates.append(nbytes)

    def connection_lost(self, exc):
        self.lost.set_result(exc)


GOOD = bytearray(100)
BUFFERS = {
    "good": [GOOD], "a view": [memoryview(GOOD)], "one byte": [bytearray(1)],
    "part of a view": [memoryview(GOOD)[10:20]],
    "empty": [bytearray()], "an empty view": [memoryview(b"")], "read-only": [b"x" * 100],
    "a read-only view": [memoryview(b"x" * 100)], "None": [None], "text": ["text"], "a number": [5], "a list": [[1]],
    "a view with gaps": [memoryview(GOOD)[::2]], "raising": [KeyError("buffer")], "bad after good": [GOOD, None],
    "a view of ints": [memoryview(bytearray(400)).cast("I")], "a released view": [memoryview(b"").release()],
}


# By TLS an empty buffer is the end of reading, and what the farewell meets then is a matter of timing; and stock asks for
# a buffer before there is something to read.
UNTIMED = {"empty", "an empty view", "bad after good"}


@pytest.mark.parametrize("kind", ["unix", "tls"])
@pytest.mark.parametrize("buffers", BUFFERS)
def test_buffers_of_every_sort(same_as_stock, errors, tls, kind, buffers):
    async def scenario(loop):
        del errors[:]
        async with link(kind, tls, far=lambda: Buffered(BUFFERS[buffers])) as (near, far):
            for piece in (b"abc", b"defgh"):
                near.transport.write(piece)
                await settle()
                if far.lost.done():
                    break
            if not far.lost.done() and sum(far.updates) < 8:
                await asyncio.sleep(0.01)
            told = sum(far.updates), far.lost.done() and type(far.lost.result())
            if kind == "tls" and buffers in UNTIMED:
                told = far.lost.done()
            return told, {(context["message"], type(context.get("exception"))) for context in errors}
    same_as_stock(scenario)
    del errors[:]


def test_a_buffer_that_is_resized_while_in_use_is_no_crash(loop_kind):
    output = child_output(loop_kind, """
        class Resizing(asyncio.BufferedProtocol):
            def __init__(self):
                self.buffer, self.total = bytearray(1000), 0
                self.done = asyncio.get_running_loop().create_future()
            def get_buffer(self, sizehint):
                try:
                    self.buffer.extend(bytes(10_000))
                    del self.buffer[1000:]
                except BufferError:
                    self.buffer = bytearray(1000)
                return self.buffer
            def buffer_updated(self, nbytes):
                self.total += nbytes
                try:
                    del self.buffer[:]
                    self.buffer += bytes(1000)
                except BufferError:
                    self.buffer = bytearray(1000)
            def connection_lost(self, exc):
                self.done.set_result(exc)

        async def main():
            near, far = socket.socketpair()
            _, protocol = await asyncio.get_running_loop().create_connection(Resizing, sock=near)
            far.setblocking(False)
            for _ in range(50):
                await asyncio.get_running_loop().sock_sendall(far, b"x" * 10_000)
            far.close()
            print(await protocol.done, protocol.total)

        loop = new_loop()
        loop.run_until_complete(main())
        loop.close()
    """)
    assert output == "None 500000\n"


def test_sock_recv_into_a_buffer_that_is_dropped_or_resized_at_once(loop_kind):
    """Once the call was cancelled nothing is written into the buffer any more."""
    output = child_output(loop_kind, """
        async def main():
            loop = asyncio.get_running_loop()
            near, far = socket.socketpair()
            near.setblocking(False)
            for number in range(200):
                buffer = bytearray(b"G" * 4096)
                task = loop.create_task(loop.sock_recv_into(near, buffer))
                await asyncio.sleep(0)
                task.cancel()
                try:
                    await task
                except asyncio.CancelledError:
                    pass
                try:
                    buffer.extend(b"G" * 4096)
                except BufferError:
                    pass
                far.send(b"evil")
                await asyncio.sleep(0)
                assert set(buffer) == {ord("G")}, buffer[:10]
                assert await loop.sock_recv(near, 100) == b"evil"
            print("intact")
            near.close()
            far.close()

        loop = new_loop()
        loop.run_until_complete(main())
        loop.close()
    """)
    assert output == "intact\n"


# -- re-entrance: callbacks that pull the rug away

class Reentrant(Recorder):
    act = staticmethod(lambda self: None)

    def data_received(self, data):
        super().data_received(data)
        self.act(self)


ACTS = {
    "close": lambda self: self.transport.close(),
    "abort": lambda self: self.transport.abort(),
    "close, then abort": lambda self: (self.transport.close(), self.transport.abort()),
    "pause": lambda self: self.transport.pause_reading(),
    "pause and resume": lambda self: (self.transport.pause_reading(), self.transport.resume_reading()),
    "replace the protocol": lambda self: self.transport.set_protocol(self),
    "close the other": lambda self: self.other.transport.close(),
    "abort the other": lambda self: self.other.transport.abort(),
    "write a lot": lambda self: self.transport.write(b"y" * 1_000_000),
    "write and close": lambda self: (self.transport.write(b"y" * 1_000_000), self.transport.close()),
    "write to the other and abort it": lambda self: (self.other.transport.write(b"y"), self.other.transport.abort()),
}


@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("kind", ["tcp", "unix", "tls"])
def test_acts_inside_data_received(run, tls, kind, act):
    """Two connections get data in the same turn; the first callback acts on itself or on the other one."""
    async def main():
        async with link(kind, tls, far=Reentrant) as (near, far), link(kind, tls, far=Reentrant) as (near2, far2):
            for here, there in ((far, far2), (far2, far)):
                here.other = there
                here.act = lambda self: (setattr(self, "act", lambda self: None), ACTS[act](self))
            for number in range(3):
                for end in near, near2:
                    if not end.lost.done():
                        end.transport.write(b"x" * 1000)
                await settle()
                if act == "write and close":
                    break
            if act == "pause":
                seen = len(far.data), len(far2.data)
                await settle()
                assert (len(far.data), len(far2.data)) == seen
                far.transport.resume_reading()
                far2.transport.resume_reading()
                await far.received(3000)
                await far2.received(3000)
            elif act.startswith("write a lot"):
                await near.received(1_000_000)
                await near2.received(1_000_000)
            elif act == "write and close":
                await near.lost
                await near2.lost
                assert near.data == near2.data == b"y" * 1_000_000
            for end in far, far2:
                assert end.events.count("made") == 1 and end.events.count("lost") <= 1
                assert "lost" not in end.events[:-1]
    run(main())


def test_data_for_a_transport_paused_by_another_callback_of_the_turn_is_kept(run):
    """Both are readable in one turn; the first to run pauses the other, which must get its data on resume only."""
    class Pauser(Recorder):
        def data_received(self, data):
            super().data_received(data)
            if self.other.transport.is_reading() and not self.other.data:
                self.other.transport.pause_reading()

    async def main():
        async with link("unix", far=Pauser) as (near, far), link("unix", far=Pauser) as (near2, far2):
            far.other, far2.other = far2, far
            for _ in range(20):
                far.data.clear(), far2.data.clear()
                near.transport.write(b"one")
                near2.transport.write(b"two")
                await settle()
                assert sorted([bytes(far.data), bytes(far2.data)])[0] == b""
                far.transport.resume_reading()
                far2.transport.resume_reading()
                await far.received(3)
                await far2.received(3)
                assert (far.data, far2.data) == (b"one", b"two")
    run(main())


def test_end_of_file_while_paused_is_seen_on_resume(run):
    async def main():
        for payload in (b"", b"x" * 10, b"x" * 500_000):
            near, far = unix_pair()
            transport, protocol = await asyncio.get_running_loop().create_connection(Recorder, sock=near)
            transport.pause_reading()
            await settle()
            far.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1_000_000)
            sent = far.send(payload) if payload else 0
            far.close()
            await settle()
            assert protocol.events == ["made"]
            transport.resume_reading()
            await protocol.lost
            assert len(protocol.data) == sent
            assert protocol.events[-2:] == ["eof", "lost"]
    run(main(), timeout=5)
