"""Every interleaving, without a bound on preemptions, of a few small programs that share some words. They are written in
Python; explore.h runs C, with a bound.

A program is a dict of labels. Under each stands a function `step(shared, local)`: one atomic step. It changes the two
dicts that it is given and returns the label of the program's next step; or a list of (shared, local, label), if more
than one thing may happen; or BLOCKED, and is tried again when another program has moved. Label END ends a program.
A step that raises Broken has found a fault.
"""

BLOCKED = object()
END = "end"


class Broken(AssertionError):
    """The programs do not do what they should; the message has the steps that led there."""


def explore(shared, programs, finished):
    """Visit each state that can be reached from `shared`; `programs` are (name, program, locals, first label).

    `finished(shared, labels)` says what is wrong with a state in which no program can move, or None. From each state
    such a good end must be reachable, so that programs which run in circles for ever are found too. Returns the number
    of states.
    """
    names = list(shared), [list(local) for _, _, local, _ in programs]
    start = (tuple(shared.values()), *((label, *local.values()) for _, _, local, label in programs))
    seen, before, ends, stack = {start: None}, {}, [], [start]
    while stack:
        state = stack.pop()
        moved = False
        for index, (_, program, _, _) in enumerate(programs, 1):
            label, *local = state[index]
            if label == END:
                continue
            words = dict(zip(names[0], state[0])), dict(zip(names[1][index - 1], local))
            try:
                result = program[label](*words)
            except Broken as fault:
                raise explained(fault, seen, programs, state, index) from None
            for new_shared, new_local, new_label in outcomes(result, *words):
                moved = True
                after = (tuple(new_shared.values()), *state[1:index], (new_label, *new_local.values()),
                         *state[index + 1:])
                if after not in seen:
                    seen[after] = state, index
                    before[after] = [state]
                    stack.append(after)
                else:
                    before.setdefault(after, []).append(state)
        if not moved:
            if fault := finished(dict(zip(names[0], state[0])), [label for label, *_ in state[1:]]):
                raise explained(fault, seen, programs, state)
            ends.append(state)
    stuck = seen.keys() - leading_to(ends, before)
    if stuck:
        raise explained("they run in circles for ever", seen, programs, stuck.pop())
    return len(seen)


def outcomes(result, shared, local):
    if result is BLOCKED:
        return ()
    return result if isinstance(result, list) else ((shared, local, result),)


def leading_to(ends, before):
    """The states from which one of the ends can be reached."""
    found, stack = set(ends), list(ends)
    while stack:
        for state in before.get(stack.pop(), ()):
            if state not in found:
                found.add(state)
                stack.append(state)
    return found


def explained(fault, seen, programs, state, index=None):
    """The fault with the steps that lead to it."""
    steps, last = [], state
    while True:
        if index is not None:
            steps.append(f"{programs[index - 1][0]}: {state[index][0]}")
        if not seen[state]:
            return Broken("\n".join([str(fault), *reversed(steps), f"then: {last}"]))
        state, index = seen[state]
