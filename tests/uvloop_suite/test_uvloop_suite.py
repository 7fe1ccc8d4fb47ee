"""uvloop's own test-suite, on gmploop: whatever stock passes of it, gmploop passes.

One item per class of uvloop's; those of uvloop's own features, most of which stock fails slowly, with -m long. They run ahead of pytest in processes of their own, $CONFORMANCE_JOBS at a time.
"""
import os
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "conformance"))
import foreign_suite
from exclusions_uvloop import EXCLUSIONS

CHILD = Path(__file__).with_name("child.py")
HANG_S = 25         # most tests take less than one second, a few of them ten

try:
    UNITS, missing = foreign_suite.list_units(CHILD), ""
except LookupError as e:
    UNITS, missing = [], str(e)

pytestmark = [
    pytest.mark.timeout(1800),      # the runner has tighter ones: per test and per class
]


def test_suite_is_there():
    if missing and "CI" not in os.environ:
        pytest.skip(missing)
    assert not missing


@pytest.fixture(scope="module")
def reports(request):
    chosen = {item.callspec.params["unit"] for item in request.session.items
              if item.path == request.path and hasattr(item, "callspec") and not item.get_closest_marker("skip")}
    with foreign_suite.run_ahead(CHILD, UNITS, chosen, EXCLUSIONS, hang_s=HANG_S) as futures:
        yield futures


@pytest.mark.skipif(not UNITS, reason="uvloop's test-suite is not there")
@pytest.mark.parametrize("unit", [pytest.param(unit, marks=pytest.mark.long) if "UV" in unit[1] else unit
                                  for unit in UNITS], ids=".".join)
def test_uvloop(unit, reports):
    complaint = foreign_suite.complaint(reports[unit].result())
    assert not complaint, complaint
