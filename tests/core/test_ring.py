"""ring.h: the growable queue. The tests are in ring.c; here they are compiled and run."""

import pytest

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("build", ["plain", "checked"])
@pytest.mark.parametrize("test", ["plain", "exhaustive", "random", "no_memory"])
def test_ring(c_test, test, build):
    c_test("ring", test, build)
