"""What the system refuses: threads, and the kernel's objects that wait for events. Each ends in a clear error or a
warning, and nothing hangs."""

import os
import subprocess

import pytest

pytestmark = pytest.mark.timeout(120)

HEAD = """
import asyncio, ctypes, logging, os, socket, sys, threading, time
import gmploop
from gmploop import go
logging.basicConfig(format="LOG %(message)s")
"""

#: Overrides pthread_create: after `allow` more threads there is none. Those that libkqueue starts are not counted: a real
#: kqueue needs none.
NO_THREADS = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <string.h>
int allow = 1000;
int pthread_create(pthread_t *t, const pthread_attr_t *a, void *(*f)(void *), void *arg) {
    int (*real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) = dlsym(RTLD_NEXT, "pthread_create");
    Dl_info by;
    if (dladdr(__builtin_return_address(0), &by) && by.dli_fname && strstr(by.dli_fname, "libkqueue.so"))
        return real(t, a, f, arg);
    if (__atomic_sub_fetch(&allow, 1, __ATOMIC_RELAXED) < 0) return EAGAIN;
    return real(t, a, f, arg);
}
"""

CLOSES = """
def polls():
    found = set()
    for name in os.listdir("/proc/self/fd"):
        try:
            if os.readlink(f"/proc/self/fd/{name}") in ("anon_inode:[eventpoll]", "anon_inode:[io_uring]"):
                found.add(int(name))
        except OSError:
            pass
    return found
def close(fds):
    for fd in fds:
        os.close(fd)
"""


@pytest.fixture(scope="module")
def no_threads(tmp_path_factory):
    folder = tmp_path_factory.mktemp("preload")
    (folder / "no_threads.c").write_text(NO_THREADS)
    try:
        subprocess.run(["cc", "-shared", "-fPIC", "-o", folder / "no_threads.so", folder / "no_threads.c", "-ldl"],
                       check=True, timeout=60)
    except FileNotFoundError:
        pytest.skip("no C compiler")
    return str(folder / "no_threads.so")


@pytest.fixture
def short_of_threads(program, no_threads):
    """Runs a program in which `allow(n)` lets it have n more threads."""
    def run(source):
        return program(HEAD + "def allow(n):\n    ctypes.c_int.in_dll(ctypes.CDLL(None), 'allow').value = n\n" + source,
                       LD_PRELOAD=f"{no_threads} {os.environ.get('LD_PRELOAD', '')}")
    return run


@pytest.mark.parametrize("threads, who", [(0, "sysmon"), (1, "goroutines")])
@pytest.mark.parametrize("lock_main", [True, False])
def test_without_a_thread_go_raises_and_works_once_there_is_one(short_of_threads, threads, who, lock_main):
    done = short_of_threads(f"""
async def main():
    return await go(pow, 2, 3)
allow({threads})
for _ in range(2):
    try:
        gmploop.run(main(), procs=2, lock_main={lock_main})
    except RuntimeError as exc:
        print(exc)
    allow(0)
allow(1000)
print(gmploop.run(main(), procs=2, lock_main={lock_main}))
""")
    *errors, last = done.stdout.splitlines()
    assert len(errors) == 2 and f"no thread can be had for {who}" in errors[0], done.stderr
    assert all("no thread can be had" in error and "Resource temporarily unavailable" in error for error in errors)
    assert last == "8"


def test_with_fewer_threads_than_procs_all_is_done(short_of_threads):
    done = short_of_threads("""
async def work(i):
    await asyncio.sleep(0.001)
    time.sleep(0.002)
    return i
async def main():
    return sum(await asyncio.gather(*[go(work, i) for i in range(100)]))
allow(2)                    # sysmon, one M
print(gmploop.run(main(), procs=4))
allow(1000)
print(gmploop.run(main(), procs=4))
""")
    assert done.stdout == "4950\n4950\n", done.stderr
    assert done.stderr.count("goroutines go on with 1 threads, another cannot be had") == 1


def test_behind_a_callback_that_blocks_the_others_wait_without_a_thread(short_of_threads):
    done = short_of_threads("""
async def main():
    blocked = go(time.sleep, 0.3)
    await asyncio.sleep(0.05)
    waits = go(pow, 2, 3)
    before = time.process_time()
    print(await waits)
    print(time.process_time() - before < 0.2)      # nobody asks for a thread all the time
    await blocked
allow(2)
gmploop.run(main(), procs=1)
print(gmploop.stats()["threads_made"] < 3)
""")
    assert done.stdout == "8\nTrue\nTrue\n", done.stderr


READS = CLOSES + """
one, two = socket.socketpair()
one.setblocking(False)
async def reads():
    try:
        await asyncio.get_running_loop().sock_recv(one, 1)
    finally:
        await asyncio.sleep(0.01)
        print("goroutine ends")
"""


@pytest.mark.parametrize("lock_main, main_poller", [(True, "io_uring"), (False, "epoll")])
def test_the_goroutines_poller_breaks(program, lock_main, main_poller):
    done = program(HEAD + READS + f"""
async def main():
    goroutine = go(reads)
    await asyncio.sleep(0.05)
    close(shared)
    go(asyncio.sleep, 0.01)                     # who sleeps in the poller looks up
    try:
        await goroutine
    finally:
        print("main ends")
gmploop.set_procs(1)
shared = polls()
try:
    gmploop.run(main(), lock_main={lock_main}, procs=2)
except OSError as exc:
    print(exc.strerror)
""", GMPLOOP_POLLER=main_poller)
    lines = done.stdout.splitlines()
    assert sorted(lines[:-1]) == ["goroutine ends", "main ends"], done.stderr
    assert lines[-1] == "the poller that goroutines share is broken: Bad file descriptor"


@pytest.mark.parametrize("poller", ["epoll", "io_uring"])
@pytest.mark.parametrize("goroutines", [True, False])
def test_the_poller_of_a_locked_world_breaks(program, poller, goroutines):
    done = program(HEAD + CLOSES + f"""
async def waits():
    try:
        await gmploop.Event().wait()
    finally:
        print("goroutine ends")
async def main():
    if {goroutines}:
        go(waits)
    await asyncio.sleep(0.05)
    close(polls() - before)
    files.append(open("/dev/null"))             # it may get the number
    try:
        await asyncio.sleep(1000)
    finally:
        await asyncio.sleep(0.01)
        print("main ends")
files = []
if {goroutines}:
    gmploop.set_procs(1)
before = polls()
try:
    gmploop.run(main())
except OSError as exc:
    print(exc.strerror)
files[0].read()                                 # nobody has closed it
""", GMPLOOP_POLLER=poller)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert sorted(lines[:-1]) == ["goroutine ends"] * goroutines + ["main ends"], done.stderr
    assert f"the event loop's poller ({poller}) is broken" in lines[-1]
