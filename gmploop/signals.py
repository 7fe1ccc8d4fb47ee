"""Signals: the loop that the main thread runs has them as on stock; a distribution brings them to many loops.

The operating system tells a process of a signal, and Python runs signal handlers in the main thread alone. A loop
outside a distribution does what asyncio's does: only the main thread's takes handlers, a wakeup descriptor wakes it.

While a distribution is open (`distribution()`, by a run of replicas) add_signal_handler() works in the loop of any
thread, in goroutines always, and a signal reaches every loop that handles it:

- One Python-level handler, `_deliver`, stands for all loops. It runs in the main thread and posts to each of them.
- signal.signal() is the main thread's too, so a loop elsewhere asks for it: it queues a request and sends SIGURG to the
  main thread (ignored by default and harmless when it comes for nothing, the one that Go uses for its own requests),
  whose handler serves the queue, also in the middle of a sleep or a computation in Python.

The main thread alone writes `_loops` and sets handlers, one request after the other. `_deliver` may interrupt that
anywhere and needs nothing but the tuple it reads: no lock is taken in a signal handler.

A signal that goroutines and the main thread's own loop handle: the loop has it as on stock, by the wakeup descriptor,
which gets it whatever the handler is. The handler is `_deliver` then, and the loop's own stands in `_before`, to be put
back when the last goroutine has removed its handler or has ended.
"""

import asyncio
import contextlib
import errno
import os
import signal
import sys
import threading
import weakref
from asyncio import coroutines, events
from collections import deque
from concurrent import futures

from gmploop import config

_loops = {}             # signal -> the loops to which _deliver brings it; tuples, replaced and never changed
_requests = deque()     # (future, function, arguments), for the main thread
_serving = False        # the main thread is at it
_base = None            # signal -> its handler while no loop handles it, in a distribution; None outside
_before = {}            # signal -> the handler that _deliver has taken the place of


@contextlib.contextmanager
def distribution(base):
    """Open a distribution while the block runs. From the main thread.

    base: signal -> Python signal handler, for as long as no loop handles it; what was set before is put back at the
    end. A signal that somebody else handles by then is left to him.
    """
    global _base
    outer, before = _base, {}
    _base = {signal.SIGURG: _deliver, **base}
    try:
        for sig, handler in _base.items():
            before[sig] = signal.signal(sig, handler)
        yield
    finally:
        mine, _base = _base, outer
        for sig in {*mine, *_loops} if outer is None else mine:
            if signal.getsignal(sig) in (_deliver, mine.get(sig)):
                signal.signal(sig, before.get(sig) or _default(sig))
        if outer is None:
            for loop in {loop for loops in _loops.values() for loop in loops}:      # of a replica that was left behind
                loop._signal_handlers.clear()
            _loops.clear()
        _serve_requests()       # one that came too late for SIGURG


def serve_goroutines():
    """Let goroutines have signal handlers, if this is the main thread and nobody uses SIGURG. Once the runtime starts."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGURG) is signal.SIG_DFL:
        signal.signal(signal.SIGURG, _deliver)


def forget(loop):
    """Take away all handlers of a goroutine's loop, which ends; from its thread. It does not wait for the main thread."""
    signals = list(loop._signal_handlers)
    loop._signal_handlers.clear()
    for sig in signals:
        _requests.append((futures.Future(), _unsubscribe, (loop, sig)))
    signal.pthread_kill(threading.main_thread().ident, signal.SIGURG)


def distributes():
    """Whether a distribution is open."""
    return _base is not None


_FATAL = {signal.SIGSEGV, signal.SIGFPE, signal.SIGABRT, signal.SIGBUS, signal.SIGILL}


def _caught():
    """The signals that have a handler, whoever made it, as a mask; 0 where the system does not tell."""
    try:
        with open("/proc/self/status", "rb") as status:
            return next((int(line.split()[1], 16) for line in status if line.startswith(b"SigCgt")), 0)
    except OSError:
        return 0


def handled():
    """Whether a signal may run code of this program's: one has a handler that is not Python's, asyncio's for Ctrl-C, or
    of this module without a loop that wants it."""
    caught = _caught()
    for sig in signal.valid_signals():
        handler = signal.getsignal(sig)
        if handler in (signal.SIG_DFL, signal.SIG_IGN) and caught >> sig - 1 & 1 and sig not in _FATAL:
            return True                             # a library's, in C
        if handler in (signal.SIG_DFL, signal.SIG_IGN, signal.default_int_handler):
            continue
        if handler is None and sig in _FATAL:       # faulthandler's, with which the process ends
            continue
        idle = handler is _deliver and not _loops.get(sig) or handler is _dump
        if not idle and not isinstance(getattr(getattr(handler, "func", None), "__self__", None), asyncio.Runner):
            return True
    return False


def dump_on_sigquit():
    """Have SIGQUIT print gmploop.dump() from now on, unless something else was to be done, or this is not the main
    thread."""
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGQUIT) is signal.SIG_DFL:
        signal.signal(signal.SIGQUIT, _dump)


def _dump(sig, frame):
    from gmploop import goroutine

    goroutine.dump()


def _default(sig):
    return signal.default_int_handler if sig == signal.SIGINT else signal.SIG_DFL


def _deliver(sig, frame):
    """The signal handler of every distributed signal, and of SIGURG."""
    _serve_requests()
    for loop in _loops.get(sig, ()):
        with contextlib.suppress(RuntimeError):         # closed
            loop.call_soon_threadsafe(loop._handle_signal, sig)


def _serve_requests():
    global _serving
    while _requests and not _serving:       # asked again after each round: what interrupts the round leaves it to us
        _serving = True
        try:
            while _requests:
                future, function, args = _requests.popleft()
                if future.set_running_or_notify_cancel():
                    try:
                        future.set_result(function(*args))
                    except BaseException as exc:
                        future.set_exception(exc)
        finally:
            _serving = False


def _in_main(function, *args):
    """function(*args), called by the main thread. RuntimeError when that does not answer."""
    future, main = futures.Future(), threading.main_thread()
    _requests.append((future, function, args))
    if threading.current_thread() is main:
        _serve_requests()
    else:
        signal.pthread_kill(main.ident, signal.SIGURG)
    try:
        return future.result(config.MAIN_THREAD_ANSWERS_S)
    except futures.TimeoutError:
        future.cancel()
        raise RuntimeError("signal handlers are set by the main thread, which is busy outside Python and did not "
                           f"answer within {config.MAIN_THREAD_ANSWERS_S} s") from None


def _subscribe(loop, sig):
    if _base is None and not loop._moves:
        raise RuntimeError("the run that distributes signals is over")
    if loop not in _loops.get(sig, ()):
        _loops[sig] = (*_loops.get(sig, ()), loop)
    try:
        _take(sig)
    except BaseException:
        _unsubscribe(loop, sig)
        raise


def _take(sig):
    before = signal.signal(sig, _deliver)
    if before is not _deliver:
        _before[sig] = before
    # Not siginterrupt(sig, False), as asyncio has it: the main thread may wait for a lock, without a wakeup descriptor.


def _unsubscribe(loop, sig):
    left = tuple(other for other in _loops.get(sig, ()) if other is not loop)
    if left:
        _loops[sig] = left
    elif _loops.pop(sig, ()) and signal.getsignal(sig) is _deliver:
        before = (_base or {}).get(sig) or _before.get(sig)
        runner = getattr(getattr(before, "func", None), "__self__", None)
        if isinstance(runner, asyncio.Runner) and before.keywords["main_task"].done():
            before = None                           # its run is over
        signal.signal(sig, _default(sig) if before in (None, _deliver) else before)
        _before.pop(sig, None)


def _after_fork_in_child():
    """The loops of the parent's other threads are not to be woken from here."""
    global _base
    _base = None
    _before.clear()
    _loops.clear()
    _requests.clear()


os.register_at_fork(after_in_child=_after_fork_in_child)

if sys.version_info < (3, 12):          # asyncio does so itself from there on, for every wakeup fd
    _with_self_pipe = weakref.WeakSet()

    def _forget_wakeup_fd():
        """A signal to a child must not be told to the parent, whose pair of sockets the child has too."""
        current = signal.set_wakeup_fd(-1)
        if current not in [loop._csock.fileno() for loop in _with_self_pipe if loop._csock is not None]:
            signal.set_wakeup_fd(current)

    os.register_at_fork(after_in_child=_forget_wakeup_fd)
else:
    _with_self_pipe = None


class SignalLoop:
    """The part of Loop that has to do with signals."""

    _moves = False          # a goroutine's

    def _make_self_pipe(self):
        """Called by asyncio's constructor. The pair is for signals only, so it is made when they are first wanted."""

    def _ensure_self_pipe(self):
        if self._csock is None:
            super()._make_self_pipe()
            if _with_self_pipe is not None:
                _with_self_pipe.add(self)

    def _remake_self_pipe(self):
        """In a child: the parent reads from the pair that both have."""
        super()._close_self_pipe()
        super()._make_self_pipe()

    def _close_self_pipe(self):
        if self._csock is not None:
            super()._close_self_pipe()

    def _take_wakeup_fd(self):
        """While the main thread runs this loop, a signal that comes just before the poller sleeps must wake it."""
        if threading.current_thread() is not threading.main_thread():
            return False
        self._ensure_self_pipe()
        try:
            self._outer_wakeup_fd = signal.set_wakeup_fd(self._csock.fileno(), warn_on_full_buffer=False)
        except ValueError:              # not the main thread of the main interpreter
            return False
        return True

    def _return_wakeup_fd(self):
        outer, self._outer_wakeup_fd = self._outer_wakeup_fd, -1
        mine = self._csock.fileno() if self._csock is not None else -1
        if outer == mine and not self._signal_handlers:
            outer = -1
        if outer == -1 and self._signal_handlers and not distributes():
            return                      # as stock: handlers stay set between two runs
        try:
            current = signal.set_wakeup_fd(outer)
        except (OSError, ValueError):       # closed by its owner during the run
            current = signal.set_wakeup_fd(-1)
        if current not in (mine, -1):
            signal.set_wakeup_fd(current)       # somebody else's by now

    def add_signal_handler(self, sig, callback, *args):
        """Call callback(*args) in the loop when the signal comes.

        From the main thread, from goroutines, and in a run of replicas from the thread of any of them; each that
        handles the signal gets it. Raises as asyncio: TypeError for a coroutine function or a `sig` that is no int, ValueError for one
        that is no signal, RuntimeError for one that cannot be caught and from another thread.
        """
        if distributes() or self._moves:
            return self._add_distributed(sig, callback, args)
        self._ensure_self_pipe()
        super().add_signal_handler(sig, callback, *args)
        if sig in _loops:
            _take(sig)

    def _add_distributed(self, sig, callback, args):
        if coroutines.iscoroutine(callback) or coroutines.iscoroutinefunction(callback):
            raise TypeError("coroutines cannot be used with add_signal_handler()")
        self._check_signal(sig)
        self._check_closed()
        self._signal_handlers[sig] = events.Handle(callback, args, self, None)
        try:
            _in_main(_subscribe, self, sig)
        except BaseException as exc:
            self._signal_handlers.pop(sig, None)
            if isinstance(exc, OSError) and exc.errno == errno.EINVAL:
                raise RuntimeError(f"sig {sig} cannot be caught") from None
            raise

    def remove_signal_handler(self, sig):
        """Take the handler away; returns whether there was one."""
        if self in _loops.get(sig, ()):
            del self._signal_handlers[sig]
            _in_main(_unsubscribe, self, sig)
            return True
        removed = super().remove_signal_handler(sig)
        if removed and sig in _loops:
            _take(sig)
        if removed and self.is_running() and not self._signal_handlers:
            # asyncio lets the descriptor go with its last handler; this run still needs it.
            try:
                signal.set_wakeup_fd(self._csock.fileno(), warn_on_full_buffer=False)
            except ValueError:
                pass
        return removed

    def _process_self_data(self, data):
        """What the wakeup descriptor brought. A distributed signal's handler runs without it."""
        own = bytes(signum for signum in data if self not in _loops.get(signum, ())) if _loops else data
        super()._process_self_data(own)
        outer = self._outer_wakeup_fd
        if outer != -1 and outer != self._csock.fileno():
            foreign = bytes(signum for signum in data if signum and signum not in self._signal_handlers)
            if foreign:
                with contextlib.suppress(OSError):
                    os.write(outer, foreign)
