"""`kvswarm rag explain TEXT`."""

import json
import sys
from collections.abc import Iterator

from rag_store.library import filled_library
from rag_store.cli.options import Parser, add_library_options, settings_of
from rag_store.cli.output import fitted
from rag_store.cli.printable import printable
from rag_store.decision import Threshold
from rag_store.label import Candidate
from rag_store.search import Answer


async def explain_command(arguments: list[str]) -> int:
    """Label one query and say why."""
    parsed = _parser().parse_args(arguments)
    async with filled_library(settings_of(parsed)) as library:
        answer, threshold = await library.explain(parsed.text), library.threshold
    if parsed.json:
        print(json.dumps(explanation_json(answer)))
    else:
        text = "\n".join(map(printable, _lines(answer, threshold)))
        print(fitted(text, sys.stdout))
    return 0


def explanation_json(answer: Answer) -> dict[str, object]:
    """The label with its reasons."""
    return {
        **answer.label.as_json(),
        "chunk_text": answer.chunk_text,
        "terms": {term.text: term.weight for term in answer.terms},
    }


def _parser() -> Parser:
    parser = Parser("explain", "which document a question is about, and why")
    parser.add_argument("text", metavar="TEXT", help="the question")
    parser.add_argument("--json", action="store_true", help="as one JSON object")
    add_library_options(parser)
    return parser


def _lines(answer: Answer, threshold: Threshold) -> Iterator[str]:
    label, best = answer.label, answer.label.best
    if best is None:
        yield "no document: none holds a word of the question"
        return
    sign, verdict = ("below", "refused") if label.doc_id is None else ("reaches", label.doc_id)
    yield f"label       {verdict}"
    yield f"score       {label.score:.3f} {sign} the threshold {label.threshold:.3f}"
    yield f"threshold   {_origin(threshold)}"
    yield f"best        {_scores(best)}"
    for runner_up in label.candidates[1:2]:
        yield f"runner-up   {_scores(runner_up)}, {label.margin:.3f} behind"
    yield f"agreement   vectors and words {'agree' if label.agree else 'do not agree'} on the best"
    yield f"words       {_terms(answer)}"
    if best.question is not None:
        yield f"question    {best.question} (of {best.doc_id}, not in its text)"
    else:
        yield f"chunk {best.chunk:<5} {_one_line(answer.chunk_text)}"


def _origin(threshold: Threshold) -> str:
    yes, no = threshold.fitted_on
    if yes or no:
        return f"fitted on {yes} answerable and {no} unanswerable queries"
    return "as shipped" if threshold.threshold else "not fitted: nothing is refused"


def _scores(candidate: Candidate) -> str:
    read = "" if candidate.relevance is None else f"relevance {candidate.relevance:.3f}, "
    return (
        f"{candidate.doc_id}: {read}fused {candidate.score:.2f}, cosine {candidate.cosine:.3f},"
        f" BM25 {candidate.bm25:.2f}"
    )


def _terms(answer: Answer) -> str:
    ordered = sorted(answer.terms, key=lambda term: -term.weight)
    return ", ".join(f"{term.text} {term.weight:.2f}" for term in ordered) or "none"


def _one_line(text: str) -> str:
    return " ".join(text.split())
