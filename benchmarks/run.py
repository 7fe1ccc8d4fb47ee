"""The suite with every loop that is installed: `python -m gmploop bench --loops all`, and what else is given."""

import sys

from gmploop.bench import main

if __name__ == "__main__":
    sys.exit(main(["--loops", "all", *sys.argv[1:]]))
