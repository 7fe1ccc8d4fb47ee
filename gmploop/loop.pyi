import asyncio

class Loop(asyncio.SelectorEventLoop):
    """An asyncio event loop on gmploop's core: every method of asyncio's, with its types."""

    def __init__(self, *, poller: str = "auto", debug: bool | None = None) -> None: ...
