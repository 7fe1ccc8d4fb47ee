import asyncio
import os
from collections.abc import Callable, Sequence
from typing import Any

class Loop(asyncio.SelectorEventLoop):
    """An asyncio event loop on gmploop's core: every method of asyncio's, with its types."""

    def __init__(self, *, poller: str | None = "auto", debug: bool | None = None,
                 write_batching: bool | None = None) -> None: ...
    async def create_server(self, protocol_factory: Callable[[], asyncio.BaseProtocol],
                            host: str | Sequence[str] | None = None, port: int | None = None, *, isolate: bool = False,
                            **options: Any) -> asyncio.Server: ...
    async def create_unix_server(self, protocol_factory: Callable[[], asyncio.BaseProtocol],
                                 path: str | os.PathLike[str] | None = None, *, isolate: bool = False,
                                 **options: Any) -> asyncio.Server: ...
