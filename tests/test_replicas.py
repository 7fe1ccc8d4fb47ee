"""gmploop.run(main, replicas=N): N worlds in as many threads, one listening socket per address, signals for all."""

import asyncio
import collections
import contextvars
import logging
import os
import signal
import socket
import threading

import pytest

import gmploop
import support
from gmploop import config, replicas, sharing

pytestmark = pytest.mark.timeout(30)
N = 3
variable = contextvars.ContextVar("variable")


class Together:
    """Where replicas wait for each other, and what they tell the test."""

    def __init__(self, count=N):
        self.barrier = threading.Barrier(count)
        self.shared = collections.defaultdict(list)

    def meet(self):
        self.barrier.wait(10)


def run(main, count=N, **options):
    return gmploop.run(main, replicas=count, **options)


# -- running and ending

def test_each_has_a_thread_and_a_loop_of_its_own_and_results_come_in_order():
    together, loops = Together(), set()

    async def main():
        together.meet()         # only if all run at once
        loops.add(asyncio.get_running_loop())
        assert isinstance(asyncio.get_running_loop(), gmploop.Loop)
        await asyncio.sleep(0.01 * (N - replicas.index()))
        return replicas.index(), threading.get_ident()

    results = run(main)
    assert [index for index, _ in results] == list(range(N))
    assert results[0][1] == threading.get_ident()
    assert len({thread for _, thread in results}) == len(loops) == N
    assert all(loop.is_closed() for loop in loops)
    assert replicas.index() is None
    assert run(alone, 1) == [7]


async def alone():
    return 7


def test_inherit_context_and_debug_mode():
    variable.set("ours")

    async def main():
        seen = variable.get()
        variable.set(replicas.index())
        await asyncio.sleep(0.01)
        return seen, variable.get(), asyncio.get_running_loop().get_debug()

    assert run(main, debug=True) == [("ours", i, True) for i in range(N)]
    assert variable.get() == "ours"


def test_asks_for_a_coroutine_function_and_a_number():
    coroutine = alone()
    with pytest.raises(TypeError, match="coroutine function itself"):
        gmploop.run(coroutine, replicas=2)
    with pytest.raises(TypeError, match="coroutine function, not 7"):
        gmploop.run(7, replicas=2)
    for bad, error in ((0, ValueError), (-1, ValueError), ("2", TypeError), (2.0, TypeError), (True, TypeError)):
        with pytest.raises(error, match="replicas takes a number from 1 on"):
            gmploop.run(alone, replicas=bad)

    async def nested():
        with pytest.raises(RuntimeError, match="running event loop"):
            gmploop.run(alone, replicas=2)
    gmploop.run(nested())


@pytest.mark.parametrize("who", range(N))
@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit, asyncio.CancelledError])
def test_a_crash_cancels_the_others_and_is_raised(who, error, caplog):
    together, ended = Together(), []

    async def main():
        together.meet()
        if replicas.index() == who:
            raise error("ours")
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(replicas.index())

    with pytest.raises(error, match="ours") as raised:
        run(main)
    assert sorted(ended) == [i for i in range(N) if i != who]
    assert raised.traceback[-1].name == "main"
    told = [record.getMessage() for record in caplog.records if record.name == "gmploop"]
    assert bool(told) == (error is not SystemExit) and all(f"replica {who} of {N} ended" in line for line in told)


def test_what_else_failed_is_logged(caplog):
    together = Together(2)

    async def main():
        together.meet()
        if replicas.index() == 1:
            raise ZeroDivisionError
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise KeyError("second") from None

    with pytest.raises(ZeroDivisionError):
        run(main, 2)
    [last] = [record for record in caplog.records if record.exc_info]
    assert last.exc_info[0] is KeyError and last.levelno == logging.ERROR


def test_a_replica_that_will_not_end_after_a_crash_is_shown_and_left_behind(caplog, monkeypatch):
    monkeypatch.setattr(config, "REPLICAS_END_S", 0.2)
    together, release = Together(2), threading.Event()

    def stuck_here():
        together.meet()
        release.wait(20)

    async def main():
        if replicas.index() == 1:
            stuck_here()
        else:
            together.meet()
            raise ZeroDivisionError

    before = set(threading.enumerate())
    with pytest.raises(ZeroDivisionError):
        run(main, 2)
    assert any("replica 1 has not ended" in r.getMessage() and "stuck_here" in r.getMessage() for r in caplog.records)
    release.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(10)


def test_runs_on_any_thread(in_thread):
    results = []
    in_thread(lambda: results.append(run(alone, 2))).join(10)
    assert results == [[7, 7]]


def test_what_a_replica_leaves_open_is_closed():
    together = Together(2)

    async def main():
        server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
        together.meet()
        return server.sockets[0].getsockname()

    [address, other] = run(main, 2)
    assert address == other
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)


# -- signals

def test_a_signal_reaches_every_replica_that_handles_it():
    together, got = Together(), collections.Counter()

    async def main():
        loop, here = asyncio.get_running_loop(), asyncio.Event()

        def handle(word):
            assert asyncio.get_running_loop() is loop
            got[word, replicas.index()] += 1
            here.set()

        loop.add_signal_handler(signal.SIGUSR1, handle, "one")
        together.meet()
        if replicas.index() == 1:
            os.kill(os.getpid(), signal.SIGUSR1)
        await here.wait()
        together.meet()
        here.clear()
        if replicas.index() == 2:
            assert loop.remove_signal_handler(signal.SIGUSR1) is True
            assert loop.remove_signal_handler(signal.SIGUSR1) is False
        together.meet()
        if replicas.index() == 0:
            os.kill(os.getpid(), signal.SIGUSR1)
        if replicas.index() != 2:
            await here.wait()

    before = {sig: signal.getsignal(sig) for sig in (signal.SIGUSR1, signal.SIGINT, signal.SIGURG)}
    run(main)
    assert got == {("one", 0): 2, ("one", 1): 2, ("one", 2): 1}
    assert {sig: signal.getsignal(sig) for sig in before} == before
    assert signal.set_wakeup_fd(-1) == -1


def test_handlers_are_set_while_the_main_thread_is_busy_or_gone():
    """A replica's add_signal_handler() does not wait for the main thread's loop."""
    together = Together(2)

    async def main():
        loop, here = asyncio.get_running_loop(), asyncio.Event()
        if replicas.index() == 0:
            together.meet()
            together.meet()             # blocks the main thread's loop meanwhile
            return
        together.meet()
        loop.add_signal_handler(signal.SIGUSR1, here.set)
        together.meet()
        first = sharing.current().run.replicas[0]
        await asyncio.wrap_future(first.ended)
        os.kill(os.getpid(), signal.SIGUSR1)
        await here.wait()

    run(main, 2)


def test_signal_errors_are_asyncios():
    async def main():
        loop = asyncio.get_running_loop()
        with pytest.raises(RuntimeError, match="cannot be caught"):
            loop.add_signal_handler(signal.SIGKILL, print)
        with pytest.raises(TypeError, match="coroutines cannot be used"):
            loop.add_signal_handler(signal.SIGUSR1, alone)
        with pytest.raises(TypeError):
            loop.add_signal_handler("SIGUSR1", print)
        with pytest.raises(ValueError):
            loop.add_signal_handler(12345, print)
        with pytest.raises(ValueError):
            loop.remove_signal_handler(12345)
        assert not loop._signal_handlers

    run(main)


def test_outside_a_run_only_the_main_thread_handles_signals(same_as_stock):
    async def scenario(loop):
        def elsewhere():
            other = type(loop)()
            try:
                return support.result_of(other.add_signal_handler, signal.SIGUSR1, print)
            finally:
                other.close()
        return await asyncio.to_thread(elsewhere)

    assert same_as_stock(scenario) is RuntimeError


def test_ctrl_c_cancels_all_replicas():
    """The signal may come anywhere; KeyboardInterrupt comes once all have ended."""
    together, ended = Together(), []

    async def main():
        together.meet()
        if replicas.index() == 1:
            os.kill(os.getpid(), signal.SIGINT)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append(replicas.index())
            raise

    with pytest.raises(KeyboardInterrupt):
        run(main)
    assert sorted(ended) == list(range(N))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_that_every_replica_survives():
    async def main():
        if replicas.index() == 0:
            os.kill(os.getpid(), signal.SIGINT)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "survived"

    assert run(main) == ["survived"] * N


# -- servers

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

    class Protocol(asyncio.Protocol):
        def connection_made(self, transport):
            seen.append((variable.get(None), replicas.index()))
            transport.close()

    async def main():
        variable.set(replicas.index())
        server = await asyncio.get_running_loop().create_server(Protocol, "127.0.0.1", 0)
        variable.set("later")
        together.meet()
        if replicas.index() == 0:
            for _ in range(6):
                reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
                assert await reader.read() == b""
                writer.close()
            together.shared["over"].append(True)
        while not together.shared["over"]:
            await asyncio.sleep(0.001)
        server.close()

    run(main, 2)
    assert sorted(seen) == [(0, 0)] * 3 + [(1, 1)] * 3
