"""The commands of `kvswarm rag`."""

import asyncio
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from rag_store.cli.output import drop_output, fitted, told_output
from rag_store.errors import RagError, RagUsageError

HELP = """\
kvswarm rag: which document is a question about?

  kvswarm rag index PATH         put documents into the library
  kvswarm rag serve              answer over HTTP until Ctrl-C
  kvswarm rag label [TEXT]       label a question, or each line of a file or of stdin
  kvswarm rag explain TEXT       the same with the reasons
  kvswarm rag eval --questions F how often labels are right, strangers refused, and how fast
  kvswarm rag fit-threshold ANSWERABLE UNANSWERABLE
                                 decide anew when to refuse, and keep that

`kvswarm rag COMMAND --help` tells more.
"""

Command = Callable[[list[str]], Coroutine[Any, Any, int]]


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code, with one line on stderr for what the user can mend."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        with told_output(RagError):
            return _run(arguments)
    except RagError as error:
        print(fitted(f"kvswarm rag: {error}", sys.stderr), file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        return 130
    except BrokenPipeError:  # the reader of our output has left, as `head` does
        drop_output(sys.stdout)
        return 0


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("-h", "--help", "help"):
        print(fitted(HELP, sys.stdout), end="")
        return 0 if arguments else 2
    return asyncio.run(_command(arguments[0])(arguments[1:]))


def _command(name: str) -> Command:
    match name:
        case "index":
            from rag_store.cli.index import index_command

            return index_command
        case "serve":
            from rag_store.cli.serve import serve_command

            return serve_command
        case "label":
            from rag_store.cli.label import label_command

            return label_command
        case "explain":
            from rag_store.cli.explain import explain_command

            return explain_command
        case "eval":
            from rag_store.cli.evaluate import eval_command

            return eval_command
        case "fit-threshold":
            from rag_store.cli.threshold import fit_threshold_command

            return fit_threshold_command
    raise RagUsageError(f"unknown command {name!r}: try `kvswarm rag --help`")
