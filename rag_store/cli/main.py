"""The commands of `kvswarm rag`."""

import asyncio
import sys
from collections.abc import Sequence
from importlib import import_module

from rag_store.cli.output import complaint, drop_output, fitted, told_output
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

_COMMANDS = {
    "index": "rag_store.cli.library:index_command",
    "serve": "rag_store.cli.library:serve_command",
    "label": "rag_store.cli.label:label_command",
    "explain": "rag_store.cli.label:explain_command",
    "eval": "rag_store.cli.evaluate:eval_command",
    "fit-threshold": "rag_store.cli.evaluate:fit_threshold_command",
}
"""Imported when it is asked for: most need Chroma, which takes a second."""


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code, with one line on stderr for what the user can mend."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    try:
        with told_output(RagError):
            return _run(arguments)
    except RagError as error:
        print(complaint(error, "kvswarm rag"), file=sys.stderr)
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
    name = arguments[0]
    if name not in _COMMANDS:
        raise RagUsageError(f"unknown command {name!r}: try `kvswarm rag --help`")
    module, _, function = _COMMANDS[name].partition(":")
    code: int = asyncio.run(getattr(import_module(module), function)(arguments[1:]))
    return code
