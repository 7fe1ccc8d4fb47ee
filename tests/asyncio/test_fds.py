"""Descriptors: each has one owner, is closed once, and its number may be somebody else's right afterwards."""

import asyncio
import contextlib
import gc
import io
import os
import resource
import select
import socket
import time

import pytest

from support import (LOOPS, Recorder, child, finish, inode, outcome, result_of, tcp_pair, settle, turns, unanswering_listener,
                     unix_pair)

pytestmark = pytest.mark.timeout(60)


@contextlib.contextmanager
def bystanders(count=8):
    """Open descriptors that somebody else owns: whoever closes one of them by mistake is found out."""
    with contextlib.ExitStack() as stack:
        fds, inodes = [], []

        def open_them():
            for _ in range(count // 2):
                fds.extend(os.pipe())
            inodes.extend(map(inode, fds))
            stack.callback(lambda: [os.close(fd) for fd in fds])

        def check():
            gc.collect()
            assert [result_of(inode, fd) for fd in fds] == inodes, "somebody else's descriptor was closed"
        open_them()
        yield check
        check()


def left_open(function):
    """For tests that leave a transport or a loop to the collector, which warns of it, by their very purpose."""
    for message in "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning":
        function = pytest.mark.filterwarnings(message)(function)
    return function


# -- connections cancelled before they are made

CONNECTS = {
    "create_connection": lambda loop, sock, tls: loop.create_connection(asyncio.Protocol, sock=sock),
    "create_connection with TLS": lambda loop, sock, tls: loop.create_connection(
        asyncio.Protocol, sock=sock, ssl=tls.client, server_hostname="localhost"),
    "connect_accepted_socket": lambda loop, sock, tls: loop.connect_accepted_socket(asyncio.Protocol, sock),
    "connect_accepted_socket with TLS": lambda loop, sock, tls: loop.connect_accepted_socket(
        asyncio.Protocol, sock, ssl=tls.server),
    "create_unix_connection": lambda loop, sock, tls: loop.create_unix_connection(asyncio.Protocol, sock=sock),
    "create_unix_connection with TLS": lambda loop, sock, tls: loop.create_unix_connection(
        asyncio.Protocol, sock=sock, ssl=tls.client, server_hostname="localhost"),
    "create_datagram_endpoint": lambda loop, sock, tls: loop.create_datagram_endpoint(
        asyncio.DatagramProtocol, sock=sock),
    "open_connection": lambda loop, sock, tls: asyncio.open_connection(sock=sock),
}


def sockets_for(way):
    if "datagram" in way:
        sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        sock.bind(("127.0.0.1", 0))
        sock.setblocking(False)
        return sock, socket.socket()
    return unix_pair() if "unix" in way else tcp_pair()


@pytest.mark.parametrize("steps", range(6))
@pytest.mark.parametrize("way", CONNECTS)
def test_a_cancelled_connection_closes_its_own_descriptor_only(run, tls, way, steps):
    async def main():
        loop = asyncio.get_running_loop()
        sock, far = sockets_for(way)
        number, own = sock.fileno(), inode(sock.fileno())
        task = loop.create_task(CONNECTS[way](loop, sock, tls))
        await turns(steps)
        task.cancel()
        made = await outcome_with_cancel(task)
        await settle()
        if made is not None:  # it was too late to cancel: what has been made must work and close
            made[1].close() if way == "open_connection" else made[0].abort()
            await settle()
        elif steps == 0 and sock.fileno() != -1:  # never begun: the socket is still ours, and whole
            assert (sock.fileno(), inode(number)) == (number, own)
            sock.close()
        assert sock.fileno() == -1
        with bystanders() as check:
            sock.close()
            del sock, made
            gc.collect()
            await settle()
            check()
        far.close()
    run(main())


async def outcome_with_cancel(task):
    try:
        return await task
    except asyncio.CancelledError:
        return None


@left_open
@pytest.mark.parametrize("steps", range(5))
@pytest.mark.parametrize("way", CONNECTS)
def test_closing_the_loop_in_the_middle_of_a_connection_closes_nothing_twice(loop_factory, errors, tls, way, steps):
    loop = loop_factory()
    sock, far = sockets_for(way)
    task = loop.create_task(CONNECTS[way](loop, sock, tls))
    loop.run_until_complete(turns(steps))
    loop.close()
    if task.done():
        task.result()
    del task
    gc.collect()
    with bystanders() as check:
        sock.close()
        del sock
        check()
    far.close()
    del errors[:]  # a task that is destroyed while it waits is reported


# -- file objects and sockets that are slow to close

class SlowFile(io.FileIO):
    """Opens a pipe as it is closed: if somebody else has closed the number before, the pipe has it now."""

    def close(self):
        if not self.closed and not hasattr(self, "fresh"):
            self.fresh = os.pipe()
            self.inodes = [inode(fd) for fd in self.fresh]
            FRESH.append((self.fresh, self.inodes))
        super().close()


class SlowSocket(socket.socket):
    def close(self):
        if self.fileno() != -1 and not hasattr(self, "fresh"):
            self.fresh = os.pipe()
            FRESH.append((self.fresh, [inode(fd) for fd in self.fresh]))
        super().close()


FRESH = []


@pytest.fixture
def fresh_pipes_survive():
    FRESH.clear()
    yield
    gc.collect()
    broken = [fds for fds, inodes in FRESH if [result_of(inode, fd) for fd in fds] != inodes]
    for fds, _ in FRESH:
        for fd in fds:
            with contextlib.suppress(OSError):
                os.close(fd)
    assert FRESH, "the object was never closed"
    assert not broken, "a descriptor was closed twice"


@pytest.mark.parametrize("end", ["close", "abort", "far end closes", "dropped", "loop closed"])
@pytest.mark.parametrize("side", ["read", "write"])
@left_open
def test_a_pipe_s_file_object_is_closed_once(loop, errors, fresh_pipes_survive, side, end):
    source, sink = os.pipe()
    ours, far = (source, sink) if side == "read" else (sink, source)
    file = SlowFile(ours, "rb" if side == "read" else "wb")

    async def main():
        transport, protocol = await getattr(loop, f"connect_{side}_pipe")(Recorder, file)
        if end == "far end closes":
            os.close(far)
        elif end in ("close", "abort"):
            getattr(transport, end, transport.close)()
        if end in ("dropped", "loop closed"):
            return
        await protocol.lost
        file.close()
    loop.run_until_complete(asyncio.wait_for(main(), 5))
    if end == "dropped":
        with contextlib.suppress(Exception):
            (loop.remove_reader if side == "read" else loop.remove_writer)(ours)
        file.close()
    elif end == "loop closed":
        loop.close()
        file.close()
    del file
    gc.collect()
    if end != "far end closes":
        os.close(far)
    del errors[:]


@pytest.mark.parametrize("end", ["close", "abort", "far end closes", "detached by the user"])
@pytest.mark.parametrize("kind", ["tcp", "unix", "tls", "datagram"])
def test_a_transport_s_socket_is_closed_once(run, tls, fresh_pipes_survive, kind, end):
    async def main():
        loop = asyncio.get_running_loop()
        near, far = sockets_for("datagram") if kind == "datagram" else unix_pair() if kind == "unix" else tcp_pair()
        slow = SlowSocket(near.family, near.type, near.proto, fileno=near.detach())
        slow.setblocking(False)
        if kind == "datagram":
            transport, protocol = await loop.create_datagram_endpoint(Recorder, sock=slow)
        elif kind == "tls":
            (_, peer), (transport, protocol) = await asyncio.gather(
                loop.connect_accepted_socket(Recorder, far, ssl=tls.server),
                loop.create_connection(Recorder, sock=slow, ssl=tls.client, server_hostname="localhost"))
        else:
            transport, protocol = await loop.create_connection(Recorder, sock=slow)
        if end == "far end closes" and kind != "datagram":
            peer.transport.close() if kind == "tls" else far.close()
        elif end == "abort":
            transport.abort()
        else:
            transport.close()
        if end == "detached by the user":
            transport.get_extra_info("socket").fileno()
        await protocol.lost
        await turns(2)
        slow.close()
        far.close()
        if kind == "tls":
            await peer.lost
    run(main())


def test_a_server_s_socket_is_closed_once(run, fresh_pipes_survive):
    async def main():
        loop = asyncio.get_running_loop()
        sock = SlowSocket()
        sock.bind(("127.0.0.1", 0))
        server = await loop.create_server(asyncio.Protocol, sock=sock)
        server.close()
        server.close()
        await settle()
        sock.close()
        await server.wait_closed()
    run(main())


# -- sock_ calls that are cancelled

async def recv(loop, near, far):
    await loop.sock_recv(near, 100)


async def recv_into(loop, near, far):
    await loop.sock_recv_into(near, bytearray(100))


async def recvfrom(loop, near, far):
    await loop.sock_recvfrom(near, 100)


async def sendall(loop, near, far):
    await loop.sock_sendall(near, b"x" * 10_000_000)


SOCK_CALLS = [recv, recv_into, recvfrom, sendall]


@pytest.mark.parametrize("pause", [0, 1], ids=["reused at once", "reused a turn later"])
@pytest.mark.parametrize("call", SOCK_CALLS, ids=lambda call: call.__name__)
def test_a_cancelled_call_lets_go_of_the_descriptor(run, call, pause):
    """The next socket that gets the number hears nothing of the old one's events and works."""
    async def main():
        loop = asyncio.get_running_loop()
        for _ in range(20):
            near, far = unix_pair()
            task = loop.create_task(call(loop, near, far))
            await turns(2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            number = near.fileno()
            near.close()
            await turns(pause)
            again, other = unix_pair()
            assert number in (again.fileno(), other.fileno())
            far.close()
            await loop.sock_sendall(again, b"hello")
            assert await loop.sock_recv(other, 100) == b"hello"
            sending = loop.create_task(loop.sock_sendall(other, b"y" * 1_000_000))
            received = 0
            while received < 1_000_000:
                received += len(await loop.sock_recv(again, 1 << 20))
            await sending
            again.close()
            other.close()
    run(main())


@pytest.mark.parametrize("pause", [0, 1], ids=["reused at once", "reused a turn later"])
def test_a_cancelled_connect_lets_go_of_the_descriptor(run, pause):
    async def main():
        loop = asyncio.get_running_loop()
        with unanswering_listener() as silent, socket.create_server(("127.0.0.1", 0)) as good:
            for _ in range(5):
                sock = socket.socket()
                sock.setblocking(False)
                task = loop.create_task(loop.sock_connect(sock, silent.getsockname()))
                await turns(3)
                task.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await task
                number = sock.fileno()
                sock.close()
                await turns(pause)
                with socket.socket() as again:
                    assert again.fileno() == number
                    again.setblocking(False)
                    await asyncio.wait_for(loop.sock_connect(again, good.getsockname()), 5)
                    await loop.sock_sendall(again, b"hello")
                    with good.accept()[0] as served:
                        served.settimeout(3)
                        assert served.recv(10) == b"hello"
            before = time.process_time()
            await asyncio.sleep(0.1)
            assert time.process_time() - before < 0.05
    run(main())


def test_a_cancelled_accept_loses_no_client(run):
    async def main():
        loop = asyncio.get_running_loop()
        with socket.create_server(("127.0.0.1", 0)) as server:
            server.setblocking(False)
            for steps in range(4):
                task = loop.create_task(loop.sock_accept(server))
                await turns(steps)
                with socket.create_connection(server.getsockname()) as client:
                    task.cancel()
                    accepted = await outcome_with_cancel(task) or \
                        await asyncio.wait_for(loop.sock_accept(server), 5)
                    with accepted[0] as served:
                        await loop.sock_sendall(served, b"hello")
                        client.settimeout(3)
                        assert client.recv(10) == b"hello"
    run(main())


def test_cancelled_reads_take_no_data(run):
    """What a cancelled read did not return is there for the next one."""
    async def main():
        loop = asyncio.get_running_loop()
        near, far = unix_pair()
        with near, far:
            expected = received = b""
            for number in range(200):
                task = loop.create_task(loop.sock_recv(near, 100))
                await turns(number % 3)
                far.send(b"%03d" % number)
                expected += b"%03d" % number
                await turns(number % 2)
                task.cancel()
                received += await outcome_with_cancel(task) or b""
            while len(received) < len(expected):
                received += await asyncio.wait_for(loop.sock_recv(near, 1000), 5)
            assert received == expected
    run(main())


# -- odd descriptors

def odd_descriptors():
    source, sink = os.pipe()
    os.write(sink, b"x")
    yield "pipe", source, [sink]
    if hasattr(os, "eventfd"):
        yield "eventfd", os.eventfd(1), []
    if hasattr(os, "pidfd_open"):
        pid = os.fork()
        if not pid:
            os._exit(0)
        fd = os.pidfd_open(pid)
        os.waitid(os.P_PIDFD, fd, os.WEXITED)
        yield "pidfd", fd, []
    inner = select.epoll()
    source, sink = os.pipe()
    os.write(sink, b"x")
    inner.register(source, select.EPOLLIN)
    yield "epoll", os.dup(inner.fileno()), [source, sink]
    inner.close()
    master, slave = os.openpty()
    os.write(slave, b"x\n")
    yield "pseudo terminal", master, [slave]
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        yield "listener", server.fileno(), []
        client.close()


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_descriptors_of_every_kind_can_be_watched(run, loop):
    async def main():
        for name, fd, others in odd_descriptors():
            readable = asyncio.Event()
            loop.add_reader(fd, readable.set)
            await asyncio.wait_for(readable.wait(), 3)
            assert loop.remove_reader(fd) is True, name
            assert loop.remove_reader(fd) is False, name
            for number in (fd, *others) if name != "listener" else ():
                os.close(number)
    run(main())


@pytest.mark.parametrize("path", ["file", "folder", "/dev/null"])
@pytest.mark.parametrize("side", ["reader", "writer"])
def test_what_cannot_be_watched_is_refused_as_on_stock(same_as_stock, tmp_path, path, side):
    async def scenario(loop):
        (tmp_path / "file").touch()
        name = {"file": tmp_path / "file", "folder": tmp_path}.get(path, path)
        fd = os.open(name, os.O_RDONLY)
        raised = result_of(getattr(loop, f"add_{side}"), fd, int)
        told = isinstance(raised, type) and raised.__name__, result_of(getattr(loop, f"remove_{side}"), fd)
        os.close(fd)
        return told
    same_as_stock(scenario)


def test_two_numbers_of_one_socket_are_watched_apart(run, loop):
    async def main():
        near, far = unix_pair()
        with near, far:
            twin = os.dup(near.fileno())
            seen = []
            loop.add_reader(near, seen.append, "near")
            loop.add_reader(twin, seen.append, "twin")
            far.send(b"x")
            await settle()
            assert set(seen) == {"near", "twin"}
            loop.remove_reader(near)
            seen.clear()
            await settle()
            assert set(seen) == {"twin"}
            loop.remove_reader(twin)
            os.close(twin)
            seen.clear()
            await settle()
            assert not seen
    run(main())


def test_a_number_closed_while_watched_can_be_forgotten_and_used_again(run, loop):
    async def main():
        source, sink = os.pipe()
        loop.add_reader(source, int)
        os.close(source)
        assert loop.remove_reader(source) is True
        again, sink_again = os.pipe()
        assert again == source
        readable = asyncio.Event()
        loop.add_reader(again, readable.set)
        os.write(sink_again, b"x")
        await asyncio.wait_for(readable.wait(), 3)
        loop.remove_reader(again)
        for fd in again, sink, sink_again:
            os.close(fd)
    run(main())


# -- no descriptors left

def test_a_listener_without_descriptors_keeps_its_clients_waiting(loop_kind):
    """Stock reports each vain accept of a burst; gmploop once per pause. Both serve the clients when they can."""
    done = child(loop_kind, """
        import resource

        class Greeter(asyncio.Protocol):
            def connection_made(self, transport):
                transport.write(b"served")
                transport.close()

        reports = []
        loop = new_loop()
        loop.set_exception_handler(lambda _, context: reports.append(context))

        async def main():
            server = await loop.create_server(Greeter, "127.0.0.1", 0)
            address = server.sockets[0].getsockname()
            clients = [socket.socket() for _ in range(20)]
            for client in clients:
                client.setblocking(False)
            await asyncio.sleep(0.01)
            spare = os.dup(0)
            os.close(spare)
            limits = resource.getrlimit(resource.RLIMIT_NOFILE)
            resource.setrlimit(resource.RLIMIT_NOFILE, (spare, limits[1]))
            for client in clients:
                client.connect_ex(address)
            start = time.process_time()
            await asyncio.sleep(0.5)
            cpu = time.process_time() - start
            early = len(reports)
            resource.setrlimit(resource.RLIMIT_NOFILE, limits)
            served = 0
            for client in clients:
                served += await asyncio.wait_for(loop.sock_recv(client, 100), 5) == b"served"
                client.close()
            server.close()
            await asyncio.sleep(0)
            context = reports[0]
            print(served, context["exception"].errno, "socket" in context, early, cpu < 0.25)

        loop.run_until_complete(main())
        loop.close()
    """)
    assert done.returncode == 0, done.stderr
    served, errno, has_socket, early, idle = done.stdout.split()
    assert (served, errno, has_socket, idle) == ("20", "24", "True", "True")
    if loop_kind == "gmploop":
        assert early == "1"


@contextlib.contextmanager
def no_more_descriptors():
    """Every attempt to open something fails with EMFILE."""
    spare = os.dup(0)
    os.close(spare)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (spare, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.parametrize("attempt", {
    "create_connection": lambda loop: loop.create_connection(asyncio.Protocol, "127.0.0.1", 1),
    "create_server": lambda loop: loop.create_server(asyncio.Protocol, "127.0.0.1", 0),
    "create_unix_connection": lambda loop: loop.create_unix_connection(asyncio.Protocol, "/nobody"),
    "create_datagram_endpoint": lambda loop: loop.create_datagram_endpoint(Recorder, local_addr=("127.0.0.1", 0)),
    "subprocess": lambda loop: loop.subprocess_exec(asyncio.SubprocessProtocol, "true"),
}.items(), ids=lambda item: item[0])
def test_an_attempt_without_descriptors_fails_as_on_stock_and_leaves_nothing(same_as_stock, attempt):
    async def scenario(loop):
        with no_more_descriptors():
            result = await outcome(attempt[1](loop))
        if not isinstance(result, type):  # before Python 3.12 create_server() makes a server without sockets
            result.close()
            result = len(result.sockets)
        return result, await asyncio.sleep(0.001, "goes on")
    same_as_stock(scenario)


@left_open
def test_a_loop_that_cannot_be_made_leaves_nothing(loop_kind):
    for spare in range(5):
        spares = [os.dup(0) for _ in range(spare)]
        with no_more_descriptors():
            for fd in spares:
                os.close(fd)
            made = result_of(LOOPS[loop_kind])
        if isinstance(made, type):
            assert issubclass(made, OSError)
        else:
            finish(made)
