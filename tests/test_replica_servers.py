"""Servers of replicas: one listening socket for each address, and who gets the connections."""

import asyncio
import collections
import contextvars
import os
import socket
import threading

import pytest

from gmploop import replicas, sharing
from replicating import N, Together, run

pytestmark = pytest.mark.timeout(30)
variable = contextvars.ContextVar("variable")


class Answer(asyncio.Protocol):
    """Tells each client who answers, and lets it stay."""

    def connection_made(self, transport):
        transport.write(b"%d\n" % replicas.index())


async def close(server):
    """Close the server and wait until its clients have gone (which wait_closed() does from Python 3.12 on)."""
    server.close()
    while sharing.current().open:
        await asyncio.sleep(0.001)


def start_tcp(host=None, port=None, **options):
    return asyncio.get_running_loop().create_server(Answer, host, port, **options)


def start_unix(path, **options):
    return asyncio.get_running_loop().create_unix_server(Answer, path, **options)


class Clients:
    """Connections of one replica to the shared server; each is kept until the end, and counted by who answered."""

    def __init__(self, connect):
        self.connect = connect
        self.writers = []

    async def more(self, count):
        answers = collections.Counter()
        for _ in range(count):
            reader, writer = await self.connect()
            self.writers.append(writer)
            answers[int(await reader.readline())] += 1
        return answers

    def close(self):
        for writer in self.writers:
            writer.close()


KINDS = ["port 0", "fixed port", "several hosts", "unix", "socket", "unix socket", "tls"]


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


@pytest.fixture
def place(kind, tmp_path, tls):
    """-> (arguments of a server, how a client connects to it, given the server)."""
    path = str(tmp_path / "socket")
    if kind == "unix":
        return lambda: {"path": path}, lambda server: asyncio.open_unix_connection(path)
    options, connecting = {}, {}
    sock = None
    if kind in ("socket", "unix socket"):
        sock = socket.socket(socket.AF_UNIX if kind == "unix socket" else socket.AF_INET)
        sock.bind(path if kind == "unix socket" else ("127.0.0.1", 0))
        options = {"sock": sock}
    elif kind == "fixed port":
        with socket.create_server(("127.0.0.1", 0)) as other:
            options = {"host": "127.0.0.1", "port": other.getsockname()[1]}
    elif kind == "several hosts":
        options = {"host": ["127.0.0.1", "127.0.0.2"], "port": 0}
    else:
        options = {"host": "127.0.0.1", "port": 0}
    if kind == "tls":
        options["ssl"], connecting = tls.server, {"ssl": tls.client, "server_hostname": "localhost"}

    def connect(server):
        if kind == "unix socket":
            return asyncio.open_unix_connection(path)
        host, port = server.sockets[0].getsockname()
        return asyncio.open_connection(host, port, **connecting)
    return lambda: options, connect


def start(options):
    return (start_unix if "path" in options else start_tcp)(**options)


def test_one_socket_for_all_and_connections_dealt_evenly(place):
    options, connect = place
    together = Together()

    async def main():
        server = await start(options())
        together.shared["names"].append([sock.getsockname() for sock in server.sockets])
        together.meet()
        answers = None
        if replicas.index() == 0:
            clients = Clients(lambda: connect(server))
            answers = await clients.more(64)
            clients.close()
        while together.barrier.n_waiting < (N - 1 if replicas.index() == 0 else 0):
            await asyncio.sleep(0.001)
        if replicas.index() == 0:
            together.meet()
        else:
            await asyncio.to_thread(together.meet)      # goes on serving
        await close(server)
        return answers

    answers = run(main)[0]
    assert len({str(sorted(names)) for names in together.shared["names"]}) == 1
    assert set(answers) == set(range(N)) and sum(answers.values()) == 64
    assert max(answers.values()) <= 1.2 * min(answers.values())
    sock = options().get("sock")
    assert sock is None or sock.fileno() == -1      # the server owned it, as on stock


def serve_then(scenario, count=2, **options):
    """Replica 0 runs scenario(its server, the others' servers by index) while the others serve; returns its result."""
    together, done, servers = Together(count), [], {}

    async def main():
        index, loop = replicas.index(), asyncio.get_running_loop()
        server = await start({"host": "127.0.0.1", "port": 0, **options})
        servers[index] = loop, server
        over = asyncio.Event()
        done.append((loop, over))
        together.meet()
        if index:
            await over.wait()
        else:
            try:
                return await scenario(server, servers)
            finally:
                for other, event in done:
                    other.call_soon_threadsafe(event.set)
                await close(server)
        await close(server)

    return run(main, count)[0]


def connecting(server):
    address = server.sockets[0].getsockname()
    return Clients(lambda: asyncio.open_connection(*address))


def test_the_replica_with_fewer_connections_gets_the_next():
    async def scenario(server, servers):
        clients = connecting(server)
        first = await clients.more(8)
        assert first == {0: 4, 1: 4}
        # those of replica 0 end; the next go there until both have four again
        held, gone = clients.writers[1::2], clients.writers[0::2]
        for writer in gone:
            writer.close()
        replica = sharing.current()
        while replica.open not in (0, 4) or min(r.open for r in replica.run.replicas):
            await asyncio.sleep(0.001)
        load = {r.index: r.open for r in replica.run.replicas}
        again = await clients.more(4)
        clients.close()
        assert len(held) == 4
        return load, again

    load, again = serve_then(scenario)
    idle = min(load, key=load.get)
    assert sorted(load.values()) == [0, 4] and again == {idle: 4}


def call_in(loop, function):
    """function() in the other replica's loop."""
    async def call():
        return function()
    return asyncio.wrap_future(asyncio.run_coroutine_threadsafe(call(), loop))


def test_closing_one_server_leaves_the_others_serving():
    async def scenario(server, servers):
        clients = connecting(server)
        loop, other = servers[1]
        await call_in(loop, other.close)
        answers = await clients.more(6)
        clients.close()
        server.close()
        with pytest.raises(ConnectionRefusedError):     # the last one closes the address
            await clients.more(1)
        return answers

    assert serve_then(scenario) == {0: 6}


def test_connections_dealt_to_a_server_that_closes_go_to_the_others():
    async def scenario(server, servers):
        clients = connecting(server)
        loop, other = servers[1]
        blocked, go = threading.Event(), threading.Event()

        def block_then_close():
            blocked.set()
            assert go.wait(10)
            other.close()

        closing = call_in(loop, block_then_close)
        await asyncio.to_thread(blocked.wait, 10)
        waiting = [asyncio.ensure_future(Clients(clients.connect).more(1)) for _ in range(6)]
        stuck = sharing.current().run.replicas[1]
        while stuck.waiting < 3:
            await asyncio.sleep(0.001)
        go.set()
        await closing
        return sum(await asyncio.gather(*waiting), collections.Counter())

    assert serve_then(scenario) == {0: 6}


def test_an_address_can_be_closed_and_served_again():
    async def scenario(server, servers):
        host, port = server.sockets[0].getsockname()
        for turn in range(3):
            server.close()
            if turn == 1:
                loop, other = servers[1]
                await call_in(loop, other.close)        # and now by nobody
            server = await start_tcp(host, port)
            clients = connecting(server)
            answers = await clients.more(2)
            clients.close()
            assert answers == ({0: 1, 1: 1} if turn == 0 else {0: 2})
        with pytest.raises(OSError, match="already in use"):
            await start_tcp(host, port)
        server.close()

    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
    serve_then(scenario, port=port)


def test_port_0_is_shared_in_the_order_in_which_it_is_asked_for():
    together = Together()

    async def main():
        servers = [await start_tcp("127.0.0.1", 0) for _ in range(3)]
        ports = [server.sockets[0].getsockname()[1] for server in servers]
        together.meet()
        return ports

    first, *others = run(main)
    assert len(set(first)) == 3 and all(ports == first for ports in others)


def test_a_unix_socket_is_removed_as_asyncio_does_but_not_before_the_last_server_is_closed(tmp_path):
    path = str(tmp_path / "socket")
    together = Together(2)

    async def main():
        server = await start_unix(path)
        together.meet()
        if replicas.index() == 0:
            server.close()
        together.meet()
        exists = os.path.exists(path)
        together.meet()
        server.close()
        return exists

    assert run(main, 2) == [True, True]
    loop = asyncio.SelectorEventLoop()
    loop.run_until_complete(asyncio.wait_for(close_unix(str(tmp_path / "stock")), 5))
    loop.close()
    assert os.path.exists(path) == os.path.exists(tmp_path / "stock")


async def close_unix(path):
    (await start_unix(path)).close()


def test_an_address_that_cannot_be_bound():
    with socket.create_server(("127.0.0.1", 0)) as other:
        async def main():
            with pytest.raises(OSError, match="already in use"):
                await start_tcp(*other.getsockname())
        run(main)

    async def main():
        loop = asyncio.get_running_loop()
        with pytest.raises(TypeError, match="ssl argument"):
            await loop.create_server(asyncio.Protocol, "127.0.0.1", 0, ssl=True)
        with pytest.raises(ValueError, match="Neither host/port nor sock"):
            await loop.create_server(asyncio.Protocol)
        with pytest.raises(ValueError, match="can not be specified at the same time"):
            await loop.create_server(asyncio.Protocol, "127.0.0.1", 0, sock=socket.socket)
    run(main)


def test_servers_that_do_not_serve_yet_get_nothing():
    async def scenario(server, servers):
        late = await start_tcp("127.0.0.1", 0, start_serving=False)
        assert not late.is_serving()
        clients = connecting(late)
        with pytest.raises(ConnectionRefusedError):
            await clients.more(1)
        await late.start_serving()
        answers = await clients.more(2)
        late.close()
        clients.close()
        return answers

    assert serve_then(scenario) == {0: 2}


def test_connections_see_the_context_in_which_their_replicas_server_was_made():
    together, seen = Together(2), []

    class Protocol(Answer):
        def connection_made(self, transport):
            seen.append((variable.get(None), replicas.index()))
            super().connection_made(transport)

    async def main():
        variable.set(replicas.index())
        server = await asyncio.get_running_loop().create_server(Protocol, "127.0.0.1", 0)
        variable.set("later")
        together.meet()
        if replicas.index() == 0:
            clients = connecting(server)
            assert await clients.more(6) == {0: 3, 1: 3}
            clients.close()
            together.shared["over"].append(True)
        while not together.shared["over"]:
            await asyncio.sleep(0.001)
        await close(server)

    run(main, 2)
    assert sorted(seen) == [(0, 0)] * 3 + [(1, 1)] * 3
