"""Goroutines' small writes of a busy time leave together (core/batch.pyx): even if every one waits, nothing is lost, doubled
or late."""

import pytest
from gmploop.core import batch

pytestmark = pytest.mark.timeout(120)

HEAD = """
import asyncio, os, random, socket, struct, sys, threading, time
import gmploop
from gmploop import go

def pair(bufsize=None):
    near, far = socket.socketpair()
    if bufsize:
        near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, bufsize)
    far.settimeout(20)
    return near, far

def all_of(far):
    parts = []
    while part := far.recv(1 << 16):
        parts.append(part)
    return b"".join(parts)

class Ends(asyncio.Protocol):
    def __init__(self):
        self.lost, self.can_write = asyncio.get_running_loop().create_future(), asyncio.Event()
        self.can_write.set()
    def pause_writing(self):
        self.can_write.clear()
    def resume_writing(self):
        self.can_write.set()
    def connection_lost(self, exc):
        self.lost.set_result(exc)

async def open_(near):
    return await asyncio.get_running_loop().create_connection(Ends, sock=near)
"""


@pytest.fixture(scope="module", autouse=True)
def has_rings(started):
    if not batch.rings_to_be_had():
        pytest.skip("no io_uring: nothing waits")


@pytest.fixture
def waits(program):
    """Runs a program in which each small write waits until its M has nothing else to do: its output."""
    def runner(source, wait_us=1_000_000, debug="", **env):
        done = program(HEAD + source, timeout=60, GMPLOOP_POLLER="auto", GMPLOOP_WRITE_BATCHING="1",
                       GMPLOOP_DEBUG=f"batch_min_ready=0,batch_wait_us={wait_us}{debug}", **env)
        assert (done.returncode, done.stderr) == (0, "")
        return done.stdout
    return runner


def test_what_was_written_waits_for_the_end_of_the_turn_and_no_longer(waits):
    assert waits("""
near, far = pair()
async def writes():
    transport, _ = await open_(near)
    transport.write(b"one,")
    transport.write(b"two")
    print(transport.get_write_buffer_size())
    far.setblocking(False)
    try:
        far.recv(100)
    except BlockingIOError:
        print("nothing yet")
    far.settimeout(20)
    await asyncio.sleep(0.001)
    print(transport.get_write_buffer_size(), far.recv(100))
    transport.abort()
async def main():
    await go(writes)
gmploop.run(main())
""") == "7\nnothing yet\n0 b'one,two'\n"


@pytest.mark.parametrize("whose", ["turns of worlds", "turns of one world"])
def test_what_has_waited_leaves_between_two_turns(waits, whose):
    """Together, and not by the thread that sends one by one, as long as turns come to an end."""
    many = whose == "turns of worlds"
    assert waits(f"""
MANY = {many}
""" + """
near, far = pair()
seen = []
def got():
    try:
        return far.recv(100) == b"what waits"
    except BlockingIOError:
        return False
async def writes():
    transport, _ = await open_(near)
    far.setblocking(False)
    for _ in range(25 * MANY):
        go(takes_time)
    transport.write(b"what waits")
    while not seen:
        await (asyncio.sleep(0.01) if MANY else takes_time())
        await asyncio.sleep(0)
    transport.abort()
async def takes_time():
    if not seen and got():
        seen.append("between two turns")
    elif not seen:
        time.sleep(0.03)                # a fourth of the time that the thread leaves it
        if got():
            seen.append("by the thread")
async def main():
    await go(writes)
    print(*seen)
gmploop.run(main(), procs=1)
""", wait_us=480_000, debug=",retake_ms=0") == "between two turns\n"


@pytest.mark.parametrize("goes_on", ["time.sleep(0)", "sum(range(100))"])
def test_what_was_written_leaves_while_the_callback_goes_on(waits, goes_on):
    assert waits(f"""
near, far = pair()
got = threading.Event()
def reads():
    print(far.recv(100))
    got.set()
async def writes():
    transport, _ = await open_(near)
    transport.write(b"at once")
    while not got.is_set():
        {goes_on}
    transport.abort()
async def main():
    await go(writes)
reader = threading.Thread(target=reads)
reader.start()
gmploop.run(main())
reader.join()
""", wait_us=1000) == "b'at once'\n"


def test_what_could_not_be_sent_then_leaves_later_while_another_s_callback_goes_on(waits):
    assert waits("""
near, far = pair(4096)
got = threading.Event()
def reads():
    left = 16000
    while left:
        left -= len(far.recv(100))
    got.set()
async def blocks():
    while not got.is_set():
        time.sleep(0.001)
async def writes():
    transport, _ = await open_(near)
    for _ in range(4):
        transport.write(bytes(4000))
    await go(blocks)
    while transport.get_write_buffer_size():        # who sent the last of it has still to say so
        await asyncio.sleep(0)
    print("sent")
    transport.abort()
async def main():
    await go(writes)
reader = threading.Thread(target=reads)
reader.start()
gmploop.run(main(), procs=1)
reader.join()
""", wait_us=1000) == "sent\n"


def test_an_abort_after_a_send_that_failed_closes_the_descriptor_once(waits):
    """Who opens a file right after the connection was closed has its number, and keeps it."""
    assert waits("""
opened = []
class Served(Ends):
    def connection_made(self, transport):
        made.set_result(transport)
    def connection_lost(self, exc):
        print("lost")
async def serves():
    global made
    loop = asyncio.get_running_loop()
    made = loop.create_future()
    server = await loop.create_server(Served, "127.0.0.1", 0)
    client = socket.create_connection(server.sockets[0].getsockname())
    transport = await made
    await asyncio.sleep(0)
    transport.pause_reading()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    client.close()
    fd = transport._sock_fd
    detach = server._detach
    def opens(*args):
        detach(*args)
        while not opened or opened[-1] < fd:
            opened.append(os.open("/dev/null", os.O_RDONLY))
    server._detach = opens
    transport.write(b"data")
    while transport.get_write_buffer_size():
        if time.monotonic() > end:
            break
    transport.abort()
    while not opened:
        await asyncio.sleep(0)
    await asyncio.sleep(0.001)
    for number in opened:
        os.fstat(number)
    server.close()
end = time.monotonic() + 0.02       # by then the flusher has sent, and failed
gmploop.run(serves(), lock_main=False)
""", wait_us=1000) == "lost\n"


@pytest.mark.parametrize("procs", [1, 2, 4])
@pytest.mark.parametrize("wait_us", [1, 1000, 1_000_000])
def test_every_byte_arrives_once_and_in_order(waits, procs, wait_us):
    assert waits(f"""
MANY, LINES = 40, 150
def reads(far, number, results):
    results[number] = all_of(far)
async def writes(near, number):
    rnd = random.Random(number)
    transport, protocol = await open_(near)
    sent = bytearray()
    for line in range(LINES):
        sent += (data := b"%d:%d;" % (number, line) * rnd.choice([1, 1, 1, 30, 900]))
        transport.write(data)
        await protocol.can_write.wait()
        match rnd.randrange(6):
            case 0: await asyncio.sleep(0)
            case 1: await asyncio.sleep(0.0001)
            case 2: await gmploop.yield_now()
            case 3: transport.get_write_buffer_size()
    transport.close()
    await protocol.lost
    return bytes(sent)
async def main():
    pairs = [pair(4096) for _ in range(MANY)]
    results = [None] * MANY
    readers = [threading.Thread(target=reads, args=(far, n, results)) for n, (_, far) in enumerate(pairs)]
    for reader in readers:
        reader.start()
    sent = await asyncio.gather(*[go(writes, near, n) for n, (near, _) in enumerate(pairs)])
    for reader in readers:
        reader.join()
    print(results == sent)
gmploop.run(main(), procs={procs})
""", wait_us=wait_us) == "True\n"


@pytest.mark.parametrize("then", ["transport.close()", "transport.write_eof()", "transport.abort()", "return",
                                  "transport.write(bytes(100_000)); transport.close()"])
def test_whatever_else_is_done_sends_it_first(waits, then):
    assert waits(f"""
near, far = pair()
async def writes():
    transport, _ = await open_(near)
    transport.write(b"first")
    {then}
async def main():
    await go(writes)
    print(all_of(far)[:5])
gmploop.run(main())
""") == "b'first'\n"


def test_a_peer_that_does_not_read_gets_all_of_it_later(waits):
    assert waits("""
near, far = pair(4096)
async def writes():
    transport, protocol = await open_(near)
    transport.set_write_buffer_limits(high=50_000)
    count = 0
    while protocol.can_write.is_set():
        transport.write(b"%05d" % count * 200)
        count += 1
        await asyncio.sleep(0)
    reader = threading.Thread(target=lambda: got.append(all_of(far)))
    reader.start()
    await protocol.can_write.wait()
    transport.write(b"end")
    transport.close()
    await protocol.lost
    await asyncio.to_thread(reader.join)
    return b"".join(b"%05d" % n * 200 for n in range(count)) + b"end"
got = []
async def main():
    print(await go(writes) == got[0])
gmploop.run(main())
""") == "True\n"


def test_a_broken_connection_is_told_and_does_not_hurt_the_others(waits):
    assert waits("""
pairs = [pair() for _ in range(5)]
ready = gmploop.WaitGroup()
async def writes(near, far, broken):
    transport, protocol = await open_(near)
    transport.pause_reading()
    if broken:
        far.close()
    ready.done()
    await ready.wait()
    transport.write(b"data")
    if broken:
        return type(await protocol.lost).__name__
    transport.close()
    await protocol.lost
    return all_of(far)
async def main():
    ready.add(5)
    print(await asyncio.gather(*[go(writes, near, far, n == 2) for n, (near, far) in enumerate(pairs)]))
gmploop.run(main(), procs=1)
""") == "[b'data', b'data', 'BrokenPipeError', b'data', b'data']\n"


def test_a_child_process_does_not_send_what_its_parent_wrote(waits):
    assert waits("""
near, far = pair()
async def writes():
    transport, protocol = await open_(near)
    transport.write(b"once,")
    pid = os.fork()
    if not pid:
        transport.write(b"")
        os._exit(0)
    os.waitpid(pid, 0)
    transport.write(b"twice")
    transport.close()
    await protocol.lost
async def main():
    await go(writes)
    print(all_of(far))
gmploop.run(main())
""", PYTHONWARNINGS="ignore") == "b'once,twice'\n"


def test_a_deadlock_is_found_after_batched_writes(waits):
    """The thread that looks after what waits is none that could wake a goroutine."""
    assert waits("""
from gmploop import config
config.REST_MS = 2
near, far = pair()
async def writes():
    transport, protocol = await open_(near)
    transport.write(b"data")
    transport.close()
    await protocol.lost
    await gmploop.Channel().recv()
try:
    gmploop.run(writes(), lock_main=False)
except gmploop.DeadlockError:
    print("found", all_of(far))
""") == "found b'data'\n"


def test_rings_are_few_and_kept(waits):
    """A ring is used by whichever M flushes: there are no more of them than Ms that flush at the same time."""
    assert waits("""
from gmploop.core import batch
MANY = 30
async def writes(near):
    transport, _ = await open_(near)
    for _ in range(20):
        transport.write(b"data")
        await gmploop.yield_now()
    transport.close()
async def main():
    for _ in range(5):
        pairs = [pair() for _ in range(MANY)]
        await asyncio.gather(*[go(writes, near) for near, _ in pairs])
        assert all(all_of(far) == b"data" * 20 for _, far in pairs)
    print(1 <= len(batch.open_rings()) <= 2)
gmploop.run(main(), procs=2)
""") == "True\n"


def test_it_can_be_switched_off(program):
    done = program(HEAD + """
from gmploop.core import batch
near, far = pair()
async def writes():
    transport, _ = await open_(near)
    transport.write(b"at once")
    print(far.recv(100), transport.get_write_buffer_size(), batch.open_rings())
    transport.abort()
async def main():
    await go(writes)
gmploop.run(main())
""", GMPLOOP_DEBUG="batch_min_ready=0", GMPLOOP_WRITE_BATCHING="0")
    assert (done.stdout, done.stderr) == ("b'at once' 0 []\n", "")


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_child_has_none_of_the_rings_also_not_of_those_in_use(waits):
    assert waits("""
import warnings
warnings.simplefilter("ignore")
over = threading.Event()
async def writes():
    near, far = pair()
    transport, _ = await open_(near)
    while not over.is_set():
        transport.write(b"data")
        far.recv(100)
        await gmploop.yield_now()
    transport.abort()
def rings():
    links = [os.readlink(f"/proc/self/fd/{fd}") for fd in os.listdir("/proc/self/fd") if os.path.exists(f"/proc/self/fd/{fd}")
             or os.path.islink(f"/proc/self/fd/{fd}")]
    return sum("io_uring" in link for link in links)
def forks():
    found = set()
    for _ in range(40):
        child = os.fork()
        if not child:
            os._exit(rings())
        found.add(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    over.set()
    return found
async def main():
    writing = [go(writes) for _ in range(8)]
    found = await asyncio.to_thread(forks)
    await asyncio.gather(*writing)
    print(rings() > 0, found)
gmploop.run(main(), procs=2)
""", wait_us=1000) == "True {0}\n"
