"""FastAPI on databases in two replicas of one process: `python -m gmploop serve --factory`."""

import importlib.util
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from serving import Serve

from .servers import HERE

pytestmark = pytest.mark.timeout(60)


def needs(*names):
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    return pytest.mark.skipif(bool(missing), reason=f"needs {', '.join(missing)}")


@pytest.fixture
def serve():
    """serve(factory, database) -> a started server of two replicas."""
    started = []

    def start(factory, database):
        started.append(Serve(f"database_asgi:{factory}", "--factory", "--port", "0", "--app-dir", str(HERE), cwd=HERE,
                             env={"DATABASE": database}))
        return started[-1].started()
    yield start
    for server in started:
        server.kill()


def ask(server, path, count=40):
    """The answers to `count` requests, eight at a time, and that the server then ends well."""
    with ThreadPoolExecutor(8) as pool:
        answers = [json.loads(answer) for answer in pool.map(lambda n: server.get(f"/{path}/{n}"), range(count))]
    server.signal()
    assert server.end() == 0, server.text
    assert "Traceback" not in server.text, server.text
    assert {answer["replica"] for answer in answers} == {0, 1}
    return answers


@needs("fastapi", "uvicorn", "asyncpg")
def test_fastapi_with_asyncpg(serve, postgres):
    answers = ask(serve("with_asyncpg", f"postgresql://tester@127.0.0.1:{postgres.port}/postgres?sslmode=disable"),
                  "double")
    assert [answer["double"] for answer in answers] == [2 * n for n in range(40)]
    backends = [{pid for answer in answers if answer["replica"] == i for pid in answer["backends"]} for i in (0, 1)]
    assert not backends[0] & backends[1] and all(1 <= len(found) <= 3 for found in backends)   # a pool of its own each


@pytest.fixture(scope="session")
def greenlet_works():
    """A greenlet without support for free-threaded Python crashes there, on stock asyncio too, with and without GIL."""
    if "free-threading" in sys.version:
        look = "import sys, greenlet; print(sys._is_gil_enabled())"     # it enables the GIL when it has no support
        env = {name: value for name, value in os.environ.items() if name != "PYTHON_GIL"}
        done = subprocess.run([sys.executable, "-W", "ignore", "-c", look], env=env, capture_output=True, text=True,
                              timeout=30)
        if done.stdout == "True\n":
            pytest.skip("this version of greenlet does not support free-threaded Python")


def notes_of(server):
    answers = ask(server, "note")
    assert [answer["words"] for answer in answers] == [f"note {n}" for n in range(40)]
    assert all(answer["stayed"] for answer in answers)      # each greenlet went on in the thread of its loop


@needs("fastapi", "uvicorn", "sqlalchemy", "greenlet", "aiosqlite")
def test_fastapi_with_sqlalchemy_on_sqlite(serve, tmp_path, greenlet_works):
    notes_of(serve("with_sqlalchemy", f"sqlite+aiosqlite:///{tmp_path / 'notes'}"))


@needs("fastapi", "uvicorn", "sqlalchemy", "greenlet", "asyncpg")
def test_fastapi_with_sqlalchemy_on_postgresql(serve, postgres, greenlet_works):
    notes_of(serve("with_sqlalchemy", f"postgresql+asyncpg://tester@127.0.0.1:{postgres.port}/postgres"))
