"""`kvswarm rag`: a program of its own, found by name, which nothing here imports."""

import importlib

from loadgen.launch.arguments import needs

PROGRAM = "rag_store.cli.main"


def rag_command(arguments: list[str]) -> int:
    """Run it with its own errors and exit codes. Raises UsageError where it is not installed."""
    with needs("rag", "`kvswarm rag`"):  # commands too are imported when they are asked for
        return int(importlib.import_module(PROGRAM).main(arguments))
