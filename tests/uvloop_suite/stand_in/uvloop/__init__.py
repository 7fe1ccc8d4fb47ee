"""Stands in for uvloop where its tests run: their base classes from its source, and loops of the kind under test.

A package that can be imported, since some tests start Python programs that import it.
"""
import asyncio
import importlib
import os

_kind = os.environ["LOOP_UNDER_TEST"]
__path__.append(os.path.join(os.environ["UVLOOP_SOURCE"], "uvloop"))
new_event_loop = asyncio.SelectorEventLoop if _kind == "asyncio" else importlib.import_module(_kind).new_event_loop
EventLoopPolicy = asyncio.DefaultEventLoopPolicy


def run(main):
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        return runner.run(main)
