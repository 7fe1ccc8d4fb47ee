"""What fails on a goroutine leaves nothing behind that only a collection would find.

On free-threaded Pythons an object that one thread has made and another drops last is freed when the former runs Python
again. So all threads of the runtime, and the test's own, run some before each look.
"""

import asyncio
import gc
import socket
import ssl
import time
import weakref

import gmploop
import pytest
from gmploop import go

pytestmark = pytest.mark.timeout(60)
THREADS = 8


class Mark:
    """Can be referred to weakly, as exceptions and what functions have at hand cannot."""


@pytest.fixture(autouse=True)
def no_collection():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def gone(run, ref):
    async def all_threads_run():
        await asyncio.gather(*[go(gmploop.blocking, time.sleep, 0.002) for _ in range(THREADS)])
    end = time.monotonic() + 2
    while ref() is not None and time.monotonic() < end:
        run(all_threads_run())
    return ref() is None


def test_a_tls_handshake_that_is_given_up_leaves_nothing_behind(run):
    async def attempt(address, context):
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.1):
                await asyncio.get_running_loop().create_connection(asyncio.Protocol, *address, ssl=context)

    async def main(address, refs):
        context = ssl.create_default_context()
        refs.append(weakref.ref(context))
        await go(attempt, address, context)
    refs = []
    with socket.create_server(("127.0.0.1", 0)) as silent:
        run(main(silent.getsockname(), refs))
    assert gone(run, refs[0])


async def refused(port, refs):
    """The error's traceback has this frame, and the mark with it: whatever keeps the error keeps the mark."""
    mark = Mark()
    refs.append(weakref.ref(mark))
    with pytest.raises(OSError):
        await asyncio.open_connection("localhost", port, happy_eyeballs_delay=0.25)


def test_a_connection_that_is_refused_leaves_no_cycles_behind(run):
    async def main():
        await go(refused, port, ours)
    stocks, ours = [], []
    with socket.socket() as nobody_listens:
        nobody_listens.bind(("127.0.0.1", 0))
        port = nobody_listens.getsockname()[1]
        asyncio.run(refused(port, stocks))
        run(main())
    if stocks[0]() is not None:
        pytest.skip("this asyncio's happy eyeballs leave some themselves")
    assert gone(run, ours[0])
