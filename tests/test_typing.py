"""What a type checker makes of a program that uses gmploop."""

import asyncio
import importlib.util
import os
import pathlib
import subprocess
import sys

import gmploop
import pytest

if importlib.util.find_spec("mypy") is None:
    pytest.skip("needs mypy", allow_module_level=True)

GOOD = """
import asyncio
import sys
from typing import assert_type

import gmploop


async def main() -> int:
    loop = asyncio.get_running_loop()
    reader, writer = await asyncio.open_connection("127.0.0.1", 80)
    return len(await reader.read()) + int(loop.time())


assert_type(gmploop.run(main()), int)
assert_type(gmploop.run(main(), debug=True, poller="epoll"), int)
assert_type(gmploop.run(main(), loop_factory=gmploop.new_event_loop), int)
assert_type(gmploop.run(main, replicas=2, debug=True), list[int])
loop = gmploop.new_event_loop(poller="auto", debug=None)
assert_type(loop, gmploop.Loop)
gmploop.Loop(poller=None, write_batching=False).close()
base: asyncio.AbstractEventLoop = loop
assert_type(loop.run_until_complete(main()), int)
handle: asyncio.TimerHandle = loop.call_later(0.5, print, "text")
with asyncio.Runner(loop_factory=gmploop.new_event_loop) as runner:
    runner.run(main())
gmploop.install(debug=True)
assert_type(gmploop.poller_name(), str)
version: str = gmploop.__version__
if sys.version_info < (3, 14):
    asyncio.set_event_loop_policy(gmploop.EventLoopPolicy(poller="epoll"))


async def talk(channel: gmploop.Channel[int], other: gmploop.Channel[str], lock: gmploop.Mutex) -> None:
    await channel.send(1)
    assert_type(await channel.recv(), int)
    assert_type([item async for item in channel], list[int])
    assert_type(await gmploop.select(channel.receiving(), channel, timeout=1.5), tuple[int, int])
    assert_type(await gmploop.select(channel, default=None), tuple[int, int | None])
    assert_type(await gmploop.select(channel.sending(1), other.sending("x")), tuple[int, None])
    task = asyncio.create_task(channel.recv())
    assert_type(await task, int)
    async with lock, gmploop.RWMutex().reader:
        pass
    with gmploop.Semaphore(2):
        assert_type(channel.recv_blocking(timeout=1), int)
    assert_type(await gmploop.Once().do(main), int)
    assert_type(await gmploop.Once().do(len, "text"), int)


async def serves(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.close()


async def serve() -> None:
    assert_type(await gmploop.start_server(serves, "127.0.0.1", 0, limit=1000, backlog=5), asyncio.Server)
    assert_type(await gmploop.start_server(lambda reader, writer: writer.close(), port=0), asyncio.Server)
    assert_type(await gmploop.start_unix_server(serves, "path"), asyncio.Server)
    assert_type(await loop.create_server(asyncio.Protocol, "", 0, isolate=True), asyncio.Server)


class Mine(gmploop.Loop):
    def time(self) -> float:
        return super().time() + 1.0
"""
BAD = {
    "gmploop.run(main)": "call-overload",
    "gmploop.run(main(), prox=2)": "call-overload",
    "gmploop.run(main(), replicas=2)": "call-overload",
    "gmploop.new_event_loop(poller=5)": "arg-type",
    "gmploop.new_event_loop(epoll=True)": "call-arg",
    "gmploop.install(debug='yes')": "arg-type",
    "gmploop.EventLoopPolicy(kind=1)": "call-arg",
    "gmploop.Loop(poler='epoll')": "call-arg",
    "gmploop.Loop().call_later('1', print)": "arg-type",
    "gmploop.Loop().no_such_method()": "attr-defined",
    "gmploop.nothing": "attr-defined",
    "gmploop.start_server(5)": "arg-type",
    "gmploop.start_server(print, limit='x')": "arg-type",
    "gmploop.Channel[int]().send_nowait('x')": "arg-type",
    "gmploop.Channel('1')": "arg-type",
    "gmploop.select('channel')": "call-overload",
    "gmploop.Mutex(5)": "misc",
    "gmploop.WaitGroup().add('1')": "arg-type",
}


@pytest.fixture(scope="module")
def mypy(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mypy")
    # mypy finds an installed package by itself, but not one that is installed editable
    home = pathlib.Path(gmploop.__file__).parents[1]
    env = os.environ | ({} if home.name == "site-packages" else {"MYPYPATH": str(home)})

    def check(source, *options):
        (folder / "program.py").write_text(source)
        command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--cache-dir", "cache",
                   "--follow-imports", "silent", *options, "program.py"]
        done = subprocess.run(command, cwd=folder, env=env, capture_output=True, text=True, timeout=110)
        assert not done.stderr, done.stderr
        return done.stdout.splitlines()

    return check


@pytest.mark.parametrize("version", ["3.11", "3.13", "3.14"])
def test_a_correct_program_passes(mypy, version):
    assert mypy(GOOD, "--python-version", version) == []


def test_each_mistake_is_found(mypy):
    source = "import gmploop\nasync def main() -> None: ...\n" + "\n".join(BAD)
    lines = [line for line in mypy(source) if ": error: " in line]
    found = {int(line.split(":")[1]): line.rpartition("[")[2].rstrip("]") for line in lines}
    assert found == dict(enumerate(BAD.values(), start=3))


def test_the_stub_of_loop_tells_the_truth():
    """It takes all of its methods from asyncio's class, and these options."""
    assert issubclass(gmploop.Loop, asyncio.SelectorEventLoop)
    for options in {"poller": "auto", "debug": None}, {"poller": None, "write_batching": False}:
        gmploop.Loop(**options).close()
