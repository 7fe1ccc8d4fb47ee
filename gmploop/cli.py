"""python -m gmploop: run an unmodified program on gmploop.

The program sees what plain `python` would show it: sys.argv, sys.path[0], a __main__ module of its own, and, from
the interpreter itself, exit status, Ctrl-C and SystemExit. `python -m gmploop` adds its own frames to an uncaught
exception only: those are cut off before sys.excepthook sees it.

Which loop it gets: every place where asyncio chooses makes a gmploop loop (asyncio.run, Runner, new_event_loop,
get_event_loop, and from 3.13 on the name asyncio.EventLoop), in the program and in its multiprocessing children.
What the program chooses by name stays as it is (asyncio.SelectorEventLoop, uvloop, a policy of its own) and is
reported once on stderr when it starts to run.
"""

import asyncio
import builtins
import contextlib
import linecache
import os
import runpy
import sys
import textwrap
import types
from asyncio import events, unix_events
from importlib import machinery
from multiprocessing import spawn
from pkgutil import get_importer

import gmploop
from gmploop import config, policy

_replicas = 1       # how often to run the program

USAGE = """\
usage: python -m gmploop [--replicas N] [--procs N] [--poller NAME] [--debug KEY=VALUE,...] PROGRAM [ARGUMENT...]
       python -m gmploop serve MODULE:APP [--replicas N] [OPTION...]
       python -m gmploop bench [ARGUMENT...]

Runs an unmodified asyncio program on gmploop. PROGRAM is, as for python itself, one of
  script.py  a folder or zip file with a __main__.py  -m module  -c code  - (standard input)

serve runs an ASGI application on uvicorn; see serve --help.

  --replicas N            run PROGRAM N times at once, each in a thread and a __main__ module of its own. Imported
                          modules are shared: make what belongs to a loop (pools, locks) in the program's main()
  --procs N               how many goroutines may run at once (also GMPLOOP_PROCS)
  --poller NAME           {pollers} (also GMPLOOP_POLLER)
  --debug KEY=VALUE,...   asyncio=0|1: asyncio's debug mode; stall_ms=MS: a callback that runs so long is counted;
                          of goroutines: schedtrace=MS, scheddetail=0|1, preempt=handoff|observe, retake_ms=MS,
                          latepoll_ms=MS, queue_ms=MS, nap_ms=MS, sigquit=0|1, events=0|1; of batched writes:
                          batch_wait_us=US, batch_min_ready=N; of io_uring: uring_entries=N, uring_cq=N,
                          uring_buffers=N. gmploop/config.py says what each means (also GMPLOOP_DEBUG)
  --version, -V           print the version
  --help, -h              print this
"""


def main(argv: list[str] | None = None) -> None:
    """Run the command line `argv` (None: sys.argv without its first). Raises SystemExit and what the program raises."""
    global _replicas
    kind, target, arguments, _replicas = _parse(sys.argv[1:] if argv is None else argv)
    if kind == "bench":
        from gmploop import bench

        sys.exit(bench.main(arguments))
    try:
        config.resolve_poller()
        config.resolve_debug()
        config.resolve_procs()
    except ValueError as error:
        _usage_error(error)
    if kind == "serve":
        from gmploop import serve

        sys.exit(serve.main([*(["--replicas", str(_replicas)] if _replicas > 1 else []), *arguments]))
    activate()
    {"script": _run_script, "-m": _run_module, "-c": _run_code, "-": _run_stdin}[kind](target, arguments)


def _usage_error(message):
    print(f"python -m gmploop: {message}\n{USAGE.splitlines()[0]}", file=sys.stderr)
    sys.exit(2)


def _parse(argv):
    """-> (kind, target, the program's arguments, replicas). Our own options end at the program, as python's do."""
    options = {"--procs": "GMPLOOP_PROCS", "--poller": "GMPLOOP_POLLER", "--debug": "GMPLOOP_DEBUG", "--replicas": None}
    rest, replicas = list(argv), 1
    while rest:
        word = rest.pop(0)
        name, equals, value = word.partition("=")
        if word in ("--help", "-h"):
            print(USAGE.format(pollers=", ".join(config.POLLERS)), end="")
            sys.exit()
        elif word in ("--version", "-V"):
            print(f"gmploop {gmploop.__version__}")
            sys.exit()
        elif name in options or word in ("-m", "-c"):
            if not equals and not rest:
                _usage_error(f"{name} needs a value")
            value = value if equals else rest.pop(0)
            if word in ("-m", "-c"):
                return word, value, rest, replicas
            if name == "--replicas":
                replicas = _count(value)
                continue
            os.environ[options[name]] = value  # so that each loop sees it, in child processes too
        elif word[:2] in ("-m", "-c"):
            return word[:2], word[2:], rest, replicas
        elif word == "-" or not word.startswith("-"):
            return (word if word in ("-", "bench", "serve") else "script"), word, rest, replicas
        else:
            _usage_error(f"unknown option {word!r}")
    _usage_error("no program given")


def _count(value):
    try:
        return config.check_replicas(int(value))
    except ValueError:
        _usage_error(f"--replicas takes a number from 1 on, not {value!r}")


# -- which loop -------------------------------------------------------------------------------------------------------


def activate() -> None:
    """Make asyncio choose gmploop in this process and in its multiprocessing children. Once per process."""
    if sys.version_info >= (3, 16):
        policy.install()
    else:
        # not by a policy of ours: the program may put asyncio's own back, or derive one from it
        policy.DefaultPolicy._loop_factory = staticmethod(policy.new_event_loop)
    if sys.version_info >= (3, 13):
        asyncio.EventLoop = unix_events.EventLoop = gmploop.Loop
    _report_other_loops()
    _reach_children()
    sys.meta_path.insert(0, _PatchUvicorn())


def _report_other_loops():
    """One line on stderr for each other kind of loop that starts to run."""
    set_running, reported = events._set_running_loop, {gmploop.Loop}

    def set_running_loop(loop):
        kind = type(loop)
        if loop is not None and kind not in reported and not isinstance(loop, gmploop.Loop):
            reported.add(kind)
            where = f"{kind.__module__}.{kind.__qualname__}"
            print(f"gmploop: this program runs {where}, a loop that it chose itself, not gmploop", file=sys.stderr)
        set_running(loop)

    events._set_running_loop = asyncio._set_running_loop = set_running_loop


class _Activate:
    """Travels to a spawned child with what multiprocessing sends first; unpickling it there calls activate()."""

    def __reduce__(self):
        return activate, ()


def _reach_children():
    stock = spawn.get_preparation_data

    def get_preparation_data(name):
        return {**stock(name), "gmploop": _Activate()}

    spawn.get_preparation_data = get_preparation_data


class _PatchUvicorn:
    """A finder that imports two modules of uvicorn as ever and then changes something in each.

    uvicorn asks no policy: its loop "auto", the default of uvicorn.run(), is uvloop or asyncio.SelectorEventLoop by
    name; gmploop is put behind it. And it handles signals in the main thread only: with replicas each server has them.
    """

    def find_spec(self, name, path=None, target=None):
        patch = {"uvicorn.config": _patch_uvicorn_loops, "uvicorn.server": _patch_uvicorn_signals}.get(name)
        if patch is None:
            return None
        spec = machinery.PathFinder.find_spec(name, path, target)
        if spec is not None:
            stock = spec.loader.exec_module

            def exec_module(module):
                stock(module)
                patch(module)

            spec.loader.exec_module = exec_module
        return spec


def _patch_uvicorn_loops(module):
    if "auto" in getattr(module, "LOOP_FACTORIES", ()):
        module.LOOP_FACTORIES["auto"] = "gmploop.cli:uvicorn_auto"


def _patch_uvicorn_signals(module):
    stock = module.Server.capture_signals

    @contextlib.contextmanager
    def capture_signals(server):
        loop = asyncio.get_running_loop()
        if _replicas == 1 or not isinstance(loop, gmploop.Loop):
            with stock(server):
                yield
            return
        for sig in module.HANDLED_SIGNALS:
            loop.add_signal_handler(sig, server.handle_exit, sig, None)
        try:
            yield
        finally:
            for sig in module.HANDLED_SIGNALS:
                loop.remove_signal_handler(sig)

    module.Server.capture_signals = capture_signals


def uvicorn_auto(use_subprocess=False):
    """A value of uvicorn's LOOP_FACTORIES: returns the loop factory."""
    return policy.new_event_loop


# -- the program ------------------------------------------------------------------------------------------------------


def _run_script(path, arguments):
    filename = os.path.join(os.getcwd(), path)  # not normalised, as python does it
    if get_importer(filename) is not None:  # a folder or a zip file
        if sys.flags.safe_path:
            sys.path.insert(0, "")
        sys.path[0] = filename
        return _execute([path, *arguments], _new_main(), runpy._run_module_as_main, "__main__", False)
    kind = machinery.SourcelessFileLoader if path.endswith(".pyc") else machinery.SourceFileLoader
    loader = kind("__main__", filename)
    try:
        source = loader.get_data(filename)
    except OSError as error:
        reason = f"[Errno {error.errno}] {error.strerror}"
        print(f"{sys.executable}: can't open file {filename!r}: {reason}", file=sys.stderr)
        sys.exit(2)
    if os.path.basename(path) == "uvicorn":
        _choose_for_uvicorn()
    _set_path0(os.path.dirname(os.path.realpath(path)))
    main = _new_main(__file__=filename, __cached__=None, __loader__=loader)
    if kind is machinery.SourcelessFileLoader:
        _execute([path, *arguments], main, lambda: exec(loader.get_code("__main__"), _namespace()))
    else:
        _execute([path, *arguments], main, _exec_source, source, filename)


def _run_module(name, arguments):
    if name.partition(".")[0] == "uvicorn":
        _choose_for_uvicorn()
    _execute(["-m", *arguments], _new_main(), runpy._run_module_as_main, name)


def _run_code(source, arguments):
    _set_path0("")
    main = _new_main()
    if sys.version_info >= (3, 14):
        source = textwrap.dedent(source)
    if sys.version_info >= (3, 13):  # tracebacks show its lines
        linecache.cache["<string>"] = (len(source), None, source.splitlines(keepends=True), "<string>")
    _execute(["-c", *arguments], main, _exec_source, source, "<string>")


def _run_stdin(_, arguments):
    _set_path0("")
    main = _new_main(__file__="<stdin>", __cached__=None)
    _execute(["-", *arguments], main, _exec_source, sys.stdin.buffer.read(), "<stdin>")


def _choose_for_uvicorn():
    """The default of --loop on uvicorn's command line, unless the user has set one."""
    os.environ.setdefault("UVICORN_LOOP", "gmploop:new_event_loop")


def _set_path0(folder):
    if not sys.flags.safe_path:  # else `python -m` has put nothing there, and neither does `python script.py`
        sys.path[0] = folder


def _new_main(**names):
    main = types.ModuleType("__main__")
    main.__dict__.update({"__loader__": machinery.BuiltinImporter, "__builtins__": builtins, **names})
    if sys.version_info < (3, 14):
        main.__annotations__ = {}
    return main


def _namespace():
    return sys.modules["__main__"].__dict__


def _exec_source(source, filename):
    exec(compile(source, filename, "exec", dont_inherit=True), _namespace())


def _execute(argv, main, run, *args):
    """Call run(*args) as the program. The interpreter that we return or raise to does what is left."""
    sys.argv[:] = argv
    sys.modules["__main__"] = main
    try:
        if _replicas == 1:
            run(*args)
        else:
            from gmploop import programs

            programs.run_replicas(_replicas, main, run, *args)
    except SystemExit:
        raise
    except BaseException as error:
        _hide_our_frames(error)
        raise


def _hide_our_frames(error):
    """Let sys.excepthook, whoever's it is then, see the traceback of `error` without the frames of this package that
    come before the program's."""
    program, ours = error.__traceback__, os.path.dirname(_execute.__code__.co_filename)
    while program is not None and os.path.dirname(program.tb_frame.f_code.co_filename) == ours:
        program = program.tb_next
    show = getattr(sys, "excepthook", sys.__excepthook__)

    def excepthook(kind, value, traceback):
        sys.excepthook = show
        if value is error:
            error.__traceback__ = sys.last_traceback = traceback = program
        show(kind, value, traceback)

    sys.excepthook = excepthook
