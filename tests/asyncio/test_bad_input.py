"""Calls that make no sense: refused with the class of exception that stock raises, with a message, and with no harm.

Each row is one call. It is made on a stock loop and on gmploop, each in a fresh loop; what it raises or returns, and
what the exception handler then hears of it, must be of the same classes. The fixtures see to it that nothing is leaked.
"""

import asyncio
import contextvars
import decimal
import fractions
import functools
import io
import math
import os
import signal
import socket

import pytest

import gmploop
from rig import compare
from support import LOOPS, tcp_pair, turns

pytestmark = [pytest.mark.timeout(30), pytest.mark.filterwarnings("ignore:coroutine .* was never awaited"),
              pytest.mark.filterwarnings("ignore::ResourceWarning"),
              pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")]


class NoNumber:
    pass


class Numbered:
    def __init__(self, number):
        self.number = number

    def fileno(self):
        if isinstance(self.number, Exception):
            raise self.number
        return self.number


async def coroutine_function(*args):
    pass


# -- callbacks and timers

ROWS = {}

for name, schedule in {"call_soon": lambda loop, *args, **kwargs: loop.call_soon(*args, **kwargs),
                       "call_soon_threadsafe": lambda loop, *a, **kwargs: loop.call_soon_threadsafe(*a, **kwargs),
                       "call_later": lambda loop, *args, **kwargs: loop.call_later(0, *args, **kwargs),
                       "call_at": lambda loop, *args, **kwargs: loop.call_at(0, *args, **kwargs)}.items():
    ROWS |= {
        f"{name} without a callback": lambda r, s=schedule: s(r.loop),
        f"{name} of None": lambda r, s=schedule: s(r.loop, None),
        f"{name} of a number": lambda r, s=schedule: s(r.loop, 5, 6),
        f"{name} of a coroutine function": lambda r, s=schedule: s(r.loop, coroutine_function),
        f"{name} of None in debug mode": lambda r, s=schedule: s(r.debug(), None),
        f"{name} of a number in debug mode": lambda r, s=schedule: s(r.debug(), 5),
        f"{name} of a coroutine function in debug mode": lambda r, s=schedule: s(r.debug(), coroutine_function),
        f"{name} of a coroutine in debug mode": lambda r, s=schedule: s(r.debug(), coroutine_function()),
        f"{name} with too many arguments": lambda r, s=schedule: s(r.loop, int, 1, 2, 3),
        f"{name} with an unknown keyword": lambda r, s=schedule: s(r.loop, int, nothing=1),
        f"{name} with the callback as a keyword": lambda r, s=schedule: s(r.loop, callback=int),
        f"{name} that raises": lambda r, s=schedule: s(r.loop, int, "x"),
        f"{name} that raises a BaseException of its own": lambda r, s=schedule: s(r.loop, throw, GeneratorExit()),
        f"{name} in an entered context": lambda r, s=schedule: contextvars.copy_context().run(entered, s, r.loop),
    }


def throw(exc):
    raise exc


def entered(schedule, loop):
    """The context is entered when the callback is to run in it."""
    context = contextvars.copy_context()
    schedule(loop, lambda: context.run(int))
    schedule(loop, lambda: context.run(lambda: context.run(int)))


for delay in (None, "1", b"1", [], 1j, object(), decimal.Decimal("0.001"), fractions.Fraction(1, 1000), math.nan,
              math.inf, -math.inf, -1, True, 10 ** 400, -10 ** 400, Numbered(1)):
    ROWS[f"call_later in {delay!r:.20}"] = lambda r, d=delay: r.loop.call_later(d, int)
    ROWS[f"sleep for {delay!r:.20}"] = lambda r, d=delay: asyncio.wait_for(
        asyncio.sleep(d), 5 if isinstance(d, (decimal.Decimal, fractions.Fraction)) else 0.01)     # they are 1 ms
    ROWS[f"wait_for {delay!r:.20}"] = lambda r, d=delay: asyncio.wait_for(turns(2), d)
ROWS |= {
    "call_later with nothing": lambda r: r.loop.call_later(),
    "call_at with nothing": lambda r: r.loop.call_at(),
    "call_at None": lambda r: r.loop.call_at(None, int),
    "call_at NaN": lambda r: r.loop.call_at(math.nan, int),
    "call_at the end of time": lambda r: r.loop.call_at(math.inf, int),
    "call_at before time": lambda r: r.loop.call_at(-math.inf, int),
    "time with an argument": lambda r: r.loop.time(1),
    "comparing a timer with a number": lambda r: r.loop.call_later(0, int) < 5,
    "cancel with an argument": lambda r: r.loop.call_soon(int).cancel(1),
}

# -- tasks, futures, running

ROWS |= {
    "create_task of a function": lambda r: r.loop.create_task(int),
    "create_task of a coroutine function": lambda r: r.loop.create_task(coroutine_function),
    "create_task of None": lambda r: r.loop.create_task(None),
    "create_task of a future": lambda r: r.loop.create_task(r.loop.create_future()),
    "create_task with an odd name": lambda r: r.loop.create_task(turns(1), name=5),
    "create_task with an unknown keyword": lambda r: r.loop.create_task(turns(1), nothing=5),
    "create_future with an argument": lambda r: r.loop.create_future(1),
    "awaiting a number": lambda r: awaiting(5),
    "awaiting a future of another loop": lambda r: awaiting_foreign(r),
    "awaiting oneself": lambda r: awaiting_oneself(r),
    "set_task_factory of a number": lambda r: r.loop.set_task_factory(5),
    "task factory that returns None": lambda r: odd_factory(r, lambda loop, coro, **kwargs: coro.close()),
    "task factory that raises": lambda r: odd_factory(r, lambda loop, coro, **kwargs: (coro.close(), 1 / 0)),
    "set_exception_handler of a number": lambda r: r.loop.set_exception_handler(5),
    "exception handler that raises": lambda r: odd_handler(r, lambda loop, context: 1 / 0),
    "call_exception_handler of nothing": lambda r: r.loop.call_exception_handler(),
    "call_exception_handler of odd keys": lambda r: r.loop.call_exception_handler({"message": 5, "exception": 6}),
    "set_default_executor of a number": lambda r: r.loop.set_default_executor(5),
    "run_in_executor of None": lambda r: r.loop.run_in_executor(None, None),
    "run_in_executor of a coroutine function in debug mode":
        lambda r: r.debug().run_in_executor(None, coroutine_function),
    "run_in_executor on a number": lambda r: r.loop.run_in_executor(5, int),
    "run_in_executor that raises": lambda r: r.loop.run_in_executor(None, int, "x"),
    "run_forever of a running loop": lambda r: r.loop.run_forever(),
    "run_until_complete of a running loop": lambda r: r.loop.run_until_complete(r.loop.create_future()),
    "run_until_complete of a number on a running loop": lambda r: r.loop.run_until_complete(5),
    "running another loop inside": lambda r: run_inner(),
    "close of a running loop": lambda r: r.loop.close(),
    "stop with an argument": lambda r: r.loop.stop(1),
    "set_debug of nothing": lambda r: r.loop.set_debug(),
    "set_debug of text": lambda r: r.loop.set_debug("yes"),
    "shutdown_default_executor twice": lambda r: asyncio.gather(
        r.loop.shutdown_default_executor(), r.loop.shutdown_default_executor()),
    "run_in_executor after its shutdown": lambda r: executor_after_shutdown(r),
    "getaddrinfo of a number": lambda r: r.loop.getaddrinfo(5, 5),
    "getaddrinfo of nothing": lambda r: r.loop.getaddrinfo(None, None),
    "getnameinfo of a number": lambda r: r.loop.getnameinfo(5),
    "run_coroutine_threadsafe of a number": lambda r: asyncio.run_coroutine_threadsafe(5, r.loop),
}


async def awaiting(thing):
    await thing


async def awaiting_foreign(r):
    other = LOOPS["asyncio"]()
    r.keep(other)
    await other.create_future()


async def awaiting_oneself(r):
    task = r.loop.create_task(turns_and_self())
    await task


async def turns_and_self():
    await asyncio.current_task()


async def odd_factory(r, factory):
    r.loop.set_task_factory(factory)
    try:
        return r.loop.create_task(turns(1))
    finally:
        r.loop.set_task_factory(None)


async def odd_handler(r, handler):
    before = r.loop.get_exception_handler()
    r.loop.set_exception_handler(handler)
    r.loop.call_soon(int, "x")
    await turns(3)
    r.loop.set_exception_handler(before)


async def executor_after_shutdown(r):
    await r.loop.shutdown_default_executor()
    await r.loop.run_in_executor(None, int)


def run_inner():
    inner = LOOPS["asyncio"]()
    try:
        inner.run_until_complete(inner.create_future())
    finally:
        inner.close()


# -- watchers and signals

for side in ("reader", "writer"):
    add = functools.partial(lambda side, r, *args: getattr(r.loop, f"add_{side}")(*args), side)
    remove = functools.partial(lambda side, r, *args: getattr(r.loop, f"remove_{side}")(*args), side)
    for what, fd in {"-1": -1, "-5": -5, "a number that is not open": 9_999, "a huge number": 2 ** 40,
                     "a negative huge number": -2 ** 70, "text": "0", "None": None, "a float": 1.5, "True": True,
                     "an object": NoNumber(), "an object that says -1": Numbered(-1),
                     "an object that says text": Numbered("0"), "an object that says None": Numbered(None),
                     "an object that raises": Numbered(KeyError("fileno")), "bytes": b"0"}.items():
        if what != "True":  # that is the number 1
            ROWS[f"add_{side} of {what}"] = lambda r, add=add, fd=fd: add(r, fd, int)
        ROWS[f"remove_{side} of {what}"] = lambda r, remove=remove, fd=fd: remove(r, fd)
    ROWS |= {
        f"add_{side} without a callback": lambda r, add=add: add(r, r.pair()),
        f"add_{side} without anything": lambda r, add=add: add(r),
        f"add_{side} of a closed socket": lambda r, add=add: add(r, r.closed(), int),
        f"add_{side} of a closed file": lambda r, add=add: add(r, r.closed_file(), int),
        f"add_{side} of a file": lambda r, add=add: add(r, r.file(), int),
        f"add_{side} of None as callback": lambda r, add=add, remove=remove, side=side:
            odd_watcher(r, add, remove, side, None),
        f"add_{side} of a callback that raises": lambda r, add=add, remove=remove, side=side:
            odd_watcher(r, add, remove, side, 1 .__truediv__, 0),
        f"add_{side} of a transport's socket": lambda r, add=add: on_transport_s_socket(r, add, int),
        f"remove_{side} of a transport's socket": lambda r, remove=remove: on_transport_s_socket(r, remove),
        f"remove_{side} of a closed socket": lambda r, remove=remove: remove(r, r.closed()),
        f"remove_{side} of nothing": lambda r, remove=remove: remove(r),
    }


async def odd_watcher(r, add, remove, side, callback, *args):
    sock, far = r.pair(), None
    if side == "reader":
        sock.close()
        source, far = socket.socketpair()
        sock = r.keep(source)
        r.keep(far).send(b"x")
    add(r, sock, callback, *args)
    r.loop.call_later(0.002, remove, r, sock)
    await asyncio.sleep(0.004)
    kinds = set(r.heard)
    r.heard[:] = kinds  # how often it fails in that time is a matter of speed
    return tuple(kinds)


async def on_transport_s_socket(r, call, *args):
    transport = await r.transport()
    return call(r, transport.get_extra_info("socket"), *args)


for signum in (0, -1, 65, 1000, "SIGUSR1", None, 1.5, signal.SIGKILL, signal.SIGSTOP, True, 2 ** 40):
    ROWS[f"add_signal_handler of {signum!r}"] = lambda r, s=signum: (r.loop.add_signal_handler(s, int),
                                                                     r.loop.remove_signal_handler(s))
    ROWS[f"remove_signal_handler of {signum!r}"] = lambda r, s=signum: r.loop.remove_signal_handler(s)
ROWS |= {
    "add_signal_handler of a coroutine function":
        lambda r: r.loop.add_signal_handler(signal.SIGUSR1, coroutine_function),
    "add_signal_handler of a coroutine": lambda r: r.loop.add_signal_handler(signal.SIGUSR1, coroutine_function()),
    "add_signal_handler without a callback": lambda r: r.loop.add_signal_handler(signal.SIGUSR1),
    "add_signal_handler in a thread": lambda r: r.loop.run_in_executor(
        None, r.loop.add_signal_handler, signal.SIGUSR1, int),
    "signal handler that raises": lambda r: raising_signal_handler(r),
}


async def raising_signal_handler(r):
    r.loop.add_signal_handler(signal.SIGUSR1, int, "x")
    os.kill(os.getpid(), signal.SIGUSR1)
    await asyncio.sleep(0.005)
    r.loop.remove_signal_handler(signal.SIGUSR1)


@pytest.mark.parametrize("row", ROWS)
def test_call(row, tmp_path):
    compare(ROWS[row], tmp_path)


# -- messages name the thing

MESSAGES = {
    "add_reader of 'x'": (lambda loop: loop.add_reader("x", int), "x"),
    "add_reader of -7": (lambda loop: loop.add_reader(-7, int), "-7"),
    "add_writer of an unopened number": (lambda loop: loop.add_writer(9_999, int), ""),
    "call_later None": (lambda loop: loop.call_later(None, int), "delay"),
    "call_at None": (lambda loop: loop.call_at(None, int), "when"),
    "call_at text": (lambda loop: loop.call_at("soon", int), ""),
    "call_soon None in debug mode": (lambda loop: (loop.set_debug(True), loop.call_soon(None)), "call_soon"),
    "call_later of a coroutine in debug mode":
        (lambda loop: (loop.set_debug(True), loop.call_later(0, coroutine_function)), "call_later"),
    "add_signal_handler 65": (lambda loop: loop.add_signal_handler(65, int), "65"),
    "add_signal_handler text": (lambda loop: loop.add_signal_handler("USR1", int), "USR1"),
    "create_task of 5": (lambda loop: loop.create_task(5), "5"),
    "set_task_factory of 5": (lambda loop: loop.set_task_factory(5), "task factory"),
    "run_until_complete of 5": (lambda loop: loop.run_until_complete(5), ""),
}


@pytest.mark.gmploop_only
@pytest.mark.parametrize("row", MESSAGES)
def test_the_message_names_what_is_wrong(loop, row):
    call, word = MESSAGES[row]
    with pytest.raises((TypeError, ValueError, OSError)) as caught:
        call(loop)
    assert str(caught.value) and word in str(caught.value)
    loop.run_until_complete(turns(2))


# -- closed loops

CLOSED = {
    "call_soon": lambda loop: loop.call_soon(int), "call_later": lambda loop: loop.call_later(0, int),
    "call_at": lambda loop: loop.call_at(0, int), "call_soon_threadsafe": lambda loop: loop.call_soon_threadsafe(int),
    "call_soon of nothing": lambda loop: loop.call_soon(None),
    "run_forever": lambda loop: loop.run_forever(),
    "run_until_complete": lambda loop: loop.run_until_complete(turns(1)),
    "create_task": lambda loop: loop.create_task(turns(1)), "create_future": lambda loop: loop.create_future(),
    "run_in_executor": lambda loop: loop.run_in_executor(None, int),
    "add_reader": lambda loop: loop.add_reader(0, int), "add_writer": lambda loop: loop.add_writer(1, int),
    "remove_reader": lambda loop: loop.remove_reader(0), "remove_writer": lambda loop: loop.remove_writer(1),
    "remove_reader of nonsense": lambda loop: loop.remove_reader("x"),
    "add_signal_handler": lambda loop: loop.add_signal_handler(signal.SIGUSR1, int),
    "remove_signal_handler": lambda loop: loop.remove_signal_handler(signal.SIGUSR1),
    "close": lambda loop: loop.close(), "stop": lambda loop: loop.stop(), "is_closed": lambda loop: loop.is_closed(),
    "is_running": lambda loop: loop.is_running(), "time": lambda loop: type(loop.time()),
    "repr": lambda loop: type(repr(loop)), "get_debug": lambda loop: loop.get_debug(),
    "set_debug": lambda loop: loop.set_debug(True),
    "set_exception_handler": lambda loop: loop.set_exception_handler(None),
    "call_exception_handler": lambda loop: (loop.set_exception_handler(lambda *args: None),
                                            loop.call_exception_handler({"message": "x"}))[1],
    "create_connection": lambda loop: stepped(loop.create_connection(asyncio.Protocol, "127.0.0.1", 80)),
    "sock_recv": lambda loop: stepped_with_socket(loop, "sock_recv", 10),
    "sock_sendall": lambda loop: stepped_with_socket(loop, "sock_sendall", b"x"),
    "sock_accept": lambda loop: stepped_with_socket(loop, "sock_accept"),
    "getaddrinfo": lambda loop: stepped(loop.getaddrinfo("127.0.0.1", 80)),
    "shutdown_asyncgens": lambda loop: stepped(loop.shutdown_asyncgens()),
    "default handler": lambda loop: loop.default_exception_handler({"message": "closed"}),
}


def stepped(coro):
    """One step of a coroutine without a loop that runs."""
    try:
        coro.send(None)
    except StopIteration as exc:
        getattr(exc.value, "close", int)()
        return type(exc.value)
    finally:
        coro.close()


def stepped_with_socket(loop, method, *args):
    near, far = tcp_pair()
    with near, far:
        return stepped(getattr(loop, method)(near, *args))


@pytest.mark.parametrize("ran", [False, True], ids=["never run", "has run"])
@pytest.mark.parametrize("row", CLOSED)
def test_call_of_a_closed_loop(row, ran):
    found = {}
    for kind, make in LOOPS.items():
        loop = make()
        if ran:
            loop.run_until_complete(turns(2))
        loop.close()
        try:
            result = CLOSED[row](loop)
            found[kind] = result if isinstance(result, (bool, type, str)) else type(result).__name__
        except Exception as exc:
            found[kind] = type(exc)
            assert str(exc)
    assert found["gmploop"] == found["asyncio"]


def test_closing_a_loop_closes_it_once(loop):
    loop.close()
    before = io.open(os.devnull)  # may take a number that the loop had
    loop.close()
    before.read()
    before.close()
    assert loop.is_closed() and "closed=True" in repr(loop)


@pytest.mark.parametrize("thing", [None, 5, "coroutine", int, coroutine_function, object()], ids=repr)
def test_run_until_complete_of_what_is_no_awaitable(thing):
    found = {}
    for kind, make in LOOPS.items():
        loop = make()
        try:
            loop.run_until_complete(thing)
        except Exception as exc:
            found[kind] = type(exc)
        assert not loop.is_running()
        loop.close()
    assert found["gmploop"] is found["asyncio"] is TypeError


def test_running_stops_where_it_should(same_as_stock):
    """stop() before the run, in the run, twice, and from a callback that raises a BaseException."""
    found = {}
    for kind, make in LOOPS.items():
        loop, log = make(), []
        loop.call_soon(log.append, "first")
        loop.stop()
        loop.run_forever()
        loop.call_soon(loop.stop)
        loop.call_soon(loop.stop)
        loop.call_soon(lambda: loop.call_soon(log.append, "for the next run"))
        loop.run_forever()
        log.append("stopped")
        loop.call_soon(throw, SystemExit(3))
        loop.call_soon(log.append, "same turn")
        try:
            loop.run_forever()
        except SystemExit as exc:
            log.append(exc.code)
        log.append(loop.is_running())
        loop.call_soon(loop.stop)
        loop.run_forever()
        future = loop.create_future()
        loop.call_soon(loop.stop)
        try:
            loop.run_until_complete(future)
        except RuntimeError as exc:
            log.append(str(exc))
        loop.close()
        found[kind] = log
    assert found["gmploop"] == found["asyncio"]


@pytest.mark.parametrize("options", [{"poller": 5}, {"poller": "magic"}, {"debug": "maybe"}, {"nothing": 1}], ids=str)
def test_options_that_make_no_sense(options):
    with pytest.raises((TypeError, ValueError)) as caught:
        gmploop.new_event_loop(**options)
    assert next(iter(options)) in str(caught.value)
