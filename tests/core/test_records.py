"""records.h: following the records of TLS. The tests are in records.c; here they are compiled and run."""

import pytest

pytestmark = pytest.mark.timeout(60)


@pytest.mark.parametrize("build", ["plain", "checked"])
@pytest.mark.parametrize("test", ["cut", "rest", "unframed"])
def test_records(c_test, test, build):
    c_test("records", test, build)
