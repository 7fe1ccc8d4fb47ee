"""What the tests share: loops, links between two transports, and looks at the process from outside."""

import asyncio
import contextlib
import gc
import os
import select
import socket
import ssl
import struct
import subprocess
import sys
import textwrap
import time
import types

import pytest

import gmploop

LOOPS = {"asyncio": asyncio.SelectorEventLoop, "gmploop": gmploop.new_event_loop}

#: The same as source text, for tests that need a process of their own.
LOOP_SOURCE = {"asyncio": "asyncio.SelectorEventLoop", "gmploop": "gmploop.new_event_loop"}


NEVER = (99,)


def version_in(ranges):
    """Whether this Python is in one of the (since, until) ranges; no range at all stands for every Python."""
    return not ranges or any(since <= sys.version_info[:3] < until for since, until in ranges)


# -- the process from outside

def open_fds():
    """Number and target of each open descriptor, but those of the rings that goroutines' threads keep for the process."""
    found = set()
    batch = sys.modules.get("gmploop.core.batch")
    kept = batch.open_rings() if batch is not None else []
    for name in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):  # the listing's own descriptor is closed by now
            if int(name) not in kept:
                found.add((int(name), os.readlink(f"/proc/self/fd/{name}")))
    return found


def threads():
    """Id and name of each thread of the process but gmploop's own, which live as long as the process, and the kernel's, which
    it ends when they have been idle for five seconds."""
    found = set()
    for tid in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):
            with open(f"/proc/self/task/{tid}/comm") as comm:
                name = comm.read().strip()
            if not name.startswith(("gmploop", "iou-wrk")):
                found.add((int(tid), name))
    return found


#: Seconds that what a test has left gets to go away.
PATIENCE = 3


def leftovers(look, before):
    """What `look()` has more than `before`, once it has had time to go away."""
    deadline = time.monotonic() + PATIENCE
    while left := look() - before:
        gc.collect()
        if time.monotonic() > deadline:
            break
        time.sleep(0.002)
    return left


def inode(fd):
    """What a descriptor refers to: equal for two calls if nobody closed and reused the number between them."""
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def wait_until(predicate, timeout=5):
    """For threads without a loop: poll until true."""
    deadline = time.monotonic() + timeout
    while not predicate():
        assert time.monotonic() < deadline, "timed out"
        time.sleep(0.001)


# -- loops

async def bounded(coro, timeout):
    async with asyncio.timeout(timeout):
        return await coro


def finish(loop):
    """Close the loop as asyncio.run() does and return the tasks that would not end by themselves."""
    if loop.is_closed() or loop.is_running():
        return []
    left = pending(loop)
    deadline = time.monotonic() + 2
    while left and time.monotonic() < deadline:
        loop.run_until_complete(asyncio.sleep(0.001))
        left = pending(loop)
    for task in left:
        task.cancel()
    if left:
        loop.run_until_complete(asyncio.wait(left, timeout=2))
    loop.run_until_complete(loop.shutdown_asyncgens())
    loop.run_until_complete(loop.shutdown_default_executor())
    gc.collect()  # transports that somebody dropped are closed while their loop can still do it
    loop.run_until_complete(turns(2))
    loop.close()
    return left


def factory_of(make, errors, body_failed):
    """For fixtures: a function that makes loops, which are closed afterwards; a task left on one is a failure."""
    made = []

    def factory():
        loop = make()
        loop.set_exception_handler(lambda _, context: errors.append(context))
        made.append(loop)
        return loop

    yield factory
    left = [task for loop in made for task in finish(loop)]
    assert body_failed() or not left, "tasks left behind"


def pending(loop):
    return [task for task in asyncio.all_tasks(loop) if not task.done()]


def warm_up(loop):
    async def main():
        await loop.run_in_executor(None, int)
        await loop.getaddrinfo("localhost", 80)
        child = await asyncio.create_subprocess_exec("true", stdout=-1)
        await child.communicate()
        loop.add_signal_handler(10, int)
        loop.remove_signal_handler(10)
        loop.call_soon_threadsafe(int)
    loop.run_until_complete(main())
    finish(loop)


async def turns(count):
    """Let the loop make some turns. A loop need not look for input and output in each of them."""
    for _ in range(count):
        await asyncio.sleep(0)


async def settle():
    """Let the loop do what input and output there is: with nothing else to do it looks for some."""
    for _ in range(3):
        await asyncio.sleep(0.001)


async def outcome(awaitable):
    """The result of the awaitable or the class of its exception."""
    try:
        return await awaitable
    except Exception as exc:
        return type(exc)


def result_of(function, *args, **kwargs):
    """The result of the call or the class of its exception."""
    try:
        return function(*args, **kwargs)
    except Exception as exc:
        return type(exc)


# -- what a test leaves to the collector on purpose

def left_open(function):
    """For tests that leave a transport or a loop to the collector, which warns of it, by their very purpose."""
    for message in "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning":
        function = pytest.mark.filterwarnings(message)(function)
    return function


# -- child processes

def child(kind, source, *args, timeout=30, options=(), **kwargs):
    """Run `source` in a process of its own, where `new_loop()` makes a loop of this kind."""
    prelude = f"import asyncio, gc, os, signal, socket, sys, threading, time\n" \
              f"{'import gmploop' if kind == 'gmploop' else ''}\nnew_loop = {LOOP_SOURCE[kind]}\n"
    same_gmploop = os.path.dirname(os.path.dirname(gmploop.__file__))
    if "-E" in options:                 # which has the child ignore PYTHONPATH
        prelude = f"import sys; sys.path.insert(0, {same_gmploop!r})\n{prelude}"
    return subprocess.run([sys.executable, "-P", *options, "-c", prelude + textwrap.dedent(source), *args],
                          capture_output=True, text=True, timeout=timeout,
                          env={**os.environ, "PYTHONPATH": same_gmploop}, **kwargs)


def child_output(kind, source, *args, **kwargs):
    """Output of a child that must end well and silently."""
    done = child(kind, source, *args, **kwargs)
    assert (done.returncode, done.stderr) == (0, ""), f"exit status {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


# -- sockets

def tcp_pair():
    """Two connected TCP sockets over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    return set_up(near), set_up(far)


def unix_pair():
    near, far = socket.socketpair()
    return set_up(near), set_up(far)


def reopened(fd):
    """A socketpair whose near end has this number."""
    near, far = unix_pair()
    if near.fileno() != fd:
        os.dup2(near.fileno(), fd)
        near.close()
        near = socket.socket(fileno=fd)
        near.setblocking(False)
    return near, far


def set_up(sock):
    """Not blocking, and with buffers small enough that a megabyte does not fit."""
    sock.setblocking(False)
    for option in socket.SO_SNDBUF, socket.SO_RCVBUF:
        sock.setsockopt(socket.SOL_SOCKET, option, 64 * 1024)
    return sock


def reset(sock):
    """Close so that the peer sees a reset instead of an end of file (TCP)."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


@contextlib.contextmanager
def unanswering_listener(family=socket.AF_INET):
    """Address of a loopback listener whose backlog is full, so that a connection attempt stays unanswered."""
    with contextlib.ExitStack() as stack:
        listener = stack.enter_context(socket.socket(family))
        listener.bind(("127.0.0.1", 0))
        listener.listen(0)
        for _ in range(8):
            sock = stack.enter_context(socket.socket(family))
            sock.setblocking(False)
            sock.connect_ex(listener.getsockname())
            if not select.select([], [sock], [], 0.05)[1]:
                break
        else:
            raise AssertionError("the listener goes on answering")
        yield listener


# -- TLS

def make_tls(folder):
    key, cert = folder / "key.pem", folder / "cert.pem"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                    "-keyout", key, "-out", cert, "-days", "2", "-subj", "/CN=localhost",
                    "-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1",
                    "-addext", "keyUsage=critical,digitalSignature,keyCertSign"],
                   check=True, capture_output=True, timeout=30)
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(cert, key)
    client = ssl.create_default_context(cafile=cert)
    return types.SimpleNamespace(server=server, client=client, cert=cert, key=key)


# -- protocols and links

class Recorder(asyncio.Protocol):
    """Notes what the transport tells it. `events` are names in order, `data` all bytes."""

    def __init__(self):
        self.events = []
        self.data = bytearray()
        self.transport = None
        self.lost = asyncio.get_running_loop().create_future()
        self.eof_keeps_open = False
        self._changed = asyncio.Event()

    def note(self, name):
        self.events.append(name)
        self._changed.set()

    def count(self, name):
        return self.events.count(name)

    async def until(self, predicate):
        while not predicate():
            self._changed.clear()
            await self._changed.wait()

    async def received(self, count):
        await self.until(lambda: len(self.data) >= count)

    def connection_made(self, transport):
        self.transport = transport
        self.note("made")

    def data_received(self, data):
        self.data += data
        self.note("data")

    def datagram_received(self, data, addr):
        self.data += data
        self.note("datagram")

    def error_received(self, exc):
        self.note("error")

    def eof_received(self):
        self.note("eof")
        return self.eof_keeps_open

    def pause_writing(self):
        self.note("pause")

    def resume_writing(self):
        self.note("resume")

    def connection_lost(self, exc):
        self.note("lost")
        self.lost.set_result(exc)


def pattern(size):
    """Bytes in which a piece that is missing, doubled or out of place shows."""
    return b"".join(number.to_bytes(4, "big") for number in range(size // 4 + 1))[:size]


LINKS = ("tcp", "unix", "tls", "pipe")
STREAM_LINKS = ("tcp", "unix", "tls")


@contextlib.asynccontextmanager
async def link(kind, tls=None, near=Recorder, far=Recorder):
    """Two connected protocols, (near, far), on the running loop. On a pipe, near writes and far reads."""
    loop = asyncio.get_running_loop()
    if kind == "pipe":
        source, sink = os.pipe()
        ends = (loop.connect_write_pipe(near, open(sink, "wb", 0)), loop.connect_read_pipe(far, open(source, "rb", 0)))
    else:
        one, two = unix_pair() if kind == "unix" else tcp_pair()
        for end in (one, two) if kind != "unix" else ():    # stock sets it only on sockets with a protocol number
            end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client, server = ({"ssl": tls.client, "server_hostname": "localhost"}, {"ssl": tls.server}) \
            if kind == "tls" else ({}, {})
        ends = loop.create_connection(near, sock=one, **client), loop.connect_accepted_socket(far, two, **server)
    (_, near), (_, far) = await asyncio.gather(*ends)
    try:
        yield near, far
    finally:
        for end in near, far:
            if not end.lost.done():
                getattr(end.transport, "abort", end.transport.close)()
        await asyncio.gather(near.lost, far.lost, return_exceptions=True)
