"""sock_recvfrom(), sock_recvfrom_into() and sock_sendto() give and take addresses as the socket module does."""

import asyncio
import gc
import socket
import sys

import pytest

from support import turns

pytestmark = pytest.mark.timeout(60)

LINUX = sys.platform == "linux"
HAS_IPV6 = socket.has_ipv6
PLACES = {"IPv4": (socket.AF_INET, ("127.0.0.1", 0)), "Unix path": (socket.AF_UNIX, "{tmp}/{name}")}
if LINUX:
    PLACES |= {"another loopback address": (socket.AF_INET, ("127.255.20.3", 0)),
               "abstract name": (socket.AF_UNIX, "\0{tmp}/{name}")}
if HAS_IPV6:
    PLACES |= {"IPv6": (socket.AF_INET6, ("::1", 0))}


def bound(family, address):
    sock = socket.socket(family, socket.SOCK_DGRAM)
    sock.setblocking(False)
    try:
        sock.bind(address)
    except OSError as exc:
        sock.close()
        pytest.skip(f"no such address here: {exc}")
    return sock


@pytest.fixture(params=PLACES, ids=str)
def pair(request, tmp_path):
    family, address = PLACES[request.param]
    name = (lambda n: address.format(tmp=tmp_path, name=n)) if family == socket.AF_UNIX else (lambda n: address)
    with bound(family, name("near")) as near, bound(family, name("far")) as far:
        yield near, far


@pytest.mark.parametrize("waits", [False, True], ids=["at once", "after a wait"])
def test_datagrams_come_with_the_address_they_were_sent_from(run, pair, waits):
    near, far = pair

    async def main():
        loop = asyncio.get_running_loop()
        buffer = bytearray(100)
        for receive in loop.sock_recvfrom(far, 100), loop.sock_recvfrom_into(far, buffer, 50):
            receiving = loop.create_task(receive) if waits else receive
            await turns(2)
            assert await loop.sock_sendto(near, b"hello", far.getsockname()) == 5
            what, address = await receiving
            assert (what, address) in ((b"hello", near.getsockname()), (5, near.getsockname()))
            assert await loop.sock_sendto(far, b"", address) == 0
            assert await loop.sock_recvfrom(near, 1 << 20) == (b"", far.getsockname())
        assert buffer[:6] == b"hello\0"
    run(main())


@pytest.mark.skipif(not HAS_IPV6, reason="no IPv6")
def test_an_ipv6_address_has_two_to_four_parts(run):
    async def main():
        loop = asyncio.get_running_loop()
        with bound(socket.AF_INET6, ("::1", 0)) as sock:
            port = sock.getsockname()[1]
            for address in ("::1", port), ("::1", port, 0), ("::1", port, 0, 0), ("0:0:0:0:0:0:0:1", port, 7, 0):
                await loop.sock_sendto(sock, b"x", address)
                assert (await loop.sock_recvfrom(sock, 10))[1] == sock.getsockname()
    run(main())


@pytest.mark.parametrize("host", ["127.1", "0x7f000001", b"127.0.0.1", "localhost", bytearray(b"127.0.0.1")], ids=repr)
def test_other_ways_to_write_an_address(run, host):
    async def main():
        loop = asyncio.get_running_loop()
        with bound(socket.AF_INET, ("127.0.0.1", 0)) as sock:
            assert await loop.sock_sendto(sock, b"x", (host, sock.getsockname()[1])) == 1
            assert await loop.sock_recvfrom(sock, 10) == (b"x", sock.getsockname())
    run(main())


@pytest.mark.parametrize("address", [("127.0.0.1\0", 1), ("::1", 1), ("1.2.3.4.5", 1), ("127.0.0.1", -1), ("127.0.0.1", 65536),
                                     ("127.0.0.1", 1.0), ("127.0.0.1", "1"), ("127.0.0.1", 1, 0, 0), ("\udc80", 1), (), 1],
                         ids=repr)
def test_a_bad_address_fails_as_in_the_socket_module(run, address):
    async def main():
        loop = asyncio.get_running_loop()
        with bound(socket.AF_INET, ("127.0.0.1", 0)) as sock:
            errors = []
            for send in sock.sendto, None:
                try:
                    await loop.sock_sendto(sock, b"x", address) if send is None else send(b"x", address)
                except Exception as exc:
                    errors.append((type(exc), str(exc)))
            assert len(errors) == 2 and errors[0] == errors[1]
    run(main())


@pytest.mark.skipif(not hasattr(socket, "AF_NETLINK"), reason="not Linux")
def test_addresses_of_other_families(run):
    """Of a question to the kernel's routing the answer comes from the kernel, (0, 0)."""
    async def main():
        loop = asyncio.get_running_loop()
        with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as sock:
            sock.setblocking(False)
            ask = b"\x14\0\0\0" + b"\x12\0" + b"\x01\x03" + b"\x01\0\0\0" + bytes(8)       # RTM_GETLINK, a dump
            assert await loop.sock_sendto(sock, ask[:16] + bytes(4), (0, 0)) == 20
            data, address = await loop.sock_recvfrom(sock, 1 << 16)
            assert data and address == (0, 0)
    run(main())


def test_a_connected_stream_has_no_address_to_tell(run):
    async def main():
        loop = asyncio.get_running_loop()
        for near, far in socket.socketpair(), connected():
            with near, far:
                near.setblocking(False)
                far.setblocking(False)
                await loop.sock_sendall(near, b"hello")
                assert await loop.sock_recvfrom(far, 3) == (b"hel", None)
                assert await loop.sock_recv(far, 10) == b"lo"
    run(main())


def connected():
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        return near, server.accept()[0]


def test_a_buffer_is_free_while_a_datagram_is_waited_for(run):
    async def main():
        loop = asyncio.get_running_loop()
        with bound(socket.AF_INET, ("127.0.0.1", 0)) as sock:
            buffer = bytearray(100)
            receiving = loop.create_task(loop.sock_recvfrom_into(sock, buffer, 50))
            await turns(2)
            buffer.extend(b"more")
            await loop.sock_sendto(sock, memoryview(b"hello"), sock.getsockname())
            assert (await receiving)[0] == 5
    run(main())


def test_sendto_can_be_audited(run):
    seen = []

    def hook(event, args):
        if seen is not None and event == "socket.sendto":
            seen.append(args)

    async def main():
        loop = asyncio.get_running_loop()
        with bound(socket.AF_INET, ("127.0.0.1", 0)) as sock:
            await loop.sock_sendto(sock, b"x", sock.getsockname())
            assert seen == [(sock, sock.getsockname())]
    sys.addaudithook(hook)
    try:
        run(main())
    finally:
        seen = None                 # a hook stays for the life of the process


@pytest.mark.gmploop_only           # stock warns of each
def test_calls_that_hold_others_can_be_dropped(loop):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        sock.setblocking(False)
        for _ in range(3):
            held = [loop.sock_recv(sock, 1) for _ in range(200)]
            for each in held:
                each.close()
            held = loop.sock_sendto(sock, held, ("127.0.0.1", 9))
            held.close()
            del held, each
            more = [loop.sock_recv(sock, 1) for _ in range(1000)]
            for each in more:
                each.close()


@pytest.mark.gmploop_only            # stock warns
def test_calls_that_are_not_awaited_let_go_of_everything(loop):
    """Silently, in a cycle or not; so many that most lie where others lay."""
    with bound(socket.AF_INET, ("127.0.0.1", 0)) as sock:
        before = sys.getrefcount(sock)
        for i in range(300):
            data = bytearray(10)
            calls = [loop.sock_sendto(sock, data, ("127.0.0.1", 1)), loop.sock_recvfrom(sock, 10),
                     loop.sock_sendall(sock, data), loop.sock_recvfrom_into(sock, data)]
            if i % 3 == 0:
                calls[0].close()
            elif i % 3 == 1:
                calls.append(calls)
        del calls, data
        gc.collect()
        assert sys.getrefcount(sock) == before


class Received(asyncio.DatagramProtocol):
    def __init__(self):
        self.waiting = asyncio.Queue()

    def datagram_received(self, data, address):
        self.waiting.put_nowait((data, address))

    def error_received(self, exc):
        self.waiting.put_nowait(exc)


@pytest.mark.parametrize("family, host", [(socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")], ids=["IPv4", "IPv6"])
def test_a_transport_sends_to_whom_it_is_told_whoever_sent_last(run, family, host):
    async def main():
        loop = asyncio.get_running_loop()
        peers = [bound(family, (host, 0)) for _ in range(3)]
        with peers[0], peers[1], peers[2], bound(family, (host, 0)) as sock:
            transport, protocol = await loop.create_datagram_endpoint(Received, sock=sock)
            for i, peer in enumerate(peers):
                await loop.sock_sendto(peer, b"hello", sock.getsockname())
                assert await protocol.waiting.get() == (b"hello", peer.getsockname())
                for j, other in enumerate(peers):
                    for address in other.getsockname(), other.getsockname()[:2]:
                        transport.sendto(b"%d to %d" % (i, j), address)
                        assert await loop.sock_recvfrom(other, 100) == (b"%d to %d" % (i, j), sock.getsockname())
            transport.close()
            await turns(2)
    run(main())


@pytest.mark.parametrize("address", [("127.0.0.1", 65536), ("::1", 1), ("127.0.0.1",), "x", ("127.0.0.1", "1"), None], ids=repr)
def test_a_transport_takes_a_bad_address_as_stock_does(same_as_stock, errors, address):
    async def main(loop):
        with bound(socket.AF_INET, ("127.0.0.1", 0)) as sock:
            transport, protocol = await loop.create_datagram_endpoint(Received, sock=sock)
            try:
                transport.sendto(b"x", address)
            except Exception as exc:
                return type(exc)
            await turns(3)
            return transport.is_closing(), protocol.waiting.qsize(), [type(protocol.waiting.get_nowait())
                                                                      for _ in range(protocol.waiting.qsize())]
    same_as_stock(main)
    errors.clear()
