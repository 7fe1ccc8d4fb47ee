"""The io_uring poller: full queues, interrupted waits, cancels, buffers, threads, fork, and where it cannot be had.

What it shares with the other pollers is in test_pollers.py.
"""

import asyncio
import contextlib
import errno
import os
import pathlib
import random
import signal
import socket
import threading
import time

import gmploop
import pytest
from gmploop import config
from support import (
    Recorder, child_output, link, open_fds, outcome, reopened, result_of, tcp_pair, turns, unix_pair, wait_until)

batch = pytest.importorskip("gmploop.core.batch")
poller_uring = pytest.importorskip("gmploop.core.poller_uring")


def missing():
    made = result_of(gmploop.new_event_loop, poller="io_uring")
    return made if made is OSError else made.close()


pytestmark = [pytest.mark.timeout(60), pytest.mark.gmploop_only,
              pytest.mark.skipif(missing() is OSError, reason="no io_uring here")]


@pytest.fixture(autouse=True)
def chosen(monkeypatch):
    monkeypatch.setenv("GMPLOOP_POLLER", "io_uring")


SETUPS = {
    "usual": {},
    "tiny": {"entries": 4, "cq_entries": 8, "buffers": 4, "buffer_size": 512},
    "one buffer": {"entries": 1, "cq_entries": 2, "buffers": 1, "buffer_size": 4096},
    "older kernel": {"epoll_op": False, "no_iowait": False},
}


@pytest.fixture(params=SETUPS)
def setup(request):
    """Sizes of the ring and what it may use; before `loop` in a test's arguments."""
    poller_uring.configure(**config.uring_sizes() | SETUPS[request.param])
    yield request.param
    poller_uring.configure(**config.uring_sizes())


class Echo(Recorder):
    def data_received(self, data):
        self.transport.write(data)


async def connected(sock):
    return await asyncio.get_running_loop().create_connection(Recorder, sock=sock)


async def heard(protocol, size):
    """All that has come, once that much has."""
    await protocol.received(size)
    return bytes(protocol.data)


def program(setup, main):
    """Output of a process of its own that runs main(), with a protocol Echo at hand."""
    return child_output("gmploop", f"""
    import resource, subprocess
    from gmploop import config
    from gmploop.core import poller_uring

    class Echo(asyncio.Protocol):
        def connection_made(self, transport):
            self.transport = transport
        def data_received(self, data):
            self.transport.write(data)

    {main}
    gmploop.new_event_loop().close()
    poller_uring.configure(**config.uring_sizes() | {SETUPS[setup]!r})
    asyncio.Runner(loop_factory=gmploop.new_event_loop).run(main())
    """)


# -- full queues

def test_many_connections_get_each_byte_once_and_in_order(setup, loop, run):
    """Far more of everything than there are entries, completions and buffers."""
    sizes = [1, 100, 511, 512, 513, 5000, 70_000, 200_000]

    async def talk(number, address):
        chosen = random.Random(number)
        reader, writer = await asyncio.open_connection(*address)
        for _ in range(20):
            text = chosen.randbytes(chosen.choice(sizes))
            writer.write(text)
            assert await reader.readexactly(len(text)) == text
        writer.close()
        await writer.wait_closed()

    async def main():
        server = await loop.create_server(Echo, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()
        await asyncio.gather(*(talk(number, address) for number in range(30)))
        server.close()
    run(main())


@pytest.mark.parametrize("setup", ["tiny", "one buffer"], indirect=True)
def test_five_thousand_exchanges_through_a_ring_of_a_few_entries(setup, loop, run):
    """Fifty at a time: each message comes once, none is lost where queues are full."""
    served = []

    class Once(Recorder):
        def data_received(self, data):
            self.data += data
            while len(self.data) >= 8:
                served.append(bytes(self.data[:8]))
                self.transport.write(served[-1])
                del self.data[:8]

    async def talk(number, address):
        reader, writer = await asyncio.open_connection(*address)
        for i in range(100):
            writer.write(b"%08d" % (number * 100 + i))
            assert await reader.readexactly(8) == b"%08d" % (number * 100 + i)
        writer.close()
        await writer.wait_closed()

    async def main():
        server = await loop.create_server(Once, "127.0.0.1", 0, backlog=100)
        await asyncio.gather(*(talk(number, server.sockets[0].getsockname()) for number in range(50)))
        server.close()
    run(main())
    assert sorted(served) == [b"%08d" % number for number in range(5000)]


def test_messages_that_grow_and_shrink_arrive_whole(setup, loop, run):
    """Large ones are read from the socket directly, small ones are received by the kernel: across each change."""
    async def main():
        async with link("tcp") as (near, far):
            chosen, sent = random.Random(1), bytearray()
            for size in [10] * 100 + [300_000] * 5 + [10] * 200 + [1_000_000, 10, 200_000, 10, 10] + [5] * 100:
                sent += (text := chosen.randbytes(size))
                near.transport.write(text)
                await far.received(len(sent))
            assert far.data == sent
    run(main())


def test_readers_calls_and_datagrams_share_a_full_ring(setup, loop, run):
    async def main():
        pairs = [unix_pair() for _ in range(40)]
        seen = []
        for near, far in pairs[:20]:
            loop.add_reader(near, lambda near=near: seen.append(near.recv(1)))
        calls = [loop.create_task(loop.sock_recv(near, 9)) for near, _ in pairs[20:]]
        await turns(3)
        for _, far in pairs:
            far.send(b"xyz")
        assert await asyncio.gather(*calls) == [b"xyz"] * 20
        while len(seen) < 60:
            await asyncio.sleep(0.0005)
        for near, far in pairs:
            loop.remove_reader(near)
            near.close()
            far.close()
        assert sorted(seen) == sorted([b"x", b"y", b"z"] * 20)
    run(main())


# -- interrupted waits

def test_traffic_under_a_storm_of_signals(setup, loop, run):
    ran = []
    old = signal.signal(signal.SIGALRM, lambda *_: ran.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)

    async def main():
        late = []
        async with link("tcp", far=Echo) as (near, far):
            end = time.monotonic() + 0.4
            while time.monotonic() < end:
                text = random.randbytes(random.randrange(1, 3000))
                before = len(near.data)
                near.transport.write(text)
                await near.received(before + len(text))
                assert near.data[before:] == text
                deadline = loop.time() + 0.0023
                await asyncio.sleep(0.0023)
                late.append(loop.time() - deadline)
        return late
    try:
        assert min(run(main())) >= 0
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)
    assert len(ran) > 20


def test_traffic_of_a_process_that_is_stopped_and_continued(setup):
    """No error, nothing lost, and no timer that fires early."""
    assert program(setup, """
    async def main():
        stopper = subprocess.Popen(
            ["sh", "-c", "for i in $(seq 60); do kill -STOP $PPID; kill -CONT $PPID; sleep 0.005; done"])
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Echo, "127.0.0.1", 0)
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        early = 0
        while stopper.poll() is None:
            text = os.urandom(3000)
            writer.write(text)
            assert await reader.readexactly(3000) == text
            deadline = loop.time() + 0.002
            await asyncio.sleep(0.002)
            early += loop.time() < deadline
        print(stopper.returncode, early)
        writer.close()
        server.close()
    """) == "0 0\n"


# -- cancels, generations, buffers

def test_pausing_and_resuming_loses_and_doubles_nothing(setup, loop, run):
    """Each pause cancels the receive, each resume asks for it again, before, while and after data comes."""
    async def main():
        async with link("tcp") as (near, far):
            chosen, sent = random.Random(2), bytearray()
            for _ in range(400):
                if chosen.random() < 0.6:
                    sent += (text := chosen.randbytes(chosen.choice([1, 700, 4000])))
                    near.transport.write(text)
                if chosen.random() < 0.5:
                    far.transport.pause_reading()
                if chosen.random() < 0.5:
                    await turns(chosen.randrange(3))
                far.transport.resume_reading()
                if chosen.random() < 0.3:
                    await turns(1)
            await far.received(len(sent))
            assert far.data == sent
    run(main())


def test_nothing_is_handed_over_while_reading_is_paused(setup, loop, run):
    async def main():
        async with link("tcp") as (near, far):
            near.transport.write(b"x" * 100)
            await far.received(100)
            far.transport.pause_reading()
            for _ in range(10):
                near.transport.write(b"y" * 100)
                await turns(3)
            assert len(far.data) == 100
            far.transport.resume_reading()
            await far.received(1100)
    run(main())


@pytest.mark.parametrize("way", ["close", "abort"])
def test_the_peer_sees_the_end_at_once(setup, loop, run, way):
    """The kernel's receive holds the socket: it must be gone before the descriptor is closed."""
    async def main():
        for _ in range(20):
            near, far = tcp_pair()
            transport, end = await loop.create_connection(Recorder, sock=near)
            await turns(2)
            getattr(transport, way)()
            await end.lost
            assert result_of(far.recv, 10) == b""
            far.close()
    run(main())


def test_a_number_that_is_used_again_gets_nothing_of_the_old_socket(setup, loop, run):
    async def main():
        for _ in range(50):
            old, old_far = unix_pair()
            transport, end = await loop.create_connection(Recorder, sock=old)
            number = old.fileno()
            old_far.send(b"old")
            transport.abort()
            await end.lost
            new, new_far = reopened(number)
            transport, end = await loop.create_connection(Recorder, sock=new)
            new_far.send(b"new")
            await end.received(3)
            assert end.data == b"new"
            transport.abort()
            await end.lost
            old_far.close()
            new_far.close()
    run(main())


def test_connections_made_and_dropped_leave_no_descriptor(setup, loop, run):
    async def main():
        server = await loop.create_server(Echo, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()
        await turns(2)
        before = open_fds()
        for number in range(200):
            task = loop.create_task(loop.create_connection(Recorder, *address))
            await turns(number % 5)
            task.cancel()
            made, = await asyncio.gather(task, return_exceptions=True)
            if isinstance(made, tuple):
                made[0].abort()
                await made[1].lost
        while open_fds() != before:
            await asyncio.sleep(0.001)
        server.close()
    run(main())


# -- accepting

async def served(loop, address, count):
    """Connect that often at once, have one exchange on each and close."""
    async def talk(number):
        reader, writer = await asyncio.open_connection(*address)
        writer.write(b"%d" % number)
        assert await reader.readexactly(len(b"%d" % number)) == b"%d" % number
        assert writer.get_extra_info("peername") == address and writer.get_extra_info("sockname")
        writer.close()
        await writer.wait_closed()
    await asyncio.gather(*(talk(number) for number in range(count)))


def test_each_connection_is_served_once_with_its_address(setup, loop, run):
    made = []

    class Server(Echo):
        def connection_made(self, transport):
            super().connection_made(transport)
            made.append(transport.get_extra_info("peername"))
            assert transport.get_extra_info("sockname") == address
            assert not os.get_inheritable(transport.get_extra_info("socket").fileno())

    async def main():
        nonlocal address
        server = await loop.create_server(Server, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()
        await served(loop, address, 150)
        server.close()
        assert len(made) == len(set(made)) == 150
    address = None
    run(main())


def test_servers_that_start_and_stop_while_clients_come_leave_no_descriptor(setup, loop, run):
    """A client that is accepted and not served any more sees the end; the port is free at once."""
    async def main():
        with socket.create_server(("127.0.0.1", 0)) as one:
            address = one.getsockname()
        before = open_fds()
        served_ones = 0
        for number in range(100):
            server = await loop.create_server(Echo, *address)
            clients = [socket.socket() for _ in range(5)]
            for client in clients:
                client.setblocking(False)
                client.connect_ex(address)
                client.send(b"x")
            await turns(number % 4)
            if number % 3:
                server.close()
            for client in clients:
                answer = await asyncio.wait_for(outcome(loop.sock_recv(client, 1)), 5)
                served_ones += answer == b"x"
                assert answer in (b"x", b"", ConnectionResetError, BrokenPipeError)
                client.close()
            server.close()
            await turns(3)
        while open_fds() - before:
            await asyncio.sleep(0.001)
        assert served_ones >= 170               # at least those of the servers that stayed
    run(main())


def test_a_server_that_is_out_of_descriptors_goes_on_when_there_are_some(setup):
    """The accept ends with EMFILE: told once, clients wait in the backlog, and it begins again."""
    output = program(setup, """
    async def main():
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: print(context["message"], context["exception"].errno))
        taken = len(os.listdir("/proc/self/fd"))
        resource.setrlimit(resource.RLIMIT_NOFILE, (taken + 25, 1000))     # a listener, 20 clients and a few of theirs
        server = await loop.create_server(Echo, "127.0.0.1", 0)
        address = server.sockets[0].getsockname()
        clients = [socket.create_connection(address) for _ in range(20)]
        for client in clients:
            client.setblocking(False)
            client.send(b"x")
        await asyncio.sleep(0.05)
        resource.setrlimit(resource.RLIMIT_NOFILE, (900, 1000))
        print([await loop.sock_recv(client, 9) for client in clients] == [b"x"] * 20)
        for client in clients:
            client.close()
        server.close()
        await asyncio.sleep(0.01)
    """)
    assert output == f"socket.accept() out of system resource {errno.EMFILE}\nTrue\n"


def test_a_factory_that_ends_the_run_does_not_hide_that_accepting_has_ended():
    """The last connection and the lack of a descriptor for the next come together; the loop is run again."""
    output = child_output("gmploop", """
    import resource

    class Served(asyncio.Protocol):
        made = 0

        def __init__(self):
            Served.made += 1
            if Served.made == 1:
                raise KeyboardInterrupt

        def connection_made(self, transport):
            transport.write(b"x")
            transport.close()

    loop = gmploop.new_event_loop()
    errors = []
    loop.set_exception_handler(lambda _, context: errors.append(context["exception"].errno))
    loop.run_until_complete(loop.create_server(Served, "127.0.0.1", 0)).close()         # opens what a loop needs
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    with open("/dev/null") as next_one:
        room = next_one.fileno() + 4        # the listener, two clients, one of their connections
    resource.setrlimit(resource.RLIMIT_NOFILE, (room, limits[1]))
    server = loop.run_until_complete(loop.create_server(Served, "127.0.0.1", 0))
    clients = [socket.create_connection(server.sockets[0].getsockname()) for _ in range(2)]
    try:
        loop.run_forever()
    except KeyboardInterrupt:
        print("interrupted")
    resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    clients[1].setblocking(False)
    print(loop.run_until_complete(asyncio.wait_for(loop.sock_recv(clients[1], 9), 5)), errors)
    server.close()
    for client in clients:
        client.close()
    loop.close()
    """)
    assert output == f"interrupted\nb'x' [{errno.EMFILE}]\n"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_does_not_serve_its_parent_s_clients(setup, loop):
    async def begin():
        server = await loop.create_server(Echo, "127.0.0.1", 0)
        await turns(2)
        return server
    server = loop.run_until_complete(begin())
    client = socket.create_connection(server.sockets[0].getsockname())
    loop.run_until_complete(turns(1))
    pid = os.fork()
    if not pid:
        with contextlib.suppress(BaseException):
            loop.run_until_complete(asyncio.sleep(0.01))
            loop.close()
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    client.setblocking(False)
    client.send(b"x")
    assert loop.run_until_complete(loop.sock_recv(client, 9)) == b"x"
    client.close()
    server.close()
    loop.run_until_complete(asyncio.sleep(0.01))


def test_a_server_goes_on_in_another_thread(setup, loop):
    async def begin():
        return await loop.create_server(Echo, "127.0.0.1", 0)
    server = loop.run_until_complete(begin())
    address = server.sockets[0].getsockname()
    for _ in range(3):
        in_a_thread(loop.run_until_complete, served(loop, address, 5))
    loop.run_until_complete(served(loop, address, 5))
    server.close()
    loop.run_until_complete(turns(2))


# -- threads

def in_a_thread(function, *args):
    results = []
    thread = threading.Thread(target=lambda: results.append(function(*args)))
    thread.start()
    thread.join(20)
    assert results, "the thread failed"
    return results[0]


def test_a_loop_goes_on_in_one_thread_after_another(setup, loop):
    """Its ring is for one thread only, and those of the others have ended."""
    near, far = unix_pair()
    transport, protocol = in_a_thread(loop.run_until_complete, connected(near))
    for n in range(1, 6):
        far.send(b"x")
        assert in_a_thread(loop.run_until_complete, heard(protocol, n)) == b"x" * n
        transport.write(b"y")           # nobody runs the loop
        assert far.recv(9) == b"y"
    far.send(b"x")
    assert loop.run_until_complete(heard(protocol, 6)) == b"x" * 6
    transport.abort()
    in_a_thread(loop.run_until_complete, asyncio.sleep(0))
    wait_until(lambda: result_of(far.recv, 9) == b"")       # the kernel ends what the other threads' rings had
    far.close()


def test_a_loop_is_closed_by_another_thread(setup, loop):
    near, far = unix_pair()
    transport, _ = loop.run_until_complete(connected(near))
    transport.abort()
    in_a_thread(loop.close)
    transport._sock.close()
    far.close()


# -- fork

@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("child", ["does nothing", "closes", "uses it"])
def test_a_child_takes_nothing_from_its_parent_s_ring(setup, loop, child):
    near, far = unix_pair()
    transport, protocol = loop.run_until_complete(connected(near))
    far.send(b"one")                    # may lie in the shared queue when the process forks
    pid = os.fork()
    if not pid:
        with contextlib.suppress(BaseException):
            if child == "closes":
                loop.close()
            elif child == "uses it":
                loop.run_until_complete(asyncio.sleep(0.001))
                pair = unix_pair()
                fresh = gmploop.new_event_loop()
                fresh.run_until_complete(fresh.sock_sendall(pair[0], b"x"))
                fresh.close()
                os._exit(len(protocol.data))
        os._exit(0)
    taken = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    far.send(b"two")
    assert loop.run_until_complete(heard(protocol, 6 - taken)) == (b"two" if taken else b"onetwo")
    transport.abort()
    loop.run_until_complete(asyncio.sleep(0))
    far.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_that_ends_in_order_leaves_its_parent_s_operations_alone():
    """It collects garbage, closes the loop, runs one of its own and exits by way of atexit; the parent's go on."""
    output = child_output("gmploop", """
    import gc

    class Told(asyncio.Protocol):
        def data_received(self, data):
            loop.told.set_result(data)

    async def start():
        loop.told = loop.create_future()
        server = await loop.create_server(Told, "127.0.0.1", 0)
        client = socket.create_connection(server.sockets[0].getsockname())
        await asyncio.sleep(0.01)
        return server, client

    loop = gmploop.new_event_loop()
    server, client = loop.run_until_complete(start())
    for _ in range(3):
        sys.stdout.flush()          # else the child, which ends in order, prints it too
        pid = os.fork()
        if not pid:
            gc.collect()
            server.close()
            loop.close()
            gc.collect()
            with asyncio.Runner(loop_factory=gmploop.new_event_loop) as runner:
                runner.run(asyncio.sleep(0.001))
            sys.exit(0)
        print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), end=" ")
        client.send(b"x")
        print(loop.run_until_complete(loop.told))
        loop.told = loop.create_future()
        other = socket.create_connection(server.sockets[0].getsockname())
        other.send(b"y")
        print(loop.run_until_complete(loop.told))
        loop.told = loop.create_future()
    """, options=["-W", "ignore"])
    assert output == "0 b'x'\nb'y'\n" * 3


# -- where it cannot be had

REFUSE = """
    import ctypes, errno, logging, platform
    libc = ctypes.CDLL(None, use_errno=True)

    def refuse(number, error):
        '''A seccomp filter: system call `number` fails with `error` from now on.'''
        class Filter(ctypes.Structure):
            _fields_ = [("code", ctypes.c_ushort), ("jt", ctypes.c_ubyte), ("jf", ctypes.c_ubyte), ("k", ctypes.c_uint)]

        class Program(ctypes.Structure):
            _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.POINTER(Filter))]
        code = (Filter * 4)(Filter(0x20, 0, 0, 0), Filter(0x15, 0, 1, number), Filter(0x06, 0, 0, 0x50000 | error),
                            Filter(0x06, 0, 0, 0x7fff0000))
        assert libc.prctl(38, 1, 0, 0, 0) == 0
        assert libc.prctl(22, 2, ctypes.byref(Program(4, code)), 0, 0) == 0, ctypes.get_errno()
"""


@pytest.mark.parametrize("call", [425, 426, 427], ids=["setup", "enter", "register"])
@pytest.mark.parametrize("error", ["EPERM", "ENOSYS", "ENOMEM", "EMFILE"])
def test_a_ring_that_is_refused_says_why_and_epoll_runs(call, error):
    output = child_output("gmploop", REFUSE + f"""
    refuse({call}, errno.{error})
    os.environ["GMPLOOP_DEBUG"] = "batch_min_ready=0"
    fds = sorted(os.listdir("/proc/self/fd"))
    try:
        gmploop.new_event_loop(poller="io_uring")
    except OSError as exc:
        print(errno.errorcode[exc.errno], "io_uring" in str(exc), os.strerror(exc.errno) in str(exc))
    assert sorted(os.listdir("/proc/self/fd")) == fds
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    os.environ.pop("GMPLOOP_POLLER")
    for _ in range(2):
        with asyncio.Runner(loop_factory=lambda: gmploop.new_event_loop(write_batching=True)) as runner:
            async def main():
                async def handle(reader, writer):
                    writer.write(await reader.read(100))
                    writer.close()
                server = await asyncio.start_server(handle, "127.0.0.1", 0)
                ends = [await asyncio.open_connection(*server.sockets[0].getsockname()) for _ in range(5)]
                for _, writer in ends:
                    writer.write(b"x")
                answers = [await reader.read() for reader, _ in ends]
                for _, writer in ends:
                    writer.close()
                server.close()
                return answers
            assert runner.run(main()) == [b"x"] * 5
    """)
    told, runs = output.splitlines()
    assert told == f"{error} True True"
    assert runs.startswith("gmploop: loops run on epoll; each write leaves at once, since io_uring is not to be had: ")
    assert os.strerror(getattr(errno, error)) in runs and REASONS[error] in runs


REASONS = {"EPERM": "seccomp", "ENOSYS": "it takes Linux 5.17", "ENOMEM": "ulimit -l", "EMFILE": ""}
SAYS = {
    "loops": "gmploop.new_event_loop({options}).close()",
    "goroutines": "gmploop.run(asyncio.sleep(0), lock_main=False)",
}


@pytest.mark.parametrize("who", SAYS)
@pytest.mark.parametrize("refused", [False, True])
def test_the_log_says_once_what_runs_and_why(who, refused):
    """By "auto", with nothing else than the log's level set."""
    output = child_output("gmploop", REFUSE + f"""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s", stream=sys.stdout)
    os.environ.pop("GMPLOOP_POLLER")
    if {refused}:
        refuse(425, errno.EPERM)
    for _ in range(3):
        {SAYS[who].format(options="")}
    """)
    writes = "each write leaves at once, since io_uring is not to be had: Operation not permitted: a filter of system " \
        "calls (seccomp) or a security module forbids it" if refused else "the small writes of a busy turn leave together"
    assert output == f"INFO gmploop gmploop: {who} run on epoll; {writes}\n"


def test_the_log_says_so_of_a_poller_that_was_asked_for():
    output = child_output("gmploop", """
    import logging
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stdout)
    for options in {"poller": "io_uring"}, {"poller": "epoll"}, {"poller": "epoll", "write_batching": False}:
        gmploop.new_event_loop(**options).close()
    """)
    together, at_once = "the small writes of a busy turn leave together", "each write leaves at once"
    assert output.splitlines() == [f"gmploop: loops run on {what}" for what in (
        f"io_uring; {together}", f"epoll; {together}", f"epoll; {at_once}")]


@pytest.mark.parametrize("disabled", ["1", "2"])
def test_a_sysctl_that_forbids_it_is_named(tmp_path, disabled):
    (tmp_path / "disabled").write_text(f"{disabled}\n")
    assert batch.refusal(errno.EPERM, sysctl=str(tmp_path / "disabled")) == \
        f"io_uring is not to be had: {os.strerror(errno.EPERM)}: kernel.io_uring_disabled is {disabled}"


def test_a_hundred_loops_at_once(loop_factory):
    loops = [loop_factory() for _ in range(100)]
    for _ in range(2):
        for loop in loops:
            assert loop.run_until_complete(asyncio.sleep(0, loop)) is loop


# -- idle

def waits_in():
    """The system call that the main thread is in, as (number, arguments)."""
    text = pathlib.Path(f"/proc/self/task/{threading.main_thread().native_id}/syscall").read_text().split()
    return (int(text[0]), [int(one, 16) for one in text[1:7]]) if text[0].isdigit() else (None, None)


ENTER, NO_IOWAIT = 426, 1 << 7


@pytest.mark.skipif(not os.access("/proc/self/syscall", os.R_OK), reason="the system does not tell system calls")
@pytest.mark.parametrize("setup", ["usual", "older kernel"], indirect=True)
def test_an_idle_loop_sleeps_as_nobody_s_disk(setup, loop):
    """Either the wait in the ring says that it waits for no disk, or it is not in the ring."""
    seen = []

    def look():
        end = time.monotonic() + 5
        while time.monotonic() < end:
            call, args = waits_in()
            if call is not None and (call != ENTER or args[3] & NO_IOWAIT):
                seen.append(call)
                break
            time.sleep(0.005)
        loop.call_soon_threadsafe(loop.stop)
    cpu = time.process_time()
    thread = threading.Thread(target=look)
    timer = threading.Timer(0.1, thread.start)
    timer.start()
    loop.run_forever()
    timer.join()
    thread.join()
    assert seen
    assert time.process_time() - cpu < 0.08
    names = [task.joinpath("comm").read_text() for task in pathlib.Path("/proc/self/task").iterdir()]
    assert not [name for name in names if name.startswith("iou-sqp")]


@pytest.mark.parametrize("setup", ["usual", "older kernel"], indirect=True)
def test_an_idle_loop_is_woken_by_data_threads_and_timers(setup, loop, run):
    async def main():
        async with link("tcp") as (near, far):
            for _ in range(3):
                await asyncio.sleep(0.03)
                threading.Timer(0.03, near.transport._sock.send, [b"x"]).start()
                await far.received(len(far.data) + 1)
            assert await loop.run_in_executor(None, lambda: time.sleep(0.03) or "thread") == "thread"
        await loop.shutdown_default_executor()
    run(main())
