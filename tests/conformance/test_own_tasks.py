"""CPython's own tests of tasks and futures, with gmploop's Task and Future in the places of the C types: see own_types.

One item per class and mode. They run ahead of pytest in processes of their own, $CONFORMANCE_JOBS at a time.
"""
from pathlib import Path

import pytest

import foreign_suite
import own_types
from exclusions_cpython import OWN_TASKS

CHILD = Path(__file__).with_name("child.py")

try:
    UNITS, missing = [u for u in foreign_suite.list_units(CHILD) if u[0] in own_types.MODULES], ""
except LookupError as e:
    UNITS, missing = [], str(e)

pytestmark = [
    pytest.mark.skipif(not UNITS, reason=missing),
    pytest.mark.timeout(1800),      # the runner has tighter ones: per test and per class
]


@pytest.fixture(scope="module", params=own_types.MODES)
def reports(request):
    chosen = {item.callspec.params["unit"] for item in request.session.items if item.path == request.path}
    with foreign_suite.run_ahead(CHILD, UNITS, chosen, OWN_TASKS, f"gmploop:{request.param}") as futures:
        yield futures


@pytest.mark.parametrize("unit", UNITS, ids=".".join)
def test_cpython(unit, reports):
    complaint = foreign_suite.complaint(reports[unit].result())
    assert not complaint, complaint
