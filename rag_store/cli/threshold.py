"""`kvswarm rag fit-threshold ANSWERABLE UNANSWERABLE`."""

from pathlib import Path

from rag_store.cli.evaluate import strangers
from rag_store.library import filled_library
from rag_store.cli.options import Parser, add_library_options, add_qrels_option, settings_of
from rag_store.decision import KEEP
from rag_store.errors import RagUsageError
from rag_store.evaluation import evaluate
from rag_store.readers import read_judged


async def fit_threshold_command(arguments: list[str]) -> int:
    """Decide anew when to refuse; kept beside the collection."""
    parsed = _parser().parse_args(arguments)
    settings = settings_of(parsed)
    if not 0 < parsed.keep <= 1:
        raise RagUsageError(f"--keep is {parsed.keep}: give a share above 0, at most 1")
    judged = read_judged(parsed.answerable, parsed.split, parsed.qrels)
    answerable = [query for query in judged if query.doc_ids]
    unanswerable = strangers([parsed.unanswerable], parsed.split)
    async with filled_library(settings) as library:
        fitted = await library.fit_threshold(answerable, unanswerable, parsed.keep)
        point = (await evaluate(library, answerable, unanswerable)).at_threshold(fitted.threshold)
    print(
        f"threshold {fitted.threshold:.3f}, fitted on {len(answerable)} answerable and"
        f" {len(unanswerable)} unanswerable queries: keeps {point.kept:.1%} of the first"
        f" ({point.right:.1%} of them labelled right), refuses {point.refused:.1%} of the second"
    )
    return 0


def _parser() -> Parser:
    parser = Parser("fit-threshold", "decide anew when to refuse, and keep that in the library")
    parser.add_argument("answerable", type=Path, help="questions that documents answer")
    parser.add_argument("unanswerable", type=Path, help="questions that none answers")
    add_qrels_option(parser)
    parser.add_argument(
        "--keep", type=float, default=KEEP, help="share of the answerable ones to be labelled"
    )
    parser.add_argument(
        "--split", default="", help="only questions with this in their field split, as dev or test"
    )
    add_library_options(parser)
    return parser
