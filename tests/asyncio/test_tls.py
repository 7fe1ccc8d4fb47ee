"""TLS: nothing that was read is lost, whoever hangs up is noticed, and closing comes to an end."""

import asyncio
import contextlib
import itertools
import socket
import ssl
import threading
import time
import tracemalloc

import pytest

from support import Recorder, link, outcome, reset, tcp_pair, settle, unix_pair

pytestmark = pytest.mark.timeout(60)

HEADER = b"PROXY TCP4 192.0.2.1 192.0.2.2 1000 2000\r\n"


class MemoryClient:
    """A TLS client whose records pass through memory, so that a test decides what goes out together."""

    def __init__(self, context):
        self.incoming, self.outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self.tls = context.wrap_bio(self.incoming, self.outgoing, server_hostname="localhost")

    def hello(self):
        with contextlib.suppress(ssl.SSLWantReadError):
            self.tls.do_handshake()
        return self.outgoing.read()

    async def go_on(self, loop, sock, step):
        """Do `step`, exchanging records as needed."""
        while True:
            try:
                result = step()
            except ssl.SSLWantReadError:
                result = None
            if data := self.outgoing.read():
                await loop.sock_sendall(sock, data)
            if result is not None:
                return result
            data = await loop.sock_recv(sock, 65536)
            self.incoming.write(data) if data else self.incoming.write_eof()


@contextlib.asynccontextmanager
async def upgrading_server(tls):
    """A server that reads a line, starts TLS and echoes four bytes; yields its address and the lines it read."""
    lines, handlers = [], []

    async def handler(reader, writer):
        handlers.append(asyncio.current_task())
        lines.append(await reader.readline())
        await writer.start_tls(tls.server)
        writer.write(await reader.readexactly(4))
        await writer.drain()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()

    server = await asyncio.start_server(handler, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname(), lines
    finally:
        server.close()
        await asyncio.gather(*handlers)


async def upgrade(tls, address, split):
    """Send header line and ClientHello as one stream cut at the offset `split`, and talk over TLS afterwards."""
    loop = asyncio.get_running_loop()
    client = MemoryClient(tls.client)
    whole = HEADER + client.hello()
    with socket.create_connection(address) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setblocking(False)
        await loop.sock_sendall(sock, whole[:split])
        if split < len(whole):
            await settle()  # the server reads the first part and acts on it
            await loop.sock_sendall(sock, whole[split:])
        await client.go_on(loop, sock, lambda: client.tls.do_handshake() or True)
        await client.go_on(loop, sock, lambda: client.tls.write(b"ping"))
        assert await client.go_on(loop, sock, lambda: client.tls.read(4)) == b"ping"
    return len(whole)


START_TLS_LOSES = pytest.mark.stock_fault("python/cpython#142352: start_tls() forgets what the stream reader holds",
                                          ((3, 11), (3, 13, 12)), ((3, 14), (3, 14, 3)))


@START_TLS_LOSES
def test_start_tls_keeps_a_hello_that_came_with_the_header(run, tls):
    async def main():
        async with upgrading_server(tls) as (address, lines):
            await upgrade(tls, address, split=100_000)
            assert lines == [HEADER]
    run(main())


@START_TLS_LOSES
def test_start_tls_keeps_a_hello_cut_anywhere(run, tls):
    async def main():
        async with upgrading_server(tls) as (address, lines):
            size = await upgrade(tls, address, split=len(HEADER))
            for split in (*range(1, len(HEADER) + 12), *range(len(HEADER) + 12, size, 23), size - 1):
                await upgrade(tls, address, split)
            assert set(lines) == {HEADER}
    run(main())


def test_start_tls_on_a_stream_that_sent_nothing_more(run, tls):
    async def main():
        async with upgrading_server(tls) as (address, lines):
            await upgrade(tls, address, split=len(HEADER))
            assert lines == [HEADER]
    run(main())


# -- closing

def test_close_ends_a_download_that_would_never_end(run, tls):
    """The far end, a blocking server in a thread, sends for ever: it must meet an error soon after our close()."""
    one, two = tcp_pair()
    two.setblocking(True)
    two.settimeout(10)
    closed = threading.Event()
    sent_after = []

    def stream_for_ever():
        with tls.server.wrap_socket(two, server_side=True) as sock:
            with contextlib.suppress(OSError):
                while True:
                    count = sock.send(b"x" * 16384)
                    if closed.is_set():
                        sent_after.append(count)
                        assert len(sent_after) < 4000

    async def main():
        thread = threading.Thread(target=stream_for_ever)
        thread.start()
        loop = asyncio.get_running_loop()
        _, protocol = await loop.create_connection(Recorder, sock=one, ssl=tls.client, server_hostname="localhost")
        await protocol.received(1024)
        protocol.transport.close()
        closed.set()
        start = time.monotonic()
        await protocol.lost
        await loop.run_in_executor(None, thread.join, 5)
        assert not thread.is_alive()
        assert time.monotonic() - start < 3
        assert sum(sent_after) < 4_000_000
    run(main())


@pytest.mark.parametrize("how", ["close", "abort"])
def test_no_data_is_delivered_after_close(run, tls, how):
    async def main():
        async with link("tls", tls) as (near, far):
            near.transport.write(b"x" * 1_000_000)
            await far.received(1)
            getattr(far.transport, how)()
            before = len(far.data)
            await settle()
            assert len(far.data) == before
            await far.lost
            assert len(far.data) == before
            assert far.events[-1] == "lost"
            await near.lost
    run(main())


def test_close_waits_no_longer_than_the_shutdown_timeout(same_as_stock, tls):
    async def scenario(loop):
        one, two = tcp_pair()
        client = MemoryClient(tls.client)
        with two:
            connecting = asyncio.ensure_future(loop.connect_accepted_socket(
                Recorder, one, ssl=tls.server, ssl_shutdown_timeout=0.05))
            await loop.sock_sendall(two, client.hello())
            await client.go_on(loop, two, lambda: client.tls.do_handshake() or True)
            transport, protocol = await connecting
            transport.close()
            return type(await protocol.lost)  # the far end never answers the farewell
    same_as_stock(scenario, timeout=5)


@pytest.mark.parametrize("kind", ["tls", "tcp", "unix"])
def test_end_of_file_without_farewell_is_seen(same_as_stock, tls, kind):
    async def scenario(loop):
        async with link(kind, tls) as (near, far):
            near.transport.get_extra_info("socket").shutdown(socket.SHUT_WR)
            lost = await far.lost
            return type(lost), far.events
    same_as_stock(scenario, timeout=5)


# -- the far end hangs up during the handshake

def hang_up(sock):
    sock.close()


def read_a_little_and_hang_up(sock):
    sock.recv(4)
    sock.close()


def say_something_plain(sock):
    sock.sendall(b"220 mail.example ready\r\n")
    sock.close()


def say_something_plain_and_wait(sock):
    sock.sendall(b"220 mail.example ready\r\n")
    sock.recv(10)  # the hello
    while sock.recv(65536):
        pass
    sock.close()


def refuse_with_an_alert(sock):
    sock.recv(4096)
    sock.sendall(b"\x15\x03\x03\x00\x02\x02\x28")
    sock.close()


def say_half_a_hello(sock):
    sock.sendall(MemoryClient(ssl.create_default_context()).hello()[:100])
    sock.close()


SERVERS = [hang_up, read_a_little_and_hang_up, reset, say_something_plain, say_something_plain_and_wait,
           refuse_with_an_alert]
SURE = [say_something_plain_and_wait, refuse_with_an_alert, say_half_a_hello]
CLIENTS = [hang_up, say_half_a_hello, reset, say_something_plain]


@pytest.mark.parametrize("way, farewell", [
    *itertools.product(["create_connection", "unix", "start_tls"], SERVERS),
    *itertools.product(["server side", "start_tls server side"], CLIENTS),
], ids=lambda value: getattr(value, "__name__", value))
def test_a_peer_that_hangs_up_during_the_handshake(same_as_stock, tls, way, farewell):
    async def scenario(loop):
        one, two = unix_pair() if way == "unix" else tcp_pair()
        two.setblocking(True)
        two.settimeout(3)
        peer = loop.run_in_executor(None, farewell, two)
        protocol = Recorder()
        if way in ("create_connection", "unix"):
            call = loop.create_connection(lambda: protocol, sock=one, ssl=tls.client, server_hostname="localhost")
        elif way == "server side":
            call = loop.connect_accepted_socket(lambda: protocol, one, ssl=tls.server)
        else:
            transport, _ = await loop.create_connection(lambda: protocol, sock=one)
            server = way == "start_tls server side"
            call = loop.start_tls(transport, protocol, tls.server if server else tls.client, server_side=server,
                                  server_hostname=None if server else "localhost")
        result = await outcome(call)
        if way.startswith("start_tls"):
            transport.abort()
        await outcome(peer)
        two.close()
        await settle()
        assert one.fileno() == -1
        assert issubclass(result, OSError)
        return result.__name__ if farewell in SURE else "one of several, by the order of the peer's packets"
    same_as_stock(scenario, timeout=5)


@pytest.mark.parametrize("farewell", CLIENTS, ids=lambda function: function.__name__)
def test_a_server_outlives_clients_that_hang_up_during_the_handshake(run, tls, farewell):
    async def main():
        loop = asyncio.get_running_loop()
        loop.set_debug(False)  # in debug mode each failure is reported
        made = []

        def factory():
            made.append(Recorder())
            return made[-1]
        server = await loop.create_server(factory, "127.0.0.1", 0, ssl=tls.server)
        address = server.sockets[0].getsockname()
        for _ in range(5):
            sock = socket.create_connection(address)
            sock.settimeout(3)
            await loop.run_in_executor(None, outcome_of_thread, farewell, sock)
            sock.close()
        _, client = await loop.create_connection(Recorder, *address, ssl=tls.client, server_hostname="localhost")
        client.transport.write(b"hello")
        await made[-1].received(5)
        client.transport.close()
        await made[-1].lost
        server.close()
        assert [protocol.events for protocol in made[:-1]] == [[]] * 5
    run(main())


def outcome_of_thread(function, *args):
    with contextlib.suppress(OSError):
        function(*args)


@pytest.mark.parametrize("way", ["create_connection", "server side", "start_tls"])
def test_a_silent_peer_meets_the_handshake_timeout(same_as_stock, tls, way):
    async def scenario(loop):
        one, two = tcp_pair()
        with two:
            timeout = {"ssl_handshake_timeout": 0.05}
            if way == "create_connection":
                call = loop.create_connection(Recorder, sock=one, ssl=tls.client, server_hostname="localhost",
                                              **timeout)
            elif way == "server side":
                call = loop.connect_accepted_socket(Recorder, one, ssl=tls.server, **timeout)
            else:
                transport, protocol = await loop.create_connection(Recorder, sock=one)
                call = loop.start_tls(transport, protocol, tls.client, server_hostname="localhost", **timeout)
            return await outcome(call)
    assert issubclass(same_as_stock(scenario, timeout=5), OSError)


def test_a_certificate_for_another_name_is_refused(same_as_stock, tls):
    async def scenario(loop):
        loop.set_debug(False)  # in debug mode the server reports it
        server = await loop.create_server(Recorder, "127.0.0.1", 0, ssl=tls.server)
        result = await outcome(loop.create_connection(
            Recorder, *server.sockets[0].getsockname(), ssl=tls.client, server_hostname="another.example"))
        server.close()
        await settle()
        return result
    assert same_as_stock(scenario) is ssl.SSLCertVerificationError


# -- data

@pytest.mark.parametrize("size", [1, 16_384, 16_385, 3_000_000])
def test_data_goes_both_ways_at_once(run, tls, size):
    async def main():
        async with link("tls", tls) as (near, far):
            near.transport.write(b"n" * size)
            far.transport.write(b"f" * size)
            await far.received(size)
            await near.received(size)
            assert (near.data, far.data) == (b"f" * size, b"n" * size)
    run(main())


def test_a_paused_reader_gets_nothing_until_it_resumes(run, tls):
    async def main():
        async with link("tls", tls) as (near, far):
            far.transport.pause_reading()
            assert not far.transport.is_reading()
            near.transport.write(b"x" * 1_000_000)
            await settle()
            assert not far.data
            far.transport.resume_reading()
            assert far.transport.is_reading()
            await far.received(1_000_000)
    run(main())


def test_the_transport_tells_about_its_tls(run, tls):
    async def main():
        async with link("tls", tls) as (near, far):
            info = near.transport.get_extra_info
            assert info("sslcontext") is tls.client
            assert dict(field[0] for field in info("peercert")["subject"]) == {"commonName": "localhost"}
            assert info("cipher") == info("ssl_object").cipher()
            assert info("peername") == far.transport.get_extra_info("sockname")
            assert info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_TYPE) == socket.SOCK_STREAM
            assert not near.transport.can_write_eof()
            with pytest.raises(NotImplementedError):
                near.transport.write_eof()
    run(main())


def test_the_negotiated_protocol_is_seen_on_both_ends(run, tls):
    server, client = (ssl.SSLContext(kind) for kind in (ssl.PROTOCOL_TLS_SERVER, ssl.PROTOCOL_TLS_CLIENT))
    server.load_cert_chain(tls.cert, tls.key)
    client.load_verify_locations(tls.cert)
    for context in server, client:
        context.set_alpn_protocols(["h2", "http/1.1"])

    async def main():
        own = type(tls)(server=server, client=client)
        async with link("tls", own) as ends:
            for end in ends:
                assert end.transport.get_extra_info("ssl_object").selected_alpn_protocol() == "h2"
    run(main())


@pytest.mark.stock_fault("a read buffer for each connection")
def test_a_connection_takes_little_memory(run, tls):
    """Both ends of each are here. A read buffer for each of them would be 256 KiB."""
    async def main():
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(link("tls", tls))
            tracemalloc.start()
            try:
                for _ in range(10):
                    await stack.enter_async_context(link("tls", tls))
                assert tracemalloc.get_traced_memory()[0] < 20 * 50_000
            finally:
                tracemalloc.stop()
    run(main())
