"""File operations in threads of the loop's executor: what gmploop.fs uses where it cannot have an io_uring."""

import asyncio
import errno
import os

from gmploop.core.descriptor import Descriptor


class Job:
    """One operation in a thread of the loop's executor, as FileOp is one in a ring: cancelling the task that awaits it
    does not end it, and what it works on is in use until it has ended."""

    def __init__(self, loop, d, name, call, *args):
        self._loop, self._d, self._name, self._call, self._args = loop, d, name, call, args
        self._waiter = self._settled = None
        self._flying = False

    def __await__(self):
        if asyncio.get_running_loop() is not self._loop:
            raise RuntimeError(f"the file belongs to {self._loop!r}, which this thread does not run")
        if self._d is not None:
            if self._d.fd < 0:
                raise ValueError("I/O operation on closed file")
            self._args = self._d.fd, *self._args
        job = self._loop.run_in_executor(None, self._call, *self._args)
        if self._d is not None:
            self._d.hold()
        self._flying = True
        self._waiter = self._loop.create_future()
        job.add_done_callback(self._done)
        value, error = yield from self._waiter
        if isinstance(error, OSError):
            error.filename = self._name
        if error is not None:
            try:
                raise error
            finally:
                error = None
        return value

    def _done(self, job):
        self._flying, self._args = False, None
        if job.cancelled():             # the executor was shut down
            self._waiter.cancel()
        elif not self._waiter.done():
            error = job.exception()
            value = None if error else job.result()
            # its last reference may die late in another thread (free-threaded Python), also when cancelled from here on
            self._waiter.set_result((value.moved() if isinstance(value, Descriptor) else value, error))
        elif job.exception() is None and isinstance(job.result(), Descriptor):
            job.result().close_now()    # nobody wants it
        if self._d is not None:
            self._d.release()
        if self._settled is not None:
            self._settled()

    def when_settled(self, callback):
        if self._flying:
            self._settled = callback
        else:
            callback()


class Threads:
    """The operations of FileRing, by threads."""

    def __init__(self, loop):
        self._loop = loop

    def _job(self, d, call, *args):
        return Job(self._loop, d, d.name, call, *args)

    async def open_file(self, path, flags, permissions, name):
        return await Job(self._loop, None, name, _open_descriptor, path, flags, permissions)

    def read(self, d, n, offset):
        return self._job(d, _read, n, offset, d.regular)

    def read_now(self, d, n, offset):
        return None

    def readinto(self, d, buf, offset):
        return self._job(d, _readinto, _bytes_of(buf), offset, d.regular)

    def write(self, d, data, offset):
        return self._job(d, _write, _bytes_of(data), offset)

    def fsync(self, d, data_only):
        return self._job(d, getattr(os, "fdatasync", os.fsync) if data_only else os.fsync)

    def truncate(self, d, size):
        return self._job(d, os.ftruncate, size)

    def close_file(self, d):
        return Job(self._loop, None, d.name, os.close, d.take_fd())

    def close(self):
        pass


def _bytes_of(buf):
    view = memoryview(buf)
    if not view.c_contiguous:
        raise BufferError("the buffer is not C-contiguous")
    return view.cast("B") if view.nbytes else memoryview(b"")


def _open_descriptor(path, flags, permissions):
    return Descriptor(os.open(path, flags, permissions), flags, False)


def _readinto(fd, view, offset, whole):
    done = 0
    while done < len(view):
        rest = view[done:]
        n = os.readv(fd, [rest]) if offset < 0 else os.preadv(fd, [rest], offset + done)
        done += n
        if n == 0 or not whole:
            break
    return done


def _read(fd, n, offset, whole):
    parts = []
    while n:
        part = os.read(fd, n) if offset < 0 else os.pread(fd, n, offset)
        parts.append(part)
        if not part or not whole:
            break
        n -= len(part)
        offset += len(part) if offset >= 0 else 0
    return b"".join(parts) if len(parts) != 1 else parts[0]


def _write(fd, view, offset):
    done = 0
    while done < len(view):
        rest = view[done:]
        n = os.write(fd, rest) if offset < 0 else os.pwrite(fd, rest, offset + done)
        if n == 0:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        done += n
    return done
