"""`kvswarm rag`: a program of its own, found by name, which nothing here imports."""

import importlib

from loadgen.errors import UsageError

PROGRAM = "rag_store.cli.main"


def rag_command(arguments: list[str]) -> int:
    """Run it with its own errors and exit codes. Raises UsageError where it is not installed."""
    try:
        program = importlib.import_module(PROGRAM)
    except ModuleNotFoundError as error:
        raise _not_installed(error) from error
    try:
        return int(program.main(arguments))
    except ModuleNotFoundError as error:  # commands are imported when they are asked for
        raise _not_installed(error) from error


def _not_installed(error: ModuleNotFoundError) -> UsageError:
    return UsageError(
        f"`kvswarm rag` needs {error.name}, which is not installed: pip install 'kvswarm[rag]'"
    )
