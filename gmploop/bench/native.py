"""The C programs beside this file, compiled on first use."""

import hashlib
import os
import shutil
import shlex
import subprocess
import tempfile
from pathlib import Path

FLAGS = ("-O2", "-Wall")


class NoCompiler(RuntimeError):
    pass


def compiler():
    """The C compiler as a list of words: $CC, else cc, gcc or clang. Raises NoCompiler when there is none."""
    for command in filter(None, (os.environ.get("CC"), "cc", "gcc", "clang")):
        words = shlex.split(command)
        if shutil.which(words[0]):
            return words
    raise NoCompiler("the echo and http rows need a C compiler for their load generator, and neither $CC nor cc, gcc "
                     "or clang was found; the micro rows need none: python -m gmploop bench micro")


def _cache_dir():
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gmploop"
    try:
        base.mkdir(parents=True, exist_ok=True)
        if os.access(base, os.W_OK):
            return base
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="gmploop-bench-"))     # private, and unlike a fixed name not foreseeable


def build(name, built={}):
    """Return the path of the program made from `name`.c, compiling it unless it is in the cache.

    Raises NoCompiler, or RuntimeError with the compiler's message. The cache is known by source and flags, so a
    changed source is compiled anew.
    """
    if name in built:
        return built[name]
    source = Path(__file__).with_name(name + ".c")
    command = [*compiler(), *FLAGS]
    key = hashlib.sha256(source.read_bytes() + repr(command).encode()).hexdigest()[:16]
    target = _cache_dir() / f"{name}-{key}"
    if not target.exists():
        handle, scratch = tempfile.mkstemp(dir=target.parent)
        os.close(handle)
        done = subprocess.run([*command, "-o", scratch, str(source)], capture_output=True, text=True)
        if done.returncode:
            os.unlink(scratch)
            raise RuntimeError(f"{shlex.join(command)} could not compile {source}:\n{done.stderr}")
        os.replace(scratch, target)        # so that two runs at once do not see half a program
    built[name] = str(target)
    return built[name]
