"""The benchmark suite: `python -m gmploop bench`.

The modules, from the top down:

    cli         command line, exit status
    run         the order of the rounds               report, plot    medians, ratios, growth, tables, JSON, PNG
    measure     one measurement: starts the child, and for servers the load generator, and ends both
    rows        what there is to measure              services        PostgreSQL and Redis
    native      compiles the C programs               machine         cores and versions
    micro, growth, echo, web, db                      programs that run in the child, started by path
    loops       the loops and C servers by name; what every child does first
    files       gmploop.fs beside threads, a program of its own
    isolated    servers with a world for each connection beside ordinary ones, a program of its own

In C: loadgen (loadgen.c, load_*.c), the load generator; echo_epoll, the server that shows the kernel's part.
A child never imports this package, so that nothing of gmploop is loaded while another loop is measured.
"""


def main(argv=None):
    """Run the suite with command-line arguments `argv` (default: `sys.argv[1:]`), and return its exit status.

    0: everything ran; 1: a measurement failed (a server died, wrong bytes came back, ...); 2: wrong usage or
    nothing to measure; 130: interrupted. To be called from the main thread.
    """
    from gmploop.bench.cli import main as run
    return run(argv)
