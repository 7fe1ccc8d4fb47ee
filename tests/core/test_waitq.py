"""waitq.h: all interleavings of its operations, by waitq.c; and that a broken header is found out."""

import subprocess

import pytest

from tests.core.conftest import HEADERS, HERE

pytestmark = pytest.mark.timeout(60)

SCENES = ["two_receivers", "two_senders", "closed_meanwhile", "a_select_and_two", "two_given_back",
          "two_selects", "mutex", "readers_and_writer", "writers_and_reader"]


@pytest.mark.parametrize("scene", SCENES)
def test_all_interleavings(c_test, scene):
    assert all(int(line.split()[0]) > 20 for line in c_test("waitq", scene).splitlines())


@pytest.mark.parametrize("scene", ["closed_meanwhile", "two_given_back", "a_select_and_two"])
def test_memory_is_used_well(c_test, scene):
    c_test("waitq", scene, "checked")


BROKEN = {
    "who comes after the wake-up sleeps on": (
        "W_ARMED) & W_OUTCOME) != 0;", "W_ARMED) & W_OUTCOME) != 0 && 0;", "two_senders"),
    "both wake": ("return s & W_ARMED ? 2 : 1;", "return 2;", "two_senders"),
    "decided twice": ("if (s & W_OUTCOME) return 0;", "if ((s & W_OUTCOME) == W_GRANTED) return 1;", "two_selects"),
    "consumed and given back": ("& W_TAKEN); }", "& 0); }", "mutex"),
    "returned in the order of the cancels": ("!gl_seq_before(n->seq, (*at)->seq)", "1", "two_given_back"),
    "returned by numbers that do not wrap": ("(int32_t)(x - y) < 0", "x < y", "two_given_back"),
    "a node that comes back leaves a chain that is gone through": (
        "    n->next = *at;\n", "    n->next = *at;\n    n->prev = NULL;\n", "two_given_back"),
    "given back behind the waiting receivers": (
        "if (gl_q_claim(&c->recvq, W_GRANTED, n->item, n->seq, out)) {", "if (0) {", "two_receivers"),
    "a sender stays when there is room": ("gl_chan_len(c) < c->capacity && c", "0 && c", "two_senders"),
    "a release wakes nobody": ("    gl_gate_settle(g, out);\n    return 0;", "    return 0;", "mutex"),
    "close forgets senders": ("while (gl_q_claim(&c->sendq, W_CLOSED", "while (0 && gl_q_claim(&c->sendq, W_CLOSED",
                              "closed_meanwhile"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_header_is_found_out(compiler, tmp_path, fault):
    right, wrong, scene = BROKEN[fault]
    text = (HEADERS / "waitq.h").read_text()
    assert text.count(right) == 1
    (tmp_path / "waitq.h").write_text(text.replace(right, wrong))
    program = tmp_path / "waitq"
    subprocess.run([*compiler, "-std=gnu11", "-w", f"-I{tmp_path}", f"-I{HERE}", f"-I{HEADERS}", HERE / "waitq.c",
                    "-o", program], check=True, timeout=60)
    done = subprocess.run([program, scene], capture_output=True, text=True, timeout=60)
    assert done.returncode == 1 and "not true" in done.stderr
