"""write_batching: the small writes of a turn leave together when it ends, on each poller that can do so."""

import asyncio
import contextlib
import logging
import os
import random
import socket
import time

import gmploop
import pytest
from gmploop import config
from gmploop.core import batch, runtime
from support import Recorder, child_output, link, reset, result_of, tcp_pair, turns, unix_pair

pytestmark = [pytest.mark.timeout(60), pytest.mark.gmploop_only]


def missing(name):
    made = result_of(gmploop.new_event_loop, poller=name)
    return made if made is OSError else made.close()


@pytest.fixture(autouse=True, params=[name for name in ("epoll", "io_uring") if missing(name) is None])
def poller(request, monkeypatch):
    monkeypatch.setenv("GMPLOOP_POLLER", request.param)
    monkeypatch.setenv("GMPLOOP_WRITE_BATCHING", "1")
    return request.param


@pytest.fixture
def patient():
    """Every small write waits for the end of its turn, however long that takes."""
    gmploop.new_event_loop().close()        # which sets what is usual
    batch.configure(**config.batch_tunables() | {"wait_ns": 10 ** 12, "min_ready": 0})
    yield
    batch.configure(**config.batch_tunables())


def busy(loop):
    """Give the loop enough to do that writes wait."""
    for _ in range(config.BATCH_MIN_READY):
        loop.call_soon(int)


def received(sock):
    return result_of(sock.recv, 1 << 20)


@contextlib.asynccontextmanager
async def many(loop, count):
    """Transports, and the sockets at their far ends."""
    ends = [unix_pair() for _ in range(count)]
    transports = [(await loop.create_connection(Recorder, sock=near))[0] for near, _ in ends]
    yield transports, [far for _, far in ends]
    for transport in transports:
        transport.abort()
    await turns(2)
    for _, far in ends:
        far.close()


async def broken(loop):
    """A connection that its peer has reset, unnoticed as yet."""
    sock, peer = tcp_pair()
    transport, end = await loop.create_connection(Recorder, sock=sock)
    transport.pause_reading()
    reset(peer)
    return transport, end


async def fill(near, far, size, before=int, after=int):
    """Write pieces of size() bytes until the writer is paused; all must arrive when the far end reads again."""
    sent = bytearray()
    far.transport.pause_reading()
    while not near.count("pause"):
        before()
        sent += (text := random.randbytes(size()))
        near.transport.write(text)
        await turns(after())
    far.transport.resume_reading()
    await far.received(len(sent))
    assert far.data == sent


def test_what_a_callback_writes_leaves_when_the_turn_ends_and_in_order(patient, run, loop):
    async def main():
        ends = [tcp_pair() for _ in range(5)]
        transports = [(await loop.create_connection(Recorder, sock=near))[0] for near, _ in ends]
        for size in 1, 100:
            for transport in transports:
                for text in b"a", bytearray(b"b"), b"c" * size:
                    transport.write(text)
                assert transport.get_write_buffer_size() == 2 + size
            assert [received(far) for _, far in ends] == [BlockingIOError] * 5
            assert [await loop.sock_recv(far, 1000) for _, far in ends] == [b"ab" + b"c" * size] * 5
            assert transports[0].get_write_buffer_size() == 0
        for transport in transports:
            transport.abort()
        await turns(2)
        for _, far in ends:
            far.close()
    run(main())


def test_small_lines_wait_as_small_data_does(patient, run, loop):
    async def main():
        near, far = tcp_pair()
        transport, _ = await loop.create_connection(Recorder, sock=near)
        transport.writelines([b"a", bytearray(b"b"), memoryview(b"c")])
        transport.write(b"d")
        transport.writelines([b"e"])
        assert transport.get_write_buffer_size() == 5 and received(far) is BlockingIOError
        assert await loop.sock_recv(far, 1000) == b"abcde"
        transport.abort()
        await turns(2)
        far.close()
    run(main())


@pytest.mark.parametrize("how", ["abort", "an error of the protocol"])
def test_an_abort_drops_nothing_that_had_left_without_a_batch(patient, run, loop, errors, how):
    class Fails(Recorder):
        def data_received(self, data):
            self.transport.write(b"400")
            raise ZeroDivisionError

    async def main():
        near, far = tcp_pair()
        transport, end = await loop.create_connection(Fails, sock=near)
        if how == "abort":
            transport.write(b"400")
            transport.abort()
        else:
            await loop.sock_sendall(far, b"x")
        assert await loop.sock_recv(far, 10) == b"400"
        await turns(2)
        far.close()
    run(main())
    errors.clear()


@pytest.mark.parametrize("what", ["close", "write_eof", "a large write", "writelines", "a view", "more than is kept"])
def test_whatever_else_is_done_sends_it_first(patient, run, loop, what):
    async def main():
        near, far = tcp_pair()
        transport, end = await loop.create_connection(Recorder, sock=near)
        transport.write(b"first")
        then = {"close": transport.close, "write_eof": transport.write_eof,
                "a large write": lambda: transport.write(bytes(5000)),
                "writelines": lambda: transport.writelines([bytes(3000), bytes(3000)]),
                "a view": lambda: transport.write(memoryview(b"view")),
                "more than is kept": lambda: [transport.write(bytes(4096)) for _ in range(4)]}
        then[what]()
        assert received(far)[:5] == b"first"
        transport.abort()
        await end.lost
        far.close()
    run(main())


def test_what_resume_writing_writes_leaves_before_a_close(patient, run, loop):
    """It is called when the buffer is empty, which is what close() has waited for."""
    class LastWords(Recorder):
        def resume_writing(self):
            super().resume_writing()
            self.transport.write(b"last")

    async def main():
        near, far = unix_pair()
        transport, protocol = await loop.create_connection(LastWords, sock=near)
        far_transport, far_end = await loop.create_connection(Recorder, sock=far)
        far_transport.pause_reading()
        transport.write(text := random.randbytes(1 << 21))
        assert protocol.count("pause")
        transport.close()
        far_transport.resume_reading()
        await protocol.lost
        await far_end.lost
        assert far_end.data == text + b"last"
    run(main())


def test_nothing_waits_while_the_loop_is_not_run(patient, loop):
    near, far = unix_pair()

    async def connect():
        return await loop.create_connection(Recorder, sock=near)
    transport, _ = loop.run_until_complete(connect())
    transport.write(b"while nobody runs it")
    assert received(far) == b"while nobody runs it"

    async def last_words():
        transport.write(b"last words")
    loop.run_until_complete(last_words())
    assert received(far) == b"last words"
    transport.abort()
    loop.run_until_complete(asyncio.sleep(0))
    far.close()


@pytest.mark.parametrize("kind", ["tcp", "unix"])
def test_a_peer_that_does_not_read_gets_all_of_it_later(patient, run, loop, kind):
    async def main():
        async with link(kind) as (near, far):
            near.transport.set_write_buffer_limits(high=20_000)
            chosen = random.Random(3)
            await fill(near, far, lambda: chosen.randrange(1, 4096), after=lambda: chosen.randrange(2))
            assert near.count("resume")
    run(main())


def test_a_broken_connection_is_told_and_does_not_hurt_the_others(patient, run, loop):
    async def main():
        async with link("tcp") as (near, far), link("tcp") as (other, other_far):
            transport, end = await broken(loop)
            for one in near.transport, transport, other.transport:
                one.write(b"x")
            assert isinstance(await end.lost, ConnectionError)
            await far.received(1)
            await other_far.received(1)
    run(main())


def test_code_that_runs_while_a_batch_is_told_doubles_nothing(patient, run, loop, caplog):
    """The end of one connection is told (to a log here) before the others know that their data has left."""
    class Meddler(logging.Handler):
        def emit(self, record):
            if not done and "Fatal write error" in record.getMessage():
                done.append(1)
                writes.write(b"then")
                closes.close()
                aborts.abort()

    done, meddler = [], Meddler()

    async def main():
        transport, end = await broken(loop)
        async with many(loop, 3) as (others, fars):
            nonlocal writes, closes, aborts
            writes, closes, aborts = others
            for one in transport, *others:
                one.write(b"once")
            await end.lost
            await turns(3)
            assert done and [received(far) for far in fars] == [b"oncethen", b"once", b"once"]
    writes = closes = aborts = None
    loop.set_debug(True)
    caplog.set_level(logging.DEBUG, "asyncio")
    logging.getLogger("asyncio").addHandler(meddler)
    try:
        run(main())
    finally:
        logging.getLogger("asyncio").removeHandler(meddler)


def test_many_connections_more_than_a_ring_carries(patient, run, loop):
    async def main():
        async with many(loop, 300) as (transports, fars):
            for _ in range(3):
                for number, transport in enumerate(transports):
                    transport.write(b"%d" % number)
                assert [await loop.sock_recv(far, 1000) for far in fars] == [b"%d" % number for number in range(300)]
    run(main())


# -- how long it waits

def test_a_turn_with_nothing_else_to_do_sends_at_once(run, loop):
    async def main():
        near, far = tcp_pair()
        transport, end = await loop.create_connection(Recorder, sock=near)
        transport.write(b"at once")
        assert received(far) == b"at once"
        transport.abort()
        await end.lost
        far.close()
    run(main())


def test_a_long_turn_sends_on_its_way(patient, run, loop):
    async def main():
        loop.set_debug(False)           # whose turns are timed, and send at their end
        async with many(loop, 2) as (transports, fars):
            loop.call_soon(transports[0].write, b"first")
            loop.call_soon(transports[1].write, b"second")
            for _ in range(100):
                loop.call_soon(int)
            seen = loop.create_future()
            loop.call_soon(lambda: seen.set_result([received(far) for far in fars]))
            for _ in range(10):
                loop.call_soon(int)
            assert await seen == [b"first", b"second"]
    run(main())


@pytest.fixture
def looks():
    yield lambda every: runtime.set_tunables(**config.turn_tunables() | {"look_every": every})
    runtime.set_tunables(**config.turn_tunables())


@pytest.mark.parametrize("every, wait_ns", [(8, 10 ** 12), (1 << 20, 400_000_000)], ids=["it looks", "it is asked"])
def test_a_turn_that_lasts_sends_between_two_callbacks_what_has_waited(patient, looks, run, loop, every, wait_ns):
    """Together, that is: it is not left to the thread that sends one by one, as long as callbacks come to an end."""
    looks(every)
    batch.configure(**config.batch_tunables() | {"wait_ns": wait_ns, "min_ready": 0})
    seen = []

    def look_and_take_time(far):
        if not seen and received(far) == b"what waits":
            seen.append("between two callbacks")
        elif not seen:
            time.sleep(0.02)            # a fifth of the time that the thread leaves it
            if received(far) == b"what waits":
                seen.append("by the thread")

    async def main():
        loop.set_debug(False)           # whose turns are timed, and send at their end
        async with many(loop, 2) as (transports, fars):
            for transport in transports:
                loop.call_soon(transport.write, b"what waits")
            for _ in range(45):
                loop.call_soon(look_and_take_time, fars[0])
            ended = loop.create_future()
            loop.call_soon(lambda: ended.set_result(list(seen)))
            assert await ended == ["between two callbacks"]
            assert received(fars[1]) == b"what waits"
    run(main())


def until_received(sock):
    """Compute until something has come."""
    while (data := received(sock)) is BlockingIOError:
        pass
    return data


def block_until_received(sock):
    sock.settimeout(5)
    return sock.recv(100)


@pytest.mark.parametrize("wait", [until_received, block_until_received])
@pytest.mark.parametrize("kind", [tcp_pair, unix_pair])
def test_what_was_written_leaves_while_the_callback_goes_on(run, loop, wait, kind):
    """In about a millisecond: the callback that writes waits for the answer, or computes. And once only."""
    async def main():
        took = []
        near, far = kind()
        transport, end = await loop.create_connection(Recorder, sock=near)
        for number in range(20):
            busy(loop)
            transport.write(b"%d," % number)
            began = time.monotonic()
            assert wait(far) == b"%d," % number
            took.append(time.monotonic() - began)
            if number % 2:
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.005)
        far.setblocking(False)
        assert received(far) is BlockingIOError
        transport.abort()
        await end.lost
        far.close()
        assert min(took) < 0.01 and max(took) < 1
    run(main())


def test_callbacks_of_all_lengths_lose_and_double_nothing(run, loop):
    async def main():
        chosen = random.Random(4)
        expected, got = [bytearray() for _ in range(20)], [bytearray() for _ in range(20)]

        def write():
            for _ in range(5):
                number = chosen.randrange(20)
                expected[number] += (text := chosen.randbytes(chosen.randrange(1, 2000)))
                transports[number].write(text)
                if chosen.random() < 0.2:
                    time.sleep(chosen.choice([0.0005, 0.001, 0.0015]))

        def read():
            for far, data in zip(fars, got, strict=True):
                while isinstance(new := received(far), bytes) and new:
                    data += new
        async with many(loop, 20) as (transports, fars):
            for _ in range(200):
                for _ in range(5):
                    loop.call_soon(write)
                await asyncio.sleep(0)
                read()
            while got != expected:
                await asyncio.sleep(0.001)
                read()
    run(main())


def test_what_the_peer_did_not_take_meanwhile_follows(run, loop):
    async def main():
        async with link("unix") as (near, far):
            near.transport._sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
            near.transport.set_write_buffer_limits(high=10_000)

            def hold():
                time.sleep(0.005)               # so that it is not the loop that sends it
                return 1
            await fill(near, far, lambda: 4000, lambda: busy(loop), hold)
    run(main())


@pytest.mark.parametrize("then", ["go on", "close", "write", "abort"])
def test_a_connection_found_broken_meanwhile_is_told(run, loop, then):
    async def main():
        transport, end = await broken(loop)
        busy(loop)
        transport.write(b"x")
        time.sleep(0.01)
        getattr(transport, then, int)(*[b"y"] * (then == "write"))
        error = await end.lost
        assert error is None if then == "abort" else isinstance(error, ConnectionError)
    run(main())


def test_the_thread_that_sees_to_it_sleeps_when_nothing_waits():
    assert child_output("gmploop", """
        def switches():
            for task in os.listdir("/proc/self/task"):
                with open(f"/proc/self/task/{task}/status") as status:
                    lines = status.read().splitlines()
                if lines[0].endswith("gmploop-flush"):
                    return [line for line in lines if "ctxt" in line]

        async def main():
            near, far = socket.socketpair()
            near.setblocking(False)
            transport, _ = await loop.create_connection(asyncio.Protocol, sock=near)
            for _ in range(10):
                for _ in range(5):
                    loop.call_soon(int)
                transport.write(b"x")
                await asyncio.sleep(0)
            transport.abort()
            far.close()
        loop = gmploop.new_event_loop()
        assert switches() is None
        loop.run_until_complete(main())
        deadline, before, now = time.monotonic() + 10, None, None
        while before is None or before != now and time.monotonic() < deadline:
            time.sleep(0.3)
            before, now = now, switches()
        print(before == now)
        loop.close()
    """) == "True\n"


@pytest.mark.skipif(not hasattr(os, "register_at_fork"), reason="no fork")
@pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="Linux has it")
def test_the_thread_that_sees_to_it_does_not_interrupt_the_loop(patient, run, loop):
    def policies():
        for task in os.listdir("/proc/self/task"):
            with contextlib.suppress(OSError), open(f"/proc/self/task/{task}/comm") as comm:
                if comm.read() == "gmploop-flush\n":
                    yield os.sched_getscheduler(int(task))

    async def main():
        async with many(loop, 1) as (transports, _):
            transports[0].write(b"waits")
            while list(policies()) != [os.SCHED_BATCH]:     # it may not have begun
                await asyncio.sleep(0)
    run(main())


def test_a_process_that_forks_has_no_thread_more_for_it():
    assert child_output("gmploop", """
        async def main():
            near, far = socket.socketpair()
            near.setblocking(False)
            transport, _ = await loop.create_connection(asyncio.Protocol, sock=near)
            for _ in range(3):
                for _ in range(5):
                    loop.call_soon(int)
                transport.write(b"x")
                child = os.fork()           # would warn of another thread
                if not child:
                    os._exit(0)
                assert os.waitpid(child, 0)[1] == 0
                assert far.recv(10) == b"x"     # before the fork
                await asyncio.sleep(0)
            transport.abort()
            far.close()
        loop = gmploop.new_event_loop()
        loop.run_until_complete(main())
        loop.close()
    """, options=["-W", "error"]) == ""


@pytest.mark.skipif(not hasattr(os, "register_at_fork"), reason="no fork")
def test_what_waits_is_sent_when_the_interpreter_ends(monkeypatch):
    monkeypatch.setenv("GMPLOOP_DEBUG", "batch_wait_us=1000000")
    near, far = unix_pair()
    with near, far:
        child_output("gmploop", """
            written = threading.Event()

            async def main():
                near = socket.socket(fileno=int(sys.argv[1]))
                transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=near)
                for _ in range(5):
                    loop.call_soon(int)
                transport.write(b"goodbye")
                assert transport.get_write_buffer_size()
                written.set()
                time.sleep(100)
            loop = new_loop()
            threading.Thread(target=loop.run_until_complete, args=[main()], daemon=True).start()
            assert written.wait(20)
        """, str(near.fileno()), pass_fds=[near.fileno()])
        assert received(far) == b"goodbye"


# -- fork

def test_in_a_forked_child_it_goes_on():
    assert child_output("gmploop", """
        loop = gmploop.new_event_loop()
        pairs = [socket.socketpair() for _ in range(3)]
        for near, _ in pairs:
            near.setblocking(False)

        async def use(text):
            for transport in transports:
                transport.write(text)
            await asyncio.sleep(0.001)
            return [far.recv(10) for _, far in pairs]
        transports = [loop.run_until_complete(loop.create_connection(asyncio.Protocol, sock=near))[0]
                      for near, _ in pairs]
        assert loop.run_until_complete(use(b"one")) == [b"one"] * 3
        child = os.fork()
        if not child:
            os._exit(loop.run_until_complete(use(b"two")) != [b"two"] * 3)
        print(os.waitpid(child, 0)[1])
        assert loop.run_until_complete(use(b"three")) == [b"three"] * 3
        for transport in transports:
            transport.abort()
        loop.run_until_complete(asyncio.sleep(0))
        loop.close()
        for _, far in pairs:
            far.close()
    """, options=["-W", "ignore::DeprecationWarning"]) == "0\n"


@pytest.mark.parametrize("end", ["close", "abort"])
def test_a_child_forked_in_mid_turn_sends_nothing_of_the_parent_s(end):
    assert child_output("gmploop", f"""
        async def main():
            near, far = socket.socketpair()
            near.setblocking(False)
            transport, _ = await asyncio.get_running_loop().create_connection(asyncio.Protocol, sock=near)
            for _ in range(5):
                asyncio.get_running_loop().call_soon(int)
            transport.write(b"once")
            child = os.fork()
            if not child:
                transport.{end}()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
            await asyncio.sleep(0.001)
            print(far.recv(100))
            transport.abort()
            far.close()
        gmploop.run(main())
    """, options=["-W", "ignore::DeprecationWarning"]) == "b'once'\n"


@pytest.mark.parametrize("ending", ["abort", "close"])
def test_without_batches_a_transport_ends_as_ever(ending):
    async def main():
        near, far = tcp_pair()
        transport, end = await asyncio.get_running_loop().create_connection(Recorder, sock=near)
        transport.write(b"data")
        getattr(transport, ending)()
        await end.lost
        assert far.recv(100) == b"data"
        far.close()
    loop = gmploop.new_event_loop(write_batching=False)
    try:
        loop.run_until_complete(main())
    finally:
        loop.close()
