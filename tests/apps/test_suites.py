"""The own test-suites of aiohttp and anyio, of the installed versions, on asyncio's loop and on gmploop.

Their source distributions are fetched by pip. What passes on asyncio's loop must pass on gmploop: both run at the same
time, and what differs is tried once more, alone, before it counts.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tarfile
from importlib import metadata, util
from pathlib import Path

import pytest

HERE = Path(__file__).parent

def no_ipv6():
    """Whether this machine has no IPv6: hundreds of tests then fail on stock, which says nothing and takes long."""
    with contextlib.suppress(OSError), socket.socket(socket.AF_INET6) as sock:
        sock.bind(("::1", 0))
        return False
    return True


SUITES = {
    "aiohttp": {
        # addopts and filterwarnings of its own ask for coverage and for plugins that check style
        "options": ["-p", "no:asyncio", "-o", "addopts=", "-o", "filterwarnings=default", "--aiohttp-fast"],
        "fast": ["test_web_functional.py", "test_client_functional.py", "test_web_sendfile_functional.py",
                 "test_web_websocket_functional.py", "test_client_ws_functional.py", "test_run_app.py",
                 "test_web_server.py", "test_connector.py"],
        "least": 500,
    },
    "anyio": {
        "options": ["-o", "filterwarnings=default", "-k",
                    "not uvloop and not trio" + " and not ipv6" * no_ipv6()],
        "fast": ["test_sockets.py", "test_taskgroups.py", "test_subprocesses.py", "test_eventloop.py", "test_signals.py",
                 "test_from_thread.py", "test_to_thread.py", "test_synchronization.py", "test_debugging.py", "streams"],
        # eight that fill a socket's buffer with datagrams: in vain over loopback, for five seconds each
        "slow": ["--deselect=tests/test_sockets.py::TestUDPSocketBackpressure"],
        "least": 500,
    },
}

# Tests that need not pass on gmploop: the start of their name, and why.
EXCLUDED = {
    # They put another write() on one transport object; gmploop's transports have no attributes to replace.
    "tests/test_web_websocket_functional.py::test_heartbeat_connection_closed",
    "tests/test_client_ws_functional.py::test_heartbeat_connection_closed",
    # It puts another time() on one loop object; gmploop asks time() of a subclass only.
    "tests/test_web_functional.py::test_keepalive_expires_on_time",
}


@pytest.fixture(scope="module")
def sources(request, tmp_path_factory):
    """sources(name) -> a folder with the tests and settings of the installed version, but not with its code."""
    def fetch(name):
        pytest.importorskip(name)
        for needed in ("pytest_mock", "psutil"):
            pytest.importorskip(needed)
        version = metadata.version(name)
        cache = getattr(request.config, "cache", None)  # -p no:cacheprovider takes it away
        folder = cache.mkdir("suites") if cache else tmp_path_factory.mktemp("suites")
        target = folder / f"{name}-{version}"
        if not target.exists():
            got = subprocess.run([sys.executable, "-m", "pip", "download", "-q", "--no-deps", "--no-binary", name,
                                  "-d", folder, f"{name}=={version}"], capture_output=True, text=True)
            if got.returncode and "CI" not in os.environ:
                pytest.skip(f"pip cannot fetch the source of {name}: {got.stderr.strip().splitlines()[-1]}")
            assert got.returncode == 0, got.stderr
            with tarfile.open(folder / f"{name}-{version}.tar.gz") as archive:
                for member in archive:
                    parts = member.name.split("/")[1:]
                    if parts and (parts[0] == "tests" or len(parts) == 1 and parts[0].endswith((".toml", ".cfg", ".ini"))):
                        archive.extract(member, folder, filter="data")
        return target

    return fetch


class Run:
    """One run of a suite's tests on one loop, in a process of its own."""

    def __init__(self, suite, folder, loop, tests, results, timeout_s):
        self.results, self.timeout_s, self.log = results, timeout_s, results.with_suffix(".log")
        paths = [HERE / "suite", *([] if util.find_spec("trustme") else [HERE / "suite" / "standins"])]
        path = os.pathsep.join([*map(str, paths), os.environ.get("PYTHONPATH", "")]).rstrip(os.pathsep)
        # -P: the installed package is to be tested, not a folder of that name
        command = [sys.executable, "-P", "-m", "pytest", "-q", "-p", "suite_plugin", "-p", "no:cacheprovider",
                   "--timeout=30", "--tb=native", f"--basetemp={results.with_suffix('.tmp')}",
                   *SUITES[suite]["options"], *tests]
        environment = {**os.environ, "PYTHONPATH": path, "SUITE_LOOP": loop, "SUITE_RESULTS": str(results)}
        with open(self.log, "wb") as out:
            self.process = subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=out,
                                            stderr=out)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()

    def outcomes(self):
        """{test: (outcome, text)} once the process has ended."""
        try:
            status = self.process.wait(self.timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            status = self.process.wait()
        assert self.results.exists(), self.log.read_text(errors="replace")[-4000:]
        found = {test: (outcome, text) for test, outcome, text in map(json.loads, self.results.open())}
        if status not in (0, 1):  # pytest did not come to its end
            found = {test: ("crashed", f"exit status {status}\n{self.log.read_text(errors='replace')[-3000:]}")
                     if outcome == "begun" else (outcome, text) for test, (outcome, text) in found.items()}
        return found


def compare(suite, folder, tests, tmp_path, timeout_s, together):
    """{test: (outcome, text) on gmploop} of those that pass on asyncio's loop only, and how many pass there."""
    def start(loop):
        return Run(suite, folder, loop, tests, tmp_path / f"{loop}.json", timeout_s)

    if together:
        with start("asyncio") as stock, start("gmploop") as ours:
            stock, ours = stock.outcomes(), ours.outcomes()
    else:
        with start("asyncio") as run:
            stock = run.outcomes()
        with start("gmploop") as run:
            ours = run.outcomes()
    passed = [test for test, (outcome, _) in stock.items() if outcome == "passed"]
    missing = ("not run", "")
    worse = {test: ours.get(test, missing) for test in passed if ours.get(test, missing)[0] != "passed"}
    return worse, len(passed)


def check(suite, folder, tests, tmp_path, timeout_s):
    worse, count = compare(suite, folder, tests, tmp_path, timeout_s, together=True)
    assert count >= SUITES[suite]["least"], (tmp_path / "asyncio.log").read_text(errors="replace")[-4000:]
    worse = {test: what for test, what in worse.items() if not test.startswith(tuple(EXCLUDED))}
    if 0 < len(worse) <= 40:  # more is no accident
        worse, _ = compare(suite, folder, list(worse), tmp_path, timeout_s, together=False)
    report = "\n".join(f"{test}: {outcome}\n{text[-1500:]}" for test, (outcome, text) in list(worse.items())[:40])
    assert not worse, f"{len(worse)} of {count} tests pass on asyncio's loop but not on gmploop:\n{report}"


@pytest.mark.timeout(500)
@pytest.mark.parametrize("suite", SUITES)
def test_fast_part(suite, sources, tmp_path):
    tests = [f"tests/{name}" for name in SUITES[suite]["fast"]] + SUITES[suite].get("slow", [])
    check(suite, sources(suite), tests, tmp_path, timeout_s=220)


@pytest.mark.long
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("suite", SUITES)
def test_whole(suite, sources, tmp_path):
    check(suite, sources(suite), ["tests"], tmp_path, timeout_s=1500)
