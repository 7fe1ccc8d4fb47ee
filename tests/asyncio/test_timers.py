"""Timers: never early, never lost, whatever the delay."""

import asyncio
import math
import resource
import sys
import time

import pytest

from support import outcome, turns

pytestmark = pytest.mark.timeout(30)


@pytest.fixture
def earliness(loop_kind):
    """How much before its deadline a timer may fire: stock allows itself a tick of the clock, gmploop nothing."""
    return time.get_clock_info("monotonic").resolution if loop_kind == "asyncio" else 0.0


# -- deadlines that are past when the loop looks

@pytest.mark.parametrize("delay", [-1e300, -1.0, -1e-9, 0, 1e-9, 0.001, 0.01, 0.05])
def test_a_timer_that_came_due_during_a_callback_fires_next(loop, delay):
    """No input or output wakes the loop: only the deadline, which is past when the loop comes to look."""
    fired = []
    loop.call_later(delay, lambda: (fired.append(loop.time()), loop.stop()))
    loop.call_soon(time.sleep, 0.06)
    start = loop.time()
    loop.run_forever()
    assert 0 <= fired[0] - start < 0.5


@pytest.mark.parametrize("when", [lambda now: 0, lambda now: -1e300, lambda now: now - 1, lambda now: now])
def test_a_deadline_in_the_past_is_due_at_once(loop, when):
    fired = []
    start = loop.time()
    loop.call_at(when(start), lambda: (fired.append(loop.time()), loop.stop()))
    loop.run_forever()
    assert fired[0] - start < 0.5


def test_timers_made_and_cancelled_in_every_order_fire_exactly_once_in_order(loop):
    """Delays of all magnitudes, some past, some equal; some cancelled by other timers, some by callbacks."""
    fired, expected = [], []
    now = loop.time()
    for number in range(300):
        when = now + (number * 7919 % 300 - 50) / 5000
        handle = loop.call_at(when, fired.append, (when, number))
        if number % 7 == 0:
            handle.cancel()
        elif number % 11 == 0:
            loop.call_soon(handle.cancel)
        else:
            expected.append((when, number))
    loop.call_at(now + 0.06, loop.stop)
    loop.run_forever()
    assert sorted(fired) == sorted(expected)
    assert [when for when, _ in fired] == sorted(when for when, _ in fired)


def test_a_timer_and_a_later_shorter_one_fire_in_order_of_deadline(loop):
    fired = []
    loop.call_later(0.03, fired.append, "long")
    loop.call_later(0.01, fired.append, "short")
    loop.call_later(0.04, loop.stop)
    loop.call_soon(fired.append, "now")
    loop.run_forever()
    assert fired == ["now", "short", "long"]


def test_a_shorter_timer_from_another_thread_cuts_a_long_wait_short(loop):
    timer = loop.call_later(60, loop.stop)
    start = time.monotonic()
    loop.call_soon(loop.run_in_executor, None,
                   lambda: loop.call_soon_threadsafe(loop.call_later, 0.01, loop.stop))
    loop.run_forever()
    assert time.monotonic() - start < 5
    timer.cancel()


def test_an_idle_loop_with_a_timer_uses_no_cpu(run):
    async def main():
        before = time.process_time()
        await asyncio.sleep(0.3)
        assert time.process_time() - before < 0.1
    run(main())


# -- never early

@pytest.mark.parametrize("step", [0.0013, 0.00027, 0.0000419, 1e-7])
def test_chained_timers_are_never_early(loop, earliness, step):
    early = []
    left = 300 if step > 0.001 else 600

    def fire(deadline):
        nonlocal left
        now = loop.time()
        if now < deadline - earliness:
            early.append(deadline - now)
        left -= 1
        if left:
            loop.call_at(now + step, fire, now + step)
        else:
            loop.stop()
    loop.call_soon(fire, 0)
    loop.run_forever()
    assert not early


SLEEPERS = {
    "sleep": lambda delay: asyncio.sleep(delay),
    "wait_for": lambda delay: outcome(asyncio.wait_for(asyncio.sleep(60), delay)),
    "wait": lambda delay: asyncio.wait([asyncio.get_running_loop().create_future()], timeout=delay),
    "timeout": lambda delay: in_timeout(asyncio.timeout(delay)),
    "timeout_at": lambda delay: in_timeout(asyncio.timeout_at(asyncio.get_running_loop().time() + delay)),
    "call_later": lambda delay: fires(lambda loop, event: loop.call_later(delay, event.set)),
    "call_at": lambda delay: fires(lambda loop, event: loop.call_at(loop.time() + delay, event.set)),
}


async def in_timeout(timeout):
    try:
        async with timeout:
            await asyncio.sleep(60)
    except TimeoutError:
        pass


async def fires(schedule):
    event = asyncio.Event()
    handle = schedule(asyncio.get_running_loop(), event)
    try:
        await event.wait()
    finally:
        handle.cancel()


@pytest.mark.parametrize("way", SLEEPERS)
def test_no_way_of_waiting_ends_early(run, loop, earliness, way):
    async def main():
        for number in range(100):
            delay = 0.0001 + number * 0.0000131
            start = loop.time()
            await SLEEPERS[way](delay)
            assert loop.time() >= start + delay - earliness
    run(main())


@pytest.mark.skipif(not hasattr(resource, "RUSAGE_THREAD"), reason="no such count here")
@pytest.mark.gmploop_only           # stock wakes up once in a millisecond and lets them be late
def test_a_crowd_of_timers_does_not_wake_the_loop_for_each(loop):
    """A thousand within 20 ms: some hundred wake-ups, and so none is late by much, and none early."""
    late = []

    def fired(deadline):
        late.append(loop.time() - deadline)
        if len(late) == 1000:
            loop.stop()

    start = loop.time() + 0.005
    for i in range(1000):
        loop.call_at(start + i * 20e-6, fired, start + i * 20e-6)
    before = resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
    loop.run_forever()
    assert resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw - before < 140
    assert min(late) >= 0 and sorted(late)[500] < 0.05


def test_timers_are_not_late_when_the_loop_is_free(run, loop):
    async def main():
        late = []
        for _ in range(50):
            start = loop.time()
            await asyncio.sleep(0.002)
            late.append(loop.time() - start - 0.002)
        assert sorted(late)[25] < 0.25         # not by the clock's ticks, nor until something else happens
    run(main())


# -- delays without an end

ENDLESS = [math.inf, 1e300, float(2 ** 55), 2 ** 55, sys.maxsize, 1e18, 2 ** 63 / 1e9, 2 ** 64 / 1e9, 2 ** 31, 2 ** 32]


@pytest.mark.parametrize("delay", ENDLESS)
@pytest.mark.parametrize("way", SLEEPERS)
def test_an_endless_delay_does_not_end(run, way, delay):
    async def main():
        waiting = asyncio.ensure_future(SLEEPERS[way](delay))
        await asyncio.sleep(0.01)
        assert not waiting.done()
        waiting.cancel()
        done, _ = await asyncio.wait([waiting], timeout=5)
        assert done == {waiting} and waiting.cancelled()
        await asyncio.sleep(0.001)
    run(main())


@pytest.mark.parametrize("delay", ENDLESS)
def test_an_endless_timer_neither_fires_nor_disturbs_the_others(loop, delay):
    fired = []
    endless = loop.call_later(delay, fired.append, "never")
    also = loop.call_at(delay, fired.append, "never") if delay > 1e12 else endless
    loop.call_later(0.002, fired.append, 1)
    loop.call_later(0.004, fired.append, 2)
    loop.call_later(0.006, loop.stop)
    loop.run_forever()
    assert fired == [1, 2]
    for handle in endless, also:
        handle.cancel()
        assert handle.cancelled()


def test_nothing_but_endless_timers_lets_the_loop_idle(loop):
    for delay in ENDLESS:
        loop.call_later(delay, loop.stop)
    before = time.process_time()
    loop.run_in_executor(None, lambda: (time.sleep(0.2), loop.call_soon_threadsafe(loop.stop)))
    loop.run_forever()
    assert time.process_time() - before < 0.1


@pytest.mark.parametrize("delay", [math.nan, -math.inf, -1e300, -sys.maxsize, -0.0, True], ids=str)
@pytest.mark.parametrize("way", SLEEPERS)
def test_a_delay_that_makes_no_sense_is_taken_as_stock_takes_it(same_as_stock, way, delay):
    async def scenario(loop):
        waiting = asyncio.ensure_future(outcome(SLEEPERS[way](delay)))
        done, _ = await asyncio.wait([waiting], timeout=0.02)
        if not done:
            waiting.cancel()
            await asyncio.wait([waiting])
            return "waits"
        result = waiting.result()
        await asyncio.sleep(0.001)
        return result if isinstance(result, type) else "ends"
    same_as_stock(scenario)


# -- handles

def test_a_handle_tells_its_deadline_and_is_ordered_by_it(loop):
    early, late = loop.call_at(1e9, int), loop.call_later(1e9, int)
    assert early.when() == 1e9
    assert late.when() == pytest.approx(loop.time() + 1e9, abs=5)
    assert early < late and late > early and early <= early and late >= late and early != late
    assert early == early and hash(early) == hash(early)
    assert not early.cancelled()
    early.cancel()
    early.cancel()
    assert early.cancelled()
    late.cancel()


def test_a_cancelled_timer_does_not_fire_even_when_due(loop):
    fired = []
    handles = [loop.call_later(0, fired.append, number) for number in range(3)]

    def cancel_the_rest():
        for handle in handles[1:]:
            handle.cancel()
    loop.call_soon(cancel_the_rest)
    loop.call_later(0.005, loop.stop)
    loop.run_forever()
    assert fired == [0]


def test_cancelling_during_the_turn_in_which_both_are_due(loop):
    fired = []
    when = loop.time() + 0.002
    handles = []
    handles.append(loop.call_at(when, lambda: (fired.append(0), handles[1].cancel())))
    handles.append(loop.call_at(when, fired.append, 1))
    handles.append(loop.call_at(when, fired.append, 2))
    loop.call_at(when + 0.005, loop.stop)
    loop.call_soon(time.sleep, 0.003)
    loop.run_forever()
    assert fired == [0, 2]


def test_a_timer_that_fails_is_reported_and_the_others_fire(loop, errors):
    fired = []
    loop.call_later(0.001, lambda: 1 / 0)
    loop.call_later(0.001, fired.append, 1)
    loop.call_later(0.003, loop.stop)
    loop.run_forever()
    assert fired == [1]
    context = errors.pop()
    assert isinstance(context["exception"], ZeroDivisionError)
    assert isinstance(context["handle"], asyncio.TimerHandle)


def test_zero_delays_do_not_starve_the_loop(run):
    """A timer that makes another one due at once gives way to callbacks and input in between."""
    async def main():
        loop = asyncio.get_running_loop()
        count = 0

        def again():
            nonlocal count, handle
            count += 1
            handle = loop.call_later(0, again)
        handle = loop.call_soon(again)
        await asyncio.sleep(0.01)
        await turns(3)
        await loop.run_in_executor(None, int)
        handle.cancel()
        assert count > 3
    run(main())


def test_a_deadline_given_as_a_whole_number_stays_one(loop):
    """Programs look at it: aiohttp rounds its time-outs up."""
    deadline = int(loop.time()) + 1000
    handle = loop.call_at(deadline, print)
    assert (handle.when(), type(handle.when())) == (deadline, int)
    assert f"when={deadline}" in repr(handle)
    assert type(loop.call_at(float(deadline), print).when()) is float
