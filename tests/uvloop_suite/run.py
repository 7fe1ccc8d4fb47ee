"""Run uvloop's own test-suite on an event loop, and compare test by test with stock asyncio.

    run.py LOOP [--json FILE] [--against FILE] [--jobs N] [--verbose] [MODULE ...]

LOOP is `asyncio` (stock) or any module with `new_event_loop()`. Named are tests that stock passes and LOOP does not.
"""
import runpy
import sys
from pathlib import Path

from exclusions_uvloop import EXCLUSIONS

HERE = Path(__file__).parent

if __name__ == "__main__":
    sys.path.insert(0, str(HERE.parent / "conformance"))
    runner = runpy.run_path(str(HERE.parent / "conformance" / "run.py"))
    runner["main"](__doc__, HERE / "child.py", EXCLUSIONS)
