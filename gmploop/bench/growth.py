"""The growth rows without a server: the cost of an operation while N callbacks, timers or tasks are there.

Each function takes a loop and N, and returns what round_up(N) operations, or its own
number of them, took as (CPU, wall) nanoseconds.
"""

import asyncio
from time import perf_counter_ns

if __package__:
    from gmploop.bench.micro import BATCH, UNIT, fan_out, main, medians, named, now, since, timer_cancel, usage
else:               # the child, which must not import the package
    from micro import BATCH, UNIT, fan_out, main, medians, named, now, since, timer_cancel, usage


def callbacks(loop, load):
    """N callbacks are scheduled by call_soon at once; op: one callback."""
    return fan_out(loop, round_up(load), load)


def timers(loop, load):
    """N timers are set in no order by call_at, and all fire; op: one timer, set and fired."""
    rounds = round_up(load) // load
    spread = min(load, BATCH) * 1e-6
    offsets = [(i * 7919 % load) / load * spread for i in range(load)]
    left = load * rounds

    def fired():
        nonlocal left
        left -= 1
        if left % load == 0:
            make_batch() if left else loop.stop()

    def make_batch():
        call_at, base = loop.call_at, loop.time()
        for offset in offsets:
            call_at(base + offset, fired)

    loop.call_soon(make_batch)
    start = now()
    loop.run_forever()
    return since(start)


def timer_among(loop, load):
    """A timer is set by call_later(60) and cancelled at once while N others wait; op: one pair."""
    def nothing():
        pass

    waiting = [loop.call_later(100 + i * 7919 % load, nothing) for i in range(load)]
    took = timer_cancel(loop, UNIT * 10)
    for timer in waiting:
        timer.cancel()
    return took


def tasks(loop, load):
    """N tasks are made, each waits for a future of its own, all are woken and end; op: one task's whole life."""
    async def wait(future):
        await future

    async def spawner():
        create_task, create_future = loop.create_task, loop.create_future
        start = now()
        for _ in range(round_up(load) // load):
            futures = [create_future() for _ in range(load)]
            all_tasks = [create_task(wait(future)) for future in futures]
            await asyncio.sleep(0)
            for future in futures:
                future.set_result(None)
            for task in all_tasks:
                await task
        return since(start)

    return loop.run_until_complete(spawner())


def task_among(loop, load):
    """One task awaits sleep(0) again and again while N others wait; op: one sleep."""
    async def waiter(future):
        await future

    async def main():
        future = loop.create_future()
        others = [loop.create_task(waiter(future)) for _ in range(load)]
        await asyncio.sleep(0)
        start = now()
        for _ in range(UNIT):
            await asyncio.sleep(0)
        took = since(start)
        future.set_result(None)
        for other in others:
            await other
        return took

    return loop.run_until_complete(main())


def round_up(load):
    """How many operations one call of a growth function carries out: enough to be timed, a multiple of the load."""
    return -(-UNIT // load) * load


timer_among.operations, task_among.operations = UNIT * 10, UNIT       # whatever the load
ROWS = named(callbacks, timers, timer_among, tasks, task_among)


def measure_growth(function, loop, settings):
    """Run `function` with a load for about so many seconds. Small loads are warmed up by one run more."""
    from loops import wait_to_be_counted
    load = settings["load"]
    if load <= 10 * UNIT:
        function(loop, load)
    wait_to_be_counted(settings)
    before, end = usage(), perf_counter_ns() + settings["seconds"] * 1e9
    parts = [function(loop, load)]
    while perf_counter_ns() < end:
        parts.append(function(loop, load))
    return medians(parts, getattr(function, "operations", round_up(load)), before)


if __name__ == "__main__":
    main(lambda loop, settings: measure_growth(ROWS[settings["kind"]], loop, settings))
