"""Loops, servers and certificates for the tests that run real programs.

Every test here takes `run` (or `loop_factory`) and so runs twice: on asyncio's loop and on gmploop. Only on one of
them: `pytest tests/apps -k gmploop`. Tests marked `long` run with `-m long` alone.
"""

import asyncio
import gc
import os
import ssl
from pathlib import Path

import pytest

import gmploop
import support

from . import servers

HERE = Path(__file__).parent
LOOPS = {"asyncio": asyncio.SelectorEventLoop, "gmploop": gmploop.new_event_loop}
TIMEOUT_S = 30  # of a test that names none


def pytest_collection_modifyitems(items):
    for item in items:
        if HERE not in item.path.parents:
            continue
        if not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))


@pytest.fixture(params=LOOPS)
def loop_name(request):
    return request.param


@pytest.fixture
def loop_factory(loop_name):
    return LOOPS[loop_name]


def open_descriptors():
    """The sockets, pipes and pollers that this process has open."""
    found = support.open_fds() if os.path.isdir("/proc/self/fd") else ()
    return {(fd, target) for fd, target in found if target.startswith(("socket:", "pipe:", "anon_inode:"))}


@pytest.fixture
def run(loop_factory):
    """run(coroutine) -> its result, on a fresh loop, with asyncio.run's clean-up.

    The test fails if anything reached the loop's exception handler or a descriptor stayed open.
    """
    complaints = []

    def runner(main):
        with asyncio.Runner(loop_factory=loop_factory) as r:
            r.get_loop().set_exception_handler(lambda _, context: complaints.append(context))
            return r.run(main)

    before = open_descriptors()
    yield runner
    gc.collect()
    assert not complaints
    left = support.leftovers(open_descriptors, before)
    assert not left, f"descriptors left open: {left}"


@pytest.fixture(scope="session")
def certificates(tmp_path_factory):
    return servers.Certificates(tmp_path_factory.mktemp("tls"))


@pytest.fixture(scope="session")
def server_tls(certificates):
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates.cert, certificates.key)
    return context


@pytest.fixture(scope="session")
def client_tls(certificates):
    return ssl.create_default_context(cafile=certificates.cert)


@pytest.fixture(scope="session")
def postgres(certificates):
    with servers.Postgres(certificates) as server:
        yield server


@pytest.fixture(scope="session")
def redis_server(tmp_path_factory):
    with servers.Redis(tmp_path_factory.mktemp("redis")) as server:
        yield server


@pytest.fixture
def nginx(tmp_path):
    """nginx(upstream) -> a started Nginx that passes everything on to `upstream` ("host:port" or "unix:path")."""
    started = []

    def start(upstream):
        started.append(servers.Nginx(tmp_path, upstream))
        return started[-1].__enter__()

    yield start
    for server in started:
        server.__exit__(None, None, None)
