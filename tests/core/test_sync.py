"""Channels and select, as tasks of one loop see them: on loops of this package and on asyncio's own."""

import asyncio
import contextlib
import gc
import itertools
import weakref

import gmploop
import pytest
from gmploop import Channel, ChannelClosed, WouldBlock, select
from support import LOOPS, bounded

pytestmark = pytest.mark.timeout(30)


@pytest.fixture(params=LOOPS)
def run(request, errors):
    """Runs a coroutine on a loop of either make."""
    with asyncio.Runner(loop_factory=LOOPS[request.param]) as runner:
        runner.get_loop().set_exception_handler(lambda _, context: errors.append(context))
        yield lambda coro: runner.run(bounded(coro, 20))


async def parked(*awaitables):
    """Tasks for them, which have run until they wait."""
    tasks = [asyncio.ensure_future(awaitable) for awaitable in awaitables]
    await asyncio.sleep(0)
    return tasks


async def cancelled(task):
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task
    return task.cancelled()


def drained(channel):
    items = []
    with contextlib.suppress(WouldBlock, ChannelClosed):
        while True:
            items.append(channel.recv_nowait())
    return items


# -- sending and receiving

@pytest.mark.parametrize("capacity", [0, 1, 3])
def test_items_come_in_order(run, capacity):
    async def main():
        channel = Channel(capacity)

        async def send():
            for number in range(100):
                await channel.send(number)
            channel.close()
        sender, = await parked(send())
        got = [item async for item in channel]
        await sender
        return got
    assert run(main()) == list(range(100))


def test_any_object_is_an_item(run):
    async def main():
        channel = Channel(5)
        items = [None, (1, 2), ValueError("kept"), StopIteration(3), channel]
        for item in items:
            await channel.send(item)
        return items, [await channel.recv() for _ in items]
    sent, got = run(main())
    assert all(one is other for one, other in zip(sent, got, strict=True))


def test_a_sender_waits_until_its_item_is_taken(run):
    async def main():
        channel = Channel()
        sender, = await parked(channel.send("item"))
        assert not sender.done() and len(channel) == 0
        assert await channel.recv() == "item"
        await sender
    run(main())


def test_a_full_channel_takes_the_next_item_when_one_leaves(run):
    async def main():
        channel = Channel(2)
        senders = await parked(*map(channel.send, range(4)))
        assert [sender.done() for sender in senders] == [True, True, False, False]
        assert len(channel) == 2
        assert await channel.recv() == 0
        assert len(channel) == 2
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert [sender.done() for sender in senders] == [True, True, True, False]
        assert drained(channel) == [1, 2, 3]
        await asyncio.gather(*senders)
    run(main())


def test_receivers_are_served_in_the_order_in_which_they_came(run):
    async def main():
        channel = Channel(3)
        receivers = await parked(*(channel.recv() for _ in range(3)))
        for number in range(3):
            channel.send_nowait(number)
        return await asyncio.gather(*receivers)
    assert run(main()) == [0, 1, 2]


def test_who_comes_later_does_not_get_what_was_handed_over(run):
    async def main():
        channel = Channel(1)
        receiver, = await parked(channel.recv())
        channel.send_nowait("first")
        with pytest.raises(WouldBlock, match="is empty"):
            channel.recv_nowait()
        return await receiver
    assert run(main()) == "first"


def test_nothing_happens_before_the_await(run):
    async def main():
        channel = Channel(1)
        never = channel.send("never")
        channel.send_nowait("item")
        receive = channel.recv()
        assert len(channel) == 1
        never.close()
        assert await receive == "item"
        with pytest.raises(RuntimeError, match="already awaited"):
            await receive
    run(main())


def test_operations_are_coroutines_to_asyncio(run):
    async def main():
        channel = Channel()
        task = asyncio.create_task(channel.recv())
        await asyncio.wait_for(channel.send(1), 5)
        assert await task == 1
        assert await asyncio.gather(channel.send(2), channel.recv()) == [None, 2]
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(channel.recv(), 0.001)
        assert await asyncio.shield(asyncio.gather(channel.recv(), channel.send(3))) == [3, None]
        done, _ = await asyncio.wait([asyncio.ensure_future(channel.recv()), asyncio.ensure_future(channel.send(4))])
        assert {task.result() for task in done} == {None, 4}
    run(main())


def test_the_context_is_the_task_s(run):
    import contextvars
    var = contextvars.ContextVar("var", default="none")

    async def receive(channel):
        var.set("mine")
        await channel.recv()
        return var.get()

    async def main():
        channel = Channel()
        receiver, = await parked(receive(channel))
        var.set("sender's")
        await channel.send(None)
        return await receiver
    assert run(main()) == "mine"


def test_nowait(run):
    async def main():
        channel = Channel(1)
        with pytest.raises(WouldBlock, match="0/1, .* is empty"):
            channel.recv_nowait()
        channel.send_nowait(1)
        with pytest.raises(WouldBlock, match="it is full"):
            channel.send_nowait(2)
        sender, = await parked(channel.send(2))
        assert [channel.recv_nowait(), channel.recv_nowait()] == [1, 2]
        await sender
        receiver, = await parked(Channel.recv(channel))
        channel.send_nowait(3)
        channel.send_nowait(4)
        assert await receiver == 3 and channel.recv_nowait() == 4
    run(main())


@pytest.mark.parametrize("capacity, error", [(-1, ValueError), (1.5, TypeError), ("1", TypeError), (None, TypeError),
                                             (10 ** 30, ValueError)])
def test_bad_capacities_are_named(capacity, error):
    with pytest.raises(error, match="capacity takes an int >= 0, not "):
        Channel(capacity)


def test_a_channel_is_true_and_may_be_subclassed_and_named():
    class Jobs(Channel):
        pass
    jobs = Jobs(2, name="jobs")
    assert jobs and not len(jobs) and jobs.capacity == 2 and not jobs.closed
    assert repr(jobs) == "<Jobs 'jobs' 0/2, 0 receiving, 0 sending>"
    assert Channel[int].__origin__ is Channel


# -- closing

def test_what_is_buffered_can_be_received_after_close(run):
    async def main():
        channel = Channel(3)
        for number in range(3):
            await channel.send(number)
        channel.close()
        channel.close()
        assert channel.closed
        with pytest.raises(ChannelClosed, match="closed") as caught:
            await channel.send(3)
        assert caught.value.channel is channel
        with pytest.raises(ChannelClosed):
            channel.send_nowait(3)
        assert await channel.recv() == 0
        assert [item async for item in channel] == [1, 2]
        for attempt in channel.recv, channel.recv, lambda: asyncio.sleep(0, channel.recv_nowait()):
            with pytest.raises(ChannelClosed):
                await attempt()
    run(main())


def test_close_ends_all_who_wait(run):
    async def main():
        empty, full = Channel(), Channel()

        async def iterate():
            return [item async for item in empty]
        tasks = await parked(empty.recv(), iterate(), empty.recv(), full.send(1), full.send(2))
        empty.close()
        full.close()
        assert drained(full) == []
        return [type(result) for result in await asyncio.gather(*tasks, return_exceptions=True)]
    assert run(main()) == [ChannelClosed, list, ChannelClosed, ChannelClosed, ChannelClosed]


# -- cancelling

def test_a_cancelled_receiver_leaves_the_queue(run):
    async def main():
        channel = Channel(1)
        first, second = await parked(channel.recv(), channel.recv())
        assert await cancelled(first)
        channel.send_nowait("item")
        assert await second == "item"
        assert "0 receiving" in repr(channel)
    run(main())


def test_a_cancelled_sender_s_item_is_never_sent(run):
    async def main():
        channel = Channel()
        tasks = await parked(*map(channel.send, range(3)))
        assert await cancelled(tasks[1])
        assert drained(channel) == [0, 2]
        await asyncio.gather(tasks[0], tasks[2])
    run(main())


def test_an_item_handed_to_a_cancelled_receiver_goes_to_the_next(run):
    async def main():
        channel = Channel(1)
        first, second = await parked(channel.recv(), channel.recv())
        channel.send_nowait("item")
        assert await cancelled(first)
        assert await second == "item"
    run(main())


def test_items_handed_to_cancelled_receivers_stay_in_their_order(run):
    """In whatever order their receivers end, and before what was sent later."""
    async def main():
        for order in itertools.permutations(range(3)):
            channel = Channel(2)
            receivers = await parked(*(channel.recv() for _ in range(3)))
            for number in range(5):
                channel.send_nowait(number)
            for task in receivers:
                task.cancel()
            for index in order:
                receivers[index].get_coro().close()
            assert len(channel) == 5
            with pytest.raises(WouldBlock):
                channel.send_nowait(5)
            assert drained(channel) == [0, 1, 2, 3, 4]
            await asyncio.wait(receivers)
    run(main())


def test_the_third_of_three_gets_what_two_gave_back(run):
    async def main():
        channel = Channel()
        first, second, third = await parked(*(channel.recv() for _ in range(3)))
        sender, = await parked(channel.send("item"))
        first.cancel()
        await asyncio.sleep(0)
        second.cancel()
        assert await third == "item"
        await sender
        await asyncio.wait([first, second])
        assert first.cancelled() and second.cancelled()
    run(main())


def test_an_item_given_back_to_a_closed_channel_can_be_received(run):
    async def main():
        channel = Channel()
        receiver, = await parked(channel.recv())
        channel.send_nowait("item")
        channel.close()
        assert await cancelled(receiver)
        assert [item async for item in channel] == ["item"]
    run(main())


def test_a_send_cancelled_after_its_item_was_taken_has_sent_it(run):
    async def main():
        channel = Channel()
        sender, = await parked(channel.send("item"))
        assert channel.recv_nowait() == "item"
        assert await cancelled(sender)
        assert drained(channel) == []
    run(main())


def test_cancel_keeps_its_message(run):
    async def main():
        receiver, = await parked(Channel().recv())
        receiver.cancel("why")
        with pytest.raises(asyncio.CancelledError) as caught:
            await receiver
        return caught.value.args
    assert run(main()) == ("why",)


def test_a_receiver_that_ignores_its_cancel_gets_the_next_item(run):
    async def main():
        channel = Channel(1)

        async def receive():
            try:
                return await channel.recv()
            except asyncio.CancelledError:
                return await channel.recv()
        receiver, = await parked(receive())
        receiver.cancel()
        await asyncio.sleep(0)
        channel.send_nowait("item")
        return await receiver
    assert run(main()) == "item"


def test_a_coroutine_that_is_closed_while_it_waits_leaves_the_queue(run):
    async def main():
        channel = Channel(1)

        async def receive():
            await channel.recv()
        coro = receive()
        assert coro.send(None) is not None
        assert "1 receiving" in repr(channel)
        coro.close()
        assert "0 receiving" in repr(channel)
        granted = receive()
        granted.send(None)
        channel.send_nowait("item")
        granted.close()
        assert drained(channel) == ["item"]
        lost = channel.recv()
        lost.send(None)
        channel.send_nowait("again")
        del lost
        gc.collect()
        assert drained(channel) == ["again"]
    run(main())


def test_an_error_thrown_into_a_receiver_gives_its_item_back(run):
    async def main():
        channel = Channel(1)
        coro = channel.recv()
        coro.send(None)
        channel.send_nowait("item")
        with pytest.raises(KeyboardInterrupt):
            coro.throw(KeyboardInterrupt)
        assert drained(channel) == ["item"]
    run(main())


def test_without_a_running_loop_a_wait_is_refused_and_leaves_nothing():
    channel = Channel()
    with pytest.raises(RuntimeError, match="no running event loop"):
        channel.recv().send(None)
    assert "0 receiving" in repr(channel)


# -- select

def test_select_takes_the_case_that_is_ready(run):
    async def main():
        empty, full, room = Channel(), Channel(1), Channel(1)
        full.send_nowait("item")
        assert await select(empty.receiving(), full.receiving()) == (1, "item")
        assert await select(empty, room.sending("sent")) == (1, None)
        assert await select(room, empty) == (0, "sent")
    run(main())


def test_select_waits_for_the_first_case_that_becomes_ready(run):
    async def main():
        one, two = Channel(), Channel()
        selecting, = await parked(select(one, two))
        await two.send("item")
        assert await selecting == (1, "item")
        selecting, = await parked(select(one.sending("x"), two.sending("y")))
        assert await one.recv() == "x"
        assert await selecting == (0, None)
        assert "0 receiving, 0 sending" in repr(one) and "0 receiving, 0 sending" in repr(two)
    run(main())


def test_two_selects_meet_in_one_case_only(run):
    async def main():
        one, two = Channel(), Channel()
        tasks = await parked(select(one, two), select(one.sending("x"), two.sending("y")))
        (received, item), (sent, _) = await asyncio.gather(*tasks)
        assert received == sent and item == "xy"[sent]
        for channel in one, two:
            assert drained(channel) == []
            assert "0 receiving, 0 sending" in repr(channel)
    run(main())


def test_a_select_does_not_meet_itself(run):
    async def main():
        channel = Channel()
        selecting, = await parked(select(channel.sending("mine"), channel))
        assert not selecting.done()
        sender, = await parked(channel.send("other"))
        assert await selecting == (1, "other")
        await sender
    run(main())


def test_ready_cases_are_taken_about_equally_often(run):
    async def main():
        channels = [Channel(1) for _ in range(4)]
        counts = [0] * 4
        for _ in range(2000):
            for channel in channels[:3]:
                if not len(channel):
                    channel.send_nowait(None)
            counts[(await select(*channels))[0]] += 1
        return counts
    *ready, never = run(main())
    assert never == 0 and all(500 < count < 830 for count in ready)


def test_default_and_timeout(run):
    async def main():
        channel = Channel()
        assert await select(channel, default="nothing") == (-1, "nothing")
        assert await select(channel, default=None, timeout=0.001) == (-1, None)
        for timeout in 0, 0.001:
            with pytest.raises(TimeoutError):
                await select(channel, timeout=timeout)
        selecting, = await parked(select(channel, timeout=10))
        await channel.send("in time")
        assert await selecting == (0, "in time")
        assert "0 receiving" in repr(channel)
    run(main())


def test_select_on_closed_channels(run):
    async def main():
        closed, other = Channel(1), Channel()
        closed.send_nowait("last")
        closed.close()
        assert await select(other, closed) == (1, "last")
        for cases in (other.receiving(), closed.receiving()), (other.sending(1), closed.sending(1)):
            with pytest.raises(ChannelClosed) as caught:
                await select(*cases)
            assert caught.value.channel is closed and caught.value.case == 1
        selecting, = await parked(select(other, Channel()))
        other.close()
        with pytest.raises(ChannelClosed) as caught:
            await selecting
        assert caught.value.channel is other and caught.value.case == 0
    run(main())


def test_a_cancelled_select_gives_back_what_it_was_handed(run):
    async def main():
        one, two = Channel(1), Channel(1)
        selecting, next_one = await parked(select(one, Channel().sending("never")), one.recv())
        one.send_nowait("item")
        assert await cancelled(selecting)
        assert await next_one == "item"
        selecting, = await parked(select(one, two))
        assert await cancelled(selecting)
        two.send_nowait("stays")
        assert drained(two) == ["stays"] and drained(one) == []
    run(main())


def test_cases_can_be_used_again(run):
    async def main():
        channel = Channel(4)
        send = channel.sending("item")
        for _ in range(3):
            await select(send)
        assert drained(channel) == ["item"] * 3
        assert send.channel is channel and "sending to" in repr(send)
    run(main())


@pytest.mark.parametrize("cases, options, error, message", [
    ((), {}, ValueError, "one case or more"), ((5,), {}, TypeError, "not 5"),
    ((Channel(),), {"timeout": -1}, ValueError, "timeout takes"), ((Channel(),), {"timeout": float("nan")}, ValueError,
                                                                    "timeout takes")])
def test_select_names_what_it_cannot_take(cases, options, error, message):
    with pytest.raises(error, match=message):
        select(*cases, **options)


# -- nothing is kept

class Item:
    pass


def kept_alive_by(run, scenario):
    """Weak references to the items that the scenario made, after it has ended and all is collected."""
    refs = []

    def item():
        made = Item()
        refs.append(weakref.ref(made))
        return made
    run(scenario(item))
    gc.collect()
    return [ref for ref in refs if ref() is not None]


def test_items_are_let_go(run):
    async def scenario(item):
        channel = Channel(4)
        await channel.send(item())
        await channel.recv()
        receiver, other = await parked(channel.recv(), channel.recv())
        channel.send_nowait(item())
        channel.send_nowait(item())
        await cancelled(receiver)
        await other
        channel.send_nowait(item())         # and one that the first gave back
        sender, select_, = await parked(Channel().send(item()), select(Channel().sending(item()), Channel()))
        await cancelled(sender)
        await cancelled(select_)
    assert not kept_alive_by(run, scenario)


def test_cycles_through_channels_and_those_who_wait_are_collected(run):
    async def scenario(item):
        async def receive(channel, kept):
            await channel.recv()

        async def choose(channel, kept):
            await select(channel, channel.sending(kept))
        channel = Channel(5)
        channel.send_nowait(channel)
        channel.send_nowait(item())
        waited_for, chosen = Channel(), Channel()
        coros = [receive(waited_for, item()), choose(chosen, item())]
        for coro in coros:
            coro.send(None)
        sender = Channel()
        sending = sender.send((sender, item()))
        sending.send(None)
        given_back = Channel()
        receiving = given_back.recv()
        receiving.send(None)
        given_back.send_nowait((given_back, item()))
        receiving.close()
        sender_cycle = [coros, sending, channel, given_back]
        sender_cycle.append(sender_cycle)
    assert not kept_alive_by(run, scenario)


def test_a_task_that_nobody_refers_to_but_its_own_channel_is_collected(run, errors):
    async def scenario(item):
        async def receive(channel, kept):
            await channel.recv()
        channel = Channel()
        task = asyncio.ensure_future(receive(channel, item()))
        await asyncio.sleep(0)
        del channel, task
        await asyncio.sleep(0)
        gc.collect()
        assert [error.pop("message") for error in errors] == ["Task was destroyed but it is pending!"]
        errors.clear()
    assert not kept_alive_by(run, scenario)


# -- to look at

def test_who_waits_for_what(run):
    async def main():
        jobs, results = Channel(name="jobs"), Channel(name="results")
        lost, lock = Channel(name="lost"), gmploop.Mutex(name="lock")
        await lock.acquire()
        tasks = await parked(jobs.recv(), results.send(1), lock.acquire(), select(jobs.receiving(), lost.receiving()))
        loop = asyncio.get_running_loop()
        found = {(entry.object.name, entry.operation, tasks.index(entry.who))
                 for entry in gmploop.sync.waiting() if entry.loop is loop}
        assert found == {("jobs", "recv", 0), ("results", "send", 1), ("lock", "acquire", 2), ("jobs", "select", 3),
                         ("lost", "select", 3)}
        for task in tasks:
            await cancelled(task)
        assert not [entry for entry in gmploop.sync.waiting() if entry.loop is loop]
    run(main())
