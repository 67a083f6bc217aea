"""Files of a corpus, read so that every error is one line that names file, line and field."""

import json
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from rag_store.documents import MAX_TEXT_CHARS, clean
from rag_store.errors import CorpusError

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
        if not isinstance(value, list):
            raise CorpusError(f"{self.at}: field {name!r} is no list: give a list of strings")
        texts = tuple(each for each in value if isinstance(each, str))
        if len(texts) != len(value):
            raise CorpusError(f"{self.at}: field {name!r} holds more than strings: give only these")
        return texts

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
