"""A callback that blocks delays its own goroutine only; sysmon sees to that, and tells of it."""

import asyncio
import re
import textwrap
import threading
import time

import gmploop
import pytest
from gmploop import config, go

pytestmark = pytest.mark.timeout(60)


def rss_threads():
    return gmploop.stats()["threads"]


async def ticks(until, pause=0.001):
    """How late the latest of many short sleeps came."""
    worst = 0
    while not until.is_set():
        start = time.monotonic()
        await asyncio.sleep(pause)
        worst = max(worst, time.monotonic() - start - pause)
    return worst


async def beside(blocker, *args):
    """The blocker's goroutine and one that ticks."""
    over = threading.Event()
    ticking = go(ticks, over)
    await go(blocker, *args)
    over.set()
    return await ticking


@pytest.mark.parametrize("procs", [1, 2])
def test_others_go_on_beside_a_callback_that_blocks(run, procs):
    assert run(beside(time.sleep, 1.0), procs=procs) < 0.5


@pytest.mark.parametrize("procs", [1, 2])
def test_blocking_and_syscall_give_the_p_away_at_once(run, procs):
    def body():
        with gmploop.syscall():
            time.sleep(0.5)
        return gmploop.blocking(time.sleep, 0.5)
    before = gmploop.stats()["retakes"]
    assert run(beside(body), procs=procs) < 0.4
    assert gmploop.stats()["handoffs"] > before


def test_blocking_outside_of_goroutines_is_a_plain_call(run):
    async def main():
        return gmploop.blocking(pow, 2, 3)
    assert gmploop.blocking(pow, 2, 5) == 32 and run(main()) == 8
    with gmploop.syscall():
        pass


def test_an_await_within_syscall_does_no_harm(run):
    async def body():
        with gmploop.syscall():
            await asyncio.sleep(0.001)
        await asyncio.sleep(0.001)
        return "done"

    async def main():
        return await asyncio.gather(*[go(body) for _ in range(10)])
    assert run(main()) == ["done"] * 10


def test_a_goroutine_that_lost_its_p_goes_on_in_order(run):
    async def body():
        order = []
        loop = asyncio.get_running_loop()
        for i in range(5):
            loop.call_soon(order.append, i)
            loop.call_soon(time.sleep, 0.03)
        await asyncio.sleep(0.3)
        return order

    async def main():
        return await asyncio.gather(*[go(body) for _ in range(3)], go(asyncio.sleep, 0.2))
    assert run(main(), procs=1)[:3] == [[0, 1, 2, 3, 4]] * 3


def test_many_blockers_at_once_run_beside_each_other(run):
    async def main():
        start = time.monotonic()
        await asyncio.gather(*[go(gmploop.blocking, time.sleep, 0.5) for _ in range(8)])
        return time.monotonic() - start
    assert run(main(), procs=1) < 3


def test_a_locked_goroutine_stays_on_its_thread(run):
    async def body(i):
        gmploop.lock_os_thread()
        gmploop.lock_os_thread()
        threads = set()
        for _ in range(20):
            threads.add(threading.get_ident())
            await asyncio.sleep(0.0005)
        gmploop.unlock_os_thread()
        await asyncio.sleep(0)
        threads.add(threading.get_ident())
        gmploop.unlock_os_thread()
        with pytest.raises(RuntimeError):
            gmploop.unlock_os_thread()
        return threads

    async def main():
        locked = [go(body, i) for i in range(4)]
        await asyncio.gather(*[go(asyncio.sleep, 0.001) for _ in range(50)])
        return await asyncio.gather(*locked)
    found = run(main())
    assert all(len(threads) == 1 for threads in found)
    assert len(set.union(*found)) == 4


def test_a_locked_goroutine_that_ends_frees_its_thread(run):
    async def body():
        gmploop.lock_os_thread()
        await asyncio.sleep(0)

    async def main():
        for _ in range(20):
            await go(body)
        return await go(pow, 2, 2)
    assert run(main()) == 4
    assert gmploop.stats()["threads"] < 15


def test_set_procs_while_goroutines_run(run):
    async def body(i):
        for _ in range(50):
            await asyncio.sleep(0.0002)
        return i

    async def main():
        handles = [go(body, i) for i in range(60)]
        for n in 1, 4, 2, 8, 1, 3:
            gmploop.set_procs(n)
            assert gmploop.procs() == n
            await asyncio.sleep(0.003)
        return await asyncio.gather(*handles)
    assert run(main()) == list(range(60))


@pytest.mark.parametrize("bad, error", [(0, ValueError), (257, ValueError), ("2", TypeError), (1.0, TypeError),
                                        (True, TypeError)])
def test_bad_numbers_of_procs_are_refused(bad, error):
    with pytest.raises(error, match="procs takes"):
        gmploop.set_procs(bad)

    async def main():
        pass
    with pytest.raises(error, match="procs takes"):
        coro = main()
        try:
            gmploop.run(coro, procs=bad)
        finally:
            coro.close()


STALLS = """
import asyncio, logging, time
import gmploop
logging.basicConfig()

def culprit(seconds=0.4):
    time.sleep(seconds)

async def inner():
    culprit()

async def root():
    await asyncio.create_task(inner(), name="the sleeper")

def run(main, **options):
    gmploop.run(main, **options)
    print(gmploop.stats()["stalls"])
"""
TOLD = "A callback has run for"


def stalls(program, main, **env):
    done = program(STALLS + textwrap.dedent(main), **env)
    assert done.returncode == 0, done.stderr
    return int(done.stdout), done.stderr


@pytest.mark.parametrize("main, env", [
    ("run(main())", {"PYTHONASYNCIODEBUG": "1"}), ("run(main())", {"GMPLOOP_DEBUG": "asyncio=1"}),
    ("run(main(), debug=True)", {}), ("run(main(), debug=True, lock_main=False)", {})])
def test_a_stall_is_counted_and_told_with_its_task_and_the_stack_in_debug_mode(program, main, env):
    counted, told = stalls(program, f"""
        async def main():
            await gmploop.go(root, name="home")
        {main}
    """, **env)
    assert counted >= 1 and TOLD in told and "in culprit" in told       # on a busy machine others stall, too
    assert "in goroutine 'home', task 'the sleeper', inner:" in told


def test_a_stall_of_a_root_coroutine_is_told_with_its_name(program):
    counted, told = stalls(program, """
        async def body():
            await asyncio.sleep(0.001)
            culprit()

        async def main():
            await asyncio.gather(gmploop.go(body, name="a coroutine"), gmploop.go(culprit, name="a function"))
        run(main(), debug=True)
    """)
    assert counted >= 2 <= told.count(TOLD)
    assert re.search(r"in goroutine 'a coroutine'.*, body:", told)
    assert re.search(r"in goroutine 'a function'.*, culprit:", told)


@pytest.mark.parametrize("body", [
    "await gmploop.go(in_debug_mode)",
    "late = gmploop.go(root); asyncio.get_running_loop().set_debug(True); await late"])
def test_debug_mode_of_the_goroutine_s_loop_or_of_main_s_is_enough(program, body):
    counted, told = stalls(program, f"""
        async def in_debug_mode():
            asyncio.get_running_loop().set_debug(True)
            await root()

        async def main():
            {body}
        run(main())
    """)
    assert counted and TOLD in told


def test_without_debug_mode_stalls_are_counted_only(program):
    counted, told = stalls(program, """
        async def main():
            await gmploop.go(root)
        run(main())
    """)
    assert counted and told == ""


def seconds(program, main):
    """After how many the sleeper's stall was told, which it was once."""
    found = re.findall(TOLD + r" ([0-9.]+) .*'the sleeper'", stalls(program, main)[1])
    assert len(found) == 1
    return float(found[0])


def test_the_loop_s_slow_callback_duration_says_from_when_a_stall_is_told(program):
    main = """
        async def main():
            asyncio.get_running_loop().slow_callback_duration = %s
            await gmploop.go(root)
        run(main(), debug=True)
    """
    assert any(seconds(program, main % 0.02) < 0.1 for _ in range(5))       # unless the machine is busy
    assert seconds(program, main % 0.3) >= 0.3
    counted, told = stalls(program, main % 30)
    assert counted and TOLD not in told
    counted, told = stalls(program, main % 30, GMPLOOP_DEBUG="stall_ms=50")
    assert counted and TOLD in told


def test_stalls_at_once_are_all_told(program):
    counted, told = stalls(program, """
        async def main():
            await asyncio.gather(*[gmploop.go(culprit, 1, name=f"number {i}") for i in range(5)])
        run(main(), debug=True)
    """)
    assert counted >= 5
    assert all(f"'number {i}'" in told for i in range(5))


HOLDS = """
import asyncio, ctypes, time
import gmploop
hold = ctypes.PyDLL(None).usleep                # keeps the GIL

async def main():
    blocks, late = gmploop.go(hold, 600_000), gmploop.go(int)
    await asyncio.gather(blocks, late)
    stats = gmploop.stats()
    print(stats["stalls"] > 0, stats["retakes"] > 0)
gmploop.run(main(), procs=1)
"""


@pytest.mark.skipif(not config.gil_enabled(), reason="there is no GIL to hold")
@pytest.mark.parametrize("env", [{}, {"PYTHONASYNCIODEBUG": "1"}])
def test_sysmon_needs_no_gil_to_watch(program, env):
    """The stall comes before the P is taken: to tell of it must not keep sysmon from that."""
    done = program(HOLDS, GMPLOOP_DEBUG="stall_ms=50,retake_ms=200", **env)
    assert (done.returncode, done.stdout) == (0, "True True\n"), done.stderr


NOBODY_LOOKS = """
import asyncio, socket, sys, threading
import gmploop
near, far = socket.socketpair()
over = threading.Event()
patience = float(sys.argv[1])

def block():
    gmploop.set_procs(2)                        # an idle P, and no other thread yet that could look
    far.send(b"x")
    print(over.wait(patience))

async def reads():
    loop = asyncio.get_running_loop()
    loop.add_reader(near, over.set)
    blocks = gmploop.go(block)
    await blocks
    loop.remove_reader(near)

async def sleeps():
    asyncio.get_running_loop().call_later(0.05, over.set)       # block() has long begun
    await gmploop.go(block)

async def main():
    await gmploop.go(globals()[sys.argv[2]])
    print(gmploop.stats()["late_polls"] > 0)
gmploop.run(main(), procs=1)
"""


@pytest.mark.parametrize("body, duty, others", [
    ("reads", "latepoll_ms=10", "queue_ms=0"), ("sleeps", "queue_ms=1", "latepoll_ms=0")])
def test_what_nobody_looks_for_sysmon_has_looked_for(program, body, duty, others):
    """A descriptor that is ready, a timer that is overdue, behind a callback that blocks until they are served."""
    def ends(settings, patience):
        done = program(f"import sys; sys.argv[1:] = '{patience}', '{body}'\n" + NOBODY_LOOKS, GMPLOOP_DEBUG=settings)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()
    assert ends(f"retake_ms=0,{others},{duty}", 20) == ["True", str(body == "reads")]
    assert ends(f"retake_ms=0,{others},{duty.partition('=')[0]}=0", 0.3) == ["False", "False"]


def test_observe_takes_no_p_away(program):
    done = program("""
        import asyncio, threading, time
        import gmploop

        async def main():
            await asyncio.gather(gmploop.go(time.sleep, 0.1), gmploop.go(asyncio.sleep, 0.01))
            print(gmploop.stats()["retakes"])
        gmploop.run(main(), procs=1)
    """, GMPLOOP_DEBUG="preempt=observe")
    assert (done.returncode, done.stdout) == (0, "0\n"), done.stderr


BLOCKS = """
import asyncio, os, time
import gmploop
def switches():
    for task in os.listdir("/proc/self/task"):
        with open(f"/proc/self/task/{task}/comm") as comm:
            if comm.read() == "gmploop-sysmon\\n":
                with open(f"/proc/self/task/{task}/status") as status:
                    return next(int(line.split()[1]) for line in status if line.startswith("voluntary_ctxt"))
async def main():
    blocks, late = gmploop.go(time.sleep, 0.5), gmploop.go(time.monotonic)
    before = time.monotonic()
    waited = await late - before
    await blocks
    stats = gmploop.stats()
    print(waited >= 0.4, stats["retakes"], stats["stalls"], switches())
gmploop.run(main(), procs=1)
"""


def test_each_duty_can_be_switched_off(program):
    """One callback blocks 0.5 s: is the other goroutine late, how many Ps were retaken, how many stalls seen?"""
    def ends(debug):
        done = program(BLOCKS, GMPLOOP_DEBUG=debug)
        return done.stdout.split()[:3]
    assert ends("") == ["False", "1", "1"]
    assert ends("stall_ms=0") == ["False", "1", "0"]
    assert ends("retake_ms=0") == ["True", "0", "1"]
    assert ends("retake_ms=0,stall_ms=0,queue_ms=0,latepoll_ms=0") == ["True", "0", "0"]


def test_without_duties_there_is_no_sysmon_and_with_long_naps_it_looks_seldom(program):
    def looks(debug):
        return program(BLOCKS, GMPLOOP_DEBUG=debug).stdout.split()[3]
    assert looks("retake_ms=0,stall_ms=0,queue_ms=0,latepoll_ms=0") == "None"
    assert int(looks("retake_ms=0,nap_ms=200")) < int(looks("retake_ms=0")) / 2


def test_schedtrace_prints_go_s_lines(program):
    done = program("""
        import asyncio, time
        import gmploop

        async def locked():
            gmploop.lock_os_thread()
            print(id(asyncio.get_running_loop()))
            time.sleep(0.5)

        async def main():
            sleeper = gmploop.go(asyncio.sleep, 0.5)
            print(id(sleeper.get_loop()))
            await asyncio.gather(sleeper, gmploop.go(locked))
        gmploop.run(main(), procs=2)
    """, GMPLOOP_DEBUG="schedtrace=20,scheddetail=1")
    assert done.returncode == 0
    sleeps, runs = done.stdout.split()
    assert re.search(r"^SCHED \d+ms: gomaxprocs=2 idleprocs=\d+ threads=\d+ spinningthreads=\d+ needspinning=[01] "
                     r"idlethreads=\d+ runqueue=\d+ \[\d+ \d+\]$", done.stderr, re.MULTILINE)
    assert "  P0: status=" in done.stderr and "  M0: " in done.stderr
    assert re.search(rf"^  G0x[0-9a-f]+: status=idle m=-1 lockedm=-1 loop={sleeps}$", done.stderr, re.MULTILINE)
    running = re.search(rf"^  G(0x[0-9a-f]+): status=running m=(\d+) lockedm=\2 loop={runs}$", done.stderr, re.MULTILINE)
    assert re.search(rf"^  M{running[2]}: .* curg={running[1]} .* lockedg={running[1]}$", done.stderr, re.MULTILINE)


def test_schedtrace_says_how_many_goroutines_it_leaves_out(program):
    done = program("""
        import asyncio, time
        import gmploop

        async def blocks():         # sysmon sleeps while nobody runs
            time.sleep(0.5)

        async def main():
            await asyncio.gather(*[gmploop.go(asyncio.sleep, 0.5) for _ in range(1000)], gmploop.go(blocks))
        gmploop.run(main(), procs=2)
    """, GMPLOOP_DEBUG="schedtrace=20,scheddetail=1")
    assert done.returncode == 0
    block = next(block for block in done.stderr.split("SCHED ") if re.search(r"^  and 48\d more Gs$", block, re.MULTILINE))
    assert block.count("\n  G0x") == 512


def test_dump_shows_goroutines_and_threads(run):
    import io

    begun = gmploop.Event()

    async def waits_here():
        asyncio.get_running_loop().call_soon(begun.set)         # after its first turn
        await asyncio.sleep(1000)

    async def main():
        goroutine = go(waits_here, name="the sleeper")
        await begun.wait()
        out = io.StringIO()
        gmploop.dump(out)
        goroutine.cancel()
        return out.getvalue()
    text = run(main())
    assert "the sleeper" in text and "waits_here" in text and "gmploop-M" in text
