"""scheduler.h and sysmon.h: threads that find work, sleep and are woken. The tests are in scheduler.c."""

import signal
import subprocess

import pytest

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("test, build", [
    ("one_proc", "plain"), ("two_procs", "paused"), ("two_procs", "threads"), ("eight_procs", "checked"),
    ("changing_procs", "threads")])
def test_no_post_and_no_wake_up_is_lost(c_test, test, build):
    assert "blocked turns" in c_test("scheduler", test, build)


def test_what_dies_at_once_is_left_to_its_p(c_test):
    c_test("scheduler", "dying")


def test_the_global_queue_has_a_turn_beside_a_ring_that_never_empties(c_test):
    c_test("scheduler", "global_turn")


def test_naps_of_sysmon(c_test):
    c_test("scheduler", "naps")


def test_the_tables_of_transitions(c_test):
    c_test("scheduler", "tables")


@pytest.mark.parametrize("test, transition", [("illegal_p", "a P: 0 -> 2"), ("illegal_m", "an M: 6 -> 1")])
def test_debug_builds_stop_at_an_illegal_transition(compiled, test, transition):
    done = subprocess.run([compiled("scheduler", "checked"), test], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (-signal.SIGABRT, f"gmploop: illegal transition of {transition}\n")
