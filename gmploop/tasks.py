"""How asyncio gets to know of this package's tasks and futures, and they of asyncio.

`core.future` and `core.task` import nothing of asyncio; what they rest on there is given to them here. all_tasks()
reads a weak set in which asyncio keeps the tasks of other types than its own: that set is taught to look into the lists
of ours too.
"""

import asyncio
import sys
import traceback
import types
import weakref
from asyncio import base_futures, base_tasks, coroutines, events, exceptions, futures, tasks

from gmploop.core import all_tasks, future, task

__all__ = ["Future", "Task"]

Future, Task = future.Future, task.Task


class _Tasks(weakref.WeakSet):
    """asyncio's set of tasks, together with ours."""

    def __iter__(self):
        yield from super().__iter__()
        yield from all_tasks.unfinished()

    def __len__(self):
        return super().__len__() + len(all_tasks.unfinished())

    def __contains__(self, item):
        return super().__contains__(item) or type(item) is Task and any(item is t for t in all_tasks.unfinished())


class _Probe:
    """Registered as a task for a moment to find the set: from 3.14 on no module names it."""

    def __init__(self, loop=None):
        self._loop = loop

    def done(self):
        return True


def _find_set():
    probe = _Probe()
    tasks._register_task(probe)
    try:
        for reference in weakref.getweakrefs(probe):
            found = reference.__callback__.__defaults__[0]()        # WeakSet's callback has a reference to its set
            if type(found) is weakref.WeakSet:
                return found
    finally:
        tasks._unregister_task(probe)
    raise ImportError("asyncio keeps its tasks in a way that is not known here")


def _join_awaited_by():
    """asyncio's C functions that note who awaits what pass over futures that are not its own (3.14 on)."""
    for name, method in (("future_add_to_awaited_by", "_add_to_awaited_by"),
                         ("future_discard_from_awaited_by", "_discard_from_awaited_by")):
        def note(fut, waiter, /, *, stock=getattr(futures, name), method=method, own_future=Future):
            if issubclass(type(fut), own_future):
                getattr(fut, method)(waiter)
            else:
                stock(fut, waiter)
        note.__name__ = note.__qualname__ = name
        setattr(futures, name, note)
        setattr(asyncio, name, note)


def configure():
    """Give the types what they need. Again by tests that put these types in the place of asyncio's."""
    future.configure(
        futures.Future, exceptions.InvalidStateError, exceptions.CancelledError, base_futures._future_repr,
        traceback.extract_stack, getattr(events, "_get_event_loop", events.get_event_loop), types.GenericAlias,
        sys.version_info < (3, 12, 2), sys.version_info >= (3, 15))
    task.configure(
        task_type=tasks.Task, errors=(exceptions.InvalidStateError, exceptions.CancelledError),
        base_tasks=(base_tasks._task_repr, base_tasks._task_get_stack, base_tasks._task_print_stack),
        iscoroutine=coroutines.iscoroutine, register=tasks._register_task,
        enter=tasks._enter_task, leave=tasks._leave_task, swap=getattr(tasks, "_swap_current_task", None),
        table=tasks._current_tasks if sys.version_info < (3, 14) else None,
        context_check=sys.version_info >= (3, 15), uncancel_resets=sys.version_info >= (3, 13))
    all_tasks.configure(events._get_running_loop)


def connect():
    """Once, before there are tasks of ours."""
    configure()
    _find_set().__class__ = _Tasks
    if hasattr(futures, "future_add_to_awaited_by"):
        _join_awaited_by()
