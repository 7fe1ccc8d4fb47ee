"""What a figure depends on: cores, kernel, Python, versions."""

import importlib.metadata
import os
import platform
import subprocess
import sys
import time
from pathlib import Path


def cores():
    """The cores for (servers and micro rows, load generator), and a remark or None.

    They are the last and the first this process may use, which are not twins of one physical core where twins are
    neighbours or half the count apart. With one core both share it; where a system cannot pin, both are None.
    """
    if not hasattr(os, "sched_setaffinity"):
        return None, None, "this system cannot pin processes to cores: expect more spread"
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) == 1:
        return allowed[0], allowed[0], ("one core only: server and load generator share it; CPU per request still "
                                        "counts the server alone, requests/s and latencies count both")
    return allowed[-1], allowed[0], None


def busy_remark():
    """A remark when something else keeps the machine busy, else None."""
    load = os.getloadavg()[0]
    if load > 0.5:
        return f"the machine is busy (load average {load:.1f}): expect spread, compare only within this run"


def _first_line(path):
    try:
        return Path(path).read_text().splitlines()[0]
    except (OSError, IndexError):
        return None


def _cpu_model():
    try:
        for line in Path("/proc/cpuinfo").read_text().splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def free_threaded():
    return not getattr(sys, "_is_gil_enabled", lambda: True)()


def _go_version():
    try:
        return subprocess.run(["go", "version"], capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.SubprocessError):
        return None


def describe():
    """The machine and the software as a JSON-able dict."""
    packages = {}
    for name in ("uvicorn", "httptools", "aiohttp", "websockets", "asyncpg", "redis", "tonio", "aiofiles"):
        try:
            packages[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            pass
    server, load, _ = cores()
    return {
        "date": time.strftime("%Y-%m-%d %H:%M:%S%z"),
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "server_core": server,
        "load_core": load,
        "governor": _first_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"),
        "load_average": round(os.getloadavg()[0], 2),
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "python": platform.python_version(),
        "python_build": " ".join(platform.python_build()) + ", " + platform.python_compiler(),
        "free_threaded": free_threaded(),
        "go": _go_version(),
        "packages": packages,
    }
