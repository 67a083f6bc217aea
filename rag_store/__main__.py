"""`python -m rag_store`, the same as `kvswarm rag`."""

import sys

from rag_store.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
