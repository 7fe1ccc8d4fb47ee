"""The work of sched-cpu without a loop, by a process or two that share nothing: what the machine has to give."""

import multiprocessing

import worlds
from loops import enter_child
from worlds import WORLDS

SETTINGS = enter_child()
PROCESSES = SETTINGS["threads"]


def step_all(ready, done):
    """An equal part of the worlds, in turn until each has ended, whenever `ready` says so."""
    while ready.get():
        coroutines = [worlds.compute_in_turns() for _ in range(WORLDS // PROCESSES)]
        while coroutines:
            going, coroutines = coroutines, []
            for coroutine in going:
                try:
                    coroutine.send(None)
                except StopIteration:
                    continue
                coroutines.append(coroutine)
        done.put(True)


def cpu(settings):
    fork = multiprocessing.get_context("fork")
    ready, done = fork.SimpleQueue(), fork.SimpleQueue()
    others = [fork.Process(target=step_all, args=(ready, done)) for _ in range(PROCESSES)]
    for other in others:
        other.start()

    def once():
        for _ in others:
            ready.put(True)
        for _ in others:
            done.get()
    try:
        return worlds.repeated(lambda: worlds.seconds_of(once) * 1e3, settings["seconds"])
    finally:
        for _ in others:
            ready.put(False)
        for other in others:
            other.join()


worlds.answer({"cpu": cpu}, SETTINGS)
