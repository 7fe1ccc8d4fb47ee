"""Servers with a world for each connection beside ordinary ones: `python -m gmploop.bench.isolated [ROW...]`.

accept    connections a second that are made, echo 64 bytes and are closed; the server's CPU time for one, µs
echo      requests a second over 50 connections that stay, 1 KB; CPU time of one, µs
compute   requests a second where each computes for about a millisecond
blocker   p99 of the others in ms, while one connection's handler blocks 200 ms at a time: by time.sleep, and computing

Servers take turns, each in a process of its own; shown is the median of the rounds. "isolated" is gmploop's loop with a
world for each connection, "gmploop" the same loop without. Handlers are streams' (accept, echo: a Protocol's too).
"""

import argparse
import asyncio
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import threading
import time

BLOCK_S = 0.2
HOST = "127.0.0.1"


# -- the server, in a process that imports nothing of the suite

class Echo(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport = transport

    def data_received(self, data):
        self.transport.write(data)


def compute(seconds):
    """Pure Python for so long."""
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        sum(range(200))


def streams_handler(before_reply):
    async def handle(reader, writer):
        while data := await reader.read(1 << 16):
            before_reply()
            writer.write(data)
            await writer.drain()
        writer.close()
    return handle


WORK = {"none": int, "compute": lambda: compute(0.001), "sleep": lambda: time.sleep(BLOCK_S),
        "burn": lambda: compute(BLOCK_S)}


async def serve(isolate, kind, work):
    if isolate:
        import gmploop
        start = gmploop.start_server
    else:
        start = asyncio.start_server
    if kind == "protocol":
        options = {"isolate": True} if isolate else {}
        server = await asyncio.get_running_loop().create_server(Echo, HOST, 0, backlog=1024, **options)
    else:
        quiet = "none" if work in ("sleep", "burn") else work
        server = await start(streams_handler(WORK[quiet]), HOST, 0, backlog=1024)
    blocking = await start(streams_handler(WORK[work]), HOST, 0)
    print(json.dumps([each.sockets[0].getsockname()[1] for each in (server, blocking)]), flush=True)
    await asyncio.Event().wait()


def child(name, isolate, kind, work, procs):
    if name == "gmploop":
        import gmploop
        factory = gmploop.new_event_loop
        if isolate:
            gmploop.set_procs(procs)
    elif name == "uvloop":
        import uvloop
        factory = uvloop.new_event_loop
    else:
        factory = asyncio.SelectorEventLoop
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(serve(isolate, kind, work))


# -- the measuring process

@contextlib.contextmanager
def running(*arguments):
    """A server; yields its process and its two ports."""
    command = [sys.executable, os.path.abspath(__file__), "--child", json.dumps(arguments)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        try:
            yield process, json.loads(process.stdout.readline())
        finally:
            process.kill()


def load(port, pid, seconds, *options):
    from gmploop.bench import native
    command = [native.build("loadgen"), "-p", str(port), "-P", str(pid), "-t", str(seconds), *options]
    return json.loads(subprocess.run(command, check=True, capture_output=True, timeout=seconds + 60).stdout)


@contextlib.contextmanager
def kept_busy(port):
    """A connection on which one request after another is under way."""
    with socket.create_connection((HOST, port)) as sock:
        def ask():
            with contextlib.suppress(OSError):
                while True:
                    sock.sendall(b"x")
                    sock.recv(1)
        thread = threading.Thread(target=ask, daemon=True)
        thread.start()
        try:
            yield
        finally:
            sock.shutdown(socket.SHUT_RDWR)
            thread.join()


def accept(seconds, server):
    with running(*server) as (process, (port, _)):
        got = load(port, process.pid, seconds, "-m", "connect", "-s", "64", "-c", "50")
    return got["requests"] / got["seconds"], got["cpu_ns"] / got["requests"] / 1000


def echo(seconds, server):
    with running(*server) as (process, (port, _)):
        got = load(port, process.pid, seconds, "-m", "echo", "-s", "1024", "-c", "50")
    return got["requests"] / got["seconds"], got["cpu_ns"] / got["requests"] / 1000


def blocker(seconds, server):
    with running(*server) as (process, (port, busy)), kept_busy(busy):
        got = load(port, process.pid, max(2, seconds), "-m", "echo", "-s", "64", "-c", "100", "-r", "400")
    return got["p99_us"] / 1000, got["max_us"] / 1000


def free_threaded():
    return not getattr(sys, "_is_gil_enabled", lambda: True)()


def servers(kind, work, peers):
    """name -> what child() takes."""
    both = {"gmploop": ("gmploop", False, kind, work, 1), "isolated": ("gmploop", True, kind, work, 1)}
    if free_threaded():
        both["isolated, 2 Ps"] = ("gmploop", True, kind, work, 2)
    return {name: (name, False, kind, work, 1) for name in peers} | both


def peers():
    names = ["asyncio"]
    with contextlib.suppress(ImportError):
        import uvloop  # noqa: F401
        names.append("uvloop")
    return names


ROWS = {
    "accept": [("accept, streams", accept, servers("streams", "none", ()), "/s", "µs CPU"),
               ("accept, Protocol", accept, servers("protocol", "none", ()), "/s", "µs CPU")],
    "echo": [("echo, streams", echo, servers("streams", "none", ()), "/s", "µs CPU"),
             ("echo, Protocol", echo, servers("protocol", "none", ()), "/s", "µs CPU")],
    "compute": [("1 ms of computing", echo, servers("streams", "compute", ()), "/s", "µs CPU")],
    "blocker": [("one sleeps 200 ms", blocker, servers("streams", "sleep", peers()), "ms p99", "ms max"),
                ("one computes 200 ms", blocker, servers("streams", "burn", peers()), "ms p99", "ms max")],
}


def main():
    parser = argparse.ArgumentParser(
        prog="python -m gmploop.bench.isolated", description=__doc__.partition(":")[0],
        epilog=__doc__.partition("\n\n")[2], formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="*", metavar="ROW", help=f"of {', '.join(ROWS)}; default: all")
    parser.add_argument("--rounds", type=int, default=5, help="default %(default)s")
    parser.add_argument("--seconds", type=float, default=1, help="of each measurement; default %(default)s")
    options = parser.parse_args()
    if unknown := set(options.rows) - set(ROWS):
        parser.error(f"no such row: {', '.join(sorted(unknown))}; there are: {', '.join(ROWS)}")
    for title, measure, kinds, *units in [part for name in options.rows or ROWS for part in ROWS[name]]:
        results = {name: [] for name in kinds}
        for _ in range(options.rounds):         # the servers take turns
            for name, server in kinds.items():
                results[name].append(measure(options.seconds, server))
        for name, values in results.items():
            first, second = (statistics.median(column) for column in zip(*values, strict=True))
            print(f"{title:22}{name:16}{first:12,.1f} {units[0]:8}{second:10,.1f} {units[1]}", flush=True)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--child"]:
        child(*json.loads(sys.argv[2]))
    else:
        main()
