"""Who shares a P with a callback that blocks or never rests: timers, sockets and goroutines go on all the same."""

import asyncio
import contextlib
import socket
import threading
import time

import gmploop
import pytest
from gmploop import go

pytestmark = pytest.mark.timeout(60)
BLOCKED_S, BOUND_S = 0.7, 0.4        # a tenth of that were enough but for machines that are busy


async def first_step():
    pass


async def readable():
    loop, (near, far) = asyncio.get_running_loop(), socket.socketpair()
    with contextlib.closing(near), contextlib.closing(far):
        near.setblocking(False)
        loop.call_later(0.02, far.send, b"x")
        await loop.sock_recv(near, 1)


async def timer():
    await asyncio.sleep(0.02)


async def handed_over():
    items = gmploop.Channel()
    go(items.send, 1)
    await items.recv()


async def joined():
    await go(asyncio.sleep, 0.02)


async def latencies(until):
    """Of timers and of an echo through sockets: the worst."""
    loop, (near, far) = asyncio.get_running_loop(), socket.socketpair()
    worst = 0
    with contextlib.closing(near), contextlib.closing(far):
        for sock in near, far:
            sock.setblocking(False)
        while not until.is_set():
            began = time.monotonic()
            await asyncio.sleep(0.01)
            await loop.sock_sendall(far, b"x")
            await loop.sock_recv(near, 1)
            worst = max(worst, time.monotonic() - began - 0.01)
    return worst


@pytest.mark.parametrize("procs", [1, 2])
@pytest.mark.parametrize("begins", [first_step, readable, timer, handed_over, joined])
def test_timers_and_sockets_go_on_however_a_blocking_callback_began(run, procs, begins):
    """Also when the M that blocks is the one that polled for all."""
    over = threading.Event()

    async def block():
        await begins()
        time.sleep(BLOCKED_S)

    async def main():
        others = [go(latencies, over) for _ in range(3)]
        await go(block)
        over.set()
        return max(await asyncio.gather(*others))
    assert run(main(), procs=procs) < BOUND_S


@pytest.mark.parametrize("procs", [1, 2])
@pytest.mark.parametrize("how", ["spawned", "woken by a channel", "woken by an event"])
def test_the_next_one_runs_elsewhere_when_its_maker_blocks(run, procs, how):
    """It stands in the slot from which others steal last."""
    async def main():
        items, event, waits, ran = gmploop.Channel(), gmploop.Event(), threading.Event(), []

        async def other():
            if how != "spawned":
                waits.set()
                await (items.recv() if "channel" in how else event.wait())
            ran.append(time.monotonic())

        async def block():
            while not waits.is_set():
                await asyncio.sleep(0.001)
            await asyncio.sleep(0.01)
            began = time.monotonic()
            if how == "spawned":
                made.append(go(other))
            elif "channel" in how:
                await items.send(1)
            else:
                event.set()
            time.sleep(BLOCKED_S)
            return began
        made = [] if how == "spawned" else [go(other)]
        if how == "spawned":
            waits.set()
        began = await go(block)
        await asyncio.gather(*made)
        return ran[0] - began
    assert run(main(), procs=procs) < BOUND_S


@pytest.mark.parametrize("procs", [1, 2])
def test_two_that_wake_each_other_for_ever_do_not_starve_a_third(run, procs):
    async def main():
        there, back, rounds = gmploop.Channel(), gmploop.Channel(), 0

        async def ping():
            nonlocal rounds
            while True:
                await there.send(1)
                await back.recv()
                rounds += 1

        async def pong():
            async for _ in there:
                await back.send(1)

        async def third():
            for _ in range(200):
                await asyncio.sleep(0)
            return rounds
        playing = [go(ping), go(pong)]
        await asyncio.sleep(0.05)
        began = time.monotonic()
        assert await asyncio.gather(*[go(third) for _ in range(3)])
        took, before = time.monotonic() - began, rounds
        while rounds == before:
            await asyncio.sleep(0.001)
        for one in playing:
            one.cancel()
        await asyncio.gather(*playing, return_exceptions=True)
        return took
    assert run(main(), procs=procs) < 5


def test_timers_of_a_p_whose_callback_does_not_return_are_run_by_others(run):
    async def sleep(late):
        began = time.monotonic()
        await asyncio.sleep(0.05)
        late.append(time.monotonic() - began - 0.05)

    async def hold(late):
        sleepers = [go(sleep, late) for _ in range(100)]
        await asyncio.sleep(0.01)               # by now they have begun, on this P for the most part
        time.sleep(BLOCKED_S)
        await asyncio.gather(*sleepers)

    async def main():
        late = []
        await go(hold, late)
        return late
    late = run(main())
    assert len(late) == 100 and min(late) >= 0 and max(late) < BOUND_S


def test_an_idle_p_leaves_who_yields_where_it_is(run):
    """Waking another for what takes no time costs more than it: one that only yields runs on its own P."""
    async def yields():
        for _ in range(20_000):
            await asyncio.sleep(0)

    async def main():
        before = gmploop.stats()
        await go(yields)
        return gmploop.stats()["steals"] - before["steals"]
    assert run(main()) < 2_000
