"""The suite runs, its JSON holds what it should, and it notices servers that lie or die. No figure is asserted."""

import asyncio
import json
import os
import shutil
import socket
import subprocess
import sys
import threading

import pytest

from gmploop.bench import micro, native, report, rows, services

pytestmark = pytest.mark.timeout(240)
needs_echo = pytest.mark.skipif(
    sys.platform != "linux" or not any(map(shutil.which, ("cc", "gcc", "clang"))),
    reason="the load generator needs Linux and a C compiler")


def bench(*arguments, **environment):
    return subprocess.run([sys.executable, "-m", "gmploop.bench", *arguments], capture_output=True, text=True,
                          timeout=220, env=os.environ | environment)


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
    assert echo["requests"] > 0 and 0 < echo["p50_us"] <= echo["p99_us"] <= echo["p999_us"] <= echo["max_us"]


def quick(*arguments, tmp_path):
    """Run some rows on gmploop alone, check that all of them were printed, and return the JSON."""
    path = tmp_path / "figures.json"
    done = bench(*arguments, "--quick", "--seconds", "0.05", "--loops", "gmploop,c-epoll", "--json", str(path))
    assert done.returncode == 0, done.stderr
    report = json.loads(path.read_text())
    assert report["rows"] and report["failures"] == []
    for name, row in report["rows"].items():
        assert name in done.stdout
        assert row["results"]["gmploop"]["value"] is not None
    return report | {"stdout": done.stdout}


@needs_echo
def test_network_parts(tmp_path):
    names = ("unix-protocol", "unix-streams", "unix-sock", "udp-protocol-64", "udp-sock", "accept-streams", "latency-streams-10k")
    rows = quick(*names, "--connections", "5", tmp_path=tmp_path)["rows"]
    assert {row["part"] for row in rows.values()} == {"unix", "udp", "accept", "latency"}
    assert all("c-epoll" in row["results"] for row in rows.values())
    assert rows["latency-streams-10k"]["results"]["gmploop"]["requests_per_s"] < 10_500 * 1.5


@needs_echo
def test_tls_part(tmp_path):
    if missing := native.tls_missing():
        pytest.skip(missing)
    rows = quick("tls-protocol-1k", "tls-streams-100k", "tls-handshake", "--connections", "5", tmp_path=tmp_path)["rows"]
    assert len(rows) == 3 and all("c-epoll" in row["results"] for row in rows.values())


@needs_echo
@pytest.mark.parametrize("server, package", [("ws-websockets", "websockets"), ("ws-uvicorn", "uvicorn"),
                                             ("ws-aiohttp", "aiohttp")])
def test_websocket_servers(server, package, tmp_path):
    pytest.importorskip("websockets")
    pytest.importorskip(package)
    quick(server, "--connections", "3", tmp_path=tmp_path)


@needs_echo
@pytest.mark.parametrize("service, package", [("postgresql", "asyncpg"), ("redis", "redis")])
def test_databases(service, package, tmp_path):
    pytest.importorskip(package)
    if missing := services.missing(service):
        pytest.skip(missing)
    rows = quick(f"db-{package}", tmp_path=tmp_path)["rows"]
    assert len(rows) == 2 and all(row["results"]["gmploop"]["requests"] > 0 for row in rows.values())


@needs_echo
def test_tail_of_the_tail_comes_from_the_same_measurement(tmp_path):
    rows = quick("latency-protocol-10k", tmp_path=tmp_path)["rows"]
    assert list(rows) == ["latency-protocol-10k", "latency-protocol-10k-p999"]
    p99, p999 = (row["results"]["gmploop"]["rounds"][0] for row in rows.values())
    assert p99["value"] == p99["p99_us"] <= p999["value"] == p999["p999_us"]
    assert p99["requests"] == p999["requests"] >= 1000


@needs_echo
@pytest.mark.parametrize("names", [
    ("sched-cpu", "sched-spawn-one"), ("sched-tasks", "sched-scaling", "sched-hop-threads"), ("sched-parked-10k", "sched-blocker-sleep"),
    ("sched-idle", "sched-latency", "sched-retake", "sched-step"), ("hops-two-loops", "hops-one-loop"), ("hops-two-threads",),
    ("isolated-accept-streams", "isolated-echo-protocol"), ("isolated-blocker-sleep",), ("files-read-4k-depth1",)],
    ids=lambda names: names[0])
def test_parts_with_other_contestants_than_loops(names, tmp_path):
    path = tmp_path / "figures.json"
    done = bench(*names, "--quick", "--loops", "asyncio,gmploop", "--seconds", "0.02", "--json", str(path))
    assert done.returncode == 0, done.stderr
    report = json.loads(path.read_text())
    assert report["failures"] == [] and report["rows"]
    for name, row in report["rows"].items():
        first, *others = row["results"]
        assert name in done.stdout and first in done.stdout
        assert list(row["results"]) == row["ways"] and not any("uvloop" in way or "tonio" in way for way in row["ways"])
        assert all(len(result["rounds"]) == 1 and result["low"] <= result["value"] <= result["high"]
                   for result in row["results"].values())
        if row["results"][first]["value"] > 0:
            assert all(row["ratios"][way][first] > 0 or name == "sched-idle" for way in others)


@pytest.mark.parametrize("runtime, ways", [("tonio", 2), ("go", 2)])
def test_other_runtimes(runtime, ways, tmp_path):
    if runtime == "go" and not shutil.which("go"):
        pytest.skip("there is no go program")
    if runtime == "tonio":
        pytest.importorskip("tonio")
    path = tmp_path / "figures.json"
    done = bench("sched-spawn", "--quick", "--loops", f"gmploop,{runtime}", "--json", str(path))
    assert done.returncode == 0, done.stderr
    results = json.loads(path.read_text())["rows"]["sched-spawn"]["results"]
    assert sum(way.startswith(runtime) for way in results) == ways
    assert all(result["value"] > 0 for result in results.values())


@pytest.mark.parametrize("row", ["sleep0", "growth-timers-100"])
def test_rows_in_one_process_tell_what_the_kernel_took(row, tmp_path):
    path = tmp_path / "figures.json"
    done = bench(row, "--quick", "--syscalls", "--loops", "asyncio,gmploop", "--json", str(path))
    assert done.returncode == 0, done.stderr
    report = json.loads(path.read_text())
    for result in report["rows"][row]["results"].values():
        assert result["user_ns"] + result["sys_ns"] == pytest.approx(result["cpu_ns"])
        assert result["peak_kb"] > 1000
    if report["settings"]["syscalls"] is None:
        pytest.skip("neither perf nor strace can count here")
    stock, ours = (report["rows"][row]["results"][loop]["syscalls"] for loop in ("asyncio", "gmploop"))
    assert 0 <= ours <= stock + 1
    if row == "sleep0":
        assert stock > 0.9          # it asks the selector in each turn


def test_a_service_that_is_not_there_is_left_out_with_a_word(monkeypatch, tmp_path):
    monkeypatch.setattr(services, "PROGRAMS", {"redis": ("no-such-program",)})
    services.missing.cache_clear()
    row = rows.select(["db-redis"])[0]
    if row.missing_package():
        pytest.skip("redis is not installed")
    assert "no-such-program" in rows.cannot(row, 50, native.tls_missing, services.missing)
    services.missing.cache_clear()


@pytest.mark.parametrize("name", list(micro.ROWS))
def test_micro_rows_carry_out_what_they_count(name):
    loop = asyncio.new_event_loop()
    try:
        cpu_ns, wall_ns = micro.ROWS[name](loop, 1000)
    finally:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
    assert cpu_ns > 0 and wall_ns > 0


@needs_echo
def test_growth_part(tmp_path):
    names = ("growth-connections-protocol", "growth-size-streams", "growth-timers", "growth-tasks", "growth-task-among")
    report = quick(*names, tmp_path=tmp_path)
    assert set(report["growth"]) == {"connections-protocol", "size-streams", "timers", "tasks", "task-among"}
    assert set(report["growth"]["connections-protocol"]) == {"gmploop", "c-epoll"}
    assert "grows more than the work" in report["stdout"]


@needs_echo
def test_memory_part(tmp_path):
    rows = quick("memory-protocol-1000", "memory-streams-1000", tmp_path=tmp_path)["rows"]
    for row in rows.values():
        result = row["results"]["gmploop"]
        assert result["bytes_per_connection"] < 100_000
        assert result["wakeups_per_s"] >= 0 and result["cpu_us_per_s"] >= 0


def series(costs):
    return {f"s-{at}": {"series": "s", "at": at, "work": 1, "results": {loop: {"value": cost} for loop, cost in by.items()}}
            for at, by in costs.items()}


@pytest.mark.parametrize("ours, server, flagged", [
    ((9, 3, 3, 3.5), (1, 1, 1, 1), {}),
    ((9, 3, 3, 6), (1, 1, 1, 1), {1000: 2}),
    ((9, 3, 3, 6), (1, 1, 1, 2), {}),               # the machine's part
    ((9, 3, 6, 9), (1, 1, 1, 2), {100: 2}),
])
def test_costs_that_grow_more_than_the_work_are_flagged(ours, server, flagged):
    loads = (1, 10, 100, 1000)
    table = series({at: {"gmploop": a, "c-epoll": b} for at, a, b in zip(loads, ours, server)})
    assert report.growth(table)["s"]["gmploop"]["flagged"] == flagged


def test_rounds_are_compared_in_pairs():
    measured = {"uvloop": [{"value": 2}, {"value": 4}, {"value": 10}], "gmploop": [{"value": 1}, {"value": 4}, {"value": 12}],
                "rloop": [{"value": 1}]}
    assert report.paired(measured, ["uvloop"]) == {"gmploop": {"uvloop": [0.5, 1, 1.2]}, "uvloop": {}, "rloop": {}}


def test_least_of_the_rounds():
    rounds = [{"value": 3, "rss": 1}, {"value": 2, "rss": 5}, {"value": 9, "rss": 9}]
    assert report.summarise(rounds) == {"value": 3, "rss": 5, "low": 2, "high": 9}
    assert report.summarise(rounds, least=True) == {"value": 2, "rss": 5, "low": 2, "high": 9}


@needs_echo
def test_what_a_loop_does_not_implement_is_no_failure(tmp_path):
    (tmp_path / "uvloop.py").write_text(
        "import asyncio\n"
        "class Loop(asyncio.SelectorEventLoop):\n"
        "    async def create_datagram_endpoint(self, *args, **kwargs):\n"
        "        raise NotImplementedError\n"
        "new_event_loop = Loop\n")
    done = bench("udp-protocol-1k", "--quick", "--loops", "asyncio,uvloop", PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert "lacks" in done.stdout


def test_plot(tmp_path):
    pytest.importorskip("matplotlib")
    path = tmp_path / "figures.png"
    done = bench("sleep0", "growth-callbacks", "--quick", "--loops", "asyncio,gmploop", "--plot", str(path))
    assert done.returncode == 0, done.stderr
    assert path.read_bytes()[:8] == b"\x89PNG\r\n\x1a\n" and path.stat().st_size > 10_000


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
    (["no-such-row"], ["no-such-row", "call-soon-chain", "echo-protocol-1k", "growth"]),
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
    ("ws", lambda data: http_reply(b"plain"), 4, "not upgraded"),
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
