"""The work of sched-cpu without a loop, by a process or two that share nothing: what the machine has to give."""

import contextlib
import multiprocessing

import worlds
from loops import enter_child
from worlds import PAIRED_WORLDS, WORLDS

SETTINGS = enter_child()
PROCESSES = SETTINGS["threads"]


def step_all(wanted, done):
    """So many worlds as `wanted` says, in turn until each has ended; 0 is the end."""
    while count := wanted.get():
        coroutines = [worlds.compute_in_turns() for _ in range(count)]
        while coroutines:
            going, coroutines = coroutines, []
            for coroutine in going:
                try:
                    coroutine.send(None)
                except StopIteration:
                    continue
                coroutines.append(coroutine)
        done.put(True)


@contextlib.contextmanager
def stepped(worlds_in_all):
    """A function that has so many of the PROCESSES step that many worlds, an equal part each."""
    fork = multiprocessing.get_context("fork")
    wanted, done = [fork.SimpleQueue() for _ in range(PROCESSES)], fork.SimpleQueue()
    others = [fork.Process(target=step_all, args=(each, done)) for each in wanted]

    def step(processes):
        for each in wanted[:processes]:
            each.put(worlds_in_all // processes)
        for _ in range(processes):
            done.get()
    for other in others:
        other.start()
    try:
        yield step
    finally:
        for each in wanted:
            each.put(0)
        for other in others:
            other.join()


def cpu(settings):
    with stepped(WORLDS) as step:
        return worlds.repeated(lambda: worlds.seconds_of(step, PROCESSES) * 1e3, settings["seconds"])


def scaling(settings):
    with stepped(PAIRED_WORLDS) as step:
        return worlds.scaling(step, settings["seconds"])


worlds.answer({"cpu": cpu, "scaling-cpu": scaling}, SETTINGS)
