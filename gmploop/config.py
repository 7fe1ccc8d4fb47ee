"""Every option: its default, what it takes, and where the default comes from.

An option given in code wins over the environment, which wins over the default.

| option | takes | default | environment | why this default |
|---|---|---|---|---|
| poller | "auto", "io_uring", "epoll", "kqueue" | "auto" | GMPLOOP_POLLER | "auto" is epoll on Linux: measured as fast as io_uring |
| write_batching | None, True, False | False | GMPLOOP_WRITE_BATCHING="0" or "1" | see resolve_write_batching() |
| malloc | | tuned | GMPLOOP_MALLOC="tuned" or "system" | see tunes_malloc() |
| files | | "auto" | GMPLOOP_FS="auto", "io_uring" or "executor" | read when a loop first uses gmploop.fs |
| debug | None, True, False | None | GMPLOOP_DEBUG="asyncio=1" | None is asyncio's rule: PYTHONASYNCIODEBUG and -X dev |
"""

import functools
import logging
import os
import select
from collections.abc import Iterable

POLLERS = ("auto", "io_uring", "epoll", "kqueue")
_SWITCH = {"0": False, "1": True}
DEBUG_KEYS = {"asyncio": _SWITCH}  # key of GMPLOOP_DEBUG -> what each of its values means


def _one_of(values: Iterable[str]) -> str:
    return " or ".join(map(repr, values))


def resolve_poller(value: str | None = "auto") -> str:
    """The poller to open for the option `poller`: never "auto".

    Raises ValueError or TypeError for a value that is not in POLLERS, given here or in GMPLOOP_POLLER.
    """
    name = "poller"
    if value is None or value == "auto":
        name, value = "GMPLOOP_POLLER", os.environ.get("GMPLOOP_POLLER") or "auto"
    if not isinstance(value, str):
        raise TypeError(f"{name} takes {_one_of(POLLERS)}, not {value!r}")
    if value not in POLLERS:
        raise ValueError(f"{name} takes {_one_of(POLLERS)}, not {value!r}")
    if value == "auto":
        value = "epoll" if hasattr(select, "epoll") else "kqueue"
        _say_once("gmploop runs on %s", value)
    return value


@functools.cache
def _say_once(text: str, *args: str) -> None:
    logging.getLogger("gmploop").info(text, *args)


def resolve_debug(value: bool | None = None) -> bool | None:
    """Debug mode for the option `debug`; None leaves it to asyncio.

    Raises TypeError for something else than None and bool, ValueError for a bad GMPLOOP_DEBUG.
    """
    if value is None:
        return parse_debug(os.environ.get("GMPLOOP_DEBUG", "")).get("asyncio")
    if not isinstance(value, int):  # 0 and 1 pass, as they do in asyncio
        raise TypeError(f"debug takes None, True or False, not {value!r}")
    return bool(value)


def resolve_write_batching(value: bool | None = None) -> bool:
    """Whether the writes of a turn, up to 4 KB each, leave in one system call when the turn ends.

    It saves a server of many small messages up to a fifth of its CPU time; but what a callback writes leaves only after
    that callback and the others of its turn: one that writes and then blocks has not written. So it is off unless asked
    for. Raises TypeError for something else than None and bool, ValueError for a bad GMPLOOP_WRITE_BATCHING.
    """
    if value is None:
        text = os.environ.get("GMPLOOP_WRITE_BATCHING") or "0"
        if text not in _SWITCH:
            raise ValueError(f"GMPLOOP_WRITE_BATCHING takes {_one_of(_SWITCH)}, not {text!r}")
        return _SWITCH[text]
    if not isinstance(value, int):
        raise TypeError(f"write_batching takes None, True or False, not {value!r}")
    return bool(value)


def parse_debug(text: str) -> dict[str, bool]:
    """GMPLOOP_DEBUG, "key=value,key=value", as a dict. Raises ValueError naming the part it cannot take."""
    settings = {}
    for part in filter(None, text.split(",")):
        key, _, value = part.partition("=")
        if key not in DEBUG_KEYS:
            raise ValueError(f"GMPLOOP_DEBUG takes the keys {_one_of(DEBUG_KEYS)}, not {key!r}")
        if value not in DEBUG_KEYS[key]:
            raise ValueError(f"GMPLOOP_DEBUG: {key} takes {_one_of(DEBUG_KEYS[key])}, not {value!r}")
        settings[key] = DEBUG_KEYS[key][value]
    return settings


TRIM_BYTES = 32 << 20  # freed memory that stays with the process: 100 messages of 100 KB three times over; guessed
MMAP_BYTES = 4 << 20  # blocks from here on are mapped and unmapped one by one; above the 1 MB messages measured


def tunes_malloc() -> bool:
    """Whether the first loop sets the two figures above by mallopt(), for the whole process.

    With glibc's own figures a server of 100 KB messages gives memory back and takes it again for each of them: by
    streams that costs a third of its CPU time. Not done when GMPLOOP_MALLOC=system, or when the environment sets
    glibc's malloc itself. Raises ValueError for another value of GMPLOOP_MALLOC.
    """
    value = os.environ.get("GMPLOOP_MALLOC") or "tuned"
    if value not in ("tuned", "system"):
        raise ValueError(f"GMPLOOP_MALLOC takes 'tuned' or 'system', not {value!r}")
    set_outside = "malloc" in os.environ.get("GLIBC_TUNABLES", "") or any(name.startswith("MALLOC_") for name in os.environ)
    return value == "tuned" and not set_outside
