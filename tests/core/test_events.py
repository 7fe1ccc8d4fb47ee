"""events.h: rings that any thread writes and reads. The tests are in events.c."""

import pytest

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("test", ["newest", "busy"])
def test_the_newest_stay_and_a_held_up_writer_harms_nobody(c_test, test):
    c_test("events", test, "checked")


@pytest.mark.parametrize("build", ["plain", "paused", "threads"])
def test_no_torn_entry_is_read(c_test, build):
    assert "whole entries" in c_test("events", "torn", build)
