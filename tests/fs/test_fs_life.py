"""Operations that are cancelled, interrupted, forked, closed under, or too many; on both back ends of gmploop.fs."""

import asyncio
import builtins
import gc
import os
import random
import signal
import threading
import time
import warnings

import gmploop
import pytest
import support
from fs_support import LINES, forget_cache, needs_ring, open_for_writing, opened, until
from gmploop import fs
from gmploop.core.uring_files import FileRing

pytestmark = pytest.mark.timeout(60)


# -- cancelling and closing

def test_cancelled_read_keeps_its_buffer(backend, run, fifo):
    """Until the kernel, or the thread, is done with it: at once on io_uring, with the next data in a thread."""
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
        for i in range(1000):
            opening = asyncio.create_task(opened(tmp_path / str(i % 7), "w+b"))
            await support.turns(i % 5)
            opening.cancel()
            done, = await asyncio.gather(opening, return_exceptions=True)
            if isinstance(done, fs.File):
                await done.close()
        waiting = asyncio.create_task(opened(fifo))
        await support.turns(20)
        waiting.cancel()
        await asyncio.wait([waiting])
        if backend == "executor":               # its thread waits for a writer
            await until(lambda: (end := open_for_writing(fifo)) and os.close(end) is None)
        del opening, done, waiting
        await until(lambda: not {fd for fd in support.open_fds() - fds if str(tmp_path) in fd[1]})
    run(main())


def test_an_open_cancelled_when_it_has_just_succeeded_leaves_no_descriptor(run, files_loop, fifo, monkeypatch):
    """The thread that made it may never run again."""
    fds, jobs, submit = support.open_fds(), [], files_loop.run_in_executor
    monkeypatch.setenv("GMPLOOP_FS", "executor")

    def run_in_executor(*args):
        jobs.append(submit(*args))
        return jobs[-1]

    async def main():
        opening = asyncio.create_task(opened(fifo))
        await until(lambda: jobs)
        jobs.pop().add_done_callback(lambda _: opening.cancel())
        await until(lambda: (end := open_for_writing(fifo)) and os.close(end) is None)
        await asyncio.wait([opening])
        assert opening.cancelled()
        del opening
        await until(lambda: not {fd for fd in support.open_fds() - fds if str(fifo) in fd[1]})
    monkeypatch.setattr(files_loop, "run_in_executor", run_in_executor)
    run(main(), 5)


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
            # not the others: a lock that spins yields to whatever else the machine does
            return sum(int(line.split()[1]) for line in status if line.startswith("voluntary_ctxt_switches"))

    async def main():
        source, sink = os.pipe()
        async with fs.open(path) as file, fs.open(f"/proc/self/fd/{source}") as pipe:
            await file.read(10)
            reading = asyncio.create_task(pipe.read(1))
            await asyncio.sleep(0.05)
            before, cpu = switches(), time.process_time()
            await asyncio.sleep(0.5)
            cpu, count = time.process_time() - cpu, switches() - before
            os.write(sink, b"x")            # before anything fails: a thread waits for it
            assert cpu < 0.05
            assert count < 10
            assert not [name for _, name in support.threads() if name.startswith("iou-sqp")]
            assert await reading == b"x"
        os.close(source), os.close(sink)
    run(main())
