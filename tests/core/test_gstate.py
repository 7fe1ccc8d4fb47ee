"""gstate.h and atomics.h: states of a G, posts against sleep, locks. The tests are in gstate.c."""

import signal
import subprocess

import pytest

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("build", ["plain", "checked"])
@pytest.mark.parametrize("test", ["plain", "table"])
def test_state_word(c_test, test, build):
    c_test("gstate", test, build)


@pytest.mark.parametrize("test, transition", [("illegal_cas", "0 -> 2"), ("illegal_set", "4 -> 1")])
def test_debug_builds_stop_at_an_illegal_transition(compiled, test, transition):
    done = subprocess.run([compiled("gstate", "checked"), test], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (-signal.SIGABRT, f"gmploop: illegal transition of a G: {transition}\n")


@pytest.mark.parametrize("build", ["plain", "threads"])
def test_no_post_is_lost_by_an_owner_that_goes_to_sleep(c_test, build):
    assert "kept awake" in c_test("gstate", "stress", build)


@pytest.mark.parametrize("build", ["plain", "threads"])
def test_locks_let_one_thread_in(c_test, build):
    c_test("gstate", "spinlock", build)
