"""Run unittest classes of somebody else's suite on an event loop, a process each, and compare with stock asyncio.

A child process (`script JSON`) runs one class, or some tests of one, and reports each test by a line in a file: see
`foreign_report.py`. When a test hangs or kills its process, the rest of the class goes on in a new process, so that a
hang costs one test. Only what did not pass is looked at twice: on stock, since what fails there too says nothing about
this loop, and then again alone, since some of these tests have deadlines and the machine is busy.
"""
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

CLASS_S = 900           # guessed: the longest class takes about a minute on stock
RETRY_UP_TO = 10        # tests of one class; more failures than that are no accident
DEATHS_MAX = 8          # processes of one class; then its other tests are left


class Outcome(NamedTuple):
    what: str           # pass, skip, fail, died (hung or took the process along)
    why: str = ""       # traceback or reason
    flaky: bool = False


class Short(NamedTuple):
    """A test that stock passes and this loop does not."""
    name: str
    outcome: Outcome
    excluded: str = ""  # why that is right, from the table of exclusions


class ClassReport(NamedTuple):
    outcomes: dict[str, Outcome]
    short: list[Short]
    loops: int          # event loops the factory was asked for: 0 means that the loop was not tested at all


class Runner:
    """Runs classes on loop `loop` by child script `child`, at most `jobs` processes at a time. Safe for threads."""

    def __init__(self, child, loop, jobs, hang_s=60, retries=2):
        self.child, self.loop, self.jobs, self.hang_s, self.retries = str(child), loop, jobs, hang_s, retries
        self.env = dict(os.environ)             # a copy: pytest changes it while other threads start processes (EFAULT)
        self.slots = threading.Semaphore(jobs)
        self.one_waits = threading.Lock()       # two that collect all slots would each end up with half
        self.live = set()
        self.stopped = False

    @contextlib.contextmanager
    def alone(self):
        with self.one_waits:
            for _ in range(self.jobs):
                self.slots.acquire()
        try:
            yield
        finally:
            self.slots.release(self.jobs)

    def process(self, loop, module, cls, names, folder):
        """One child process; returns its report's lines and the end of what it said on stderr."""
        report, said = os.path.join(folder, "report"), os.path.join(folder, "stderr")
        order = json.dumps(dict(loop=loop, module=module, cls=cls, names=names, report=report, hang_s=self.hang_s))
        with open(report, "w"), open(said, "w") as err:
            # files, not pipes: a grandchild that survives must not keep us waiting; a group, so that none does
            p = subprocess.Popen([sys.executable, self.child, order], cwd=folder, env=self.env, process_group=0,
                                 stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=err)
            self.live.add(p.pid)
            try:
                if self.stopped:
                    raise KeyboardInterrupt
                p.wait(CLASS_S)
            except subprocess.TimeoutExpired:
                pass
            finally:
                kill_group(p.pid)
                p.wait()
                self.live.discard(p.pid)
        with open(report) as f, open(said, errors="replace") as err:
            return [json.loads(line) for line in f if line.endswith("\n")], \
                f"{err.read()[-6000:]}\nthe process ended with {p.returncode}"

    def run_class(self, module, cls, names=None, loop=None):
        """Outcomes of the class's tests (only `names`, if given) and how many loops were made."""
        outcomes, loops = {}, 0
        for deaths in range(1, DEATHS_MAX + 1):
            with tempfile.TemporaryDirectory(prefix="conformance-", ignore_cleanup_errors=True) as folder:
                lines, said = self.process(loop or self.loop, module, cls, names, folder)
            planned, started, done = [], [], False
            for what, name, why in lines:
                full = f"{module}.{cls}.{name}"
                if what == "plan":
                    planned.append(name)
                elif what == "start":
                    started.append(name)
                elif what == "done":
                    done, loops = True, loops + int(name)
                elif outcomes.get(full, ("",))[0] != "fail":
                    outcomes[full] = Outcome(what, why)
            if not done:                    # the test that ran last took the process along, if only in its wake
                outcomes.update((f"{module}.{cls}.{name}", Outcome("died", said)) for name in started[-1:])
            names = [n for n in planned if n not in started]
            if not started and not done:
                outcomes[f"{module}.{cls}.*"] = Outcome("died", said)
            if done or not started or not names:
                break
            if deaths == DEATHS_MAX:
                outcomes.update((f"{module}.{cls}.{n}", Outcome("died", "left after too many died")) for n in names)
        return outcomes, loops

    def on_stock(self, module, cls, outcomes):
        """{test: what stock makes of it} for the tests that did not pass here, or that never ran.

        Stock gets a second try: its bad luck is no excuse.
        """
        suspects, stock = [n for n, o in outcomes.items() if o.what != "pass"], {}
        for _ in range(2):
            left = [n for n in suspects if stock.get(n, "fail") == "fail"]
            whole = any(n.endswith(".*") for n in left)     # the process told of no test at all
            if left:
                names = None if whole else [n.rpartition(".")[2] for n in left]
                with self.slots:
                    found, _ = self.run_class(module, cls, names, loop="asyncio")
                stock.update((n, o.what) for n, o in found.items() if stock.get(n) != "pass")
        return stock

    def retry(self, module, cls, outcomes, full):
        """Run test `full` again, on an otherwise idle machine as far as we make it so."""
        for _ in range(self.retries):
            with self.alone():
                again = self.run_class(module, cls, [full.rpartition(".")[2]])[0].get(full)
            if again and again.what == "pass":
                outcomes[full] = Outcome("pass", outcomes[full].why, flaky=True)
                return

    def check_class(self, module, cls, stock=None, exclusions={}):
        """Run the class and name what stock passes and this loop does not.

        `stock` ({name: outcome}) spares the run of stock; `exclusions` maps `module.Class.test` to a reason.
        """
        with self.slots:
            outcomes, loops = self.run_class(module, cls)
        if self.loop == "asyncio":
            return ClassReport(outcomes, [], loops)
        if stock is None:
            stock = self.on_stock(module, cls, outcomes)
        not_run = Outcome("not run")
        want = sorted(n for n, what in stock.items() if what == "pass" and n.startswith(f"{module}.{cls}."))
        short = [n for n in want if outcomes.get(n, not_run).what != "pass"]
        for n in short if len(short) <= RETRY_UP_TO else ():
            if n in outcomes and n not in exclusions:
                self.retry(module, cls, outcomes, n)
        short = [Short(n, outcomes.get(n, not_run), exclusions.get(n, "")) for n in short
                 if outcomes.get(n, not_run).what != "pass"]
        return ClassReport(outcomes, short, loops)

    def start(self, units, **kw):
        """Begin to check all `units` (module, class); returns {unit: future of its ClassReport} and the pool."""
        pool = ThreadPoolExecutor(self.jobs)
        return {u: pool.submit(self.check_class, *u, **kw) for u in units}, pool

    def stop(self, pool):
        """End what still runs, and wait for it."""
        self.stopped = True
        for pid in list(self.live):
            kill_group(pid)
        pool.shutdown(cancel_futures=True)


def kill_group(pid):
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def list_units(child):
    """The (module, class) pairs that the child script knows; LookupError says why there are none.

    Asked in a process of its own: importing a foreign suite changes policies, warnings, signal handlers.
    """
    p = subprocess.run([sys.executable, str(child), "list"], capture_output=True, text=True, timeout=120)
    if p.returncode:
        raise LookupError(p.stderr.strip().rpartition("\n")[2])
    return [tuple(u) for u in json.loads(p.stdout.splitlines()[-1])]


@contextlib.contextmanager
def run_ahead(child, units, chosen, exclusions, loop="gmploop", **options):
    """For pytest: while the context lasts, check `chosen` of `units`; gives {unit: future of its ClassReport}."""
    runner = Runner(child, loop, int(os.environ.get("CONFORMANCE_JOBS", min(4, os.cpu_count() or 1))), **options)
    futures, pool = runner.start([u for u in units if u in chosen], exclusions=exclusions)
    try:
        yield futures
    finally:
        runner.stop(pool)


def complaint(report):
    """Empty, or which tests stock passes and gmploop does not, and how the first of them end."""
    if not report.outcomes:
        return "no test of this class was run"
    short = [s for s in report.short if not s.excluded]
    return "\n".join([*(f"stock passes {s.name}, gmploop: {s.outcome.what}" for s in short),
                      *(f"\n{s.name}\n{s.outcome.why}" for s in short[:3])])
