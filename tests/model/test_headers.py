"""runq.h, gstate.h, scheduler.h and sends.h themselves, by headers.c and explore.h: a few threads, in every interleaving of
at most two preemptions, of sends.h three; ring, one_p and two_ps with three as well if asked for with -m long.

A fault that takes more preemptions, threads or posts is not found by this. Without a bound on preemptions test_park.py and
test_inbox.py look at the same protocols, but at Python transcriptions of them.
"""

import os
import pathlib
import shutil
import subprocess

import gmploop.core
import pytest

HERE = pathlib.Path(__file__).parent
HEADERS = pathlib.Path(gmploop.core.__path__[0])
pytestmark = pytest.mark.timeout(120)


@pytest.fixture(scope="module")
def compiled(tmp_path_factory):
    """A function that compiles headers.c with the headers, or with one in which `old` was replaced by `new`."""
    def compile_(header=None, old="", new=""):
        command = os.environ.get("CC") or shutil.which("cc")
        if not command:
            (pytest.fail if os.environ.get("CI") == "true" else pytest.skip)("no C compiler")
        folder = tmp_path_factory.mktemp("headers")
        for path in HEADERS.glob("*.h"):
            text = path.read_text()
            if path.name == header:
                assert text.count(old) == 1
                text = text.replace(old, new)
            (folder / path.name).write_text(text)
        program = folder / "headers"
        subprocess.run([*command.split(), "-std=gnu11", "-O1", "-w", "-pthread", f"-I{folder}", f"-I{HERE}",
                        HERE / "headers.c", "-o", program], check=True, timeout=60)
        return program
    return compile_


def run(program, test, preemptions):
    return subprocess.run([program, test, str(preemptions)], capture_output=True, text=True, timeout=100)


@pytest.fixture(scope="module")
def right(compiled):
    return compiled()


@pytest.mark.parametrize("test, preemptions, least", [("ring", 2, 1000), ("one_p", 2, 1000), ("two_ps", 2, 1000),
                                                      ("two_that_keep", 2, 1000), ("sends", 3, 1000)])
def test_nothing_is_lost_or_doubled(right, test, preemptions, least):
    done = run(right, test, preemptions)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout.split()[0]) >= least


@pytest.mark.long
@pytest.mark.timeout(1900)
@pytest.mark.parametrize("test", ["ring", "one_p", "two_ps"])
def test_nothing_is_lost_or_doubled_with_one_preemption_more(right, test):
    done = subprocess.run([right, test, "3"], capture_output=True, text=True, timeout=1800)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize("test, header, old, new", [
    ("ring", "runq.h", "if (gl_cas_head(&victim->head, h, h + n)) break;",
     "gl_store_relaxed(&victim->head, h + n); break;"),
    ("ring", "runq.h", "if (gl_cas_head(&q->head, h, h + 1)) return gp;",
     "gl_store_relaxed(&q->head, h + 1); return gp;"),
    ("one_p", "gstate.h", "else to = s | G_NOTIFIED;", "else return 0;"),
    ("two_ps", "findrunnable.h", "if (!gl_any_work(S, gl_now_ns())) return 0;", "return 0;"),
    ("sends", "sends.h", "if (gl_out_step(o, gen, GL_OUT_PENDING, GL_OUT_NONE)) return",
     "gl_store_release(&o->state, gen << 2); return"),
    ("sends", "sends.h", "s->data = NULL;                     /* the world has taken it back */\n    return 0;", "return 1;"),
    ("one_p", "findrunnable.h", "if (S->qsize || gl_runq_len(&pp->q)) {", "if (0) {"),
])
def test_a_broken_step_is_found(compiled, test, header, old, new):
    done = run(compiled(header, old, new), test, 2)
    assert done.returncode == 1 and done.stderr
