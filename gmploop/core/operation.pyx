# cython: language_level=3, freethreading_compatible=True, binding=True
"""Operation: a call on a file or socket that is awaited once, without a coroutine object around it.

A task drives it as it drives a coroutine. The subclass says what a step is and what to do when the awaiter goes away.
"""


cdef class Operation:
    def __await__(self):
        return self

    def __iter__(self):
        return self

    def __next__(self):
        return self.step()

    def send(self, value):
        if value is not None and self.state == NEW:
            raise TypeError("can't send non-None value to a just-started coroutine")
        return self.step()

    def throw(self, typ, val=None, tb=None):
        if self.state == ENDED:
            raise RuntimeError("cannot reuse already awaited coroutine")
        self.abandon()
        if val is None:
            val = typ if isinstance(typ, BaseException) else typ()
        elif not isinstance(val, BaseException):
            val = typ(val)
        raise val.with_traceback(tb) if tb is not None else val

    def close(self):
        self.abandon()

    @property
    def __name__(self):
        return type(self).__name__

    @property
    def __qualname__(self):
        return type(self).__qualname__

    @property
    def cr_running(self):
        return False

    @property
    def cr_await(self):
        return self.fut

    @property
    def cr_frame(self):
        return None

    cdef object step(self):
        """Go on until it waits: return the future waited for, or raise (StopIteration with the result)."""

    cdef int abandon(self) except -1:
        """Nobody waits any more: let go of everything that can be let go of."""
        return 0
