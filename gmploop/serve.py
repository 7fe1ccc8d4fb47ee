"""`python -m gmploop serve module:app`: an ASGI application on uvicorn, in several replicas.

The options are uvicorn's own, taken from its command, without those that choose processes and loops. Each replica has
a Config, a Server and so a lifespan of its own. The socket is bound once, before they start; see sharing.py for who
gets the connections.

Signals: SIGINT and SIGTERM cancel each replica's main() (replicas.py). The first time that makes its server shut down
gracefully, the second time cancels it; one more interrupts the main thread, whatever it is doing.
"""

import asyncio
import contextlib
import copy
import inspect
import logging
import os
import signal
import stat
import sys

from gmploop import config, policy, replicas

try:
    import click
    import uvicorn
    import uvicorn.config
except ImportError as error:
    missing = error
else:
    missing = None

logger = logging.getLogger("gmploop.serve")

LEFT_OUT = {"loop", "workers", "reload", "reload_dirs", "reload_includes", "reload_excludes", "reload_delay",
            "timeout_worker_healthcheck", "version"}
CRASHED = 1             # exit status; STARTUP_FAILURE, 3, is uvicorn's
HELP = """Serve an ASGI application on uvicorn, with gmploop, in several replicas.

APP is module:attribute. Each replica has an event loop in a thread of its own and its own lifespan; the module is
imported once. So what belongs to a loop (connection pools, locks) is made in the lifespan and kept in its state
(`yield {"pool": pool}`), or APP is a factory (--factory), called once for each replica.

SIGTERM and Ctrl-C stop accepting, finish the requests under way and end the lifespans; a second one cancels what is
under way. Exit status: 0 after a graceful end, 3 when a replica could not start, 1 when one crashed or the end was
forced.
"""


def main(arguments):
    """Run the command line after `serve`. Returns the exit status, or raises SystemExit with it."""
    if missing is not None:
        print(f"python -m gmploop serve needs uvicorn, and {missing.name} is not installed: "
              "pip install 'gmploop[serve]'", file=sys.stderr)
        return CRASHED
    return _command().main(arguments, prog_name="python -m gmploop serve", standalone_mode=True)


def _command():
    own = click.Option(["--replicas"], type=click.IntRange(1), default=config.resolve_procs,
                       allow_from_autoenv=False,
                       help="Number of replicas. Defaults to the CPUs that this process may use where the GIL is off, "
                            "else to 1.")
    params = [param for param in uvicorn.main.params if param.name not in LEFT_OUT]
    return click.Command("serve", params=[params[0], own, *params[1:]], callback=_serve, help=HELP,
                         context_settings={"auto_envvar_prefix": "UVICORN"})


def _serve(replicas, app_dir, **options):
    sys.path.insert(0, app_dir)
    options["headers"] = [header.split(":", 1) for header in options["headers"]]
    if options["log_config"] is None:
        options["log_config"] = copy.deepcopy(uvicorn.config.LOGGING_CONFIG)
        options["log_config"]["loggers"]["gmploop"] = {"handlers": ["default"], "level": "INFO", "propagate": False}
    known = inspect.signature(uvicorn.Config).parameters
    options = {name: value for name, value in options.items() if name in known}
    sys.exit(Serving(replicas, options).run())


class Serving:
    """One run of the command."""

    def __init__(self, count, options):
        self.count = count
        self.options = options
        self.started = set()                # servers; a set's add() is atomic

    def run(self):
        """Returns the exit status."""
        first = uvicorn.Config(**self.options)
        logger.info("%s on gmploop, poller %s", self._replicas(), config.resolve_poller())
        if self.count > 1 and config.gil_enabled():
            logger.info("the replicas share the GIL: one of them computes at a time")
        first.load_app()                    # once, before anything is shared; it exits when it cannot
        with _listening(first) as sock:     # each server closes its own when it stops accepting
            self.socks = [sock.dup() for _ in range(self.count)]
        self.configs = [first]
        for _ in range(1, self.count):      # the first has set up logging
            self.configs.append(uvicorn.Config(**{**self.options, "log_config": None}))
        self.replicas = replicas.Run(self.count, (signal.SIGINT, signal.SIGTERM), patience=2)
        try:
            self.replicas.run(lambda: policy.run(self._replica()))
        except SystemExit as error:
            return error.code if isinstance(error.code, int) and error.code else CRASHED
        except (KeyboardInterrupt, asyncio.CancelledError):
            return CRASHED                  # forced
        except BaseException:
            logger.exception("a replica crashed")
            return CRASHED
        finally:
            if first.uds is not None:
                with contextlib.suppress(OSError):
                    os.unlink(first.uds)
        # A signal after the first forces the end, whatever of it what was interrupted has swallowed.
        return CRASHED if self.replicas.signals > 1 else 0

    def _replicas(self):
        return f"{self.count} replica{'s' * (self.count > 1)}"

    def _serves(self, server):
        self.started.add(server)
        if len(self.started) == self.count:
            logger.info("Serving in %s", self._replicas())

    async def _replica(self):
        index = replicas.index()
        server = _Server(self.configs[index])
        server.when_started = self._serves
        with self.socks[index] as sock:
            serving = asyncio.ensure_future(server.serve(sockets=[sock]))
            try:
                await asyncio.shield(serving)
            except asyncio.CancelledError:
                if serving.done():
                    raise
                server.should_exit = True
                asyncio.current_task().uncancel()
                async with asyncio.timeout(config.REPLICAS_END_S if self.replicas.crashed else None):
                    await serving           # cancelled once more, it is cancelled itself
        if not server.started:
            sys.exit(uvicorn.config.STARTUP_FAILURE)


if missing is None:
    class _Server(uvicorn.Server):
        @contextlib.contextmanager
        def capture_signals(self):
            """They are the run's."""
            yield

        async def startup(self, sockets=None):
            await super().startup(sockets)
            if self.started:
                self.when_started(self)


def _listening(options):
    """The bound socket. A Unix socket file that is there already gives way, as in loop.create_unix_server()."""
    if options.uds is not None:
        with contextlib.suppress(OSError):
            if stat.S_ISSOCK(os.stat(options.uds).st_mode):
                os.unlink(options.uds)
    return options.bind_socket()            # logs the address; exits when it cannot
