"""An asyncio event loop with Go's G-M-P scheduler."""

from gmploop.loop import Loop, new_event_loop

__all__ = ["Loop", "new_event_loop"]
__version__ = "0.1.0"
