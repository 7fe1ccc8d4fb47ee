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
import re
import sys
import warnings

import gmploop
import pytest
import support
from fs_support import LINES, NO_RING, described, forget_cache, open_for_writing, opened, until
from gmploop import fs

pytestmark = pytest.mark.timeout(60)


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
    with pytest.raises(ValueError, match="mode takes 'rb', 'wb', 'xb', 'ab'.*binary.*not " + re.escape(repr(mode))):
        fs.open("/nonexistent", mode)


def test_mode_of_another_type():
    with pytest.raises(TypeError, match="mode takes"):
        fs.open("/nonexistent", 3)


@pytest.mark.parametrize("name, mode", [("missing", "rb"), ("missing/file", "wb"), (".", "rb"), (".", "wb"),
                                        ("file", "xb"), ("file/below", "rb"), ("x" * 300, "rb"), ("loop", "rb")])
def test_errors_of_open(backend, run, path, name, mode):
    os.symlink("loop", path.parent / "loop")
    for target in f"{path.parent}/{name}", os.fsencode(f"{path.parent}/{name}"), path.parent / name:
        with pytest.raises(OSError) as expected:
            builtins.open(target, mode)
        with pytest.raises(OSError) as caught:
            run(opened(target, mode))
        assert described(caught.value) == described(expected.value)


def test_null_in_the_path(backend, run):
    with pytest.raises(ValueError, match="embedded null byte"):
        run(opened("a\0b"))


def test_permissions_and_flags(backend, run, tmp_path):
    path = tmp_path / "secret"

    async def main():
        async with fs.open(path, "wb", permissions=0o600) as file:
            await file.write(b"x")
        with pytest.raises(FileExistsError):
            await fs.open(path, "wb", flags=os.O_EXCL)
        async with fs.open(path, "r+b", flags=os.O_APPEND) as file:
            await file.write(b"yz")
            fd = file.fileno()
            return await file.tell(), fcntl.fcntl(fd, fcntl.F_GETFD), fcntl.fcntl(fd, fcntl.F_GETFL)
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
        opening = asyncio.create_task(opened(fifo))
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
        for call in (file.read(), file.pread(1, 0), file.readline(), file.seek(0), file.tell(), file.fsync(),
                     file.flush(), file.truncate(), file.write(b"")):
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
@pytest.mark.parametrize("call, error", [(425, "EPERM"), (425, "ENOSYS"), (425, "ENOMEM"), (425, "EMFILE"),
                                         (426, "EPERM"), (427, "EPERM")])
@pytest.mark.parametrize("wanted", ["auto", "io_uring"])
def test_refused_by_a_filter(path, monkeypatch, call, error, wanted):
    if NO_RING and call != 425:
        pytest.skip(f"io_uring is refused earlier here: {NO_RING}")
    monkeypatch.setenv("GMPLOOP_FS", wanted)
    monkeypatch.delenv("GMPLOOP_POLLER", raising=False)     # the loop is to run
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
    out = re.sub("INFO gmploop gmploop: loops run on .*\n", "", out)
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
