"""CPython's own test_asyncio of this interpreter, on gmploop: whatever stock passes, gmploop passes.

One item per class of CPython's. They run ahead of pytest, in processes of their own, as many at a time as `JOBS` says.
"""
import os
from pathlib import Path

import pytest

import foreign_suite
from exclusions_cpython import EXCLUSIONS

CHILD = Path(__file__).with_name("child.py")
JOBS = int(os.environ.get("CONFORMANCE_JOBS", min(4, os.cpu_count() or 1)))
MAKE_NO_LOOP = {"test_futures", "test_pep492"}          # these modules drive futures and coroutines by hand

try:
    UNITS, missing = foreign_suite.list_units(CHILD), ""
except LookupError as e:
    UNITS, missing = [], str(e)

pytestmark = [
    pytest.mark.timeout(1800),      # the runner has tighter ones: per test and per class
    pytest.mark.leaves("the processes that run ahead are started by threads"),
]


@pytest.fixture(scope="module")
def reports(request):
    """{unit: future of its report} of the selected items' units."""
    chosen = {u for item in request.session.items if item.path == request.path for u in item.callspec.params["units"]}
    runner = foreign_suite.Runner(CHILD, "gmploop", JOBS)
    futures, pool = runner.start([u for u in UNITS if u in chosen], exclusions=EXCLUSIONS)
    yield futures
    runner.stop(pool)


@pytest.mark.skipif(not UNITS, reason=missing)
@pytest.mark.parametrize("units", [[u] for u in UNITS] or [[]], ids=lambda us: ".".join(us[0]) if us else "")
def test_cpython(units, reports):
    report = reports[units[0]].result()
    assert report.outcomes, "no test of this class was run"
    short = [s for s in report.short if not s.excluded]
    assert not short, "stock passes, gmploop does not:\n" + "\n".join(f"{s.name}: {s.outcome.what}" for s in short) \
        + "\n\n" + "\n".join(s.outcome.why for s in short[:3])


@pytest.mark.skipif(not UNITS, reason=missing)
@pytest.mark.parametrize("units", [UNITS], ids=["every module"])
def test_loop_was_made(units, reports):
    made = dict.fromkeys((m for m, _ in units), 0)
    for u in units:
        made[u[0]] += reports[u].result().loops
    assert {m for m, n in made.items() if not n} <= MAKE_NO_LOOP
