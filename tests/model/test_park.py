"""Work that is queued against threads that stop looking for it, in every interleaving: the order of steps in
wakeup.h and findrunnable.h, written down again here. However often threads take turns; but that the headers do the same
is not checked: test_headers.py runs them themselves, up to a few preemptions.

Two Ps, two Ms that hold them and find nothing, spinning or not, and somebody who injects Gs. The words they share:
    queue  the global queue's length      idle      how many Ps are in the idle list
    spin   how many Ms spin               parked    how many Ms wait to be given a P
    given  Ps handed to parked Ms         ran       Gs that were run
Each read and write of a shared word is a step, what is done under the lock is one. Runnable Gs must be run.
"""

import pytest

from .explore import BLOCKED, END, explore

pytestmark = pytest.mark.timeout(60)


def injector(count):
    """gl_inject() and gl_wakep()."""
    def put(shared, local):                     # under lock
        shared["queue"] += 1
        local["sent"] += 1
        return "read idle"

    def read_idle(shared, local):
        return "read spin" if shared["idle"] else following(local)

    def read_spin(shared, local):
        return following(local) if shared["spin"] else "cas spin"

    def cas_spin(shared, local):
        if shared["spin"]:
            return following(local)
        shared["spin"] = 1
        return "take p"

    def take_p(shared, local):                  # under lock: gl_pidle_get(), and gl_startm()'s look for an M
        if not shared["idle"]:
            return "undo"
        shared["idle"] -= 1
        shared["given"] += 1                    # to a parked M, or to a new one: both begin as the M below is woken
        return following(local)

    def undo(shared, local):
        shared["spin"] -= 1
        return following(local)

    def following(local):
        return "put" if local["sent"] < count else END
    return "injector", {"put": put, "read idle": read_idle, "read spin": read_spin, "cas spin": cas_spin,
                        "take p": take_p, "undo": undo}, {"sent": 0}, "put"


def thread(name, rechecks=True):
    """gl_find() of an M that holds a P and spins at first."""
    def search(shared, local):
        return "take" if shared["queue"] else "give up"

    def take(shared, local):                    # under lock
        if not shared["queue"]:
            return "give up"
        shared["queue"] -= 1
        shared["ran"] += 1
        if not local["spinning"]:
            return "search"
        local["spinning"] = False
        shared["spin"] -= 1
        return "wake idle"

    def wake_idle(shared, local):               # gl_spin_found() calls gl_wakep(), too
        return "wake spin" if shared["idle"] else "search"

    def wake_spin(shared, local):
        if shared["spin"]:
            return "search"
        shared["spin"] = 1
        return "wake take"

    def wake_take(shared, local):
        if shared["idle"]:
            shared["idle"] -= 1
            shared["given"] += 1
        else:
            shared["spin"] -= 1
        return "search"

    def give_up(shared, local):                 # under lock
        if shared["queue"]:
            return "take"
        shared["idle"] += 1
        return "count down" if local["spinning"] else "park"

    def count_down(shared, local):
        shared["spin"] -= 1
        local["spinning"] = False
        return "look again" if rechecks else "park"

    def look_again(shared, local):
        return "take idle p" if shared["queue"] else "park"

    def take_idle_p(shared, local):             # under lock
        if not shared["idle"]:
            return "park"
        shared["idle"] -= 1
        return "count up"

    def count_up(shared, local):
        shared["spin"] += 1
        local["spinning"] = True
        return "search"

    def park(shared, local):
        if not shared["given"]:
            return BLOCKED
        shared["given"] -= 1
        local["spinning"] = True                # who woke it has counted it
        return "search"
    steps = {"search": search, "take": take, "wake idle": wake_idle, "wake spin": wake_spin, "wake take": wake_take,
             "give up": give_up, "count down": count_down, "look again": look_again, "take idle p": take_idle_p,
             "count up": count_up, "park": park}
    return name, steps, {"spinning": True}, "search"


def run_all(gs=2, change=lambda steps: None, **options):
    programs = [injector(gs), thread("m1", **options), thread("m2", **options)]
    for _, steps, _, _ in programs:
        change(steps)
    shared = {"queue": 0, "idle": 0, "spin": 2, "given": 0, "ran": 0}

    def finished(shared, labels):
        if shared["ran"] != gs or shared["queue"]:
            return "a wake-up is lost"
        if labels != [END, "park", "park"] or shared["spin"] or shared["idle"] != 2:
            return f"not at rest: {shared} {labels}"
    return explore(shared, programs, finished)


def test_no_wake_up_is_lost():
    assert run_all(gs=3) > 1000


def test_without_another_look_after_the_count_one_is():
    with pytest.raises(AssertionError, match="a wake-up is lost"):
        run_all(rechecks=False)


def test_with_the_count_read_before_the_g_is_queued_one_is():
    def change(steps):
        if "put" not in steps:
            return
        put = steps["put"]
        steps["put"] = lambda shared, local: "read early"
        steps["read early"] = lambda shared, local: "put now" if shared["spin"] else "put and wake"
        steps["put now"] = lambda shared, local: (put(shared, local), "put" if local["sent"] < 2 else END)[1]
        steps["put and wake"] = put
    with pytest.raises(AssertionError, match="a wake-up is lost"):
        run_all(change=change)
