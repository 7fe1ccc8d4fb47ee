"""Context variables: who runs in whose context."""

import asyncio
import contextvars

import pytest

from support import Recorder, link, turns

pytestmark = pytest.mark.timeout(30)

VARIABLE = contextvars.ContextVar("VARIABLE", default="unset")


class Contextual(Recorder):
    """Notes the variable's value in each of its callbacks."""

    def __init__(self):
        super().__init__()
        self.seen = {}

    def note(self, name):
        super().note(name)
        self.seen.setdefault(name, VARIABLE.get())

    def data_received(self, data):
        super().data_received(data)
        self.seen["last data"] = VARIABLE.get()


@pytest.mark.parametrize("kind", ["tcp", "unix", "tls", "pipe"])
def test_protocols_see_the_context_of_their_maker(same_as_stock, tls, kind):
    async def scenario(loop):
        VARIABLE.set("maker")
        async with link(kind, tls, near=Contextual, far=Contextual) as (near, far):
            VARIABLE.set("changed")

            async def other():
                VARIABLE.set("other")
                near.transport.write(b"x" * 2_000_000)
                near.transport.write(b"x" * 2_000_000)
            await loop.create_task(other())
            while "resume" not in near.seen:
                await asyncio.sleep(0.001)
            near.transport.close()
            await far.lost
            await near.lost
            return near.seen, far.seen
    same_as_stock(scenario)


def test_a_server_s_protocols_see_the_context_it_was_made_in(run):
    async def main():
        loop = asyncio.get_running_loop()
        made = []
        VARIABLE.set("server's")

        def factory():
            made.append(Contextual())
            return made[-1]
        server = await loop.create_server(factory, "127.0.0.1", 0)
        VARIABLE.set("later")
        transport, _ = await loop.create_connection(Contextual, *server.sockets[0].getsockname())
        transport.write(b"data")
        transport.write_eof()
        while not made or "eof" not in made[0].seen:
            await asyncio.sleep(0.001)
        await made[0].lost
        assert set(made[0].seen.values()) == {"server's"}
        transport.abort()
        server.close()
        await turns(3)
    run(main())


@pytest.mark.stock_fault("python/cpython#140947: reading goes on in the context of whoever resumed it",
                         ((3, 11), (3, 15)), kind=("tcp", "unix"))
@pytest.mark.stock_fault("reading goes on in the context of whoever resumed it", kind=("pipe",))
@pytest.mark.parametrize("kind", ["tcp", "unix", "tls", "pipe"])
def test_who_resumes_reading_does_not_lend_its_context(run, tls, kind):
    async def main():
        VARIABLE.set("maker")
        async with link(kind, tls, near=Contextual, far=Contextual) as (near, far):
            async def other():
                VARIABLE.set("other")
                far.transport.pause_reading()
                far.transport.resume_reading()
            near.transport.write(b"first")
            while "data" not in far.seen:
                await asyncio.sleep(0.001)
            await asyncio.create_task(other())
            del far.seen["last data"]
            near.transport.write(b"second")
            while "last data" not in far.seen:
                await asyncio.sleep(0.001)
            assert far.seen["last data"] == "maker"
            near.transport.close()
            await far.lost
            assert far.seen["lost"] == "maker"
    run(main())


SCHEDULERS = {
    "call_soon": lambda loop, function, **kwargs: loop.call_soon(function, **kwargs),
    "call_later": lambda loop, function, **kwargs: loop.call_later(0, function, **kwargs),
    "call_at": lambda loop, function, **kwargs: loop.call_at(0, function, **kwargs),
    "call_soon_threadsafe": lambda loop, function, **kwargs: loop.call_soon_threadsafe(function, **kwargs),
    "from another thread": lambda loop, function, **kwargs: loop.run_in_executor(
        None, lambda: loop.call_soon_threadsafe(function, **kwargs)),
    "future": lambda loop, function, **kwargs: done_future(loop).add_done_callback(lambda _: function(), **kwargs),
}


def done_future(loop):
    future = loop.create_future()
    future.set_result(None)
    return future


@pytest.mark.parametrize("given", [False, True], ids=["current context", "given context"])
@pytest.mark.parametrize("way", SCHEDULERS)
def test_callbacks_run_in_the_context_they_were_given_or_made_in(run, loop, way, given):
    async def main():
        VARIABLE.set("given" if given else "current")
        context = contextvars.copy_context()
        VARIABLE.set("current")
        seen = loop.create_future()

        def callback():
            seen.set_result(VARIABLE.get())
            VARIABLE.set("changed by the callback")
        handle = SCHEDULERS[way](loop, callback, **({"context": context} if given else {}))
        VARIABLE.set("later")
        # another thread's context is empty, if none is given
        expected = "given" if given else "unset" if way == "from another thread" else "current"
        assert await seen == expected
        assert VARIABLE.get() == "later"
        if given:
            assert context[VARIABLE] == "changed by the callback"
        del handle
    run(main())
