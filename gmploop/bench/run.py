"""The order of a run: rows one after the other, in each round the loops in turn."""

import importlib.util
import sys

from gmploop.bench import measure, report, rows
from gmploop.bench.loops import C_SERVERS, LOOPS


def say(text):
    print(text, file=sys.stderr, flush=True)


def usable_loops(names):
    """({loop: what its probe said}, {loop: why it is left out}). Raises measure.Failed if our own loop fails."""
    usable, left_out = {}, {}
    for name in names:
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


class Run:
    """The measurements of one call: `results`, `failures` and `lacking` fill as it goes on."""

    def __init__(self, chosen, loops, rounds, settings, counter):
        self.rows, self.loops, self.rounds, self.settings, self.counter = chosen, loops, rounds, settings, counter
        self.results = {}       # row name: {loop: [one dict for each round]}
        self.failures = []      # (row name, loop, why)
        self.lacking = []       # (row name, loop): the loop says that it does not implement this

    def all(self):
        for row in self.rows:
            self.results[row.name] = figures = {loop: [] for loop in self.loops if self._fits(row, loop)}
            shared = {loop: known for loop in figures if (known := self._c_server_of(row, loop))}
            figures |= shared
            todo = [loop for loop in figures if loop not in shared]
            for _ in range(self.rounds):
                for loop in list(todo):
                    self._measure(row, loop, figures, todo)
            self._count_calls(row, todo, figures)
            say(f"{row.name}: " + ", ".join(
                f"{loop} {report.summarise(measured)['value']:.4g}" for loop, measured in figures.items() if measured)
                + f" {row.unit}")

    @staticmethod
    def _fits(row, loop):
        if loop in C_SERVERS:
            return row.c_server and row.net in C_SERVERS[loop].nets
        return not (LOOPS[loop].network_only and row.how == rows.MICRO)

    def _c_server_of(self, row, loop):
        """A C server is the same for all kinds of server: what an earlier row of that load measured counts."""
        def load(it):
            return it.net, it.size, it.connections or self.settings.connections, it.mode, it.rate

        if loop in C_SERVERS:
            for other in self.rows[:self.rows.index(row)]:
                if other.c_server and load(other) == load(row) and other.shows == row.shows:
                    return self.results[other.name].get(loop)
        return None

    def _measure(self, row, loop, figures, todo):
        try:
            figures[loop].append(measure.one(row, loop, self.settings))
        except measure.Failed as failure:
            todo.remove(loop)            # it would fail in the next round as well
            figures[loop].clear()
            if "NotImplementedError" in str(failure) and loop != report.SUBJECT:
                self.lacking.append((row.name, loop))
                say(f"{row.name}: {loop} does not implement it")
            else:
                self._fail(row, loop, failure)

    def _count_calls(self, row, loops, figures):
        if self.counter and row.how == rows.SERVER and row.calls:
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
        return any(loop in C_SERVERS or LOOPS[loop].ours for _, loop, _ in self.failures)
