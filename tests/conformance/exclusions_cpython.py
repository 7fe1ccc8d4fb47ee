"""Tests of CPython's own suite that stock passes and gmploop is right not to: `module.Class.test`: reason."""

EXCLUSIONS: dict[str, str] = {
    "test_ssl.TestSSL.test_remote_shutdown_receives_trailing_data_on_slow_socket":
        "replaces private parts of stock's own socket transport (write on the instance, _sock, _read_ready_cb) to force"
        " its buffered path; small socket buffers force ours in tests/asyncio/test_write_backpressure.py",
}

# The same with own tasks and futures in the places of the C types (own_types.py).
OWN_TASKS: dict[str, str] = {}

# The same with worlds that move in the places of loops (movable.py). A key with blanks is what the error says.
_WRITES = "writes to a transport, or reads its state, while the loop does not run, and waits for ever for what is refused"
_HELD = "current_task() of a loop that does not run: while the tests drive a world, its root task holds it"
_ORDER = "call_soon() is carried out where the world is held: another thread than that of call_soon_threadsafe()"
_LATER = "without the GIL: what one thread has made and another drops last is freed when the former runs Python again"
MOVABLE: dict[str, str] = EXCLUSIONS | {
    "called while another thread runs": "writes to a transport from the thread that waits: refused",
    "test_events.EventLoopTestsMixin.test_create_unix_server_ssl": _WRITES,
    "test_streams.StreamTests.test_open_connection": _WRITES,
    "test_streams.StreamTests.test_open_unix_connection": _WRITES,
    "test_streams.StreamTests.test_wait_closed_on_close": _WRITES,
    "test_streams.StreamTests.test_wait_closed_on_close_with_unread_data": _WRITES,
    "test_events.EventLoopTestsMixin.test_call_soon_threadsafe": _ORDER,
    "test_events.EventLoopTestsMixin.test_call_soon_threadsafe_same_thread": _ORDER,
    "test_tasks.CCurrentLoopTests.test_current_task_no_running_loop": _HELD,
    "test_tasks.PyCurrentLoopTests.test_current_task_no_running_loop": _HELD,
    "test_events.EventLoopTestsMixin.test_run_until_complete_nesting": _LATER,
    "test_ssl.TestSSL.test_create_connection_memory_leak": _LATER,
    "test_events.EventLoopTestsMixin.test_internal_fds": "counts the descriptors of stock's own self-pipe",
}
