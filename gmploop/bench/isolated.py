"""The servers of the isolated rows, in a process of their own: with a world for each connection, or without.

Besides the port that is measured there is one whose handler does the work that is to disturb the others; see `contests`.
"""

import asyncio
import json

from echo import BACKLOG, HOST, Echo
from loops import enter_child, factory_of
from worlds import BLOCKERS, compute

SETTINGS = enter_child()

WORK = {"none": int, "compute": lambda: compute(0.001), **BLOCKERS}


def streams_handler(before_reply):
    async def handle(reader, writer):
        while data := await reader.read(1 << 16):
            before_reply()
            writer.write(data)
            await writer.drain()
        writer.close()
    return handle


async def serve(settings):
    start, options, work = asyncio.start_server, {}, settings["work"]
    if settings["isolate"]:
        import gmploop
        start, options = gmploop.start_server, {"isolate": True}
        gmploop.set_procs(settings["threads"])
    if settings["kind"] == "protocol":
        loop = asyncio.get_running_loop()
        server = await loop.create_server(Echo, HOST, 0, backlog=BACKLOG, **options)
    else:
        quiet = "none" if work in BLOCKERS else work
        server = await start(streams_handler(WORK[quiet]), HOST, 0, backlog=BACKLOG)
    busy = await start(streams_handler(WORK[work]), HOST, 0)
    port, busy_port = (each.sockets[0].getsockname()[1] for each in (server, busy))
    print(json.dumps({"port": port, "busy_port": busy_port}), flush=True)
    await asyncio.Event().wait()           # until killed


with asyncio.Runner(loop_factory=factory_of(SETTINGS["of"])) as runner:
    runner.run(serve(SETTINGS))
