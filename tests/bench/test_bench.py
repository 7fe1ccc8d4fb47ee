"""The suite runs, its JSON holds what it should, and it notices servers that lie or die. No figure is asserted."""

import json
import os
import shutil
import socket
import subprocess
import sys
import threading

import pytest

from gmploop.bench import native

pytestmark = pytest.mark.timeout(90)
needs_echo = pytest.mark.skipif(
    sys.platform != "linux" or not any(map(shutil.which, ("cc", "gcc", "clang"))),
    reason="the load generator needs Linux and a C compiler")


def bench(*arguments, **environment):
    return subprocess.run([sys.executable, "-m", "gmploop.bench", *arguments], capture_output=True, text=True,
                          timeout=80, env=os.environ | environment)


@needs_echo
def test_rows_of_both_kinds_are_measured(tmp_path):
    path = tmp_path / "figures.json"
    done = bench("call-soon-chain", "timer-cancel", "echo-protocol-1k", "--quick", "--connections", "5",
                 "--loops", "asyncio,gmploop", "--json", str(path))
    assert done.returncode == 0, done.stderr
    report = json.loads(path.read_text())
    assert report["complete"] and report["failures"] == []
    assert list(report["rows"]) == ["call-soon-chain", "timer-cancel", "echo-protocol-1k"]
    assert report["loops"]["gmploop"]["loop"].startswith("gmploop.")
    ours = subprocess.check_output([sys.executable, "-c", "import gmploop; print(gmploop.__file__)"], text=True)
    assert report["loops"]["gmploop"]["file"] == ours.strip()
    assert report["machine"]["python"] == sys.version.split()[0]
    for name, row in report["rows"].items():
        assert name in done.stdout
        assert set(row["results"]) == {"asyncio", "gmploop"}
        values = {loop: result["value"] for loop, result in row["results"].items()}
        assert all(value > 0 for value in values.values())
        assert row["ratios"]["gmploop"]["asyncio"] == pytest.approx(values["gmploop"] / values["asyncio"])
    echo = report["rows"]["echo-protocol-1k"]["results"]["gmploop"]
    assert echo["requests"] > 0 and 0 < echo["p50_us"] <= echo["p99_us"] <= echo["max_us"]


@needs_echo
@pytest.mark.parametrize("kind", ["protocol", "buffered", "streams", "sock"])
def test_every_echo_server_serves_large_messages(kind):
    done = bench(f"echo-{kind}-1m", "--quick", "--connections", "3", "--loops", "gmploop")
    assert done.returncode == 0, done.stderr
    assert f"echo-{kind}-1m" in done.stdout


@needs_echo
@pytest.mark.parametrize("server", ["uvicorn", "aiohttp"])
def test_http_servers(server):
    for package in ("httptools", server):
        pytest.importorskip(package)
    done = bench(f"http-{server}", "--quick", "--connections", "3", "--loops", "gmploop")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("arguments, names", [
    (["no-such-row"], ["no-such-row", "call-soon-chain", "echo-protocol-1k"]),
    (["--loops", "no-such-loop"], ["no-such-loop", "asyncio", "gmploop"]),
    (["--rounds", "0"], ["--rounds", "'0'"]),
    (["--seconds", "nan"], ["--seconds", "'nan'"]),
])
def test_wrong_usage_names_the_thing_and_what_there_is(arguments, names):
    done = bench(*arguments)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    for name in names:
        assert name in done.stderr


def test_without_a_compiler_the_message_says_what_to_do(tmp_path):
    done = bench("echo-protocol-1k", PATH=str(tmp_path), CC="")
    assert done.returncode == 2
    assert "C compiler" in done.stderr and "Traceback" not in done.stderr


def test_micro_rows_need_no_compiler(tmp_path):
    done = bench("sleep0", "--quick", "--loops", "gmploop", PATH=str(tmp_path), CC="")
    assert done.returncode == 0, done.stderr


@needs_echo
def test_a_loop_that_does_not_start_fails_the_run(tmp_path):
    # a package that shadows the peer, and breaks only in the server
    (tmp_path / "uvloop.py").write_text(
        "import asyncio, sys\n"
        "class Loop(asyncio.SelectorEventLoop):\n"
        "    async def create_server(self, *args, **kwargs):\n"
        "        sys.exit('out of order')\n"
        "new_event_loop = Loop\n")
    done = bench("echo-protocol-1k", "--quick", "--loops", "asyncio,uvloop", PYTHONPATH=str(tmp_path))
    assert done.returncode == 1
    assert "out of order" in done.stderr and "failed" in done.stdout


def serve_once(reply):
    """Accept one connection in a thread, and send what `reply` makes of each thing received until it says None."""
    listener = socket.create_server(("127.0.0.1", 0))
    listener.settimeout(20)

    def run():
        with listener, listener.accept()[0] as connection:
            connection.settimeout(20)
            while (data := connection.recv(1 << 16)) and (answer := reply(data)) is not None:
                connection.sendall(answer)

    threading.Thread(target=run, daemon=True).start()
    return listener.getsockname()[1]


def flip_last_bit(data):
    return data[:-1] + bytes([data[-1] ^ 1])


def http_reply(body, status=b"200 OK"):
    return b"HTTP/1.1 %s\r\nContent-Length: %d\r\n\r\n%s" % (status, len(body), body)


@needs_echo
@pytest.mark.parametrize("mode, reply, status, says", [
    ("echo", lambda data: data, 0, ""),
    ("echo", flip_last_bit, 4, "differ"),
    ("echo", lambda data: data + b"x", 4, "more bytes"),
    ("echo", lambda data: None, 5, "closed by the server"),
    ("http", lambda data: http_reply(b"right"), 0, ""),
    ("http", lambda data: http_reply(b"wrong"), 4, "body differs"),
    ("http", lambda data: http_reply(b"right") + b"!", 4, "body differs"),
    ("http", lambda data: http_reply(b"right", b"500 Oops"), 4, "not a 200"),
])
def test_load_generator_checks_every_reply(mode, reply, status, says):
    command = [native.build("loadgen"), "-m", mode, "-p", str(serve_once(reply)), "-c", "1", "-b", "right",
               "-t", "0.1", "-w", "0.01"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=30)
    assert done.returncode == status, done.stderr
    assert says in done.stderr
    if status == 0:
        assert json.loads(done.stdout)["requests"] > 0


@needs_echo
def test_load_generator_says_when_nobody_listens():
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        done = subprocess.run([native.build("loadgen"), "-m", "echo", "-p", str(unused.getsockname()[1])],
                              capture_output=True, text=True, timeout=30)
    assert done.returncode == 3
    assert "refused" in done.stderr
