"""add_reader and add_writer: level triggered, on descriptors of every kind."""

import asyncio
import contextlib
import os
import select
import socket

import pytest

from support import result_of, settle, unix_pair

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("drain", [False, True], ids=["not reading", "reading a little"])
def test_a_reader_is_called_as_long_as_there_is_something(run, loop, drain):
    """Level triggered: a callback that leaves data behind is called again, without a new event."""
    async def main():
        near, far = unix_pair()
        with near, far:
            calls, done = 0, loop.create_future()

            def readable():
                nonlocal calls
                calls += 1
                if drain:
                    near.recv(1)
                if calls == 10:
                    loop.remove_reader(near)
                    done.set_result(None)
            far.send(b"x" * 10)
            loop.add_reader(near, readable)
            await asyncio.wait_for(done, 3)
            await settle()
            assert calls == 10
    run(main())


def test_a_writer_is_called_as_long_as_there_is_room(run, loop):
    async def main():
        near, far = unix_pair()
        with near, far:
            calls = []
            loop.add_writer(near, calls.append, 1)
            await settle()
            assert len(calls) >= 3
            with contextlib.suppress(BlockingIOError):
                while True:
                    near.send(b"x" * 10_000)
            await settle()
            calls.clear()
            await settle()
            assert not calls
            with contextlib.suppress(BlockingIOError):
                while True:
                    far.recv(1 << 20)
            await settle()
            assert calls
            assert loop.remove_writer(near)
    run(main())


def test_reader_and_writer_of_one_descriptor_are_apart(run, loop):
    async def main():
        near, far = unix_pair()
        with near, far:
            seen = []
            loop.add_reader(near, seen.append, "r")
            loop.add_writer(near, seen.append, "w")
            await settle()
            assert set(seen) == {"w"}
            far.send(b"x")
            await settle()
            assert set(seen) == {"r", "w"}
            assert loop.remove_writer(near)
            seen.clear()
            await settle()
            assert set(seen) == {"r"}
            loop.add_reader(near, seen.append, "replaced")
            seen.clear()
            await settle()
            assert set(seen) == {"replaced"}
            assert loop.remove_reader(near) and not loop.remove_reader(near) and not loop.remove_writer(near)
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
