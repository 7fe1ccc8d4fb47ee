"""The ASGI applications of test_serve.py. Each answers with the lifespan state of the replica that it runs in."""

import asyncio
import contextlib
import os
import signal
import sys
import threading

from starlette.applications import Starlette
from starlette.responses import PlainTextResponse
from starlette.routing import Route, WebSocketRoute

from gmploop import replicas


@contextlib.asynccontextmanager
async def lifespan(app):
    name = f"replica {replicas.index()}"
    if os.environ.get("FAIL") == name:
        raise RuntimeError("no database today")
    yield {"name": name, "loop": asyncio.get_running_loop()}
    print(f"lifespan over in {name}\n", end="", flush=True)       # in one write: another replica prints at the same time


async def who(request):
    assert request.state.loop is asyncio.get_running_loop()
    return PlainTextResponse(f"{request.state.name} {type(request.state.loop).__module__}")


async def slow(request):
    """Says on stdout that it is under way, so that nobody has to guess."""
    print("slow", flush=True)
    await asyncio.sleep(request.path_params["seconds"])
    return PlainTextResponse(request.state.name)


async def block(request):
    print("blocking", flush=True)
    threading.Event().wait(request.path_params["seconds"])
    return PlainTextResponse(request.state.name)


async def crash(request):
    """A callback of the loop that raises what no loop survives."""
    asyncio.get_running_loop().call_soon(sys.exit, 5)
    await asyncio.sleep(60)


async def kill(request):
    os.kill(os.getpid(), signal.SIGTERM)
    return PlainTextResponse("signalled")


async def echo(socket):
    await socket.accept()
    await socket.send_text(socket.state.name)
    async for message in socket.iter_text():
        await socket.send_text(message)


routes = [Route("/", who), Route("/slow/{seconds:float}", slow), Route("/block/{seconds:float}", block),
          Route("/crash", crash), Route("/kill", kill), WebSocketRoute("/ws", echo)]
app = Starlette(routes=routes, lifespan=lifespan)
made = []


def make_app():
    """A factory: called once for each replica."""
    made.append(replicas.index())
    number = len(made)

    async def which(request):
        return PlainTextResponse(f"app {number} of {len(made)}")
    return Starlette(routes=[Route("/", which)])
