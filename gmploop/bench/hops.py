"""Channel hops against asyncio.Queue and queue.Queue: `python -m gmploop.bench.hops [--rounds N] [--hops N]`.

A row is two parties that send a number to and fro. "cpu" is the process's CPU time for a round trip of two hops, "wall"
the time that passes; least of the rounds. Rows: both in one loop, in two loops on two threads, in two plain threads.
"""

import argparse
import asyncio
import queue
import threading
import time

import gmploop

LOOPS = {"gmploop": gmploop.new_event_loop, "asyncio": asyncio.SelectorEventLoop}


def timed(run, hops):
    """Microseconds a round trip: (cpu, wall)."""
    cpu, wall = time.process_time(), time.perf_counter()
    run()
    return (time.process_time() - cpu) * 1e6 / hops, (time.perf_counter() - wall) * 1e6 / hops


def run_in(factory, coro):
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(coro)


async def echo(receive, send, hops):
    for _ in range(hops):
        await send(await receive())


async def ask(receive, send, hops):
    for number in range(hops):
        await send(number)
        await receive()


def together(factory, make, names):
    """Both parties in one loop."""
    def row(hops):
        one, two = make(), make()
        send, receive = names

        async def both():
            other = asyncio.ensure_future(echo(getattr(one, receive), getattr(two, send), hops))
            await ask(getattr(two, receive), getattr(one, send), hops)
            await other
        return timed(lambda: run_in(factory, both()), hops)
    return row


def apart(factory):
    """A loop each, on a thread each."""
    def row(hops):
        one, two = gmploop.Channel(), gmploop.Channel()

        def both():
            thread = threading.Thread(target=run_in, args=(factory, echo(one.recv, two.send, hops)))
            thread.start()
            run_in(factory, ask(two.recv, one.send, hops))
            thread.join()
        return timed(both, hops)
    return row


def in_threads(make, send, receive):
    def row(hops):
        one, two = make(), make()

        def serve():
            for _ in range(hops):
                getattr(two, send)(getattr(one, receive)())

        def both():
            thread = threading.Thread(target=serve)
            thread.start()
            for number in range(hops):
                getattr(one, send)(number)
                getattr(two, receive)()
            thread.join()
        return timed(both, hops)
    return row


ROWS = {
    **{f"one loop ({kind}), Channel": together(factory, gmploop.Channel, ("send", "recv"))
       for kind, factory in LOOPS.items()},
    **{f"one loop ({kind}), asyncio.Queue": together(factory, asyncio.Queue, ("put", "get"))
       for kind, factory in LOOPS.items()},
    **{f"two loops ({kind}) on two threads, Channel": apart(factory) for kind, factory in LOOPS.items()},
    "two threads, Channel": in_threads(gmploop.Channel, "send_blocking", "recv_blocking"),
    "two threads, queue.Queue": in_threads(queue.Queue, "put", "get"),
    "two threads, queue.SimpleQueue": in_threads(queue.SimpleQueue, "put", "get"),
}


def main():
    parser = argparse.ArgumentParser(prog="python -m gmploop.bench.hops", description=__doc__.partition(":")[0])
    parser.add_argument("--rounds", type=int, default=3, help="of each row; default %(default)s")
    parser.add_argument("--hops", type=int, default=20000, help="round trips in a round; default %(default)s")
    options = parser.parse_args()
    results = {name: [] for name in ROWS}
    for _ in range(options.rounds):         # the rows take turns
        for name, row in ROWS.items():
            results[name].append(row(options.hops))
    print(f"{'µs a round trip':48} {'cpu':>8} {'wall':>8}")
    for name, values in results.items():
        cpu, wall = (min(column) for column in zip(*values, strict=True))
        print(f"{name:48} {cpu:8.2f} {wall:8.2f}")


if __name__ == "__main__":
    main()
