"""Every option: its default, what it takes, and where the default comes from.

An option given in code wins over the environment, which wins over the default.

| option | takes | default | environment | why this default |
|---|---|---|---|---|
| poller | "auto", "io_uring", "epoll", "kqueue" | "auto" | GMPLOOP_POLLER | "auto" is epoll on Linux: see resolve_poller() |
| write_batching | None, True, False | BATCH_BY_DEFAULT | GMPLOOP_WRITE_BATCHING="0" or "1" | see resolve_write_batching() |
| malloc | | tuned | GMPLOOP_MALLOC="tuned" or "system" | see tunes_malloc() |
| files | | "auto" | GMPLOOP_FS="auto", "io_uring" or "executor" | read when a loop first uses gmploop.fs |
| tasks | | "auto" | GMPLOOP_TASKS="own", "asyncio" or "auto" | see makes_own_tasks() |
| debug | None, True, False | None | GMPLOOP_DEBUG="asyncio=1" | None is asyncio's rule: PYTHONASYNCIODEBUG and -X dev |
| procs | 1 to 256 | usable CPUs without the GIL, else 1 | GMPLOOP_PROCS | see resolve_procs() |
| preempt | "handoff", "observe" | "handoff" | GMPLOOP_DEBUG="preempt=observe" | see sysmon_duties() |
| stall_ms | 0 (off) to 3600000 | 100 | GMPLOOP_DEBUG="stall_ms=100" | asyncio's slow_callback_duration |
| retake_ms | 0 (off) to 3600000 | 10 | GMPLOOP_DEBUG="retake_ms=10" | Go's: a callback may keep its P so long |
| latepoll_ms | 0 (off) to 3600000 | 10 | GMPLOOP_DEBUG="latepoll_ms=10" | Go's: nobody has looked for events so long |
| queue_ms | 0 (off) to 3600000 | 1 | GMPLOOP_DEBUG="queue_ms=1" | measured: a queue or a timer waits so long |
| nap_ms | 1 to 3600000 | 1 or 2, more under a small CPU quota | GMPLOOP_DEBUG="nap_ms=1" | see sysmon_duties() |
| schedtrace | ms, 0 (off) to 3600000 | 0 | GMPLOOP_DEBUG="schedtrace=1000" | Go's |
| replicas | from 1 on | `serve`: as procs | | see gmploop/replicas.py |
| scheddetail | 0, 1 | 0 | GMPLOOP_DEBUG="schedtrace=1000,scheddetail=1" | Go's |
| sigquit | 0, 1 | 0 | GMPLOOP_DEBUG="sigquit=1" | run() then has SIGQUIT print dump(); off, it ends the process as ever |
| events | 0, 1 | 0 | GMPLOOP_DEBUG="events=1" | gmploop.record_events() |
| batch_wait_us | us, 0 to 1000000 | 1000 | GMPLOOP_DEBUG="batch_wait_us=1000" | see "batched writes" below |
| batch_min_ready | 0 to 1000 | 4 | GMPLOOP_DEBUG="batch_min_ready=4" | the same |
| uring_entries | 1 to 4096 | 256 | GMPLOOP_DEBUG="uring_entries=256" | see "io_uring" below |
| uring_cq | 2 to 65536 | 4096 | GMPLOOP_DEBUG="uring_cq=4096" | the same |
| uring_buffers | a power of two to 32768 | 128 | GMPLOOP_DEBUG="uring_buffers=128" | the same |
"""

import logging
import math
import os
import select
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any

POLLERS = ("auto", "io_uring", "epoll", "kqueue")
_SWITCH = {"0": False, "1": True}
_MS = range(0, 3_600_001)
DEBUG_KEYS = {  # key of GMPLOOP_DEBUG -> what each of its values means, or the numbers that it takes
    "asyncio": _SWITCH,
    "preempt": {"handoff": "handoff", "observe": "observe"},
    "stall_ms": _MS,
    "retake_ms": _MS,
    "latepoll_ms": _MS,
    "queue_ms": _MS,
    "nap_ms": _MS[1:],
    "schedtrace": _MS,
    "scheddetail": _SWITCH,
    "sigquit": _SWITCH,
    "events": _SWITCH,
    "batch_wait_us": range(0, 1_000_001),
    "batch_min_ready": range(0, 1001),
    "uring_entries": range(1, 4097),
    "uring_cq": range(2, 65_537),
    "uring_buffers": tuple(1 << n for n in range(16)),
}


def _one_of(values: Iterable[str]) -> str:
    return " or ".join(map(repr, values))


def resolve_poller(value: str | None = "auto") -> str:
    """The poller to open for the option `poller`: never "auto".

    "auto" is what measured fastest on Linux 6.18 ("Pollers and batched writes" in benchmarks/README.md), server CPU us a
    request, 1 KB, with 1, 50, 1,000 connections:

        a loop that stays in its thread   epoll at once       epoll, batched      io_uring, batched
        Protocol                          24.0, 5.86, 6.52    20.4, 5.23, 5.65    21.1, 5.19, 5.57
        streams                           33.0, 7.81, 9.18    26.2, 7.23, 8.31    35.5, 7.38, 8.69

    So it is epoll on every kernel: with the turn's sends by io_uring from Linux 5.17 on (CQE_SKIP_SUCCESS), where nothing
    forbids that, and without before. The io_uring poller, from 6.1 on, is level with few sends a turn's worth to gather
    and behind with one connection. Goroutines move: the ring's fastest mode (DEFER_TASKRUN) is tied to one thread, and
    one that is not was 0 to 5 % dearer (streams) or cheaper than epoll with batches; they share one epoll, with batches.
    Elsewhere there is kqueue only. say_what_runs() tells which it is.

    Raises ValueError or TypeError for a value that is not in POLLERS, given here or in GMPLOOP_POLLER.
    """
    name = "poller"
    if value is None or value == "auto":
        name, value = "GMPLOOP_POLLER", os.environ.get("GMPLOOP_POLLER") or "auto"
    if not isinstance(value, str):
        raise TypeError(f"{name} takes {_one_of(POLLERS)}, not {value!r}")
    if value not in POLLERS:
        raise ValueError(f"{name} takes {_one_of(POLLERS)}, not {value!r}")
    if value == "auto":
        value = "epoll" if hasattr(select, "epoll") else "kqueue"
    return value


def say_what_runs(who: str, poller: str, batches: bool, why_no_ring: Callable[[], str]) -> None:
    """Log at INFO, once, on which poller `who` run and how their writes leave; if io_uring was refused, why.

    batches: whether the writes of a busy turn are to leave together. why_no_ring: "" where a ring can be had for that.
    """
    if not (logger := logging.getLogger("gmploop")).isEnabledFor(logging.INFO) or (who, poller, batches) in _said:
        return
    _said.add((who, poller, batches))
    refusal = why_no_ring() if batches else ""
    writes = "the small writes of a busy turn leave together" if batches and not refusal else "each write leaves at once"
    logger.info("gmploop: %s run on %s; %s%s", who, poller, writes, f", since {refusal}" if refusal else "")


_said: set[tuple[str, str, bool]] = set()


def resolve_debug(value: bool | None = None) -> bool | None:
    """Debug mode for the option `debug`; None leaves it to asyncio.

    Raises TypeError for something else than None and bool, ValueError for a bad GMPLOOP_DEBUG.
    """
    if value is None:
        return parse_debug(os.environ.get("GMPLOOP_DEBUG", "")).get("asyncio")
    if not isinstance(value, int):  # 0 and 1 pass, as they do in asyncio
        raise TypeError(f"debug takes None, True or False, not {value!r}")
    return bool(value)


def check_seconds(option: str, value: float | None) -> None:
    """Raise TypeError or ValueError unless it is None or a number >= 0."""
    if value is not None and (isinstance(value, bool) or not isinstance(value, (int, float))):
        raise TypeError(f"{option} takes seconds or None, not {value!r}")
    if value is not None and not value >= 0:
        raise ValueError(f"{option} takes seconds >= 0 or None, not {value!r}")


def dumps_on_sigquit() -> bool:
    """Whether gmploop.run() has SIGQUIT print gmploop.dump(). Raises ValueError for a bad GMPLOOP_DEBUG."""
    return parse_debug(os.environ.get("GMPLOOP_DEBUG", "")).get("sigquit", False)


def resolve_write_batching(value: bool | None = None) -> bool:
    """Whether the writes of a busy turn, up to 4 KB each, leave in one system call when the turn ends.

    It saves a loaded server of many small messages a tenth to a quarter of its CPU time. What a callback writes while
    others are ready leaves after those, or within about a millisecond if one of them blocks or computes. Where there is
    no io_uring each write leaves at once. A process that ends on the spot (os._exit(), a signal that kills) in the middle
    of a turn loses what that turn has written. Raises TypeError for something else than None and bool, ValueError for a
    bad GMPLOOP_WRITE_BATCHING.
    """
    if value is None:
        text = os.environ.get("GMPLOOP_WRITE_BATCHING") or str(int(BATCH_BY_DEFAULT))
        if text not in _SWITCH:
            raise ValueError(f"GMPLOOP_WRITE_BATCHING takes {_one_of(_SWITCH)}, not {text!r}")
        return _SWITCH[text]
    if not isinstance(value, int):
        raise TypeError(f"write_batching takes None, True or False, not {value!r}")
    return bool(value)


# -- batched writes

BATCH_BY_DEFAULT = True  # a tenth to a quarter less CPU for loaded servers, shorter tails: measured, benchmarks/README.md
BATCH_BYTES = 4096  # of one write; larger ones were slower if put off: measured
BATCH_TOTAL_BYTES = 16384  # of one connection's writes; guessed
BATCH_ENTRIES = 128  # sends that one system call carries; more take another; guessed
BATCH_MIN_READY = 4  # callbacks that must be ready beside the one that writes: with less to do nothing is gained; measured
BATCH_WAIT_US = 1000  # after so long a turn sends what waits, a fourth later another thread: what people do not notice
# Looks without any, BATCH_WAIT_US apart, after which the thread that sees to that sleeps: each costs 10 us.
BATCH_IDLE_LOOKS = 4
# Looks that found nothing late, after which they are farther apart: so nearly each turn was shorter; guessed.
BATCH_CALM_LOOKS = 64
BATCH_CALM_WAITS = 4  # so many BATCH_WAIT_US between looks then


def batch_tunables() -> dict[str, int]:
    """What core.batch takes, from the figures above and GMPLOOP_DEBUG."""
    debug = parse_debug(os.environ.get("GMPLOOP_DEBUG", ""))
    wait_ns = debug.get("batch_wait_us", BATCH_WAIT_US) * 1000
    return {"wait_ns": wait_ns, "calm_ns": BATCH_CALM_WAITS * wait_ns, "idle_looks": BATCH_IDLE_LOOKS,
            "calm_looks": BATCH_CALM_LOOKS,
            "entries": BATCH_ENTRIES, "min_ready": debug.get("batch_min_ready", BATCH_MIN_READY)}


# -- turns of a loop

# A wait that ended with TIMERS_MANY timers due is followed by none that ends sooner than this for a timer: a wake-up costs
# as much as ten callbacks, and they are late by no more than that (asyncio's by up to a millisecond).
TIMERS_APART_US = 200  # guessed; the kernel's own slack is 50 us
TIMERS_MANY = 4  # guessed
# Callbacks after which a long turn sends what waits, a power of 2: two thirds of a millisecond of small requests. sysmon,
# too, sees by it that the turn goes on. And those, less, after which it looks how long it has lasted, to send what has
# waited three quarters of a millisecond; of callbacks so long that more have passed by then, a thread asks (core/flusher.h).
SENDS_EVERY = 64  # guessed
LOOK_EVERY = 8  # a look takes 10 ns


def turn_tunables() -> dict[str, float]:
    """What core.runtime takes, from the figures above."""
    return {"apart_s": TIMERS_APART_US * 1e-6, "many": TIMERS_MANY, "sends_every": SENDS_EVERY, "look_every": LOOK_EVERY}


# -- io_uring

URING_ENTRIES = 256  # operations of a loop's turn that one system call carries; guessed: a turn has 20 to 100
URING_CQ_ENTRIES = 4096  # completions; what comes beyond is fetched by a further call; guessed
URING_BUFFERS = 128  # receives that one call brings at most: a recent kernel brings 20, an older one any number; measured
URING_BUFFER_BYTES = 65536  # of one; 4 KB ones made 100 KB messages 5.5 times as dear; pages not used cost nothing
ACCEPTS_END_S = 0.1  # closing a server waits so long for the loop of another thread to let go of its port; guessed


# -- files

FILES_ENTRIES = 128  # operations that one system call carries; guessed
FILES_CQ_ENTRIES = 1024  # completions; what comes beyond is fetched by a further call; guessed
FILES_CREDIT = 64  # cached operations that may end without a turn of the loop: about 50 us of 4 KB reads; measured
FILES_CREDIT_BYTES = 16384  # so many bytes cost one more of it; measured
FILES_CREDIT_WHOLE = 8  # what a whole small file costs of it; measured
FILES_DRAIN_MS = 5000  # how long close() waits for what the kernel still does; guessed
FILES_CHUNK_BYTES = 65536  # what readline() reads ahead, and read() where it cannot know the size: one copy in the loop


def files_tunables() -> dict[str, int]:
    """What core.uring_files takes, from the figures above."""
    return {"entries": FILES_ENTRIES, "cq_entries": FILES_CQ_ENTRIES, "credit": FILES_CREDIT,
            "credit_bytes": FILES_CREDIT_BYTES, "file_credit": FILES_CREDIT_WHOLE, "drain_ms": FILES_DRAIN_MS}


def uring_sizes() -> dict[str, int]:
    """The sizes of a poller's rings, from the figures above and GMPLOOP_DEBUG. The kernel rounds up to powers of two."""
    debug = parse_debug(os.environ.get("GMPLOOP_DEBUG", ""))
    return {"entries": debug.get("uring_entries", URING_ENTRIES), "cq_entries": debug.get("uring_cq", URING_CQ_ENTRIES),
            "buffers": debug.get("uring_buffers", URING_BUFFERS), "buffer_size": URING_BUFFER_BYTES}


def parse_debug(text: str) -> dict[str, Any]:
    """GMPLOOP_DEBUG, "key=value,key=value", as a dict. Raises ValueError naming the part it cannot take."""
    settings = {}
    for part in filter(None, text.split(",")):
        key, _, value = part.partition("=")
        if key not in DEBUG_KEYS:
            raise ValueError(f"GMPLOOP_DEBUG takes the keys {_one_of(DEBUG_KEYS)}, not {key!r}")
        takes = DEBUG_KEYS[key]
        if not isinstance(takes, dict):
            if not value.isdecimal() or int(value) not in takes:
                powers = "powers of two, " if isinstance(takes, tuple) else ""
                raise ValueError(f"GMPLOOP_DEBUG: {key} takes {powers}{takes[0]} to {takes[-1]}, not {value!r}")
            settings[key] = int(value)
            continue
        if value not in takes:
            raise ValueError(f"GMPLOOP_DEBUG: {key} takes {_one_of(takes)}, not {value!r}")
        settings[key] = takes[value]
    return settings


TRIM_BYTES = 32 << 20  # freed memory that stays with the process: 100 messages of 100 KB three times over; guessed
MMAP_BYTES = 4 << 20  # blocks from here on are mapped and unmapped one by one; above the 1 MB messages measured
# Read at once for data_received(): the next read makes no copy; at 16 KB no gain, at 32 KB a fifth: measured.
BULK_BYTES = 32768


def tunes_malloc() -> bool:
    """Whether the first loop sets the two figures above by mallopt(), for the whole process.

    With glibc's own figures a server of 100 KB messages gives memory back and takes it again for each of them: by
    streams that costs a third of its CPU time. With these, large reads for data_received() make no copy either. Not done
    when GMPLOOP_MALLOC=system, or when the environment sets glibc's malloc itself. Raises ValueError for another value
    of GMPLOOP_MALLOC.
    """
    value = os.environ.get("GMPLOOP_MALLOC") or "tuned"
    if value not in ("tuned", "system"):
        raise ValueError(f"GMPLOOP_MALLOC takes 'tuned' or 'system', not {value!r}")
    set_outside = "malloc" in os.environ.get("GLIBC_TUNABLES", "") or any(name.startswith("MALLOC_") for name in os.environ)
    return value == "tuned" and not set_outside


def makes_own_tasks() -> bool:
    """Whether create_task() and create_future() of a new loop give gmploop's own types, or asyncio's.

    GMPLOOP_TASKS is "own", "asyncio" or "auto": own ones before Python 3.14. They are quicker: sleep(0) takes 0.6 of the
    time, a wake-up through a future 0.4, spawn and gather 0.6. From 3.14 on `python -m asyncio ps` looks into processes
    from outside and knows asyncio's own tasks only, so these stay the default there. Goroutines' worlds give gmploop's,
    whatever is said here. Raises ValueError for another value.
    """
    value = os.environ.get("GMPLOOP_TASKS") or "auto"
    if value not in ("own", "asyncio", "auto"):
        raise ValueError(f"GMPLOOP_TASKS takes 'own', 'asyncio' or 'auto', not {value!r}")
    return value == "own" or value == "auto" and sys.version_info < (3, 14)


# -- the scheduler of goroutines

MAX_PROCS = 256  # what the core has room for
SPIN_NS = 20_000  # how long a thread looks for work before it sleeps: about what waking one costs; measured
BACKLOG_NS = 5_000  # queued work from which on another thread is woken: waking one costs 4 to 14 us; measured
DYING_NS = 100_000  # the same of goroutines that are made, run once and end: they cost twice as much there; measured
SLICE_TURNS = 16  # goroutines that wake each other let others have a turn: 8 hops to and fro; guessed; Go's slice is 10 ms
REST_MS = 100  # a run that has nothing to do for so long is looked at: can it ever go on? guessed
SHUTDOWN_S = 10.0  # how long run() waits at its end for goroutines that it has cancelled; guessed

RETAKE_MS = 10  # a callback may keep its P so long; Go's
POLL_MS = 10  # nobody has looked for events so long; Go's
QUEUE_MS = 1  # a queue waits so long behind one callback before another thread is woken; measured
STALL_MS = 100  # a callback that runs so long is counted; told in debug mode, see README; asyncio's slow_callback_duration
NAP_MIN_NS = 20_000  # between two looks while something happens; Go's
NAP_QUOTA_MS = 50  # at most, under however small a quota: a tenth of a second is what people notice; guessed
WORLD_TLS_BYTES = 32 << 10  # what a goroutine's TLS connections read into: two records; each has such a buffer; guessed
# So long a callback of main()'s or another loop's goes on before debug mode tells; guessed: asyncio tells at its end.
TOLD_S = 1.0
LOOP_NAP_MS = 10  # between two looks at loops with a thread of their own: a stall is seen a tenth late at most; guessed
NAP_MAX_MS = 1  # between two looks while a P is busy: 10 ms (Go's) make the p99 beside a blocker 18 ms; measured
NAP_FULL_MS = 2  # while all are, and each CPU has one: a look interrupts one, and 1,000 a second took 3 % of both; measured


def scheduler_tunables() -> dict[str, int]:
    """What core.sched takes, from the figures above."""
    return {"spin_ns": SPIN_NS, "backlog_ns": BACKLOG_NS, "dying_ns": DYING_NS, "slice": SLICE_TURNS}


def gil_enabled() -> bool:
    """Whether this process runs with the GIL."""
    return getattr(sys, "_is_gil_enabled", lambda: True)()


def resolve_procs(value: int | None = None) -> int:
    """How many goroutines may run at once, for the option `procs`.

    None: GMPLOOP_PROCS, else the CPUs that this process may use if the GIL is off, and 1 if it is on. Raises TypeError
    or ValueError for something else than 1 to MAX_PROCS, given here or in GMPLOOP_PROCS.
    """
    name = "procs"
    if value is None:
        name, text = "GMPLOOP_PROCS", os.environ.get("GMPLOOP_PROCS", "")
        if not text:
            return 1 if gil_enabled() else min(usable_cpus(), MAX_PROCS)
        if not text.isdecimal():
            raise ValueError(f"{name} takes 1 to {MAX_PROCS}, not {text!r}")
        value = int(text)
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"{name} takes an int from 1 to {MAX_PROCS}, not {value!r}")
    if not 1 <= value <= MAX_PROCS:
        raise ValueError(f"{name} takes 1 to {MAX_PROCS}, not {value!r}")
    return value


def sysmon_duties() -> dict[str, Any]:
    """sysmon's duties, from the figures above and GMPLOOP_DEBUG: times in ns (0: switched off).

    Where a quota leaves less than one CPU, naps are longer, in inverse proportion to it: a look takes about 5 us, so that
    watching costs 0.5 % of what there is. Callbacks that block are then noticed so much later. Likewise, by default, while
    no P is idle and there are as many as CPUs: then a look takes time that a P has use for.
    """
    ms = 1_000_000
    debug = parse_debug(os.environ.get("GMPLOOP_DEBUG", ""))
    longer = max(1.0, 1 / usable_cpus_fraction())
    nap_ms = debug.get("nap_ms") or min(math.ceil(NAP_MAX_MS * longer), NAP_QUOTA_MS)
    nap_min_ns = NAP_MIN_NS if longer == 1 else nap_ms * ms
    nap_full_ms = max(nap_ms, debug.get("nap_ms") or NAP_FULL_MS)
    stall_ms = debug.get("stall_ms", STALL_MS)
    loop_nap_ms = max(min(LOOP_NAP_MS, stall_ms / 10), nap_ms)
    return {"retake_ns": debug.get("retake_ms", RETAKE_MS) * ms, "poll_ns": debug.get("latepoll_ms", POLL_MS) * ms,
            "queue_ns": debug.get("queue_ms", QUEUE_MS) * ms, "stall_ns": stall_ms * ms, "stall_given": "stall_ms" in debug,
            "nap_min_ns": nap_min_ns, "nap_max_ns": nap_ms * ms, "loop_nap_ns": int(loop_nap_ms * ms),
            "nap_full_ns": nap_full_ms * ms, "cpus": usable_cpus(),
            "trace_ns": debug.get("schedtrace", 0) * ms, "observe": debug.get("preempt") == "observe",
            "detail": debug.get("scheddetail", False), "one_computing": not gil_enabled()}


def usable_cpus(root: str = "/") -> int:
    """The CPUs that this process may use: its affinity, and the cgroup's quota rounded up; at least 1.

    root: where /proc and the cgroups are looked for.
    """
    return max(1, math.ceil(usable_cpus_fraction(root)))


def usable_cpus_fraction(root: str = "/") -> float:
    """The same, not rounded."""
    cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min([float(cpus), *_quotas(root)])


def _quotas(root: str) -> Iterator[float]:
    """What each cgroup that this process is in, parents included, allows: in CPUs."""
    mounts = list(_cgroup_mounts(root))
    for line in _lines(root, "proc/self/cgroup"):
        number, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        unified = number == "0" and not controllers
        if not unified and "cpu" not in controllers.split(","):
            continue
        for kind, mount_root, mount in mounts:
            if (kind == "cgroup2") != unified:
                continue
            inner = path.removeprefix(mount_root.rstrip("/")) if path.startswith(mount_root) else ""
            parts = [part for part in inner.split("/") if part]
            for depth in range(len(parts), -1, -1):
                group = os.path.join(mount.lstrip("/"), *parts[:depth])
                quota = _quota_v2(root, group) if unified else _quota_v1(root, group)
                if quota is not None:
                    yield quota


def _cgroup_mounts(root: str) -> Iterator[tuple[str, str, str]]:
    """(kind, root of what is mounted, where) of the mounts that may say something of CPUs."""
    for line in _lines(root, "proc/self/mountinfo"):
        left, _, right = line.partition(" - ")
        fields, kinds = left.split(" "), right.split(" ")
        if len(fields) > 4 and (kinds[0] == "cgroup2" or kinds[0] == "cgroup" and "cpu" in kinds[-1].split(",")):
            yield kinds[0], fields[3], fields[4]


def _quota_v2(root: str, group: str) -> float | None:
    words = " ".join(_lines(root, f"{group}/cpu.max")).split()
    return _ratio(words[0], words[1]) if len(words) == 2 else None


def _quota_v1(root: str, group: str) -> float | None:
    quota, period = (" ".join(_lines(root, f"{group}/cpu.cfs_{name}_us")) for name in ("quota", "period"))
    return _ratio(quota, period)


def _ratio(quota: str, period: str) -> float | None:
    """None without a limit: "max", -1, or what is no number."""
    if not quota.isdecimal() or not period.isdecimal() or not int(period) or not int(quota):
        return None
    return int(quota) / int(period)


def _lines(root: str, path: str) -> list[str]:
    try:
        with open(os.path.join(root, path)) as file:
            return file.read().splitlines()
    except (OSError, UnicodeDecodeError):
        return []


# -- replicas

MAIN_THREAD_ANSWERS_S = 5.0  # a replica's add_signal_handler() gives up when the main thread is stuck in C; guessed
ACCEPTOR_ANSWERS_S = 5.0  # opening and closing a server wait for the acceptor, which never blocks; guessed
REPLICAS_END_S = 10.0  # after a crash the other replicas get this long; a third of what supervisors give; guessed


def check_replicas(value: int) -> int:
    """The number of replicas, as given. Raises TypeError or ValueError for what is none."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"replicas takes a number from 1 on, not {value!r}")
    if value < 1:
        raise ValueError(f"replicas takes a number from 1 on, not {value!r}")
    return value
