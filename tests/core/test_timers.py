"""timers.h: the heap of deadlines. The tests are in timers.c; here they are compiled and run."""

import pytest

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("test, build", [
    ("plain", "checked"), ("exhaustive", "plain"), ("exhaustive_deep", "plain"), ("random", "checked"),
    ("memory_is_given_back", "checked"), ("no_memory", "checked")])
def test_timers(c_test, test, build):
    c_test("timers", test, build)
