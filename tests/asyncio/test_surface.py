"""The whole surface of asyncio's loop: each method is there, with a compatible signature, and does its work."""

import asyncio
import inspect
import io
import os
import socket
import sys
import time

import pytest

import gmploop
from support import Recorder, link, tcp_pair, settle, turns, unix_pair

pytestmark = pytest.mark.timeout(30)

STOCK = asyncio.SelectorEventLoop
CLASSES = {"asyncio": STOCK, "gmploop": gmploop.Loop}
PUBLIC = sorted(name for name in dir(STOCK) if not name.startswith("_"))


# -- names and signatures

@pytest.mark.parametrize("name", PUBLIC)
def test_each_public_method_is_there_and_takes_what_stock_s_takes(name):
    stock, ours = getattr(STOCK, name), getattr(gmploop.Loop, name)
    if not callable(stock):
        return
    expected, found = inspect.signature(stock).parameters, inspect.signature(ours).parameters
    takes_anything = any(parameter.kind is parameter.VAR_KEYWORD for parameter in found.values())
    for parameter in expected.values():
        if parameter.name in found:
            mine = found[parameter.name]
            # what may be left out on stock may be left out here, and what goes by keyword there does here
            assert (mine.default is mine.empty) <= (parameter.default is parameter.empty), parameter
            assert parameter.kind is not parameter.KEYWORD_ONLY or mine.kind is not mine.POSITIONAL_ONLY, parameter
        else:
            assert takes_anything or parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL), parameter
    positional = [[p.name for p in side.values() if p.kind is p.POSITIONAL_OR_KEYWORD] for side in (expected, found)]
    assert positional[1][:len(positional[0])] == positional[0]


@pytest.mark.parametrize("name", PUBLIC)
def test_each_public_attribute_of_a_made_loop_is_there(name):
    stock, ours = STOCK(), gmploop.new_event_loop()
    try:
        value = getattr(ours, name)
        assert callable(value) == callable(getattr(stock, name))
    finally:
        stock.close()
        ours.close()


def test_attributes_can_be_set_as_on_stock(loop):
    for name, value in {"slow_callback_duration": 5.0, "anything": object()}.items():
        setattr(loop, name, value)
        assert getattr(loop, name) is value


def test_what_it_is_an_instance_of(loop):
    assert isinstance(loop, asyncio.AbstractEventLoop) and isinstance(loop, asyncio.BaseEventLoop)
    handle = loop.call_soon(int)
    assert isinstance(handle, asyncio.Handle)
    assert isinstance(loop.create_future(), asyncio.Future)
    handle.cancel()


def test_transports_are_instances_of_asyncio_s_classes(run, tls):
    async def main():
        for kind, near_class, far_class in (("tcp", asyncio.Transport, asyncio.Transport),
                                            ("unix", asyncio.Transport, asyncio.Transport),
                                            ("tls", asyncio.Transport, asyncio.Transport),
                                            ("pipe", asyncio.WriteTransport, asyncio.ReadTransport)):
            async with link(kind, tls) as (near, far):
                assert isinstance(near.transport, near_class) and isinstance(far.transport, far_class)
                assert near.transport.get_protocol() is near
        transport, protocol = await asyncio.get_running_loop().create_datagram_endpoint(
            Recorder, local_addr=("127.0.0.1", 0))
        if sys.version_info >= (3, 12):  # stock's was none before
            assert isinstance(transport, asyncio.DatagramTransport)
        transport.close()
        await protocol.lost
    run(main())


# -- subclasses

def test_a_subclass_with_a_clock_of_its_own(loop_kind):
    """A virtual clock: time stands still unless the loop would sleep, and years pass in no time."""
    class Virtual(CLASSES[loop_kind]):
        now = 1000.0

        def time(self):
            return self.now

    loop = Virtual()
    order = []

    async def clock():
        while True:
            await asyncio.sleep(0)
            loop.now += 50

    async def main():
        ticking = loop.create_task(clock())
        start = loop.time()
        loop.call_later(3_000, order.append, "third")
        loop.call_later(1_000, order.append, "first")
        loop.call_at(loop.time() + 2_000, order.append, "second")
        await asyncio.sleep(10_000)
        assert 10_000 <= loop.time() - start < 10_200
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(loop.create_future(), 5_000)
        ticking.cancel()
    loop.run_until_complete(main())
    loop.close()
    assert order == ["first", "second", "third"]


def test_a_subclass_may_override_and_extend(loop_kind):
    calls = []

    class Watching(CLASSES[loop_kind]):
        def __init__(self):
            super().__init__()
            self.extra = "own"

        def call_soon(self, callback, *args, context=None):
            calls.append("call_soon")
            return super().call_soon(callback, *args, context=context)

        def create_task(self, coro, **kwargs):
            calls.append("create_task")
            return super().create_task(coro, **kwargs)

        def call_exception_handler(self, context):
            calls.append("call_exception_handler")

        async def getaddrinfo(self, *args, **kwargs):
            calls.append("getaddrinfo")
            return await super().getaddrinfo(*args, **kwargs)

    loop = Watching()

    async def main():
        loop.call_soon(int)
        loop.call_soon(int, "x")
        await asyncio.create_task(turns(1))
        await loop.getaddrinfo("127.0.0.1", 80)
    loop.run_until_complete(main())
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    assert loop.extra == "own"
    assert set(calls) == {"call_soon", "create_task", "call_exception_handler", "getaddrinfo"}


# -- extra information and options

def test_the_socket_of_a_transport_is_real(run):
    async def main():
        for kind in "tcp", "unix":
            async with link(kind) as (near, far):
                sock = near.transport.get_extra_info("socket")
                assert sock.fileno() > 0 and sock.type == socket.SOCK_STREAM
                assert sock.getpeername() == far.transport.get_extra_info("sockname")
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 20_000)
                assert sock.getsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF) >= 20_000
                assert sock.gettimeout() == 0
                assert near.transport.get_extra_info("peername") == far.transport.get_extra_info("sockname")
                twin = sock.dup()
                twin.close()
            assert near.transport.get_extra_info("socket").fileno() == -1
            assert near.transport.get_extra_info("peername") == far.transport.get_extra_info("sockname")
    run(main())


def test_tcp_connections_have_no_delay(run):
    async def main():
        loop = asyncio.get_running_loop()
        made = []

        def factory():
            made.append(Recorder())
            return made[-1]
        server = await loop.create_server(factory, "127.0.0.1", 0)
        transport, protocol = await loop.create_connection(Recorder, *server.sockets[0].getsockname())
        transport.write(b"x")
        await turns(3)
        await made[0].received(1)
        for one in (transport, made[0].transport):
            assert one.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
        transport.close()
        await made[0].lost
        await protocol.lost
        server.close()
    run(main())


@pytest.mark.parametrize("option, value", [("reuse_address", "SO_REUSEADDR"), ("reuse_port", "SO_REUSEPORT"),
                                           ("keep_alive", "SO_KEEPALIVE")])
def test_server_options(run, option, value):
    if option == "keep_alive" and sys.version_info < (3, 13):
        pytest.skip("keep_alive came with Python 3.13")

    async def main():
        server = await asyncio.get_running_loop().create_server(Recorder, "127.0.0.1", 0, **{option: True})
        assert server.sockets[0].getsockopt(socket.SOL_SOCKET, getattr(socket, value))
        server.close()
    run(main())


# -- servers

async def clients_of(server, count):
    loop = asyncio.get_running_loop()
    return [(await loop.create_connection(Recorder, *server.sockets[0].getsockname()))[1] for _ in range(count)]


def test_the_life_of_a_server(run, loop):
    async def main():
        made = []

        def factory():
            made.append(Recorder())
            return made[-1]
        server = await loop.create_server(factory, "127.0.0.1", 0, start_serving=False)
        assert not server.is_serving() and server.get_loop() is loop
        await server.start_serving()
        await server.start_serving()
        assert server.is_serving()
        clients = await clients_of(server, 3)
        while len(made) < 3:
            await asyncio.sleep(0)
        server.close()
        assert not server.is_serving() and server.sockets == ()
        with pytest.raises(ConnectionRefusedError):
            await loop.create_connection(Recorder, *clients[0].transport.get_extra_info("peername"))
        clients[0].transport.write(b"connections live on")
        await made[0].received(19)
        for client in clients:
            client.transport.close()
        await server.wait_closed()
        for protocol in clients + made:
            await protocol.lost
    run(main())


def test_serve_forever_ends_with_a_cancel(run, loop):
    async def main():
        async with await loop.create_server(Recorder, "127.0.0.1", 0) as server:
            serving = loop.create_task(server.serve_forever())
            await settle()
            (client,) = await clients_of(server, 1)
            client.transport.close()
            await client.lost
            serving.cancel()
            with pytest.raises(asyncio.CancelledError):
                await serving
            assert not server.is_serving()
    run(main())


@pytest.mark.skipif(sys.version_info < (3, 13), reason="came with Python 3.13")
@pytest.mark.parametrize("how", ["close_clients", "abort_clients"])
def test_a_server_can_end_its_connections(run, loop, how):
    async def main():
        made = []

        def factory():
            made.append(Recorder())
            return made[-1]
        server = await loop.create_server(factory, "127.0.0.1", 0)
        clients = await clients_of(server, 3)
        while len(made) < 3:
            await asyncio.sleep(0)
        server.close()
        getattr(server, how)()
        for protocol in clients + made:
            await protocol.lost
        await asyncio.wait_for(server.wait_closed(), 3)
    run(main())


def test_a_burst_of_connections_is_served(run, loop):
    async def main():
        async def handler(reader, writer):
            writer.write(await reader.readline())
            writer.close()
            await writer.wait_closed()

        async def client(number):
            reader, writer = await asyncio.open_connection(*address)
            writer.write(b"%d\n" % number)
            assert await reader.read() == b"%d\n" % number
            writer.close()
            await writer.wait_closed()
        server = await asyncio.start_server(handler, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()
        await asyncio.gather(*map(client, range(90)))
        server.close()
        await server.wait_closed()
    run(main())


# -- sendfile

@pytest.fixture(params=["regular file", "file in memory"])
def a_file(request, tmp_path):
    data = bytes(range(256)) * 4000
    if request.param == "file in memory":
        yield io.BytesIO(data), data
        return
    (tmp_path / "file").write_bytes(data)
    with open(tmp_path / "file", "rb") as file:
        yield file, data


@pytest.mark.parametrize("offset, count", [(0, None), (1000, None), (0, 5000), (1000, 5000), (0, 10 ** 9)])
@pytest.mark.parametrize("kind", ["tcp", "unix", "tls", "sock_sendfile"])
def test_sendfile(run, loop, tls, a_file, kind, offset, count):
    file, data = a_file
    expected = data[offset:offset + count] if count else data[offset:]

    async def main():
        if kind == "sock_sendfile":
            near, far = tcp_pair()
            with near, far:
                sending = loop.create_task(loop.sock_sendfile(near, file, offset, count))
                received = b""
                while len(received) < len(expected):
                    received += await loop.sock_recv(far, 1 << 20)
                assert await sending == len(expected) and received == expected
        else:
            async with link(kind, tls) as (near, far):
                near.transport.write(b"before")
                sent = await loop.sendfile(near.transport, file, offset, count)
                near.transport.write(b"after")
                await far.received(len(expected) + 11)
                assert sent == len(expected) and far.data == b"before" + expected + b"after"
        assert file.tell() == offset + len(expected)
    run(main())


# -- start_tls

def test_start_tls_between_protocols(run, loop, tls):
    async def main():
        one, two = tcp_pair()
        (near, near_protocol), (far, far_protocol) = await asyncio.gather(
            loop.create_connection(Recorder, sock=one), loop.connect_accepted_socket(Recorder, two))
        near.write(b"plain")
        await far_protocol.received(5)
        near_protocol.transport, far_protocol.transport = await asyncio.gather(
            loop.start_tls(near, near_protocol, tls.client, server_hostname="localhost"),
            loop.start_tls(far, far_protocol, tls.server, server_side=True))
        near_protocol.transport.write(b"secret" * 100_000)
        await far_protocol.received(600_005)
        assert far_protocol.data == b"plain" + b"secret" * 100_000
        assert near_protocol.transport.get_extra_info("cipher")
        near_protocol.transport.close()
        await near_protocol.lost
        await far_protocol.lost
    run(main())


# -- shutdown

def test_shutdown_asyncgens_closes_those_that_are_open(loop_factory):
    loop, closed = loop_factory(), []

    async def generator(number):
        try:
            yield number
        finally:
            await asyncio.sleep(0)
            closed.append(number)

    async def main():
        kept.extend(generator(number) for number in range(3))
        for one in kept:
            await one.__anext__()
    kept = []
    loop.run_until_complete(main())
    loop.run_until_complete(loop.shutdown_asyncgens())
    assert sorted(closed) == [0, 1, 2]


def test_shutdown_default_executor_waits_for_its_threads(loop):
    done = []

    def work():
        time.sleep(0.05)
        done.append(1)
    loop.run_in_executor(None, work)
    loop.run_until_complete(loop.shutdown_default_executor())
    assert done == [1]
    with pytest.raises(RuntimeError):
        loop.run_in_executor(None, int)


def test_asyncio_runner_and_run(loop_kind):
    factory = CLASSES[loop_kind]
    with asyncio.Runner(loop_factory=factory) as runner:
        assert runner.run(asyncio.sleep(0, "result")) == "result"
        assert runner.run(asyncio.sleep(0, "again")) == "again"
        assert isinstance(runner.get_loop(), factory)
    if sys.version_info >= (3, 12):
        assert asyncio.run(asyncio.sleep(0, "run"), loop_factory=factory) == "run"


@pytest.mark.skipif(sys.version_info < (3, 12), reason="eager tasks came with Python 3.12")
def test_eager_tasks(run, loop):
    loop.set_task_factory(asyncio.eager_task_factory)

    async def main():
        ran = []

        async def work():
            ran.append(asyncio.current_task())
            return "done"
        task = loop.create_task(work())
        assert task.done() and task.result() == "done" and ran == [task]
        assert asyncio.current_task() is not task
        waiting = loop.create_task(asyncio.sleep(0.001, "later"))
        assert not waiting.done() and await waiting == "later"
    run(main())


def test_pipes_carry_data_and_end(run, loop):
    async def main():
        source, sink = os.pipe()
        reader = asyncio.StreamReader()
        transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), open(source, "rb", 0))
        writer, protocol = await loop.connect_write_pipe(Recorder, open(sink, "wb", 0))
        writer.write(b"line\n" * 50_000)
        writer.write_eof()
        assert await reader.read() == b"line\n" * 50_000
        await protocol.lost
        transport.close()
        await settle()
    run(main())


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_sock_calls(run, loop, kind):
    async def main():
        near, far = tcp_pair() if kind == "tcp" else unix_pair()
        with near, far:
            buffer = bytearray(10)
            receiving = loop.create_task(loop.sock_recv(far, 100))
            await turns(1)
            await loop.sock_sendall(near, b"hello")
            assert await receiving == b"hello"
            receiving = loop.create_task(loop.sock_recv_into(far, buffer))
            await loop.sock_sendall(near, memoryview(b"into"))
            assert await receiving == 4 and buffer[:4] == b"into"
            both = await asyncio.gather(loop.sock_sendall(near, b"a" * 1_000_000), receive_all(loop, far, 1_000_000),
                                        loop.sock_sendall(far, b"b" * 1_000_000), receive_all(loop, near, 1_000_000))
            assert both[1] == b"a" * 1_000_000 and both[3] == b"b" * 1_000_000
            near.close()
            assert await loop.sock_recv(far, 10) == b""
    run(main())


async def receive_all(loop, sock, count):
    received = b""
    while len(received) < count:
        received += await loop.sock_recv(sock, 1 << 16)
    return received


def test_sock_calls_of_datagrams(run, loop):
    async def main():
        with socket.socket(type=socket.SOCK_DGRAM) as near, socket.socket(type=socket.SOCK_DGRAM) as far:
            for sock in near, far:
                sock.setblocking(False)
                sock.bind(("127.0.0.1", 0))
            receiving = loop.create_task(loop.sock_recvfrom(far, 100))
            await turns(1)
            assert await loop.sock_sendto(near, b"hello", far.getsockname()) == 5
            assert await receiving == (b"hello", near.getsockname())
            buffer = bytearray(10)
            await loop.sock_sendto(near, b"into", far.getsockname())
            assert await loop.sock_recvfrom_into(far, buffer) == (4, near.getsockname())
            assert buffer[:4] == b"into"
    run(main())
