"""python -m gmploop: each program is run by plain python and by gmploop, and what a user sees is compared."""

import os
import py_compile
import signal
import subprocess
import sys
import zipfile

import gmploop
import pytest
from gmploop import config

PYTHON = [sys.executable]
GMPLOOP = [sys.executable, "-m", "gmploop"]

# what a program can see of how it was started
LOOK = """
import sys, types
spec = __spec__ and (__spec__.name, __spec__.origin)
loader = getattr(__loader__, "__name__", type(__loader__).__name__)
names = sorted(n for n in globals() if n not in ("sys", "types", "spec", "loader"))
print(names, __name__, globals().get("__file__"), globals().get("__cached__"), __package__, __doc__, spec, loader)
print(sys.argv, sys.path, type(__builtins__) is types.ModuleType, sys.modules["__main__"].__dict__ is globals())
"""
FAIL = """
def outer():
    inner()
def inner():
    raise %s
outer()
"""
LOOP = """
import asyncio, gmploop
async def main():
    print(isinstance(asyncio.get_running_loop(), gmploop.Loop))
"""


def start(command, cwd, stdin="", flags=(), env=(), **options):
    command = [command[0], *flags, *command[1:]]
    env = {k: v for k, v in os.environ.items() if not k.startswith(("GMPLOOP_", "UVICORN_"))} | dict(env)
    return subprocess.run(command, cwd=cwd, input=stdin, capture_output=True, text=True, timeout=60, env=env, **options)


def same(cwd, *program, **options):
    """Run the program both ways, see that they cannot be told apart, and return what came out."""
    plain = start([*PYTHON, *program], cwd, **options)
    ours = start([*GMPLOOP, *program], cwd, **options)
    assert (ours.stdout, ours.stderr, ours.returncode) == (plain.stdout, plain.stderr, plain.returncode)
    return ours


def lay_out(folder, source):
    """The program in every form that python runs; returns the arguments for each."""
    (folder / "pkg").mkdir()
    (folder / "pkg" / "__init__.py").write_text("")
    for name in "script.py", "pkg/__main__.py", "pkg/sub.py", "odd name":
        (folder / name).write_text(source)
    (folder / "app").mkdir()
    (folder / "app" / "__main__.py").write_text(source)
    with zipfile.ZipFile(folder / "app.zip", "w") as archive:
        archive.write(folder / "script.py", "__main__.py")
    py_compile.compile(folder / "script.py", folder / "script.pyc")
    os.symlink(folder / "pkg" / "sub.py", folder / "link.py")
    return {
        "script": ["script.py"], "absolute": [str(folder / "script.py")], "dotted": ["./pkg/../script.py"],
        "pyc": ["script.pyc"], "link": ["link.py"], "no suffix": ["odd name"], "-m module": ["-m", "script"],
        "-mmodule": ["-mpkg.sub"], "-m package": ["-m", "pkg"], "folder": ["app"], "zip": ["app.zip"],
        "-c": ["-c", source], "-": ["-"],
    }


FORMS = ["script", "absolute", "dotted", "pyc", "link", "no suffix", "-m module", "-mmodule", "-m package", "folder",
         "zip", "-c", "-"]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("flags", [(), ("-P",)], ids=["", "-P"])
def test_the_program_sees_itself_as_under_plain_python(tmp_path, form, flags):
    env = {"PYTHONPATH": str(tmp_path)} if flags else {}
    same(tmp_path, *lay_out(tmp_path, LOOK)[form], "a b", "--poller", "-m", stdin=LOOK, flags=flags, env=env)


@pytest.mark.parametrize("form", FORMS)
def test_tracebacks_show_the_program_alone(tmp_path, form):
    source = FAIL % "ValueError('told')"
    done = same(tmp_path, *lay_out(tmp_path, source)[form], stdin=source)
    assert done.returncode == 1 and done.stderr.endswith("ValueError: told\n") and "gmploop" not in done.stderr


@pytest.mark.parametrize("ending", [
    "KeyboardInterrupt", "SystemExit('farewell')", "SystemExit(7)", "SystemExit(None)", "SystemExit(2.5)",
    "GeneratorExit", "BaseException", "ExceptionGroup('some', [ValueError(1), ExceptionGroup('more', [KeyError(2)])])",
    "KeyError(1) from ValueError(2)", "SyntaxError('my own')", "BrokenPipeError(32, 'Broken pipe')",
])
@pytest.mark.parametrize("form", ["script", "-m module"])
def test_exit_status_and_last_words(tmp_path, ending, form):
    source = "import atexit; atexit.register(print, 'at exit')" + FAIL % ending
    assert same(tmp_path, *lay_out(tmp_path, source)[form]).stdout == "at exit\n"


@pytest.mark.parametrize("source", [
    "1 +", "print('no end", "def f():\nreturn 1", "",  # cannot be compiled; nothing to do
    "import nowhere_to_be_found", "from script import name",
    "import sys\nsys.excepthook = lambda *a: print('hook', a[0].__name__, a[1].__traceback__ is a[2])\n1/0",
    "import atexit, sys, traceback\natexit.register(lambda: traceback.print_tb(sys.last_traceback))\n1/0",
    "try:\n    1/0\nexcept ZeroDivisionError:\n    raise",
    "import threading\nt = threading.Thread(target=lambda: 1/0, name='T')\nt.start(); t.join()",
    "import sys\nsys.stdout.write(sys.stdin.read())\nsys.stderr.write('err')",
    "class A:\n    def __del__(self): print('collected')\na = A()",
    "import os\nos._exit(5)", "import os, signal\nos.kill(os.getpid(), signal.SIGTERM)",
    "import pickle\nclass A: pass\nprint(pickle.dumps(A()))",
    "import warnings\nwarnings.warn('old', DeprecationWarning)",
])
def test_programs_of_all_kinds_end_alike(tmp_path, source):
    (tmp_path / "script.py").write_text(source)
    same(tmp_path, "script.py", stdin="typed\n")
    same(tmp_path, "-m", "script", stdin="typed\n")


@pytest.mark.parametrize("program", [
    ["missing.py"], ["no/where.py"], ["-m", "missing"], ["-m", "pkg.missing"], ["-m", "script.py"], ["-m", ".sub"],
    ["-m", ""], ["empty"], ["-m", "empty"], ["-m", "json.missing"], ["-c", "1 +"],
])
def test_programs_that_are_not_there(tmp_path, program):
    lay_out(tmp_path, "print('ran')")
    (tmp_path / "empty").mkdir()
    assert same(tmp_path, *program).returncode in (1, 2)


def test_an_unreadable_script(tmp_path):
    os.symlink("loop.py", tmp_path / "loop.py")
    assert same(tmp_path, "loop.py").returncode == 2


# -- Ctrl-C -----------------------------------------------------------------------------------------------------------

RUN = """
import asyncio
async def main():
    try:
        print("ready", flush=True)
        %s
    finally:
        print("cleaned up", flush=True)
asyncio.run(main())
"""
RUN_FOREVER = """
import asyncio
loop = asyncio.new_event_loop()
loop.call_soon(lambda: print("ready", flush=True))
loop.run_forever()
"""


@pytest.mark.parametrize("source", [
    pytest.param(RUN % "await asyncio.sleep(60)", id="asleep"),
    pytest.param(RUN % "while True: await asyncio.sleep(0)", id="busy"), pytest.param(RUN_FOREVER, id="run_forever"),
])
@pytest.mark.parametrize("form", ["script", "-m module", "-c"])
def test_ctrl_c(tmp_path, source, form):
    seen = []
    for command in PYTHON, GMPLOOP:
        folder = tmp_path / str(len(command))
        folder.mkdir()
        with subprocess.Popen([*command, *lay_out(folder, source)[form]], cwd=folder, text=True,
                              stdout=subprocess.PIPE, stderr=subprocess.PIPE) as child:
            assert child.stdout.readline() == "ready\n"
            child.send_signal(signal.SIGINT)
            out, err = child.communicate(timeout=60)
        lines = err.splitlines()
        head = 3 if form == "-m module" else 1  # plain python's own frames for -m come first
        seen.append((out, child.returncode, lines[0], lines[head].replace(str(folder), ""), lines[-1]))
    assert seen[0] == seen[1]
    assert seen[1][1] == -signal.SIGINT and seen[1][-1] == "KeyboardInterrupt"


# -- which loop -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", [
    "asyncio.run(main())",
    "with asyncio.Runner() as r: r.run(main())",
    "with asyncio.Runner(loop_factory=None) as r: r.run(main())",
    "with asyncio.Runner(loop_factory=asyncio.new_event_loop) as r: r.run(main())",
    "loop = asyncio.new_event_loop(); loop.run_until_complete(main()); loop.close()",
    "loop = asyncio.new_event_loop(); asyncio.set_event_loop(loop); "
    "asyncio.get_event_loop().run_until_complete(main()); loop.close()",
    "import threading; t = threading.Thread(target=lambda: asyncio.run(main())); t.start(); t.join()",
    "asyncio.run(main(), debug=True)",
])
def test_asyncio_makes_gmploop_loops_and_nothing_warns(tmp_path, way):
    done = start([*GMPLOOP, "-c", LOOP + way], tmp_path, flags=("-W", "error"))
    assert (set(done.stdout.split()), done.stderr, done.returncode) == ({"True"}, "", 0)


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="asyncio.get_event_loop makes no loop on this Python")
def test_get_event_loop_in_the_way_of_old(tmp_path):
    source = LOOP + "loop = asyncio.get_event_loop(); loop.run_until_complete(main()); loop.close()"
    assert start([*GMPLOOP, "-c", source], tmp_path).stdout == "True\n"


@pytest.mark.skipif(sys.version_info < (3, 13), reason="asyncio.EventLoop came with 3.13")
@pytest.mark.parametrize("way", ["asyncio.run(main(), loop_factory=asyncio.EventLoop)",
                                 "class L(asyncio.EventLoop): pass\nasyncio.run(main(), loop_factory=L)"])
def test_asyncio_event_loop_is_gmploops(tmp_path, way):
    done = start([*GMPLOOP, "-c", LOOP + way], tmp_path, flags=("-W", "error"))
    assert (done.stdout, done.stderr) == ("True\n", "")


@pytest.mark.skipif(sys.version_info >= (3, 16), reason="this Python has no event loop policies")
@pytest.mark.parametrize("way", ["asyncio.set_event_loop_policy(None)",
                                 "asyncio.set_event_loop_policy(asyncio.DefaultEventLoopPolicy())",
                                 "class P(asyncio.DefaultEventLoopPolicy): pass\nasyncio.set_event_loop_policy(P())"])
def test_a_program_that_sets_asyncios_own_policy(tmp_path, way):
    done = start([*GMPLOOP, "-c", LOOP + way + "\nasyncio.run(main())"], tmp_path, flags=("-W", "ignore"))
    assert (done.stdout, done.stderr) == ("True\n", "")


@pytest.mark.parametrize("chosen, name", [
    ("asyncio.SelectorEventLoop", "asyncio.unix_events._UnixSelectorEventLoop"),
    ("__import__('uvloop').new_event_loop", "uvloop.Loop"), ("Own", "__main__.Own"),
])
def test_a_program_that_insists_on_another_loop_is_told_once(tmp_path, chosen, name):
    if "uvloop" in chosen:
        pytest.importorskip("uvloop")
    source = LOOP + f"""
class Own(asyncio.SelectorEventLoop): pass
for _ in range(3):
    loop = ({chosen})()
    loop.run_until_complete(main())
    loop.close()
asyncio.run(main())
"""
    done = start([*GMPLOOP, "-c", source], tmp_path)
    assert done.stdout == "False\n" * 3 + "True\n"
    (line,) = done.stderr.splitlines()
    assert line == f"gmploop: this program runs {name}, a loop that it chose itself, not gmploop"


def test_multiprocessing_children_run_on_gmploop(tmp_path):
    (tmp_path / "script.py").write_text(LOOP + """
import concurrent.futures, multiprocessing, sys
def child(_):
    asyncio.run(main())
    print(__name__, sys.argv, flush=True)
def grandchild(n):
    with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as pool:
        list(pool.map(child, [n]))
if __name__ == "__main__":
    for how in "spawn", "forkserver", "fork":
        with concurrent.futures.ProcessPoolExecutor(1, multiprocessing.get_context(how)) as pool:
            list(pool.map(child, [0]))
    process = multiprocessing.get_context("spawn").Process(target=grandchild, args=(1,))
    process.start(); process.join()
""")
    for program, argv0 in (["script.py"], "script.py"), (["-m", "script"], str(tmp_path / "script.py")):
        done = start([*GMPLOOP, *program, "x"], tmp_path, flags=("-W", "ignore"))
        lines = [f"{name} {[argv0, 'x']}" for name in ("__mp_main__", "__mp_main__", "__main__", "__mp_main__")]
        assert done.stdout.splitlines() == [word for line in lines for word in ("True", line)], done.stderr


def test_a_plain_child_is_plain(tmp_path):
    child = LOOP + "asyncio.run(main())"
    source = f"import subprocess, sys; subprocess.run([sys.executable, '-c', {child!r}])"
    assert start([*GMPLOOP, "-c", source], tmp_path).stdout == "False\n"


# -- our own options --------------------------------------------------------------------------------------------------


def test_options_reach_the_loops(tmp_path):
    source = """
import asyncio, gmploop
async def main():
    print(asyncio.get_running_loop().get_debug(), gmploop.poller_name())
asyncio.run(main())
"""
    for options in ["--poller", "epoll", "--debug", "asyncio=1"], ["--poller=epoll", "--debug=asyncio=1"]:
        done = start([*GMPLOOP, *options, "-c", source], tmp_path)
        assert (done.stdout, done.stderr) == ("True epoll\n", "")


@pytest.mark.parametrize("arguments, says", [
    ([], "no program given"), (["--poller"], "--poller needs a value"), (["-m"], "-m needs a value"),
    (["-c"], "-c needs a value"), (["-x", "x.py"], "unknown option '-x'"),
    (["--pollr", "epoll", "x.py"], "unknown option '--pollr'"),
    (["--poller", "kpoll", "x.py"], "GMPLOOP_POLLER takes 'auto' or 'io_uring' or 'epoll' or 'kqueue', not 'kpoll'"),
    (["--poller=kpoll", "-m", "x"], "GMPLOOP_POLLER takes 'auto' or 'io_uring' or 'epoll' or 'kqueue', not 'kpoll'"),
    (["--debug", "nosuch=1", "x.py"], f"GMPLOOP_DEBUG takes the keys {' or '.join(map(repr, config.DEBUG_KEYS))}, not 'nosuch'"),
    (["--debug", "asyncio=2", "-"], "GMPLOOP_DEBUG: asyncio takes '0' or '1', not '2'"),
])
def test_a_bad_command_line(tmp_path, arguments, says):
    done = start([*GMPLOOP, *arguments], tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    first, usage = done.stderr.splitlines()
    assert first == f"python -m gmploop: {says}" and usage.startswith("usage: python -m gmploop")


def test_a_bad_environment(tmp_path):
    done = start([*GMPLOOP, "-c", "print('ran')"], tmp_path, env={"GMPLOOP_POLLER": "kpoll"})
    assert done.returncode == 2 and not done.stdout
    assert "GMPLOOP_POLLER takes 'auto' or 'io_uring' or 'epoll' or 'kqueue', not 'kpoll'" in done.stderr


@pytest.mark.parametrize("option", ["--version", "-V"])
def test_version(tmp_path, option):
    done = start([*GMPLOOP, option], tmp_path)
    assert (done.stdout, done.stderr, done.returncode) == (f"gmploop {gmploop.__version__}\n", "", 0)


@pytest.mark.parametrize("option", ["--help", "-h"])
def test_help_names_every_option(tmp_path, option):
    done = start([*GMPLOOP, option], tmp_path)
    assert done.returncode == 0 and not done.stderr
    for word in "--poller", "--debug", "--version", "bench", "-m module", "GMPLOOP_POLLER", "auto, io_uring, epoll, kqueue":
        assert word in done.stdout
    for key in config.DEBUG_KEYS:
        assert f"{key}=" in done.stdout


def test_bench_is_a_command_and_a_script_of_that_name_a_script(tmp_path):
    (tmp_path / "bench").write_text("print('a script')")
    assert same(tmp_path, "./bench").stdout == "a script\n"
    done = start([*GMPLOOP, "bench", "--help"], tmp_path)
    assert done.returncode == 0 and "bench" in done.stdout
