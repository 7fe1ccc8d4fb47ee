import sys

from gmploop.bench import main

sys.exit(main())
