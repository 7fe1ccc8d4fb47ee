"""pytest-asyncio runs a project's tests on gmploop: a pytest of its own, in a folder of its own, is asked."""

import subprocess
import sys

import pytest

pytest.importorskip("pytest_asyncio")

HOOK = """
import gmploop
def pytest_asyncio_loop_factories(config, item):
    return {"gmploop": gmploop.new_event_loop}
"""
FIXTURE = """
import gmploop, pytest
@pytest.fixture(scope="session")
def event_loop_policy():
    return gmploop.EventLoopPolicy()
"""
TESTS = """
import asyncio, gmploop, pytest, pytest_asyncio

@pytest_asyncio.fixture
async def fixture():
    yield asyncio.get_running_loop()
    await asyncio.sleep(0)

@pytest_asyncio.fixture(loop_scope="module", scope="module")
async def shared():
    return asyncio.get_running_loop()

@pytest.mark.asyncio
async def test_one(fixture):
    assert isinstance(fixture, gmploop.Loop) and fixture is asyncio.get_running_loop()
    assert await asyncio.to_thread(int, "7") == 7

@pytest.mark.asyncio
async def test_two():
    assert isinstance(asyncio.get_running_loop(), gmploop.Loop)

@pytest.mark.asyncio(loop_scope="module")
async def test_three(shared):
    assert isinstance(shared, gmploop.Loop) and shared is asyncio.get_running_loop()
"""


def run_tests(folder, command, conftest):
    (folder / "conftest.py").write_text(conftest)
    (folder / "pytest.ini").write_text("[pytest]\nasyncio_default_fixture_loop_scope = function\n")
    (folder / "test_it.py").write_text(TESTS)
    return subprocess.run([sys.executable, *command, "-p", "no:cacheprovider", "-q"], cwd=folder, text=True,
                          capture_output=True, timeout=60)


def test_loop_factories_hook(tmp_path):
    done = run_tests(tmp_path, ["-m", "pytest", "-W", "error"], HOOK)
    assert done.returncode == 0 and "3 passed" in done.stdout, done.stdout


def test_under_gmploop_without_a_word_in_the_project(tmp_path):
    done = run_tests(tmp_path, ["-m", "gmploop", "-m", "pytest", "-W", "error"], "")
    assert done.returncode == 0 and "3 passed" in done.stdout, done.stdout


@pytest.mark.skipif(sys.version_info >= (3, 16), reason="this Python has no event loop policies")
def test_the_policy_fixture_of_old(tmp_path):
    """Deprecated by pytest-asyncio, and still at work."""
    done = run_tests(tmp_path, ["-m", "pytest"], FIXTURE)
    assert done.returncode == 0 and "3 passed" in done.stdout, done.stdout


def test_without_any_of_this_it_would_be_stock(tmp_path):
    done = run_tests(tmp_path, ["-m", "pytest"], "")
    assert done.returncode == 1 and "3 failed" in done.stdout, done.stdout
