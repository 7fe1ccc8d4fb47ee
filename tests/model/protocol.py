"""Posts from other threads against an owner that goes to sleep, step by step as in the core: a transcription, which has to
be kept like it by hand.

The words that the threads share, as in g.pyx, gstate.h, runtime.pyx and poller_epoll.pyx:
    state   the state word of the G       inbox   the stack of posts, newest first
    owner   whether a thread runs it      event   whether the eventfd has an edge that no poll has taken
    closed  whether the loop is closed    wakefd  whether the eventfd is open
and what a test looks at: `ran`, `dropped`, `refused`, and `spare`: how often something else may yet end a wait
(a descriptor, a signal, a timer).

Each read, write, CAS and exchange of a shared word is a step; what touches private words only belongs to the step
before it. Steps are sequentially consistent here: that the orderings in the code suffice for this is for the
C tests to find out, under a thread sanitizer.
"""

from .explore import BLOCKED, END, Broken, explore

IDLE, RUNNABLE, RUNNING, NOTIFIED = 0, 1, 2, 16


def write(shared):
    """To the eventfd, by a number that belongs to somebody else once it is closed."""
    if not shared["wakefd"]:
        raise Broken("an eventfd was written to after it was closed")
    shared["event"] = True


def poster(name, count):
    """Posts name1, name2, ...: LoopCore.call_soon_threadsafe() and what it calls."""
    def check_open(shared, local):
        if shared["closed"]:
            local["sent"] += 1
            shared["refused"] += (f"{name}{local['sent']}",)
            return next_post(local)
        return "load head"

    def next_post(local):
        return "check open" if local["sent"] < count else END

    def load_head(shared, local):
        local["head"] = shared["inbox"]
        return "cas head"

    def cas_head(shared, local):
        if shared["inbox"] != local["head"]:
            return "load head"
        local["sent"] += 1
        shared["inbox"] = (f"{name}{local['sent']}",) + local["head"]
        local["head"] = None
        return "load state"

    def load_state(shared, local):
        local["seen"] = shared["state"]
        return notify(local)

    def notify(local):
        """The loop of gl_g_notify() with the state that it saw last."""
        if local["seen"] & NOTIFIED or local["seen"] == RUNNABLE:
            local["seen"] = None
            return next_post(local)
        return "cas state"

    def cas_state(shared, local):
        if shared["state"] != local["seen"]:
            return load_state(shared, local)        # a CAS that fails tells what it found
        was_idle = local["seen"] == IDLE
        shared["state"] = RUNNABLE if was_idle else local["seen"] | NOTIFIED
        local["seen"] = None
        return "load owner" if was_idle else next_post(local)

    def load_owner(shared, local):
        return "write event" if shared["owner"] else next_post(local)

    def write_event(shared, local):                 # under wake_lock, as the closing of the eventfd
        if shared["wakefd"]:
            write(shared)
        return next_post(local)

    steps = {"check open": check_open, "load head": load_head, "cas head": cas_head, "load state": load_state,
             "cas state": cas_state, "load owner": load_owner, "write event": write_event}
    return name, steps, {"sent": 0, "head": None, "seen": None}, "check open"


def owner(runs, close):
    """Runs the loop `runs` times; each run but an endless last one is ended by stop(), at any moment. Then closes it.

    The ready ring is private: `ready` holds what is in it. A turn's callbacks run in the step in which poll(0) looks.
    """
    def enter(shared, local):                       # under w.lock
        shared["owner"] = True
        local["runs"] += 1
        return "enter cas"

    def enter_cas(shared, local):
        if shared["state"] == IDLE:
            shared["state"] = RUNNABLE
        return "enter set"

    def enter_set(shared, local):
        shared["state"] = RUNNING
        return "turn"

    def drain(then):
        """Both steps of drain_inbox(), and the label after it."""
        def load(shared, local):
            return f"{then}: take" if shared["inbox"] else then

        def take(shared, local):
            local["ready"] += tuple(reversed(shared["inbox"]))
            shared["inbox"] = ()
            return then
        return load, take

    def begin(shared, local):
        """After the drain at a turn's start: may this turn wait?"""
        if local["ready"]:
            return "look"
        return "cas idle"

    def stop(shared, local):
        """At a turn's start stop() may have been called, by a callback or a signal handler."""
        goes_on = dict(shared), dict(local), "turn: drain"
        return [goes_on, (shared, local, "last look")] if local["runs"] < runs or close else [goes_on]

    def cas_idle(shared, local):
        if shared["state"] == RUNNING:
            shared["state"] = IDLE
            return "sleep"
        return "clear notified"

    def clear_notified(shared, local):
        shared["state"] &= ~NOTIFIED
        return "kept awake"

    def run_ready(shared, local):
        for post in local["ready"]:
            if any(post[0] == other[0] and post <= other for other in shared["ran"]):
                raise Broken(f"{post} ran twice or out of order")
            shared["ran"] = tuple(sorted(shared["ran"] + (post,)))
        local["ready"] = ()

    def look(shared, local):
        shared["event"] = False                     # edge-triggered: a poll takes the edge
        run_ready(shared, local)
        return "turn"

    def last_look(shared, local):
        look(shared, local)
        return "leave cas"

    def sleep(shared, local):
        if shared["event"]:
            shared["event"] = False
        elif shared["spare"]:
            shared["spare"] -= 1
        else:
            return BLOCKED
        return "wake cas"

    def wake_cas(shared, local):
        if shared["state"] == IDLE:
            shared["state"] = RUNNABLE
        return "wake set"

    def wake_set(shared, local):
        shared["state"] = RUNNING
        return "woken"

    def woken(shared, local):
        run_ready(shared, local)
        return "turn"

    def leave_cas(shared, local):
        if shared["state"] == RUNNING:
            shared["state"] = IDLE
            return "leave"
        return "leave set"

    def leave_set(shared, local):
        shared["state"] = RUNNABLE
        return "leave"

    def leave(shared, local):                       # under w.lock
        shared["owner"] = False
        return "enter" if local["runs"] < runs else "close"

    def close_(shared, local):
        shared["closed"] = True
        return "drop: drain"

    def drop(shared, local):
        shared["dropped"] += local["ready"]
        local["ready"] = ()
        return "close eventfd"

    def close_eventfd(shared, local):               # under wake_lock
        shared["wakefd"] = False
        return END

    steps = {"enter": enter, "enter cas": enter_cas, "enter set": enter_set, "turn": stop, "begin": begin,
             "cas idle": cas_idle, "clear notified": clear_notified, "look": look, "last look": last_look,
             "sleep": sleep, "wake cas": wake_cas, "wake set": wake_set, "woken run": woken, "leave cas": leave_cas,
             "leave set": leave_set, "leave": leave, "close": close_, "drop": drop, "close eventfd": close_eventfd}
    for at, then in ("turn: drain", "begin"), ("kept awake", "look"), ("woken", "woken run"), ("drop: drain", "drop"):
        steps[at], steps[f"{then}: take"] = drain(then)
    return "owner", steps, {"ready": (), "runs": 0}, "enter"


def run_all(posts=(2, 2), runs=1, close=False, spare=0, change=lambda programs: None):
    """Explore; `change` may alter the programs first. Raises Broken, with the steps that lead to the fault."""
    programs = [owner(runs, close)] + [poster("ab"[i], count) for i, count in enumerate(posts)]
    change({name: steps for name, steps, _, _ in programs})
    shared = {"state": IDLE, "inbox": (), "owner": False, "event": False, "closed": False, "wakefd": True,
              "spare": spare, "ran": (), "dropped": (), "refused": ()}
    everything = sorted(f"{'ab'[i]}{n + 1}" for i, count in enumerate(posts) for n in range(count))

    def finished(shared, labels):
        accounted = shared["ran"] + shared["dropped"] + shared["refused"]
        if close:                                   # what is posted while the loop closes goes with the loop itself
            accounted += shared["inbox"]
        if sorted(accounted) != everything:
            return "a post is lost" if not shared["inbox"] else "a wake-up is lost"
        if not close and labels != ["sleep", END, END]:
            return "the owner does not sleep though there is nothing to do"
    return explore(shared, programs, finished)
