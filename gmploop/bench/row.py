"""What a row is: one line of the table, measured on every loop or by every way."""

import importlib.util
from dataclasses import dataclass, field

SERVER, MICRO, CLIENT, IDLE, PROGRAM = "server", "micro", "client", "idle", "program"   # how it is measured: measure.one


@dataclass(frozen=True)
class Way:
    """A contestant of a row whose contestants are not just loops; see `contests`."""

    name: str
    of: str                # the loop or runtime that it is; "": neither
    program: str           # in this folder: Python's, else to be compiled
    settings: dict = field(default_factory=dict, hash=False)       # for the program
    needs: str = ""        # a package, or "go", that must be there


@dataclass(frozen=True)
class Row:
    name: str
    part: str              # one of rows.PARTS
    how: str
    what: str              # for people
    unit: str = "CPU µs/request"
    kind: str = ""         # which server or program
    net: str = "tcp"       # "tcp", "unix", "udp" or "tls"
    mode: str = "echo"     # the load generator's
    size: int = 0          # bytes of a message
    connections: int = 0   # 0: as the command line says
    rate: int = 0          # requests per second; 0: as many as there can be
    shows: str = "cpu_us"  # which figure of the measurement is the row's
    needs: tuple = ()      # packages that must be there
    service: str = ""      # a server program that must be there
    c_server: bool = False     # an echo server in C can do the same
    series: str = ""       # growth rows: those of one series belong together ...
    at: int = 0            # ... and differ by this: the load
    work: float = 1        # ... and what one operation is worth there (see report.growth)
    quick: bool = True     # part of a --quick run
    calls: bool = True     # --syscalls counts its system calls
    ways: tuple = ()       # of Way: the contestants, if they are not the loops
    disturbed: bool = False    # one more connection keeps the server busy
    direct: bool = False   # needs a filesystem with O_DIRECT
    least_seconds: float = 0   # a measurement takes so long at least (a third of it with --quick)
    least_rounds: int = 0      # and there are so many, but with --quick

    def missing_package(self):
        """The first package that this row needs and that is not installed, or None."""
        return next((name for name in self.needs if importlib.util.find_spec(name) is None), None)
