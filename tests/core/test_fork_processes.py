"""Fork: a signal reaches the loop of the process that it was sent to, and multiprocessing forks as it does on stock."""

import asyncio
import multiprocessing
import os
import socket

import gmploop
import pytest
from support import bounded, child_output

pytestmark = [pytest.mark.timeout(60), pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")]


def test_a_signal_to_the_child_of_a_running_loop_is_not_taken_for_the_parent_s():
    """The wake-up descriptor is shared by a fork: what the child's signals write to it, the parent would read."""
    assert child_output("gmploop", """
        import warnings
        warnings.simplefilter("ignore")
        async def main():
            loop = asyncio.get_running_loop()
            seen = []
            loop.add_signal_handler(signal.SIGUSR1, seen.append, "parent")
            pid = os.fork()
            if not pid:
                try:
                    os.kill(os.getpid(), signal.SIGUSR1)
                finally:
                    os._exit(0)
            await loop.run_in_executor(None, os.waitpid, pid, 0)
            for _ in range(3):
                await asyncio.sleep(0.005)
            print(seen)
            os.kill(os.getpid(), signal.SIGUSR1)
            await asyncio.sleep(0.005)
            print(seen)
            loop.remove_signal_handler(signal.SIGUSR1)
        loop = new_loop()
        loop.run_until_complete(main())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
    """) == "[]\n['parent']\n"


FORKS_WITH_A_HANDLER = """
        import warnings
        warnings.simplefilter("ignore")
        loop = new_loop()
        seen = []
        loop.add_signal_handler(signal.SIGUSR1, seen.append, "handled")
        loop.run_until_complete(asyncio.sleep(0.001))
        pid = os.fork()
"""


def test_a_loop_that_goes_on_in_the_child_handles_its_own_signals_only():
    assert child_output("gmploop", FORKS_WITH_A_HANDLER + """
        if not pid:
            status = 1
            try:
                loop.run_until_complete(asyncio.sleep(0))   # asyncio unsets the wakeup fd in every child
                for _ in range(20):
                    os.kill(os.getpid(), signal.SIGUSR1)
                    loop.run_until_complete(asyncio.sleep(0.002))
                status = len(seen)
                loop.close()
            finally:
                os._exit(status)
        loop.run_until_complete(asyncio.sleep(0.1))
        print("child", os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), "parent", seen)
        loop.close()
    """) == "child 20 parent []\n"


def test_a_signal_to_the_child_before_its_loop_runs_is_not_taken_for_the_parent_s():
    assert child_output("gmploop", FORKS_WITH_A_HANDLER + """
        if not pid:
            try:
                os.kill(os.getpid(), signal.SIGUSR1)
                loop.close()
            finally:
                os._exit(0)
        os.waitpid(pid, 0)
        loop.run_until_complete(asyncio.sleep(0.005))
        print(seen)
        os.kill(os.getpid(), signal.SIGUSR1)
        loop.run_until_complete(asyncio.sleep(0.005))
        print(seen)
        loop.close()
    """) == "[]\n['handled']\n"


def answer(connection, loop=None):
    async def main():
        reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=os.dup(connection.fileno())))
        writer.write(b"from the worker")
        await writer.drain()
        writer.close()
        return await asyncio.to_thread(int)
    connection.setblocking(False)
    gmploop.run(asyncio.wait_for(main(), 10))


@pytest.mark.parametrize("inside", [True, False], ids=["from a running loop", "from outside"])
def test_multiprocessing_by_fork(loop, inside):
    near, far = socket.socketpair()
    process = multiprocessing.get_context("fork").Process(target=answer, args=(far,))

    async def main():
        process.start()
        await bounded(loop.run_in_executor(None, process.join, 20), 25)
        await asyncio.sleep(0.001)
    if inside:
        loop.run_until_complete(main())
    else:
        loop.run_until_complete(asyncio.sleep(0.001))
        process.start()
        process.join(20)
    assert process.exitcode == 0
    assert near.recv(100) == b"from the worker"
    process.close()
    near.close()
    far.close()
    loop.run_until_complete(asyncio.sleep(0.001))
