"""Name resolution, happy eyeballs, Unix sockets and datagrams."""

import asyncio
import contextlib
import gc
import itertools
import os
import pathlib
import socket
import sys

import pytest

import gmploop
from support import Recorder, outcome, result_of, settle, turns, unanswering_listener

pytestmark = pytest.mark.timeout(60)

CLASSES = {"asyncio": asyncio.SelectorEventLoop, "gmploop": gmploop.Loop}


# -- getaddrinfo

LITERALS = ["127.0.0.1", "::1", "0.0.0.0", "::", "127.1", "0x7f.0.0.1", "0177.0.0.1", "2130706433", "256.0.0.1",
            "1.2.3.4.5", "127.0.0.1.", "::ffff:1.2.3.4", "1::2::3", "[::1]", "fe80::1", "fe80::1%lo", "fe80::1%1",
            "fe80::1%nosuch", "fe80::1%", "::1%lo", "127.0.0.1%lo", "%lo", " 127.0.0.1", "127.0.0.1 ", "127.0.0.1\0x",
            "\u0661\u0662\u0667.0.0.1", "1" * 300, b"127.0.0.1", b"::1", b"fe80::1%lo", bytearray(b"127.0.0.1"),
            None, "", b"", 127, 1.5, ("127.0.0.1",)]
PORTS = [80, 0, 65535, 65536, -1, 2 ** 40, "80", "0", "65536", "-1", " 80", "80 ", "http", "no-such-service", "",
         b"80", b"http", None, True, 1.5, "\u0668\u0660"]
FAMILIES = [socket.AF_UNSPEC, socket.AF_INET, socket.AF_INET6, socket.AF_UNIX, 9999]
TYPES = [0, socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, 77]
PROTOCOLS = [0, socket.IPPROTO_TCP, socket.IPPROTO_UDP, socket.IPPROTO_ICMP]
FLAGS = [0, socket.AI_PASSIVE, socket.AI_CANONNAME, socket.AI_NUMERICSERV, socket.AI_ADDRCONFIG]


def lookup(function, *args, **kwargs):
    try:
        return function(*args, **kwargs)
    except Exception as exc:
        return type(exc), getattr(exc, "errno", None)


async def async_lookup(function, *args, **kwargs):
    try:
        return await function(*args, **kwargs)
    except Exception as exc:
        return type(exc), getattr(exc, "errno", None)


@pytest.mark.parametrize("rows", {
    "hosts and ports": [(host, port, dict(type=socket.SOCK_STREAM)) for host in LITERALS for port in PORTS],
    "hosts, families and types": [
        (host, 80, dict(family=family, type=kind, proto=proto)) for host in LITERALS for family in FAMILIES
        for kind, proto in itertools.product(TYPES, PROTOCOLS)],
    "hosts and flags": [(host, port, dict(flags=flags, family=family)) for host in LITERALS for flags in FLAGS
                        for port in (80, "http", None) for family in (0, socket.AF_INET6)],
}.items(), ids=lambda item: item[0])
def test_getaddrinfo_of_literals_is_the_system_s(run, loop, rows):
    """Numeric hosts, whatever short cut there is for them, answer as the system does: results, errors, scopes."""
    async def main():
        different = []
        for host, port, how in rows[1]:
            how = {**how, "flags": how.get("flags", 0) | socket.AI_NUMERICHOST}
            expected = lookup(socket.getaddrinfo, host, port, **how)
            found = await async_lookup(loop.getaddrinfo, host, port, **how)
            if found != expected:
                different.append((host, port, how, found, expected))
        assert not different, f"{len(different)} of {len(rows[1])} differ"
    run(main(), timeout=40)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "fe80::1%lo", "0.0.0.0", "::ffff:1.2.3.4", b"127.0.0.1", "", None,
                                  "127.1"])
@pytest.mark.parametrize("port", [80, "80", "http", None, b"80"])
def test_getaddrinfo_without_flags_is_the_system_s(run, loop, host, port):
    async def main():
        for name in "localhost", b"localhost":
            how = dict(family=socket.AF_INET, type=socket.SOCK_STREAM)
            assert await async_lookup(loop.getaddrinfo, name, port, **how) == \
                lookup(socket.getaddrinfo, name, port, **how)
        for family, kind, proto in itertools.product([0, socket.AF_INET, socket.AF_INET6], TYPES[:3], PROTOCOLS[:3]):
            how = dict(family=family, type=kind, proto=proto)
            assert await async_lookup(loop.getaddrinfo, host, port, **how) == \
                lookup(socket.getaddrinfo, host, port, **how)
    run(main())


@pytest.mark.parametrize("address", [("127.0.0.1", 80), ("::1", 80, 0, 0), ("127.0.0.1", 99999), ("nonsense", 80),
                                     ("127.0.0.1",), "127.0.0.1", ("127.0.0.1", "80"), None], ids=str)
def test_getnameinfo_is_the_system_s(run, loop, address):
    async def main():
        for flags in (0, socket.NI_NUMERICHOST, socket.NI_NUMERICHOST | socket.NI_NUMERICSERV,
                      socket.NI_DGRAM | socket.NI_NUMERICHOST):
            assert await async_lookup(loop.getnameinfo, address, flags) == lookup(socket.getnameinfo, address, flags)
    run(main())


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.1", b"127.0.0.1", None])
def test_hosts_of_every_spelling_are_connected_to(run, loop, host):
    async def main():
        server = await loop.create_server(Recorder, "127.0.0.1", 0)
        port = server.sockets[0].getsockname()[1]
        for spelled in port, str(port):
            transport, protocol = await loop.create_connection(Recorder, host, spelled, family=socket.AF_INET)
            assert transport.get_extra_info("peername") == ("127.0.0.1", port)
            transport.abort()
            await protocol.lost
        server.close()
        await settle()
    run(main())


def test_a_server_listens_on_every_address_of_its_host(same_as_stock):
    async def scenario(loop):
        found = []
        for host in (None, "localhost", "127.0.0.1", ["127.0.0.1", "127.0.0.2"], ""):
            server = await loop.create_server(Recorder, host, 0)
            found.append(sorted((sock.family, sock.getsockname()[0]) for sock in server.sockets))
            server.close()
        return found
    same_as_stock(scenario)


# -- happy eyeballs

@contextlib.contextmanager
def resolving_loop(kind, addresses):
    """A loop on which every name stands for these addresses."""
    class Resolving(CLASSES[kind]):
        async def getaddrinfo(self, host, port, **kwargs):
            return [(socket.AF_INET, socket.SOCK_STREAM, 6, "", address) for address in addresses]
    loop, reports = Resolving(), []
    loop.set_exception_handler(lambda _, context: reports.append(context))
    try:
        yield loop
    finally:
        loop.run_until_complete(turns(5))
        loop.close()
    gc.collect()
    assert not reports


@contextlib.contextmanager
def listeners(count):
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]


EAGER = pytest.param("eager", marks=pytest.mark.skipif(sys.version_info < (3, 12), reason="came with Python 3.12"))


def with_tasks(loop, factory):
    loop.set_task_factory(getattr(asyncio, "eager_task_factory", None) if factory == "eager" else None)


@pytest.mark.stock_fault("python/cpython#124309: a task that starts at once is not expected",
                         ((3, 12), (3, 13, 1)), factory=("eager",))
@pytest.mark.parametrize("factory", ["plain", EAGER])
@pytest.mark.parametrize("delay", [0, 0.001, 0.25, None])
def test_one_connection_remains_of_several_that_are_answered(loop_kind, delay, factory):
    with listeners(3) as servers, resolving_loop(loop_kind, [s.getsockname() for s in servers]) as loop:
        with_tasks(loop, factory)

        async def main():
            for _ in range(20):
                transport, protocol = await asyncio.wait_for(loop.create_connection(
                    Recorder, "several.test", 80, happy_eyeballs_delay=delay), 5)
                transport.write(b"hello")
                transport.abort()
                await protocol.lost
        loop.run_until_complete(main())


@pytest.mark.stock_fault("python/cpython#124309: a task that starts at once is not expected",
                         ((3, 12), (3, 13, 1)), factory=("eager",))
@pytest.mark.parametrize("factory", ["plain", EAGER])
def test_the_second_address_is_tried_when_the_first_does_not_answer(loop_kind, factory):
    with listeners(1) as (good,), unanswering_listener() as silent, \
            resolving_loop(loop_kind, [silent.getsockname(), good.getsockname()]) as loop:
        with_tasks(loop, factory)

        async def main():
            start = loop.time()
            transport, protocol = await asyncio.wait_for(
                loop.create_connection(Recorder, "several.test", 80, happy_eyeballs_delay=0.05), 5)
            assert transport.get_extra_info("peername") == good.getsockname()
            assert 0.04 < loop.time() - start < 1
            transport.abort()
            await protocol.lost
        loop.run_until_complete(main())


@pytest.mark.parametrize("delay", [None, 0, 0.01])
def test_addresses_that_refuse_are_passed_over(loop_kind, delay):
    with listeners(3) as servers:
        addresses = [server.getsockname() for server in servers]
        for server in servers[:2]:
            server.close()
        with resolving_loop(loop_kind, addresses) as loop:
            async def main():
                transport, protocol = await loop.create_connection(Recorder, "several.test", 80,
                                                                   happy_eyeballs_delay=delay)
                assert transport.get_extra_info("peername") == addresses[2]
                transport.abort()
                await protocol.lost
            loop.run_until_complete(main())


@pytest.mark.parametrize("all_errors", [False, pytest.param(True, marks=pytest.mark.skipif(
    sys.version_info < (3, 12), reason="all_errors came with Python 3.12"))])
@pytest.mark.parametrize("delay", [None, 0, 0.01])
def test_nothing_but_refusals_is_the_error_that_stock_raises(delay, all_errors):
    with listeners(2) as servers:
        addresses = [server.getsockname() for server in servers]
    found = {}
    for kind in CLASSES:
        with resolving_loop(kind, addresses) as loop:
            async def main():
                options = {"all_errors": True} if all_errors else {}
                try:
                    await loop.create_connection(Recorder, "several.test", 80, happy_eyeballs_delay=delay, **options)
                except Exception as exc:
                    return type(exc), len(getattr(exc, "exceptions", ()))
            found[kind] = loop.run_until_complete(main())
    assert found["gmploop"] == found["asyncio"]


@pytest.mark.parametrize("steps", range(8))
def test_a_cancelled_race_leaves_nothing(loop_kind, steps):
    with listeners(2) as servers, unanswering_listener() as silent:
        addresses = [silent.getsockname(), *(server.getsockname() for server in servers)]
        with resolving_loop(loop_kind, addresses) as loop:
            async def main():
                task = loop.create_task(loop.create_connection(Recorder, "several.test", 80, happy_eyeballs_delay=0))
                await turns(steps)
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    transport, protocol = await task
                    transport.abort()
                    await protocol.lost
                await turns(5)
                assert asyncio.all_tasks() == {asyncio.current_task()}
            loop.run_until_complete(main())


# -- Unix sockets

@pytest.mark.parametrize("spelling", ["str", "bytes", "path", "abstract", "abstract bytes"])
def test_unix_servers_of_every_spelling(run, loop, tmp_path, spelling):
    async def main():
        name = str(tmp_path / "socket") if not spelling.startswith("abstract") else f"\0gmploop-test-{os.getpid()}"
        path = {"bytes": os.fsencode(name), "path": pathlib.Path(name),
                "abstract bytes": os.fsencode(name)}.get(spelling, name)
        seen = []

        def factory():
            seen.append(Recorder())
            return seen[-1]
        server = await loop.create_unix_server(factory, path)
        transport, protocol = await loop.create_unix_connection(Recorder, path)
        transport.write(b"hello")
        transport.write_eof()
        await protocol.lost
        await seen[0].lost
        assert seen[0].data == b"hello"
        expected = os.fsencode(name) if spelling.startswith("abstract") else name
        assert transport.get_extra_info("peername") == expected
        server.close()
        await server.wait_closed()
    run(main())


def test_unix_paths_are_taken_over_as_on_stock(same_as_stock, tmp_path):
    async def scenario(loop):
        folder = tmp_path / type(loop).__name__
        folder.mkdir()
        stale, file = folder / "stale", folder / "file"
        with socket.socket(socket.AF_UNIX) as sock:
            sock.bind(str(stale))
        file.write_text("not a socket")
        found = []
        server = await loop.create_unix_server(Recorder, stale)  # nobody listens there any more: taken over
        found.append(type(server.sockets[0].getsockname()))
        found.append(await outcome(loop.create_unix_server(Recorder, file)))
        found.append(await outcome(loop.create_unix_server(Recorder, folder / "no" / "folder")))
        found.append(await outcome(loop.create_unix_connection(Recorder, folder / "nobody")))
        found.append(await outcome(loop.create_unix_connection(Recorder, "x" * 200)))
        found.append(await outcome(loop.create_unix_server(Recorder, "x" * 200)))
        server.close()
        await server.wait_closed()
        found.append(stale.exists())
        return found
    same_as_stock(scenario)


def test_unix_datagrams(run, loop, tmp_path):
    async def main():
        path = str(tmp_path / "socket")
        _, far = await loop.create_datagram_endpoint(Recorder, local_addr=path, family=socket.AF_UNIX)
        near, protocol = await loop.create_datagram_endpoint(Recorder, remote_addr=path, family=socket.AF_UNIX)
        near.sendto(b"hello")
        await far.received(5)
        near.close()
        far.transport.close()
        await far.lost
        await protocol.lost
    run(main())


# -- UDP

class Datagrams(asyncio.DatagramProtocol):
    """Keeps datagrams and their senders."""

    def __init__(self):
        loop = asyncio.get_running_loop()
        self.datagrams, self.errors, self.events = [], [], []
        self.lost = loop.create_future()
        self._changed = asyncio.Event()

    def connection_made(self, transport):
        self.transport = transport

    def datagram_received(self, data, addr):
        self.datagrams.append((data, addr))
        self._changed.set()

    def error_received(self, exc):
        self.errors.append(exc)
        self._changed.set()

    def pause_writing(self):
        self.events.append("pause")

    def resume_writing(self):
        self.events.append("resume")

    def connection_lost(self, exc):
        self.lost.set_result(exc)

    async def until(self, predicate):
        while not predicate():
            self._changed.clear()
            await self._changed.wait()


@contextlib.asynccontextmanager
async def datagram_pair(connected=False):
    loop = asyncio.get_running_loop()
    _, far = await loop.create_datagram_endpoint(Datagrams, local_addr=("127.0.0.1", 0))
    far.address = far.transport.get_extra_info("sockname")
    to = {"remote_addr": far.address} if connected else {"local_addr": ("127.0.0.1", 0)}
    _, near = await loop.create_datagram_endpoint(Datagrams, **to)
    try:
        yield near, far
    finally:
        for end in near, far:
            end.transport.abort()
            await end.lost


@pytest.mark.parametrize("connected", [False, True])
def test_datagrams_keep_their_boundaries_order_and_sender(run, connected):
    async def main():
        async with datagram_pair(connected) as (near, far):
            for number in range(100):
                near.transport.sendto(b"%d" % number, None if connected else far.address)
            await far.until(lambda: len(far.datagrams) == 100)
            sender = near.transport.get_extra_info("sockname")
            assert far.datagrams == [(b"%d" % number, sender) for number in range(100)]
            far.transport.sendto(b"answer", sender)
            await near.until(lambda: near.datagrams)
            assert near.datagrams == [(b"answer", far.address)]
            assert not near.errors and not far.errors
    run(main())


def test_the_largest_datagram_arrives_and_a_larger_one_is_an_error(same_as_stock):
    async def scenario(loop):
        async with datagram_pair() as (near, far):
            near.transport.sendto(b"x" * 65507, far.address)
            await far.until(lambda: far.datagrams)
            raised = result_of(near.transport.sendto, b"x" * 65508, far.address)
            await settle()
            return len(far.datagrams[0][0]), raised, [exc.errno for exc in near.errors], near.lost.done()
    same_as_stock(scenario)


def test_an_empty_datagram_is_as_on_stock(same_as_stock):
    async def scenario(loop):
        async with datagram_pair() as (near, far):
            near.transport.sendto(b"", far.address)
            near.transport.sendto(b"end", far.address)
            await far.until(lambda: far.datagrams and far.datagrams[-1][0] == b"end")
            return [data for data, _ in far.datagrams]
    same_as_stock(scenario)


def test_a_port_nobody_listens_on_is_reported_and_the_endpoint_lives_on(run, loop):
    async def main():
        async with datagram_pair(connected=True) as (near, far):
            far.transport.close()
            await far.lost
            near.transport.sendto(b"into the void")
            await near.until(lambda: near.errors)
            assert isinstance(near.errors[0], ConnectionRefusedError)
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as revived:
                revived.bind(far.address)
                revived.settimeout(3)
                for _ in range(3):  # an error that was pending may take one
                    near.transport.sendto(b"again")
                assert revived.recv(10) == b"again"
    run(main())


def test_wrong_destinations_are_refused_as_on_stock(same_as_stock, errors):
    async def scenario(loop):
        async with datagram_pair(True) as (near, far), datagram_pair() as (loose, _):
            found = [result_of(near.transport.sendto, b"x", ("127.0.0.1", 1)),
                     result_of(near.transport.sendto, b"x", far.address),
                     result_of(near.transport.sendto, 1, far.address),
                     result_of(loose.transport.sendto, "text", far.address)]
            for wrong in ("nonsense", ("127.0.0.1", 99999), ("not an address", 1), 5, ("127.0.0.1",)):
                raised = result_of(loose.transport.sendto, b"x", wrong)
                await settle()
                found.append((raised, [type(exc) for exc in loose.errors], loose.lost.done()))
                if loose.lost.done():
                    break
            return found
    same_as_stock(scenario)
    del errors[:]  # some of these end the endpoint on stock, with a report


@pytest.mark.parametrize("kind", ["full buffer", "full buffer, then close"])
def test_datagrams_that_must_wait_are_sent_in_order(run, loop, tmp_path, kind):
    """A Unix datagram socket whose reader is behind makes the sender wait: flow control and order hold."""
    async def main():
        reader = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        reader.setblocking(False)
        path = str(tmp_path / "socket")
        reader.bind(path)
        transport, protocol = await loop.create_datagram_endpoint(Datagrams, remote_addr=path, family=socket.AF_UNIX)
        transport.set_write_buffer_limits(high=20_000)
        for number in range(100):
            transport.sendto(b"%04d" % number + b"x" * 1000)
        assert transport.get_write_buffer_size() > 20_000
        assert protocol.events == ["pause"]
        if "close" in kind:
            transport.close()
        got = [await loop.sock_recv(reader, 2000) for _ in range(100)]
        assert [int(data[:4]) for data in got] == list(range(100))
        await settle()
        if "close" not in kind:
            assert protocol.events == ["pause", "resume"]
            transport.close()
        assert await protocol.lost is None
        reader.close()
    run(main())


def test_a_failing_protocol_does_not_stop_the_datagrams(run, errors):
    class Failing(Datagrams):
        def datagram_received(self, data, addr):
            super().datagram_received(data, addr)
            if data == b"bad":
                raise KeyError(data)

    async def main():
        loop = asyncio.get_running_loop()
        transport, protocol = await loop.create_datagram_endpoint(Failing, local_addr=("127.0.0.1", 0))
        address = transport.get_extra_info("sockname")
        transport.sendto(b"bad", address)
        transport.sendto(b"good", address)
        await protocol.until(lambda: len(protocol.datagrams) == 2 or protocol.lost.done())
        transport.abort()
        await protocol.lost
        return [data for data, _ in protocol.datagrams]
    assert run(main()) == [b"bad", b"good"]
    assert [type(context["exception"]) for context in errors] == [KeyError]
    del errors[:]


def test_endpoints_with_options(run, loop):
    async def main():
        one, first = await loop.create_datagram_endpoint(
            Datagrams, local_addr=("127.0.0.1", 0), reuse_port=True, allow_broadcast=True)
        two, second = await loop.create_datagram_endpoint(
            Datagrams, local_addr=one.get_extra_info("sockname"), reuse_port=True)
        assert one.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_BROADCAST)
        for transport, protocol in ((one, first), (two, second)):
            transport.close()
            await protocol.lost
    run(main())
