"""What is done with is let go of: at once where nothing needs it, and in any case before it adds up."""

import asyncio
import contextlib
import contextvars
import gc
import os
import signal
import socket
import sys
import weakref

import pytest

from support import LOOPS, Recorder, finish, link, tcp_pair, turns, unix_pair

pytestmark = pytest.mark.timeout(60)


class Payload:
    """Stands for a callback or an argument."""

    def __init__(self, alive):
        self.finalizer = weakref.finalize(self, alive.discard, id(self))
        alive.add(id(self))

    def __call__(self, *args):
        pass


# -- handles

WAYS = {
    "call_later": lambda loop, callback, arg: loop.call_later(100, callback, arg),
    "call_at": lambda loop, callback, arg: loop.call_at(loop.time() + 100, callback, arg),
    "call_soon": lambda loop, callback, arg: loop.call_soon(callback, arg),
    "call_soon_threadsafe": lambda loop, callback, arg: loop.call_soon_threadsafe(callback, arg),
}


@pytest.mark.parametrize("keep", [False, True], ids=["handle dropped", "handle kept"])
@pytest.mark.parametrize("way", WAYS)
def test_cancelling_lets_go_of_callback_and_arguments_at_once(loop, no_gc, way, keep):
    alive, kept = set(), []
    for _ in range(2000):
        handle = WAYS[way](loop, Payload(alive), Payload(alive))
        handle.cancel()
        if keep:
            kept.append(handle)
        assert not alive
    loop.run_until_complete(turns(2))


@pytest.mark.parametrize("keep", [False, True], ids=["handles dropped", "handles kept"])
@pytest.mark.parametrize("way", ["call_later", "call_soon", "call_soon_threadsafe"])
def test_having_run_lets_go_of_callback_and_arguments(loop, no_gc, way, keep):
    """A handle that its user keeps keeps its callback on stock; one that nobody keeps keeps nothing."""
    alive, kept = set(), []
    for _ in range(2000):
        handle = loop.call_later(0, Payload(alive), Payload(alive)) if way == "call_later" else \
            WAYS[way](loop, Payload(alive), Payload(alive))
        if keep:
            kept.append(handle)
    del handle
    loop.call_later(0.005, loop.stop)
    loop.run_forever()
    kept.clear()
    assert not alive


def test_ten_thousand_timers_leave_their_context_as_it_was(loop, no_gc):
    context = contextvars.copy_context()
    before = sys.getrefcount(context)
    for number in range(10_000):
        handle = loop.call_later(0 if number % 2 else 100, int, context=context)
        if not number % 2:
            handle.cancel()
    del handle
    loop.run_until_complete(asyncio.sleep(0.002))
    loop.run_until_complete(turns(3))
    assert sys.getrefcount(context) <= before + 200  # stock sweeps cancelled timers when they are a hundred


def test_timers_cancelled_out_of_order_do_not_pile_up(loop):
    """A server that sets a long timeout per request and cancels it: the memory stays that of the living timers."""
    async def main():
        kept = [loop.call_later(50 + number, int) for number in range(50)]
        for _ in range(20):
            for handle in [loop.call_later(100, int) for _ in range(1000)]:
                handle.cancel()
            await asyncio.sleep(0)
        gc.collect()
        handles = sum(isinstance(thing, asyncio.Handle) for thing in gc.get_objects())
        for handle in kept:
            handle.cancel()
        assert handles < 5000
    loop.run_until_complete(main())


def test_closing_a_loop_lets_go_of_what_was_scheduled(loop_kind):
    alive = set()
    loop = LOOPS[loop_kind]()
    loop.call_soon(Payload(alive), Payload(alive))
    loop.call_later(100, Payload(alive), Payload(alive))
    loop.call_soon_threadsafe(Payload(alive))
    source, sink = os.pipe()
    loop.add_reader(source, Payload(alive))
    loop.remove_reader(source)
    loop.close()
    os.close(source)
    os.close(sink)
    del loop
    gc.collect()
    assert not alive


def test_a_loop_can_be_freed(loop_kind):
    for ran in (False, True):
        loop = LOOPS[loop_kind]()
        reference = weakref.ref(loop)
        if ran:
            loop.run_until_complete(loop.run_in_executor(None, int))
            loop.run_until_complete(asyncio.sleep(0.001))
        finish(loop)
        del loop
        gc.collect()
        assert reference() is None


@pytest.mark.parametrize("side", ["reader", "writer"])
def test_watchers_let_go_of_replaced_and_removed_callbacks(loop, no_gc, side):
    alive = set()
    near, far = unix_pair()
    add, remove = getattr(loop, f"add_{side}"), getattr(loop, f"remove_{side}")
    with near, far:
        for _ in range(100):
            add(near, Payload(alive), Payload(alive))
            assert len(alive) == 2
        assert remove(near)
        assert not alive


def test_signal_handlers_let_go_of_replaced_and_removed_callbacks(loop, no_gc):
    alive = set()
    for _ in range(10):
        loop.add_signal_handler(signal.SIGUSR1, Payload(alive))
        assert len(alive) == 1
    loop.remove_signal_handler(signal.SIGUSR1)
    assert not alive


# -- transports

@pytest.mark.stock_fault("a socket transport refers to a method of its own", ((3, 11), (3, 14)), kind=("tcp", "unix"))
@pytest.mark.parametrize("kind", ["tcp", "unix", "pipe"])
def test_a_closed_connection_is_freed_without_the_collector(run, no_gc, kind):
    async def main():
        for _ in range(20):
            async with link(kind) as (near, far):
                near.transport.write(b"x" * 100)
                await far.received(100)
                references = [weakref.ref(thing) for end in (near, far) for thing in (end, end.transport)]
            await turns(3)
            del near, far
            await turns(1)
            assert [reference() for reference in references] == [None] * 4
    run(main())


def test_a_closed_datagram_endpoint_is_freed_without_the_collector(run, no_gc):
    async def main():
        transport, protocol = await asyncio.get_running_loop().create_datagram_endpoint(
            Recorder, local_addr=("127.0.0.1", 0))
        references = [weakref.ref(transport), weakref.ref(protocol)]
        transport.close()
        await protocol.lost
        del transport, protocol
        await turns(2)
        assert [reference() for reference in references] == [None] * 2
    run(main())


@pytest.mark.stock_fault("python/cpython#109534: the exception keeps the TLS protocol and its read buffer",
                         ((3, 11), (3, 13)))
def test_failed_handshakes_leave_nothing_behind(run, tls, no_gc):
    """A TLS port scanned by bots that speak plain text."""
    alive = set()

    class Watched(asyncio.Protocol):
        def __init__(self):
            alive.add(id(self))
            weakref.finalize(self, alive.discard, id(self))

    def living():
        return sum("SSLProtocol" in type(thing).__name__ for thing in gc.get_objects())

    async def main():
        loop = asyncio.get_running_loop()
        loop.set_debug(False)  # in debug mode each failure is reported, and the report kept
        server = await loop.create_server(Watched, "127.0.0.1", 0, ssl=tls.server)
        address = server.sockets[0].getsockname()

        async def scan():
            with socket.create_connection(address) as sock:
                sock.setblocking(False)
                await loop.sock_sendall(sock, b"GET / HTTP/1.0\r\n\r\n")
                with contextlib.suppress(ConnectionError):
                    while await loop.sock_recv(sock, 1000):
                        pass
            await turns(2)
        for _ in range(20):
            await scan()
        before = resident()
        for _ in range(200):
            await scan()
        await turns(5)
        assert len(alive) < 10
        assert living() < 10
        assert resident() - before < 10_000_000
        server.close()
    run(main(), timeout=20)


# -- nothing adds up

def living_things():
    """The number of memory blocks. Without a GIL they are freed late, so there it is the number of objects."""
    gc.collect()
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    return sys.getallocatedblocks() if gil else len(gc.get_objects())


async def connect(kind, tls=None):
    async with link(kind, tls) as (near, far):
        near.transport.write(b"x" * 1000)
        await far.received(1000)


async def refused(loop):
    with socket.create_server(("127.0.0.1", 0)) as server:
        address = server.getsockname()
    with contextlib.suppress(ConnectionRefusedError):
        await loop.create_connection(Recorder, *address)


async def cancelled_recv(loop):
    near, far = unix_pair()
    with near, far:
        task = loop.create_task(loop.sock_recv(near, 100))
        await turns(2)
        task.cancel()
        await asyncio.wait([task])


async def sock_calls(loop):
    near, far = tcp_pair()
    with near, far:
        await loop.sock_sendall(near, b"x" * 100)
        await loop.sock_recv(far, 100)
        await loop.sock_sendall(far, b"x" * 100)
        await loop.sock_recv_into(near, bytearray(100))


async def accepting(loop):
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.setblocking(False)
        with socket.socket() as client:
            client.setblocking(False)
            await loop.sock_connect(client, server.getsockname())
            (await loop.sock_accept(server))[0].close()


async def timing_out(loop):
    with contextlib.suppress(TimeoutError):
        await asyncio.wait_for(loop.create_future(), 0.00001)
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(0.00001):
            await loop.create_future()


async def watching(loop):
    near, far = unix_pair()
    with near, far:
        future = loop.create_future()
        loop.add_reader(near, future.set_result, None)
        loop.add_writer(near, int)
        far.send(b"x")
        await future
        loop.remove_reader(near)
        loop.remove_writer(near)


async def streams(loop):
    server = await asyncio.start_server(lambda reader, writer: writer.close(), "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
    await reader.read()
    writer.close()
    await writer.wait_closed()
    server.close()


async def endpoint(loop):
    transport, protocol = await loop.create_datagram_endpoint(Recorder, local_addr=("127.0.0.1", 0))
    transport.sendto(b"x" * 100, transport.get_extra_info("sockname"))
    await protocol.received(100)
    transport.close()
    await protocol.lost


async def generator_dropped(loop):
    async def generator():
        yield 1
        yield 2
    async for _ in generator():
        break
    await turns(3)


async def callbacks(loop):
    loop.call_soon(int)
    loop.call_soon(int).cancel()
    loop.call_later(0, int)
    loop.call_later(10, int).cancel()
    loop.call_soon_threadsafe(int)
    await turns(2)


async def tasks(loop):
    await asyncio.gather(asyncio.sleep(0), asyncio.sleep(0), return_exceptions=True)
    task = loop.create_task(asyncio.sleep(10))
    await turns(1)
    task.cancel()
    await asyncio.wait([task])


def resident():
    """Bytes of memory that the process has."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


WORKLOADS = {
    "callbacks": (callbacks, 2000), "tasks": (tasks, 1000), "timeouts": (timing_out, 300),
    "executor": (lambda loop: loop.run_in_executor(None, int), 500),
    "getaddrinfo": (lambda loop: loop.getaddrinfo("127.0.0.1", 80), 500),
    "sock calls": (sock_calls, 200), "sock_accept": (accepting, 200), "cancelled sock_recv": (cancelled_recv, 300),
    "watchers": (watching, 300), "streams": (streams, 100), "refused": (refused, 200), "datagrams": (endpoint, 200),
    "tcp": (lambda loop: connect("tcp"), 150), "unix": (lambda loop: connect("unix"), 150),
    "pipe": (lambda loop: connect("pipe"), 150), "dropped generators": (generator_dropped, 500),
}


@pytest.mark.parametrize("work", WORKLOADS)
def test_nothing_adds_up_however_often_it_is_done(run, loop, work):
    """What lives after many rounds is what lives after a few."""
    function, count = WORKLOADS[work]

    async def batch(count):
        for _ in range(count):
            await function(loop)
        await turns(5)
        return living_things()

    async def main():
        await batch(count // 4)
        growth = []
        for _ in range(5):
            before = await batch(5)
            growth.append((await batch(count) - before) / count)
            if growth[-1] < 0.6:  # what is really left behind is at least one a round
                return
        raise AssertionError(f"blocks left behind a round: {growth}")
    run(main(), timeout=40)


@pytest.mark.parametrize("count", [50, pytest.param(100_000, marks=[pytest.mark.long, pytest.mark.timeout(1200)])])
def test_tls_connections_do_not_add_up(run, loop, tls, count):
    async def batch(count):
        for _ in range(count):
            await connect("tls", tls)
        await turns(5)
        return living_things()

    async def main():
        await batch(count // 3)
        size = resident()
        for _ in range(3):
            before = await batch(5)
            if await batch(count) - before < 100:
                break
        else:
            raise AssertionError("memory blocks are left behind")
        assert resident() - size < 16 << 20      # OpenSSL's own, too
    run(main(), timeout=1100)


def test_loops_made_and_closed_do_not_add_up(loop_kind):
    def batch(count):
        for _ in range(count):
            loop = LOOPS[loop_kind]()
            loop.run_until_complete(callbacks(loop))
            loop.close()
        return living_things()
    batch(20)
    for _ in range(3):
        before = batch(5)
        if (batch(100) - before) / 100 < 0.5:
            return
    raise AssertionError("memory blocks are left behind")
