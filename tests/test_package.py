"""The package as others get it: sdist and wheel are built from this tree, the sdist installed in a fresh venv."""

import importlib.metadata
import importlib.util
import os
import pathlib
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile

import pytest

ROOT = pathlib.Path(__file__).parents[1]
CORE = ROOT / "gmploop" / "core"
SOURCES = {f"gmploop/core/{path.name}" for kind in ("*.pyx", "*.pxd", "*.h") for path in CORE.glob(kind)}
PYTHON_FILES = {str(path.relative_to(ROOT)) for kind in ("*.py", "*.pyi", "py.typed")
                for path in (ROOT / "gmploop").rglob(kind)}


def builds_here():
    """Whether a build without isolation can be had: what pyproject.toml asks for is installed."""
    try:
        return (int(importlib.metadata.version("setuptools").split(".")[0]) >= 77
                and importlib.util.find_spec("Cython") is not None)
    except importlib.metadata.PackageNotFoundError:
        return False


pytestmark = [
    pytest.mark.timeout(600),  # the core is compiled
    pytest.mark.skipif(not (ROOT / "pyproject.toml").exists(), reason="needs the source tree"),
    pytest.mark.skipif(not builds_here(), reason="needs setuptools 77 and Cython: it builds without isolation"),
]


def check(*command, **options):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=550, **options)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    return done.stdout


@pytest.fixture(scope="module")
def sdist(tmp_path_factory):
    """The source archive, made from a copy, so that nothing is left behind here and nothing built here gets in."""
    copy, out = tmp_path_factory.mktemp("tree"), tmp_path_factory.mktemp("sdist")
    for name in "pyproject.toml", "README.md", "LICENSE":
        shutil.copy(ROOT / name, copy)
    shutil.copytree(ROOT / "gmploop", copy / "gmploop", ignore=shutil.ignore_patterns("*.so", "__pycache__"))
    for path in CORE.glob("*.pyx"):
        (copy / path.relative_to(ROOT)).with_suffix(".c").unlink(missing_ok=True)
    build = "from setuptools import build_meta as b; print(b.build_sdist(%r))" % str(out)
    return out / check(sys.executable, "-c", build, cwd=copy).splitlines()[-1]


@pytest.fixture(scope="module")
def wheel(sdist, tmp_path_factory):
    """A wheel of the sdist, not of the tree: what is not in the sdist is missed here."""
    out = tmp_path_factory.mktemp("wheel")
    check(sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", out, sdist)
    (path,) = out.glob("*.whl")
    return path


@pytest.fixture(scope="module")
def venv(wheel, tmp_path_factory):
    """The python of a fresh venv that holds gmploop, as made from the sdist, and nothing else."""
    folder = tmp_path_factory.mktemp("venv")
    check(sys.executable, "-m", "venv", "--without-pip", folder)
    python = folder / "bin" / "python"
    check(sys.executable, "-m", "pip", "--python", python, "install", "--no-deps", "--no-index", wheel)
    return python


def test_the_sdist_holds_every_source(sdist):
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert SOURCES | PYTHON_FILES | {"pyproject.toml", "README.md", "LICENSE"} <= names
    assert not [name for name in names if name.endswith((".so", ".pyc"))]


def test_the_wheel_holds_the_package_alone(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    assert PYTHON_FILES <= names
    assert {name.split("/")[0].split("-")[0] for name in names} == {"gmploop"}
    modules = {f"gmploop/core/{path.stem}" for path in CORE.glob("*.pyx")}
    assert modules == {name.partition(".")[0] for name in names if name.endswith(".so")}


def test_what_is_installed_runs(venv, tmp_path):
    code = "import asyncio, gmploop; print(gmploop.run(asyncio.sleep(0, 7)), gmploop.__version__, gmploop.__file__)"
    seven, version, where = check(venv, "-W", "error", "-c", code, cwd=tmp_path).split()
    assert seven == "7" and where.startswith(str(venv.parents[1]))
    assert version == tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    assert check(venv, "-m", "gmploop", "--version", cwd=tmp_path) == f"gmploop {version}\n"
    assert "requires" not in check(sys.executable, "-m", "pip", "--python", venv, "check")


def test_dir_lists_what_is_imported_later_too():
    code = "import gmploop; print(set(gmploop.__all__) - set(dir(gmploop)), '__version__' in dir(gmploop))"
    assert check(sys.executable, "-c", code, cwd=ROOT) == "set() True\n"


@pytest.mark.skipif(getattr(sys, "_is_gil_enabled", lambda: True)(), reason="needs a Python that runs without the GIL")
def test_the_import_leaves_the_gil_off(venv, tmp_path):
    code = "import sys, asyncio, gmploop; gmploop.run(asyncio.sleep(0)); print(sys._is_gil_enabled())"
    env = {k: v for k, v in os.environ.items() if k != "PYTHON_GIL"}
    assert check(venv, "-W", "error", "-c", code, cwd=tmp_path, env=env) == "False\n"


@pytest.mark.skipif(importlib.util.find_spec("mypy") is None, reason="needs mypy")
def test_type_checkers_find_the_hints(venv, tmp_path):
    (tmp_path / "program.py").write_text("import gmploop\nreveal_type(gmploop.new_event_loop().time())\n")
    command = [sys.executable, "-m", "mypy", "--strict", "--python-executable", venv, "program.py"]
    assert 'Revealed type is "float"' in check(*command, cwd=tmp_path).replace("builtins.", "")
