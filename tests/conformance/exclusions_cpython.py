"""Tests of CPython's own suite that stock passes and gmploop is right not to: `module.Class.test`: reason."""

EXCLUSIONS: dict[str, str] = {
    "test_ssl.TestSSL.test_remote_shutdown_receives_trailing_data_on_slow_socket":
        "replaces private parts of stock's own socket transport (write on the instance, _sock, _read_ready_cb) to force"
        " its buffered path; small socket buffers force ours in tests/asyncio/test_write_backpressure.py",
}

# The same with own tasks and futures in the places of the C types (own_types.py).
OWN_TASKS: dict[str, str] = {}

# The same with worlds that move in the places of loops (movable.py): `module.Class` stands for all tests of a class.
MOVABLE: dict[str, str] = {}
