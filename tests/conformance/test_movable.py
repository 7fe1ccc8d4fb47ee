"""CPython's own test_asyncio where each loop is a world that moves between threads: see movable.py.

The short form: about a minute's worth. `run.py gmploop --movable` runs all.
"""
from pathlib import Path

import pytest

import foreign_suite
from exclusions_cpython import MOVABLE

CHILD = Path(__file__).with_name("child.py")
SHORT = set("""
    test_locks test_queues test_taskgroups test_timeouts test_waitfor test_staggered test_threads test_buffered_proto
    test_server test_sock_lowlevel test_context test_eager_task_factory test_events test_streams
""".split())

try:
    UNITS, missing = [u for u in foreign_suite.list_units(CHILD) if u[0] in SHORT], ""
except LookupError as e:
    UNITS, missing = [], str(e)

pytestmark = [pytest.mark.skipif(not UNITS, reason=missing), pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def reports(request):
    chosen = {item.callspec.params["unit"] for item in request.session.items if item.path == request.path}
    with foreign_suite.run_ahead(CHILD, UNITS, chosen, MOVABLE, "gmploop:movable") as futures:
        yield futures


@pytest.mark.parametrize("unit", UNITS, ids=".".join)
def test_cpython(unit, reports):
    complaint = foreign_suite.complaint(reports[unit].result())
    assert not complaint, complaint
