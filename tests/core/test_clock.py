"""The clock: how long the poller waits, who fires first, clocks of one's own."""

import asyncio
import itertools
import math
import random
import sys
import threading
import time

import gmploop
import pytest

pytestmark = pytest.mark.timeout(60)


# -- how long it waits

@pytest.mark.parametrize("when", [-math.inf, -1e300, -1, 0, "a second ago", "a nanosecond ago", "now"])
def test_a_deadline_in_the_past_makes_the_loop_not_wait(loop, when):
    """Without anything else that could wake it."""
    ago = {"a second ago": 1, "a nanosecond ago": 1e-9, "now": 0}
    fired = []

    def fire():
        fired.append(loop.time())
        loop.stop()
    start = loop.time()
    loop.call_at(start - ago[when] if when in ago else when, fire)
    loop.run_forever()
    assert fired[0] - start < 0.5


@pytest.mark.parametrize("delay", [1e-9, 1e-7, 1e-6, 9.99e-6, 0.00005, 0.0004999, 0.0005, 0.00051, 0.001, 0.0010001,
                                   0.0019999, 0.0123456789])
def test_waits_are_rounded_up_and_never_early(delay):
    """Nothing else is there, so the wait alone decides. One that is too short makes a turn for nothing, which looks at
    the clock once more."""
    readings, late = [], []

    class Counting(gmploop.Loop):
        def time(self):
            readings.append(super().time())
            return readings[-1]

    def again(deadline, left):
        late.append(time.monotonic() - deadline)
        if left:
            deadline = time.monotonic() + delay
            loop.call_at(deadline, again, deadline, left - 1)
        else:
            loop.stop()
    loop = Counting()
    deadline = time.monotonic() + delay
    loop.call_at(deadline, again, deadline, 20)
    loop.run_forever()
    loop.close()
    assert min(late) >= 0
    assert sorted(late)[10] < 0.02
    assert len(readings) <= 21 * 2 + 2          # how long to wait, what is due


@pytest.mark.parametrize("delay", [None, math.inf, math.nan, 1e300, 1e18, sys.maxsize, 2**55, 2**70, 10**400, 86400.0,
                                   86401, 9.3e9, 9223372036.854775])
def test_no_deadline_or_a_far_one_waits_until_something_else_comes(loop, delay):
    fired = []
    handle = None if delay is None else loop.call_at(delay, fired.append, delay) \
        if isinstance(delay, int) and delay > 10**300 else loop.call_later(delay, fired.append, delay)
    start, cpu = loop.time(), time.thread_time()
    timer = threading.Timer(0.03, loop.call_soon_threadsafe, [loop.stop])
    timer.start()
    loop.run_forever()
    timer.join()
    assert loop.time() - start >= 0.03
    assert time.thread_time() - cpu < 0.02
    assert not fired
    if handle:
        handle.cancel()


def test_a_nearer_timer_shortens_the_wait_and_a_cancelled_one_lengthens_it(loop):
    fired = []
    far = loop.call_later(0.05, fired.append, "far")
    near = loop.call_later(0.01, fired.append, "near")
    near.cancel()
    loop.call_later(0.02, fired.append, "middle")
    loop.call_later(0.06, loop.stop)
    far.cancel()
    loop.run_forever()
    assert fired == ["middle"]


def test_a_timer_set_while_others_keep_the_loop_busy_fires(loop):
    """Turns that do not poll look at the timers all the same."""
    turns = []

    def spin():
        turns.append(loop.time())
        if len(turns) < 2_000_000:
            loop.call_soon(spin)
    start = loop.time()
    deadline = start + 0.02
    loop.call_soon(spin)
    loop.call_at(deadline, loop.stop)
    loop.run_forever()
    assert deadline <= loop.time() < deadline + 0.5
    assert len(turns) < 2_000_000


@pytest.mark.parametrize("due", [0, -1])
def test_a_timer_that_is_due_when_it_is_set_fires_before_the_loop_has_gone_round_often(loop, due):
    seen = []

    def spin(left):
        seen.append("turn")
        if left == 150:
            loop.call_later(due, seen.append, "timer")
        if left:
            loop.call_soon(spin, left - 1)
        else:
            loop.stop()
    loop.call_soon(spin, 300)
    loop.run_forever()
    assert seen.index("timer") <= 153


# -- order

def test_equal_deadlines_fire_in_the_order_they_were_set(loop):
    fired = []
    when = loop.time() + 0.005
    for i in range(1000):
        loop.call_at(when, fired.append, i)
    loop.call_at(when, loop.stop)
    loop.run_forever()
    assert fired == list(range(1000))


@pytest.mark.parametrize("seed", range(10))
def test_deadlines_with_ties_and_cancellations_fire_in_order(loop, seed):
    """Some are cancelled before they are due; also by a timer of the same deadline."""
    chance = random.Random(seed)
    base, fired, expected, handles = loop.time() + 0.003, [], [], []
    for i in range(300):
        step = chance.randrange(12)
        handles.append(loop.call_at(base + step / 10000, fired.append, (step, i)))
        expected.append((step, i))
    for i in chance.sample(range(300), 100):
        handles[i].cancel()
        expected.remove(next(entry for entry in expected if entry[1] == i))
    loop.call_at(base + 1.2e-3, loop.stop)
    loop.run_forever()
    assert fired == sorted(expected)


def test_every_order_of_four_deadlines_with_each_one_cancelled(loop):
    base = loop.time() + 0.002
    fired, expected = [], []
    for number, (order, gone) in enumerate(itertools.product(itertools.product(range(4), repeat=4), range(5))):
        handles = [loop.call_at(base + step / 1e5 + number / 1e3 / 1e3, fired.append, (number, step, i))
                   for i, step in enumerate(order)]
        expected += [(number, step, i) for i, step in enumerate(order) if i != gone]
        if gone < 4:
            handles[gone].cancel()
    loop.call_at(base + 0.01, loop.stop)
    loop.run_forever()
    by_number = sorted(fired, key=lambda entry: entry[0])
    assert by_number == sorted(expected)


def test_a_timer_that_cancels_one_due_at_the_same_time_wins(loop):
    fired = []
    when = loop.time() + 0.002
    loop.call_at(when, lambda: second.cancel())
    second = loop.call_at(when, fired.append, "cancelled")
    loop.call_at(when, fired.append, "third")
    loop.call_at(when, loop.stop)
    loop.run_forever()
    assert fired == ["third"]


# -- a clock of one's own

class Virtual(gmploop.Loop):
    """Its time stands still but for what callbacks move it on."""
    now = 1000.0

    def time(self):
        return self.now


@pytest.fixture(params=["subclass", "set on the loop"])
def virtual(request):
    loop = Virtual() if request.param == "subclass" else gmploop.new_event_loop()
    if request.param != "subclass":
        loop.now = 1000.0
        loop.time = lambda: loop.now
    yield loop
    loop.close()


def test_a_virtual_clock_decides_what_is_due(virtual):
    fired, start = [], time.monotonic()
    for delay in 3600, 60, 7200, 60:
        virtual.call_later(delay, lambda delay=delay: fired.append((delay, virtual.time())))
    for moment in 1000, 1059.999, 1060, 4600, 8200:
        def move(moment=moment):
            fired.append(moment)
            virtual.now = moment
        virtual.call_soon(move)
        virtual.call_soon(virtual.stop)
        virtual.run_forever()               # moves the clock
        virtual.call_soon(virtual.stop)
        virtual.run_forever()               # fires what is due now
    assert fired == [1000, 1059.999, 1060, (60, 1060), (60, 1060), 4600, (3600, 4600), 8200, (7200, 8200)]
    assert time.monotonic() - start < 5


def test_a_virtual_clock_that_moves_itself_runs_hours_in_no_time(virtual):
    """Each turn takes half an hour."""
    async def main():
        begun = virtual.time()
        await asyncio.gather(*(asyncio.sleep(hours * 3600) for hours in range(5)))
        return virtual.time() - begun

    def advance():
        virtual.now += 1800
        virtual.call_soon(advance)
    virtual.call_soon(advance)
    start = time.monotonic()
    assert virtual.run_until_complete(main()) >= 4 * 3600
    assert time.monotonic() - start < 5


def test_a_virtual_clock_never_makes_the_wait_negative(virtual):
    """It is past the deadline at the loop's first look at it."""
    virtual.call_later(1, virtual.stop)
    readings = itertools.count(1)
    fixed = virtual.now

    def jumping():
        return fixed + 5 * next(readings)
    virtual.time = jumping
    start = time.monotonic()
    virtual.run_forever()
    assert time.monotonic() - start < 0.9


def test_an_error_of_the_clock_comes_out_of_run_forever(virtual):
    virtual.call_later(1, virtual.stop)

    def broken():
        raise ZeroDivisionError
    virtual.time = broken
    with pytest.raises(ZeroDivisionError):
        virtual.run_forever()
    assert not virtual.is_running()
