"""gmploop.fs on both of its back ends. What is right is what the builtin open() does with the same file."""

import array
import asyncio
import builtins
import errno
import fcntl
import gc
import io
import os
import random
import signal
import sys
import threading
import time
import warnings

import gmploop
import pytest
import support
from gmploop import fs
from gmploop.core.uring_files import FileRing

pytestmark = pytest.mark.timeout(60)

LINES = b"".join(b"%d " % i * (i % 23) + b"\n" for i in range(4000)) + b"no newline at the end"


def _why_no_ring():
    loop = gmploop.new_event_loop()
    try:
        FileRing(loop).close()
    except OSError as exc:
        return exc.strerror
    finally:
        loop.close()


NO_RING = _why_no_ring()
needs_ring = pytest.mark.skipif(NO_RING is not None, reason=f"io_uring cannot be had here: {NO_RING}")
BOTH = [pytest.param("io_uring", marks=needs_ring), "executor"]


@pytest.fixture(params=BOTH)
def backend(request, monkeypatch):
    monkeypatch.setenv("GMPLOOP_FS", request.param)
    return request.param


@pytest.fixture
def ring(monkeypatch):
    """Only the ring: what threads do not do, such as ending a read that is cancelled."""
    if NO_RING:
        pytest.skip(f"io_uring cannot be had here: {NO_RING}")
    monkeypatch.setenv("GMPLOOP_FS", "io_uring")


@pytest.fixture
def files_loop(errors):
    loop = gmploop.new_event_loop()
    loop.set_exception_handler(lambda _, context: errors.append(context))
    yield loop
    assert not support.finish(loop), "tasks left behind"


@pytest.fixture
def run(files_loop):
    return lambda coro, timeout=30: files_loop.run_until_complete(support.bounded(coro, timeout))


@pytest.fixture
def path(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(LINES)
    return path


@pytest.fixture
def fifo(tmp_path):
    path = tmp_path / "fifo"
    os.mkfifo(path)
    return path


def forget_cache(path):
    """The next reads come from the disk, where the system follows the advice."""
    with open(path, "rb+") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def described(exc):
    return type(exc), getattr(exc, "errno", None), getattr(exc, "filename", None)


async def until(predicate):
    """Turns of the loop until it is true; the test's own limit ends it otherwise."""
    while not predicate():
        await asyncio.sleep(0.001)


def open_for_writing(fifo):
    """The other end of a fifo, once somebody opens or has opened it for reading; None before."""
    try:
        return os.open(fifo, os.O_WRONLY | os.O_NONBLOCK)
    except OSError as exc:
        assert exc.errno == errno.ENXIO
        return None


# -- opening

MODES = ["rb", "br", "wb", "xb", "ab", "r+b", "rb+", "+br", "w+b", "x+b", "a+b"]


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("exists", [True, False])
def test_modes(backend, run, tmp_path, mode, exists):
    def tell(file):
        return [file.readable(), file.writable(), file.seekable(), file.tell()]

    def with_builtin(path):
        with builtins.open(path, mode) as file:
            seen = tell(file)
            if file.writable():
                file.write(b"written")
                seen.append(file.tell())
            if file.readable():
                seen.append(file.read())
        return seen, path.read_bytes()

    async def with_ours(path):
        async with fs.open(path, mode) as file:
            seen = tell(file)
            seen[-1] = await seen[-1]
            assert file.mode == mode and file.name == str(path) and not file.closed
            if file.writable():
                assert await file.write(b"written") == 7
                seen.append(await file.tell())
            if file.readable():
                seen.append(await file.read())
        assert file.closed
        return seen, path.read_bytes()

    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    if exists:
        for path in theirs, ours:
            path.write_bytes(b"what was there before")
    try:
        expected = with_builtin(theirs)
    except OSError as exc:
        with pytest.raises(type(exc)) as caught:
            run(with_ours(ours))
        assert (caught.value.errno, caught.value.filename) == (exc.errno, str(ours))
    else:
        assert run(with_ours(ours)) == expected
        assert os.stat(ours).st_mode == os.stat(theirs).st_mode


@pytest.mark.parametrize("mode", ["r", "w", "rt", "", "b", "rwb", "rbb", "r++b", "U", "rb "])
def test_mode_that_is_not_taken_is_named(mode):
    with pytest.raises(ValueError, match=r"mode takes 'rb', 'wb', 'xb', 'ab'.*binary.*not " + repr(mode).replace("+", r"\+")):
        fs.open("/nonexistent", mode)


def test_mode_of_another_type():
    with pytest.raises(TypeError, match="mode takes"):
        fs.open("/nonexistent", 3)


@pytest.mark.parametrize("name, mode", [("missing", "rb"), ("missing/file", "wb"), (".", "rb"), (".", "wb"), ("file", "xb"),
                                        ("file/below", "rb"), ("x" * 300, "rb"), ("loop", "rb")])
def test_errors_of_open(backend, run, path, name, mode):
    os.symlink("loop", path.parent / "loop")
    for kind in str, os.fsencode, path.parent.joinpath:
        target = kind(f"{path.parent}/{name}") if kind is not path.parent.joinpath else kind(name)
        with pytest.raises(OSError) as expected:
            builtins.open(target, mode)
        with pytest.raises(OSError) as caught:
            run(_opened(target, mode))
        assert described(caught.value) == described(expected.value)


async def _opened(*args, **kwargs):
    return await fs.open(*args, **kwargs)


def test_null_in_the_path(backend, run):
    with pytest.raises(ValueError, match="embedded null byte"):
        run(_opened("a\0b"))


def test_permissions_and_flags(backend, run, tmp_path):
    path = tmp_path / "secret"

    async def main():
        async with fs.open(path, "wb", permissions=0o600) as file:
            await file.write(b"x")
        with pytest.raises(FileExistsError):
            await fs.open(path, "wb", flags=os.O_EXCL)
        async with fs.open(path, "r+b", flags=os.O_APPEND) as file:
            await file.write(b"yz")
            return await file.tell(), fcntl.fcntl(file.fileno(), fcntl.F_GETFD), fcntl.fcntl(file.fileno(), fcntl.F_GETFL)
    position, fd_flags, status = run(main())
    assert (position, path.read_bytes(), os.stat(path).st_mode & 0o777) == (3, b"xyz", 0o600)
    assert fd_flags & fcntl.FD_CLOEXEC and status & os.O_APPEND and not status & os.O_NONBLOCK


def test_open_is_audited(backend, run, path):
    seen = []
    sys.addaudithook(lambda event, args: event == "open" and args[0] == str(path) and seen.append(args[1]))
    run(fs.read_bytes(str(path)))
    assert seen == ["rb"]


def test_opening_a_fifo_does_not_hold_up_the_loop(backend, run, fifo):
    async def main():
        opening = asyncio.create_task(_opened(fifo))
        await support.turns(20)
        assert not opening.done()
        await until(lambda: (end := open_for_writing(fifo)) and ends.append(end) is None)
        async with await opening as file:
            os.write(ends[0], b"through")
            os.close(ends[0])
            assert not file.seekable()
            return await file.read(100), await file.read()
    ends = []
    assert run(main()) == (b"through", b"")


# -- reading and writing

@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("mode", ["r+b", "a+b"])
def test_like_the_builtin(backend, run, tmp_path, seed, mode):
    """The same calls on two files, one opened by the builtin, give the same results and the same files.

    The builtin's buffered files do not know their position after appending, so it is its unbuffered ones."""
    choose = random.Random(seed)
    content = LINES + choose.randbytes(200_000)
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    for path in ours, theirs:
        path.write_bytes(content)

    def calls():
        for _ in range(250):
            size = choose.choice([0, 1, 7, 100, 5000, 70_000])
            yield choose.choice([
                ("read", size), ("read", size), ("readline",), ("readline",), ("readline", size), ("readinto", size),
                ("write", choose.randbytes(size)), ("seek", choose.randrange(250_000)), ("seek", -size, 2),
                ("seek", size, 1), ("tell",), ("truncate",), ("truncate", choose.randrange(200_000, 400_000))])
        yield "seek", 0
        yield "read",

    def prepared(args):
        return [bytearray(args[1])] if args[0] == "readinto" else args[1:]

    async def main():
        with builtins.open(theirs, mode, buffering=0) as reference:
            async with fs.open(ours, mode) as file:
                for args in calls():
                    a, b = prepared(args), prepared(args)
                    try:
                        expected = getattr(reference, args[0])(*a)
                    except OSError as exc:
                        with pytest.raises(type(exc)) as caught:
                            await getattr(file, args[0])(*b)
                        assert caught.value.errno == exc.errno
                        continue
                    got = await getattr(file, args[0])(*b)
                    assert (got, b) == (expected, a), (args[0], args[1:] if args[0] != "write" else "")
    run(main())
    assert ours.read_bytes() == theirs.read_bytes()


def test_lines(backend, run, path):
    async def main():
        async with fs.open(path) as file:
            return [line async for line in file]
    with builtins.open(path, "rb") as file:
        assert run(main()) == list(file)


def test_whole_files(backend, run, tmp_path):
    path = tmp_path / "file"

    async def main():
        for data in LINES, b"", bytes(3_000_000), memoryview(b"part")[1:3], array.array("I", range(5)):
            assert await fs.write_bytes(path, data) == memoryview(data).nbytes
            assert path.read_bytes() == bytes(data) == await fs.read_bytes(path)
        with pytest.raises(TypeError):
            await fs.write_bytes(path, "text")
        assert path.read_bytes() == array.array("I", range(5)).tobytes()
        assert await fs.read_bytes("/proc/filesystems") == builtins.open("/proc/filesystems", "rb").read()
    run(main())


def test_at_offsets(backend, run, path):
    async def main():
        async with fs.open(path, "r+b") as file:
            await file.seek(5)
            buf = bytearray(10)
            assert await file.preadinto(buf, 3) == 10 and buf == LINES[3:13]
            assert await file.preadinto(memoryview(buf)[2:4], 100) == 2 and buf[2:4] == LINES[100:102]
            assert await file.pread(70, len(LINES) - 50) == LINES[-50:]
            assert await file.pread(10, len(LINES) + 5) == await file.pread(0, 0) == b""
            assert await file.pwrite(b"beyond", len(LINES) + 2) == 6
            assert await file.pread(9, len(LINES) - 1) == LINES[-1:] + b"\0\0beyond"
            assert await file.tell() == 5 and await file.read(5) == LINES[5:10]
            await file.fsync()
            await file.fsync(data_only=True)
            await file.flush()
            for call in file.pread(-1, 0), file.pread(1, -1), file.pwrite(b"", -1), file.preadinto(buf, -1):
                with pytest.raises(ValueError):
                    await call
    run(main())


def test_uncached_side_by_side(backend, run, tmp_path):
    path, block = tmp_path / "file", 4096
    content = random.Random(1).randbytes(400 * block)
    path.write_bytes(content)

    async def main():
        async with fs.open(path) as file:
            forget_cache(path)
            reads = await asyncio.gather(*[file.pread(block, i * block) for i in range(400)])
            assert b"".join(reads) == content
            forget_cache(path)
            assert await file.read(150_000) == content[:150_000]
            assert await file.read() == content[150_000:]
    run(main())


def test_direct(backend, run, tmp_path):
    import mmap
    path, block = tmp_path / "file", 65536
    content = random.Random(1).randbytes(40 * block)
    path.write_bytes(content)
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_DIRECT))
    except OSError:
        pytest.skip("the filesystem does not take O_DIRECT")

    async def main():
        async with fs.open(path, "r+b", flags=os.O_DIRECT) as file:
            async def one(i):
                buf = mmap.mmap(-1, block)
                assert await file.preadinto(buf, i * block) == block
                assert buf[:] == content[i * block:(i + 1) * block]
                buf[:] = bytes(reversed(buf[:]))
                assert await file.pwrite(buf, i * block) == block
            await asyncio.gather(*map(one, range(40)))
    run(main())
    for i in range(40):
        assert path.read_bytes()[i * block:(i + 1) * block] == content[i * block:(i + 1) * block][::-1]


def test_writes_keep_their_order(backend, run, tmp_path):
    path = tmp_path / "file"

    async def main():
        async with fs.open(path, "wb") as file:
            await asyncio.gather(*[file.write(b"%05d\n" % i) for i in range(500)])
    run(main())
    assert path.read_bytes() == b"".join(b"%05d\n" % i for i in range(500))


def test_what_is_not_allowed(backend, run, path):
    async def main():
        async with fs.open(path) as file:
            for call in file.write(b"x"), file.pwrite(b"x", 0), file.truncate():
                with pytest.raises(io.UnsupportedOperation):
                    await call
            with pytest.raises(BufferError):
                await (await fs.open("/dev/null", "wb")).write(memoryview(b"abcdef")[::2])
            with pytest.raises((TypeError, BufferError)):
                await file.readinto(b"read only")
            with pytest.raises(ValueError):
                await file.seek(0, 9)
            with pytest.raises(OSError) as caught:
                await file.seek(-1)
            assert caught.value.errno == errno.EINVAL
        async with fs.open(path, "ab") as appending:
            for call in appending.read(), appending.readline(), appending.pread(1, 0), appending.readinto(bytearray(1)):
                with pytest.raises(io.UnsupportedOperation):
                    await call
        for call in (file.read(), file.pread(1, 0), file.readline(), file.seek(0), file.tell(), file.fsync(), file.flush(),
                     file.truncate(), file.write(b"")):
            with pytest.raises(ValueError, match="closed file"):
                await call
        with pytest.raises(ValueError, match="closed file"):
            file.fileno()
        await file.close()
        assert "closed" in repr(file)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        run(main())
        gc.collect()


def test_errors_of_operations(backend, run, path):
    async def main():
        async with fs.open("/dev/full", "wb") as file:
            with pytest.raises(OSError) as caught:
                await file.write(b"x")
            assert described(caught.value) == (OSError, errno.ENOSPC, "/dev/full")
        async with fs.open("/proc/self/mem", "rb") as file:
            with pytest.raises(OSError) as caught:
                await file.pread(10, 0)
            assert described(caught.value) == (OSError, errno.EIO, "/proc/self/mem")
        async with fs.open(path, "r+b") as file:
            with pytest.raises(OSError) as caught:
                await file.truncate(-1)
            assert described(caught.value) == (OSError, errno.EINVAL, str(path))
    run(main())


def test_unclosed_file(backend, run, path):
    fds = support.open_fds()

    async def main():
        file = await fs.open(path)
        await file.read(3)
        with pytest.warns(ResourceWarning, match="unclosed file"):
            del file
            gc.collect()
    run(main())
    assert not [fd for fd in support.open_fds() - fds if fd[1] == str(path)]


# -- cancelling and closing

def test_cancelled_read_keeps_its_buffer(backend, run, fifo):
    """Until the kernel (or the thread) is done with it; it ends by itself on io_uring, with the next data in a thread."""
    async def main():
        writer = os.open(fifo, os.O_RDWR)
        async with fs.open(fifo) as file:
            buf = bytearray(b"guarded!")
            reading = asyncio.create_task(file.readinto(buf))
            await support.turns(5)
            with pytest.raises(BufferError):
                buf.append(1)
            reading.cancel()
            with pytest.raises(asyncio.CancelledError):
                await reading
            if backend == "executor":
                with pytest.raises(BufferError):
                    buf.append(1)
                os.write(writer, b"for the thread")
            await until(lambda: support.result_of(buf.append, 1) is None)
            del buf
            guards = [bytearray(b"guarded!") for _ in range(100)]
            os.write(writer, b"for the next")
            assert await file.read(100) in (b"for the next", b"readfor the next", b"threadfor the next")
            assert guards == [b"guarded!"] * 100
        os.close(writer)
    run(main())


def test_the_next_call_waits_for_a_cancelled_one(run, fifo, monkeypatch):
    monkeypatch.setenv("GMPLOOP_FS", "executor")        # whose reads go on when they are cancelled

    async def main():
        writer = os.open(fifo, os.O_RDWR)
        async with fs.open(fifo) as file:
            first, second = bytearray(5), bytearray(5)
            tasks = [asyncio.create_task(file.readinto(first)), asyncio.create_task(file.readinto(second))]
            await support.turns(5)
            tasks[0].cancel()
            await support.turns(5)
            second.append(1)                            # not in use yet
            os.write(writer, b"1stly")
            await until(lambda: support.result_of(second.append, 1) is BufferError)
            os.write(writer, b"2ndly")
            assert await tasks[1] == 5 and (first, second[:5]) == (b"1stly", b"2ndly")
        os.close(writer)
    run(main())


def test_cancelled_reads_of_a_disk(backend, run, tmp_path):
    """Whenever the cancel comes, the file reads right afterwards and close() leaves nothing."""
    path = tmp_path / "file"
    content = random.Random(3).randbytes(1_000_000)
    path.write_bytes(content)

    async def main():
        async with fs.open(path, "r+b") as file:
            for i in range(30):
                forget_cache(path)
                tasks = [asyncio.create_task(file.pread(30_000, at)) for at in range(0, 1_000_000, 30_000)]
                tasks.append(asyncio.create_task(file.read(100_000)))
                tasks.append(asyncio.create_task(file.pwrite(content[500:900], 500)))
                await support.turns(i % 4)
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                await file.seek(0)
                assert await file.read(50_000) == content[:50_000]
        assert path.read_bytes() == content
    run(main())


def test_cancelled_open_leaves_no_descriptor(backend, run, tmp_path, fifo):
    fds = support.open_fds()

    async def main():
        for i in range(300):
            opening = asyncio.create_task(_opened(tmp_path / str(i % 7), "w+b"))
            await support.turns(i % 5)
            opening.cancel()
            done, = await asyncio.gather(opening, return_exceptions=True)
            if isinstance(done, fs.File):
                await done.close()
        waiting = asyncio.create_task(_opened(fifo))
        await support.turns(20)
        waiting.cancel()
        await asyncio.wait([waiting])
        if backend == "executor":               # its thread waits for a writer
            await until(lambda: (end := open_for_writing(fifo)) and os.close(end) is None)
        del opening, done, waiting
        await until(lambda: not {fd for fd in support.open_fds() - fds if str(tmp_path) in fd[1]})
    run(main())


def test_close_waits_for_what_runs(backend, run, fifo, path):
    async def main():
        writer = os.open(fifo, os.O_RDWR)
        file = await fs.open(fifo)
        reading = asyncio.create_task(file.read(10))
        await support.turns(5)
        closing = [asyncio.create_task(file.close()) for _ in range(2)]
        await support.turns(20)
        assert file.closed and not closing[0].done()
        with pytest.raises(ValueError, match="closed file"):
            await file.read(1)
        os.write(writer, b"last")
        assert await reading == b"last"
        await asyncio.gather(*closing)
        os.close(writer)
        # a close that is cancelled while it waits, or not at all, closes
        file = await fs.open(path)
        closing = asyncio.create_task(file.close())
        await support.turns(1)
        closing.cancel()
        await asyncio.wait([closing])
        await until(lambda: not [fd for fd in support.open_fds() if fd[1] == str(path)])
    run(main())


def test_the_loop_closes_with_operations_in_flight(backend, files_loop, fifo, path):
    loop = files_loop
    writer = os.open(fifo, os.O_RDWR)
    guards = [bytearray(b"guarded!") for _ in range(100)]

    async def main():
        file = await fs.open(fifo)
        disk = await fs.open(path, "r+b")
        tasks = [asyncio.create_task(file.readinto(guards[50]))]
        tasks += [asyncio.create_task(disk.pwrite(LINES[:5000], 0)) for _ in range(50)]
        await support.turns(3)
        return file, disk, tasks

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)
        file, disk, tasks = loop.run_until_complete(main())
        start = time.monotonic()
        if backend == "executor":
            os.write(writer, b"")
            loop.close()
            os.write(writer, b"guarded!")       # else its thread would wait for ever
        else:
            loop.close()
            assert time.monotonic() - start < 4
            os.write(writer, b"too late")
            assert guards[50].append(1) is None and guards[50].pop() == 1
        assert guards == [b"guarded!"] * 100
        for task in tasks:
            task._log_destroy_pending = False
        del file, disk, tasks, task
        gc.collect()
    if backend == "executor":
        support.wait_until(lambda: gc.collect() >= 0 and support.result_of(guards[50].append, 1) is None)
    os.close(writer)
    assert path.read_bytes() == LINES


@pytest.mark.parametrize("script", ["loop.run_until_complete(main()); os._exit(0)", "loop.run_until_complete(main())",
                                    "loop.run_until_complete(main()); loop.close()",
                                    "loop.run_until_complete(main()); del loop; gc.collect()"])
def test_the_process_ends_with_operations_in_flight(ring, fifo, script):
    done = support.child("gmploop", f"""
        from gmploop import fs
        async def main():
            file = await fs.open({str(fifo)!r}, "r+b")
            for _ in range(20):
                asyncio.create_task(file.readinto(bytearray(100)))
            await asyncio.sleep(0.01)
        loop = new_loop()
        {script}
        """, options=["-W", "ignore"])
    assert done.returncode == 0, done.stderr
    assert "Fatal" not in done.stderr


# -- the ring

@needs_ring
@pytest.mark.parametrize("entries, cq_entries", [(1, 2), (4, 8), (8, 8)])
def test_queues_that_are_too_small(files_loop, run, tmp_path, entries, cq_entries):
    files_loop._files = ring = FileRing(files_loop, entries=entries, cq_entries=cq_entries)
    path, count = tmp_path / "file", 5000
    done = []

    async def one(file, i):
        assert await file.pwrite(b"%07d\n" % i, i * 8) == 8
        done.append(i)

    async def main():
        async with fs.open(path, "w+b") as file:
            await asyncio.gather(*[one(file, i) for i in range(count)])
            assert ring.flying == 0
            forget_cache(path)
            blocks = await asyncio.gather(*[file.pread(4096, at) for at in range(0, count * 8, 4096)])
            assert b"".join(blocks) == path.read_bytes()
            cancelled = [asyncio.create_task(file.pwrite(b"%07d\n" % i, i * 8)) for i in range(500)]
            await support.turns(1)
            for task in cancelled:
                task.cancel()
            await asyncio.gather(*cancelled, return_exceptions=True)
            await until(lambda: ring.flying == 0)
    run(main())
    assert sorted(done) == list(range(count))
    assert path.read_bytes() == b"".join(b"%07d\n" % i for i in range(count))


def test_signals_do_not_disturb(backend, run, tmp_path):
    path, hits = tmp_path / "file", []

    async def main():
        async with fs.open(path, "w+b") as file:
            while len(hits) < 50:
                await asyncio.gather(*[file.pwrite(b"%07d\n" % i, i * 8) for i in range(200)])
                await file.fsync()
                assert await file.pread(1600, 0) == b"".join(b"%07d\n" % i for i in range(200))
    old = signal.signal(signal.SIGALRM, lambda *_: hits.append(1))
    signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
    try:
        run(main())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, old)


def test_fork_with_operations_in_flight(backend, path, fifo):
    out = support.child_output("gmploop", f"""
        import warnings; warnings.simplefilter("ignore")
        from gmploop import fs
        path, fifo = {str(path)!r}, {str(fifo)!r}
        loop, writer = new_loop(), os.open(fifo, os.O_RDWR)
        size = os.stat(path).st_size
        async def start():
            file, pipe = await fs.open(path, "r+b"), await fs.open(fifo)
            tasks = [asyncio.create_task(file.pwrite(b"x" * 1000, i * 1000)) for i in range(20)]
            reading = asyncio.create_task(pipe.read(10))
            await asyncio.sleep(0.01)
            return file, pipe, tasks, reading
        file, pipe, tasks, reading = loop.run_until_complete(start())

        def child():
            async def use():
                assert len(await fs.read_bytes(path)) == size
                await fs.write_bytes(path + ".child", b"child")
            if os.environ["GMPLOOP_FS"] == "io_uring":      # the parent's threads are not here
                async def go_on():
                    assert await file.pwrite(b"x", 0) == 1
                    assert await file.pread(5, 0) == b"xxxxx"
                    try:
                        await reading
                    except OSError as exc:
                        assert "canceled" in str(exc)
                loop.run_until_complete(go_on())
            gc.collect()
            loop.close()
            other = new_loop()
            other.run_until_complete(use())
            other.run_until_complete(other.shutdown_default_executor())
            other.close()

        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                child()
                status = 0
            finally:
                os._exit(status)
        assert os.waitpid(pid, 0)[1] == 0
        os.write(writer, b"parent")
        async def finish():
            assert await asyncio.gather(*tasks) == [1000] * 20
            assert await reading == b"parent"
            assert await file.pread(3, 0) == b"xxx"
            await file.close(), await pipe.close()
        loop.run_until_complete(finish())
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()
        print("parent fine", open(path + ".child").read())
        """)
    assert out == "parent fine child\n"


@needs_ring
def test_the_thread_that_started_an_operation_ends(ring, files_loop, run, fifo):
    writer = os.open(fifo, os.O_RDWR)

    async def start():
        file = await fs.open(fifo)
        reading = asyncio.create_task(file.read(10))
        await support.turns(5)
        return file, reading

    async def finish(file, reading):
        await support.turns(5)
        assert not reading.done()
        os.write(writer, b"here")
        assert await reading == b"here"
        await file.close()
    results = []
    thread = threading.Thread(target=lambda: results.append(files_loop.run_until_complete(start())))
    thread.start()
    thread.join()
    run(finish(*results.pop()))
    os.close(writer)


def test_one_loop_in_each_thread(backend, tmp_path, errors):
    async def work(number):
        path = tmp_path / str(number)
        async with fs.open(path, "w+b") as file:
            await asyncio.gather(*[file.pwrite(b"%d" % number * 100, i * 100) for i in range(500)])
            blocks = await asyncio.gather(*[file.pread(100, i * 100) for i in range(500)])
            assert blocks == [b"%d" % number * 100] * 500
        return number

    def in_thread(number):
        try:
            done.append(gmploop.run(work(number)))
        except BaseException as exc:
            errors.append(exc)
    done = []
    threads = [threading.Thread(target=in_thread, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == [0, 1, 2, 3]


def test_a_file_belongs_to_its_loop(backend, run, path):
    async def elsewhere(file):
        with pytest.raises(RuntimeError, match="belongs to"):
            await file.pread(1, 0)

    async def main():
        async with fs.open(path) as file:
            await asyncio.to_thread(gmploop.run, elsewhere(file))
    run(main())


def test_a_hundred_loops(backend, path):
    loops = [gmploop.new_event_loop() for _ in range(100)]
    for loop in loops:
        assert loop.run_until_complete(fs.read_bytes(path)) == LINES
    for loop in loops:
        loop.run_until_complete(loop.shutdown_default_executor())
        loop.close()


def test_readers_do_not_starve_others(backend, run, path):
    async def reader(file):
        while not stop:
            await file.pread(100, 0)

    async def main():
        async with fs.open(path) as file:
            readers = [asyncio.create_task(reader(file)) for _ in range(3)]
            await asyncio.sleep(0.01)       # a timer
            await support.turns(50)
            stop.append(1)
            await asyncio.gather(*readers)
    stop = []
    run(main(), timeout=10)


def test_idle(backend, run, path):
    """An open file, also one with a read under way, costs nothing: no wake-ups, no thread of the kernel that spins."""
    def switches():
        with builtins.open("/proc/thread-self/status") as status:
            return sum(int(line.split()[1]) for line in status if "ctxt_switches" in line)

    async def main():
        source, sink = os.pipe()
        async with fs.open(path) as file, fs.open(f"/proc/self/fd/{source}") as pipe:
            await file.read(10)
            reading = asyncio.create_task(pipe.read(1))
            await asyncio.sleep(0.05)
            before, cpu = switches(), time.process_time()
            await asyncio.sleep(0.5)
            assert time.process_time() - cpu < 0.05
            assert switches() - before < 10
            assert not [name for _, name in support.threads() if name.startswith("iou-sqp")]
            os.write(sink, b"x")
            assert await reading == b"x"
        os.close(source), os.close(sink)
    run(main())


# -- which one is used

def test_on_asyncio(run, path, monkeypatch):
    monkeypatch.delenv("GMPLOOP_FS", raising=False)

    async def main():
        async with fs.open(path, "r+b") as file:
            assert await file.readline() == b"\n"
            assert await file.read() == LINES[1:]

    with asyncio.Runner(loop_factory=asyncio.SelectorEventLoop) as runner:
        runner.run(main())
        monkeypatch.setenv("GMPLOOP_FS", "io_uring")
        with pytest.raises(OSError, match="not gmploop's loop"):
            runner.run(main())


def test_unknown_back_end(run, path, monkeypatch):
    monkeypatch.setenv("GMPLOOP_FS", "threads")
    with pytest.raises(ValueError, match="GMPLOOP_FS takes 'auto' or 'io_uring' or 'executor', not 'threads'"):
        run(fs.read_bytes(path))


REFUSE = """
    import ctypes, errno, logging, struct
    def refuse(number, error):
        # Berkeley packet filter: load the number of the call; that one fails, all others pass
        steps = [(0x20, 0, 0, 0), (0x15, 0, 1, number), (0x06, 0, 0, 0x00050000 | error), (0x06, 0, 0, 0x7fff0000)]
        code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *step) for step in steps))
        program = ctypes.create_string_buffer(struct.pack("HxxxxxxP", len(steps), ctypes.addressof(code)))
        prctl = ctypes.CDLL(None, use_errno=True).prctl
        for args in (38, 1, 0, 0, 0), (22, 2, program, 0, 0):
            if prctl(*[a if isinstance(a, ctypes.Array) else ctypes.c_ulong(a) for a in args]):
                print("cannot set a filter:", os.strerror(ctypes.get_errno()))
                sys.exit()
    from gmploop import fs
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s %(message)s", stream=sys.stdout)
    """


@pytest.mark.skipif(sys.platform != "linux", reason="seccomp is Linux's")
@pytest.mark.parametrize("call, error", [(425, "EPERM"), (425, "ENOSYS"), (425, "ENOMEM"), (425, "EMFILE"), (426, "EPERM"),
                                         (427, "EPERM")])
@pytest.mark.parametrize("wanted", ["auto", "io_uring"])
def test_refused_by_a_filter(path, monkeypatch, call, error, wanted):
    if NO_RING and call != 425:
        pytest.skip(f"io_uring is refused earlier here: {NO_RING}")
    monkeypatch.setenv("GMPLOOP_FS", wanted)
    out = support.child_output("gmploop", REFUSE + f"""
    refuse({call}, errno.{error})
    async def main():
        data = await fs.read_bytes({str(path)!r})
        async with fs.open({str(path)!r}, "r+b") as file:
            await file.pwrite(data[:100], 0)
            assert await file.read() == data
    for _ in range(2):
        try:
            gmploop.run(main())
        except OSError as exc:
            print(type(exc).__name__, exc.errno == errno.{error}, exc)
        else:
            print("done")
    """)
    if "cannot set a filter" in out:
        pytest.skip(out)
    reason = os.strerror(getattr(errno, error))
    if wanted == "auto":
        assert out == f"INFO gmploop gmploop.fs uses the executor: io_uring cannot be had: {reason}\ndone\ndone\n"
    else:
        kind = "PermissionError" if error == "EPERM" else "OSError"
        number = getattr(errno, error)
        assert out == f"{kind} True [Errno {number}] io_uring cannot be had for files: {reason}\n" * 2


def test_imported_when_wanted():
    out = support.child_output("gmploop", """
        print("gmploop.fs" in sys.modules, "gmploop.core.uring_files" in sys.modules)
        print(gmploop.fs.open.__module__)
        """)
    assert out == "False False\ngmploop.fs\n"
