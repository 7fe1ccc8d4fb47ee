"""The benchmark suite: `python -m gmploop bench`.

The modules, from the top down:

    cli         command line, exit status
    run         the order of the rounds               report, plot    medians, ratios, growth, tables, JSON, PNG
    measure     one measurement: starts the child, and for servers the load generator, and ends both
    rows, row   what there is to measure              contests        the rows whose contestants are not just loops
    services    PostgreSQL and Redis                  machine         cores and versions
    native      compiles the C and Go programs        loops           the loops and C servers by name; how a child begins
    micro, growth, echo, web, db                      programs that run in the child, started by path
    sched, hops, isolated, file_ways                  the same, for gmploop's own parts; worlds: what they share
    yardsticks, tonio_yardsticks, yardstick.go        what sched measures, on asyncio and uvloop, tonio and Go
    files       gmploop.fs beside threads

In C: loadgen (loadgen.c, load_*.c), the load generator; echo_epoll, the server that shows the kernel's part.
A child never imports this package but to measure gmploop: nothing of it is loaded while another loop is measured.
"""


def main(argv=None):
    """Run the suite with command-line arguments `argv` (default: `sys.argv[1:]`), and return its exit status.

    0: everything ran; 1: a measurement failed (a server died, wrong bytes came back, ...); 2: wrong usage or
    nothing to measure; 130: interrupted. To be called from the main thread.
    """
    from gmploop.bench.cli import main as run
    return run(argv)
