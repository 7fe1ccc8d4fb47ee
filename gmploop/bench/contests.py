"""The rows whose contestants are not just loops: the runtime, isolated connections, hops between loops, files.

Each contestant, a Way, is a program in a process of its own; the ways of a row take turns. They are not pinned to a core,
since those on several Ps or threads need several. Ratios are to a row's first way.
"""

import functools
import tempfile

from gmploop.bench import files
from gmploop.bench.row import PROGRAM, SERVER, Row, Way

RUNTIMES = ("tonio", "go")      # contestants that are no event loops
LOOPS = ("asyncio", "uvloop")   # those that run with a loop per thread
PROGRAMS = dict.fromkeys(LOOPS, "yardsticks.py") | {"gmploop": "sched.py", "tonio": "tonio_yardsticks.py",
                                                     "go": "yardstick"}
EVERY = ("gmploop", *LOOPS, *RUNTIMES)
FILE_SIZE = 128 << 20


def _sched(name, unit, what, who=EVERY, threads=(1, 2), **more):
    settings = {"count": more.pop("count", 0)}
    ways = tuple(Way(f"{one}, {n} {'P' if one in ('gmploop', 'go') else 'thread'}{'s' * (n > 1)}", one, PROGRAMS[one],
                     {"row": more.get("kind", name), "of": one, "threads": n} | settings,
                     one if one in (*RUNTIMES, "uvloop") else "")
                 for one in who for n in (threads if isinstance(threads, tuple) else threads[one]))
    ways += more.pop("also", ())
    return Row(f"sched-{name}", "sched", PROGRAM, what, unit=unit, ways=ways, **more)


def _sched_rows():
    pythons = ("gmploop", *LOOPS, "tonio")
    alone = dict.fromkeys(EVERY, (1, 2)) | dict.fromkeys(LOOPS, (1,))

    def bare(row, *counts):
        return tuple(Way(f"no loop, {n} process{'es' * (n > 1)}", "", "bare.py", {"row": row, "of": "", "threads": n})
                     for n in counts)

    yield _sched("cpu", "ms", "200 worlds (tasks) that compute, 40 turns each, as a whole; without a loop, by processes that "
                 "share nothing: what the machine gives", pythons, also=bare("cpu", 1, 2))
    yield _sched("tasks", "ms", "200 worlds (tasks) whose work is tasks, an asyncio.Queue and a Lock, as a whole", pythons)
    yield _sched("scaling-cpu", "of one's time", "sched-cpu's work by two and by one in turn, in one process, 100 worlds: what "
                 "two take of the time that one takes, the median of pairs", ("gmploop", *LOOPS), (2,),
                 also=bare("scaling-cpu", 2))
    yield _sched("scaling-tasks", "of one's time", "sched-tasks' work likewise", ("gmploop", *LOOPS), (2,))
    yield _sched("spawn", "ns/op", "go() or create_task(), and await, of an empty coroutine, 100 at a time; op: one of them, "
                 "all threads together")
    yield _sched("spawn-one", "ns/op", "the same, one after the other")
    yield _sched("hop", "ns/op", "from one goroutine to another by a Channel, placed as the scheduler does; tasks of one loop "
                 "by asyncio.Queue", threads=alone)
    yield _sched("hop-threads", "ns/op", "the same, each locked to a thread of its own; from loop to loop by "
                 "call_soon_threadsafe()", ("gmploop", *LOOPS, "go"), (2,))
    for count, name in (10_000, "10k"), (1_000_000, "1m"):
        yield _sched(f"parked-{name}", "bytes", f"resident memory for each of {count:,} that wait at an Event", EVERY, (1,),
                     kind="parked", count=count, quick=count < 1e6)
    yield _sched("blocker-sleep", "p99 ms", "how late a sleep of 1 ms ends beside one that blocks 200 ms at a time by "
                 "time.sleep(); on two threads in a loop of its own", pythons, least_seconds=3)
    yield _sched("blocker-compute", "p99 ms", "the same, and it computes", least_seconds=3)
    yield _sched("idle", "/s", "context switches with 1,000 parked that nobody wakes", pythons, alone, least_seconds=2)
    yield _sched("latency", "p99 µs", "from runnable to running at half load: 20 goroutines compute 50 µs and sleep 2 ms; "
                 "published for a tuned Go: p50 5.1, p99 22", ("gmploop",), least_seconds=3)
    yield _sched("retake", "ms", "how late sysmon takes the P from a callback that blocks (after its 10 ms), until another "
                 "goroutine has run", ("gmploop",), (1,))
    for step, published in ("ring", "28 ns"), ("queue", "112 ns"), ("poll", "320 ns"), ("steal", "1.7 µs"):
        yield Row(f"sched-step-{step}", "sched", PROGRAM, f"what it costs to look for work there, alone; published for Go: "
                  f"{published}", unit="ns", ways=(Way("gmploop, in C", "", "sched_steps", {"row": step}),))


def _hop_rows():
    def ways(row, loops, means):
        return tuple(Way(f"{loop + ', ' if loop else ''}{by}", loop, "hops.py", {"row": row, "of": loop, "means": by},
                         "uvloop" if loop == "uvloop" else "") for by in means for loop in loops)
    everywhere = ("gmploop", *LOOPS)
    for name, where, loops, means in (
            ("one-loop", "both in one loop", everywhere, ("Channel", "asyncio.Queue")),
            ("two-loops", "in two loops on two threads", everywhere, ("Channel",)),
            ("two-threads", "in two plain threads", ("",), ("Channel, blocking", "queue.Queue", "queue.SimpleQueue"))):
        yield Row(f"hops-{name}", "hops", PROGRAM, f"a number sent to and fro, {where}: CPU time for a round trip",
                  unit="CPU µs", ways=ways(name, loops, means))


def _isolated(name, what, kind="streams", work="none", loops=(), **more):
    ours = [("gmploop", False, 1), ("gmploop, isolated, 1 P", True, 1), ("gmploop, isolated, 2 Ps", True, 2)]
    ways = [Way(title, "gmploop", "isolated.py", {"of": "gmploop", "isolate": isolate, "kind": kind, "work": work,
                                                  "threads": procs}) for title, isolate, procs in ours]
    ways += [Way(loop, loop, "isolated.py", {"of": loop, "isolate": False, "kind": kind, "work": work, "threads": 1},
                 "uvloop" if loop == "uvloop" else "") for loop in loops]
    return Row(f"isolated-{name}", "isolated", SERVER, what, ways=tuple(ways), **{"size": 64, **more})


def _isolated_rows():
    for kind, title in ("streams", "start_server"), ("protocol", "asyncio.Protocol"):
        yield _isolated(f"accept-{kind}", f"connect, 64 bytes there and back, close; {title}, a world for each connection "
                        "or none", kind, mode="connect", unit="CPU µs/connection")
        yield _isolated(f"echo-{kind}", f"1 KB over 50 connections; {title}, a world for each connection or none", kind,
                        size=1024)
    yield _isolated("compute", "the same, and each request computes for a millisecond", work="compute", loops=LOOPS,
                    shows="wall_us", unit="µs/request", size=1024)
    for work, does in ("sleep", "blocks by time.sleep()"), ("compute", "computes"):
        yield _isolated(f"blocker-{work}", f"400 requests a second over 100 connections, while the handler of one more {does} "
                        "200 ms at a time", work=f"blocker-{work}", loops=LOOPS, connections=100, rate=400, shows="p99_us",
                        unit="p99 µs", disturbed=True, least_seconds=3)


def _file_rows():
    for row in files.all_rows():
        does = "reads" if row.reads else "writes"
        what = (f"whole files of 4 KB, {does}" if row.small else f"{does} of {row.size >> 10} KB at random places"
                f"{', O_DIRECT' * row.direct}") + f", {row.depth} at a time"
        ways = tuple(Way(way.name, "", "file_ways.py", {"row": row.name, "way": way.name}) for way in row.ways())
        yield Row(f"files-{row.name}", "files", PROGRAM, what, unit="CPU µs/op", ways=ways, direct=row.direct,
                  quick=row.name in ("read-4k-depth1", "write-4k-depth32"))


def all_rows():
    return [*_sched_rows(), *_hop_rows(), *_isolated_rows(), *_file_rows()]


def prepare_files(folder):
    """Make what the files rows read and write; return the settings for it."""
    return {"path": files.prepare(folder, FILE_SIZE), "folder": folder, "file_size": FILE_SIZE}


@functools.cache
def direct_missing():
    """Why the files rows with O_DIRECT cannot be measured here, or None."""
    with tempfile.NamedTemporaryFile() as file:
        file.write(bytes(1 << 14))
        file.flush()
        if not files.takes_direct(file.name):
            return f"the filesystem of {tempfile.gettempdir()} does not take O_DIRECT"
    return None
