"""The C and Go programs beside this file, compiled on first use."""

import functools
import hashlib
import os
import shutil
import shlex
import subprocess
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
FLAGS = ("-O2", "-Wall")
CORE = HERE.parent / "core"     # sched_steps.c times the headers of the core
CORE_FLAGS = ("-pthread", f"-I{CORE}", "-Wno-unused-function")
SOURCES = {"loadgen": ("loadgen.c", "load_wire.c", "load_check.c", "load_stat.c")}      # others: their NAME.c alone
GO_PROGRAMS = ("yardstick",)
TLS_FLAGS, TLS_LIBRARIES = ("-DWITH_TLS",), ("-lssl", "-lcrypto")


class NoCompiler(RuntimeError):
    pass


def compiler():
    """The C compiler as a list of words: $CC, else cc, gcc or clang. Raises NoCompiler when there is none."""
    for command in filter(None, (os.environ.get("CC"), "cc", "gcc", "clang")):
        words = shlex.split(command)
        if shutil.which(words[0]):
            return words
    raise NoCompiler("the rows with a server need a C compiler for their load generator, and neither $CC nor cc, gcc "
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


def build(name, tls=False, built={}):
    """Return the path of the program called `name`, with TLS or without, compiling it unless it is in the cache.

    Raises NoCompiler, or RuntimeError with the compiler's message. The cache is known by sources and flags, so a
    changed source is compiled anew.
    """
    if (name, tls) in built:
        return built[name, tls]
    sources = [HERE / source for source in SOURCES.get(name, (name + ".c",))]
    headers = [HERE / "loadgen.h"] if name in SOURCES else []
    headers += sorted(CORE.glob("*.h")) if name == "sched_steps" else []
    if name in GO_PROGRAMS:
        sources, command = [HERE / (name + ".go")], ["go", "build"]
    else:
        command = [*compiler(), *FLAGS, *(TLS_FLAGS if tls else ()), *(CORE_FLAGS if name == "sched_steps" else ())]
    libraries = TLS_LIBRARIES if tls else ()
    content = b"".join(path.read_bytes() for path in sources + headers)
    key = hashlib.sha256(content + repr((command, libraries)).encode()).hexdigest()[:16]
    target = _cache_dir() / f"{name}-{key}"
    if not target.exists():
        handle, scratch = tempfile.mkstemp(dir=target.parent)
        os.close(handle)
        done = subprocess.run([*command, "-o", scratch, *map(str, sources), *libraries], capture_output=True, text=True)
        if done.returncode:
            os.unlink(scratch)
            raise RuntimeError(f"{shlex.join(command)} could not compile {sources[0]}:\n{done.stderr}")
        os.replace(scratch, target)        # so that two runs at once do not see half a program
    built[name, tls] = str(target)
    return built[name, tls]


@functools.cache
def tls_missing():
    """What the TLS rows lack here, or None."""
    if not shutil.which("openssl"):
        return "the openssl command is not installed"
    try:
        build("loadgen", tls=True)
    except NoCompiler:
        raise
    except RuntimeError:
        return "the load generator cannot be compiled with OpenSSL: its headers (libssl-dev, openssl-devel) are missing"
    return None


def make_certificate(folder):
    """Make a self-signed certificate (P-256) for localhost in `folder`; return (certificate, key) as paths."""
    certificate, key = os.path.join(folder, "certificate.pem"), os.path.join(folder, "key.pem")
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes",
                    "-days", "2", "-subj", "/CN=localhost", "-keyout", key, "-out", certificate],
                   check=True, capture_output=True)
    return certificate, key
