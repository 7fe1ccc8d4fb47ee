"""What looks at a process from outside sees the tasks."""

import os
import subprocess
import sys

import pytest

PROGRAM = """
import asyncio, gmploop

async def waits():
    await asyncio.get_running_loop().create_future()

async def main():
    async with asyncio.TaskGroup() as group:
        group.create_task(waits(), name="first waiter")
        group.create_task(waits(), name="second waiter")
        await asyncio.sleep(0)
        print("ready", flush=True)

gmploop.run(main())
"""


@pytest.mark.skipif(sys.version_info < (3, 14), reason="python -m asyncio ps came with Python 3.14")
@pytest.mark.skipif(os.geteuid() != 0, reason="reading another process's memory may need root")
@pytest.mark.parametrize("command", ["ps", "pstree"])
def test_asyncio_ps_lists_the_tasks_of_a_running_loop(command):
    with subprocess.Popen([sys.executable, "-c", PROGRAM], stdout=subprocess.PIPE, text=True) as program:
        try:
            assert program.stdout.readline() == "ready\n"
            listed = subprocess.run([sys.executable, "-m", "asyncio", command, str(program.pid)], timeout=30,
                                    capture_output=True, text=True, check=True).stdout
        finally:
            program.kill()
    assert "first waiter" in listed and "second waiter" in listed
    assert "waits" in listed
