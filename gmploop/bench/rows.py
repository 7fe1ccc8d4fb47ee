"""What there is to measure: the rows, and how they are selected by name."""

import importlib.util
import re
from dataclasses import dataclass

from gmploop.bench import micro

SIZES = ("1k", "100k")
ECHO = {
    "protocol": "asyncio.Protocol that writes back what data_received gets",
    "buffered": "the same as asyncio.BufferedProtocol",
    "streams": "asyncio.start_server: reader.read, writer.write, writer.drain",
    "sock": "loop.sock_accept, then loop.sock_recv and loop.sock_sendall",
}
HTTP = {
    "uvicorn": ("uvicorn with httptools, a plain ASGI app, no access log; keep-alive GETs", ("uvicorn", "httptools")),
    "aiohttp": ("aiohttp.web, no access log; keep-alive GETs", ("aiohttp",)),
}


@dataclass(frozen=True)
class Row:
    name: str
    group: str             # "echo", "http" or "micro"
    what: str              # for people
    kind: str = ""         # which server
    size: int = 0          # bytes of a message (echo)
    needs: tuple = ()      # packages that must be there

    @property
    def unit(self):
        return "CPU ns/op" if self.group == "micro" else "CPU µs/request"

    def missing(self):
        """The first package that this row needs and that is not installed, or None."""
        return next((name for name in self.needs if importlib.util.find_spec(name) is None), None)


class UnknownRow(ValueError):
    pass


def _echo_row(kind, size):
    number = int(size.rstrip("km")) * {"k": 1 << 10, "m": 1 << 20}.get(size[-1], 1)
    return Row(f"echo-{kind}-{size}", "echo", f"{ECHO[kind]}; {number} byte messages", kind, number)


def all_rows():
    """The rows of the whole suite, in the order of the table."""
    rows = [_echo_row(kind, size) for size in SIZES for kind in ECHO]
    rows += [Row(f"http-{kind}", "http", what, kind, needs=needs) for kind, (what, needs) in HTTP.items()]
    rows += [Row(name, "micro", function.__doc__.partition("\n")[0]) for name, function in micro.ROWS.items()]
    return rows


def select(names):
    """The rows called for by `names`: a row's name, the beginning of some up to a hyphen, or a group.

    `echo-KIND-SIZE` takes any size, such as 64, 16k or 1m. Raises UnknownRow naming what is there.
    """
    known, chosen = all_rows(), []
    for name in names:
        found = [row for row in known if name == row.group or row.name == name or row.name.startswith(name + "-")]
        sized = re.fullmatch(rf"echo-({'|'.join(ECHO)})-([1-9]\d*[km]?)", name)
        if not found and sized:
            found = [_echo_row(*sized.groups())]
        if not found:
            raise UnknownRow(f"unknown row {name!r}; there are: {', '.join(row.name for row in known)}; "
                             "a group (echo, http, micro), the beginning of a name (echo-streams), "
                             "and echo-KIND-SIZE with any SIZE (64, 16k, 1m)")
        chosen += [row for row in found if row not in chosen]
    return chosen
