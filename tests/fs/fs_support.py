"""What the tests of gmploop.fs share."""

import asyncio
import errno
import os

import gmploop
import pytest
from gmploop import fs
from gmploop.core.uring_files import FileRing

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


async def opened(*args, **kwargs):
    return await fs.open(*args, **kwargs)
