"""Handles are not tracked by the collector: what they hold is found through the loop they are queued in."""

import asyncio
import contextvars
import gc
import os
import socket
import threading
import weakref

import gmploop
import pytest
from support import Recorder, unix_pair

pytestmark = [
    pytest.mark.timeout(60),
    # Loops and transports are left to the collector here, by the very purpose of the tests.
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]
variable = contextvars.ContextVar("variable")


class Owner:
    """Something that holds its loop and whose methods are queued there: a cycle."""

    def __init__(self, loop):
        self.loop = loop
        self.called = 0

    def method(self, *args):
        self.called += 1


def in_thread(function, *args):
    thread = threading.Thread(target=function, args=args)
    thread.start()
    thread.join()


# -- cycles

def posted(loop, owner):
    loop.call_soon(owner.method)


def posted_from_a_thread(loop, owner):
    in_thread(loop.call_soon_threadsafe, owner.method)


def left_in_the_ready_ring(loop, owner):
    def last():
        loop.stop()
        loop.call_soon(owner.method)
    loop.call_soon(last)
    loop.run_forever()


def as_an_argument(loop, owner):
    loop.call_soon(print, owner)


def in_the_context(loop, owner):
    context = contextvars.Context()
    context.run(variable.set, owner)
    loop.call_soon(int, context=context)


def as_a_timer(loop, owner):
    loop.call_later(1000, owner.method)


def as_one_of_many_timers(loop, owner):
    for i in range(100):
        loop.call_later(1000 - i % 7, owner.method, i)


def as_a_timer_due(loop, owner):
    loop.call_at(0, owner.method)


def as_a_reader(loop, owner):
    owner.ends = socket.socketpair()
    loop.add_reader(owner.ends[0], owner.method)
    loop.add_writer(owner.ends[0].fileno(), owner.method)


def in_an_unfinished_task(loop, owner):
    async def wait():
        await owner.never
    owner.never = loop.create_future()
    owner.task = loop.create_task(wait())
    owner.task._log_destroy_pending = False
    loop.run_until_complete(asyncio.sleep(0))


def in_a_sock_call(loop, owner):
    async def receive():
        await loop.sock_recv(owner.ends[0], 10)
    owner.ends = unix_pair()
    owner.task = loop.create_task(receive())
    owner.task._log_destroy_pending = False
    loop.run_until_complete(asyncio.sleep(0))


def in_a_protocol(loop, owner):
    async def connect():
        owner.ends = unix_pair()
        owner.transport, protocol = await loop.create_connection(lambda: Recorder(), sock=owner.ends[0])
        protocol.owner = owner
    loop.run_until_complete(connect())


def in_a_protocol_of_a_pending_start(loop, owner):
    """The transport stands in the ready ring; connection_made has not run."""
    class Protocol(asyncio.Protocol):
        pass
    protocol = Protocol()
    protocol.owner = owner
    owner.ends = unix_pair()
    owner.task = loop.create_task(loop.create_connection(lambda: protocol, sock=owner.ends[0]))
    owner.task._log_destroy_pending = False
    loop.call_soon(loop.stop)
    loop.run_forever()


def in_the_exception_handler(loop, owner):
    loop.set_exception_handler(owner.method)


QUEUED = [posted, posted_from_a_thread, left_in_the_ready_ring, as_an_argument, in_the_context, as_a_timer,
          as_one_of_many_timers, as_a_timer_due]
HELD = [*QUEUED, as_a_reader, in_an_unfinished_task, in_a_sock_call, in_a_protocol, in_a_protocol_of_a_pending_start,
        in_the_exception_handler]


@pytest.mark.parametrize("hold", HELD)
def test_an_unclosed_loop_with_a_cycle_through_it_is_collected(hold, monkeypatch):
    # A coroutine that cleans up after its loop was closed fails at that, as on stock; the report would keep its frames.
    monkeypatch.setattr("sys.unraisablehook", lambda unraisable: None)
    loop = gmploop.new_event_loop()
    owner = Owner(loop)
    hold(loop, owner)
    references = weakref.ref(loop), weakref.ref(owner)
    gc.collect()
    assert all(reference() for reference in references)
    del loop, owner
    for _ in range(3):              # finalisers run in one collection, what they let go of may need another
        gc.collect()
    assert [reference() for reference in references] == [None, None]


@pytest.mark.parametrize("hold", QUEUED)
def test_a_handle_that_is_kept_does_not_keep_its_loop(hold, monkeypatch):
    loop = gmploop.new_event_loop()
    owner = Owner(loop)
    handles = []
    for name in "call_soon", "call_soon_threadsafe", "call_at", "call_later":
        monkeypatch.setattr(loop, name, lambda *args, real=getattr(loop, name), **kwargs: handles.append(
            real(*args, **kwargs)) or handles[-1], raising=False)
    hold(loop, owner)
    reference = weakref.ref(loop)
    monkeypatch.undo()
    del loop, owner
    for _ in range(3):
        gc.collect()
    assert reference() is None
    for handle in handles:                              # the world is gone; its handles know
        repr(handle), handle.cancelled(), handle.cancel(), handle.cancel(), repr(handle)
        assert handle.cancelled() and handle._callback is None


@pytest.mark.parametrize("hold", QUEUED)
def test_what_is_queued_in_a_reachable_loop_stays(loop, hold):
    owner = Owner(loop)
    reference = weakref.ref(owner)
    timers = hold in (as_a_timer, as_one_of_many_timers)
    hold(loop, owner)
    del owner
    gc.collect()
    assert reference() is not None
    if hold not in (as_an_argument, in_the_context, as_a_timer, as_one_of_many_timers):
        loop.run_until_complete(asyncio.sleep(0))
        loop.run_until_complete(asyncio.sleep(0))
        gc.collect()
        assert reference() is None
    loop.run_until_complete(asyncio.sleep(0))
    gc.collect()
    assert (reference() is not None) == timers


def test_collections_during_turns_take_nothing_that_will_run(loop):
    """Each callback's only references are in the queues while the collector runs."""
    ran = []

    class Step:
        def __init__(self, number):
            self.number, self.cycle = number, self

        def __call__(self, text):
            ran.append((self.number, text))
            if self.number % 5 == 0:
                gc.collect()

    def fill():
        for number in range(0, 40):
            loop.call_soon(Step(number), f"soon {number}")
            loop.call_later(0.002 + number % 3 / 1000, Step(number), f"later {number}")
            loop.call_soon_threadsafe(Step(number), f"threadsafe {number}")
        in_thread(lambda: [loop.call_soon_threadsafe(Step(i), f"thread {i}") for i in range(40)])
        gc.collect()
        loop.call_later(0.01, loop.stop)
    loop.call_soon(fill)
    loop.run_forever()
    assert sorted(ran) == sorted((number, f"{way} {number}") for number in range(40)
                                 for way in ("soon", "later", "threadsafe", "thread"))


def test_the_collector_in_another_thread_takes_nothing_that_will_run(loop):
    collections, stop = 0, threading.Event()

    def collect():
        nonlocal collections
        while not stop.is_set():
            gc.collect(1)
            collections += 1
            stop.wait(0.0005)

    def step(left, payload):
        assert payload == [left] and payload is not None
        if left:
            way = (loop.call_soon, loop.call_soon_threadsafe, lambda *args: loop.call_later(0, *args))[left % 3]
            way(step, left - 1, [left - 1])
        else:
            loop.call_soon(loop.stop)
    thread = threading.Thread(target=collect)
    thread.start()
    try:
        step(20000, [20000])
        loop.run_forever()
    finally:
        stop.set()
        thread.join()
    assert collections


# -- at once, without the collector

WAYS = {
    "call_soon": lambda loop, *args, **kwargs: loop.call_soon(*args, **kwargs),
    "call_soon_threadsafe": lambda loop, *args, **kwargs: loop.call_soon_threadsafe(*args, **kwargs),
    "call_later": lambda loop, *args, **kwargs: loop.call_later(0, *args, **kwargs),
    "call_at": lambda loop, *args, **kwargs: loop.call_at(loop.time(), *args, **kwargs),
}


class Thing:
    def __call__(self, *args):
        pass


def scheduled(loop, way):
    """Weak references to callback, argument and a value in the context of a call that nothing else holds."""
    callback, argument, value = Thing(), Thing(), Thing()
    context = contextvars.Context()
    context.run(variable.set, value)
    handle = WAYS[way](loop, callback, argument, context=context)
    return handle, [weakref.ref(thing) for thing in (callback, argument, value)]


@pytest.mark.parametrize("running", [True, False], ids=["running", "idle"])
@pytest.mark.parametrize("way", WAYS)
def test_all_that_a_handle_held_is_dead_right_after_cancel(loop, no_gc, way, running):
    alive = []

    def cancel():
        handle, references = scheduled(loop, way)
        alive.append([reference() is not None for reference in references])
        handle.cancel()
        alive.append([reference() is not None for reference in references])
    if running:
        loop.call_soon(cancel)
        loop.call_soon(loop.stop)
        loop.run_forever()
    else:
        cancel()
    assert alive == [[True] * 3, [False] * 3]


@pytest.mark.parametrize("keep", [True, False], ids=["handle kept", "handle dropped"])
@pytest.mark.parametrize("way", WAYS)
def test_all_that_a_handle_held_is_dead_when_it_has_run(loop, no_gc, way, keep):
    """Also while the handle is kept: it has let go of what it ran."""
    handle, references = scheduled(loop, way)
    if not keep:
        del handle
    loop.call_later(0.003, loop.stop)
    loop.run_forever()
    assert [reference() for reference in references] == [None] * 3


def test_a_failed_callback_is_dead_after_the_report(loop, errors, no_gc):
    class Failing(Thing):
        def __call__(self):
            raise ZeroDivisionError
    callback = Failing()
    reference = weakref.ref(callback)
    loop.call_soon(callback)
    del callback
    loop.run_until_complete(asyncio.sleep(0))
    assert isinstance(errors[0]["exception"], ZeroDivisionError)
    errors.clear()
    gc.collect()
    assert reference() is None


def test_closing_drops_what_is_queued_without_the_collector(no_gc):
    loop = gmploop.new_event_loop()
    everything = []
    for way in WAYS:
        everything += scheduled(loop, way)[1]
    loop.call_later(1000, int)
    loop.close()
    assert [reference() for reference in everything] == [None] * 12


def test_a_finaliser_may_use_the_loop_that_drops_it(no_gc):
    """Dropping runs foreign code, which may schedule, cancel and close."""
    loop = gmploop.new_event_loop()
    seen = []

    class Nosy:
        def __init__(self, others):
            self.others = others

        def __call__(self):
            pass

        def __del__(self):
            for other in self.others:
                other.cancel()
            try:
                loop.call_soon(int)
                loop.call_later(10, int)
            except RuntimeError as exc:
                seen.append(str(exc))
    others = []
    for i in range(20):
        others.append((loop.call_later, loop.call_soon)[i % 2](*([100 - i] if i % 2 == 0 else []), Nosy(others)))
    loop.close()
    others.clear()
    gc.collect()
    assert seen == ["Event loop is closed"] * 20


def test_a_loop_collected_with_its_poller_closes_its_descriptors():
    before = set(os.listdir("/proc/self/fd"))
    loops = [gmploop.new_event_loop() for _ in range(10)]
    for loop in loops:
        loop.call_soon(loop.stop)
        loop.run_forever()
        loop.cycle = [loop]
    del loop
    loops.clear()
    gc.collect()
    assert set(os.listdir("/proc/self/fd")) == before
