"""Replicas: the same program N times in one process, each in a thread of its own with loops of its own.

    Run ──< Replica (a thread) ── the loop that it runs at the moment
     └── sharing.Dealer: listening sockets      signals.distribution(): signals

Replica 0 is the thread that made the run, usually the main one. The run ends when all replicas have ended. When one
crashes, the others are cancelled, as Ctrl-C cancels the main task of asyncio.run(), and the run raises what it raised.

Cancelling from elsewhere: `cancels` says how often a replica was told, `seen` how often it did it. Whoever tells counts
first and looks for a running loop to post to second; the replica notes its loop first and looks at the count second. So
it is seen by one of the two, and `seen`, the replica's own, makes it once.
"""

import asyncio
import contextlib
import contextvars
import inspect
import logging
import signal
import sys
import threading
import time
import traceback
from asyncio import coroutines, exceptions, tasks
from collections import Counter
from concurrent import futures

from gmploop import config, policy, sharing, signals

logger = logging.getLogger("gmploop")


def run_replicas(main, count, **options):
    """Run the coroutine function `main` in `count` threads at once, on a loop of its own each; return the results.

    options: those of gmploop.run(), for each. The list is in the replicas' order; the first is the calling thread's.
    Each works as under asyncio.run(), in a copy of the caller's context. The first that raises ends the run: the
    others are cancelled, and what it raised is raised here; what others raised meanwhile is logged. Ctrl-C cancels all.
    Servers for the same address share its socket, and connections go to the replica that has the fewest;
    add_signal_handler() works in each. A replica that does not end within config.REPLICAS_END_S seconds after a crash
    is reported with its stack and left behind.
    Raises TypeError for something else than a coroutine function, TypeError or ValueError for a bad count,
    RuntimeError inside a running loop. From any thread; signals and Ctrl-C need the main thread.
    """
    count = config.check_replicas(count)
    if coroutines.iscoroutine(main) or inspect.isawaitable(main):
        if coroutines.iscoroutine(main):
            main.close()
        raise TypeError(f"replicas={count} takes the coroutine function itself, main, not the one coroutine main(): "
                        "each replica makes its own")
    if not callable(main):
        raise TypeError(f"replicas={count} takes a coroutine function, not {main!r}")
    return Run(count).run(lambda: policy.run(main(), **options))


class Run:
    """Several replicas, from their start to their end."""

    def __init__(self, count, handled=(signal.SIGINT,), patience=1):
        """handled: signals that cancel all replicas; the one after `patience` of them interrupts the main thread."""
        self.handled = handled
        self.patience = patience
        self.signals = 0
        self.dealer = sharing.Dealer()
        self.replicas = [Replica(self, index) for index in range(count)]
        self.lock = threading.Lock()        # of `crashed`
        self.crashed = []                   # replicas, in the order in which they did
        self.crashed_at = None              # time.monotonic()

    def run(self, body):
        """Call body() in each replica. Returns the list of results or raises, as run_replicas() says."""
        first, *others = self.replicas
        if sharing.current() is not None:
            raise RuntimeError("a replica cannot run replicas")
        with self._signals():
            try:
                for replica in others:
                    replica.start(body)
                first.work(body)
            except BaseException:           # a thread could not be started, or Ctrl-C in between
                self.cancel()
                raise
            finally:
                self._wait(others)
                self.dealer.close()
        return self._outcome()

    @contextlib.contextmanager
    def _signals(self):
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        base = {sig: self._on_signal for sig in self.handled
                if sig != signal.SIGINT or signal.getsignal(sig) is signal.default_int_handler}
        with signals.distribution(base):
            yield

    def _on_signal(self, sig, frame):
        """In the main thread, between any two of its instructions."""
        self.signals += 1
        first = self.replicas[0]
        if self.signals > self.patience:
            raise KeyboardInterrupt
        for replica in self.replicas:
            if replica is not first or replica.top is not None:
                replica.cancel()
        if first.top is None and not first.ended.done():
            raise KeyboardInterrupt         # as in any program that runs no loop yet, or no more

    def cancel(self):
        """Tell every replica to end. From any thread and from signal handlers."""
        for replica in self.replicas:
            replica.cancel()

    def replica_crashed(self, replica):
        with self.lock:
            self.crashed.append(replica)
            if len(self.crashed) > 1:
                return
            self.crashed_at = time.monotonic()
        if len(self.replicas) > 1 and not isinstance(replica.error, SystemExit):
            logger.error("replica %d of %d ended with %s: ending the others", replica.index, len(self.replicas),
                         _describe(replica.error))
        for other in self.replicas:
            if other is not replica:
                other.cancel()

    def _wait(self, replicas):
        """Until they have ended; after a crash no longer than they are given. Signals are answered meanwhile."""
        pending = {replica.ended for replica in replicas if replica.thread is not None}
        loop = policy.new_event_loop()
        try:
            loop.run_until_complete(self._wait_all(pending))
        except KeyboardInterrupt:
            pass                            # enough: who has not ended is left behind
        finally:
            loop.close()
        for replica in replicas:
            if replica.thread is not None and not replica.ended.done():
                frame = sys._current_frames().get(replica.thread.ident)
                stack = "".join(traceback.format_stack(frame)) if frame else ""
                logger.warning("replica %d has not ended and is left behind. It is at\n%s", replica.index, stack)

    async def _wait_all(self, pending):
        pending = {asyncio.wrap_future(ended) for ended in pending}
        while pending:
            left = None if self.crashed_at is None else self.crashed_at + config.REPLICAS_END_S - time.monotonic()
            if left is not None and left <= 0:
                return
            _, pending = await asyncio.wait(pending, timeout=left, return_when=asyncio.FIRST_COMPLETED)

    def _outcome(self):
        if self.crashed:
            first, *others = self.crashed
            for replica in others:          # the same fault in each is told once
                same = _describe(replica.error) == _describe(first.error)
                logger.error("replica %d ended with %s", replica.index, _describe(replica.error),
                             exc_info=None if same else replica.error)
            raise first.error
        if self.signals:
            cut = [replica.error for replica in self.replicas if replica.cut_short]
            for error in cut:
                if isinstance(error, KeyboardInterrupt):
                    raise error
            if cut:
                raise KeyboardInterrupt
        return [replica.result for replica in self.replicas]


class Replica:
    """One of the threads of a run, and what it runs at the moment."""

    def __init__(self, run, index):
        self.run = run
        self.dealer = run.dealer
        self.index = index
        self.thread = None
        self.ended = futures.Future()
        self.result = self.error = None
        self.cut_short = False              # it ended because it was cancelled
        self.top = None                     # (the loop it runs, its main future or None)
        self.cancels = self.seen = 0
        self.waiting = self.open = 0        # connections: see sharing.py
        self.asked = Counter()              # address with port 0 -> how often it asked for it

    def start(self, body):
        context = contextvars.copy_context()
        self.thread = threading.Thread(target=context.run, args=(self.work, body), name=f"gmploop-replica-{self.index}",
                                       daemon=True)
        try:
            self.thread.start()
        except BaseException:
            self.thread = None
            raise

    def work(self, body):
        """The whole life of the replica, in its thread."""
        sharing.enter(self)
        try:
            try:
                self.result = body()
            finally:
                sharing.enter(None)
                self.dealer.leave(self)
        except BaseException as exc:
            self.error = exc
            if self.cancels and isinstance(exc, (exceptions.CancelledError, KeyboardInterrupt)):
                self.cut_short = True
            elif self.index == 0 and self.run.signals and isinstance(exc, KeyboardInterrupt):
                self.cut_short = True
                self.run.cancel()
            else:
                self.run.replica_crashed(self)
        finally:
            self.ended.set_result(None)

    def cancel(self):
        self.cancels += 1
        top = self.top
        if top is not None:
            with contextlib.suppress(RuntimeError):     # closed: it has ended
                top[0].call_soon_threadsafe(self._cancel_top)

    def _cancel_top(self):
        if self.top is None or self.seen >= self.cancels:
            return
        self.seen += 1
        loop, future = self.top
        if self.seen < self.cancels:        # once more, when the task has seen the first
            loop.call_soon(self._cancel_top)
        if future is None:
            raise KeyboardInterrupt         # out of run_forever(), as Ctrl-C in the main thread
        future.cancel()

    @contextlib.contextmanager
    def _running(self, loop, future):
        outer, self.top = self.top, (loop, future)
        try:
            if self.seen < self.cancels:
                loop.call_soon(self._cancel_top)
            yield
        finally:
            self.top = outer

    def run_forever(self, loop, run):
        if self.top is not None and self.top[0] is loop:
            return run()                    # by run_until_complete()
        with self._running(loop, None):
            run()

    def run_until_complete(self, loop, future, run):
        loop._check_closed()
        loop._check_running()
        task = tasks.ensure_future(future, loop=loop)
        if task is not future:              # what run() does with tasks that it makes itself
            task._log_destroy_pending = False
        try:
            with self._running(loop, task):
                return run(task)
        except exceptions.CancelledError:
            if self.run.signals and task.cancelled() and getattr(task, "uncancel", int)() == 0:
                raise KeyboardInterrupt from None       # as asyncio.run()
            raise
        finally:
            if task is not future and task.done() and not task.cancelled():
                task.exception()            # it was raised or returned


def _describe(error):
    return "".join(traceback.format_exception_only(error)).strip()


def index():
    """Which replica the calling thread is, from 0 on; None outside a run of replicas."""
    replica = sharing.current()
    return replica.index if replica is not None else None
