"""The servers people use, each by the line that the README gives for it.

A server inherits a listening socket, so that a client may connect at once and no port is guessed: its answer comes
when the server has started. SIGTERM ends it.
"""

import http.client
import importlib.util
import os
import pathlib
import signal
import socket
import subprocess
import sys

import pytest

HERE = pathlib.Path(__file__).parent
PYTHON = [sys.executable, "-W", "ignore"]
GMPLOOP = [*PYTHON, "-m", "gmploop"]


def needs(*names):
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")


@pytest.fixture
def serve():
    """serve(command, **environment) starts a server, asks it once, ends it: -> (loop's module, stderr, exit status).

    In the command FD stands for the number of the listening socket.
    """
    started = []

    def serve(command, **environment):
        with socket.create_server(("127.0.0.1", 0)) as listener:
            port, number = listener.getsockname()[1], str(listener.fileno())
            env = {k: v for k, v in os.environ.items() if not k.startswith(("GMPLOOP_", "UVICORN_"))} | environment
            server = subprocess.Popen([word.replace("FD", number) for word in command], cwd=HERE, env=env, text=True,
                                      stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, pass_fds=[listener.fileno()],
                                      start_new_session=True)
            started.append(server)
        client = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        try:
            client.request("GET", "/")
            module, pid = client.getresponse().read().decode().split()
        except OSError:
            os.killpg(server.pid, signal.SIGKILL)
            pytest.fail(server.communicate(timeout=60)[1])
        finally:
            client.close()
        server.terminate()
        errors = server.communicate(timeout=60)[1]
        return module, errors, server.returncode

    yield serve
    for server in started:
        try:
            os.killpg(server.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        server.communicate(timeout=60)


def is_gmploop(served):
    module, errors, status = served
    assert module == "gmploop.loop", errors
    assert "gmploop:" not in errors and "Traceback" not in errors
    assert status in (0, -signal.SIGTERM)  # uvicorn raises the signal that ended it again
    return True


UVICORN = ["uvicorn", "app:app", "--fd", "FD", "--log-level", "warning"]
HYPERCORN = ["hypercorn", "app:app", "-b", "fd://FD"]
GUNICORN = ["gunicorn", "app:app", "-b", "fd://FD", "--log-level", "warning"]


@needs("uvicorn")
@pytest.mark.parametrize("command", [
    [*PYTHON, "-m", *UVICORN, "--loop", "gmploop:new_event_loop"],
    [*GMPLOOP, "-m", *UVICORN],
    [*GMPLOOP, "-m", *UVICORN, "--loop", "none"],
    [*GMPLOOP, "-m", *UVICORN, "--loop", "auto"],
    [*GMPLOOP, "app.py", "uvicorn", "FD"],
], ids=["--loop", "gmploop", "gmploop, loop none", "gmploop, loop auto", "gmploop, uvicorn.run"])
def test_uvicorn(serve, command):
    assert is_gmploop(serve(command))


@needs("uvicorn")
def test_uvicorn_with_worker_processes(serve):
    assert is_gmploop(serve([*GMPLOOP, "-m", *UVICORN, "--workers", "2"]))


@needs("uvicorn")
@pytest.mark.parametrize("options, environment", [(["--loop", "asyncio"], {}), ([], {"UVICORN_LOOP": "asyncio"})])
def test_uvicorn_with_a_loop_that_the_user_chose(serve, options, environment):
    module, errors, _ = serve([*GMPLOOP, "-m", *UVICORN, *options], **environment)
    assert module == "asyncio.unix_events"
    assert "gmploop: this program runs asyncio.unix_events._UnixSelectorEventLoop, a loop that it chose" in errors


@needs("hypercorn")
@pytest.mark.parametrize("workers", [[], ["-w", "0"], ["-w", "2"]])
def test_hypercorn(serve, workers):
    assert is_gmploop(serve([*GMPLOOP, "-m", *HYPERCORN, *workers]))


@needs("gunicorn", "uvicorn")
def test_gunicorn_with_uvicorns_worker(serve):
    assert is_gmploop(serve([*PYTHON, "-m", *GUNICORN, "-k", "gmploop.UvicornWorker"]))


@needs("gunicorn", "uvicorn")
def test_gunicorn_with_uvicorns_own_worker_under_gmploop(serve):
    worker = "uvicorn_worker" if importlib.util.find_spec("uvicorn_worker") else "uvicorn.workers"
    assert is_gmploop(serve([*GMPLOOP, "-m", *GUNICORN, "-k", f"{worker}.UvicornWorker"]))


@needs("gunicorn")
def test_gunicorns_asgi_worker_under_gmploop(serve):
    assert is_gmploop(serve([*GMPLOOP, "-m", *GUNICORN, "-k", "asgi", "--asgi-loop", "asyncio"]))


@needs("aiohttp")
@pytest.mark.parametrize("command", [[*PYTHON, "app.py", "aiohttp-loop", "FD"], [*GMPLOOP, "app.py", "aiohttp", "FD"]],
                         ids=["loop=", "gmploop"])
def test_aiohttp(serve, command):
    assert is_gmploop(serve(command))


@needs("aiohttp", "gunicorn")
def test_gunicorn_with_aiohttps_worker_under_gmploop(serve):
    command = [*GMPLOOP, "-m", "gunicorn", "app:aiohttp_app()", "-b", "fd://FD", "-k", "aiohttp.GunicornWebWorker"]
    assert is_gmploop(serve(command))
