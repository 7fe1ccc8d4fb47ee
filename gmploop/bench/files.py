"""Files: gmploop.fs beside a thread pool and aiofiles, on gmploop's loop.

    python -m gmploop.bench.files [--seconds S] [--rounds N] [--size MB] [--dir DIR] [--json FILE] [ROW ...]

The suite's files rows are these (`python -m gmploop bench files`), each way in a process of its own; run so, with
options for the file, they share one.

Operations per second on the wall, since workers and threads do much of their work on other cores; and beside them the
CPU microseconds that the process, the kernel's workers included, spent on one: on a busy machine, look at these.
Ratios are how many times as fast, and how many times as cheap, gmploop.fs is. In each round the ways take turns;
figures are medians.

`depth` tasks each do one operation after the other. Offsets are random multiples of the size, in one file that the
page cache holds unless the row says "direct" (O_DIRECT). "small": read or write whole files of 4 KB, 200 of them.
aiofiles has no pread(): it seeks and reads, with a file of its own for each task.

Where fio is installed it shows what the kernel and the disk give to a program in C: "fio" with io_uring at the same
depth, and "fio threads", as many threads as the pool has (or the depth, if less) with pread() and pwrite().
"""

import argparse
import asyncio
import json
import mmap
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor

import gmploop
from gmploop import fs

try:
    import aiofiles
except ImportError:
    aiofiles = None

KB = 1024
SMALL_FILES = 200
O_DIRECT = getattr(os, "O_DIRECT", 0)


class Way:
    """One way to do it. `worker(i, row)` is a context: an async function that does one operation at an offset."""

    def __init__(self, path, folder, pool):
        self.path, self.folder, self.pool = path, folder, pool

    def small(self, i):
        return os.path.join(self.folder, f"small-{i}")


def aligned(size):
    """A buffer that O_DIRECT takes, filled."""
    buf = mmap.mmap(-1, size)
    buf[:] = b"x" * size
    return buf


class Fs(Way):
    name = "gmploop.fs"

    async def open(self, row):
        self.file = await fs.open(self.path, "r+b", flags=O_DIRECT if row.direct else 0)

    async def close(self):
        await self.file.close()

    def operation(self, row):
        file, size = self.file, row.size
        if row.small:
            return (lambda i: fs.read_bytes(self.small(i))) if row.reads else \
                (lambda i, data=bytes(size): fs.write_bytes(self.small(i), data))
        if row.direct:
            buf = aligned(size)
            return (lambda offset: file.preadinto(buf, offset)) if row.reads else \
                (lambda offset: file.pwrite(buf, offset))
        data = bytes(size)
        return (lambda offset: file.pread(size, offset)) if row.reads else (lambda offset: file.pwrite(data, offset))


class Threads(Way):
    name = "thread pool"

    async def open(self, row):
        self.fd = os.open(self.path, os.O_RDWR | (O_DIRECT if row.direct else 0))

    async def close(self):
        os.close(self.fd)

    def operation(self, row):
        fd, size, pool, run = self.fd, row.size, self.pool, asyncio.get_running_loop().run_in_executor
        if row.small:
            return (lambda i: run(pool, _read_whole, self.small(i))) if row.reads else \
                (lambda i, data=bytes(size): run(pool, _write_whole, self.small(i), data))
        if row.direct:
            buf = aligned(size)
            return (lambda offset: run(pool, os.preadv, fd, [buf], offset)) if row.reads else \
                (lambda offset: run(pool, os.pwrite, fd, buf, offset))
        data = bytes(size)
        return (lambda offset: run(pool, os.pread, fd, size, offset)) if row.reads else \
            (lambda offset: run(pool, os.pwrite, fd, data, offset))


def _read_whole(path):
    with open(path, "rb") as file:
        return file.read()


def _write_whole(path, data):
    with open(path, "wb") as file:
        return file.write(data)


class Aiofiles(Way):
    name = "aiofiles"

    async def open(self, row):
        self.files = [await aiofiles.open(self.path, "r+b", buffering=0, executor=self.pool) for _ in range(row.depth)]
        self.spare = self.files[:]

    async def close(self):
        for file in self.files:
            await file.close()

    def operation(self, row):
        if row.small:
            return self.read_small if row.reads else lambda i, data=bytes(row.size): self.write_small(i, data)
        file, data = self.spare.pop(), bytes(row.size)

        async def read(offset):
            await file.seek(offset)
            await file.read(row.size)

        async def write(offset):
            await file.seek(offset)
            await file.write(data)

        return read if row.reads else write

    async def read_small(self, i):
        async with aiofiles.open(self.small(i), "rb", executor=self.pool) as file:
            return await file.read()

    async def write_small(self, i, data):
        async with aiofiles.open(self.small(i), "wb", executor=self.pool) as file:
            return await file.write(data)


class Fio:
    """fio on the same file. Its CPU time is that of its own threads: the kernel's workers do not count."""

    name = "fio"

    def __init__(self, path, folder, pool):
        self.path, self.threads = path, pool._max_workers

    def engine(self, row):
        return ["--ioengine=io_uring", f"--iodepth={row.depth}"]

    def rate(self, row, seconds):
        done = subprocess.run(
            ["fio", "--name=row", f"--filename={self.path}", f"--size={os.path.getsize(self.path)}", f"--bs={row.size}",
             f"--rw=rand{'read' if row.reads else 'write'}", f"--direct={int(row.direct)}", "--invalidate=0",
             "--norandommap", "--time_based", f"--runtime={seconds * 1000:.0f}ms", "--thread", "--group_reporting",
             "--output-format=json", *self.engine(row)], capture_output=True, text=True, check=True)
        job, = json.loads(done.stdout)["jobs"]
        side = job["read" if row.reads else "write"]
        return side["iops"], (job["usr_cpu"] + job["sys_cpu"]) / 1e5 * job["job_runtime"] / side["total_ios"]


class FioThreads(Fio):
    name = "fio threads"

    def engine(self, row):
        return ["--ioengine=psync", f"--numjobs={min(row.depth, self.threads)}"]


class Row:
    def __init__(self, kind, size, depth, direct=False, small=False):
        self.reads, self.size, self.depth, self.direct, self.small = kind == "read", size, depth, direct, small
        what = f"small-{kind}" if small else f"{kind}-{size // KB}k"
        self.name = f"{what}{'-direct' if direct else ''}-depth{depth}"

    def ways(self):
        fio = [Fio, FioThreads] if shutil.which("fio") and not self.small else []
        return [Fs, Threads] + ([Aiofiles] if aiofiles and not self.direct else []) + fio


def all_rows():
    rows = [Row(kind, size, depth, direct) for direct in (False, True) for size in (4 * KB, 64 * KB)
            for kind in ("read", "write") for depth in (1, 32)]
    return rows + [Row(kind, 4 * KB, depth, small=True) for kind in ("read", "write") for depth in (1, 32)]


async def rate(way, row, file_size, seconds):
    """(operations per second, CPU seconds per operation)"""
    await way.open(row)
    try:
        places = SMALL_FILES if row.small else file_size // row.size
        step = 1 if row.small else row.size
        choose = random.Random(1).randrange
        offsets = [choose(places) * step for _ in range(8192)]
        done = 0
        end = time.perf_counter() + seconds

        async def worker(number):
            nonlocal done
            operation = way.operation(row)
            at = start = number * 251 % 8192 // 16 * 16
            while time.perf_counter() < end:
                for offset in offsets[at % 8192:at % 8192 + 16]:
                    await operation(offset)
                at += 16
            done += at - start

        began, cpu = time.perf_counter(), time.process_time()
        await asyncio.gather(*[worker(number) for number in range(row.depth)])
        return done / (time.perf_counter() - began), (time.process_time() - cpu) / done
    finally:
        await way.close()


def takes_direct(path):
    try:
        fd = os.open(path, os.O_RDWR | O_DIRECT)
    except OSError:
        return False
    try:
        return bool(O_DIRECT) and os.preadv(fd, [aligned(4 * KB)], 0) == 4 * KB
    except OSError:
        return False
    finally:
        os.close(fd)


def prepare(folder, size):
    path = os.path.join(folder, "data")
    block = os.urandom(1 << 20)
    with open(path, "wb") as file:
        for _ in range(size >> 20):
            file.write(block)
        file.flush()
        os.fsync(file.fileno())
    for i in range(SMALL_FILES):
        _write_whole(os.path.join(folder, f"small-{i}"), block[:4 * KB])
    return path


def measure(rows, rounds, seconds, size, folder):
    """{row name: {way: [what rate() says in each round]}}"""
    results = {}
    with tempfile.TemporaryDirectory(dir=folder) as folder, ThreadPoolExecutor() as pool:
        path = prepare(folder, size)
        direct = takes_direct(path)
        for row in rows:
            if row.direct and not direct:
                print(f"note: {row.name} left out: the filesystem does not take O_DIRECT", file=sys.stderr)
                continue
            figures = results[row.name] = {way.name: [] for way in row.ways()}
            for _ in range(rounds):
                for way in row.ways():
                    one = way(path, folder, pool)
                    figures[way.name].append(one.rate(row, seconds) if isinstance(one, Fio) else
                                             gmploop.run(rate(one, row, size, seconds)))
            _print_row(row.name, figures)
    return results


def _print_row(name, figures):
    medians = {way: [statistics.median(column) for column in zip(*rounds)] for way, rounds in figures.items()}
    our_rate, our_cpu = medians[Fs.name]
    print(f"{name:25}" + " | ".join(
        f"{way} {rate:8,.0f}/s {cpu * 1e6:6.1f} us" + ("" if way == Fs.name else
                                                     f" ({our_rate / rate:5.2f} x, CPU {cpu / our_cpu:5.2f} x)")
        for way, (rate, cpu) in medians.items()), flush=True)


def main(argv=None):
    it = argparse.ArgumentParser(prog="python -m gmploop.bench.files", description=__doc__.partition("\n")[0])
    it.add_argument("rows", nargs="*", metavar="ROW", help="the beginning of some rows' names (default: all)")
    it.add_argument("--seconds", type=float, default=0.5, help="length of one measurement (default: 0.5)")
    it.add_argument("--rounds", type=int, default=3)
    it.add_argument("--size", type=int, default=128, metavar="MB", help="of the file (default: 128)")
    it.add_argument("--dir", help="where the files are made (default: the system's temporary folder)")
    it.add_argument("--json", metavar="FILE")
    it.add_argument("--list", action="store_true", help="list the rows and end")
    options = it.parse_args(argv)
    rows = [row for row in all_rows() if not options.rows or any(row.name.startswith(name) for name in options.rows)]
    if not rows:
        it.error("no such row; --list names them")
    if options.list:
        print(*[row.name for row in rows], sep="\n")
        return 0
    results = measure(rows, options.rounds, options.seconds, options.size << 20, options.dir)
    if options.json:
        with open(options.json, "w") as file:
            json.dump(results, file, indent=1)
    return 0


if __name__ == "__main__":
    sys.exit(main())
