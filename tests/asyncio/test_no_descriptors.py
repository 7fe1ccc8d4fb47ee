"""When the process has run out of descriptors."""

import asyncio
import contextlib
import os
import resource
import tracemalloc     # which a warning imports to show itself: not to be had without descriptors

import pytest

from support import LOOPS, Recorder, child, finish, left_open, outcome, result_of

pytestmark = pytest.mark.timeout(60)


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
            clients = [socket.socket() for _ in range(20)]
            for client in clients:
                client.setblocking(False)
            spare = os.dup(0)
            os.close(spare)
            limits = resource.getrlimit(resource.RLIMIT_NOFILE)
            # io_uring goes by the limit that was there when it was asked to accept
            resource.setrlimit(resource.RLIMIT_NOFILE, (spare + 1, limits[1]))
            server = await loop.create_server(Greeter, "127.0.0.1", 0)
            address = server.sockets[0].getsockname()
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
