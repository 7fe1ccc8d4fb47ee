"""uvicorn inside a test's own loop."""

import asyncio
import contextlib
import socket

import uvicorn


@contextlib.asynccontextmanager
async def uvicorn_serving(app, tls=None, path=None, **options):
    """The base URL of `app` served by uvicorn in the running loop; shut down gracefully at the end."""
    sock = socket.socket(socket.AF_UNIX if path else socket.AF_INET)
    sock.bind(path or ("127.0.0.1", 0))
    if tls:
        options |= {"ssl_certfile": tls.cert, "ssl_keyfile": tls.key}
    server = uvicorn.Server(uvicorn.Config(app, log_level="warning", **options))
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(server.serve(sockets=[sock]))
        try:
            while not server.started and not serving.done():
                await asyncio.sleep(0.005)
            yield "http://localhost" if path else f"http{'s' if tls else ''}://localhost:{sock.getsockname()[1]}"
        finally:
            server.should_exit = True
