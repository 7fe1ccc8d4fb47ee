"""Mutex, RWMutex, Semaphore, Event, WaitGroup and Once, as tasks of one loop see them: on loops of either make."""

import asyncio

import pytest
from gmploop import Event, Mutex, Once, RWMutex, Semaphore, WaitGroup

from tests.core.test_sync import cancelled, parked, run

pytestmark = pytest.mark.timeout(30)
assert run      # a fixture

@pytest.fixture(params=[Mutex, Semaphore, lambda: RWMutex().writer], ids=["mutex", "semaphore", "writer"])
def lock(request):
    return request.param()


def test_one_at_a_time_in_the_order_of_the_calls(run, lock):
    async def main():
        order, inside = [], 0

        async def enter(number):
            nonlocal inside
            async with lock:
                inside += 1
                assert inside == 1 and lock.locked()
                await asyncio.sleep(0)
                order.append(number)
                inside -= 1
        await asyncio.gather(*map(enter, range(20)))
        assert not lock.locked()
        return order
    assert run(main()) == list(range(20))


def test_a_released_lock_is_handed_over(run, lock):
    """Who releases and takes it again at once comes after those who wait."""
    async def main():
        await lock.acquire()
        waiting, = await parked(lock.acquire())
        lock.release()
        assert lock.locked() and not lock.try_acquire()
        again, = await parked(lock.acquire())
        await waiting
        assert not again.done()
        lock.release()
        await again
        lock.release()
        assert lock.try_acquire() and not lock.try_acquire()
    run(main())


def test_a_cancelled_waiter_leaves_the_queue(run, lock):
    async def main():
        await lock.acquire()
        first, second = await parked(lock.acquire(), lock.acquire())
        assert await cancelled(first)
        lock.release()
        await second
        lock.release()
        assert not lock.locked()
    run(main())


def test_a_lock_granted_to_a_cancelled_task_goes_on(run, lock):
    async def main():
        await lock.acquire()
        first, second, third = await parked(lock.acquire(), lock.acquire(), lock.acquire())
        lock.release()
        first.cancel()
        second.cancel()
        await third
        assert first.cancelled() and second.cancelled()
        lock.release()
        assert not lock.locked()
        await lock.acquire()
        granted, = await parked(lock.acquire())
        lock.release()
        assert await cancelled(granted) and not lock.locked()
    run(main())


def test_an_error_inside_releases_it(run, lock):
    async def main():
        with pytest.raises(ZeroDivisionError):
            async with lock:
                1 / 0
        assert not lock.locked()
    run(main())


@pytest.mark.parametrize("lock, name", [(Mutex(), "Mutex"), (RWMutex().reader, "RWMutex.reader"),
                                        (RWMutex().writer, "RWMutex.writer")])
def test_release_of_an_unlocked_lock(lock, name):
    for _ in range(2):
        with pytest.raises(RuntimeError, match=f"^release of an unlocked {name}$"):
            lock.release()
        assert lock.try_acquire()
        lock.release()


def test_each_side_of_a_read_write_lock_releases_its_own():
    rw = RWMutex()
    assert rw.reader.try_acquire()
    with pytest.raises(RuntimeError, match="unlocked RWMutex.writer"):
        rw.writer.release()
    rw.reader.release()
    assert rw.writer.try_acquire()
    with pytest.raises(RuntimeError, match="unlocked RWMutex.reader"):
        rw.reader.release()


# -- semaphore

def test_permits(run):
    async def main():
        semaphore = Semaphore(2)
        await semaphore.acquire()
        assert not semaphore.locked() and semaphore.value == 1
        await semaphore.acquire()
        assert semaphore.locked()
        waiting = await parked(*(semaphore.acquire() for _ in range(3)))
        semaphore.release()
        semaphore.release()
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [task.done() for task in waiting] == [True, True, False]
        assert await cancelled(waiting[2])
        semaphore.release()
        semaphore.release()
        semaphore.release()
        assert semaphore.value == 3
    run(main())


@pytest.mark.parametrize("value, error", [(-1, ValueError), (1.5, TypeError)])
def test_bad_semaphore_values_are_named(value, error):
    with pytest.raises(error, match="value takes an int >= 0"):
        Semaphore(value)


# -- read-write lock

def test_readers_together_writers_alone(run):
    async def main():
        rw, log = RWMutex(), []

        async def use(side, name):
            async with side:
                log.append(f"+{name}")
                await asyncio.sleep(0.001)
                log.append(f"-{name}")
        await asyncio.gather(use(rw.reader, "r1"), use(rw.reader, "r2"), use(rw.writer, "w1"), use(rw.writer, "w2"),
                             use(rw.reader, "r3"), use(rw.reader, "r4"))
        return log
    log = run(main())
    assert log[:2] == ["+r1", "+r2"] and sorted(log[2:4]) == ["-r1", "-r2"]
    assert log[4:8] == ["+w1", "-w1", "+w2", "-w2"]
    assert log[8:10] == ["+r3", "+r4"] and sorted(log[10:]) == ["-r3", "-r4"]


def test_a_reader_waits_behind_a_writer_that_waits(run):
    async def main():
        rw = RWMutex()
        await rw.reader.acquire()
        writer, reader = await parked(rw.writer.acquire(), rw.reader.acquire())
        assert not rw.reader.try_acquire() and not reader.done()
        assert repr(rw) == "<RWMutex 1 reading, 2 waiting>"
        rw.reader.release()
        await writer
        assert not reader.done() and rw.writer.locked()
        rw.writer.release()
        await reader
        assert rw.reader.locked()
    run(main())


def test_when_the_writer_in_front_is_cancelled_readers_go_on(run):
    async def main():
        rw = RWMutex()
        await rw.reader.acquire()
        writer, *readers, last = await parked(rw.writer.acquire(), rw.reader.acquire(), rw.reader.acquire(),
                                              rw.writer.acquire())
        assert await cancelled(writer)
        await asyncio.gather(*readers)
        assert not last.done()
        for _ in range(3):
            rw.reader.release()
        await last
    run(main())


def test_readers_let_in_together_and_cancelled_give_way(run):
    async def main():
        rw = RWMutex()
        await rw.writer.acquire()
        one, two, writer = await parked(rw.reader.acquire(), rw.reader.acquire(), rw.writer.acquire())
        rw.writer.release()
        one.cancel()
        two.cancel()
        await writer
        assert one.cancelled() and two.cancelled() and rw.writer.locked() and not rw.reader.locked()
    run(main())


# -- event, wait group

def test_an_event_lets_all_go_on(run):
    async def main():
        event = Event()
        waiting = await parked(event.wait(), event.wait())
        assert not event.is_set()
        event.set()
        event.set()
        assert event.is_set()
        event.clear()               # who was let go stays let go
        await asyncio.gather(*waiting)
        waiting, = await parked(event.wait())
        assert not waiting.done() and await cancelled(waiting)
        event.set()
        await event.wait()
    run(main())


def test_a_wait_group_waits_for_all(run):
    async def main():
        group = WaitGroup()
        await group.wait()
        group.add(3)
        waiting, = await parked(group.wait())
        group.done()
        group.add(-1)
        await asyncio.sleep(0)
        assert group.count == 1 and not waiting.done()
        group.done()
        await waiting
        for change in group.done, lambda: group.add(-5):
            with pytest.raises(ValueError, match="negative WaitGroup counter"):
                change()
        assert group.count == 0
    run(main())


# -- once

def test_once(run):
    async def main():
        once, calls = Once(), []

        async def make(arg):
            calls.append(arg)
            await asyncio.sleep(0)
            return f"made {arg}"
        results = await asyncio.gather(*(once.do(make, number) for number in range(5)))
        assert once.done() and calls == [0]
        assert set(results) == {"made 0"} == {await once.do(make, 9)}
        assert await Once().do(lambda: 5) == 5
    run(main())


def test_a_failed_or_cancelled_once_is_done_by_the_next(run):
    async def main():
        once, calls = Once(), []

        async def make(outcome):
            calls.append(outcome)
            await asyncio.sleep(0 if outcome != "cancel" else 100)
            return outcome if outcome != "fail" else 1 / 0
        failing, stuck, third = await parked(once.do(make, "fail"), once.do(make, "cancel"), once.do(make, "done"))
        with pytest.raises(ZeroDivisionError):
            await failing
        while len(calls) < 2:
            await asyncio.sleep(0)
        assert await cancelled(stuck)
        assert await third == "done" and calls == ["fail", "cancel", "done"]
    run(main())


def test_repr_says_how_they_stand(run):
    async def main():
        lock, semaphore, event, group = Mutex(name="door"), Semaphore(3), Event(), WaitGroup()
        await lock.acquire()
        waiting, = await parked(lock.acquire())
        group.add(2)
        assert repr(lock) == "<Mutex 'door' locked, 1 waiting>"
        assert repr(semaphore) == "<Semaphore 3 left, 0 waiting>"
        assert repr(event) == "<Event unset, 0 waiting>"
        assert repr(group) == "<WaitGroup 2 to be done, 0 waiting>"
        assert repr(Once()) == "<Once not done, <Mutex unlocked, 0 waiting>>"
        assert "acquire() waiting at <Mutex 'door'" in repr(waiting.get_coro())
        await cancelled(waiting)
    run(main())
