"""CPython's own test_asyncio of this interpreter, on gmploop: whatever stock passes, gmploop passes.

One item per class of CPython's. They run ahead of pytest in processes of their own, $CONFORMANCE_JOBS at a time.
"""
from pathlib import Path

import pytest

import foreign_suite
from exclusions_cpython import EXCLUSIONS

CHILD = Path(__file__).with_name("child.py")
MAKE_NO_LOOP = {"test_futures", "test_pep492"}          # these modules drive futures and coroutines by hand

try:
    UNITS, missing = foreign_suite.list_units(CHILD), ""
except LookupError as e:
    UNITS, missing = [], str(e)

pytestmark = [
    pytest.mark.skipif(not UNITS, reason=missing),
    pytest.mark.timeout(1800),      # the runner has tighter ones: per test and per class
]


@pytest.fixture(scope="module")
def reports(request):
    chosen = {u for item in request.session.items if item.path == request.path for u in item.callspec.params["units"]}
    with foreign_suite.run_ahead(CHILD, UNITS, chosen, EXCLUSIONS) as futures:
        yield futures


@pytest.mark.parametrize("units", [[u] for u in UNITS], ids=lambda units: ".".join(units[0]))
def test_cpython(units, reports):
    complaint = foreign_suite.complaint(reports[units[0]].result())
    assert not complaint, complaint


@pytest.mark.parametrize("units", [UNITS], ids=["every module"])
def test_loop_was_made(units, reports):
    made = dict.fromkeys((m for m, _ in units), 0)
    for u in units:
        made[u[0]] += reports[u].result().loops
    assert {m for m, n in made.items() if not n} <= MAKE_NO_LOOP
