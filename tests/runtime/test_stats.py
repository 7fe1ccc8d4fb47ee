"""Each figure of stats() is true, and events() tells what became of whom."""

import asyncio
import collections
import io
import threading
import time

import gmploop
import pytest
import support
from gmploop import go

pytestmark = pytest.mark.timeout(60)

G_AFTER = {  # what may come before a state of a goroutine: all but the first were written down
    "G runnable": {None, "G idle", "G running", "G blocked"},
    "G running": {"G runnable", "G blocked"},
    "G idle": {"G running", "G blocked"},
    "G blocked": {"G running"},
    "G dead": {"G running"},
}
P_AFTER = {
    "P idle": {None, "P running", "P incall", "P dead"},
    "P running": {None, "P idle", "P incall"},
    "P incall": {None, "P running"},
    "P dead": {None, "P idle", "P running"},
}


def total(key):
    return sum(row[key] for row in gmploop.stats()["per_proc"])


async def turns(n):
    for _ in range(n):
        await asyncio.sleep(0)


@pytest.fixture
def recorded():
    gmploop.record_events()
    yield
    gmploop.record_events(False)


def test_runs_are_turns(run):
    async def main():
        before = gmploop.stats()["runs"]
        await asyncio.gather(*[go(turns, 100) for _ in range(10)])
        after = gmploop.stats()
        assert after["runs"] == sum(row["runs"] for row in after["per_proc"])
        return after["runs"] - before
    assert run(main()) >= 10 * 100


def test_queues_show_who_waits_and_empty(run):
    gate, held = threading.Event(), threading.Event()

    def hold():
        held.set()
        gate.wait(20)

    async def main():
        holders = [go(hold)]
        await asyncio.to_thread(held.wait, 20)
        waiting = [go(turns, 1) for _ in range(5)]
        counts = gmploop.stats()
        queued = counts["global_queue"] + sum(row["queue"] for row in counts["per_proc"])
        gate.set()
        await asyncio.gather(*holders, *waiting)
        counts = gmploop.stats()
        return queued, counts["global_queue"] + sum(row["queue"] for row in counts["per_proc"])
    try:
        assert run(main(), procs=1) in [(5, 0), (4, 0), (0, 0)]     # sysmon may have got them a thread meanwhile
    finally:
        gmploop.set_procs(2)


def test_steals_are_counted(run):
    """What one goroutine starts stands in the ring of its P, which is kept: only by stealing can another P run it."""
    async def busy():
        me = threading.get_ident()
        until = time.monotonic() + 20
        others = [go(threading.get_ident) for _ in range(50)]
        while not any(other.done() for other in others):
            assert time.monotonic() < until
        stolen = [other for other in others if other.done()]
        assert all(other.result() != me for other in stolen)
        await asyncio.gather(*others)

    async def main():
        before = counts()
        await go(busy)
        return [after - old for after, old in zip(counts(), before, strict=True)]

    def counts():
        return total("steals"), total("stolen"), gmploop.stats()["spins"], gmploop.stats()["retakes"]
    steals, stolen, spins, retakes = run(main())
    assert spins >= 1 and (stolen >= steals >= 1 or retakes)        # after 10 ms sysmon gives the P itself to another


def test_hand_offs_and_stalls_are_counted(run):
    async def main():
        before = gmploop.stats()
        await asyncio.gather(*[go(gmploop.blocking, time.sleep, 0.001) for _ in range(3)])
        middle = gmploop.stats()
        assert middle["handoffs"] - before["handoffs"] >= 3
        await asyncio.gather(go(time.sleep, 0.3), go(turns, 1))
        return gmploop.stats()["stalls"] - middle["stalls"]
    assert run(main()) >= 1


def test_parks_are_counted_and_an_idle_runtime_parks_nobody(run):
    async def main():
        before = gmploop.stats()["parks"]
        while gmploop.stats()["parks"] == before:       # each wake-up of all ends with all asleep
            await go(turns, 1)
            await asyncio.sleep(0.002)
        while gmploop.stats()["idle_procs"] < 2:
            await asyncio.sleep(0.002)
        await asyncio.sleep(0.01)
        return gmploop.stats()["parks"], await asyncio.sleep(0.1, gmploop.stats()["parks"]), gmploop.stats()["parks"]
    assert len(set(run(main()))) == 1


def test_the_latency_counts_one_wait_in_eight_and_knows_long_ones(run):
    async def wait_behind():
        """A goroutine that stood 5 ms behind a callback on the only P."""
        handles = [go(turns, 1) for _ in range(16)]
        time.sleep(0.005)
        await asyncio.gather(*handles)

    def counted(above=0):
        return sum(n for row in gmploop.stats()["per_proc"] for below, n in row["latency_ns"].items() if below > above)

    async def main():
        runs, few, long = gmploop.stats()["runs"], counted(), counted(4e6)
        await go(turns, 800)
        await asyncio.gather(*[go(turns, 0) for _ in range(800)])
        runs = gmploop.stats()["runs"] - runs
        few = counted() - few
        await go(wait_behind)
        return runs, few, counted(4e6) - long
    runs, few, long = run(main(), procs=1)
    assert 0.5 * 800 / 8 <= few <= runs / 8 + 20            # each thread counts to eight by itself
    assert long >= 1
    stats = gmploop.stats()
    assert 0 < stats["latency_p50_ns"] <= stats["latency_p99_ns"]


def test_the_latency_never_shrinks(run):
    def counted():
        return {(row["id"], below): n for row in gmploop.stats()["per_proc"] for below, n in row["latency_ns"].items()}

    async def main():
        before = counted()
        for _ in range(20):
            await asyncio.gather(*[go(turns, 0) for _ in range(400)])
            now = counted()
            assert all(now.get(bucket, 0) >= n for bucket, n in before.items())
            before = now
    run(main(), procs=1)


def test_dump_leaves_the_histogram_out():
    out = io.StringIO()
    gmploop.dump(out)
    assert "latency_p99_ns=" in out.getvalue() and "latency_ns=" not in out.getvalue()


def test_events_tell_each_goroutine_s_life_in_order(run, recorded):
    def blocks():
        with gmploop.syscall():
            time.sleep(0.001)

    async def body():
        await asyncio.sleep(0.001)
        await asyncio.sleep(0)
        blocks()

    async def main():
        start = time.monotonic_ns()
        handles = [go(body) for _ in range(10)]
        ids = {id(handle.get_loop()) for handle in handles}
        kept = [handle.get_loop() for handle in handles]    # their ids stay theirs
        await asyncio.gather(*handles)
        return start, ids, kept
    start, ids, _ = run(main())
    support.wait_until(lambda: len([g for _, kind, g, *_ in gmploop.events() if kind == "G dead" and g in ids]) == 10)
    events = [event for event in gmploop.events() if event[0] >= start]
    assert events == sorted(events, key=lambda event: event[0]) and events[-1][0] <= time.monotonic_ns()
    of_g, of_p, kinds = collections.defaultdict(list), collections.defaultdict(list), set()
    for _, kind, g, p, m in events:
        kinds.add(kind)
        if g in ids:
            of_g[g].append(kind)
        if kind[0] == "P":
            of_p[p].append(kind)
        if kind == "G running":
            assert m is not None            # without a P after blocking(), if none was idle
    assert set(of_g) == ids
    for life in of_g.values():
        assert life[0] == "G runnable" and life[-1] == "G dead" and "G blocked" in life and "G idle" in life
        for old, new in zip([None, *life], life, strict=False):
            assert old in G_AFTER[new], life
    for life in of_p.values():
        for old, new in zip([None, *life], life, strict=False):
            assert old in P_AFTER[new], life
    assert kinds & {"M parked", "M polling"}


def test_nothing_is_recorded_unless_asked_for(run):
    async def main():
        before = gmploop.events()
        await go(turns, 10)
        assert gmploop.events() == before
    run(main())


def test_events_from_the_environment(program):
    done = program("""
        import asyncio, gmploop
        async def main():
            await gmploop.go(asyncio.sleep, 0)
            print({kind for _, kind, *_ in gmploop.events()} >= {"G runnable", "G running", "P incall"})
        gmploop.run(main())
    """, GMPLOOP_DEBUG="events=1")
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr
