"""Descriptors: each has one owner, is closed once, and its number may be somebody else's right afterwards."""

import asyncio
import contextlib
import gc
import io
import os
import socket

import pytest

from support import Recorder, inode, left_open, result_of, settle, tcp_pair, turns, unix_pair

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
    "start_tls": lambda loop, sock, tls: connect_and_start_tls(loop, sock, tls),
}


async def connect_and_start_tls(loop, sock, tls):
    transport, protocol = await loop.create_connection(asyncio.Protocol, sock=sock)
    return await loop.start_tls(transport, protocol, tls.client, server_hostname="localhost"), protocol


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


@pytest.mark.parametrize("steps", range(4))
@pytest.mark.parametrize("side", ["read", "write"])
def test_a_cancelled_pipe_closes_its_file_object_once(run, loop, fresh_pipes_survive, side, steps):
    async def main():
        source, sink = os.pipe()
        ours, far = (source, sink) if side == "read" else (sink, source)
        file = SlowFile(ours, "rb" if side == "read" else "wb")
        task = loop.create_task(getattr(loop, f"connect_{side}_pipe")(asyncio.Protocol, file))
        await turns(steps)
        task.cancel()
        made = await outcome_with_cancel(task)
        if made is not None:
            made[0].close()
        await settle()
        file.close()  # before the call has begun, and on a cancel in time, the file is still ours or closed
        os.close(far)
    run(main())


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
