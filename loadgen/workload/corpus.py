"""The texts and questions a workload is made of, read by the reader that retrieval has too."""

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, replace
from functools import lru_cache
from pathlib import Path

from loadgen.context import Document, Question
from loadgen.errors import CorpusError
from rag_store import errors as reader_errors
from rag_store.documents import Document as LibraryDocument
from rag_store.readers import each_query, read_documents, unread_note
from rag_store.readers.formats import Place, place_of

_BLANK_LINES = re.compile(r"\n\s*\n")
GENERAL_QUESTION = "What are the main points of this text?"


@dataclass(frozen=True, slots=True)
class Corpus:
    """Documents in a fixed order, and for each document's id at least one question.

    `source` is where the documents were read.
    """

    documents: tuple[Document, ...]
    questions: Mapping[str, tuple[Question, ...]]
    source: Path = Path()

    @property
    def sha256(self) -> str:
        """Of all documents and questions in their order: wherever they stand, in whatever files,
        the same texts give the same."""
        digest = hashlib.sha256()
        for document in self.documents:
            questions = [astuple(question) for question in self.questions[document.doc_id]]
            digest.update(json.dumps([astuple(document), questions]).encode() + b"\n")
        return digest.hexdigest()


def load_corpus(corpus: Path | None = None, questions: Path | None = None) -> Corpus:
    """Read documents and questions; None stands for the demo corpus and for its questions.

    `corpus` is a folder of .txt and .md files (sorted by name, the stem is the id, the first
    `# ` heading the title), a JSONL file of doc_id, title, text, or what else the reader knows.
    `questions` is a JSONL file of qid, question, doc_id, or a folder of `questions*.jsonl`; by
    default the corpus's own folder.
    A document without a question gets GENERAL_QUESTION, with the id `<doc_id>-general`.

    Control characters and halves of surrogate pairs become spaces, runs of blank lines one blank
    line. Asked again for what has not changed since, it reads nothing. Raises CorpusError.
    """
    source = demo_folder() if corpus is None else corpus
    with _told():
        is_folder = place_of(source) is Place.FOLDER
    asked = questions or (source if is_folder else source.parent)
    return _load(source, asked, (_stamps(source), _stamps(asked)))


@lru_cache(maxsize=1)
def _load(source: Path, questions: Path, _: object) -> Corpus:
    documents = {document.doc_id: document for document in load_documents(source)}
    found = _read_questions(questions, set(documents))
    return Corpus(
        tuple(documents.values()),
        {doc_id: tuple(found.get(doc_id, ())) or (_general(doc_id),) for doc_id in documents},
        source,
    )


def load_documents(corpus: Path | None = None) -> tuple[Document, ...]:
    """The documents of `load_corpus` alone, which need no questions. Raises CorpusError."""
    return tuple(
        Document(each.doc_id, each.title, _with_single_breaks(each.text)) for each in _read(corpus)
    )


def library_lines(corpus: Path | None = None) -> str:
    """The same documents as lines of JSON, with the questions that they bring along.

    Raises CorpusError.
    """
    rows = (replace(each, text=_with_single_breaks(each.text)) for each in _read(corpus))
    return "".join(f"{json.dumps(asdict(row))}\n" for row in rows)


def unread_notes(corpus: Path | None = None) -> tuple[str, ...]:
    """A sentence where something in the corpus's folder is not read. Raises CorpusError."""
    with _told():
        note = unread_note(corpus or demo_folder())
    return (note,) if note else ()


def _read(corpus: Path | None) -> tuple[LibraryDocument, ...]:
    with _told():
        return read_documents(corpus or demo_folder())


@contextmanager
def _told() -> Iterator[None]:
    """The reader's errors as ours: the same line, the same exit code."""
    try:
        yield
    except reader_errors.CorpusError as error:
        raise CorpusError(str(error)) from error


def _with_single_breaks(text: str) -> str:
    """With one blank line between paragraphs."""
    return "\n\n".join(part.rstrip() for part in _BLANK_LINES.split(text))


def _stamps(source: Path) -> tuple[object, ...]:
    """What differs once a file of `source` does."""
    try:
        files = sorted(source.iterdir()) if source.is_dir() else [source]
        states = [(str(file), file.stat()) for file in files]
    except OSError:
        return (object(),)  # equal to nothing
    return tuple((name, state.st_mtime_ns, state.st_size) for name, state in states)


def demo_folder() -> Path:
    """Where the corpus lies that comes along."""
    return Path(__file__).parent / "demo_corpus"


def _general(doc_id: str) -> Question:
    return Question(f"{doc_id}-general", GENERAL_QUESTION, doc_id)


def _read_questions(source: Path, doc_ids: set[str]) -> dict[str, list[Question]]:
    found: dict[str, list[Question]] = {}
    taken: set[str] = set()
    for at, question in _questions_of(source, doc_ids):
        if question.question_id in taken:
            raise CorpusError(
                f"{at}: qid {question.question_id!r} stands twice: rename one of them"
            )
        taken.add(question.question_id)
        found.setdefault(question.doc_id, []).append(question)
    if not found:
        raise CorpusError(
            f"{source} holds no question: give --questions FILE.jsonl with lines of"
            " qid, question, doc_id"
        )
    return found


def _questions_of(source: Path, doc_ids: set[str]) -> Iterator[tuple[str, Question]]:
    with _told():
        if place_of(source) is Place.NOTHING:
            raise CorpusError(f"questions {source} do not exist: name a JSONL file")
        for at, query in each_query(source):
            if not query.doc_ids:
                raise CorpusError(f"{at}: field 'doc_id' is missing or null: name a document")
            if query.doc_ids[0] not in doc_ids:
                named = query.doc_ids[0]
                raise CorpusError(f"{at}: field 'doc_id' names no document: {named!r}")
            text = _with_single_breaks(query.text)
            yield at, Question(query.query_id, text, query.doc_ids[0])
