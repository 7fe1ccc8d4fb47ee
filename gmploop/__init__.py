"""An asyncio event loop with Go's G-M-P scheduler."""

from gmploop.loop import Loop

__all__ = ["Loop", "new_event_loop"]
__version__ = "0.1.0"


def new_event_loop(**options):
    return Loop(**options)
