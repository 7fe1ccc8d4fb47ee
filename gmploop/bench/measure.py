"""One measurement: start a child, load it, read the figures, end it.

Whatever happens, Ctrl-C included, no child outlives the call that started it; should this process be killed
outright, the children die with it (on Linux).
"""

import contextlib
import dataclasses
import functools
import http.client
import json
import os
import re
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from gmploop.bench import contests, native, row as kinds
from gmploop.bench.loops import C_SERVERS, LOOPS
from gmploop.bench.machine import cores
from gmploop.bench.services import NoService, Services
from gmploop.bench.web import BODY

HERE = Path(__file__).parent
START_TIMEOUT_S = 30
FIRST_CONNECTIONS = 1000


class Failed(Exception):
    """A measurement that must not count: the reason is its text."""


class Place(contextlib.ExitStack):
    """What the measurements of one run share: a folder, a certificate, server programs. To be used as a context."""

    def __enter__(self):
        self.folder = self.enter_context(tempfile.TemporaryDirectory(prefix="gmploop-bench-"))
        self.services = self.enter_context(Services())
        return self

    @functools.cached_property
    def certificate(self):
        return native.make_certificate(self.folder)

    @functools.cached_property
    def files(self):
        return contests.prepare_files(self.folder)


@dataclass(frozen=True)
class Settings:
    seconds: float
    warmup: float
    connections: int
    place: Place
    cold_malloc: bool = False
    quick: bool = False

    def for_row(self, row):
        least = row.least_seconds / (3 if self.quick else 1)
        return dataclasses.replace(self, seconds=max(self.seconds, least))


def _environment():
    # debug modes would be measured instead of the loops, and a safe path would hide the children from each other
    unwanted = ("PYTHONASYNCIODEBUG", "PYTHONDEVMODE", "PYTHONSAFEPATH")
    return {key: value for key, value in os.environ.items() if key not in unwanted}


def _child_command(script, *, cold_malloc=False, pinned=True, **settings):
    settings |= {"parent": os.getpid(), "cpu": cores()[0] if pinned else None, "root": str(HERE.parent.parent),
                 "cold_malloc": cold_malloc}
    return [sys.executable, str(HERE / script), json.dumps(settings)]


def _run(command, timeout):
    """Run a command that prints JSON; return it parsed. A session of its own keeps the terminal's Ctrl-C from it."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout, env=_environment(),
                              stdin=subprocess.DEVNULL, start_new_session=True)
    except subprocess.TimeoutExpired:
        raise Failed(f"{Path(command[0]).name} did not end within {timeout:.0f} s") from None
    if done.returncode:
        raise Failed(_status(done.returncode) + _tail(done.stderr))
    return json.loads(done.stdout)


def _status(returncode):
    return f"killed by {signal.Signals(-returncode).name}" if returncode < 0 else f"exit status {returncode}"


def _tail(text, lines=15):
    text = "\n".join(text.strip().splitlines()[-lines:])
    return f": {text}" if text else ""


def probe(loop):
    """Try whether `loop` works here; return its class, version and GIL state. Raises Failed."""
    return _run(_child_command("loops.py", loop=loop), START_TIMEOUT_S)


def _micro_command(row, loop, settings, **more):
    return _child_command("growth.py" if row.at else "micro.py", loop=loop, kind=row.kind, load=row.at,
                          seconds=settings.seconds, cold_malloc=settings.cold_malloc, **more)


def _micro_timeout(row, settings):
    return START_TIMEOUT_S + 20 * settings.seconds + row.at / 10_000


def micro(row, loop, settings):
    """Measure a micro or growth row in a process of its own."""
    return _run(_micro_command(row, loop, settings), _micro_timeout(row, settings))


def _client_command(row, loop, settings, **more):
    try:
        service = settings.place.services.where(row.service)
    except NoService as error:
        raise Failed(str(error)) from None
    return _child_command("db.py", loop=loop, kind=row.kind, service=service, seconds=settings.seconds,
                          warmup=settings.warmup, cold_malloc=settings.cold_malloc, **more)


def _client_timeout(settings):
    return START_TIMEOUT_S + 5 * (settings.seconds + settings.warmup)


def client(row, loop, settings):
    """Measure a client of a real server: its own CPU time for an operation."""
    return _run(_client_command(row, loop, settings), _client_timeout(settings))


def _way(row, name):
    return next(way for way in row.ways if way.name == name)


def program(row, name, settings):
    """Measure one way of a row by the program that is the way."""
    way, seconds = _way(row, name), settings.seconds
    if not way.program.endswith(".py"):
        more = [str(way.settings["threads"]), str(seconds), str(way.settings["count"])] if way.of == "go" else []
        try:
            command = [native.build(way.program), way.settings["row"], *more]
        except RuntimeError as error:
            raise Failed(str(error)) from None
    else:
        more = settings.place.files if row.part == "files" else {}
        command = _child_command(way.program, pinned=False, seconds=seconds, cold_malloc=settings.cold_malloc,
                                 **way.settings, **more)
    return _run(command, 2 * START_TIMEOUT_S + 20 * seconds)


# -- servers under load ---------------------------------------------------------------------------------------------

def _tls(place):
    return dict(zip(("certificate", "key"), place.certificate))


def _server_command(row, loop, settings, path):
    if row.ways:
        way = _way(row, loop)
        return _child_command(way.program, pinned=False, cold_malloc=settings.cold_malloc, **way.settings)
    if loop not in C_SERVERS:
        more = {"net": row.net, "path": path, "size": row.size, **(_tls(settings.place) if row.net == "tls" else {})}
        return _child_command("web.py" if row.part == "web" else "echo.py", loop=loop, kind=row.kind,
                              cold_malloc=settings.cold_malloc, **more)
    command = [native.build(C_SERVERS[loop].program, tls=row.net == "tls")]
    if (core := cores()[0]) is not None:
        command += ["-C", str(core)]
    if row.net != "tcp":
        command += ["-n", row.net, "-u", path]
    if row.net == "tls":
        command += ["-c", settings.place.certificate[0], "-k", settings.place.certificate[1]]
    return command


@dataclass
class Server:
    process: subprocess.Popen
    port: int
    path: str              # of the Unix socket
    busy_port: int         # where what disturbs the others is served, or None

    def status(self, name):
        """A figure of /proc/PID/status, such as VmRSS (kB)."""
        return int(re.search(rf"^{name}:\s*(\d+)", Path(f"/proc/{self.process.pid}/status").read_text(), re.M)[1])

    def cpu_ns(self):
        return time.clock_gettime_ns(~self.process.pid << 3 | 2)       # CPUCLOCK_SCHED of all its threads

    def wakeups(self):
        tasks = Path(f"/proc/{self.process.pid}/task").glob("*/status")
        return sum(int(re.search(r"^voluntary_ctxt_switches:\s*(\d+)", task.read_text(), re.M)[1]) for task in tasks)


@contextlib.contextmanager
def _server(row, loop, settings):
    """Run a server for `row`. Whatever fails inside names the server's own error first, should it have died."""
    path = os.path.join(settings.place.folder, "socket")
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path)
    with tempfile.TemporaryFile("w+") as errors:
        def said():
            errors.seek(0)
            return _tail(errors.read())

        process = subprocess.Popen(_server_command(row, loop, settings, path), stdin=subprocess.DEVNULL,
                                   stdout=subprocess.PIPE, stderr=errors, env=_environment(), start_new_session=True)
        try:
            ready, _, _ = select.select([process.stdout], [], [], START_TIMEOUT_S)
            line = process.stdout.readline() if ready else b""
            if not line:
                late = f"the server was not ready within {START_TIMEOUT_S} s"
                raise Failed((late if not ready else f"the server did not start, {_status(process.wait(5))}") + said())
            try:
                where = json.loads(line)
                yield Server(process, where["port"], path, where.get("busy_port"))
            except Failed as failure:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(0.2)          # one that is dying needs a moment to be dead
                died = process.poll()
                state = "" if died is None else f"the server died, {_status(died)}: "
                raise Failed(f"{state}{failure}{said()}") from None
            if process.poll() is not None:
                raise Failed(f"the server died, {_status(process.poll())}{said()}")
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def _check_web_loop(port, loop):
    """Ask the server which loop runs its handlers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/loop")
        name = connection.getresponse().read().decode()
    except (OSError, http.client.HTTPException) as error:
        raise Failed(f"the server does not answer: {error!r}") from None
    finally:
        connection.close()
    if name.partition(".")[0] != LOOPS[loop].class_module:
        raise Failed(f"the server runs on {name}")


def _load_command(row, server, settings):
    command = [native.build("loadgen", tls=row.net == "tls"), "-m", row.mode, "-n", row.net,
               "-P", str(server.process.pid), "-c", str(row.connections or settings.connections),
               "-t", str(settings.seconds), "-w", str(settings.warmup), "-s", str(row.size), "-r", str(row.rate),
               *(["-u", server.path] if row.net == "unix" else ["-p", str(server.port)])]
    if row.mode == "http":
        command += ["-b", BODY.decode()]
    core = None if row.ways else cores()[1]
    return command + (["-C", str(core)] if core is not None else [])


@contextlib.contextmanager
def _kept_busy(port):
    """A connection on which one request after another is under way."""
    with socket.create_connection(("127.0.0.1", port)) as sock:
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
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)
            thread.join()


def _load(row, loop, settings, prefix=(), attach=lambda process: contextlib.nullcontext()):
    """Run the server under load; return what the load generator printed, and the server's memory."""
    with _server(row, loop, settings) as server:
        if row.part == "web":
            _check_web_loop(server.port, loop)
        command = [word.replace("{pid}", str(server.process.pid)) for word in prefix]
        command += _load_command(row, server, settings)
        disturbance = _kept_busy(server.busy_port) if row.disturbed else contextlib.nullcontext()
        with attach(server.process), disturbance:
            try:
                result = _run(command, START_TIMEOUT_S + settings.seconds + settings.warmup)
            except Failed as failure:
                raise Failed(f"the load generator says: {failure}") from None
        if server.process.poll() is not None:
            raise Failed("it is gone")
        return result | {"rss_kb": server.status("VmRSS"), "peak_kb": server.status("VmHWM")}


def loaded(row, loop, settings):
    """Measure a server under load: CPU time for a request, latencies, memory."""
    got = _load(row, loop, settings)
    cpu_us = got["cpu_ns"] / 1e3 / got["requests"]
    ticks = got["user_ticks"] + got["sys_ticks"]
    user_us = cpu_us * got["user_ticks"] / ticks if ticks else None
    return {
        "cpu_us": cpu_us, "user_us": user_us, "sys_us": cpu_us - user_us if ticks else None,
        "requests_per_s": got["requests"] / got["seconds"], "requests": got["requests"],
        "wall_us": got["seconds"] * 1e6 / got["requests"],
        "cpu_share": got["cpu_ns"] / 1e9 / got["seconds"],
        **{key: got[key] for key in ("p50_us", "p99_us", "p999_us", "max_us", "rss_kb", "peak_kb", "resent")},
    }


@contextlib.contextmanager
def _held(row, server, settings):
    """Hold the row's connections open, after one exchange on each."""
    holder = subprocess.Popen(_load_command(row, server, settings), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, start_new_session=True)
    try:
        ready, _, _ = select.select([holder.stdout], [], [], START_TIMEOUT_S * 2)
        if not ready or not holder.stdout.readline():
            holder.kill()
            raise Failed("the load generator says: " + (holder.stderr.read().strip() or "connecting took too long"))
        time.sleep(settings.warmup)
        yield
    finally:
        holder.kill()
        holder.wait()
        for pipe in (holder.stdin, holder.stdout, holder.stderr):
            pipe.close()


def idle(row, loop, settings):
    """Measure a server whose connections do nothing: memory for each, CPU time and wake-ups in the meantime.

    As many as 1000 connections come first, so that what a server allocates once, and an allocator gives back late, does not
    count.
    """
    first = dataclasses.replace(row, connections=FIRST_CONNECTIONS)
    with _server(row, loop, settings) as server, _held(first, server, settings):
        before = server.status("VmRSS")
        with _held(row, server, settings):
            cpu, wakeups, began = server.cpu_ns(), server.wakeups(), time.perf_counter()
            time.sleep(settings.seconds)
            took = time.perf_counter() - began
            return {
                "bytes_per_connection": (server.status("VmRSS") - before) * 1024 / row.connections,
                "cpu_us_per_s": (server.cpu_ns() - cpu) / 1e3 / took,
                "wakeups_per_s": (server.wakeups() - wakeups) / took, "rss_kb": server.status("VmRSS"),
            }


def one(row, loop, settings):
    """Measure `row` on `loop` (or by the way of that name) once; return a dict whose "value" is what the table shows.

    Raises Failed.
    """
    measure = {kinds.SERVER: loaded, kinds.MICRO: micro, kinds.CLIENT: client, kinds.IDLE: idle,
               kinds.PROGRAM: program}[row.how]
    got = measure(row, loop, settings.for_row(row))
    return {**got, "value": got["value"] if row.how == kinds.PROGRAM else got[row.shows]}


# -- system calls ---------------------------------------------------------------------------------------------------

def syscall_counter():
    """The tool that can count system calls here: "perf", "strace" or None."""
    if shutil.which("perf"):
        trial = subprocess.run(["perf", "stat", "-e", "raw_syscalls:sys_enter", "true"], capture_output=True)
        if trial.returncode == 0 and b"not supported" not in trial.stderr:
            return "perf"
    if shutil.which("strace"):
        trial = subprocess.run(["strace", "-c", "true"], capture_output=True)
        if trial.returncode == 0:
            return "strace"
    return None


def syscalls(row, loop, settings, tool):
    """Count system calls per request or operation in a run of its own, which is not timed."""
    with tempfile.NamedTemporaryFile("r") as report:
        if row.how != kinds.SERVER:
            operations = _counted_child(row, loop, settings, tool, report.name)
        elif tool == "perf":
            operations = _load(row, loop, settings, prefix=(*_perf(report.name, "{pid}"), "--"))["requests_total"]
        else:
            operations = _load(row, loop, settings, attach=lambda process: _strace(process.pid, report.name))["requests_total"]
        pattern = r"^(\d+),.*raw_syscalls:sys_enter" if tool == "perf" else r"^100\.00\s+\S+\s+\S+\s+(\d+)"
        found = re.search(pattern, report.read(), re.M)
    if not found:
        raise Failed(f"{tool} counted nothing")
    return int(found[1]) / operations


def _perf(path, pid):
    return "perf", "stat", "-x", ",", "-o", path, "-e", "raw_syscalls:sys_enter", "-p", str(pid)


def _counted_child(row, loop, settings, tool, path):
    """Run a child that waits for a word when it has warmed up; return how many operations it then carries out."""
    make, timeout = ((_micro_command, _micro_timeout(row, settings)) if row.how == kinds.MICRO else
                     (_client_command, _client_timeout(settings)))
    child = subprocess.Popen(make(row, loop, settings, counted=True), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                             stderr=subprocess.DEVNULL, text=True, env=_environment(), start_new_session=True)
    try:
        if child.stdout.readline() != "ready\n":
            raise Failed("the child did not begin")
        with _strace(child.pid, path) if tool == "strace" else _perf_beside(child.pid, path):
            said, _ = child.communicate("go\n", 10 * timeout)
        return json.loads(said)["operations"]
    except (subprocess.TimeoutExpired, ValueError) as error:
        raise Failed(repr(error)) from None
    finally:
        child.kill()
        child.wait()


@contextlib.contextmanager
def _perf_beside(pid, path):
    """perf has attached when a command of its own runs; that ends with this context."""
    with subprocess.Popen([*_perf(path, pid), "--", "sh", "-c", "echo; read line"], stdin=subprocess.PIPE,
                          stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, start_new_session=True) as perf:
        perf.stdout.readline()
        yield


@contextlib.contextmanager
def _strace(pid, path):
    tracer = subprocess.Popen(["strace", "-f", "-c", "-o", path, "-p", str(pid)], stderr=subprocess.PIPE,
                              start_new_session=True)
    try:
        if b"attached" not in (line := tracer.stderr.readline()):
            raise Failed(line.decode().strip() or "strace could not attach")
        yield
        tracer.send_signal(signal.SIGINT)          # it lets go of the process, if that lives, and writes its report
        tracer.wait(10)
    finally:
        tracer.kill()
        tracer.wait()
        tracer.stderr.close()
