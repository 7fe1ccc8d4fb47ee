"""The smallest ASGI app: says which event loop answers."""

import asyncio


async def app(scope, receive, send):
    if scope["type"] != "http":
        return
    body = f"hello from {type(asyncio.get_running_loop()).__module__}\n".encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
    await send({"type": "http.response.body", "body": body})
