"""The suite with every peer that is installed: `python -m gmploop bench --loops peers`, and what else is given."""

import sys

from gmploop.bench import main

if __name__ == "__main__":
    sys.exit(main(["--loops", "peers", *sys.argv[1:]]))
