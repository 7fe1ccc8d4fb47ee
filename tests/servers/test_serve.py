"""python -m gmploop serve: real processes on loopback, asked over HTTP and by signals."""

import collections
import contextlib
import http.client
import os
import pathlib
import re
import signal
import socket
import ssl
import subprocess
import sys

import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("starlette")

import support
from serving import Serve

pytestmark = pytest.mark.timeout(60)
HERE = pathlib.Path(__file__).parent


@pytest.fixture
def serve():
    started = []

    def start(app="replicated:app", *options, port=True, **more):
        started.append(Serve(app, *(("--port", "0") if port else ()), *options, **{"cwd": HERE, **more}))
        return started[-1]
    yield start
    for server in started:
        server.kill()


def test_connections_are_dealt_evenly_and_each_replica_has_its_lifespan(serve):
    server = serve().started()
    answers, kept = collections.Counter(), []
    for _ in range(64):
        kept.append(server.connection())
        kept[-1].request("GET", "/")
        answers[kept[-1].getresponse().read().decode()] += 1
    assert set(answers) == {"replica 0 gmploop.loop", "replica 1 gmploop.loop"}
    assert max(answers.values()) <= 1.2 * min(answers.values())
    for connection in kept:
        connection.close()
    server.signal()
    assert server.end() == 0
    assert all(f"lifespan over in replica {i}" in server.lines for i in (0, 1))
    assert "2 replicas on gmploop" in server.text
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    assert server.count("share the GIL") == gil
    assert "Traceback" not in server.text and "Error" not in server.text


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_the_requests_under_way_are_finished_and_no_more_accepted(serve, number):
    server = serve().started()
    answers = [server.getting("/slow/1") for _ in range(2)]
    server.wait_for("slow", 2)
    server.signal(number)
    server.wait_for("Shutting down", 2)
    support.wait_until(lambda: refused(server.port))
    assert sorted(answer() for answer in answers) == ["replica 0", "replica 1"]
    assert server.end() == 0
    assert server.text.count("lifespan over") == 2 and "Traceback" not in server.text


def refused(port):
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) != 0


def test_the_second_signal_forces_the_end(serve):
    server = serve().started()
    answer = server.getting("/slow/100")
    server.wait_for("slow")
    server.signal()
    server.wait_for("Waiting for connections to close")
    server.signal()
    assert server.end() == 1
    answer()


def test_a_third_signal_interrupts_what_blocks(serve):
    """Replica 0 is the main thread; it answers no second signal while its handler blocks."""
    server = serve(replicas=1).started()
    answer = server.getting("/block/100")
    server.wait_for("blocking")
    for _ in range(20):
        server.signal()
        with contextlib.suppress(subprocess.TimeoutExpired):
            server.process.wait(0.2)        # no end, so the next signal
            break
    assert server.end() in (1, -signal.SIGTERM)     # the latter if one came when all was over
    answer()


def test_the_time_for_a_graceful_end_is_bounded(serve):
    server = serve("replicated:app", "--timeout-graceful-shutdown", "1").started()
    answer = server.getting("/slow/100")
    server.wait_for("slow")
    server.signal()
    assert server.end() == 0
    answer()
    assert "timeout graceful shutdown exceeded" in server.text and server.text.count("lifespan over") == 2


def test_a_signal_sent_from_within(serve):
    server = serve().started()
    assert server.get("/kill") == "signalled"
    assert server.end() == 0


@pytest.mark.parametrize("who", ["replica 0", "replica 1"])
def test_a_lifespan_that_fails_ends_the_run(serve, who):
    server = serve(env={"FAIL": who})
    assert server.end() == 3
    assert "no database today" in server.text and "Application startup failed" in server.text


def test_a_replica_that_crashes_later_ends_the_run(serve):
    server = serve().started()
    answers = [server.getting("/slow/1")]
    server.wait_for("slow")
    answers.insert(0, server.getting("/crash"))     # goes to the other replica
    assert server.end() == 5
    assert answers[0]() in (None, "Internal Server Error")
    assert answers[1]().startswith("replica ")      # the other finishes what is under way
    assert server.text.count("lifespan over") == 1


def test_a_factory_makes_an_app_for_each_replica(serve):
    server = serve("replicated:make_app", "--factory").started()
    assert {server.get() for _ in range(4)} == {"app 1 of 2", "app 2 of 2"}


def test_unix_socket(serve, tmp_path):
    path = str(tmp_path / "socket")
    with socket.socket(socket.AF_UNIX) as stale:
        stale.bind(path)                    # as a killed server leaves it
    server = serve("replicated:app", "--uds", path, port=False).started()
    answers = set()
    for _ in range(4):
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(path)
            client.sendall(b"GET / HTTP/1.0\r\n\r\n")
            with client.makefile("rb") as answer:
                answers.add(answer.read().split(b"\r\n\r\n")[1])
    assert answers == {b"replica 0 gmploop.loop", b"replica 1 gmploop.loop"}
    server.signal()
    assert server.end() == 0 and not os.path.exists(path)


def test_tls(serve, tls):
    server = serve("replicated:app", "--ssl-certfile", str(tls.cert), "--ssl-keyfile", str(tls.key)).started()
    answers = set()
    for _ in range(4):
        connection = http.client.HTTPSConnection("localhost", server.port, timeout=30,
                                                 context=ssl.create_default_context(cafile=tls.cert))
        with contextlib.closing(connection):
            connection.request("GET", "/")
            answers.add(connection.getresponse().read())
    assert answers == {b"replica 0 gmploop.loop", b"replica 1 gmploop.loop"}


def test_websockets(serve):
    websockets = pytest.importorskip("websockets.sync.client")
    server = serve().started()
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(websockets.connect(f"ws://127.0.0.1:{server.port}/ws")) for _ in range(4)]
        assert sorted(client.recv(10) for client in sockets) == ["replica 0"] * 2 + ["replica 1"] * 2
        for client in sockets:
            client.send("text ü" * 1000)
            assert client.recv(10) == "text ü" * 1000
        server.signal()
        for client in sockets:              # 1012: service restart
            with pytest.raises(Exception, match="1012"):
                client.recv(10)
    assert server.end() == 0


def test_options_are_uvicorns(serve):
    server = serve("replicated:app", "--header", "x-mine:yes", "--no-access-log", "--root-path", "/there").started()
    with contextlib.closing(server.connection()) as connection:
        connection.request("GET", "/")
        assert connection.getresponse().headers["x-mine"] == "yes"
    assert "GET /" not in server.text


def test_the_default_is_a_replica_for_each_cpu_where_the_gil_is_off(serve):
    gil = getattr(sys, "_is_gil_enabled", lambda: True)()
    expected = 1 if gil else len(os.sched_getaffinity(0))
    serve(replicas=None).wait_for(f"Serving in {expected} replica")


def run_serve(*arguments, **options):
    return subprocess.run([sys.executable, "-m", "gmploop", *arguments], cwd=HERE, capture_output=True, text=True,
                          timeout=50, **options)


def test_what_cannot_be_served():
    done = run_serve("serve", "nowhere:app", "--replicas", "2")
    assert done.returncode not in (0, None) and "Could not import module" in done.stderr
    with socket.create_server(("127.0.0.1", 0)) as taken:
        done = run_serve("serve", "replicated:app", "--port", str(taken.getsockname()[1]))
    assert done.returncode not in (0, None) and "ddress already in use" in done.stderr
    for bad in ("0", "many"):
        done = run_serve("serve", "replicated:app", "--replicas", bad)
        assert done.returncode == 2 and "--replicas" in done.stderr


def test_help():
    done = run_serve("serve", "--help")
    assert done.returncode == 0
    assert all(word in done.stdout for word in ("APP", "--replicas", "--factory", "--uds", "--timeout-graceful-shutdown"))
    assert not any(word in done.stdout for word in ("--workers", "--reload", "--loop"))


def test_without_uvicorn_it_says_so(tmp_path):
    (tmp_path / "uvicorn.py").write_text("raise ModuleNotFoundError('no', name='uvicorn')")
    done = run_serve("serve", "replicated:app", env={**os.environ, "PYTHONPATH": os.pathsep.join(
        [str(tmp_path), os.environ.get("PYTHONPATH", "")])})
    assert done.returncode == 1 and "needs uvicorn" in done.stderr and "Traceback" not in done.stderr


SCRIPTS = {
    "uvicorn": "import uvicorn\nuvicorn.run('replicated:app', port=0)",
    "aiohttp": "from aiohttp import web\nweb.run_app(web.Application(), host='127.0.0.1', port=0)",
}


@pytest.mark.parametrize("library", SCRIPTS)
def test_servers_in_a_replicated_script(library, tmp_path):
    """The library's own way to run a server, N times: one port, and SIGTERM ends each gracefully."""
    pytest.importorskip(library)
    (tmp_path / "script.py").write_text(f"{SCRIPTS[library]}\nprint('ended', flush=True)")
    command = [sys.executable, "-m", "gmploop", "--replicas", "2", "script.py"]
    path = os.pathsep.join([str(HERE), os.environ.get("PYTHONPATH", "")])
    with subprocess.Popen(command, cwd=tmp_path, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          env={**os.environ, "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}) as process:
        ports = []
        for line in process.stdout:
            ports += re.findall(r"[Rr]unning on http://127\.0\.0\.1:(\d+)", line)
            if len(ports) == 2:
                process.terminate()
                break
        rest = process.stdout.read()
    assert len(set(ports)) == 1 and process.returncode == 0, rest
    assert rest.count("ended") == 2 and rest.count("lifespan over") == (2 if library == "uvicorn" else 0), rest
