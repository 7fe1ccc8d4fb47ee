"""Fixtures of the tests of gmploop.fs."""

import os

import fs_support
import gmploop
import pytest
import support


@pytest.fixture(params=fs_support.BOTH)
def backend(request, monkeypatch):
    monkeypatch.setenv("GMPLOOP_FS", request.param)
    return request.param


@pytest.fixture
def ring(monkeypatch):
    """Only the ring: what threads do not do, such as ending a read that is cancelled."""
    if fs_support.NO_RING:
        pytest.skip(f"io_uring cannot be had here: {fs_support.NO_RING}")
    monkeypatch.setenv("GMPLOOP_FS", "io_uring")


@pytest.fixture
def files_loop(errors):
    loop = gmploop.new_event_loop()
    loop.set_exception_handler(lambda _, context: errors.append(context))
    yield loop
    assert not support.finish(loop), "tasks left behind"


@pytest.fixture
def run(files_loop):
    return lambda coro, timeout=30: files_loop.run_until_complete(support.bounded(coro, timeout))


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(fs_support.LINES)
    return path


@pytest.fixture
def fifo(tmp_path):
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path
