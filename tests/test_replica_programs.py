"""python -m gmploop --replicas N: the program N times in one process, as a user sees it from outside."""

import os
import signal
import subprocess
import sys
import textwrap

import pytest

pytestmark = pytest.mark.timeout(60)

#: What programs here begin with. `index` is the replica, meet() waits for the others, say() prints whole lines.
PRELUDE = """
import asyncio, os, signal, sys, threading, gmploop
from gmploop import replicas
import together
index = replicas.index()
meet = together.barrier.wait
def say(*words):
    with together.lock:
        print(*words, flush=True)
"""
TOGETHER = """
import threading
barrier, lock, names = threading.Barrier(3, timeout=20), threading.Lock(), []
"""


@pytest.fixture
def program(tmp_path):
    """program(source, *arguments, form=...) runs it in 3 replicas: -> (sorted lines of stdout, stderr, status)."""
    (tmp_path / "together.py").write_text(TOGETHER)

    def run(source, *arguments, form="script", options=("--replicas", "3"), env=()):
        source = PRELUDE + textwrap.dedent(source)
        (tmp_path / "program.py").write_text(source)
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / "__main__.py").write_text("import sys; sys.path.append('.')\n" + source)
        words = {"script": ["program.py"], "module": ["-m", "program"], "code": ["-c", source],
                 "folder": ["folder"]}[form]
        done = subprocess.run([sys.executable, "-m", "gmploop", *options, *words, *arguments], cwd=tmp_path, text=True,
                              capture_output=True, timeout=50, env={**os.environ, **dict(env)})
        return sorted(done.stdout.splitlines()), done.stderr, done.returncode
    return run


def quiet(done):
    lines, errors, status = done
    assert (errors, status) == ("", 0)
    return lines


@pytest.mark.parametrize("form", ["script", "module", "code", "folder"])
def test_each_replica_has_a_main_module_of_its_own_and_shares_what_it_imports(program, form):
    lines = quiet(program("""
        import __main__, pickle
        class Own:
            pass
        mine = f"name {index}"
        together.names.append(index)
        meet()
        assert __name__ == "__main__" and __main__.mine == mine and vars(__main__) is globals()
        assert type(pickle.loads(pickle.dumps(Own()))) is Own and Own.__module__ == "__main__"
        __main__.added = index
        meet()
        assert added == index and len(together.names) == 3
        async def main():
            assert isinstance(asyncio.get_running_loop(), gmploop.Loop)
            return threading.current_thread() is threading.main_thread()
        say(mine, sys.argv[1:], asyncio.run(main()))
        """, "--replicas", "argument", form=form))
    assert lines == [f"name {i} ['--replicas', 'argument'] {i == 0}" for i in range(3)]


def test_one_replica_is_the_plain_program(program):
    assert quiet(program("say(index, threading.current_thread().name)", options=("--replicas", "1"))) == [
        "None MainThread"]


@pytest.mark.parametrize("bad", ["0", "two"])
def test_a_bad_number_of_replicas_is_refused(program, bad):
    lines, errors, status = program("say(1)", options=("--replicas", bad))
    assert (lines, status) == ([], 2) and f"--replicas takes a number from 1 on, not '{bad}'" in errors


def test_a_crash_ends_all_with_its_traceback(program):
    lines, errors, status = program("""
        async def main():
            meet()
            if index == 1:
                raise ValueError("told")
            try:
                await asyncio.sleep(60)
            finally:
                say("cancelled", index)
        asyncio.run(main())
        """)
    assert lines == ["cancelled 0", "cancelled 2"] and status == 1
    assert errors.startswith("replica 1 of 3 ended with ValueError: told: ending the others\nTraceback")
    assert errors.endswith("ValueError: told\n") and errors.count("Traceback") == 1
    assert "program.py" in errors.splitlines()[2]       # our frames are not shown before the program's


@pytest.mark.parametrize("leaving, status, said", [
    ("sys.exit()", 0, ""), ("sys.exit(0)", 0, ""), ("sys.exit(7) if index == 2 else None", 7, ""),
    ("sys.exit('farewell') if index == 1 else None", 1, "farewell\n")])
def test_exit_status(program, leaving, status, said):
    assert program(f"meet()\n{leaving}") == ([], said, status)


def test_exit_in_a_coroutine_ends_the_others(program):
    lines, errors, status = program("""
        async def main():
            meet()
            if index == 2:
                sys.exit(9)
            try:
                await asyncio.sleep(60)
            finally:
                say("cancelled", index)
        asyncio.run(main())
        """)
    assert (lines, errors, status) == (["cancelled 0", "cancelled 1"], "", 9)


@pytest.mark.parametrize("how", ["asyncio.run(main())", "loop.run_until_complete(main())",
                                 "loop.create_task(main()); loop.run_forever()"])
def test_ctrl_c_is_keyboard_interrupt_in_every_replica(program, how):
    """The program's own `except KeyboardInterrupt` works in each of them, as it does without replicas."""
    lines, errors, status = program(f"""
        async def main():
            meet()
            if index == 1:
                os.kill(os.getpid(), signal.SIGINT)
            await asyncio.sleep(60)
        loop = asyncio.new_event_loop()
        try:
            {how}
        except KeyboardInterrupt:
            say("interrupted", index)
            raise
        finally:
            for task in asyncio.all_tasks(loop):
                task.cancel()
            loop.run_until_complete(asyncio.sleep(0))
            loop.close()
        """)
    assert lines == [f"interrupted {i}" for i in range(3)]
    assert status == -signal.SIGINT and errors.endswith("KeyboardInterrupt\n") and errors.count("Traceback") == 1


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="get_event_loop() makes no loop from Python 3.14 on")
def test_programs_that_get_their_loop_by_get_event_loop(program):
    assert quiet(program("""
        import warnings
        warnings.simplefilter("ignore")
        loop = asyncio.get_event_loop()
        say(loop.run_until_complete(asyncio.sleep(0, index)))
        loop.close()
        """)) == ["0", "1", "2"]


def test_signal_handlers_and_servers(program):
    """A server as people write it: one port for all, and SIGTERM ends each of them."""
    lines = quiet(program("""
        async def answer(reader, writer):
            writer.write(b"%d" % index)
            writer.close()
        async def main():
            over = asyncio.Event()
            asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, over.set)
            async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
                meet()
                if index == 0:
                    for _ in range(6):
                        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
                        say("answered by", (await reader.read()).decode())
                        writer.close()
                    os.kill(os.getpid(), signal.SIGTERM)
                await over.wait()
            say("ended", index)
        asyncio.run(main())
        """))
    assert lines == sorted([f"answered by {i}" for i in range(3)] * 2 + [f"ended {i}" for i in range(3)])


def test_multiprocessing_children_find_the_program(program):
    lines = quiet(program("""
        import multiprocessing
        def double(n, queue):
            queue.put(n * 2)
        if __name__ == "__main__":
            meet()
            if index == 1:
                context = multiprocessing.get_context("spawn")
                queue = context.Queue()
                child = context.Process(target=double, args=(21, queue))
                child.start()
                say(queue.get(timeout=20))
                child.join()
        """))
    assert lines == ["42"]


def test_help_names_it():
    done = subprocess.run([sys.executable, "-m", "gmploop", "--help"], capture_output=True, text=True, timeout=30)
    assert "--replicas N" in done.stdout and "serve MODULE:APP" in done.stdout
