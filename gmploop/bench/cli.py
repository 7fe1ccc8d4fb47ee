"""The command line: what is measured, how it is shown, and with which exit status it ends."""

import argparse
import contextlib
import importlib.util
import sys

from gmploop.bench import machine, measure, native, report, rows, services
from gmploop.bench.contests import RUNTIMES
from gmploop.bench.loops import C_SERVERS, LOOPS
from gmploop.bench.run import Run, say, usable_loops, usable_ways

FAILED, USAGE, INTERRUPTED = 1, 2, 130
DEFAULT_LOOPS = ["asyncio", "uvloop", "gmploop", "c-epoll"]
POLLER_LOOPS = ["asyncio", "uvloop", "blazio", "gmploop", "gmploop-eager", "gmploop-uring", "gmploop-uring-eager",
                "c-epoll", "c-uring"]


def _loops(text):
    known = [*LOOPS, *C_SERVERS, *RUNTIMES]
    groups = {"all": known, "peers": [name for name in known if not name.startswith(report.SUBJECT + "-")]}
    names = groups.get(text) or [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise argparse.ArgumentTypeError(f"unknown loop {name!r}; there are: {', '.join(known)}; or all, or peers")
    return list(dict.fromkeys(names))


def _count(text):
    try:
        if (value := int(text)) >= 1:
            return value
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"takes a whole number from 1, not {text!r}")


def _seconds(text):
    try:
        if 0.01 <= (value := float(text)) <= 3600:
            return value
    except ValueError:
        pass
    raise argparse.ArgumentTypeError(f"takes seconds from 0.01 to 3600, not {text!r}")


def parser():
    it = argparse.ArgumentParser(
        prog="python -m gmploop bench", description="Measure gmploop beside other event loops.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="parts:\n" + "".join(f"  {name:10}{what}\n" for name, what in rows.PARTS.items()) + "\n"
               "ROW is a part, all, a row's name from --list or the beginning of some (echo-streams).")
    it.add_argument("rows", nargs="*", metavar="ROW", help="what to measure (default: all)")
    it.add_argument("--loops", type=_loops, metavar="A,B,...",
                    help=f"which loops (default: {','.join(DEFAULT_LOOPS)}; for pollers: {','.join(POLLER_LOOPS)}; "
                         "peers: each one that is installed; all: and our own variants)")
    it.add_argument("--rounds", type=_count, metavar="N",
                    help="rounds, in which the loops take turns (default: 3; for pollers 2)")
    it.add_argument("--seconds", type=_seconds, metavar="S",
                    help="length of one measurement (default: 1; for pollers 0.4)")
    it.add_argument("--connections", type=_count, default=50, metavar="N",
                    help="connections to a server, where the row does not say (default: 50)")
    it.add_argument("--least", action="store_true",
                    help="show the least of the rounds instead of their median: on a machine that others use too")
    it.add_argument("--syscalls", action=argparse.BooleanOptionalAction,
                    help="count system calls too, in a run of its own (default: yes, but for --quick)")
    it.add_argument("--cold-malloc", action="store_true",
                    help="leave malloc's thresholds as a new process has them (see loops.enter_child)")
    it.add_argument("--json", metavar="FILE", help="write all figures to FILE as well")
    it.add_argument("--plot", metavar="FILE", help="draw the figures into FILE, a PNG (needs matplotlib)")
    it.add_argument("--quick", action="store_true",
                    help="one round of 0.1 s, and no large rows unless named: to see that all works, not to compare")
    it.add_argument("--list", action="store_true", help="list the rows and end")
    return it


def _usable_rows(options):
    """The rows to measure and {row: why} of those left out. Raises UnknownRow, or LookupError for a named row."""
    chosen = rows.select(options.rows or ["all"])
    if options.quick:
        chosen = [row for row in chosen if row.quick or row.name in options.rows]
    left_out = {row.name: why for row in chosen
                if (why := rows.cannot(row, options.connections, native.tls_missing, services.missing))}
    for name in left_out:
        if name in options.rows:
            raise LookupError(f"{name} cannot be measured: {left_out[name]}")
    return [row for row in chosen if row.name not in left_out], left_out


def main(argv=None):
    options = parser().parse_args(argv)
    _fill_in(options)
    if options.list:
        for row in rows.all_rows():
            print(f"{row.name:34}{row.what}")
        return 0
    if options.plot and importlib.util.find_spec("matplotlib") is None:
        say("error: --plot needs matplotlib")
        return USAGE
    try:
        with measure.Place() as place:
            return _run(options, place)
    except (rows.UnknownRow, LookupError, native.NoCompiler) as error:
        say(f"error: {error}")
        return USAGE
    except (measure.Failed, RuntimeError, OSError) as error:
        say(f"error: {error}")
        return FAILED
    except KeyboardInterrupt:
        say("interrupted")
        return INTERRUPTED


def _fill_in(options):
    """What was not given. The pollers are many: their default is what takes a quarter of an hour, system calls too."""
    pollers = bool(options.rows) and all(name.partition("-")[0] == "pollers" for name in options.rows)
    quick, options.everyone = options.quick, not options.loops
    options.loops = options.loops or (POLLER_LOOPS if pollers else DEFAULT_LOOPS)
    options.rounds = options.rounds or (1 if quick else 2 if pollers else 3)
    options.seconds = options.seconds or (0.1 if quick else 0.4 if pollers else 1.0)
    options.syscalls = not quick if options.syscalls is None else options.syscalls


def _remarks(options, counter, loops):
    remarks = [remark for remark in (machine.cores()[2], machine.busy_remark()) if remark]
    remarks += [f"{name} turns the GIL on" for name, probe in loops.items()
                if probe.get("gil") and machine.free_threaded()]
    if options.syscalls and not counter:
        remarks.append("neither perf nor strace can count system calls here")
    return remarks


def _writable(path):
    if path:
        open(path, "a").close()          # a path that cannot be written is told now, not after minutes


def _run(options, place):
    chosen, rows_left_out = _usable_rows(options)
    if any(row.how in (rows.SERVER, rows.IDLE) for row in chosen):
        native.build("loadgen")
    _writable(options.json)
    _writable(options.plot)
    loops, loops_left_out = usable_loops(options.loops)
    chosen, runtimes_left_out = usable_ways(chosen, options.loops, options.everyone)
    loops_left_out |= runtimes_left_out
    for name, why in (rows_left_out | loops_left_out).items():
        say(f"left out: {name} ({why})")
    if not chosen or not set(loops) - set(C_SERVERS):
        say("error: nothing to measure")
        return USAGE
    counter = measure.syscall_counter() if options.syscalls else None
    for remark in (remarks := _remarks(options, counter, loops)):
        say(f"note: {remark}")
    quick, seconds = options.quick, options.seconds
    settings = measure.Settings(seconds, min(0.3, seconds / 2), options.connections, place, options.cold_malloc, quick)
    run = Run(chosen, loops, options.rounds, settings, counter, quick)
    about = {"machine": machine.describe(), "loops": loops, "left_out": rows_left_out | loops_left_out,
             "remarks": remarks,
             "settings": {"rounds": run.rounds, "seconds": seconds, "warmup": settings.warmup,
                          "connections": options.connections, "quick": quick, "syscalls": counter,
                          "cold_malloc": options.cold_malloc, "least": options.least}}
    interrupted = False
    try:
        run.all()
    except KeyboardInterrupt:
        interrupted = True
    whole = report.collect(chosen, run.results, run.failures, run.lacking, options.least, complete=not interrupted, **about)
    _show(whole, list(loops), options)
    if interrupted:
        say("interrupted: what was measured until then is above")
        return INTERRUPTED
    return FAILED if run.failed() else 0


def _show(whole, loops, options):
    about = whole["machine"]
    print(f"{about['cpu']}, {about['cores']} cores, {about['kernel']}, Python {about['python']}"
          + (" (free-threaded)" if about["free_threaded"] else ""))
    print(", ".join(f"{name} {probe['version']}" for name, probe in whole["loops"].items() if probe))
    for table in (report.main_table, report.ways_table, report.tail_table, report.server_table, report.micro_table,
                  report.memory_table, report.growth_table):
        if made := table(whole, loops):
            report.print_table(*made, left=2)
    for failure in whole["failures"]:
        print(f"FAILED {failure['row']} on {failure['loop']}: {failure['why'].splitlines()[-1].strip()}")
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
    if options.json:
        report.write_json(whole, options.json)
    if options.plot:
        from gmploop.bench import plot
        plot.draw(whole, options.plot)
