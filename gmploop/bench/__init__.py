"""The benchmark suite: `python -m gmploop bench`.

The modules, from the top down:

    cli       command line, the order of the rounds, exit status
    report    medians, ratios, tables, JSON
    measure   one measurement: starts the child, and for servers the load generator, and ends both
    rows      what there is to measure          native    compiles the two C programs     machine   cores and versions
    micro, echo, web                            programs that run in the child, started by path
    loops     the loops by name; what every child does first

A child never imports this package, so that nothing of gmploop is loaded while another loop is measured.
"""


def main(argv=None):
    """Run the suite with command-line arguments `argv` (default: `sys.argv[1:]`), and return its exit status.

    0: everything ran; 1: a measurement failed (a server died, wrong bytes came back, ...); 2: wrong usage or
    nothing to measure; 130: interrupted. To be called from the main thread.
    """
    from gmploop.bench.cli import main as run
    return run(argv)
