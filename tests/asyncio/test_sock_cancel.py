"""sock_ calls that are cancelled: the descriptor is free at once, and no data and no client is lost."""

import asyncio
import socket
import time

import pytest

from support import turns, unanswering_listener, unix_pair

pytestmark = pytest.mark.timeout(60)


async def outcome_with_cancel(task):
    try:
        return await task
    except asyncio.CancelledError:
        return None


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
