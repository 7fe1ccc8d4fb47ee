"""Using a transport after its connection is gone is no accident: calls do what stock's do, which is mostly nothing."""

import asyncio
import logging
import signal
import socket
import sys

import pytest

from support import Recorder, link, reset, result_of, tcp_pair, settle, turns, unix_pair

pytestmark = pytest.mark.timeout(60)

EXTRA = ("socket", "sockname", "peername", "pipe", "sslcontext", "ssl_object", "peercert", "cipher", "compression",
         "subprocess", "addr", "no such name")

READ_CALLS = {
    "pause_reading": lambda t: t.pause_reading(),
    "resume_reading": lambda t: t.resume_reading(),
    "is_reading": lambda t: t.is_reading(),
}
WRITE_CALLS = {
    "write": lambda t: t.write(b"data"),
    "write nothing": lambda t: t.write(b""),
    "write a wrong type": lambda t: t.write("text"),
    "writelines": lambda t: t.writelines([b"a", b"b"]),
    "writelines of nothing": lambda t: t.writelines([]),
    "can_write_eof": lambda t: t.can_write_eof(),
    "write_eof": lambda t: t.write_eof(),
    "write_eof again": lambda t: t.write_eof(),
    "write after write_eof": lambda t: t.write(b"data"),
}
BUFFER_CALLS = {
    "set_write_buffer_limits": lambda t: t.set_write_buffer_limits(high=10, low=5),
    "wrong limits": lambda t: t.set_write_buffer_limits(high=1, low=5),
    "get_write_buffer_limits": lambda t: t.get_write_buffer_limits(),
    "get_write_buffer_size": lambda t: t.get_write_buffer_size(),
}
COMMON_CALLS = {
    "is_closing": lambda t: t.is_closing(),
    "get_protocol": lambda t: type(t.get_protocol()).__name__,
    "set_protocol": lambda t: t.set_protocol(asyncio.Protocol()),
    "get_protocol afterwards": lambda t: type(t.get_protocol()).__name__,
    **{f"extra {name}": lambda t, name=name: type(t.get_extra_info(name)).__name__ for name in EXTRA},
    "extra with default": lambda t: t.get_extra_info("no such name", 7),
    "close": lambda t: t.close(),
    "close again": lambda t: t.close(),
    "abort": lambda t: t.abort(),
    "abort again": lambda t: t.abort(),
    "repr": lambda t: type(repr(t)),
}
STREAM_CALLS = {**WRITE_CALLS, **READ_CALLS, **BUFFER_CALLS, **COMMON_CALLS}


async def results(transport, calls):
    """What each call returns or raises, by name, after which the loop goes on for a while.

    Stock's transports forget their loop, on which some methods then fall over: that counts as doing nothing. And from
    Python 3.12 to 3.13 its writelines() fills the buffer of a connection that is gone.
    """
    found = {}
    stock = type(asyncio.get_running_loop()).__module__.startswith("asyncio.")
    for name, call in calls.items():
        found[name] = result_of(call, transport)
        if stock and (found[name] is AttributeError or name.startswith("writelines")):
            found[name] = None
        elif stock and name == "get_write_buffer_size" and found[name] == 2:
            found[name] = 0
        await turns(1)
    await settle()
    return found


async def lost_tcp(loop):
    one, two = tcp_pair()
    _, protocol = await loop.create_connection(Recorder, sock=one)
    reset(two)
    assert type(await protocol.lost) is ConnectionResetError
    return protocol.transport


@pytest.mark.parametrize("calls", ["one by one", "in a row"])
def test_a_reset_tcp_connection(same_as_stock, calls):
    async def scenario(loop):
        if calls == "in a row":
            return await results(await lost_tcp(loop), STREAM_CALLS)
        return {name: await results(await lost_tcp(loop), {name: call}) for name, call in STREAM_CALLS.items()}
    found = same_as_stock(scenario)
    if calls == "in a row":
        raising = {name for name, result in found.items() if isinstance(result, type) and name != "repr"}
        assert raising == {"write a wrong type", "wrong limits"}


@pytest.mark.parametrize("kind", ["tcp", "unix", "tls"])
@pytest.mark.parametrize("end", ["closed", "aborted", "closing", "ended by the peer", "reset unseen"])
def test_a_closed_stream_transport(same_as_stock, tls, kind, end):
    async def scenario(loop):
        async with link(kind, tls) as (near, far):
            if end == "closed":
                near.transport.close()
                await near.lost
            elif end == "aborted":
                near.transport.abort()
                await near.lost
            elif end == "closing":
                near.transport.close()
            elif end == "ended by the peer":
                far.transport.close()
                await near.lost
            else:
                far.transport.abort()
            return await results(near.transport, STREAM_CALLS)
    same_as_stock(scenario)


@pytest.mark.parametrize("end", ["closed", "aborted", "reader gone"])
def test_a_closed_write_pipe(same_as_stock, end):
    async def scenario(loop):
        async with link("pipe") as (near, far):
            {"closed": near.transport.close, "aborted": near.transport.abort, "reader gone": far.transport.close}[end]()
            await near.lost
            calls = {name: call for name, call in {**WRITE_CALLS, **BUFFER_CALLS, **COMMON_CALLS}.items()
                     if name != "write a wrong type"}
            return await results(near.transport, calls)
    same_as_stock(scenario)


@pytest.mark.parametrize("end", ["closed", "writer gone"])
def test_a_closed_read_pipe(same_as_stock, end):
    async def scenario(loop):
        async with link("pipe") as (near, far):
            (far if end == "closed" else near).transport.close()
            await far.lost
            calls = {name: call for name, call in {**READ_CALLS, **COMMON_CALLS}.items()
                     if not name.startswith("abort")}
            return await results(far.transport, calls)
    same_as_stock(scenario)


@pytest.mark.parametrize("end", ["close", "abort"])
@pytest.mark.parametrize("connected", [True, False])
def test_a_closed_datagram_transport(same_as_stock, connected, end):
    async def scenario(loop):
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as far:
            far.bind(("127.0.0.1", 0))
            address = far.getsockname()
            transport, protocol = await loop.create_datagram_endpoint(
                Recorder, remote_addr=address if connected else None, local_addr=("127.0.0.1", 0))
            getattr(transport, end)()
            await protocol.lost
            calls = {"sendto": lambda t: t.sendto(b"data", None if connected else address),
                     "sendto again": lambda t: t.sendto(b"data"),
                     "sendto elsewhere": lambda t: t.sendto(b"data", ("127.0.0.1", 1)),
                     "sendto nothing": lambda t: t.sendto(b""),
                     "sendto a wrong type": lambda t: t.sendto("text"),
                     **BUFFER_CALLS, **COMMON_CALLS}
            return await results(transport, calls)
    same_as_stock(scenario)


def test_a_subprocess_that_has_ended(same_as_stock):
    async def scenario(loop):
        transport, protocol = await loop.subprocess_exec(
            asyncio.SubprocessProtocol, sys.executable, "-c", "raise SystemExit(3)", stdin=-1, stdout=-1, stderr=None)
        await transport._wait()
        calls = {
            "get_returncode": lambda t: t.get_returncode(),
            "get_pid": lambda t: t.get_pid() > 0,
            "kill": lambda t: t.kill(),
            "terminate": lambda t: t.terminate(),
            "send_signal": lambda t: t.send_signal(signal.SIGINT),
            "no such pipe": lambda t: t.get_pipe_transport(7),
            "no pipe": lambda t: t.get_pipe_transport(2),
            **{name: call for name, call in COMMON_CALLS.items() if not name.startswith("abort")},
            "kill closed": lambda t: t.kill(),
        }
        found = await results(transport, calls)
        for _ in range(100):
            await asyncio.sleep(0.001)
            if not transport._pipes or all(pipe.disconnected for pipe in transport._pipes.values()):
                break
        return found
    same_as_stock(scenario)


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_writes_to_a_lost_connection_are_warned_of_from_the_fifth_on(run, caplog, kind):
    async def main():
        loop = asyncio.get_running_loop()
        if kind == "tcp":
            transport = await lost_tcp(loop)
        else:
            one, two = unix_pair()
            transport, protocol = await loop.create_connection(Recorder, sock=one)
            two.close()
            transport.write(b"data")
            await protocol.lost
        for _ in range(10):
            transport.write(b"data")
        await settle()
    with caplog.at_level(logging.WARNING, "asyncio"):
        run(main())
    assert 4 <= [record.getMessage() for record in caplog.records].count("socket.send() raised exception.") <= 6


@pytest.mark.stock_fault("writelines() uses the loop that a failed write made it forget", ((3, 12), (3, 13, 15)))
def test_a_write_that_meets_the_reset_first_ends_in_connection_lost(run):
    async def main():
        one, two = tcp_pair()
        transport, protocol = await asyncio.get_running_loop().create_connection(Recorder, sock=one)
        transport.pause_reading()  # so that only the write can notice
        reset(two)
        for _ in range(3):
            transport.write(b"x" * 100_000)
            transport.writelines([b"y", b"z"])
            await settle()
        assert isinstance(await protocol.lost, ConnectionError)
        assert protocol.events == ["made", "lost"]
    run(main())


def test_abort_drops_what_is_not_sent(run):
    async def main():
        async with link("tcp") as (near, far):
            far.transport.pause_reading()
            near.transport.write(b"x" * 5_000_000)
            near.transport.abort()
            assert await near.lost is None
            assert near.transport.get_write_buffer_size() == 0
            far.transport.resume_reading()
            await far.lost
            assert len(far.data) < 5_000_000
    run(main())
