"""The micro rows: one process, one loop, nanoseconds per operation.

Each function takes a loop and a number of operations (a multiple of UNIT), carries them out, and returns what they
took as (CPU, wall) nanoseconds. The first line of its docstring is what `--list` shows.

The CPU time of the whole process, its threads and the kernel's part included, is what counts: on a quiet machine it
is the same as the time on the wall, and on a busy one it does not count the others. Both are kept in the JSON: a loop
that sleeps when it should not shows there.
The process is pinned to one core and measures one row only; garbage collection stays on, as it is for users.
"""

import asyncio
import json
import resource
import socket
import statistics
import sys
import threading
from time import perf_counter_ns, process_time_ns

UNIT = 10_000
BATCH = 1000
PARTS = 5


def now():
    return process_time_ns(), perf_counter_ns()


def since(start):
    return process_time_ns() - start[0], perf_counter_ns() - start[1]


def call_soon_chain(loop, n):
    """Each callback schedules the next by call_soon; op: one callback.

    So there is one turn of the loop for each callback.
    """
    left = n

    def step():
        nonlocal left
        left -= 1
        if left:
            call_soon(step)
        else:
            loop.stop()

    call_soon = loop.call_soon
    call_soon(step)
    start = now()
    loop.run_forever()
    return since(start)


def call_soon_fanout(loop, n):
    """One callback schedules 1000 by call_soon, which run in the next turn; op: one callback.

    The callbacks do nothing; the one that schedules schedules itself last.
    """
    return fan_out(loop, n, BATCH)


def call_soon_burst(loop, n):
    """The same with 10,000 at a time, so that the handles outgrow the caches and the collector sees them; op: one."""
    return fan_out(loop, n, UNIT)


def fan_out(loop, n, batch):
    def nothing():
        pass

    def schedule_batch():
        call_soon = loop.call_soon
        for _ in range(batch):
            call_soon(nothing)

    return _in_batches(loop, n, batch, schedule_batch)


def sleep0(loop, n):
    """One task awaits asyncio.sleep(0) again and again; op: one sleep."""
    async def sleeper():
        sleep = asyncio.sleep
        start = now()
        for _ in range(n):
            await sleep(0)
        return since(start)

    return loop.run_until_complete(sleeper())


def spawn_gather(loop, n):
    """100 tasks are made by create_task and awaited by asyncio.gather; op: one task.

    Their coroutine returns at once.
    """
    async def nothing():
        pass

    async def spawner():
        create_task = loop.create_task
        start = now()
        for _ in range(n // 100):
            await asyncio.gather(*[create_task(nothing()) for _ in range(100)])
        return since(start)

    return loop.run_until_complete(spawner())


def timer_fire(loop, n):
    """1000 timers are set by call_later and fire 1 to 2 ms later, then the next 1000 are set; op: one timer.

    Their deadlines are spread over that millisecond and do not come in order. The time in which the loop waits for
    them is not CPU time and so does not count; the wake-ups do.
    """
    delays = [0.001 + (i * 389 % BATCH) * 1e-6 for i in range(BATCH)]
    left = n

    def fired():
        nonlocal left
        left -= 1
        if left % BATCH == 0:
            make_batch() if left else loop.stop()

    def make_batch():
        call_later = loop.call_later
        for delay in delays:
            call_later(delay, fired)

    loop.call_soon(make_batch)
    start = now()
    loop.run_forever()
    return since(start)


def timer_cancel(loop, n):
    """A timer is set by call_later(60) and cancelled at once, 1000 in a callback; op: one pair.

    The turns between the callbacks are counted, as it is there that cancelled timers are swept.
    """
    def nothing():
        pass

    def set_and_cancel():
        call_later = loop.call_later
        for _ in range(BATCH):
            call_later(60, nothing).cancel()

    return _in_batches(loop, n, BATCH, set_and_cancel)


def threadsafe(loop, n):
    """Another thread posts 1000 callbacks by call_soon_threadsafe, waits until they have run, and goes on; op: one.

    Before each 1000 the loop has nothing to do and sleeps in its poller. Both threads share the one core.
    """
    ran = threading.Lock()
    ran.acquire()

    def nothing():
        pass

    def post():
        call = loop.call_soon_threadsafe
        for _ in range(n // BATCH):
            for _ in range(BATCH - 1):
                call(nothing)
            call(ran.release)
            ran.acquire()
        call(loop.stop)

    poster = threading.Thread(target=post)
    loop.call_soon(poster.start)
    start = now()
    loop.run_forever()
    took = since(start)
    poster.join()
    return took


def future_pingpong(loop, n):
    """Two tasks wake each other in turn through futures; op: one wake-up.

    A task awaits its own future, replaces it by a new one from create_future, and sets the other's result.
    """
    async def player(mine, other):
        for _ in range(n // 2):
            await ball[mine]
            ball[mine] = loop.create_future()
            ball[other].set_result(None)

    async def game():
        players = loop.create_task(player(0, 1)), loop.create_task(player(1, 0))
        ball[0].set_result(None)
        start = now()
        for task in players:
            await task
        return since(start)

    ball = [loop.create_future(), loop.create_future()]
    return loop.run_until_complete(game())


def queue_pingpong(loop, n):
    """Two tasks pass one item to and fro through two asyncio.Queues; op: one put and the get that takes it."""
    async def player(inbox, outbox):
        for _ in range(n // 2):
            await outbox.put(await inbox.get())

    async def game():
        there, back = asyncio.Queue(), asyncio.Queue()
        players = loop.create_task(player(there, back)), loop.create_task(player(back, there))
        there.put_nowait(None)
        start = now()
        for task in players:
            await task
        return since(start)

    return loop.run_until_complete(game())


def event_pingpong(loop, n):
    """Two tasks wake each other in turn through two asyncio.Events; op: one wake-up."""
    async def player(mine, other):
        for _ in range(n // 2):
            await mine.wait()
            mine.clear()
            other.set()

    async def game():
        first, second = asyncio.Event(), asyncio.Event()
        first.set()
        return await _timed(asyncio.gather(player(first, second), player(second, first)))

    return loop.run_until_complete(game())


def lock_handover(loop, n):
    """Four tasks take one asyncio.Lock in turn, holding it over a sleep(0); op: one turn of one task."""
    async def worker(lock):
        for _ in range(n // 4):
            async with lock:
                await asyncio.sleep(0)

    async def game():
        lock = asyncio.Lock()
        return await _timed(asyncio.gather(*[worker(lock) for _ in range(4)]))

    return loop.run_until_complete(game())


def spawn_await(loop, n):
    """A task is made and awaited at once, one after the other; op: one task."""
    async def nothing():
        pass

    async def spawner():
        create_task = loop.create_task
        start = now()
        for _ in range(n):
            await create_task(nothing())
        return since(start)

    return loop.run_until_complete(spawner())


def task_group(loop, n):
    """100 tasks that each sleep(0) are run in an asyncio.TaskGroup, again and again; op: one task."""
    async def one():
        await asyncio.sleep(0)

    async def spawner():
        start = now()
        for _ in range(n // 100):
            async with asyncio.TaskGroup() as group:
                for _ in range(100):
                    group.create_task(one())
        return since(start)

    return loop.run_until_complete(spawner())


def task_cancel(loop, n):
    """A task that waits for a future is cancelled and awaited; op: one task, from its making."""
    async def wait():
        await loop.create_future()

    async def spawner():
        create_task, sleep = loop.create_task, asyncio.sleep
        start = now()
        for _ in range(n):
            task = create_task(wait())
            await sleep(0)
            task.cancel()
            try:
                await task
            except asyncio.CancelledError:
                pass
        return since(start)

    return loop.run_until_complete(spawner())


def create_future(loop, n):
    """loop.create_future(), whose result is set and that is dropped; op: one future."""
    def batch():
        make = loop.create_future
        for _ in range(BATCH):
            make().set_result(None)

    return _in_batches(loop, n, BATCH, batch)


def timeout(loop, n):
    """A sleep(0) in `async with asyncio.timeout(60)`; op: one such block."""
    async def sleeper():
        start = now()
        for _ in range(n):
            async with asyncio.timeout(60):
                await asyncio.sleep(0)
        return since(start)

    return loop.run_until_complete(sleeper())


def wait_for(loop, n):
    """asyncio.wait_for(future, 60) where the future is done by the next turn; op: one call."""
    async def waiter():
        start = now()
        for _ in range(n):
            future = loop.create_future()
            loop.call_soon(future.set_result, None)
            await asyncio.wait_for(future, 60)
        return since(start)

    return loop.run_until_complete(waiter())


def executor(loop, n):
    """run_in_executor of a function that does nothing, one after the other, on one core; op: one call."""
    def nothing():
        pass

    async def caller():
        start = now()
        for _ in range(n):
            await loop.run_in_executor(None, nothing)
        return since(start)

    return loop.run_until_complete(caller())


def sock_pair(loop, n):
    """sock_sendall and sock_recv of 64 bytes on a socket pair, so that neither has to wait; op: one call."""
    async def exchange():
        here, there = socket.socketpair()
        with here, there:
            here.setblocking(False)
            there.setblocking(False)
            data = bytes(64)
            start = now()
            for _ in range(n // 2):
                await loop.sock_sendall(here, data)
                await loop.sock_recv(there, 64)
            return since(start)

    return loop.run_until_complete(exchange())


async def _timed(awaitable):
    start = now()
    await awaitable
    return since(start)


def _in_batches(loop, n, batch, do_batch):
    """Call `do_batch`, which does `batch` operations, in a callback of its own until n are done."""
    left = n // batch

    def step():
        nonlocal left
        if left:
            left -= 1
            do_batch()
            loop.call_soon(step)
        else:
            loop.stop()

    loop.call_soon(step)
    start = now()
    loop.run_forever()
    return since(start)


def named(*functions):
    return {function.__name__.replace("_", "-"): function for function in functions}


ROWS = named(call_soon_chain, call_soon_fanout, call_soon_burst, sleep0, spawn_gather, timer_fire, timer_cancel,
              threadsafe, future_pingpong, queue_pingpong, event_pingpong, lock_handover, spawn_await, task_group,
              task_cancel, create_future, timeout, wait_for, executor, sock_pair)


def measure(function, loop, settings):
    """Run `function` for about so many seconds, at least PARTS times, after a warm-up; return medians over the parts."""
    from loops import wait_to_be_counted
    function(loop, UNIT)
    once_ns = max(function(loop, UNIT))
    n = max(1, round(settings["seconds"] / PARTS * 1e9 / once_ns)) * UNIT
    wait_to_be_counted(settings)
    before = usage()
    return medians([function(loop, n) for _ in range(PARTS)], n, before)


def usage():
    it = resource.getrusage(resource.RUSAGE_SELF)
    return it.ru_utime, it.ru_stime


def medians(parts, n, before):
    """Of `parts` of `n` operations each; the kernel's share of the CPU time is that of the whole since `before`."""
    cpu_ns, wall_ns = (statistics.median(column) / n for column in zip(*parts))
    user, system = (after - since for after, since in zip(usage(), before))
    kernel = cpu_ns * system / (user + system) if user + system else 0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // (1024 if sys.platform == "darwin" else 1)
    return {"cpu_ns": cpu_ns, "wall_ns": wall_ns, "user_ns": cpu_ns - kernel, "sys_ns": kernel, "peak_kb": peak,
            "operations": n * len(parts)}


def main(measure_row):
    """Make the loop, let `measure_row(loop, settings)` run, print the JSON."""
    from loops import check_running, enter_child, factory_of
    settings = enter_child()

    async def which():
        return check_running(settings["loop"])

    # not a Runner: the functions above start and stop the loop themselves
    loop = factory_of(settings["loop"])()
    asyncio.set_event_loop(loop)
    try:
        loop_class = loop.run_until_complete(which())
        result = measure_row(loop, settings)
    finally:
        loop.close()
    json.dump({"loop": loop_class, **result}, sys.stdout)


if __name__ == "__main__":
    main(lambda loop, settings: measure(ROWS[settings["kind"]], loop, settings))
