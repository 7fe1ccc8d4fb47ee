"""The package compiles where there is no Linux: against a BSD's kqueue, without what only Linux has.

No test of what it does there: see the kqueue job for that, which runs on Linux against libkqueue.
"""

import pathlib
import re
import subprocess
import sys
import sysconfig
import textwrap

import gmploop.core
import pytest

HERE = pathlib.Path(__file__).parent
CORE = pathlib.Path(gmploop.core.__path__[0])
MODULES = sorted(path.stem for path in CORE.glob("*.pyx"))
pytestmark = [pytest.mark.timeout(120), pytest.mark.skipif(sys.platform != "linux", reason="it is not Linux")]


def errors(compiler, source):
    done = subprocess.run([*compiler, "-fsyntax-only", "-std=gnu11", "-Werror=implicit-function-declaration",
                           f"-I{HERE / 'bsd'}", "-include", "other_system.h", f"-I{CORE}",
                           f"-I{sysconfig.get_path('include')}", source], capture_output=True, text=True, timeout=100)
    return [line for line in done.stderr.splitlines() if "error" in line] if done.returncode else []


def c_parts(source):
    """The C that a module includes and has within: all that may depend on the system."""
    parts = []
    for header, verbatim in re.findall(r'^cdef extern from (\*|"[^"]+")[^\n]*:\n(?:\s+"""(.*?)""")?', source, re.M | re.S):
        name = header.strip('"<>')
        if name != "*" and (CORE / name).exists():
            parts.append(f'#include "{name}"')
        parts.append(textwrap.dedent(verbatim))
    return "\n".join(parts)


@pytest.mark.parametrize("module", MODULES)
def test_the_c_of_a_module_compiles_elsewhere(compiler, module, tmp_path):
    source = "".join((CORE / f"{module}{ending}").read_text() for ending in (".pxd", ".pyx")
                     if (CORE / f"{module}{ending}").exists())
    (tmp_path / "parts.c").write_text(c_parts(source))
    assert errors(compiler, tmp_path / "parts.c") == []


@pytest.mark.long
@pytest.mark.parametrize("module", MODULES)
def test_a_module_compiles_elsewhere(compiler, module, tmp_path):
    pytest.importorskip("Cython")
    made = tmp_path / f"{module}.c"
    subprocess.run([sys.executable, "-m", "cython", "-3", CORE / f"{module}.pyx", "-o", made], check=True, timeout=100,
                   capture_output=True)
    assert errors(compiler, made) == []


@pytest.mark.parametrize("use", ["#include <sys/epoll.h>", "int f(void) { return MSG_NOSIGNAL; }",
                                 "int f(void) { return accept4(0, 0, 0, 0); }",
                                 "#ifdef __linux__\n#error Linux\n#endif"])
def test_a_use_of_what_only_linux_has_is_found(compiler, use, tmp_path):
    (tmp_path / "use.c").write_text(use + "\n")
    found = errors(compiler, tmp_path / "use.c")
    assert bool(found) != use.startswith("#ifdef")
