"""What there is to measure: the rows, and how they are selected by name."""

import dataclasses
import re
import sys

from gmploop.bench import contests, growth, micro
from gmploop.bench.row import CLIENT, IDLE, MICRO, SERVER, Row

PARTS = {
    "echo": "TCP echo of 1 KB and 100 KB: Protocol, BufferedProtocol, streams, sock_*",
    "unix": "the same over Unix sockets, 1 KB", "udp": "UDP echo", "tls": "TLS echo and handshakes",
    "accept": "connections accepted, served once, closed",
    "latency": "p99 and p99.9 at fixed rates, in windows of three seconds, five rounds at least",
    "web": "HTTP and WebSocket servers", "db": "asyncpg and redis-py against real servers",
    "micro": "callbacks, timers, tasks, futures", "growth": "cost per operation as the load grows",
    "memory": "memory of an idle connection; CPU and wake-ups of an idle server",
    "sched": "the runtime: goroutines, channels, sysmon, beside loops in threads, tonio and Go",
    "hops": "channels and queues between tasks, loops and threads",
    "isolated": "servers with a world for each connection", "files": "gmploop.fs beside threads and aiofiles",
    "pollers": "not in `all`: epoll and io_uring side by side, with and without batched writes, 1 to 10,000 connections",
}
APART = ("pollers",)       # parts that `all` leaves out
ECHO = {
    "protocol": "asyncio.Protocol that writes back what data_received gets",
    "buffered": "the same as asyncio.BufferedProtocol",
    "streams": "asyncio.start_server: reader.read, writer.write, writer.drain",
    "sock": "loop.sock_accept, then loop.sock_recv and loop.sock_sendall",
}
UDP = {
    "protocol": "asyncio.DatagramProtocol that sends back what datagram_received gets",
    "sock": "loop.sock_recvfrom and loop.sock_sendto",
}
WEB = {
    "http-uvicorn": ("uvicorn with httptools, a plain ASGI app, no access log; keep-alive GETs", ("uvicorn", "httptools")),
    "http-aiohttp": ("aiohttp.web, no access log; keep-alive GETs", ("aiohttp",)),
    "ws-websockets": ("WebSocket echo by the websockets library", ("websockets",)),
    "ws-uvicorn": ("WebSocket echo by uvicorn (websockets-sansio), a plain ASGI app", ("uvicorn", "httptools", "websockets")),
    "ws-aiohttp": ("WebSocket echo by aiohttp.web", ("aiohttp",)),
}
DB = {
    "asyncpg": ("asyncpg.fetchval, a row by primary key, on 10 connections", ("asyncpg",), "postgresql"),
    "asyncpg-rows": ("asyncpg.fetch of 1000 rows, on 10 connections", ("asyncpg",), "postgresql"),
    "redis": ("redis-py: SET and GET of 100 bytes in turn, on 10 connections", ("redis",), "redis"),
    "redis-pipeline": ("redis-py: pipelines of 100 commands, on 10 connections", ("redis",), "redis"),
}
UNITS = {"k": 1 << 10, "m": 1 << 20}


class UnknownRow(ValueError):
    pass


def _bytes(size):
    return int(size.rstrip("km")) * UNITS.get(size[-1], 1)


def echo_row(kind, size, net="tcp", part="echo", **more):
    """An echo row by its kind and size ("64", "1k", "1m"), for one of the nets."""
    what = (UDP if net == "udp" else ECHO)[kind]
    where = {"tcp": "", "unix": ", Unix socket", "tls": ", TLS", "udp": ""}[net]
    many = {"connections": 10} if net == "udp" and _bytes(size) > 2048 else {}      # 50 of them do not fit the socket's buffer
    row = Row(f"{part if net == 'tcp' else net}-{kind}-{size}", part if net == "tcp" else net, SERVER,
              f"{what}{where}; {size} byte messages", kind=kind, net=net, size=_bytes(size), c_server=True,
              quick=_bytes(size) < 1 << 14, **many)
    return dataclasses.replace(row, **more)


def _accept_row(name, part, net, kind, what):
    return Row(name, part, SERVER, what, unit="CPU µs/connection", kind=kind, net=net, mode="connect", size=64,
               c_server=True)


def _latency_rows():
    """p99 and p99.9 of one measurement each (see Run)."""
    for kind in ("protocol", "streams"):
        for rate in (10_000, 30_000):
            for shows, tail in (("p99_us", "p99"), ("p999_us", "p99.9")):
                yield echo_row(kind, "1k", name=f"latency-{kind}-{rate // 1000}k{'-p999' * (tail != 'p99')}", part="latency",
                               rate=rate, shows=shows, unit=f"{tail} µs", least_seconds=3, least_rounds=5,
                               what=f"{ECHO[kind]}; 1k messages, {rate:,} a second over all connections")


def _web_row(name, what, needs):
    mode = "http" if name.startswith("http") else "ws"
    return Row(name, "web", SERVER, what + ("; 1k messages" if mode == "ws" else ""), kind=name, mode=mode, size=1024,
               needs=needs)


def _memory_row(kind, net, count):
    what = f"{ECHO[kind]}{', TLS' if net == 'tls' else ''}: RSS that one of {count:,} idle connections adds"
    return Row(f"memory-{'tls-' * (net == 'tls')}{kind}-{count}", "memory", IDLE, what, unit="bytes/connection", kind=kind,
               net=net, mode="hold", size=64, connections=count, shows="bytes_per_connection", quick=count <= 1000)


def _growth_rows():
    for kind in ("protocol", "streams"):
        for count in (1, 50, 1000, 10_000):
            yield echo_row(kind, "1k", name=f"growth-connections-{kind}-{count}", part="growth", connections=count,
                           series=f"connections-{kind}", at=count, quick=count <= 50)
        for size in ("64", "1k", "16k", "100k", "1m"):
            # 256 KB is what a receive takes at most: from there on the work is that of its pieces
            yield echo_row(kind, size, name=f"growth-size-{kind}-{size}", part="growth", series=f"size-{kind}",
                           at=_bytes(size), work=_bytes(size), quick=_bytes(size) <= 1024)
    for name, function in growth.ROWS.items():
        for count in (1, 100, 10_000, 1_000_000):
            yield Row(f"growth-{name}-{count}", "growth", MICRO, f"{_first_line(function)} N = {count:,}",
                      unit="CPU ns/op", kind=name, series=name, at=count, shows="cpu_ns", quick=count <= 100)


def _poller_rows():
    """Each way to talk, at each number of connections; then datagrams, accepting, and idling."""
    for size in ("1k", "100k"):
        for count in (1, 50, 1000):
            for kind in ("protocol", "streams", "sock"):
                yield echo_row(kind, size, name=f"pollers-{kind}-{size}-{count}", part="pollers", connections=count,
                               quick=size == "1k" and count == 50, calls=size == "1k" and count < 1000)
    for kind in ("protocol", "streams"):
        yield echo_row(kind, "1k", name=f"pollers-{kind}-1k-10000", part="pollers", connections=10_000, quick=False,
                       calls=False)
    for kind in UDP:
        yield echo_row(kind, "1k", "udp", name=f"pollers-udp-{kind}-1k", part="pollers", quick=False)
    yield dataclasses.replace(_accept_row("pollers-accept", "pollers", "tcp", "protocol", "connect, 64 bytes there and "
                                          "back, close; asyncio.Protocol"), quick=False)
    for kind in ("protocol", "streams"):
        yield dataclasses.replace(_memory_row(kind, "tcp", 10_000), name=f"pollers-idle-{kind}-10000", part="pollers")


def _first_line(function):
    return function.__doc__.partition("\n")[0]


def all_rows():
    """The rows of the whole suite, in the order of the table."""
    rows = [echo_row(kind, size) for size in ("1k", "100k") for kind in ECHO]
    rows += [echo_row(kind, "1k", "unix") for kind in ("protocol", "streams", "sock")]
    rows += [echo_row("protocol", size, "udp") for size in ("64", "1k", "8k")] + [echo_row("sock", "1k", "udp")]
    rows += [echo_row(kind, size, "tls") for size in ("1k", "100k") for kind in ("protocol", "streams")]
    rows += [_accept_row("tls-handshake", "tls", "tls", "protocol", "connect, full TLS 1.3 handshake, 64 bytes there and "
                         "back, close; asyncio.Protocol"),
             _accept_row("accept-protocol", "accept", "tcp", "protocol", "connect, 64 bytes there and back, close; "
                         "asyncio.Protocol"),
             _accept_row("accept-streams", "accept", "tcp", "streams", "the same with asyncio.start_server")]
    rows += _latency_rows()
    rows += [_web_row(name, what, needs) for name, (what, needs) in WEB.items()]
    rows += [Row(f"db-{kind}", "db", CLIENT, what, unit="CPU µs/operation", kind=kind, needs=needs, service=service)
             for kind, (what, needs, service) in DB.items()]
    rows += [Row(name, "micro", MICRO, _first_line(function), unit="CPU ns/op", kind=name, shows="cpu_ns")
             for name, function in micro.ROWS.items()]
    rows += _growth_rows()
    rows += [_memory_row(kind, "tcp", count) for kind in ("protocol", "streams") for count in (1000, 10_000)]
    rows += [_memory_row("protocol", "tls", 1000)]
    return rows + contests.all_rows() + list(_poller_rows())


def select(names):
    """The rows called for by `names`: a row's name, the beginning of some up to a hyphen, a part, or "all".

    `echo-KIND-SIZE`, `unix-...`, `udp-...` and `tls-...` take any size, such as 64, 16k or 1m. Raises UnknownRow naming
    what is there.
    """
    known, chosen = all_rows(), []
    for name in names:
        found = [row for row in known
                 if name == "all" and row.part not in APART or name == row.part
                 or row.name == name or row.name.startswith(name + "-")]
        sized = re.fullmatch(r"(echo|unix|udp|tls)-([a-z]+)-([1-9]\d*[km]?)", name)
        if not found and sized and sized[2] in (UDP if sized[1] == "udp" else ECHO):
            found = [echo_row(sized[2], sized[3], "tcp" if sized[1] == "echo" else sized[1])]
        if not found:
            raise UnknownRow(f"unknown row {name!r}; there are: {', '.join(row.name for row in known)}; "
                             f"a part ({', '.join(PARTS)}), the beginning of a name (echo-streams), all, "
                             "and NET-KIND-SIZE with any SIZE (echo-sock-64, tls-streams-16k, unix-protocol-1m)")
        chosen += [row for row in found if row not in chosen]
    return chosen


def cannot(row, settings_connections, tls_missing, service_missing):
    """Why `row` cannot be measured here, or None. The last two are functions that tell what lacks, or None."""
    if package := row.missing_package():
        return f"{package} is not installed"
    if row.how in (SERVER, IDLE) and sys.platform != "linux":
        return "the load generator needs Linux"
    if row.service and (why := service_missing(row.service)):
        return why
    if row.net == "tls" and (why := tls_missing()):
        return why
    if row.direct and (why := contests.direct_missing()):
        return why
    if row.how in (SERVER, IDLE):
        import resource
        limit, wanted = resource.getrlimit(resource.RLIMIT_NOFILE)[1], (row.connections or settings_connections) + 1100
        if limit != resource.RLIM_INFINITY and limit < wanted:
            return f"needs {wanted:,} open files, and the limit is {limit:,}: ulimit -Hn"
    return None
