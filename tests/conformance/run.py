"""Run CPython's own test_asyncio of this interpreter on an event loop, and compare test by test with stock.

    run.py LOOP [--json FILE] [--against FILE] [--jobs N] [--verbose] [MODULE ...]

LOOP is `asyncio` (stock) or any module with `new_event_loop()`. What does not pass is run on stock, then again alone;
named are the tests that stock passes and LOOP does not. Exit status 1 if there are any (of stock: if any fails).
"""
import argparse
import json
import os
import sys
from collections import Counter
from pathlib import Path

import foreign_suite
import own_types
from exclusions_cpython import EXCLUSIONS, MOVABLE, OWN_TASKS

CHILD = Path(__file__).with_name("child.py")


def arguments(doc, modules):
    ap = argparse.ArgumentParser(description=doc, formatter_class=argparse.RawDescriptionHelpFormatter)
    ap.add_argument("loop")
    ap.add_argument("modules", nargs="*", metavar="MODULE", help=" ".join(modules))
    ap.add_argument("--json", metavar="FILE", help="keep every outcome")
    ap.add_argument("--against", metavar="FILE", help="compare with stock's outcomes kept there, instead of running it")
    ap.add_argument("--jobs", type=int, default=min(4, os.cpu_count() or 1), help="processes at a time (%(default)s)")
    ap.add_argument("--hang", type=float, default=60, help="seconds until a test counts as hung (%(default)s)")
    ap.add_argument("--retries", type=int, default=2, help="how often a failed test is run again alone (%(default)s)")
    ap.add_argument("--own-tasks", choices=own_types.MODES, help="put gmploop's Task and Future in the places of the C "
                    "types: see own_types.py")
    ap.add_argument("--movable", action="store_true", help="each loop is a world that moves: see movable.py")
    ap.add_argument("--verbose", action="store_true", help="show the tracebacks of what is named")
    a = ap.parse_intermixed_args()
    if unknown := set(a.modules) - set(modules):
        ap.error("no such module here: " + " ".join(sorted(unknown)))
    return a


def main(doc, child, exclusions):
    try:
        units = foreign_suite.list_units(child)
    except LookupError as e:
        sys.exit(str(e))
    a = arguments(doc, dict.fromkeys(m for m, _ in units))
    if a.own_tasks:
        a.loop, a.modules = f"{a.loop}:{a.own_tasks}", a.modules or own_types.MODULES
        exclusions = OWN_TASKS
    if a.movable:
        a.loop, exclusions = f"{a.loop}:movable", MOVABLE
    runner = foreign_suite.Runner(child, a.loop, a.jobs, a.hang, a.retries)
    stock = json.loads(Path(a.against).read_text()) if a.against else None
    chosen = [u for u in units if not a.modules or u[0] in a.modules]
    futures, pool = runner.start(chosen, stock=stock, exclusions=exclusions)
    try:
        reports = [show_class(unit, f.result()) for unit, f in futures.items()]
    finally:
        runner.stop(pool)
    outcomes = {n: o for r in reports for n, o in r.outcomes.items()}
    short = [s for r in reports for s in r.short if not s.excluded]
    if a.loop == "asyncio":
        short = [foreign_suite.Short(n, o) for n, o in outcomes.items() if o.what in ("fail", "died")]
    if a.json:
        Path(a.json).write_text(json.dumps({n: o.what for n, o in outcomes.items()}, indent=0, sort_keys=True))
    for s in short:
        print("  ", s.name, s.outcome.what)
        if a.verbose:
            print("       " + s.outcome.why.rstrip().replace("\n", "\n       "))
    print(summary(a.loop, outcomes, reports, short), flush=True)
    sys.exit(bool(short))


def show_class(unit, r):
    bad = sum(o.what in ("fail", "died") for o in r.outcomes.values())
    if bad or r.short:
        print(f"{'.'.join(unit)}: {bad} of {len(r.outcomes)} fail; stock passes {len(r.short)} of them", flush=True)
    return r


def summary(loop, outcomes, reports, short):
    count = Counter(o.what for o in outcomes.values())
    text = ", ".join(f"{count[what]} {what}" for what in ("pass", "skip", "fail", "died"))
    text = f"{loop} on {sys.version.split()[0]}: {text}"
    flaky, excluded = sum(o.flaky for o in outcomes.values()), sum(bool(s.excluded) for r in reports for s in r.short)
    text += f"; {flaky} only alone" if flaky else ""
    text += f"; {excluded} excluded" if excluded else ""
    return text + (f"; {len(short)} that stock passes do not" if loop != "asyncio" else "")


if __name__ == "__main__":
    main(__doc__, CHILD, EXCLUSIONS)
