"""The ASGI application of the uvicorn, httpx and nginx tests; also run by `python -m uvicorn`."""

import asyncio
import contextlib
import hashlib
import os

from fastapi import BackgroundTasks, Depends, FastAPI, Request, WebSocket, WebSocketDisconnect
from fastapi.responses import StreamingResponse

BLOCK = bytes(range(256)) * 256


@contextlib.asynccontextmanager
async def lifespan(app):
    app.state.events.append("startup")
    yield {"started": True}
    app.state.events.append("shutdown")
    if "LIFESPAN_FILE" in os.environ:
        with open(os.environ["LIFESPAN_FILE"], "w") as f:
            f.write("shutdown")


def make_app():
    app = FastAPI(lifespan=lifespan)
    app.state.events = []  # what happened, in order: "startup", "left", "background", ...
    app.state.happened = None  # set by a test that waits: called with each event

    def note(event):
        app.state.events.append(event)
        if app.state.happened:
            app.state.happened(event)

    def in_thread() -> int:  # not async: FastAPI runs it in a worker thread
        return 40

    @app.get("/loop")
    async def loop(request: Request):
        running = type(asyncio.get_running_loop())
        return {"loop": f"{running.__module__}.{running.__qualname__}", "started": request.state.started}

    @app.get("/items/{item}")
    async def item(item: int, q: str = "none", base: int = Depends(in_thread)):
        return {"item": item, "q": q, "base": base}

    @app.post("/hash")
    async def hash_body(request: Request):
        seen = hashlib.sha256()
        async for chunk in request.stream():
            seen.update(chunk)
        return {"sha256": seen.hexdigest()}

    @app.get("/blocks/{count}")
    async def blocks(count: int):
        async def body():
            for _ in range(count):
                yield BLOCK
        return StreamingResponse(body(), media_type="application/octet-stream")

    @app.get("/endless")
    async def endless():
        async def body():
            try:
                while True:
                    yield BLOCK
                    await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                note("left")
                raise
        return StreamingResponse(body())

    @app.get("/slow/{seconds}")
    async def slow(seconds: float):
        note("slow")
        await asyncio.sleep(seconds)
        return {"slept": seconds}

    @app.get("/events")
    async def events():
        return app.state.events

    @app.get("/background")
    async def background(tasks: BackgroundTasks):
        tasks.add_task(note, "background")
        return {}

    @app.websocket("/ws")
    async def ws(socket: WebSocket):
        await socket.accept()
        with contextlib.suppress(WebSocketDisconnect):
            while True:
                message = await socket.receive()
                if message["type"] == "websocket.disconnect":
                    note(f"ws {message['code']}")
                    return
                if message.get("text") == "close":
                    await socket.close(4001, "asked")
                    return
                await socket.send({**message, "type": "websocket.send"})

    return app


app = make_app()
