"""How an await of ours that returns a value ends: by what passes for a StopIteration, whose memory is used again."""

import copy
import gc
import pickle
import re
import sys
import threading
import traceback
import weakref

import pytest

import gmploop

VALUES = [5, "text", (), (1, 2), [], b"", False, KeyError("k"), StopIteration(3), {"a": 1}]


def ended(value):
    """The exception with which recv() of this value ends, seen by hand."""
    channel = gmploop.Channel(1)
    channel.send_nowait(value)
    try:
        next(channel.recv())
    except StopIteration as exc:
        return exc.with_traceback(None)


class Value:
    pass


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_it_is_as_python_s_own(value):
    ours, own = ended(value), StopIteration(value)
    assert isinstance(ours, StopIteration) and type(ours).__name__ == type(own).__name__
    assert type(ours).__module__ == type(own).__module__
    assert ours.value is value and ours.args == own.args
    assert repr(ours) == repr(own) and str(ours) == str(own)
    assert traceback.format_exception_only(ours) == traceback.format_exception_only(own)
    assert ours.__context__ is ours.__cause__ is ours.__traceback__ is None and not ours.__suppress_context__


@pytest.mark.parametrize("value", [5, "text", (1, 2), [3]], ids=repr)
@pytest.mark.parametrize("way", [copy.copy, copy.deepcopy, lambda exc: pickle.loads(pickle.dumps(exc))],
                         ids=["copy", "deepcopy", "pickle"])
def test_a_copy_is_python_s_own(way, value):
    again = way(ended(value))
    assert type(again) is StopIteration and again.value == value and again.args == (value,)


def test_a_copy_has_the_attributes_too():
    exc = ended(5)
    exc.more = [6]
    exc.add_note("a note")
    again = pickle.loads(pickle.dumps(exc))
    assert (again.value, again.more, again.__notes__) == (5, [6], ["a note"])


@pytest.mark.skipif(type(ended(5)) is StopIteration, reason="it is Python's own, traced or not")
def test_who_traces_gets_the_very_type():
    """Debuggers ask for it, so as not to stop at awaits."""
    async def main():
        channel = gmploop.Channel(1)
        seen = []

        def trace(frame, event, arg):
            if event == "exception" and isinstance(arg[1], StopIteration):
                seen.append((arg[0], arg[1].args))
            return trace

        async def receive():
            return await channel.recv()
        await channel.send(7)
        before = sys.gettrace()
        sys.settrace(trace)
        try:
            value = await receive()
        finally:
            sys.settrace(before)
        assert value == 7
        return seen
    assert gmploop.run(main()) == [(StopIteration, (7,))]


def test_a_debugger_steps_over_an_await(program):
    ran = program("""
        import asyncio, io, pdb, sys, gmploop

        async def body():
            future = asyncio.get_running_loop().create_future()
            future.get_loop().call_soon(future.set_result, 5)
            channel = gmploop.Channel(1)
            await channel.send(6)
            pdb.Pdb(stdin=io.StringIO("next\\n" * 4 + "continue\\n"), stdout=sys.stdout, readrc=False).set_trace()
            one = await future
            two = await channel.recv()
            three = one + two
            return three

        async def main():
            print(await body())
        gmploop.run(main())
    """)
    assert ran.returncode == 0, ran.stderr
    lines = [int(line) for line in re.findall(r"> <string>\((\d+)\)body", ran.stdout)]
    assert ran.stdout.endswith("11\n")
    assert len(lines) >= 4 and lines == list(range(lines[0], lines[0] + len(lines)))     # it stops once at each


def test_none_ends_without_a_value():
    assert ended(None).value is None


def test_its_attributes_can_be_set():
    exc = ended(1)
    exc.args = 7, 8
    exc.value = 2
    assert (exc.args, exc.value, repr(exc)) == ((7, 8), 2, "StopIteration(7, 8)")
    with pytest.raises(TypeError):
        del exc.args
    exc.args = ()
    assert (exc.args, exc.value) == ((), 2)
    exc.note = "more"
    exc.add_note("a note")
    assert exc.__notes__ == ["a note"]
    assert exc.note == "more"


def test_nothing_of_one_is_seen_in_the_next():
    """Whatever was done to one whose memory is used again, and whoever still has one."""
    for spoil in (lambda exc: setattr(exc, "args", (9,)), lambda exc: setattr(exc, "note", 1),
                  lambda exc: exc.add_note("a note"), lambda exc: setattr(exc, "__cause__", KeyError()),
                  lambda exc: setattr(exc, "__context__", KeyError()), repr, lambda exc: exc.args,
                  lambda exc: setattr(exc, "value", 9), lambda exc: setattr(exc, "__suppress_context__", True),
                  lambda exc: exc.with_traceback(traceback_of_now())):
        kept, gone = ended("kept"), ended("gone")
        spoil(gone)
        del gone
        for fresh in [ended(number) for number in range(100)]:
            assert fresh.args == (fresh.value,) and not vars(fresh)
            assert fresh.__context__ is fresh.__cause__ is fresh.__traceback__ is None and not fresh.__suppress_context__
        assert kept.value == "kept" and kept.args == ("kept",)


def traceback_of_now():
    try:
        raise KeyError
    except KeyError as exc:
        return exc.__traceback__


@pytest.mark.parametrize("look", [lambda exc: None, repr, lambda exc: exc.args], ids=["unseen", "repr", "args"])
def test_the_value_is_let_go_with_it(look, no_gc):
    value = Value()
    seen = weakref.ref(value)
    exc = ended(value)
    look(exc)
    del value
    assert seen() is exc.value
    del exc
    assert seen() is None


def test_an_await_keeps_nothing_of_what_it_returned(no_gc):
    async def main():
        channel = gmploop.Channel(1)
        await channel.send(Value())
        seen = weakref.ref(value := await channel.recv())
        assert seen() is value
        del value
        assert seen() is None
    gmploop.run(main())


def test_the_collector_sees_through_it():
    value = [Value()]
    seen = weakref.ref(value[0])
    exc = ended(value)
    value.append(exc)
    del value, exc
    gc.collect()
    assert seen() is None


def test_a_generator_that_lets_it_out_raises_runtime_error():
    def generate():
        yield
        raise ended(5)

    generator = generate()
    next(generator)
    with pytest.raises(RuntimeError, match="generator raised StopIteration"):
        next(generator)


@pytest.mark.skipif(type(ended(5)) is StopIteration, reason="Python's own has subclasses")
def test_no_subclass_can_be_made():
    with pytest.raises(TypeError):
        type("Sub", (type(ended(5)),), {})


def test_threads_that_look_at_the_same_one_find_one_tuple():
    """And leave none behind: each value goes with its exception."""
    values, found = [], []

    def look(exc, ready):
        ready.wait()
        found.append((exc.args, repr(exc), str(exc)))
    for number in range(300):
        value = Value()
        values.append(weakref.ref(value))
        exc, ready = ended(value), threading.Barrier(3)
        readers = [threading.Thread(target=look, args=(exc, ready)) for _ in range(3)]
        for reader in readers:
            reader.start()
        for reader in readers:
            reader.join()
        assert len({id(args) for args, *_ in found}) == 1 and found[0][0] == (value,)
        found.clear()
        del value, exc, readers
    gc.collect()
    assert not [seen for seen in values if seen() is not None]


def test_goroutines_and_threads_make_and_free_them_at_once():
    """Each hands some to the others, so that they are freed elsewhere."""
    shelf = [None] * 16

    async def churn(start):
        channel = gmploop.Channel(1)
        for number in range(start, start + 3000):
            await channel.send(number)
            assert await channel.recv() == number
            exc = shelf[number % 16] = ended(number)
            assert exc.value == number

    def in_a_thread():
        for number in range(3000):
            other, shelf[number % 16] = shelf[number % 16], ended(number)
            assert other is None or other.args == (other.value,)

    async def main():
        async with gmploop.Group() as group:
            for start in range(0, 40_000, 10_000):
                group.go(churn, start)
    thread = threading.Thread(target=in_a_thread)
    thread.start()
    gmploop.run(main(), procs=2)
    thread.join()
