"""gmploop.run(main, replicas=N): N worlds in as many threads, one listening socket per address, signals for all."""

import asyncio
import collections
import contextvars
import logging
import os
import signal
import socket
import threading

import pytest

import gmploop
import support
from gmploop import config, replicas, sharing
from replicating import N, Together, run

pytestmark = pytest.mark.timeout(30)
variable = contextvars.ContextVar("variable")


# -- running and ending

def test_each_has_a_thread_and_a_loop_of_its_own_and_results_come_in_order():
    together, loops = Together(), set()

    async def main():
        together.meet()         # only if all run at once
        loops.add(asyncio.get_running_loop())
        assert isinstance(asyncio.get_running_loop(), gmploop.Loop)
        await asyncio.sleep(0.01 * (N - replicas.index()))
        return replicas.index(), threading.get_ident()

    results = run(main)
    assert [index for index, _ in results] == list(range(N))
    assert results[0][1] == threading.get_ident()
    assert len({thread for _, thread in results}) == len(loops) == N
    assert all(loop.is_closed() for loop in loops)
    assert replicas.index() is None
    assert run(alone, 1) == [7]


async def alone():
    return 7


def test_inherit_context_and_debug_mode():
    variable.set("ours")

    async def main():
        seen = variable.get()
        variable.set(replicas.index())
        await asyncio.sleep(0.01)
        return seen, variable.get(), asyncio.get_running_loop().get_debug()

    assert run(main, debug=True) == [("ours", i, True) for i in range(N)]
    assert variable.get() == "ours"


def test_asks_for_a_coroutine_function_and_a_number():
    coroutine = alone()
    with pytest.raises(TypeError, match="coroutine function itself"):
        gmploop.run(coroutine, replicas=2)
    with pytest.raises(TypeError, match="coroutine function, not 7"):
        gmploop.run(7, replicas=2)
    for bad, error in ((0, ValueError), (-1, ValueError), ("2", TypeError), (2.0, TypeError), (True, TypeError)):
        with pytest.raises(error, match="replicas takes a number from 1 on"):
            gmploop.run(alone, replicas=bad)

    async def nested():
        with pytest.raises(RuntimeError, match="running event loop"):
            gmploop.run(alone, replicas=2)
    gmploop.run(nested())


@pytest.mark.parametrize("who", range(N))
@pytest.mark.parametrize("error", [ZeroDivisionError, SystemExit, asyncio.CancelledError])
def test_a_crash_cancels_the_others_and_is_raised(who, error, caplog):
    together, ended = Together(), []

    async def main():
        together.meet()
        if replicas.index() == who:
            raise error("ours")
        try:
            await asyncio.sleep(60)
        finally:
            ended.append(replicas.index())

    with pytest.raises(error, match="ours") as raised:
        run(main)
    assert sorted(ended) == [i for i in range(N) if i != who]
    assert raised.traceback[-1].name == "main"
    told = [record.getMessage() for record in caplog.records if record.name == "gmploop"]
    assert bool(told) == (error is not SystemExit) and all(f"replica {who} of {N} ended" in line for line in told)


def test_what_else_failed_is_logged(caplog):
    together = Together(2)

    async def main():
        together.meet()
        if replicas.index() == 1:
            raise ZeroDivisionError
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            raise KeyError("second") from None

    with pytest.raises(ZeroDivisionError):
        run(main, 2)
    [last] = [record for record in caplog.records if record.exc_info]
    assert last.exc_info[0] is KeyError and last.levelno == logging.ERROR


def test_a_replica_that_will_not_end_after_a_crash_is_shown_and_left_behind(caplog, monkeypatch):
    monkeypatch.setattr(config, "REPLICAS_END_S", 0.2)
    together, release = Together(2), threading.Event()

    def stuck_here():
        together.meet()
        release.wait(20)

    async def main():
        if replicas.index() == 1:
            stuck_here()
        else:
            together.meet()
            raise ZeroDivisionError

    before = set(threading.enumerate())
    with pytest.raises(ZeroDivisionError):
        run(main, 2)
    assert any("replica 1 has not ended" in r.getMessage() and "stuck_here" in r.getMessage() for r in caplog.records)
    release.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(10)


def test_runs_on_any_thread(in_thread):
    results = []
    in_thread(lambda: results.append(run(alone, 2))).join(10)
    assert results == [[7, 7]]


def test_what_a_replica_leaves_open_is_closed():
    together = Together(2)

    async def main():
        server = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
        together.meet()
        return server.sockets[0].getsockname()

    [address, other] = run(main, 2)
    assert address == other
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(address)


def test_a_replica_that_fails_to_leave_what_it_shares_has_crashed(monkeypatch):
    leave = sharing.Dealer.leave

    def fail(dealer, replica):
        leave(dealer, replica)
        if replica.index == 1:
            raise OSError("no more")
    monkeypatch.setattr(sharing.Dealer, "leave", fail)
    with pytest.raises(OSError, match="no more"):
        run(alone, 2)


# -- signals

def test_a_signal_reaches_every_replica_that_handles_it():
    together, got = Together(), collections.Counter()

    async def main():
        loop, here = asyncio.get_running_loop(), asyncio.Event()

        def handle(word):
            assert asyncio.get_running_loop() is loop
            got[word, replicas.index()] += 1
            here.set()

        loop.add_signal_handler(signal.SIGUSR1, handle, "one")
        together.meet()
        if replicas.index() == 1:
            os.kill(os.getpid(), signal.SIGUSR1)
        await here.wait()
        together.meet()
        here.clear()
        if replicas.index() == 2:
            assert loop.remove_signal_handler(signal.SIGUSR1) is True
            assert loop.remove_signal_handler(signal.SIGUSR1) is False
        together.meet()
        if replicas.index() == 0:
            os.kill(os.getpid(), signal.SIGUSR1)
        if replicas.index() != 2:
            await here.wait()

    before = {sig: signal.getsignal(sig) for sig in (signal.SIGUSR1, signal.SIGINT, signal.SIGURG)}
    run(main)
    assert got == {("one", 0): 2, ("one", 1): 2, ("one", 2): 1}
    assert {sig: signal.getsignal(sig) for sig in before} == before
    assert signal.set_wakeup_fd(-1) == -1


def test_handlers_are_set_while_the_main_thread_is_busy_or_gone():
    """A replica's add_signal_handler() does not wait for the main thread's loop."""
    together = Together(2)

    async def main():
        loop, here = asyncio.get_running_loop(), asyncio.Event()
        if replicas.index() == 0:
            together.meet()
            together.meet()             # blocks the main thread's loop meanwhile
            return
        together.meet()
        loop.add_signal_handler(signal.SIGUSR1, here.set)
        together.meet()
        first = sharing.current().run.replicas[0]
        await asyncio.wrap_future(first.ended)
        os.kill(os.getpid(), signal.SIGUSR1)
        await here.wait()

    run(main, 2)


def test_signal_errors_are_asyncios():
    async def main():
        loop = asyncio.get_running_loop()
        with pytest.raises(RuntimeError, match="cannot be caught"):
            loop.add_signal_handler(signal.SIGKILL, print)
        with pytest.raises(TypeError, match="coroutines cannot be used"):
            loop.add_signal_handler(signal.SIGUSR1, alone)
        with pytest.raises(TypeError):
            loop.add_signal_handler("SIGUSR1", print)
        with pytest.raises(ValueError):
            loop.add_signal_handler(12345, print)
        with pytest.raises(ValueError):
            loop.remove_signal_handler(12345)
        assert not loop._signal_handlers

    run(main)


def test_outside_a_run_only_the_main_thread_handles_signals(same_as_stock):
    async def scenario(loop):
        def elsewhere():
            other = type(loop)()
            try:
                return support.result_of(other.add_signal_handler, signal.SIGUSR1, print)
            finally:
                other.close()
        return await asyncio.to_thread(elsewhere)

    assert same_as_stock(scenario) is RuntimeError


def test_ctrl_c_cancels_all_replicas():
    """The signal may come anywhere; KeyboardInterrupt comes once all have ended."""
    together, ended = Together(), []

    async def main():
        together.meet()
        if replicas.index() == 1:
            os.kill(os.getpid(), signal.SIGINT)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            ended.append(replicas.index())
            raise

    with pytest.raises(KeyboardInterrupt):
        run(main)
    assert sorted(ended) == list(range(N))
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_ctrl_c_that_every_replica_survives():
    async def main():
        if replicas.index() == 0:
            os.kill(os.getpid(), signal.SIGINT)
        try:
            await asyncio.sleep(60)
        except asyncio.CancelledError:
            return "survived"

    assert run(main) == ["survived"] * N
