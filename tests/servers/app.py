"""The same answer from an ASGI app and an aiohttp one: the module of the loop that serves it."""

import asyncio
import os
import socket
import sys


def _answer():
    return f"{type(asyncio.get_running_loop()).__module__} {os.getpid()}".encode()


async def app(scope, receive, send):
    if scope["type"] == "lifespan":
        while (message := await receive())["type"] != "lifespan.shutdown":
            await send({"type": message["type"] + ".complete"})
        await send({"type": "lifespan.shutdown.complete"})
        return
    await send({"type": "http.response.start", "status": 200, "headers": [(b"connection", b"close")]})
    await send({"type": "http.response.body", "body": _answer()})


def aiohttp_app():
    from aiohttp import web

    async def handler(request):
        return web.Response(body=_answer(), headers={"Connection": "close"})

    server = web.Application()
    server.router.add_get("/", handler)
    return server


if __name__ == "__main__":
    kind, number = sys.argv[1:]
    if kind == "uvicorn":
        import uvicorn

        uvicorn.run(app, fd=int(number))
    else:
        from aiohttp import web

        import gmploop

        options = {"loop": gmploop.new_event_loop()} if kind == "aiohttp-loop" else {}
        web.run_app(aiohttp_app(), sock=socket.socket(fileno=int(number)), print=None, **options)
