"""`kvswarm rag expand`."""

import sys
from dataclasses import dataclass, field
from pathlib import Path

from rag_store.cli.index import shown_progress
from rag_store.cli.options import Parser, number
from rag_store.documents import Document
from rag_store.errors import RagUsageError
from rag_store.expansion.asking import ask_all
from rag_store.expansion.file import ExpansionsFile, open_expansions
from rag_store.expansion.writer import Endpoint, open_writer
from rag_store.ingest import Progress
from rag_store.readers import expansions_path, read_documents
from rag_store.readers.place import Place, place_of

_LISTED = 3


@dataclass(slots=True)
class _Account:
    """What became of the documents that were asked about."""

    file: ExpansionsFile
    told: Progress
    total: int
    questions: int = 0
    silent: list[str] = field(default_factory=list)
    asked: int = 0

    def written(self, document: Document, questions: tuple[str, ...]) -> None:
        if questions:
            self.file.add(document.doc_id, questions)
        else:
            self.silent.append(document.doc_id)
        self.questions += len(questions)
        self.asked += 1
        self.told(self.asked, self.total)


async def expand_command(arguments: list[str]) -> int:
    """Have a model write questions; safe to repeat after any interruption."""
    parsed = _parser().parse_args(arguments)
    documents = read_documents(parsed.corpus, expansions=False)
    path = parsed.out or expansions_path(parsed.corpus)
    if place_of(path) is not Place.NOTHING and path.samefile(parsed.corpus):
        raise RagUsageError(f"-o {path} is the corpus itself: name another file")
    endpoint = Endpoint(parsed.url, parsed.model, parsed.key_env, parsed.timeout)
    async with open_writer(endpoint) as writer:
        with open_expansions(path, documents) as file, shown_progress("asking") as told:
            done = file.done
            waiting = [each for each in documents if each.doc_id not in done]
            account = _Account(file, told, len(waiting))
            at_once = parsed.concurrency
            await ask_all(writer, waiting, parsed.per_document, at_once, account.written)
    print(
        f"{account.questions} questions for {len(waiting) - len(account.silent)} documents,"
        f" {len(documents) - len(waiting)} had theirs: {path}"
    )
    return _tell_silent(account.silent)


def _tell_silent(doc_ids: list[str]) -> int:
    if not doc_ids:
        return 0
    listed = ", ".join(doc_ids[:_LISTED]) + (", …" if doc_ids[_LISTED:] else "")
    print(
        f"kvswarm rag: the model wrote no question about {len(doc_ids)} documents ({listed}):"
        " run this again, or choose another --model",
        file=sys.stderr,
    )
    return 1


def _parser() -> Parser:
    parser = Parser(
        "expand", "have a model write questions that each document answers, for `index` to put in"
    )
    parser.add_argument(
        "--corpus",
        type=Path,
        required=True,
        metavar="PATH",
        help="documents, as `index` reads them",
    )
    parser.add_argument(
        "--url", required=True, help="any server with OpenAI's /v1/chat/completions, as your vLLM"
    )
    parser.add_argument("--model", required=True, help="the model's name there")
    parser.add_argument(
        "-o",
        "--out",
        type=Path,
        help="file to write, or to go on with (default: beside the corpus)",
    )
    parser.add_argument(
        "--per-document", type=number(int, 1, 1000), default=24, help="questions of a document"
    )
    parser.add_argument(
        "--concurrency", type=number(int, 1, 1000), default=8, help="documents asked about at once"
    )
    parser.add_argument(
        "--timeout",
        type=number(float, 1, 86_400),
        default=300.0,
        metavar="SECONDS",
        help="how long one answer may take",
    )
    parser.add_argument(
        "--key-env", default="OPENAI_API_KEY", help="environment variable with the server's key"
    )
    return parser
