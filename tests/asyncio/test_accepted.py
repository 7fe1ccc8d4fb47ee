"""What a server's connection tells of its socket, of which nobody may have asked for the object before."""

import asyncio
import fcntl
import gc
import os
import socket
import struct
import sys
import threading
import warnings

import pytest

from support import open_fds

pytestmark = pytest.mark.timeout(60)
PLACES = ["127.0.0.1", "::1", "path", "a path of more than a few bytes" * 2]


class Noted(asyncio.Protocol):
    def __init__(self, made):
        self.made, self.lost = made, asyncio.Event()

    def connection_made(self, transport):
        self.transport = transport
        self.made.set_result(self)

    def connection_lost(self, exc):
        self.lost.set()


async def connect(place, tmp_path, factory=Noted, bind=True):
    """A server at the place and one connection to it: (server, protocol, client's socket)."""
    loop = asyncio.get_running_loop()
    made = loop.create_future()
    if "." in place or ":" in place:
        server = await loop.create_server(lambda: factory(made), place, 0)
    else:
        server = await loop.create_unix_server(lambda: factory(made), str(tmp_path / place))
    client = socket.socket(server.sockets[0].family)
    client.setblocking(False)
    if client.family == socket.AF_UNIX and bind:
        client.bind(str(tmp_path / (place + "-client")))
    await loop.sock_connect(client, server.sockets[0].getsockname())
    return server, await made, client


async def lose(server, protocol, client):
    client.close()
    protocol.transport.abort()
    await protocol.lost.wait()
    server.close()
    await server.wait_closed()


@pytest.mark.parametrize("asked", ["before", "only after"])
@pytest.mark.parametrize("place", PLACES)
def test_addresses_are_the_socket_s_also_after_the_end(run, tmp_path, monkeypatch, place, asked):
    monkeypatch.chdir(tmp_path)         # long names fit into an address only so
    where = tmp_path if len(place) < 20 else type(tmp_path)(".")

    async def main():
        server, protocol, client = await connect(place, where)
        wanted = {"peername": client.getsockname(), "sockname": server.sockets[0].getsockname()}
        info = protocol.transport.get_extra_info
        if asked == "before":
            assert {name: info(name) for name in wanted} == wanted
        await lose(server, protocol, client)
        assert {name: info(name) for name in wanted} == wanted
    run(main())


@pytest.mark.parametrize("asked", ["before", "only after"])
@pytest.mark.parametrize("place", PLACES[:3])
def test_the_socket_is_still_of_its_family_after_the_end(run, tmp_path, place, asked):
    async def main():
        server, protocol, client = await connect(place, tmp_path)
        listener, info = server.sockets[0], protocol.transport.get_extra_info
        wanted = listener.family, listener.type, listener.proto, -1
        if asked == "before":
            info("socket")
        await lose(server, protocol, client)
        sock = info("socket")
        assert (sock.family, sock.type, sock.proto, sock.fileno()) == wanted
        assert info("socket") is sock
        with pytest.raises(OSError, match="Bad file descriptor"):
            sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
    run(main())


def test_a_unix_client_without_a_name_has_an_empty_one(run, tmp_path):
    async def main():
        server, protocol, client = await connect("path", tmp_path, bind=False)
        assert protocol.transport.get_extra_info("peername") == ""
        await lose(server, protocol, client)
    run(main())


def test_the_socket_object_is_the_connection_s(run, tmp_path):
    async def main():
        server, protocol, client = await connect("127.0.0.1", tmp_path)
        sock = protocol.transport.get_extra_info("socket")
        assert sock is protocol.transport.get_extra_info("socket")
        assert (sock.family, sock.type, sock.getpeername()) == (client.family, client.type, client.getsockname())
        assert sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        assert sock.gettimeout() == 0
        assert fcntl.fcntl(sock.fileno(), fcntl.F_GETFL) & os.O_NONBLOCK
        assert not os.get_inheritable(sock.fileno())
        await lose(server, protocol, client)
        assert sock.fileno() == -1
    run(main())


@pytest.mark.parametrize("place", PLACES[:3])
def test_descriptors_have_their_flags_without_a_socket_object(run, tmp_path, place):
    async def main():
        before = open_fds()
        server, protocol, client = await connect(place, tmp_path)
        new = set(open_fds()) - set(before) - {client.fileno(), server.sockets[0].fileno()}
        fds = [fd for fd in new if isinstance(fd, int)]
        for fd in fds:
            assert fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_NONBLOCK and not os.get_inheritable(fd)
        await lose(server, protocol, client)
    run(main())


def test_the_socket_object_of_a_connection_that_has_ended_is_closed(run, tmp_path):
    async def main():
        server, protocol, client = await connect("127.0.0.1", tmp_path)
        await lose(server, protocol, client)
        sock = protocol.transport.get_extra_info("socket")
        assert sock.fileno() == -1
        assert "socket" in repr(sock).lower()
    run(main())


def test_other_threads_that_ask_at_once_get_one_object(run, tmp_path):
    async def main():
        for _ in range(20):
            server, protocol, client = await connect("127.0.0.1", tmp_path)
            together, got = threading.Barrier(4), []

            def ask():
                together.wait()
                got.append(protocol.transport.get_extra_info("socket").fileno())
                got.append(protocol.transport.get_extra_info("peername"))
            threads = [threading.Thread(target=ask) for _ in range(4)]
            for thread in threads:
                thread.start()
            for thread in threads:
                await asyncio.to_thread(thread.join)
            assert set(got) == {protocol.transport.get_extra_info("socket").fileno(), client.getsockname()}
            await lose(server, protocol, client)
        await asyncio.get_running_loop().shutdown_default_executor()
    run(main())


def test_asking_while_the_connection_ends_closes_no_other_descriptor(run, tmp_path):
    async def main():
        loop = asyncio.get_running_loop()
        for _ in range(40):
            server, protocol, client = await connect("127.0.0.1", tmp_path)
            asked = loop.run_in_executor(None, protocol.transport.get_extra_info, "socket")
            await lose(server, protocol, client)
            file = open(os.devnull)             # likely gets the number
            sock = await asked
            del sock, protocol
            gc.collect(0)
            os.fstat(file.fileno())
            file.close()
        await loop.shutdown_default_executor()
    run(main())


@pytest.mark.gmploop_only        # stock breaks
def test_who_closes_the_socket_object_does_not_close_the_connection(run, tmp_path):
    async def main():
        server, protocol, client = await connect("127.0.0.1", tmp_path)
        protocol.transport.get_extra_info("socket")._sock.close()
        protocol.transport.write(b"still here")
        assert await asyncio.get_running_loop().sock_recv(client, 100) == b"still here"
        await lose(server, protocol, client)
    run(main())


def test_a_factory_that_fails_closes_the_connection_and_the_next_is_served(run):
    async def main():
        loop = asyncio.get_running_loop()
        made, fails = loop.create_future(), [RuntimeError("no")]

        def factory():
            if fails:
                raise fails.pop()
            return Noted(made)
        server = await loop.create_server(factory, "127.0.0.1", 0)
        first, second = [socket.socket() for _ in range(2)]
        for client in first, second:
            client.setblocking(False)
            await loop.sock_connect(client, server.sockets[0].getsockname())
        assert await loop.sock_recv(first, 10) == b""
        first.close()
        await lose(server, await made, second)
    run(main())


@pytest.mark.gmploop_only        # stock leaves it open
def test_what_is_no_protocol_closes_the_connection(run):
    async def main():
        loop = asyncio.get_running_loop()
        server = await loop.create_server(object, "127.0.0.1", 0)
        with socket.socket() as client:
            client.setblocking(False)
            await loop.sock_connect(client, server.sockets[0].getsockname())
            assert await loop.sock_recv(client, 10) == b""
        server.close()
        await server.wait_closed()
    run(main())


@pytest.mark.gmploop_only        # stock's Server falls over its own transports
def test_a_factory_may_close_the_server_with_connections_waiting(run):
    async def main():
        loop = asyncio.get_running_loop()

        def factory():
            server.close()
            return asyncio.Protocol()
        server = await loop.create_server(factory, "127.0.0.1", 0, start_serving=False)
        await server.start_serving()
        clients = [socket.create_connection(server.sockets[0].getsockname()) for _ in range(3)]
        for client in clients:
            client.setblocking(False)
            try:
                assert await loop.sock_recv(client, 10) == b""
            except ConnectionResetError:
                pass
            client.close()
        await server.wait_closed()
    run(main())


def test_an_accepted_transport_that_is_forgotten_says_so(loop_factory, tmp_path):
    loop = loop_factory()
    server, protocol, client = loop.run_until_complete(connect("127.0.0.1", tmp_path))
    server.close()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        loop.close()
        del protocol, server
        gc.collect()
    assert any("unclosed transport" in str(warning.message) for warning in caught)
    client.settimeout(5)
    assert client.recv(10) == b""
    client.close()


@pytest.mark.skipif(sys.version_info < (3, 13), reason="came with Python 3.13")
@pytest.mark.parametrize("how", ["close_clients", "abort_clients"])
def test_a_server_closes_its_clients(run, tmp_path, how):
    async def main():
        server, protocol, client = await connect("127.0.0.1", tmp_path)
        getattr(server, how)()
        await protocol.lost.wait()
        server.close()
        await server.wait_closed()
        client.close()
    run(main())


@pytest.mark.skipif(sys.platform != "linux", reason="others have forgotten the address, stock too")
def test_a_client_that_has_reset_the_connection_has_its_address(run):
    async def main():
        loop = asyncio.get_running_loop()
        made = loop.create_future()
        server = await loop.create_server(lambda: Noted(made), "127.0.0.1", 0)
        with socket.create_connection(server.sockets[0].getsockname()) as client:
            address = client.getsockname()
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        protocol = await made
        assert protocol.transport.get_extra_info("peername") == address
        await protocol.lost.wait()
        server.close()
        await server.wait_closed()
    run(main())


@pytest.mark.gmploop_only
def test_a_listening_socket_that_its_owner_closes_serves_nobody(run):
    async def main():
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            address = listener.getsockname()
            server = await loop.create_server(asyncio.Protocol, sock=listener)
            with socket.create_connection(address) as client:
                client.setblocking(False)
                await asyncio.sleep(0)
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
        with pytest.raises(ValueError):
            server.close()
    run(main())


@pytest.mark.skipif(sys.platform != "linux", reason="abstract names are Linux's")
def test_an_abstract_name(run):
    async def main():
        loop = asyncio.get_running_loop()
        made, name = loop.create_future(), f"\0gmploop-{os.getpid()}"
        server = await loop.create_unix_server(lambda: Noted(made), name)
        client = socket.socket(socket.AF_UNIX)
        client.setblocking(False)
        await loop.sock_connect(client, name)
        protocol = await made
        assert protocol.transport.get_extra_info("sockname") == name.encode()
        await lose(server, protocol, client)
        assert protocol.transport.get_extra_info("sockname") == name.encode()
    run(main())
