"""`python -m kvswarm` is the command `kvswarm`."""

import sys

from loadgen.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
