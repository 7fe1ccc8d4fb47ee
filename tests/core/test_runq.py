"""runq.h: a P's queue. The tests are in runq.c, with a ring of 4."""

import pytest

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("build", ["plain", "checked"])
def test_every_short_sequence_of_calls(c_test, build):
    c_test("runq", "exhaustive", build)


@pytest.mark.parametrize("build", ["plain", "paused", "threads"])
def test_each_g_leaves_once_though_thieves_are_about(c_test, build):
    c_test("runq", "stress", build)
