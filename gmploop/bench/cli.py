"""The command line: what is measured, in which order, and with which exit status it ends."""

import argparse
import contextlib
import importlib.util
import sys

from gmploop.bench import machine, measure, native, report
from gmploop.bench.loops import C_EPOLL, LOOPS
from gmploop.bench.rows import UnknownRow, all_rows, select

FAILED, USAGE, INTERRUPTED = 1, 2, 130
DEFAULT_LOOPS = ["asyncio", "uvloop", "gmploop", C_EPOLL]


def _loops(text):
    known = [*LOOPS, C_EPOLL]
    names = known if text == "all" else [name.strip() for name in text.split(",") if name.strip()]
    for name in names:
        if name not in known:
            raise argparse.ArgumentTypeError(f"unknown loop {name!r}; there are: {', '.join(known)}; or all")
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
        epilog="A row may be a name from --list, the beginning of some (echo-streams), or a group (echo, http, micro). "
               "`python -m gmploop bench files --help` is about files.")
    it.add_argument("rows", nargs="*", metavar="ROW", help="what to measure (default: all)")
    it.add_argument("--loops", type=_loops, default=DEFAULT_LOOPS, metavar="A,B,...",
                    help=f"which loops (default: {','.join(DEFAULT_LOOPS)}; all: each one that is installed)")
    it.add_argument("--rounds", type=_count, metavar="N", help="rounds, in which the loops take turns (default: 3)")
    it.add_argument("--seconds", type=_seconds, metavar="S", help="length of one measurement (default: 1)")
    it.add_argument("--connections", type=_count, default=50, metavar="N", help="connections to a server (default: 50)")
    it.add_argument("--syscalls", action="store_true", help="count servers' system calls too, in a run of its own")
    it.add_argument("--cold-malloc", action="store_true",
                    help="leave malloc's thresholds as a new process has them (see loops.enter_child)")
    it.add_argument("--json", metavar="FILE", help="write all figures to FILE as well")
    it.add_argument("--quick", action="store_true",
                    help="one round of 0.1 s, and no 100k rows unless named: to see that all works, not to compare")
    it.add_argument("--list", action="store_true", help="list the rows and end")
    return it


def _say(text):
    print(text, file=sys.stderr, flush=True)


def _usable_rows(options):
    """The rows to measure and [(row, why)] of those left out. Raises UnknownRow, or LookupError for a named row."""
    rows = select(options.rows) if options.rows else all_rows()
    if options.quick and not options.rows:
        rows = [row for row in rows if not row.name.endswith("-100k")]
    left_out = {row.name: f"{row.missing()} is not installed" for row in rows if row.missing()}
    if sys.platform != "linux":
        left_out |= {row.name: "the load generator needs Linux" for row in rows if row.group != "micro"}
    for name in left_out:
        if name in options.rows:
            raise LookupError(f"{name} cannot be measured: {left_out[name]}")
    return [row for row in rows if row.name not in left_out], left_out


def _usable_loops(names):
    """({loop: what its probe said}, {loop: why it is left out}). Raises measure.Failed if our own loop fails."""
    usable, left_out = {}, {}
    for name in names:
        if name == C_EPOLL:
            usable[name] = {}
        elif importlib.util.find_spec(LOOPS[name].module) is None:
            left_out[name] = "not installed"
        else:
            try:
                usable[name] = measure.probe(name)
            except measure.Failed as failure:
                if name == report.SUBJECT:
                    raise measure.Failed(f"{name} does not work here: {failure}") from None
                left_out[name] = f"does not work here: {failure}"
    return usable, left_out


class Run:
    """The measurements of one call: `results` and `failures` fill as it goes on."""

    def __init__(self, rows, loops, rounds, settings, counter):
        self.rows, self.loops, self.rounds, self.settings, self.counter = rows, loops, rounds, settings, counter
        self.results = {}       # row name: {loop: [one dict for each round]}
        self.failures = []      # (row name, loop, why)

    def all(self):
        for row in self.rows:
            shared = self._c_server_of(row)
            self.results[row.name] = figures = {loop: [] for loop in self.loops if self._fits(row, loop)}
            if shared:
                figures[C_EPOLL] = shared
            todo = [loop for loop in figures if not (shared and loop == C_EPOLL)]
            for _ in range(self.rounds):
                for loop in list(todo):
                    self._measure(row, loop, figures, todo)
            self._count_calls(row, todo, figures)
            _say(f"{row.name}: " + ", ".join(
                f"{loop} {report.summarise(rounds)['value']:.4g}" for loop, rounds in figures.items() if rounds)
                + f" {row.unit}")

    @staticmethod
    def _fits(row, loop):
        return loop != C_EPOLL or row.group == "echo"

    def _c_server_of(self, row):
        """The C server is the same for all kinds of server: what an earlier row of that size measured counts."""
        if row.group == "echo":
            for other in self.rows[:self.rows.index(row)]:
                if other.group == "echo" and other.size == row.size:
                    return self.results[other.name].get(C_EPOLL)
        return None

    def _measure(self, row, loop, figures, todo):
        try:
            figures[loop].append(measure.one(row, loop, self.settings))
        except measure.Failed as failure:
            todo.remove(loop)            # it would fail in the next round as well
            figures[loop].clear()
            self._fail(row, loop, failure)

    def _count_calls(self, row, loops, figures):
        if self.counter and row.group != "micro":
            for loop in loops:
                try:
                    figures[loop][-1]["syscalls"] = measure.syscalls(row, loop, self.settings, self.counter)
                except measure.Failed as failure:
                    self._fail(row, loop, f"counting system calls: {failure}")

    def _fail(self, row, loop, why):
        self.failures.append((row.name, loop, str(why)))
        _say(f"{row.name}: {loop} FAILED: {why}")

    def failed(self):
        """Whether a failure counts: those of other projects' loops are shown, and that is all."""
        return any(loop == C_EPOLL or LOOPS[loop].ours for _, loop, _ in self.failures)


def main(argv=None):
    argv = sys.argv[1:] if argv is None else argv
    if argv[:1] == ["files"]:       # not a row: it compares ways to read files, not loops
        from gmploop.bench import files
        return files.main(argv[1:])
    options = parser().parse_args(argv)
    if options.list:
        for row in all_rows():
            print(f"{row.name:22}{row.what}")
        return 0
    try:
        return _run(options)
    except (UnknownRow, LookupError, native.NoCompiler) as error:
        _say(f"error: {error}")
        return USAGE
    except (measure.Failed, RuntimeError, OSError) as error:
        _say(f"error: {error}")
        return FAILED
    except KeyboardInterrupt:
        _say("interrupted")
        return INTERRUPTED


def _run(options):
    rows, rows_left_out = _usable_rows(options)
    if any(row.group != "micro" for row in rows):
        native.build("loadgen")
    if options.json:
        open(options.json, "a").close()          # a path that cannot be written is told now, not after minutes
    loops, loops_left_out = _usable_loops(options.loops)
    for name, why in (rows_left_out | loops_left_out).items():
        _say(f"left out: {name} ({why})")
    if not rows or not set(loops) - {C_EPOLL}:
        _say("error: nothing to measure")
        return USAGE
    counter = measure.syscall_counter() if options.syscalls else None
    remarks = [remark for remark in (machine.cores()[2], machine.busy_remark()) if remark]
    if options.syscalls and not counter:
        remarks.append("neither perf nor strace can count system calls here")
    for remark in remarks:
        _say(f"note: {remark}")
    quick = options.quick
    seconds = options.seconds or (0.1 if quick else 1.0)
    settings = measure.Settings(seconds, min(0.3, seconds / 2), options.connections, options.cold_malloc)
    run = Run(rows, loops, options.rounds or (1 if quick else 3), settings, counter)
    about = {"machine": machine.describe(), "loops": loops, "left_out": rows_left_out | loops_left_out,
             "remarks": remarks,
             "settings": {"rounds": run.rounds, "seconds": seconds, "warmup": settings.warmup,
                          "connections": options.connections, "quick": quick, "syscalls": counter,
                          "cold_malloc": options.cold_malloc}}
    interrupted = False
    try:
        run.all()
    except KeyboardInterrupt:
        interrupted = True
    whole = report.collect(rows, run.results, run.failures, complete=not interrupted, **about)
    _print(whole, list(loops))
    if options.json:
        report.write_json(whole, options.json)
    if interrupted:
        _say("interrupted: what was measured until then is above")
        return INTERRUPTED
    return FAILED if run.failed() else 0


def _print(whole, loops):
    about = whole["machine"]
    print(f"{about['cpu']}, {about['cores']} cores, {about['kernel']}, Python {about['python']}"
          + (" (free-threaded)" if about["free_threaded"] else ""))
    print(", ".join(f"{name} {probe['version']}" for name, probe in whole["loops"].items() if probe))
    report.print_table(*report.main_table(whole, loops), left=2)
    if servers := report.server_table(whole, loops):
        report.print_table(*servers, left=2)
    for failure in whole["failures"]:
        print(f"FAILED {failure['row']} on {failure['loop']}: {failure['why'].splitlines()[-1].strip()}")
    with contextlib.suppress(BrokenPipeError):
        sys.stdout.flush()
