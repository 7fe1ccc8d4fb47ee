"""write() tries to send before it returns: who waits for the answer in the same callback gets it."""

import asyncio
import os
import socket
import threading

import pytest

from support import Recorder, child, link, tcp_pair, unix_pair

pytestmark = pytest.mark.timeout(30)

WAYS = {
    "write": lambda transport: transport.write(b"x"),
    "writelines": lambda transport: transport.writelines([b"x"]),
}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_a_byte_written_to_a_socket_is_there_before_the_callback_ends(run, kind, way):
    async def main():
        one, two = tcp_pair() if kind == "tcp" else unix_pair()
        with two:
            two.settimeout(1)
            transport, protocol = await asyncio.get_running_loop().create_connection(Recorder, sock=one)
            for _ in range(3):
                WAYS[way](transport)
                assert two.recv(10) == b"x"
            transport.close()
            await protocol.lost
    run(main())


def test_a_byte_written_in_connection_made_is_there_at_once(run):
    class Greeter(Recorder):
        def connection_made(self, transport):
            super().connection_made(transport)
            transport.write(b"x")
            self.seen = self.peer.recv(10)

    async def main():
        one, two = unix_pair()
        with two:
            two.settimeout(1)
            Greeter.peer = two
            transport, protocol = await asyncio.get_running_loop().create_connection(Greeter, sock=one)
            assert protocol.seen == b"x"
            transport.close()
            await protocol.lost
    run(main())


def test_an_answer_written_in_data_received_is_there_at_once(run):
    class Echo(Recorder):
        def data_received(self, data):
            self.transport.write(data)
            self.seen = self.peer.recv(10)
            super().data_received(data)

    async def main():
        one, two = unix_pair()
        with two:
            two.settimeout(1)
            Echo.peer = two
            transport, protocol = await asyncio.get_running_loop().create_connection(Echo, sock=one)
            two.send(b"ping")
            await protocol.received(4)
            assert protocol.seen == b"ping"
            transport.close()
            await protocol.lost
    run(main())


@pytest.mark.parametrize("way", WAYS)
def test_a_byte_written_to_a_pipe_is_there_before_the_callback_ends(run, way):
    async def main():
        async with link("pipe") as (near, _):
            source, sink = os.pipe()
            transport, protocol = await asyncio.get_running_loop().connect_write_pipe(Recorder, open(sink, "wb", 0))
            os.set_blocking(source, False)  # an empty pipe raises instead of waiting for ever
            WAYS[way](transport)
            assert os.read(source, 10) == b"x"
            transport.close()
            await protocol.lost
            os.close(source)
    run(main())


def test_a_byte_written_to_a_stream_is_there_before_the_callback_ends(run):
    async def main():
        one, two = unix_pair()
        with two:
            two.settimeout(1)
            _, writer = await asyncio.open_connection(sock=one)
            writer.write(b"x")
            assert two.recv(10) == b"x"
            writer.close()
            await writer.wait_closed()
    run(main())


def test_a_datagram_is_sent_before_the_callback_ends(run):
    async def main():
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as far:
            far.bind(("127.0.0.1", 0))
            far.settimeout(1)
            transport, protocol = await asyncio.get_running_loop().create_datagram_endpoint(
                Recorder, local_addr=("127.0.0.1", 0))
            transport.sendto(b"x", far.getsockname())
            assert far.recv(10) == b"x"
            transport.close()
            await protocol.lost
    run(main())


def test_sock_calls_send_before_they_wait(loop):
    """A coroutine's first step sends; the loop need not come round before the far end has the bytes."""
    one, two = unix_pair()
    with one, two:
        two.settimeout(1)
        for call in (loop.sock_sendall(one, b"x"),):
            with pytest.raises(StopIteration):
                call.send(None)
            assert two.recv(10) == b"x"


def test_a_byte_written_to_tls_is_there_before_the_callback_ends(run, tls):
    """The far end is a plain blocking TLS client in a thread, which tells when it has read the byte."""
    one, two = tcp_pair()
    two.setblocking(True)
    two.settimeout(5)
    got = threading.Event()

    def far_end():
        with tls.client.wrap_socket(two, server_hostname="localhost") as sock:
            if sock.recv(10) == b"x":
                got.set()
            sock.recv(10)  # until the close

    async def main():
        thread = threading.Thread(target=far_end)
        thread.start()
        transport, protocol = await asyncio.get_running_loop().connect_accepted_socket(Recorder, one, ssl=tls.server)
        transport.write(b"x")
        assert got.wait(1)
        transport.close()
        await protocol.lost
        thread.join(5)
        assert not thread.is_alive()
    run(main())


@pytest.mark.parametrize("way", ["transport", "stream"])
def test_what_was_written_arrives_though_the_process_ends_itself(loop_kind, way):
    near, far = socket.socketpair()
    with near, far:
        done = child(loop_kind, """
            async def main():
                sock = socket.socket(fileno=int(sys.argv[1]))
                if sys.argv[2] == "stream":
                    _, writer = await asyncio.open_connection(sock=sock)
                    writer.write(b"last words")
                else:
                    transport, _ = await loop.create_connection(asyncio.Protocol, sock=sock)
                    transport.write(b"last words")
                os._exit(0)
            loop = new_loop()
            loop.run_until_complete(main())
        """, str(far.fileno()), way, pass_fds=[far.fileno()])
        assert (done.returncode, done.stderr) == (0, "")
        near.settimeout(5)
        assert near.recv(100) == b"last words"


@pytest.mark.stock_fault("only sockets whose protocol has TCP's own number get TCP_NODELAY")
def test_connections_of_a_socket_that_was_passed_in_do_not_wait_for_more_to_send(run):
    """As servers get it from a supervisor, made without a protocol number: Nagle's algorithm is off there too."""
    async def main():
        made = asyncio.get_running_loop().create_future()

        class Protocol(asyncio.Protocol):
            def connection_made(self, transport):
                sock = transport.get_extra_info("socket")
                made.set_result(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
                transport.close()

        listener = socket.socket()
        listener.bind(("127.0.0.1", 0))
        assert listener.proto == 0
        async with await asyncio.get_running_loop().create_server(Protocol, sock=listener):
            _, writer = await asyncio.open_connection(*listener.getsockname())
            assert await made
            writer.close()
    run(main())
