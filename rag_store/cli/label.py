"""`kvswarm rag label`."""

import json
import sys
from pathlib import Path

from rag_store.library import filled_library
from rag_store.cli.options import Parser, add_library_options, settings_of
from rag_store.cli.printable import printable
from rag_store.errors import RagError, RagUsageError
from rag_store.label import Label
from rag_store.readers.files import read_text

# So many are embedded together; the answers appear in blocks of this size.
_AT_ONCE = 64


async def label_command(arguments: list[str]) -> int:
    """Label queries; a query that cannot be labelled is said on stderr and makes the exit code."""
    parsed = _parser().parse_args(arguments)
    settings = settings_of(parsed)
    queries = _queries(parsed.text, parsed.file)
    code = 0
    async with filled_library(settings) as library:
        for start in range(0, len(queries), _AT_ONCE):
            part = queries[start : start + _AT_ONCE]
            for query, result in zip(part, await library.label_many(part), strict=True):
                if isinstance(result, RagError):
                    print(f"kvswarm rag: {query[:40]!a}: {result}", file=sys.stderr)
                    code = result.exit_code
                else:
                    print(_as_json(query, result) if parsed.json else _plain(query, result))
    return code


def _parser() -> Parser:
    parser = Parser("label", "which document each question is about: DOC_ID, SCORE and question")
    parser.add_argument("text", nargs="?", metavar="TEXT", help="the question (default: stdin)")
    parser.add_argument("--file", type=Path, help="questions, one a line; - is stdin")
    parser.add_argument("--json", action="store_true", help="a JSON object for each question")
    add_library_options(parser)
    return parser


def _queries(text: str | None, file: Path | None) -> list[str]:
    if text is not None and file is not None:
        raise RagUsageError("give a question or --file, not both")
    if text is not None:
        return [text]
    read = _stdin(file is None) if file is None or str(file) == "-" else read_text(file)
    queries = [line for line in read.split("\n") if line.strip()]
    if not queries:
        raise RagUsageError("nothing to label: give one question a line")
    return queries


def _stdin(unasked: bool) -> str:
    if sys.stdin is None or (unasked and sys.stdin.isatty()):
        raise RagUsageError("nothing to label: give a question, --file, or lines on stdin")
    try:
        read = sys.stdin.read()
        read.encode()  # in some locales other bytes have become halves of surrogate pairs
    except UnicodeError as error:
        raise RagUsageError("stdin is not UTF-8: convert it to UTF-8") from error
    except OSError as error:
        raise RagUsageError(f"cannot read stdin: {error.strerror}: give --file") from error
    return read


def _plain(query: str, label: Label) -> str:
    return f"{label.doc_id or '-'}\t{label.score:.3f}\t{printable(query)}"


def _as_json(query: str, label: Label) -> str:
    return json.dumps({"query": query, **label.as_json()})
