"""The order of a run: rows one after the other, in each round the loops in turn."""

import dataclasses
import importlib.util
import shutil
import sys

from gmploop.bench import contests, measure, report, row as kinds
from gmploop.bench.loops import C_SERVERS, LOOPS


def say(text):
    print(text, file=sys.stderr, flush=True)


def usable_loops(names):
    """({loop: what its probe said}, {loop: why it is left out}). Raises measure.Failed if our own loop fails."""
    usable, left_out = {}, {}
    for name in names:
        if name in contests.RUNTIMES:
            continue
        if name in C_SERVERS:
            usable[name] = {}
        elif importlib.util.find_spec(LOOPS[name].module) is None:
            left_out[name] = "not installed"
        else:
            try:
                usable[name] = measure.probe(name)
            except measure.Failed as failure:
                if LOOPS[name].module == report.SUBJECT:
                    raise measure.Failed(f"{name} does not work here: {failure}") from None
                left_out[name] = f"does not work here: {failure}"
    return usable, left_out


def usable_ways(rows, loops, everyone):
    """(the rows with those ways only that can be measured here, {contestant: why it is left out}).

    `loops` are those to compare; contestants that are none are taken if they are there, but runtimes only if named, unless
    `everyone` may come.
    """
    left_out = {}

    def usable(way):
        if way.of and way.of not in loops and not (everyone and way.of in contests.RUNTIMES):
            return False
        there = not way.needs or (shutil.which("go") if way.needs == "go" else importlib.util.find_spec(way.needs))
        if not there:
            left_out[way.needs] = "not installed"
        return there
    rows = [dataclasses.replace(row, ways=tuple(filter(usable, row.ways))) if row.ways else row for row in rows]
    return rows, left_out


class Run:
    """The measurements of one call: `results`, `failures` and `lacking` fill as it goes on."""

    def __init__(self, chosen, loops, rounds, settings, counter, quick=False):
        self.rows, self.loops, self.rounds, self.settings, self.counter = chosen, loops, rounds, settings, counter
        self.quick = quick
        self.results = {}       # row name: {loop: [one dict for each round]}
        self.failures = []      # (row name, loop, why)
        self.lacking = []       # (row name, loop): the loop says that it does not implement this

    def all(self):
        for row in self.rows:
            who = [way.name for way in row.ways] or [loop for loop in self.loops if self._fits(row, loop)]
            self.results[row.name] = figures = {loop: [] for loop in who}
            shared = {loop: known for loop in figures if (known := self._known(row, loop))}
            figures |= shared
            todo = [loop for loop in figures if loop not in shared]
            for _ in range(self.rounds if self.quick else max(self.rounds, row.least_rounds)):
                for loop in list(todo):
                    self._measure(row, loop, figures, todo)
            self._count_calls(row, todo, figures)
            say(f"{row.name}: " + ", ".join(
                f"{loop} {report.summarise(measured)['value']:.4g}" for loop, measured in figures.items() if measured)
                + f" {row.unit}")

    @staticmethod
    def _fits(row, loop):
        if row.how == kinds.PROGRAM or row.part == "isolated":         # none of the row's ways is left
            return False
        if loop in C_SERVERS:
            return row.c_server and row.net in C_SERVERS[loop].nets
        return not (LOOPS[loop].network_only and row.how == kinds.MICRO)

    def _known(self, row, loop):
        """What an earlier row of the same load measured counts, if it is of the same kind of server or of a C server, which
        is the same for all kinds; the rows then differ in which figure they show."""
        def load(it):
            return (it.net, it.size, it.connections or self.settings.connections, it.mode, it.rate, it.least_seconds,
                    it.how, loop in C_SERVERS or (it.kind, it.part))

        if row.how != kinds.SERVER or row.ways:
            return None
        for other in self.rows[:self.rows.index(row)]:
            if load(other) == load(row):
                return [{**one, "value": one[row.shows]} for one in self.results[other.name].get(loop, ())]
        return None

    def _measure(self, row, loop, figures, todo):
        try:
            figures[loop].append(measure.one(row, loop, self.settings))
        except measure.Failed as failure:
            todo.remove(loop)            # it would fail in the next round as well
            figures[loop].clear()
            if "NotImplementedError" in str(failure) and not row.ways and loop != report.SUBJECT:
                self.lacking.append((row.name, loop))
                say(f"{row.name}: {loop} does not implement it")
            else:
                self._fail(row, loop, failure)

    def _count_calls(self, row, loops, figures):
        if self.counter and row.how in (kinds.SERVER, kinds.MICRO, kinds.CLIENT) and row.calls:
            for loop in loops:
                try:
                    figures[loop][-1]["syscalls"] = measure.syscalls(row, loop, self.settings, self.counter)
                except measure.Failed as failure:
                    self._fail(row, loop, f"counting system calls: {failure}")

    def _fail(self, row, loop, why):
        self.failures.append((row.name, loop, str(why)))
        say(f"{row.name}: {loop} FAILED: {why}")

    def failed(self):
        """Whether a failure counts: those of other projects' loops are shown, and that is all."""
        of = {(row.name, way.name): way.of for row in self.rows for way in row.ways}
        return any(kind in C_SERVERS or kind == "" or kind in LOOPS and LOOPS[kind].ours
                   for kind in (of.get((row, loop), loop) for row, loop, _ in self.failures))
