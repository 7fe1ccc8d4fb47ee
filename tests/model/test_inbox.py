"""Posts, sleep, wake-up and close in every interleaving: the protocol holds, and each broken variant is found out.

The protocol is protocol.py's, which writes the core's steps down again: every interleaving of those, of two posters
with one or two posts each. That the core does the same is not checked here.
"""

import pytest

from .explore import Broken
from .protocol import IDLE, NOTIFIED, RUNNABLE, RUNNING, run_all, write

pytestmark = pytest.mark.timeout(60)


def test_two_posters_and_an_owner_that_sleeps():
    assert run_all() > 10000


def test_something_else_may_wake_the_owner():
    assert run_all(posts=(2, 1), spare=1) > 10000


def test_posts_between_two_runs_of_the_loop():
    assert run_all(posts=(2, 1), runs=2) > 10000


def test_posts_while_the_loop_is_closed():
    assert run_all(posts=(2, 1), close=True) > 10000


# -- broken variants. Each replaces one step of the protocol.

def going_idle_by_a_plain_store(programs):
    def cas_idle(shared, local):
        shared["state"] = IDLE
        return "sleep"
    programs["owner"]["cas idle"] = cas_idle


def going_idle_whatever_was_notified(programs):
    def clear_notified(shared, local):
        shared["state"] = IDLE
        return "sleep"
    programs["owner"]["clear notified"] = clear_notified


def notify_before_push(programs):
    """Each poster notifies first, and pushes then."""
    for name in "ab":
        steps = programs[name]
        check_open, cas_head = steps["check open"], steps["cas head"]
        steps["check open"] = lambda *words, old=check_open: replaced(old(*words), {"load head": "load state"})
        after_notify = {"check open": "load head", "end": "load head"}
        for label in "load state", "cas state", "load owner", "write event":
            steps[label] = lambda *words, old=steps[label]: replaced(old(*words), after_notify)
        steps["cas head"] = lambda shared, local, old=cas_head: replaced(
            old(shared, local), {"load state": "check open" if local["sent"] < 2 else "end"})


def replaced(label, instead):
    return instead.get(label, label)


def no_look_at_the_inbox_after_being_kept_awake_and_none_at_a_turn_s_start(programs):
    programs["owner"]["kept awake"] = lambda shared, local: "look"
    programs["owner"]["turn: drain"] = lambda shared, local: "begin"


def the_notification_is_cleared_after_the_inbox_was_taken_and_the_owner_sleeps_at_once(programs):
    """Clear and sleep without another look: what came in between has set nothing any more."""
    owner = programs["owner"]
    owner["cas idle"] = lambda shared, local, old=owner["cas idle"]: replaced(
        old(shared, local), {"clear notified": "kept awake"})
    owner["look"] = lambda shared, local, old=owner["look"]: (old(shared, local), "clear notified")[1]

    def clear_notified(shared, local):
        shared["state"] &= ~NOTIFIED
        return "cas idle"
    owner["clear notified"] = clear_notified


def the_inbox_is_taken_by_load_and_store(programs):
    owner = programs["owner"]

    def take(shared, local):
        local["ready"] += tuple(reversed(shared["inbox"]))
        return "begin: store"

    def store(shared, local):
        shared["inbox"] = ()
        return "begin"
    owner["begin: take"], owner["begin: store"] = take, store


def pushing_by_a_plain_store(programs):
    for name in "ab":
        def cas_head(shared, local, name=name):
            local["sent"] += 1
            shared["inbox"] = (f"{name}{local['sent']}",) + local["head"]
            return "load state"
        programs[name]["cas head"] = cas_head


def the_inbox_is_not_turned_round(programs):
    def take(shared, local):
        local["ready"] += shared["inbox"]
        shared["inbox"] = ()
        return "begin"
    programs["owner"]["begin: take"] = take


def a_poster_wakes_only_whom_it_saw_sleeping(programs):
    """The state is read, then set by a plain store of what that reading asks for."""
    for name in "ab":
        def store_state(shared, local, old=programs[name]["cas state"]):
            found = shared["state"]
            shared["state"] = local["seen"]
            label = old(shared, local)
            if found == RUNNABLE:
                shared["state"] = found
            return label
        programs[name]["cas state"] = store_state


def the_owner_never_clears_the_notification(programs):
    programs["owner"]["clear notified"] = lambda shared, local: "kept awake"


def the_woken_owner_does_not_say_that_it_runs(programs):
    """RUNNABLE stays set while it runs: the next post believes that somebody else has woken it."""
    programs["owner"]["wake set"] = lambda shared, local: "woken"
    programs["owner"]["cas idle"] = lambda shared, local: (
        shared.update(state=IDLE), "sleep")[1] if shared["state"] in (RUNNING, RUNNABLE) else "clear notified"


def close_does_not_lock_out_those_who_wake(programs):
    """A poster looks whether the eventfd is open and writes afterwards."""
    for name in "ab":
        def look_at_eventfd(shared, local, old=programs[name]["write event"]):
            return "write event" if shared["wakefd"] else old(shared, local)

        def write_event(shared, local, old=programs[name]["write event"]):
            write(shared)
            return old(shared, local)
        programs[name]["load owner"] = lambda *words, old=programs[name]["load owner"]: replaced(
            old(*words), {"write event": "look at eventfd"})
        programs[name]["look at eventfd"], programs[name]["write event"] = look_at_eventfd, write_event


def looking_before(programs, store, running_on):
    """The look at the inbox moves up before the store that it stands behind in the code, as a CPU may do unless a
    fence forbids it."""
    owner = programs["owner"]
    owner["late store, empty"] = lambda *words, old=owner[store]: (old(*words), running_on)[1]
    owner["late store, filled"] = lambda *words, old=owner[store]: (old(*words), f"{running_on}: take")[1]
    owner[store] = lambda shared, local: "late store, filled" if shared["inbox"] else "late store, empty"


def the_woken_owner_looks_before_it_says_that_it_runs(programs):
    """Both its looks do: there is no system call between this one and that of the next turn."""
    looking_before(programs, "wake set", "begin")


def the_entering_owner_looks_before_it_says_that_it_runs(programs):
    looking_before(programs, "enter set", "begin")


def the_owner_looks_before_it_clears_the_notification(programs):
    """Harmless: a poll that does not wait follows, and the next turn looks again."""
    looking_before(programs, "clear notified", "look")


@pytest.mark.parametrize("variant, fault", [
    (going_idle_by_a_plain_store, "a wake-up is lost"),
    (going_idle_whatever_was_notified, "a wake-up is lost"),
    (notify_before_push, "a wake-up is lost"),
    (no_look_at_the_inbox_after_being_kept_awake_and_none_at_a_turn_s_start, "a wake-up is lost"),
    (the_notification_is_cleared_after_the_inbox_was_taken_and_the_owner_sleeps_at_once, "a wake-up is lost"),
    (the_inbox_is_taken_by_load_and_store, "a post is lost"),
    (pushing_by_a_plain_store, "lost|ran twice"),
    (the_inbox_is_not_turned_round, "out of order"),
    (a_poster_wakes_only_whom_it_saw_sleeping, "a wake-up is lost"),
    (the_woken_owner_does_not_say_that_it_runs, "a wake-up is lost"),
    (the_woken_owner_looks_before_it_says_that_it_runs, "a wake-up is lost"),
    (the_entering_owner_looks_before_it_says_that_it_runs, "a wake-up is lost"),
], ids=lambda value: getattr(value, "__name__", ""))
def test_a_broken_variant_is_found(variant, fault):
    with pytest.raises(Broken, match=fault):
        run_all(change=variant)


def test_an_owner_that_never_sleeps_is_found():
    with pytest.raises(Broken, match="in circles for ever"):
        run_all(posts=(1, 1), change=the_owner_never_clears_the_notification)


def test_a_close_that_does_not_lock_is_found():
    with pytest.raises(Broken, match="written to after it was closed"):
        run_all(posts=(1, 1), close=True, change=close_does_not_lock_out_those_who_wake)


def test_a_look_that_moves_up_before_the_notification_is_cleared_does_no_harm():
    assert run_all(posts=(2, 1), change=the_owner_looks_before_it_clears_the_notification) > 10000
