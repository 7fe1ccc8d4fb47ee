"""The whole suite with every loop that is installed: `python -m gmploop bench --loops all` (arguments are passed on)."""

import sys

from gmploop.bench import main

if __name__ == "__main__":
    sys.exit(main(["--loops", "all", *sys.argv[1:]]))
