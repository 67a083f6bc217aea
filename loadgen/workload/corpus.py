"""The texts and questions a workload is made of."""

import hashlib
import json
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import astuple, dataclass
from functools import lru_cache
from pathlib import Path

from loadgen.context import Document, Question
from loadgen.errors import CorpusError
from loadgen.workload.jsonl import check_id, clean, read_rows, read_text

TEXT_SUFFIXES = (".md", ".txt")
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
    `# ` heading the title) or a JSONL file of doc_id, title, text. `questions` is a JSONL file of
    qid, question, doc_id, or a folder of `questions*.jsonl`; by default the corpus's own folder.
    A document without a question gets GENERAL_QUESTION, with the id `<doc_id>-general`.

    Control characters and halves of surrogate pairs become spaces, runs of blank lines one blank
    line. Asked again for what has not changed since, it reads nothing. Raises CorpusError.
    """
    source = demo_folder() if corpus is None else corpus
    asked = questions or (source if _is(source, stat.S_ISDIR) else source.parent)
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
    source = demo_folder() if corpus is None else corpus
    is_folder = _is(source, stat.S_ISDIR)
    if is_folder is None:
        raise CorpusError(f"corpus {source} does not exist: name a folder or a JSONL file")
    documents = _unique(_read_folder(source) if is_folder else _read_jsonl(source))
    if not documents:
        raise CorpusError(f"corpus {source} holds no document: add .md or .txt files")
    return tuple(documents.values())


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


def _read_folder(folder: Path) -> Iterator[tuple[str, Document]]:
    for path in _list(folder):
        if path.suffix.lower() in TEXT_SUFFIXES and not path.name.startswith("."):
            yield str(path), _read_file(_regular(path))


def _list(folder: Path) -> list[Path]:
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise CorpusError(f"cannot read {folder}: {error.strerror}") from error


def _regular(path: Path) -> Path:
    """The path, unless reading it could take for ever, as of a pipe. Raises CorpusError."""
    if not _is(path, stat.S_ISREG):
        raise CorpusError(f"{path} is no regular file: move it elsewhere")
    return path


def _is(path: Path, is_kind: Callable[[int], bool]) -> bool | None:
    """Whether what lies there is of the kind, None where nothing does. Raises CorpusError."""
    try:
        return is_kind(path.stat().st_mode)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise CorpusError(f"cannot read {path}: {error.strerror}: name another path") from error


def _read_file(path: Path) -> Document:
    doc_id = check_id(path.stem, f"a file name in {path.parent}")
    text = clean(read_text(path))
    if not text:
        raise CorpusError(f"{path} is empty: fill it or remove it")
    headings = (line[2:].strip() for line in text.split("\n") if line.startswith("# "))
    return Document(doc_id, next(headings, "") or doc_id, text)


def _read_jsonl(path: Path) -> Iterator[tuple[str, Document]]:
    for row in read_rows(path):
        doc_id = row.identifier("doc_id")
        title = " ".join(row.text("title", may_be_empty=True).split())
        yield row.at, Document(doc_id, title or doc_id, row.text("text"))


def _unique(documents: Iterable[tuple[str, Document]]) -> dict[str, Document]:
    seen: dict[str, Document] = {}
    for at, document in documents:
        if document.doc_id in seen:
            raise CorpusError(f"{at}: doc_id {document.doc_id!r} stands twice: rename one of them")
        seen[document.doc_id] = document
    return seen


def _read_questions(source: Path, doc_ids: set[str]) -> dict[str, list[Question]]:
    found: dict[str, list[Question]] = {}
    taken: set[str] = set()
    for at, question in _questions_of(source):
        qid, doc_id = question.question_id, question.doc_id
        if qid in taken:
            raise CorpusError(f"{at}: qid {qid!r} stands twice: rename one of them")
        if doc_id not in doc_ids:
            raise CorpusError(f"{at}: field 'doc_id' names no document: {doc_id!r}")
        taken.add(qid)
        found.setdefault(doc_id, []).append(question)
    if not found:
        raise CorpusError(
            f"{source} holds no question: give --questions FILE.jsonl with lines of"
            " qid, question, doc_id"
        )
    return found


def _questions_of(source: Path) -> Iterator[tuple[str, Question]]:
    is_folder = _is(source, stat.S_ISDIR)
    if is_folder is None:
        raise CorpusError(f"questions {source} do not exist: name a JSONL file")
    for path in _question_files(source) if is_folder else [source]:
        for row in read_rows(path):
            fields = row.identifier("qid"), row.text("question"), row.identifier("doc_id")
            yield row.at, Question(*fields)


def _question_files(folder: Path) -> list[Path]:
    return [_regular(path) for path in _list(folder) if path.match("questions*.jsonl")]
