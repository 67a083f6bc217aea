"""Files of a corpus, of questions and of judgements, and their formats.

Of our own: a folder of .txt and .md files, JSONL, and questions in a table. Of others: BEIR's
folders, SQuAD's JSON, and relevance judgements as TREC has them. Every error is one line that names
file, line and field.
"""

import json
import stat
from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path

from rag_store.documents import MAX_TEXT_CHARS, Document, Query, clean, distinct
from rag_store.errors import CorpusError

TEXT_SUFFIXES = (".md", ".txt")
# An id must fit into a URL; a title is put before each chunk and embedded with it.
_ID_CHARS, _TITLE_CHARS = 512, 1000


class Place(Enum):
    """What a path leads to, through any links; OTHER is a device, a socket or a FIFO."""

    NOTHING = "nothing"
    FILE = "file"
    FOLDER = "folder"
    OTHER = "other"


def place_of(path: Path) -> Place:
    """What lies there. Raises CorpusError where that cannot be known."""
    try:
        mode = path.stat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return Place.NOTHING
    except OSError as error:
        raise CorpusError(
            f"cannot read {path}: {error.strerror}: name one that can be read"
        ) from error
    if stat.S_ISDIR(mode):
        return Place.FOLDER
    return Place.FILE if stat.S_ISREG(mode) else Place.OTHER


def file_at(path: Path) -> Path:
    """The path, where a regular file lies: a FIFO may never end. Raises CorpusError."""
    if place_of(path) is not Place.FILE:
        raise CorpusError(f"{path} is no regular file: put one there, or remove it")
    return path


def listing(folder: Path) -> list[Path]:
    """What lies in the folder, sorted by name. Raises CorpusError."""
    try:
        return sorted(folder.iterdir())
    except OSError as error:
        raise CorpusError(
            f"cannot read {folder}: {error.strerror}: name a folder that can be read"
        ) from error


def read_text(path: Path) -> str:
    """The file's text, decoded as UTF-8. Raises CorpusError."""
    try:
        if path.is_char_device():
            raise CorpusError(f"{path} is a device, which may never end: name a file")
        content = path.read_bytes()
    except OSError as error:
        raise CorpusError(f"cannot read {path}: {error.strerror}") from error
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise CorpusError(f"{path}:{line}: not UTF-8: convert the file to UTF-8") from error


def read_lines(path: Path) -> Iterator[tuple[str, str]]:
    """The lines that are not blank, each behind its place, `file:line`. Raises CorpusError."""
    # Not splitlines(): JSON strings may hold U+2028 and other characters it would split at.
    for number, line in enumerate(read_text(path).split("\n"), start=1):
        if line.strip():
            yield f"{path}:{number}", line


def check_id(value: str, at: str) -> str:
    """The id, where it is fit for a table cell and a URL. Raises CorpusError."""
    if len(value) > _ID_CHARS:
        raise CorpusError(f"{at}: an id of {len(value)} characters: use at most {_ID_CHARS}")
    if not value or value != value.strip() or not value.isprintable():
        raise CorpusError(f"{at} is no usable id: {value!a}: use printable characters")
    return value


def check_title(value: str, at: str) -> str:
    """The title, where it is short enough to go before each chunk. Raises CorpusError."""
    if len(value) > _TITLE_CHARS:
        raise CorpusError(f"{at}: a title of {len(value)} characters: use at most {_TITLE_CHARS}")
    return value


def check_text(value: str, at: str) -> str:
    """The text, where it is short enough for one context. Raises CorpusError."""
    if len(value) > MAX_TEXT_CHARS:
        raise CorpusError(
            f"{at}: a text of {len(value)} characters: use at most {MAX_TEXT_CHARS},"
            " and cut a longer one into several documents"
        )
    return value


@dataclass(frozen=True, slots=True)
class JsonRow:
    """One JSON object and where it stands; `at` is `file:line` or `file: path in the object`."""

    at: str
    fields: dict[str, object]

    def identifier(self, *names: str) -> str:
        """The first of the fields that is there, as an id. Raises CorpusError."""
        name, value = self._string(names)
        return check_id(value, f"{self.at}: field {name!r}")

    def text(self, *names: str, may_be_empty: bool = False) -> str:
        """The first field there is, clean; "" where it `may_be_empty`. Raises CorpusError."""
        if may_be_empty and not any(name in self.fields for name in names):
            return ""
        name, value = self._string(names)
        value = clean(value)
        if not value and not may_be_empty:
            raise CorpusError(f"{self.at}: field {name!r} is empty: fill it or drop the line")
        return check_title(value, f"{self.at}: field {name!r}") if name == "title" else value

    def identifiers(self, *names: str) -> tuple[str, ...]:
        """The first of the fields that is there, as ids; none where absent. Raises CorpusError."""
        name, value = self._first(names)
        if value is None:
            return ()
        values = value if isinstance(value, list) else [value]
        at = f"{self.at}: field {name!r}"
        ids = [check_id(each, at) for each in values if isinstance(each, str)]
        if len(ids) != len(values):
            raise CorpusError(f"{at} is neither a string nor a list of strings: give ids")
        return tuple(dict.fromkeys(ids))

    def texts(self, name: str) -> tuple[str, ...]:
        """The field, a list of texts; none where it is absent. Raises CorpusError."""
        value = self.fields.get(name, [])
        if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
            raise CorpusError(f"{self.at}: field {name!r} is no list of strings: give one")
        return tuple(value)

    def _first(self, names: tuple[str, ...]) -> tuple[str, object]:
        name = next((name for name in names if name in self.fields), names[0])
        return name, self.fields.get(name)

    def _string(self, names: tuple[str, ...]) -> tuple[str, str]:
        name, value = self._first(names)
        if isinstance(value, str):
            return name, value
        problem = "is not a string" if name in self.fields else "is missing"
        raise CorpusError(f"{self.at}: field {name!r} {problem}: give it as a string")


def read_rows(path: Path) -> Iterator[JsonRow]:
    """The file's JSON objects, one a line; blank lines are skipped. Raises CorpusError."""
    for at, line in read_lines(path):
        try:
            value = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise CorpusError(f"{at}: not JSON: write one JSON object a line") from error
        if not isinstance(value, dict):
            raise CorpusError(f"{at}: not a JSON object: write one JSON object a line")
        yield JsonRow(at, value)


def folder_documents(folder: Path) -> Iterator[tuple[str, Document]]:
    """Each text, by name: id is the file's stem, title its first heading. Raises CorpusError."""
    for path in listing(folder):
        if path.suffix.lower() not in TEXT_SUFFIXES or path.name.startswith("."):
            continue
        doc_id = check_id(file_at(path).stem, f"{folder}: a file's name")
        text = check_text(clean(read_text(path)), str(path))
        if not text:
            raise CorpusError(f"{path} is empty: fill it or remove it")
        headings = (line[2:].strip() for line in text.split("\n") if line.startswith("# "))
        title = check_title(next(headings, "") or doc_id, str(path))
        yield str(path), Document(doc_id, title, text)


def jsonl_documents(path: Path) -> Iterator[tuple[str, Document]]:
    """Lines of doc_id (or _id), title, text and, if wanted, questions that the text answers.

    Of BEIR's lines, which have _id, those with neither title nor text are skipped. Raises
    CorpusError.
    """
    for row in read_rows(path):
        doc_id = row.identifier("doc_id", "_id")
        title = " ".join(row.text("title", may_be_empty=True).split())
        questions = distinct(row.texts("questions"))
        # The title where a line of BEIR has no more: its corpora hold such, and nobody mends them.
        is_beir = "doc_id" not in row.fields and "text" in row.fields
        if text := check_text(row.text("text", may_be_empty=is_beir) or title, row.at):
            yield row.at, Document(doc_id, title or doc_id, text, questions)


def jsonl_queries(path: Path) -> Iterator[tuple[str, Query]]:
    """Lines of qid (or _id), question (or text), doc_id, kind, split. Raises CorpusError."""
    for row in read_rows(path):
        query_id, text = row.identifier("qid", "_id"), row.text("question", "text")
        kind, split = (row.text(name, may_be_empty=True) for name in ("kind", "split"))
        yield row.at, Query(query_id, text, row.identifiers("doc_id", "doc_ids"), kind, split)


def tsv_queries(path: Path) -> Iterator[tuple[str, Query]]:
    """Lines of an id, a tab and the question; blank lines are skipped. Raises CorpusError."""
    for at, line in read_lines(path):
        query_id, _, question = line.partition("\t")
        text = " ".join(clean(question).split())
        if not text:
            raise CorpusError(f"{at}: no question: write its id, a tab and the question")
        yield at, Query(check_id(query_id.strip(), f"{at}: the first column"), text)


def has_corpus(folder: Path) -> bool:
    """Whether the folder's documents are BEIR's. Raises CorpusError."""
    return place_of(folder / "corpus.jsonl") is Place.FILE


def is_beir(folder: Path) -> bool:
    """Whether its questions are BEIR's too. Raises CorpusError."""
    return has_corpus(folder) and place_of(folder / "queries.jsonl") is Place.FILE


def beir_queries(folder: Path, split: str) -> Iterator[tuple[str, Query]]:
    """The queries that the split judges, with their relevant documents. Raises CorpusError."""
    path = folder / "qrels" / f"{split}.tsv"
    if place_of(path) is not Place.FILE:
        raise CorpusError(f"{path} does not exist: BEIR keeps its judgements there")
    gold = read_qrels(path)
    for at, query in jsonl_queries(folder / "queries.jsonl"):
        if query.query_id in gold:
            yield at, replace(query, doc_ids=gold[query.query_id], split=split)


def squad_documents(path: Path) -> Iterator[tuple[str, Document]]:
    """The paragraphs, with ids `<title>-<number>`. Raises CorpusError."""
    for paragraph, title, doc_id in _paragraphs(path):
        text = check_text(paragraph.text("context"), paragraph.at)
        yield paragraph.at, Document(doc_id, title, text)


def squad_queries(path: Path) -> Iterator[tuple[str, Query]]:
    """The questions with their paragraphs, or none where impossible. Raises CorpusError."""
    for paragraph, _, doc_id in _paragraphs(path):
        for question in _children(paragraph, "qas"):
            impossible = question.fields.get("is_impossible") is True
            query_id, text = question.identifier("id"), question.text("question")
            yield question.at, Query(query_id, text, () if impossible else (doc_id,))


def _paragraphs(path: Path) -> Iterator[tuple[JsonRow, str, str]]:
    try:
        value = json.loads(read_text(path))
    except (ValueError, RecursionError) as error:
        raise CorpusError(f"{path}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise CorpusError(f"{path}: not a JSON object: SQuAD files hold one with the field 'data'")
    for article in _children(JsonRow(f"{path}:", value), "data"):
        title = " ".join(article.text("title").split())
        for number, paragraph in enumerate(_children(article, "paragraphs")):
            doc_id = f"{title.replace(' ', '_')}-{number}"
            yield paragraph, title, check_id(doc_id, f"{article.at}: field 'title'")


def _children(row: JsonRow, name: str) -> Iterator[JsonRow]:
    values = row.fields.get(name)
    if not isinstance(values, list):
        raise CorpusError(f"{row.at} field {name!r} is no list: SQuAD files hold one")
    for number, value in enumerate(values):
        at = f"{row.at} {name}[{number}]"
        if not isinstance(value, dict):
            raise CorpusError(f"{at} is no object: SQuAD files hold objects there")
        yield JsonRow(at, value)


def read_qrels(path: Path) -> dict[str, tuple[str, ...]]:
    """The relevant documents of each query, in the file's order.

    Lines are `query iteration document relevance` or `query document relevance`, split at tabs,
    else at whitespace; four words of which the iteration is 0 or Q0 at both. Only a relevance above
    0 counts. Raises CorpusError.
    """
    found: dict[str, dict[str, None]] = {}
    for at, line in read_lines(path):
        fields = _columns(line)
        if fields[0] == "query-id":
            continue
        if len(fields) not in (3, 4):
            raise CorpusError(
                f"{at}: {len(fields)} fields: write query, document, relevance,"
                " or query, iteration, document, relevance"
            )
        doc_id, gold = fields[-2], found.setdefault(fields[0], {})
        try:
            gold |= {doc_id: None} if int(fields[-1]) > 0 else {}
        except ValueError as error:
            told = f"field 'relevance' is {fields[-1]!a}: give a whole number"
            raise CorpusError(f"{at}: {told}") from error
    if not found:
        raise CorpusError(f"{path} holds no judgement: give lines of query, document, relevance")
    return {query_id: tuple(gold) for query_id, gold in found.items()}


def _columns(text: str) -> list[str]:
    """Of TREC's lines the words, of BEIR's those between tabs: ids may hold spaces."""
    words = text.split()
    if len(words) == 4 and words[1] in ("0", "Q0"):
        return words
    columns = [each.strip() for each in text.strip().split("\t")]
    return columns if len(columns) in (3, 4) and all(columns) else words
