"""The same as test_bad_input for what makes connections, for the sock_ calls, and for transports and protocols."""

import asyncio
import os
import socket
import ssl
import subprocess

import pytest

from rig import compare
from support import child_output, result_of, unix_pair

pytestmark = [pytest.mark.timeout(30), pytest.mark.filterwarnings("ignore::ResourceWarning"),
              pytest.mark.filterwarnings("ignore::DeprecationWarning"),
              pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]

P, D, S = asyncio.Protocol, asyncio.DatagramProtocol, asyncio.SubprocessProtocol


class NoMethods:
    """Not a protocol at all."""


class NoFile:
    pass


class LyingFile:
    def fileno(self):
        return -1

    def close(self):
        pass


def client_context():
    return ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)


# -- making connections

ROWS = {
    "create_connection to nowhere": lambda r: r.loop.create_connection(P),
    "create_connection without a factory": lambda r: r.loop.create_connection(),
    "create_connection with host and socket": lambda r: r.loop.create_connection(P, "127.0.0.1", 1, sock=r.pair()),
    "create_connection on a datagram socket": lambda r: r.loop.create_connection(P, sock=r.udp()),
    "create_connection on a closed socket": lambda r: r.loop.create_connection(P, sock=r.closed()),
    "create_connection on a number": lambda r: r.loop.create_connection(P, sock=5),
    "create_connection on an unconnected socket": lambda r: r.loop.create_connection(P, sock=r.fresh()),
    "create_connection on a TLS socket": lambda r: r.loop.create_connection(P, sock=r.tls_socket()),
    "create_connection with a factory of None": lambda r: r.loop.create_connection(None, sock=r.pair()),
    "create_connection with a factory that raises": lambda r: r.loop.create_connection(lambda: 1 / 0, sock=r.pair()),
    "create_connection with a factory that makes None": lambda r: r.loop.create_connection(lambda: None, sock=r.pair()),
    "create_connection with no protocol": lambda r: r.loop.create_connection(NoMethods, sock=r.pair()),
    "create_connection with a name and no TLS": lambda r: r.loop.create_connection(
        P, sock=r.pair(), server_hostname="x"),
    "create_connection with TLS and no name": lambda r: r.loop.create_connection(P, sock=r.pair(), ssl=True),
    "create_connection with TLS of 5": lambda r: r.loop.create_connection(
        P, sock=r.pair(), ssl=5, server_hostname="x"),
    "create_connection with a handshake timeout and no TLS": lambda r: r.loop.create_connection(
        P, sock=r.pair(), ssl_handshake_timeout=1),
    "create_connection with a handshake timeout of 0": lambda r: r.loop.create_connection(
        P, sock=r.pair(), ssl=client_context(), server_hostname="x", ssl_handshake_timeout=0),
    "create_connection with a negative handshake timeout": lambda r: r.loop.create_connection(
        P, sock=r.pair(), ssl=client_context(), server_hostname="x", ssl_handshake_timeout=-1),
    "create_connection with a negative shutdown timeout": lambda r: r.loop.create_connection(
        P, sock=r.pair(), ssl=client_context(), server_hostname="x", ssl_shutdown_timeout=-1),
    "create_connection to a number": lambda r: r.loop.create_connection(P, 5, 80),
    "create_connection to an unknown service": lambda r: r.loop.create_connection(P, "127.0.0.1", "no-such"),
    "create_connection to port 65536": lambda r: r.loop.create_connection(P, "127.0.0.1", 65536),
    "create_connection to port -1": lambda r: r.loop.create_connection(P, "127.0.0.1", -1),
    "create_connection to nobody": lambda r: r.loop.create_connection(P, *closed_port(r)),
    "create_connection from a foreign address": lambda r: r.loop.create_connection(
        P, *r.listener().getsockname(), local_addr=("192.0.2.1", 0)),
    "create_connection from nonsense": lambda r: r.loop.create_connection(
        P, *r.listener().getsockname(), local_addr="nonsense"),
    "create_connection of an odd family": lambda r: r.loop.create_connection(P, "127.0.0.1", 1, family=999),
    "create_connection with an unknown keyword": lambda r: r.loop.create_connection(P, "127.0.0.1", 1, nothing=1),
    "create_server of nothing": lambda r: r.loop.create_server(P),
    "create_server with host and socket": lambda r: r.loop.create_server(P, "127.0.0.1", 0, sock=r.listener()),
    "create_server on a datagram socket": lambda r: r.loop.create_server(P, sock=r.udp()),
    "create_server on a closed socket": lambda r: r.loop.create_server(P, sock=r.closed()),
    "create_server on a number": lambda r: r.loop.create_server(P, sock=5),
    "create_server with TLS of 5": lambda r: r.loop.create_server(P, "127.0.0.1", 0, ssl=5),
    "create_server with TLS of True": lambda r: r.loop.create_server(P, "127.0.0.1", 0, ssl=True),
    "create_server with a handshake timeout and no TLS": lambda r: r.loop.create_server(
        P, "127.0.0.1", 0, ssl_handshake_timeout=1),
    "create_server at a foreign address": lambda r: r.loop.create_server(P, "192.0.2.1", 0),
    "create_server at a used address": lambda r: r.loop.create_server(P, *r.listener().getsockname()),
    "create_server with a backlog of text": lambda r: r.loop.create_server(P, "127.0.0.1", 0, backlog="x"),
    "create_server with a backlog of -1": lambda r: r.loop.create_server(P, "127.0.0.1", 0, backlog=-1),
    "create_server twice on one socket": lambda r: server_twice(r),
    "create_server with a factory of None": lambda r: r.loop.create_server(None, "127.0.0.1", 0),
    "start_serving of a closed server": lambda r: start_closed(r),
    "server factory that raises": lambda r: serve_with(r, lambda: 1 / 0),
    "connect_accepted_socket of a datagram socket": lambda r: r.loop.connect_accepted_socket(P, r.udp()),
    "connect_accepted_socket of a closed socket": lambda r: r.loop.connect_accepted_socket(P, r.closed()),
    "connect_accepted_socket of a number": lambda r: r.loop.connect_accepted_socket(P, 5),
    "connect_accepted_socket with a timeout and no TLS": lambda r: r.loop.connect_accepted_socket(
        P, r.pair(), ssl_handshake_timeout=1),
    "connect_accepted_socket with TLS of 5": lambda r: r.loop.connect_accepted_socket(P, r.pair(), ssl=5),
    "create_unix_connection to nowhere": lambda r: r.loop.create_unix_connection(P),
    "create_unix_connection with path and socket": lambda r: r.loop.create_unix_connection(
        P, "/x", sock=r.fresh(socket.AF_UNIX)),
    "create_unix_connection on a TCP socket": lambda r: r.loop.create_unix_connection(P, sock=r.pair()),
    "create_unix_connection to a number": lambda r: r.loop.create_unix_connection(P, 5),
    "create_unix_connection to text with a null": lambda r: r.loop.create_unix_connection(P, "x\0y"),
    "create_unix_connection with TLS and no name": lambda r: r.loop.create_unix_connection(P, "/x", ssl=True),
    "create_unix_server of nothing": lambda r: r.loop.create_unix_server(P),
    "create_unix_server on a TCP socket": lambda r: r.loop.create_unix_server(P, sock=r.fresh()),
    "create_unix_server of an empty path": lambda r: r.loop.create_unix_server(P, ""),
    "create_unix_server of a number": lambda r: r.loop.create_unix_server(P, 5),
    "create_unix_server with TLS of True": lambda r: r.loop.create_unix_server(P, str(r.folder / "s"), ssl=True),
    "create_datagram_endpoint of nothing": lambda r: r.loop.create_datagram_endpoint(D),
    "create_datagram_endpoint on a TCP socket": lambda r: r.loop.create_datagram_endpoint(D, sock=r.fresh()),
    "create_datagram_endpoint with socket and address": lambda r: r.loop.create_datagram_endpoint(
        D, sock=r.udp(), local_addr=("127.0.0.1", 0)),
    "create_datagram_endpoint on a closed socket": lambda r: r.loop.create_datagram_endpoint(D, sock=r.closed()),
    "create_datagram_endpoint of nonsense": lambda r: r.loop.create_datagram_endpoint(D, local_addr="nonsense"),
    "create_datagram_endpoint of one": lambda r: r.loop.create_datagram_endpoint(D, local_addr=("127.0.0.1",)),
    "create_datagram_endpoint to a number": lambda r: r.loop.create_datagram_endpoint(D, remote_addr=5),
    "create_datagram_endpoint of mixed families": lambda r: r.loop.create_datagram_endpoint(
        D, local_addr=("::1", 0), remote_addr=("127.0.0.1", 1)),
    "create_datagram_endpoint at a foreign address": lambda r: r.loop.create_datagram_endpoint(
        D, local_addr=("192.0.2.1", 0)),
    "create_datagram_endpoint with a factory that raises": lambda r: r.loop.create_datagram_endpoint(
        lambda: 1 / 0, local_addr=("127.0.0.1", 0)),
}


def closed_port(r):
    listener = r.listener()
    address = listener.getsockname()
    listener.close()
    return address


async def server_twice(r):
    listener = r.listener()
    first = await r.loop.create_server(P, sock=listener)
    second = await r.loop.create_server(P, sock=listener)
    return result_of(first.close), result_of(second.close)


async def start_closed(r):
    server = await r.loop.create_server(P, "127.0.0.1", 0, start_serving=False)
    server.close()
    await server.start_serving()


async def serve_with(r, factory):
    server = await r.loop.create_server(factory, "127.0.0.1", 0)
    with socket.create_connection(server.sockets[0].getsockname()) as client:
        client.setblocking(False)
        try:
            got = await asyncio.wait_for(r.loop.sock_recv(client, 10), 0.05)
        except (ConnectionError, TimeoutError) as exc:
            got = type(exc).__name__
    server.close()
    return got


# -- pipes and subprocesses

for side in ("read", "write"):
    ROWS |= {
        f"connect_{side}_pipe of {what}": lambda r, side=side, make=make: getattr(
            r.loop, f"connect_{side}_pipe")(P, make(r))
        for what, make in {
            "a file": lambda r: r.file(), "a folder": lambda r: Folder(r), "a closed file": lambda r: r.closed_file(),
            "a number": lambda r: 5, "None": lambda r: None, "an object": lambda r: NoFile(),
            "an object that says -1": lambda r: LyingFile()}.items()}
    ROWS[f"connect_{side}_pipe with a factory that raises"] = lambda r, side=side: getattr(
        r.loop, f"connect_{side}_pipe")(lambda: 1 / 0, r.pipe())


class Folder:
    def __init__(self, r):
        self.fd = os.open(r.folder, os.O_RDONLY)
        r.stack.callback(os.close, self.fd)

    def fileno(self):
        return self.fd

    def close(self):
        pass


for what, options in {"text": {"text": True}, "universal newlines": {"universal_newlines": True},
                      "an encoding": {"encoding": "utf-8"}, "errors": {"errors": "strict"}, "a shell": {"shell": True},
                      "a buffer size": {"bufsize": 1}, "an unknown option": {"nothing": 1},
                      "a bad folder": {"cwd": "/no/such"}, "a bad stdin": {"stdin": "x"},
                      "a bad environment": {"env": 5}}.items():
    ROWS[f"subprocess_exec with {what}"] = lambda r, o=options: spawned(r.loop.subprocess_exec(S, "true", **o))
    ROWS[f"subprocess_shell with {what}"] = lambda r, o=options: spawned(r.loop.subprocess_shell(S, "true", **o))
ROWS |= {
    "subprocess_exec of nothing": lambda r: r.loop.subprocess_exec(S),
    "subprocess_exec of a number": lambda r: r.loop.subprocess_exec(S, 5),
    "subprocess_exec of text with a null": lambda r: r.loop.subprocess_exec(S, "true\0x"),
    "subprocess_exec of an unknown program": lambda r: r.loop.subprocess_exec(S, "/no/such/program"),
    "subprocess_shell of a number": lambda r: r.loop.subprocess_shell(S, 5),
    "subprocess_shell of a list": lambda r: r.loop.subprocess_shell(S, ["true"]),
    "create_subprocess_exec of nothing": lambda r: asyncio.create_subprocess_exec(),
    "communicate with text": lambda r: communicate_text(),
}


async def spawned(coro):
    transport, _ = await coro
    await transport._wait()
    transport.close()
    return "spawned"


async def communicate_text():
    process = await asyncio.create_subprocess_exec("cat", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        return await process.communicate("text")
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


# -- sock_ calls

BUFFERS = {"text": "text", "None": None, "a number": 5, "read-only bytes": b"x" * 10, "a list": [1]}
ROWS |= {f"sock_recv of {what}": lambda r, n=n: r.loop.sock_recv(r.pair(), n)
         for what, n in {"-1": -1, "text": "x", "None": None, "a float": 1.5, "too much": 2 ** 70}.items()}
ROWS |= {f"sock_{method} into {what}": lambda r, m=method, b=buffer: getattr(r.loop, f"sock_{m}")(with_data(r), b)
         for method in ("recv_into", "recvfrom_into") for what, buffer in BUFFERS.items()}
ROWS |= {f"sock_sendall of {what}": lambda r, b=buffer: r.loop.sock_sendall(r.pair(), b)
         for what, buffer in {**BUFFERS, "gaps": memoryview(b"abcdef")[::2]}.items()}
ROWS |= {f"sock_sendto {what}": lambda r, a=address: r.loop.sock_sendto(r.udp(), b"x", a)
         for what, address in {"None": None, "text": "x", "port 65536": ("127.0.0.1", 65536), "one": ("127.0.0.1",),
                               "a number": 5, "an unresolved name": ("localhost", 1)}.items()}
ROWS |= {f"sock_connect to {what}": lambda r, a=address: r.loop.sock_connect(r.fresh(), a)
         for what, address in {"None": None, "text": "x", "port 65536": ("127.0.0.1", 65536), "one": ("127.0.0.1",),
                               "a number": 5, "an IPv6 address": ("::1", 1),
                               "a service": ("127.0.0.1", "no-such")}.items()}
CALLS = {"sock_recv": (10,), "sock_recv_into": (bytearray(10),), "sock_recvfrom": (10,), "sock_sendall": (b"x",),
         "sock_recvfrom_into": (bytearray(10),), "sock_sendto": (b"x", ("127.0.0.1", 1)), "sock_accept": (),
         "sock_connect": (("127.0.0.1", 1),)}
for method, args in CALLS.items():
    def on(make, method=method, args=args, debug=False):
        return lambda r: getattr(r.debug() if debug else r.loop, method)(make(r), *args)
    ROWS |= {
        f"{method} on a closed socket": on(lambda r: r.closed()),
        f"{method} on a number": on(lambda r: 5),
        f"{method} on None": on(lambda r: None),
        f"{method} on a TLS socket": on(lambda r: r.tls_socket()),
        f"{method} on a blocking socket in debug mode": on(lambda r: r.blocking(), debug=True),
        f"{method} on a transport's socket": lambda r, m=method, a=args: on_transport(r, m, a),
        f"{method} without arguments": lambda r, m=method: getattr(r.loop, m)(),
    }
ROWS |= {
    "sock_accept on a connected socket": lambda r: r.loop.sock_accept(r.pair()),
    "sock_connect of a connected socket": lambda r: r.loop.sock_connect(r.pair(), r.listener().getsockname()),
    "sock_connect to a closed port": lambda r: r.loop.sock_connect(r.fresh(), closed_port(r)),
    "sock_recv on an unconnected socket": lambda r: r.loop.sock_recv(r.fresh(), 10),
    "sock_sendall on an unconnected socket": lambda r: r.loop.sock_sendall(r.fresh(), b"x"),
    "sock_recvfrom_into with a size too large": lambda r: r.loop.sock_recvfrom_into(with_data(r), bytearray(10), 20),
    "sock_recvfrom_into with a negative size": lambda r: r.loop.sock_recvfrom_into(with_data(r), bytearray(10), -1),
    "sock_sendfile of a text file": lambda r: r.loop.sock_sendfile(r.pair(), r.file("r")),
    "sock_sendfile of a closed file": lambda r: r.loop.sock_sendfile(r.pair(), r.closed_file()),
    "sock_sendfile on a datagram socket": lambda r: r.loop.sock_sendfile(r.udp(), r.file()),
    "sock_sendfile from a negative offset": lambda r: r.loop.sock_sendfile(r.pair(), r.file(), -1),
    "sock_sendfile of a count of 0": lambda r: r.loop.sock_sendfile(r.pair(), r.file(), 0, 0),
    "sock_sendfile of a count of -1": lambda r: r.loop.sock_sendfile(r.pair(), r.file(), 0, -1),
    "sock_sendfile of a count of text": lambda r: r.loop.sock_sendfile(r.pair(), r.file(), 0, "x"),
    "sock_sendfile from an offset of text": lambda r: r.loop.sock_sendfile(r.pair(), r.file(), "x"),
    "sock_sendfile on a blocking socket in debug mode": lambda r: r.debug().sock_sendfile(r.blocking(), r.file()),
    "sock_sendfile past the end": lambda r: r.loop.sock_sendfile(r.pair(), r.file(), 100),
    "sock_sendfile of None": lambda r: r.loop.sock_sendfile(r.pair(), None),
}


def with_data(r):
    near, far = unix_pair()
    r.keep(far).send(b"x")
    return r.keep(near)


async def on_transport(r, method, args):
    transport = await r.transport()
    return await getattr(r.loop, method)(transport.get_extra_info("socket")._sock, *args)


# -- start_tls and sendfile of transports

ROWS |= {
    "start_tls of None": lambda r: r.loop.start_tls(None, P(), client_context()),
    "start_tls with a context of 5": lambda r: with_transport(r, lambda t: r.loop.start_tls(t, P(), 5)),
    "start_tls without a name": lambda r: with_transport(
        r, lambda t: r.loop.start_tls(t, P(), ssl.create_default_context(), ssl_handshake_timeout=0.01)),
    "start_tls with a timeout of 0": lambda r: with_transport(
        r, lambda t: r.loop.start_tls(t, P(), client_context(), server_hostname="x", ssl_handshake_timeout=0)),
    "start_tls of a closed transport": lambda r: with_transport(
        r, lambda t: (t.close(), r.loop.start_tls(t, P(), client_context(), server_hostname="x"))[1]),
    "start_tls of a read pipe": lambda r: tls_on_pipe(r),
    "sendfile of a text file": lambda r: with_transport(r, lambda t: r.loop.sendfile(t, r.file("r"))),
    "sendfile of a closed file": lambda r: with_transport(r, lambda t: r.loop.sendfile(t, r.closed_file())),
    "sendfile of a count of 0": lambda r: with_transport(r, lambda t: r.loop.sendfile(t, r.file(), 0, 0)),
    "sendfile of a count of -1": lambda r: with_transport(r, lambda t: r.loop.sendfile(t, r.file(), 0, -1)),
    "sendfile from a negative offset": lambda r: with_transport(r, lambda t: r.loop.sendfile(t, r.file(), -1)),
    "sendfile past the end": lambda r: with_transport(r, lambda t: r.loop.sendfile(t, r.file(), 100)),
    "sendfile on a closed transport": lambda r: with_transport(
        r, lambda t: (t.close(), r.loop.sendfile(t, r.file()))[1]),
    "sendfile on None": lambda r: r.loop.sendfile(None, r.file()),
    "sendfile of a pipe": lambda r: with_transport(r, lambda t: r.loop.sendfile(t, r.pipe(), fallback=False)),
}


async def with_transport(r, call):
    return await call(await r.transport())


async def tls_on_pipe(r):
    transport, protocol = await r.loop.connect_read_pipe(P, r.pipe())
    try:
        await r.loop.start_tls(transport, protocol, client_context(), server_hostname="x")
    finally:
        transport.close()


@pytest.mark.parametrize("row", ROWS)
def test_call(row, tmp_path):
    compare(ROWS[row], tmp_path)


# -- descriptors that somebody closes or uses behind the loop's back

@pytest.mark.parametrize("kind", ["tcp", "unix", "pipe"])
@pytest.mark.parametrize("then", ["close", "abort", "write", "nothing"])
def test_a_descriptor_closed_behind_the_loop_s_back_is_survived(loop_kind, kind, then):
    """A fault of the program, which is told by an error at most: the loop and its other connections live."""
    output = child_output(loop_kind, """
        import warnings
        warnings.simplefilter("ignore")
        kind, then = sys.argv[1:]

        class Quiet(asyncio.Protocol):
            def connection_lost(self, exc):
                pass

        async def main():
            loop = asyncio.get_running_loop()
            loop.set_exception_handler(lambda *args: None)
            if kind == "pipe":
                source, sink = os.pipe()
                transport, _ = await loop.connect_write_pipe(Quiet, open(sink, "wb", 0))
                number = sink
            else:
                if kind == "unix":
                    near, far = socket.socketpair()
                else:
                    with socket.create_server(("127.0.0.1", 0)) as server:
                        near = socket.create_connection(server.getsockname())
                        far, _ = server.accept()
                transport, _ = await loop.create_connection(Quiet, sock=near)
                number = near.fileno()
            os.close(number)
            if then == "write":
                for _ in range(3):
                    transport.write(b"x" * 100)
                    await asyncio.sleep(0)
            elif then == "nothing":
                await asyncio.sleep(0.01)
            else:
                getattr(transport, then)()
            await asyncio.sleep(0.01)
            transport.abort()
            await asyncio.sleep(0.01)  # it closes the number once more: that had better be over when it is used again
            one, two = socket.socketpair()
            reader, writer = await asyncio.open_connection(sock=one)
            two.send(b"alive")
            print((await asyncio.wait_for(reader.readexactly(5), 5)).decode(), flush=True)
            writer.close()
            two.close()

        loop = new_loop()
        loop.run_until_complete(main())
        os._exit(0)  # what else holds the closed number is beside the point
    """, kind, then)
    assert output == "alive\n"
