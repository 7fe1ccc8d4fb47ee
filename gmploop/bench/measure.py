"""One measurement: start a child, load it, read the figures, end it.

Whatever happens, Ctrl-C included, no child outlives the call that started it; should this process be killed
outright, the children die with it (on Linux).
"""

import contextlib
import http.client
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from gmploop.bench import native
from gmploop.bench.loops import C_EPOLL, LOOPS
from gmploop.bench.machine import cores
from gmploop.bench.web import BODY

HERE = Path(__file__).parent
START_TIMEOUT_S = 30


class Failed(Exception):
    """A measurement that must not count: the reason is its text."""


@dataclass(frozen=True)
class Settings:
    seconds: float
    warmup: float
    connections: int
    cold_malloc: bool = False


def _environment():
    # debug modes would be measured instead of the loops, and a safe path would hide the children from each other
    unwanted = ("PYTHONASYNCIODEBUG", "PYTHONDEVMODE", "PYTHONSAFEPATH")
    return {key: value for key, value in os.environ.items() if key not in unwanted}


def _child_command(script, *, cold_malloc=False, **settings):
    settings |= {"parent": os.getpid(), "cpu": cores()[0], "root": str(HERE.parent.parent), "cold_malloc": cold_malloc}
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


def micro(row, loop, settings):
    """Measure a micro row; return {"value": ns/op, ...}."""
    return _run(_child_command("micro.py", loop=loop, row=row.name, seconds=settings.seconds,
                               cold_malloc=settings.cold_malloc),
                START_TIMEOUT_S + 20 * settings.seconds)


@contextlib.contextmanager
def _server(row, loop, settings):
    """Run a server for `row`; yields (process, port, a function that tells what its stderr says)."""
    if loop == C_EPOLL:
        core = cores()[0]
        command = [native.build("echo_epoll"), *(["-C", str(core)] if core is not None else [])]
    else:
        command = _child_command("web.py" if row.group == "http" else "echo.py",
                                 loop=loop, kind=row.kind, size=row.size, cold_malloc=settings.cold_malloc)
    with tempfile.TemporaryFile("w+") as errors:
        def said():
            errors.seek(0)
            return _tail(errors.read())

        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors,
                                   env=_environment(), start_new_session=True)
        try:
            ready, _, _ = select.select([process.stdout], [], [], START_TIMEOUT_S)
            line = process.stdout.readline() if ready else b""
            if not line:
                late = f"the server was not ready within {START_TIMEOUT_S} s"
                raise Failed((late if not ready else f"the server did not start, {_status(process.wait(5))}") + said())
            yield process, json.loads(line)["port"], said
        finally:
            process.kill()
            process.wait()
            process.stdout.close()


def _check_http_loop(port, loop):
    """Ask the server which loop runs its handlers."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/loop")
        name = connection.getresponse().read().decode()
    except (OSError, http.client.HTTPException) as error:
        raise Failed(f"the server does not answer: {error!r}") from None
    finally:
        connection.close()
    if name.partition(".")[0] != LOOPS[loop].module:
        raise Failed(f"the server runs on {name}")


def _load_command(row, port, process, settings):
    core = cores()[1]
    command = [native.build("loadgen"), "-p", str(port), "-P", str(process.pid), "-c", str(settings.connections),
               "-t", str(settings.seconds), "-w", str(settings.warmup)]
    command += ["-m", "http", "-b", BODY.decode()] if row.group == "http" else ["-m", "echo", "-s", str(row.size)]
    return command + (["-C", str(core)] if core is not None else [])


def _load(row, loop, settings, prefix=(), attach=lambda process: contextlib.nullcontext()):
    """Run the server under load; return what the load generator printed, and the server's RSS."""
    with _server(row, loop, settings) as (process, port, said):
        if row.group == "http":
            _check_http_loop(port, loop)
        command = [word.replace("{pid}", str(process.pid)) for word in prefix]
        command += _load_command(row, port, process, settings)
        try:
            with attach(process):
                result = _run(command, START_TIMEOUT_S + settings.seconds + settings.warmup)
        except Failed as failure:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(0.2)          # one that is dying needs a moment to be dead
            died = process.poll()
            state = "the load generator says" if died is None else f"the server died, {_status(died)}"
            raise Failed(f"{state}: {failure}{said()}") from None
        if process.poll() is not None:
            raise Failed(f"the server died, {_status(process.poll())}{said()}")
        match = re.search(r"^VmRSS:\s*(\d+)", Path(f"/proc/{process.pid}/status").read_text(), re.M)
        return result | {"rss_kb": int(match[1])}


def server(row, loop, settings):
    """Measure an echo or http row; return {"value": CPU µs per request, ...}."""
    got = _load(row, loop, settings)
    cpu_us = got["cpu_ns"] / 1e3 / got["requests"]
    ticks = got["user_ticks"] + got["sys_ticks"]
    user_us = cpu_us * got["user_ticks"] / ticks if ticks else None
    return {
        "value": cpu_us, "user_us": user_us, "sys_us": cpu_us - user_us if ticks else None,
        "requests_per_s": got["requests"] / got["seconds"], "requests": got["requests"],
        "cpu_share": got["cpu_ns"] / 1e9 / got["seconds"], "rss_kb": got["rss_kb"],
        **{key: got[key] for key in ("p50_us", "p99_us", "p999_us", "max_us")},
    }


def one(row, loop, settings):
    """Measure `row` on `loop` once; return a dict whose "value" is what the table shows. Raises Failed."""
    return (micro if row.group == "micro" else server)(row, loop, settings)


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
    """Count the server's system calls per request in a run of its own, which is not timed."""
    with tempfile.NamedTemporaryFile("r") as report:
        if tool == "perf":
            got = _load(row, loop, settings, prefix=(
                "perf", "stat", "-x", ",", "-o", report.name, "-e", "raw_syscalls:sys_enter", "-p", "{pid}", "--"))
            found = re.search(r"^(\d+),.*raw_syscalls:sys_enter", report.read(), re.M)
        else:
            got = _load(row, loop, settings, attach=lambda process: _strace(process.pid, report.name))
            found = re.search(r"^100\.00\s+\S+\s+\S+\s+(\d+)", report.read(), re.M)
    if not found:
        raise Failed(f"{tool} counted nothing")
    return int(found[1]) / got["requests_total"]


@contextlib.contextmanager
def _strace(pid, path):
    tracer = subprocess.Popen(["strace", "-f", "-c", "-o", path, "-p", str(pid)], stderr=subprocess.PIPE,
                              start_new_session=True)
    try:
        if b"attached" not in (line := tracer.stderr.readline()):
            raise Failed(line.decode().strip() or "strace could not attach")
        yield
        tracer.send_signal(signal.SIGINT)          # it lets go of the server and writes its report
        tracer.wait(10)
    finally:
        tracer.kill()
        tracer.wait()
        tracer.stderr.close()
