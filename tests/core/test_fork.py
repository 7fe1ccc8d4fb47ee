"""Fork: a loop that was idle goes on in the child, one that was running raises there; the parent notices nothing."""

import asyncio
import contextlib
import os
import signal
import socket
import traceback
import warnings

import gmploop
import pytest
from support import Recorder, bounded, open_fds, unix_pair, wait_until

pytestmark = [pytest.mark.timeout(60), pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")]


def fork(body, *args):
    """Run body(*args) in a child; returns (pid, descriptor on which the child tells its traceback, if any)."""
    source, sink = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        pid = os.fork()
    if pid:
        os.close(sink)
        return pid, source
    signal.alarm(20)
    try:
        body(*args)
    except BaseException:
        os.write(sink, traceback.format_exc().encode())
    finally:
        os._exit(0)


def ended(child):
    """Wait for the child; it must have ended well."""
    pid, source = child
    with open(source) as told:
        text = told.read()
    status = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert (status, text) == (0, "")


def in_child(body, *args):
    ended(fork(body, *args))


@pytest.fixture
def pipe():
    ends = os.pipe()
    yield ends
    for end in ends:
        os.close(end)


# -- the loop was idle

def test_registered_readers_and_writers_go_on_in_the_child(loop, pipe):
    source, sink = pipe
    seen = []
    loop.add_reader(source, lambda: (seen.append(os.read(source, 100)), loop.stop()))
    written = []

    def writable():
        written.append(True)
        loop.remove_writer(sink)
    loop.add_writer(sink, writable)

    def body():
        os.write(sink, b"child")
        loop.call_later(5, loop.stop)
        loop.run_forever()
        assert (seen, written) == ([b"child"], [True])
        loop.remove_reader(source)
        loop.close()
    in_child(body)
    os.write(sink, b"parent")
    loop.call_later(5, loop.stop)
    loop.run_forever()
    assert (seen, written) == ([b"parent"], [True])
    loop.remove_reader(source)


def test_timers_and_posts_go_on_in_the_child(loop):
    seen = []
    loop.call_later(0.01, seen.append, "timer")
    loop.call_later(1000, seen.append, "never")
    loop.call_soon(seen.append, "soon")
    loop.call_soon_threadsafe(seen.append, "post")
    loop.call_later(0.02, loop.stop)

    def body():
        loop.call_soon_threadsafe(seen.append, "child")
        loop.run_forever()
        assert seen == ["soon", "post", "child", "timer"]
        loop.close()
    in_child(body)
    loop.run_forever()
    assert seen == ["soon", "post", "timer"]


def test_a_thread_wakes_the_loop_in_the_child(loop):
    """The eventfd that wakes is the child's own: the parent's loop is not woken by it, the child's is."""
    loop.run_until_complete(asyncio.sleep(0))

    def body():
        async def main():
            return await bounded(loop.run_in_executor(None, lambda: "from a thread"), 5)
        for _ in range(3):
            assert loop.run_until_complete(main()) == "from a thread"
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
    in_child(body)
    assert loop.run_until_complete(loop.run_in_executor(None, int)) == 0


def test_a_new_executor_works_in_the_child_of_a_parent_that_used_one(loop):
    """The threads of the parent's executor do not exist in the child, though the executor believes it."""
    loop.run_until_complete(loop.run_in_executor(None, int))

    def body():
        fresh = gmploop.new_event_loop()
        assert fresh.run_until_complete(bounded(fresh.run_in_executor(None, int), 5)) == 0
        assert fresh.run_until_complete(bounded(fresh.getaddrinfo("localhost", 1), 5))
        fresh.run_until_complete(fresh.shutdown_default_executor())
        fresh.close()
        loop.close()
    in_child(body)
    assert loop.run_until_complete(loop.run_in_executor(None, int)) == 0


@pytest.mark.parametrize("end", ["closes the loop", "exits"])
def test_a_transport_is_served_by_parent_and_child_in_turn(loop, end):
    near, far = unix_pair()

    async def connect():
        return await loop.create_connection(Recorder, sock=near)
    transport, protocol = loop.run_until_complete(connect())

    def body():
        far.send(b"to the child")
        loop.run_until_complete(bounded(protocol.received(12), 5))
        assert protocol.data == b"to the child"
        transport.write(b"from the child")
        assert far.recv(100) == b"from the child"
        if end == "closes the loop":
            transport.close()
            loop.run_until_complete(asyncio.sleep(0))
            loop.close()
    in_child(body)
    far.send(b"to the parent")
    loop.run_until_complete(bounded(protocol.received(13), 5))
    assert protocol.data == b"to the parent"
    transport.write(b"from the parent")
    assert far.recv(100) == b"from the parent"
    transport.close()
    loop.run_until_complete(bounded(protocol.lost, 5))
    far.close()


def test_sock_calls_go_on_in_the_child(loop):
    """The socket's registration is kept between calls; in the child it is another poller's."""
    near, far = unix_pair()

    async def exchange(text):
        receiving = asyncio.ensure_future(loop.sock_recv(near, 100))
        await asyncio.sleep(0)                              # it waits
        await loop.sock_sendall(far, text)
        return await bounded(receiving, 5)
    assert loop.run_until_complete(exchange(b"before")) == b"before"

    def body():
        for _ in range(3):
            assert loop.run_until_complete(exchange(b"in the child")) == b"in the child"
        loop.close()
    in_child(body)
    assert loop.run_until_complete(exchange(b"after")) == b"after"
    near.close()
    far.close()


def test_descriptors_closed_by_the_child_do_not_keep_its_loop_from_going_on(loop, pipe):
    source, sink = pipe
    other, seen = os.pipe(), []
    loop.add_reader(other[0], int)
    loop.add_reader(source, lambda: (seen.append(os.read(source, 100)), loop.stop()))

    def body():
        os.close(other[0])
        os.write(sink, b"still served")
        loop.call_later(5, loop.stop)
        loop.run_forever()
        assert seen == [b"still served"]
        loop.remove_reader(other[0])
        loop.close()
    in_child(body)
    loop.remove_reader(other[0])
    loop.remove_reader(source)
    for fd in other:
        os.close(fd)


@pytest.mark.parametrize("begun", ["before the fork", "in each child"])
def test_children_of_a_parent_that_waits_serve_all_who_come(loop, pipe, begun):
    """A parent that binds, forks and looks after its children only: no connection may wait for it."""
    class Greeter(asyncio.Protocol):
        def connection_made(self, transport):
            transport.write(b"hello")
            transport.close()

    server = loop.run_until_complete(loop.create_server(Greeter, "127.0.0.1", 0, start_serving=begun[0] == "b"))
    loop.run_until_complete(asyncio.sleep(0.001))

    source, sink = pipe

    def body():
        loop.run_until_complete(server.start_serving())
        loop.add_reader(source, lambda: (os.read(source, 1), loop.stop()))
        loop.run_forever()
        loop.remove_reader(source)
        server.close()
        loop.close()
    def listens():
        with contextlib.suppress(ConnectionRefusedError), socket.create_connection(server.sockets[0].getsockname(), 5):
            return True
    children = [fork(body) for _ in range(2)]
    try:
        wait_until(listens)
        for _ in range(10):
            with socket.create_connection(server.sockets[0].getsockname(), 5) as client:
                assert client.recv(100) == b"hello"
    finally:
        os.write(sink, b"x" * len(children))
        for child in children:
            ended(child)
        server.close()


def test_a_server_accepts_in_parent_and_child(loop):
    async def serve():
        return await loop.create_server(Recorder, "127.0.0.1", 0)
    server = loop.run_until_complete(serve())
    address = server.sockets[0].getsockname()

    async def ask():
        transport, protocol = await bounded(loop.create_connection(Recorder, *address), 5)
        transport.abort()
        await bounded(protocol.lost, 5)
        await asyncio.sleep(0)

    def body():
        loop.run_until_complete(ask())
        server.close()
        loop.run_until_complete(asyncio.sleep(0.001))
        loop.close()
    in_child(body)
    loop.run_until_complete(ask())
    server.close()
    loop.run_until_complete(asyncio.sleep(0.001))


def test_grandchildren_go_on_too(loop, pipe):
    source, sink = pipe
    seen = []
    loop.add_reader(source, lambda: (seen.append(os.read(source, 100)), loop.stop()))

    def hear(text):
        os.write(sink, text)
        loop.call_later(5, loop.stop)
        loop.run_forever()
        assert seen.pop() == text

    def body(depth):
        if depth:
            in_child(body, depth - 1)
        hear(f"depth {depth}".encode())
        loop.close()
    in_child(body, 2)
    hear(b"parent")
    loop.remove_reader(source)


# -- close() in the child

def epolls():
    return {fd for fd, target in open_fds() if target == "anon_inode:[eventpoll]"}


@pytest.fixture(autouse=True)
def own_epolls_only(monkeypatch):
    """The process may have one already, which goroutines of other tests watch with."""
    before = epolls()
    monkeypatch.setattr("core.test_fork.own_epolls", lambda: epolls() - before)


def own_epolls():
    return epolls()


def registrations():
    """What each epoll descriptor of this process watches."""
    found = {}
    for fd in own_epolls():
        with open(f"/proc/self/fdinfo/{fd}") as info:
            found[fd] = sorted(line.split("pos:")[0] for line in info if line.startswith("tfd"))
    return found


@pytest.mark.parametrize("prepare", ["as it is", "after running", "with a new loop"])
def test_close_in_the_child_is_silent_and_touches_nothing_of_the_parent(loop, pipe, capfd, prepare):
    source, sink = pipe
    seen = []
    loop.add_reader(source, lambda: (seen.append(os.read(source, 100)), loop.stop()))
    loop.add_signal_handler(signal.SIGUSR1, int)
    near, far = unix_pair()
    waiting = loop.create_task(loop_recv(loop, near))
    loop.run_until_complete(asyncio.sleep(0.001))
    before = registrations()

    def body():
        if prepare == "after running":
            loop.run_until_complete(asyncio.sleep(0.001))
        loop.close()
        loop.close()
        if prepare == "with a new loop":
            other = gmploop.new_event_loop()
            other.run_until_complete(asyncio.sleep(0.001))
            other.close()
        assert loop.is_closed()
    in_child(body)
    assert registrations() == before
    os.write(sink, b"parent")
    loop.call_later(5, loop.stop)
    loop.run_forever()
    assert seen == [b"parent"]
    far.send(b"still served")
    assert loop.run_until_complete(bounded(waiting, 5)) == b"still served"
    loop.remove_reader(source)
    loop.remove_signal_handler(signal.SIGUSR1)
    near.close()
    far.close()
    assert capfd.readouterr() == ("", "")


async def loop_recv(loop, sock):
    return await loop.sock_recv(sock, 100)


def test_nothing_of_the_loop_leaks_in_the_child(loop, pipe):
    loop.add_reader(pipe[0], int)
    loop.run_until_complete(asyncio.sleep(0.001))

    def body():
        before = len(open_fds())
        for _ in range(5):
            loop.run_until_complete(asyncio.sleep(0))
        assert len(open_fds()) == before
        assert len(own_epolls()) == 1
        loop.close()
        assert not own_epolls()
        for _ in range(20):
            fresh = gmploop.new_event_loop()
            fresh.run_until_complete(asyncio.sleep(0))
            fresh.close()
        assert not own_epolls()
    in_child(body)
    loop.remove_reader(pipe[0])


# -- the loop was running

def test_a_running_loop_raises_in_the_child_and_can_be_closed_there(loop):
    """Here the child returns into the loop from the callback that forked."""
    children = []

    def forking():
        children.append(os.fork())
    loop.call_soon(forking)
    loop.call_later(0.05, loop.stop)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        source, sink = os.pipe()
        try:
            loop.run_forever()
        except RuntimeError as exc:
            outcome = str(exc)
        else:
            outcome = "ended"
        if not children[0]:
            signal.alarm(20)
            try:
                loop.close()
                os.write(sink, outcome.encode())
            finally:
                os._exit(0)
    os.close(sink)
    ended_with = open(source).read()
    os.waitpid(children[0], 0)
    assert "was running when the process forked" in ended_with
    assert outcome == "ended"


def test_the_child_of_a_running_loop_runs_one_of_its_own(loop):
    near, far = unix_pair()

    async def use(own):
        reader, writer = await asyncio.open_connection(sock=near)
        far.send(b"data")
        assert await bounded(reader.readexactly(4), 5) == b"data"
        writer.close()
        assert await bounded(own.run_in_executor(None, int), 5) == 0

    def body():
        asyncio._set_running_loop(None)                     # os.fork() does it from Python 3.12 on
        own = gmploop.new_event_loop()
        own.run_until_complete(use(own))
        own.run_until_complete(own.shutdown_default_executor())
        own.close()

    async def parent():
        await loop.run_in_executor(None, int)
        child = fork(body)
        await bounded(loop.run_in_executor(None, ended, child), 20)
        await asyncio.sleep(0.001)
    loop.run_until_complete(parent())
    near.close()
    far.close()


def test_the_transports_of_a_running_loop_outlive_its_child(loop):
    async def main():
        near, far = unix_pair()
        transport, protocol = await loop.create_connection(Recorder, sock=near)
        source, sink = os.pipe()
        heard = loop.create_future()
        loop.add_reader(source, lambda: heard.done() or heard.set_result(os.read(source, 100)))
        before = registrations()

        def body():
            transport.pause_reading()                       # what the child does with it stays in the child
            transport.resume_reading()
            loop.remove_reader(source)
            transport.abort()
            assert len(own_epolls()) == 1
        await loop.run_in_executor(None, ended, fork(body))
        assert registrations() == before
        far.send(b"data")
        await bounded(protocol.received(4), 5)
        os.write(sink, b"reader")
        assert await bounded(heard, 5) == b"reader"
        loop.remove_reader(source)
        transport.close()
        await bounded(protocol.lost, 5)
        far.close()
        os.close(source)
        os.close(sink)
    loop.run_until_complete(main())


def test_the_parent_of_a_busy_child_is_not_woken_by_it(loop):
    """Wake-ups of the child's loop go to an eventfd of its own."""
    loop.run_until_complete(asyncio.sleep(0.001))
    wakefds = [fd for fd, target in open_fds() if target == "anon_inode:[eventfd]"]

    def counts():
        found = []
        for fd in wakefds:
            with open(f"/proc/self/fdinfo/{fd}") as info:
                found += [line.split()[1] for line in info if line.startswith("eventfd-count")]
        return found
    before = counts()

    def body():
        async def main():
            for _ in range(20):
                await loop.run_in_executor(None, int)
        loop.run_until_complete(main())
        loop.close()
    in_child(body)
    assert before and counts() == before
