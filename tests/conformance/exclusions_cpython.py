"""Tests of CPython's own suite that stock passes and gmploop is right not to: `module.Class.test`: reason."""

import sys

EXCLUSIONS: dict[str, str] = {
    "test_ssl.TestSSL.test_remote_shutdown_receives_trailing_data_on_slow_socket":
        "replaces private parts of stock's own socket transport (write on the instance, _sock, _read_ready_cb) to force"
        " its buffered path; small socket buffers force ours in tests/asyncio/test_write_backpressure.py",
}

# The same with own tasks and futures in the places of the C types (own_types.py).
OWN_TASKS: dict[str, str] = {}

# The same with worlds that move in the places of loops (movable.py).
MOVABLE: dict[str, str] = EXCLUSIONS | {
    "test_events.EventLoopTestsMixin.test_call_soon_threadsafe":
        "another thread's post, then a call_soon() of the thread that has the world: a post waits for the next turn",
    "test_events.EventLoopTestsMixin.test_internal_fds": "counts the descriptors of stock's own self-pipe",
}
if not getattr(sys, "_is_gil_enabled", lambda: True)():
    # What one thread has made and another drops last is freed when the former runs Python again. These look for it at
    # once, in the test's thread or in the one that has the world by now.
    MOVABLE |= dict.fromkeys((
        "test_events.EventLoopTestsMixin.test_run_until_complete_nesting",
        "test_ssl.TestSSL.test_create_connection_memory_leak",
        "test_ssl.TestSSL.test_handshake_timeout_handler_leak",
        "test_streams.StreamTests.test_open_connection_happy_eyeball_refcycles",
    ), "needs a thread that nothing moves from: looks for what was freed before the thread that made it has run again")
