"""The HTTP and WebSocket servers of the web rows, in a process of their own.

`/` answers BODY; `/loop` answers the class of the loop that runs the handler, which the parent asks for and checks
before it measures: servers like to choose their loop themselves. WebSocket messages come back as they are.
"""

import asyncio
import functools

BODY = b"Hello from the server: a plain text of sixty-four bytes, no more\n"[:64]


def loop_class():
    loop_type = type(asyncio.get_running_loop())
    return f"{loop_type.__module__}.{loop_type.__qualname__}"


async def asgi_app(scope, receive, send):
    if scope["type"] == "websocket":
        return await asgi_websocket(receive, send)
    body = BODY if scope["path"] == "/" else loop_class().encode()
    await send({"type": "http.response.start", "status": 200, "headers": [
        (b"content-type", b"text/plain"), (b"content-length", str(len(body)).encode())]})
    await send({"type": "http.response.body", "body": body})


async def asgi_websocket(receive, send):
    await receive()
    await send({"type": "websocket.accept"})
    while (event := await receive())["type"] == "websocket.receive":
        await send({"type": "websocket.send", "bytes": event["bytes"]})


async def serve_uvicorn(ready, ws="none"):
    import uvicorn
    config = uvicorn.Config(asgi_app, host="127.0.0.1", port=0, http="httptools", loop="none", lifespan="off",
                            ws=ws, ws_per_message_deflate=False, access_log=False, log_level="warning")

    class Server(uvicorn.Server):
        async def startup(self, sockets=None):
            await super().startup(sockets=sockets)
            ready(self.servers[0].sockets[0].getsockname()[1])

    await Server(config).serve()


async def serve_websockets(ready):
    from websockets.asyncio.server import serve

    async def echo(connection):
        async for message in connection:
            await connection.send(message)

    def plain(connection, request):
        if request.path == "/loop":
            return connection.respond(200, loop_class())

    async with serve(echo, "127.0.0.1", 0, compression=None, max_size=None, process_request=plain) as server:
        ready(server.sockets[0].getsockname()[1])
        await asyncio.Event().wait()


async def serve_aiohttp(ready, websocket=False):
    from aiohttp import web

    async def plain(request):
        return web.Response(body=BODY, content_type="text/plain")

    async def echo(request):
        response = web.WebSocketResponse(compress=False, max_msg_size=0)
        await response.prepare(request)
        async for message in response:
            await response.send_bytes(message.data)
        return response

    async def which(request):
        return web.Response(text=loop_class())

    app = web.Application()
    app.add_routes([web.get("/", echo if websocket else plain), web.get("/loop", which)])
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    ready(runner.addresses[0][1])
    await asyncio.Event().wait()


SERVERS = {"http-uvicorn": serve_uvicorn, "http-aiohttp": serve_aiohttp, "ws-websockets": serve_websockets,
           "ws-uvicorn": functools.partial(serve_uvicorn, ws="websockets-sansio"),
           "ws-aiohttp": functools.partial(serve_aiohttp, websocket=True)}


async def serve(settings):
    from echo import announce
    from loops import check_running
    name = check_running(settings["loop"])
    await SERVERS[settings["kind"]](lambda port: announce(port, name))


if __name__ == "__main__":
    import echo  # noqa: F401 (while the folder of this file is still on the path)
    from loops import run_child
    run_child(serve)
