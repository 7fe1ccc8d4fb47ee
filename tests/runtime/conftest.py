"""What the tests of goroutines share: programs in processes of their own, and a program's main coroutine in this one."""

import os
import subprocess
import sys
import textwrap

import gmploop
import pytest
import support


@pytest.fixture(scope="module", autouse=True)
def started():
    """The runtime, once started, keeps its poller and its threads: they are no leak of a test."""
    gmploop.set_procs(2)
    gmploop.go(int).result(10)


@pytest.fixture
def run(errors):
    """Runs a coroutine by gmploop.run with `procs` Ps, for at most `timeout` seconds."""
    def runner(coro, procs=2, timeout=20, **options):
        async def main():
            import asyncio
            asyncio.get_running_loop().set_exception_handler(lambda _, context: errors.append(context))
            return await support.bounded(coro, timeout)
        return gmploop.run(main(), procs=procs, **options)
    return runner


@pytest.fixture
def program():
    """Runs source text as a program; returns the finished process (stdout, stderr, returncode)."""
    def runner(source, timeout=30, **env):
        root = os.path.dirname(os.path.dirname(gmploop.__file__))
        return subprocess.run([sys.executable, "-c", textwrap.dedent(source)], capture_output=True, text=True,
                              timeout=timeout, env={**os.environ, "PYTHONPATH": root, **env})
    return runner
