"""The hops rows: two parties that send a number to and fro, in a process of their own; see `contests`.

"means" is what they send it by: a Channel or a queue of the standard library. The figure is the process's CPU time for
a round trip of two hops, beside it the time that passes.
"""

import asyncio
import queue
import threading
import time

import worlds
from loops import enter_child, factory_of

SETTINGS = enter_child()

import gmploop  # noqa: E402

HOPS = 10_000 if SETTINGS["row"] == "one-loop" else 2_000      # a thread's start is nothing beside either
MEANS = {"Channel": (gmploop.Channel, "send", "recv"), "asyncio.Queue": (asyncio.Queue, "put", "get"),
         "Channel, blocking": (gmploop.Channel, "send_blocking", "recv_blocking"),
         "queue.Queue": (queue.Queue, "put", "get"), "queue.SimpleQueue": (queue.SimpleQueue, "put", "get")}


def ways_of(settings):
    """(there, back), each as its two methods: to send and to receive."""
    make, send, receive = MEANS[settings["means"]]
    return [(getattr(one, send), getattr(one, receive)) for one in (make(), make())]


def run_in(settings, coro):
    with asyncio.Runner(loop_factory=factory_of(settings["of"])) as runner:
        runner.run(coro)


async def echo(there, back):
    for _ in range(HOPS):
        await back[0](await there[1]())


async def ask(there, back):
    for number in range(HOPS):
        await there[0](number)
        await back[1]()


def one_loop(settings):
    there, back = ways_of(settings)

    async def both():
        other = asyncio.ensure_future(echo(there, back))
        await ask(there, back)
        await other
    run_in(settings, both())


def two_loops(settings):
    """A loop each, on a thread each."""
    there, back = ways_of(settings)
    thread = threading.Thread(target=run_in, args=(settings, echo(there, back)))
    thread.start()
    run_in(settings, ask(there, back))
    thread.join()


def two_threads(settings):
    there, back = ways_of(settings)

    def serve():
        for _ in range(HOPS):
            back[0](there[1]())
    thread = threading.Thread(target=serve)
    thread.start()
    for number in range(HOPS):
        there[0](number)
        back[1]()
    thread.join()


def timed(row):
    def figures(settings):
        row(settings)
        cpu, start, rounds = time.process_time(), time.perf_counter(), 0
        while not rounds or time.perf_counter() - start < settings["seconds"]:
            row(settings)
            rounds += 1
        wall = time.perf_counter() - start
        cpu = time.process_time() - cpu
        return {"value": cpu * 1e6 / HOPS / rounds, "wall_us": wall * 1e6 / HOPS / rounds}
    return figures


worlds.answer({"one-loop": timed(one_loop), "two-loops": timed(two_loops), "two-threads": timed(two_threads)}, SETTINGS)
