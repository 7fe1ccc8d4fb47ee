"""Numbers of descriptors that are used again: events go to the owner of the moment, never to a former one's."""

import asyncio
import contextlib
import socket
import threading

import pytest
from gmploop import config
from support import Recorder, bounded, reopened, turns, unix_pair

from .test_poller import until

pytestmark = pytest.mark.timeout(60)


def silent(loop, fd):
    def called(*args):
        raise AssertionError("an event of a former owner of the number")
    loop.add_reader(fd, called)


@pytest.mark.parametrize("dup", [False, True], ids=["closed", "a duplicate stays open"])
def test_events_of_a_reader_s_former_file_do_not_reach_the_new_one(run, loop, dup):
    async def main():
        near, far = unix_pair()
        fd = near.fileno()
        loop.add_reader(near, int)
        await turns(2)
        kept = near.dup() if dup else None
        loop.remove_reader(near)
        near.close()
        new_near, new_far = reopened(fd)
        silent(loop, fd)
        with contextlib.suppress(OSError):
            far.send(b"to the former owner")
        far.close()
        await turns(10)
        loop.remove_reader(fd)
        heard = loop.create_future()
        loop.add_reader(fd, lambda: heard.done() or heard.set_result(new_near.recv(9)))
        new_far.send(b"new")
        assert await bounded(heard, 5) == b"new"
        loop.remove_reader(fd)
        for sock in filter(None, (new_near, new_far, kept)):
            sock.close()
    run(main())


@pytest.mark.parametrize("how", ["close", "duplicate", "detach"])
def test_a_socket_with_the_number_of_one_used_before_gets_its_own_events(run, loop, how):
    """sock_*() calls leave the descriptor registered; nobody says that it is closed."""
    async def main():
        near, far = unix_pair()
        fd = near.fileno()

        async def exchange(one, other, text):
            receiving = asyncio.ensure_future(loop.sock_recv(one, 100))
            await turns(3)
            await loop.sock_sendall(other, text)
            return await bounded(receiving, 5)
        assert await exchange(near, far, b"first") == b"first"
        kept = near.dup() if how == "duplicate" else None
        if how == "detach":                     # the same file in a new socket object
            near.detach()
            new_near, new_far = socket.socket(fileno=fd), far
            new_near.setblocking(False)
        else:
            near.close()
            new_near, new_far = reopened(fd)
        waiting = asyncio.ensure_future(loop.sock_recv(new_near, 100))
        await turns(3)
        if kept:
            far.send(b"for the duplicate")      # a stale event: of a file that is still registered
            await turns(5)
            assert not waiting.done()
        await loop.sock_sendall(new_far, b"second")
        assert await bounded(waiting, 5) == b"second"
        del near
        assert await exchange(new_near, new_far, b"third") == b"third"
        if kept:
            assert kept.recv(100) == b"for the duplicate"
            kept.close()
        for sock in {new_near, new_far, far}:
            sock.close()
    run(main())


def test_a_socket_object_that_dies_late_leaves_the_new_owner_of_its_number_alone(run, loop):
    async def main():
        near, far = unix_pair()
        fd = near.fileno()
        await bounded(asyncio.gather(loop.sock_recv(near, 9), loop.sock_sendall(far, b"x")), 5)
        waiting = asyncio.ensure_future(loop.sock_recv(near, 9))
        await turns(2)
        waiting.cancel()
        await turns(2)
        near.close()
        new_near, new_far = reopened(fd)
        transport, protocol = await loop.create_connection(Recorder, sock=new_near)
        del near, waiting                       # the weak reference to the first socket object fires
        await turns(2)
        new_far.send(b"data")
        await bounded(protocol.received(4), 5)
        transport.abort()
        await bounded(protocol.lost, 5)
        far.close()
        new_far.close()
    run(main())


@pytest.mark.parametrize("kind", ["reader", "sock_recv"])
def test_events_fetched_before_the_number_changed_hands_are_dropped(run, loop, kind):
    """Both descriptors are ready in the same poll. Who is called first closes the other, and a new file gets its
    number before the turn comes to it."""
    async def main():
        (one, one_far), (two, two_far) = unix_pair(), unix_pair()
        swapped = []

        def swap(mine, other):
            if swapped:
                return
            loop.remove_reader(mine)
            loop.remove_reader(other)
            fd = other.fileno()
            other.close()
            swapped.append((mine, *reopened(fd)))
            if kind == "reader":
                silent(loop, fd)
            else:
                swapped.append(asyncio.ensure_future(loop.sock_recv(swapped[0][1], 9)))
        loop.add_reader(one, swap, one, two)
        loop.add_reader(two, swap, two, one)
        one_far.send(b"x")
        two_far.send(b"x")
        await until(lambda: swapped)
        await turns(10)
        mine, new_near, new_far = swapped[0]
        if kind == "reader":
            loop.remove_reader(new_near)
        else:
            assert not swapped[1].done()
            new_far.send(b"new")
            assert await bounded(swapped[1], 5) == b"new"
        for sock in (one_far, two_far, mine, new_near, new_far):
            sock.close()
    run(main())


def test_a_transport_s_number_may_be_used_again_at_once(run, loop):
    """connection_lost of one and connection_made of the next with the same number, in every turn."""
    async def main():
        for number in range(50):
            near, far = unix_pair()
            transport, protocol = await loop.create_connection(Recorder, sock=near)
            far.send(b"first")
            transport.abort() if number % 2 else far.close()
            await bounded(protocol.lost, 5)
            again, again_far = unix_pair()
            assert number % 2 == 0 or {again.fileno(), again_far.fileno()} != {near.fileno()}
            transport, protocol = await loop.create_connection(Recorder, sock=again)
            again_far.send(b"second")
            await bounded(protocol.received(6), 5)
            assert protocol.data == b"second"
            transport.close()
            await bounded(protocol.lost, 5)
            again_far.close()
            far.close()
    run(main())


@pytest.mark.skipif(config.gil_enabled(), reason="with the GIL a registration is told at once that its socket is gone")
def test_a_socket_object_that_dies_in_another_thread_is_not_taken_for_one_at_its_address(run, loop):
    """Its registration hears of that with a later turn; until then number and address may both be those of another socket."""
    async def main():
        for _ in range(10):
            near, far = unix_pair()
            await bounded(asyncio.gather(loop.sock_recv(near, 9), loop.sock_sendall(far, b"x")), 5)
            fd, address = near.fileno(), id(near)
            near.close()
            far.close()
            held, near = [near], None
            taken, dropped = threading.Event(), threading.Event()

            def drops():
                last = held[0]
                taken.set()
                dropped.wait(10)
                del last
            dropper = threading.Thread(target=drops)
            dropper.start()
            taken.wait(10)
            held.clear()
            dropped.set()
            dropper.join()
            mine, peer = sorted(unix_pair(), key=lambda sock: sock.fileno() != fd)
            assert mine.detach() == fd
            others = []
            for _ in range(20000):              # the allocator gives the address again some time
                new = socket.socket(fileno=fd)
                if id(new) == address:
                    break
                new.detach()
                others.append(new)
            else:
                new = socket.socket(fileno=fd)
            new.setblocking(False)
            loop.call_soon(loop.call_soon, peer.send, b"y")
            async with asyncio.timeout(5):
                assert await loop.sock_recv(new, 9) == b"y"     # begins in this very step
            new.close()
            peer.close()
    run(main())
