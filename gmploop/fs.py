"""Files that do not hold up the loop.

    async with gmploop.fs.open("data", "rb") as file:
        async for line in file:
            ...
    data = await gmploop.fs.read_bytes("data")

On gmploop's loops and a Linux that has it, operations go to an io_uring; elsewhere to threads of the loop's executor.
GMPLOOP_FS=executor or io_uring forces one of them, "auto" is the default.

Files are binary and not buffered: a write has reached the kernel when it returns. Only readline() reads ahead. A file
has a position of its own, which read(), write() and the like use one after the other; pread() and pwrite() run side
by side. A file belongs to the loop that opened it. All calls are to be made from that loop.

A cancelled call ends at once; what it asked of the kernel may still happen. Buffers given to readinto() and write()
stay in use until it is over: a bytearray cannot be resized meanwhile (BufferError).
"""

import asyncio
import collections
import errno
import io
import logging
import os
import sys
import warnings
from collections.abc import Generator
from typing import Any

from gmploop import config
from gmploop.core import uring_files
from gmploop.core.uring_files import FileRing
from gmploop.fs_threads import Job, Threads
from gmploop.loop import Loop

__all__ = ["File", "open", "read_bytes", "write_bytes"]

Path = str | bytes | os.PathLike[str] | os.PathLike[bytes]
Buffer = Any        # bytes-like; collections.abc.Buffer from Python 3.12

BACKENDS = ("auto", "io_uring", "executor")
_MODES = {"r": 0, "w": os.O_CREAT | os.O_TRUNC, "x": os.O_CREAT | os.O_EXCL, "a": os.O_CREAT | os.O_APPEND}
_log = logging.getLogger("gmploop")
_said = set()       # reasons for which the executor was taken, each logged once

uring_files.configure(**config.files_tunables())


def open(path: Path, mode: str = "rb", *, flags: int = 0, permissions: int = 0o666) -> "_Opening":
    """Open a file: `await` it for a File, or use it with `async with`.

    path: str, bytes or path-like. mode: "rb", "wb", "xb" or "ab", with "+" to read and write, as the builtin open()
    has them. flags: further os.O_* flags, such as os.O_DIRECT. permissions: of a new file, before the umask.
    Raises ValueError for another mode (there are no text modes); awaited, OSError with errno and filename. In a task of
    any loop: the file belongs to the loop in which it was awaited.
    """
    return _Opening(path, mode, flags | _flags_of(mode), permissions)


async def read_bytes(path: Path) -> bytes:
    """The whole content of a file, as bytes. path as of open(); OSError with errno and filename. In a task of any loop."""
    opening = open(path)
    backend, name = opening.start()
    if type(backend) is FileRing and (data := backend.read_file_now(os.fsencode(name))) is not None:
        return data
    async with opening as file:
        return await file.read()


async def write_bytes(path: Path, data: Buffer) -> int:
    """Make data, bytes-like, the whole content of the file, which is made if it is not there; the number of bytes.

    path as of open(). Raises OSError with errno and filename; TypeError, the file left as it is, for data that is not
    bytes-like, BufferError for what is not C-contiguous. Not atomic: the file is emptied first, and a call that fails
    after that or is cancelled may leave any part. In a task of any loop.
    """
    with memoryview(data) as view:          # both errors before the file is emptied
        if not view.c_contiguous:
            raise BufferError("the data is not C-contiguous")
        async with open(path, "wb") as file:
            return await file.write(data)


def _flags_of(mode):
    kind = mode.replace("b", "", 1).replace("+", "", 1) if isinstance(mode, str) else mode
    if not isinstance(mode, str) or kind not in _MODES or "b" not in mode:
        takes = ", ".join(repr(letter + "b") for letter in _MODES)
        error = ValueError if isinstance(mode, str) else TypeError
        raise error(f"mode takes {takes}, or one of them with '+' (binary only), not {mode!r}")
    access = os.O_RDWR if "+" in mode else os.O_RDONLY if kind == "r" else os.O_WRONLY
    return access | _MODES[kind] | getattr(os, "O_CLOEXEC", 0)


class _Opening:
    _backend = None

    def __init__(self, path, mode, flags, permissions):
        self._path, self._mode, self._flags, self._permissions = path, mode, flags, permissions

    def __await__(self) -> Generator[Any, Any, "File"]:
        return self._open().__await__()

    async def __aenter__(self) -> "File":
        self._file = await self._open()
        return self._file

    async def __aexit__(self, *exc: object) -> None:
        await self._file.close()

    def start(self):
        """(back end, name), now that there is a running loop and it will be opened."""
        self._name = name = os.fspath(self._path)
        if ("\0" if isinstance(name, str) else b"\0") in name:
            raise ValueError("embedded null byte")
        self._loop = asyncio.get_running_loop()
        self._backend = _backend_of(self._loop)
        sys.audit("open", name, self._mode, self._flags)
        return self._backend, name

    async def _open(self) -> "File":
        if self._backend is None:
            self.start()
        flags, name, backend = self._flags, self._name, self._backend
        d = await backend.open_file(os.fsencode(name), flags, self._permissions, name)
        d.name = name
        if d.is_dir:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), name)
        file = File(self._loop, backend, d, name, self._mode)
        if flags & os.O_APPEND and d.regular:
            file._appends = True
            file._position = await file._size()
        return file


# -- who does it

def _wanted_backend():
    value = os.environ.get("GMPLOOP_FS") or "auto"
    if value not in BACKENDS:
        raise ValueError(f"GMPLOOP_FS takes {' or '.join(map(repr, BACKENDS))}, not {value!r}")
    return value


def _backend_of(loop):
    """The loop's ring or executor, chosen when it is first wanted."""
    backend = getattr(loop, "_files", None)
    if backend is None:
        ours = isinstance(loop, Loop)
        backend = _make_backend(loop, ours, _wanted_backend())
        if ours:
            loop._files = backend
    return backend


def _make_backend(loop, ours, wanted):
    if wanted != "executor":
        try:
            if not ours:
                raise OSError(errno.ENOTSUP, f"{type(loop).__name__} is not gmploop's loop")
            return FileRing(loop)
        except OSError as exc:
            if wanted == "io_uring":
                raise OSError(exc.errno, f"io_uring cannot be had for files: {exc.strerror}") from None
            if exc.strerror not in _said:
                _said.add(exc.strerror)
                _log.info("gmploop.fs uses the executor: io_uring cannot be had: %s", exc.strerror)
    return Threads(loop)


# -- files

class File:
    """An open file, made by open(). Errors are OSError with errno and filename; ValueError once it is closed;
    io.UnsupportedOperation for what its mode or kind does not allow. Calls are to be made from the loop that opened it;
    from another, what reaches the system raises RuntimeError."""

    def __init__(self, loop, backend, d, name, mode):
        self._closed = False
        self._loop, self._io, self._d = loop, backend, d
        self._name, self._mode = name, mode
        self._reads, self._writes = "r" in mode or "+" in mode, "r" not in mode or "+" in mode
        self._position = 0          # of the next byte that is read or written; nothing where there are no positions
        self._ahead, self._taken = b"", 0       # what readline() has read ahead, and how much of it was taken
        self._busy, self._queue = False, collections.deque()    # whose turn it is to use the position
        self._appends = False       # the system writes at the end, wherever the position is
        self._op = None             # the last operation of this turn

    @property
    def name(self) -> str | bytes:
        """The path that was given to open()."""
        return self._name

    @property
    def mode(self) -> str:
        """The mode that was given to open()."""
        return self._mode

    @property
    def closed(self) -> bool:
        """Whether close() was called."""
        return self._closed

    def fileno(self) -> int:
        """The descriptor's number. Its position in the system is not this file's."""
        self._check_open()
        return self._d.fd

    def readable(self) -> bool:
        """Whether its mode lets read; also once it is closed."""
        return self._reads

    def writable(self) -> bool:
        """Whether its mode lets write; also once it is closed."""
        return self._writes

    def seekable(self) -> bool:
        """Whether it has positions: regular files have, pipes and terminals have none. Also once it is closed."""
        return self._d.regular

    def __repr__(self) -> str:
        return f"<gmploop.fs.File name={self._name!r} mode={self._mode!r}{' closed' if self._closed else ''}>"

    async def __aenter__(self) -> "File":
        self._check_open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    def __del__(self):
        if not getattr(self, "_closed", True):
            warnings.warn(f"unclosed file {self!r}", ResourceWarning, source=self)

    # -- at an offset: side by side

    async def pread(self, n: int, offset: int) -> bytes:
        """Up to n bytes from the offset; fewer only at the end of the file."""
        if self._closed or not self._reads:
            self._check_reads()
        if n < 0 or offset < 0:
            raise _negative("n and offset", (n, offset))
        data = self._io.read_now(self._d, n, offset)
        return await self._io.read(self._d, n, offset) if data is None else data

    async def preadinto(self, buf: Buffer, offset: int) -> int:
        """Read from the offset into a writable buffer; the number of bytes."""
        self._check_reads()
        if offset < 0:
            raise _negative("offset", offset)
        return await self._io.readinto(self._d, buf, offset)

    async def pwrite(self, data: Buffer, offset: int) -> int:
        """Write all of data at the offset (on Linux at the end, if opened to append); the number of bytes."""
        self._check_writes()
        if offset < 0:
            raise _negative("offset", offset)
        self._forget_ahead()
        return await self._io.write(self._d, data, offset)

    async def fsync(self, *, data_only: bool = False) -> None:
        """Have the disk keep what was written; data_only leaves out times and the like."""
        self._check_open()
        await self._io.fsync(self._d, data_only)

    async def flush(self) -> None:
        """Does nothing: writes are not buffered."""
        self._check_open()

    # -- at the position: one after the other

    async def read(self, n: int | None = -1) -> bytes:
        """Up to n bytes, fewer only at the end; all that is left if n is None or negative. b"" at the end.

        From a pipe or a terminal: what has come, up to n."""
        await self._turn(self._check_reads)
        try:
            head = self._take_ahead(n) if self._ahead else b""
            if n is None or n < 0:
                return head + await self._read_to_end()
            if len(head) == n or head and not self._d.regular:
                return head
            n -= len(head)
            data = self._io.read_now(self._d, n, self._position)
            if data is None:
                data = await self._do(self._io.read(self._d, n, self._at()))
            self._position += len(data)
            return head + data if head else data
        finally:
            self._end_turn_when_settled()

    async def readinto(self, buf: Buffer) -> int:
        """Read into a writable buffer, up to its length; the number of bytes, 0 at the end."""
        await self._turn(self._check_reads)
        try:
            if self._ahead and not self._d.regular:
                with memoryview(buf).cast("B") as view:
                    head = self._take_ahead(len(view))
                    view[:len(head)] = head
                return len(head)
            self._forget_ahead()
            n = await self._do(self._io.readinto(self._d, buf, self._at()))
            self._position += n
            return n
        finally:
            self._end_turn_when_settled()

    async def readline(self, limit: int | None = -1) -> bytes:
        r"""The bytes up to and with the next b"\n", at most `limit` of them if that is not negative. b"" at the end."""
        if limit is None or limit < 0:
            limit = sys.maxsize
        if not self._busy and self._reads and not self._closed:
            line = self._line_ahead(limit)          # the usual case
            if line is not None:
                return line
        await self._turn(self._check_reads)
        try:
            while (line := self._line_ahead(limit)) is None:
                rest = self._ahead[self._taken:]
                more = await self._do(self._io.read(self._d, config.FILES_CHUNK_BYTES, self._at(len(rest))))
                self._ahead, self._taken = rest + more, 0
                if not more:
                    return self._take_ahead(limit)
            return line
        finally:
            self._end_turn_when_settled()

    def __aiter__(self) -> "File":
        return self

    async def __anext__(self) -> bytes:
        if line := await self.readline():
            return line
        raise StopAsyncIteration

    async def write(self, data: Buffer) -> int:
        """Write all of data; the number of bytes."""
        await self._turn(self._check_writes)
        try:
            if not self._d.regular:
                return await self._do(self._io.write(self._d, data, -1))
            self._forget_ahead()
            n = await self._do(self._io.write(self._d, data, -1 if self._appends else self._position))
            self._position = self._d.own_position() if self._appends and n else self._position + n
            return n
        finally:
            self._end_turn_when_settled()

    async def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move the position, from the start (0), from where it is (1) or from the end (2); returns it."""
        await self._turn(self._check_seekable)
        try:
            if whence not in (os.SEEK_SET, os.SEEK_CUR, os.SEEK_END):
                raise ValueError(f"whence takes 0, 1 or 2, not {whence!r}")
            start = 0 if whence == os.SEEK_SET else self._position
            if whence == os.SEEK_END:
                start = await self._size()
            if start + offset < 0:
                raise OSError(errno.EINVAL, os.strerror(errno.EINVAL), self._name)
            self._forget_ahead()
            self._position = start + offset
            return self._position
        finally:
            self._end_turn_when_settled()

    async def tell(self) -> int:
        """The position."""
        await self._turn(self._check_seekable)
        self._end_turn()
        return self._position

    async def truncate(self, size: int | None = None) -> int:
        """Cut the file, or lengthen it with zeros, to size bytes (default: to the position); returns the size."""
        await self._turn(self._check_writes)
        try:
            self._forget_ahead()
            size = self._position if size is None else size
            op = self._io.truncate(self._d, size) or Threads(self._loop).truncate(self._d, size)
            await self._do(op)
            return size
        finally:
            self._end_turn_when_settled()

    async def close(self) -> None:
        """Close the file once the operations that run on it have ended. A second call does nothing."""
        if self._closed:
            return
        self._closed = True
        d = self._d
        try:
            while d.users:
                idle = self._loop.create_future()
                d.when_idle(lambda: idle.done() or idle.set_result(None))
                await idle
        except BaseException:
            d.when_idle(d.close_now)
            raise
        await self._io.close_file(d)

    # -- within

    def _check_open(self):
        if self._closed:
            raise ValueError("I/O operation on closed file")

    def _check_reads(self):
        self._check_open()
        if not self._reads:
            raise io.UnsupportedOperation("not readable")

    def _check_writes(self):
        self._check_open()
        if not self._writes:
            raise io.UnsupportedOperation("not writable")

    def _check_seekable(self):
        self._check_open()
        if not self._d.regular:
            raise io.UnsupportedOperation("the file has no positions")

    async def _turn(self, check):
        """Wait for this call's turn to use the position; the turns are in the order of the calls."""
        check()
        if not self._busy:
            self._busy = True
            return
        waiter = self._loop.create_future()
        self._queue.append(waiter)
        try:
            await waiter
            check()
        except BaseException:
            if waiter.done() and not waiter.cancelled():
                self._end_turn()
            else:
                waiter.cancel()
            raise

    def _end_turn(self):
        while self._queue:
            waiter = self._queue.popleft()
            if not waiter.done():
                waiter.set_result(None)
                return
        self._busy = False

    def _end_turn_when_settled(self):
        """A cancelled operation may still move on: the next one waits for it."""
        op, self._op = self._op, None
        if op is None:
            self._end_turn()
        else:
            op.when_settled(self._end_turn)

    def _do(self, op):
        self._op = op
        return op

    def _at(self, further=0):
        return self._position + further if self._d.regular else -1

    async def _size(self):
        if self._d.local:
            return self._d.size_hint()
        return await self._do(Job(self._loop, self._d, self._name, os.lseek, 0, os.SEEK_END))

    async def _read_to_end(self):
        parts = []
        while True:
            n = max(self._d.size_hint() - self._position, 0) + 1 if self._d.regular else 0
            n = n if n > 1 else config.FILES_CHUNK_BYTES          # in /proc, sizes say nothing
            part = await self._do(self._io.read(self._d, n, self._at()))
            self._position += len(part)
            parts.append(part)
            if not part or self._d.regular and len(part) < n:
                return parts[0] if len(parts) == 1 else b"".join(parts)

    def _line_ahead(self, limit):
        """The next line, if it has been read ahead whole, or its first `limit` bytes."""
        start = self._taken
        end = self._ahead.find(b"\n", start) + 1
        if end == 0 or end - start > limit:
            if len(self._ahead) - start < limit:
                return None
            end = start + limit
        self._taken = end
        self._position += end - start
        return self._ahead[start:end]

    def _take_ahead(self, n):
        start = self._taken
        end = len(self._ahead) if n is None or n < 0 else min(start + n, len(self._ahead))
        self._taken = end
        self._position += end - start
        data = self._ahead[start:end]
        if end == len(self._ahead):
            self._ahead, self._taken = b"", 0
        return data

    def _forget_ahead(self):
        if self._d.regular:
            self._ahead, self._taken = b"", 0


def _negative(name, value):
    return ValueError(f"{name}: a number from 0 is taken, not {value!r}")
