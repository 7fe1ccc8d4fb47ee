"""What the tests of the core share: loops of this package only, and C programs that test its headers."""

import os
import pathlib
import shutil
import subprocess

import gmploop
import gmploop.core
import pytest
import support

HERE = pathlib.Path(__file__).parent
HEADERS = pathlib.Path(gmploop.core.__path__[0])

#: Ways to compile a test program.
BUILDS = {
    "plain": ["-O2"],
    "checked": ["-O1", "-g", "-DGMPLOOP_DEBUG_STATES", "-fsanitize=address,undefined", "-fno-sanitize-recover"],
    # gcc warns that the sanitizer does not know fences.
    "paused": ["-O2", "-DPAUSES"],
    "threads": ["-O1", "-g", "-DPOSTS=100000", "-fsanitize=thread", "-Wno-error"],
}


@pytest.fixture(scope="session")
def compiler():
    """The C compiler's command, as a list."""
    command = os.environ.get("CC") or shutil.which("cc")
    if not command:
        (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("no C compiler")
    return command.split()


@pytest.fixture(scope="session")
def compiled(compiler, tmp_path_factory):
    """A function that compiles `name`.c in one of BUILDS, once, and returns the program's path."""
    folder = tmp_path_factory.mktemp("c")
    programs = {}

    def compile_(name, build):
        if (name, build) not in programs:
            program = folder / f"{name}-{build}"
            subprocess.run([*compiler, "-std=gnu11", "-Wall", "-Wextra", "-Werror", "-pthread", *BUILDS[build],
                            f"-I{HEADERS}", f"-I{HERE}", HERE / f"{name}.c", "-o", program], check=True, timeout=60)
            programs[name, build] = program
        return programs[name, build]
    return compile_


@pytest.fixture
def c_test(compiled):
    """A function that runs one test of a C program; it must end well and silently. Returns its output."""
    def run(name, test, build="plain"):
        done = subprocess.run([compiled(name, build), test], capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout
    return run


@pytest.fixture
def loop_factory(errors, body_failed):
    """Makes loops of this package. They are closed afterwards; a task left on one is a failure."""
    yield from support.factory_of(gmploop.new_event_loop, errors, body_failed)
