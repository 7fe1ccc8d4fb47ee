"""The fixtures' own test: what a test leaves behind makes it fail."""

import pathlib
import textwrap

import pytest

import gmploop

pytest_plugins = "pytester"

LEAVING = """
    def test_descriptor(loop):
        os.pipe()

    def test_descriptor_in_the_place_of_another(loop):
        os.dup2(os.open("/dev/zero", os.O_RDONLY), 0)

    def test_transport(run):
        async def main():
            near, far = support.unix_pair()
            await asyncio.open_connection(sock=near)
            kept.append(far)
        run(main())

    def test_task(run):
        async def main():
            kept.append(asyncio.create_task(asyncio.sleep(60)))
        run(main())

    def test_thread(loop):
        threading.Thread(target=time.sleep, args=(4,), daemon=True).start()

    def test_unexpected_report(run, loop):
        async def main():
            loop.call_soon(int, "x")
            await asyncio.sleep(0.01)
        run(main())

    def test_task_that_failed_unseen(run):
        async def fail():
            raise KeyError

        async def main():
            asyncio.create_task(fail())
            await asyncio.sleep(0.01)
        run(main())
"""

CLEAN = """
    def test(run):
        run(asyncio.sleep(0))

    @pytest.mark.gmploop_only
    def test_special(run):
        run(asyncio.sleep(0))
"""

FAULTY = """
    @pytest.mark.stock_fault("because", way=("bad",))
    @pytest.mark.parametrize("way", ["good", "bad"])
    def test(loop_kind, way):
        assert way == "good"

    @pytest.mark.stock_fault("because", ((3, 0), (3, 1)))
    def test_long_ago(loop_kind):
        assert False
"""


@pytest.fixture
def inner(pytester, monkeypatch):
    """Runs pytest with the project's conftest.py on a file of these tests."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTHONPATH", str(pathlib.Path(gmploop.__file__).parent.parent))
    here = pathlib.Path(__file__).parent
    for name in "conftest", "support":
        pytester.makepyfile(**{name: (here / f"{name}.py").read_text()})

    def run(tests, *options):
        pytester.makepyfile(test_it="import asyncio, os, threading, time\nimport pytest\nimport support\n"
                            "kept, support.PATIENCE = [], 0.2\n"
                            + textwrap.dedent(tests))
        return pytester.runpytest_subprocess(*options)
    return run


def test_a_test_that_leaves_something_behind_fails(inner):
    count = LEAVING.count("def test_")
    assert inner(LEAVING, "--loops", "asyncio").parseoutcomes() == {"passed": count, "errors": count}


@pytest.mark.parametrize("options, passed", [([], 3), (["--loops", "gmploop"], 2), (["--loops", "nonsense"], None)])
def test_clean_tests_pass_on_the_loops_that_were_asked_for(inner, options, passed):
    assert inner(CLEAN, *options).parseoutcomes().get("passed") == passed


def test_a_fault_of_stock_is_expected_of_stock_only(inner):
    assert inner(FAULTY).parseoutcomes() == {"passed": 2, "xfailed": 1, "failed": 3}
