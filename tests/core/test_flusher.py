"""flusher.h: when the thread that bounds batched writes asks for them, and when it sends them. The tests are in flusher.c."""

import sys

import pytest

pytestmark = [pytest.mark.timeout(60), pytest.mark.skipif(sys.platform != "linux", reason="batches are Linux's")]


@pytest.mark.parametrize("build", ["plain", "checked"])
@pytest.mark.parametrize("test", ["asks", "early", "taken", "calm", "calm_and_idle", "at_once"])
def test_looks(c_test, test, build):
    c_test("flusher", test, build)
