"""PostgreSQL and Redis for the db rows: started on first use on a free port of 127.0.0.1, stopped when the run ends.

They run on the load generator's core, keep nothing, and end when the benchmark is killed.
"""

import contextlib
import ctypes
import functools
import glob
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time

from gmploop.bench.machine import cores

START_TIMEOUT_S = 30
PROGRAMS = {"postgresql": ("initdb", "postgres"), "redis": ("redis-server",)}


class NoService(Exception):
    """A server that did not start: the reason is its text."""


def _find(name):
    places = [os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin",
              *sorted(glob.glob("/usr/lib/postgresql/*/bin"), reverse=True), *glob.glob("/usr/pgsql-*/bin")]
    return shutil.which(name, path=os.pathsep.join(places))


def _account():
    """The user that PostgreSQL runs as: it refuses root. None: as we are. Raises KeyError when root has none to lend."""
    if os.geteuid():
        return None
    for name in ("postgres", "nobody"):
        with contextlib.suppress(KeyError):
            return pwd.getpwnam(name)
    raise KeyError("postgres")


@functools.cache
def missing(service):
    """Why `service` ("postgresql" or "redis") cannot be started here, or None."""
    for name in PROGRAMS[service]:
        if not _find(name):
            return f"{name} is not installed"
    if service == "postgresql":
        try:
            _account()
        except KeyError:
            return "PostgreSQL refuses to run as root, and there is no user postgres or nobody"
    return None


class Services(contextlib.ExitStack):
    """The servers of one run. `where(name)` is what a client needs to know; it starts the server when first asked."""

    def __init__(self):
        super().__init__()
        self._started = {}

    def where(self, name):
        """Raises NoService. One that did not start is not tried again."""
        if name not in self._started:
            try:
                self._started[name] = {"postgresql": self._postgresql, "redis": self._redis}[name]()
            except (OSError, subprocess.SubprocessError) as error:
                self._started[name] = NoService(f"{name} did not start: {error}")
            except NoService as error:
                self._started[name] = error
        if isinstance(self._started[name], NoService):
            raise self._started[name]
        return self._started[name]

    def _folder(self, account):
        folder = tempfile.mkdtemp(prefix="gmploop-bench-")
        self.callback(shutil.rmtree, folder, ignore_errors=True)
        if account:
            os.chown(folder, account.pw_uid, account.pw_gid)
        return folder

    def _start(self, command, folder, port, account=None, stop=signal.SIGTERM):
        core = cores()[1]
        libc = ctypes.CDLL(None)

        def prepare():
            if sys.platform == "linux":
                libc.prctl(1, signal.SIGKILL)        # PR_SET_PDEATHSIG
            if core is not None:
                os.sched_setaffinity(0, {core})

        log = self.enter_context(open(os.path.join(folder, "log"), "w+"))
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, cwd=folder,
                                   preexec_fn=prepare, start_new_session=True, **_as(account))
        self.callback(_stop, process, stop)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _accepts(port):
            if process.poll() is not None or time.monotonic() > deadline:
                log.seek(0)
                raise NoService(f"{os.path.basename(command[0])} did not start: {log.read()[-1000:].strip()}")
            time.sleep(0.02)
        return process

    def _postgresql(self):
        account = _account()
        folder, port = self._folder(account), _free_port()
        data = os.path.join(folder, "data")
        made = subprocess.run([_find("initdb"), "-D", data, "-U", "bench", "--auth=trust", "--no-sync",
                               "--encoding=UTF8", "--locale=C"], capture_output=True, text=True, cwd=folder,
                              **_as(account))
        if made.returncode:
            raise NoService(f"initdb failed: {made.stderr.strip()}")
        options = {"listen_addresses": "127.0.0.1", "port": port, "unix_socket_directories": folder, "fsync": "off",
                   "autovacuum": "off"}
        process = self._start([_find("postgres"), "-D", data,
                               *(word for item in options.items() for word in ("-c", "%s=%s" % item))],
                              folder, port, account, signal.SIGINT)
        deadline = time.monotonic() + START_TIMEOUT_S
        while "ready to accept connections" not in open(os.path.join(folder, "log")).read():
            if process.poll() is not None or time.monotonic() > deadline:
                raise NoService("PostgreSQL did not become ready")
            time.sleep(0.02)
        return {"port": port, "user": "bench"}

    def _redis(self):
        folder, port = self._folder(None), _free_port()
        self._start([_find("redis-server"), "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly",
                     "no", "--dir", folder], folder, port)
        return {"port": port}


def _as(account):
    return {"user": account.pw_uid, "group": account.pw_gid, "extra_groups": []} if account else {}


def _stop(process, number):
    process.send_signal(number)
    try:
        process.wait(10)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _accepts(port):
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
