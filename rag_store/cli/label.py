"""`kvswarm rag label` and `kvswarm rag explain`: which document a question is about, and why."""

import json
import sys
from collections.abc import Iterator
from pathlib import Path

from rag_store.cli.options import Parser
from rag_store.cli.output import fitted
from rag_store.documents import printable
from rag_store.errors import RagError, RagUsageError
from rag_store.label import Candidate, Threshold, says_something
from rag_store.library import filled_library
from rag_store.readers.formats import read_text
from rag_store.search import Answer

# So many are embedded together; the answers appear in blocks of this size.
_AT_ONCE = 64


async def label_command(arguments: list[str]) -> int:
    """Label queries; a query that cannot be labelled is said on stderr and makes the exit code."""
    parser = Parser("label", "which document each question is about: DOC_ID, SCORE and question")
    parser.add_argument("text", nargs="?", metavar="TEXT", help="the question (default: stdin)")
    parser.add_argument("--file", type=Path, help="questions, one a line; - is stdin")
    parser.add_argument("--json", action="store_true", help="a JSON object for each question")
    parsed, settings = parser.read(arguments)
    queries = _queries(parsed.text, parsed.file)
    code = 0
    async with filled_library(settings) as library:
        for start in range(0, len(queries), _AT_ONCE):
            part = queries[start : start + _AT_ONCE]
            for query, result in zip(part, await library.label_many(part), strict=True):
                if isinstance(result, RagError):
                    print(f"kvswarm rag: {query[:40]!a}: {result}", file=sys.stderr)
                    code = result.exit_code
                elif parsed.json:
                    print(json.dumps({"query": query, **result.as_json()}))
                else:
                    print(f"{result.doc_id or '-'}\t{result.score:.3f}\t{printable(query)}")
    return code


async def explain_command(arguments: list[str]) -> int:
    """Label one query and say why."""
    parser = Parser("explain", "which document a question is about, and why")
    parser.add_argument("text", metavar="TEXT", help="the question")
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    parsed, settings = parser.read(arguments)
    async with filled_library(settings) as library:
        answer, threshold = await library.explain(parsed.text), library.threshold
    if parsed.json:
        reasons = {"chunk_text": answer.chunk_text, "terms": answer.terms}
        print(json.dumps({**answer.label.as_json(), **reasons}))
    else:
        text = "\n".join(map(printable, _explained(parsed.text, answer, threshold)))
        print(fitted(text, sys.stdout))
    return 0


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


def _explained(query: str, answer: Answer, threshold: Threshold) -> Iterator[str]:
    label = answer.label
    if not label.candidates:
        yield "no document: none holds a word of the question"
        return
    best = label.candidates[0]
    refused = "refused" if says_something(query) else "refused: the question says nothing"
    sign = "below" if label.score < label.threshold else "reaches"
    terms = sorted(answer.terms.items(), key=lambda term: -term[1])
    yield f"label       {label.doc_id or refused}"
    yield f"score       {label.score:.3f} {sign} the threshold {label.threshold:.3f}"
    yield f"threshold   {_origin(threshold)}"
    yield f"best        {_scores(best)}"
    for runner_up in label.candidates[1:2]:
        yield f"runner-up   {_scores(runner_up)}, {label.margin:.3f} behind"
    yield f"agreement   vectors and words {'agree' if label.agree else 'do not agree'} on the best"
    yield f"words       {', '.join(f'{word} {weight:.2f}' for word, weight in terms) or 'none'}"
    if best.question is not None:
        yield f"question    {best.question} (of {best.doc_id}, not in its text)"
    else:
        yield f"chunk {best.chunk:<5} {' '.join(answer.chunk_text.split())}"


def _origin(threshold: Threshold) -> str:
    yes, no = threshold.fitted_on
    if yes or no:
        return f"fitted on {yes} answerable and {no} unanswerable queries"
    return "as shipped" if threshold.threshold else "not fitted: no score is refused"


def _scores(candidate: Candidate) -> str:
    read = "" if candidate.relevance is None else f"relevance {candidate.relevance:.3f}, "
    return (
        f"{candidate.doc_id}: {read}fused {candidate.score:.2f}, cosine {candidate.cosine:.3f},"
        f" BM25 {candidate.bm25:.2f}"
    )
