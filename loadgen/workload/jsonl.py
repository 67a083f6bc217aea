"""Text files and JSON Lines of a corpus, read so that an error names file, line and field."""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from loadgen.errors import CorpusError

# NUL and its like, and halves of surrogate pairs: they break CSV files, terminals and UTF-8.
_UNSAFE = re.compile(r"[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")
_BLANK_LINES = re.compile(r"\n\s*\n")


def clean(text: str) -> str:
    """The text without unsafe characters, and with one blank line between paragraphs."""
    text = _UNSAFE.sub(" ", text.replace("\r\n", "\n").replace("\r", "\n"))
    return "\n\n".join(part.rstrip() for part in _BLANK_LINES.split(text.strip()))


def read_text(path: Path) -> str:
    """The file's text, decoded as UTF-8. Raises CorpusError."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise CorpusError(f"cannot read {path}: {error.strerror}") from error
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise CorpusError(f"{path}:{line}: not UTF-8: convert the file to UTF-8") from error


def check_id(value: str, where: str) -> str:
    """The id, where it is fit for a CSV cell. Raises CorpusError."""
    if not value or value != value.strip() or not value.isprintable():
        raise CorpusError(f"{where} is no usable id: {value!a}: use printable characters")
    return value


@dataclass(frozen=True, slots=True)
class Row:
    """One JSON object and where it stands."""

    path: Path
    line: int
    fields: dict[str, object]

    def identifier(self, name: str) -> str:
        """The field as an id. Raises CorpusError."""
        return check_id(self._string(name), f"{self.at}: field {name!r}")

    def text(self, name: str, may_be_empty: bool = False) -> str:
        """The field as clean text. Raises CorpusError."""
        value = clean(self._string(name))
        if not value and not may_be_empty:
            raise CorpusError(f"{self.at}: field {name!r} is empty: fill it or drop the line")
        return value

    @property
    def at(self) -> str:
        """`file:line`, as an error begins."""
        return f"{self.path}:{self.line}"

    def _string(self, name: str) -> str:
        value = self.fields.get(name)
        if isinstance(value, str):
            return value
        problem = "is missing" if name not in self.fields else "is not a string"
        raise CorpusError(f"{self.at}: field {name!r} {problem}: give it as a string")


def read_rows(path: Path) -> Iterator[Row]:
    """The file's JSON objects, one a line; blank lines are skipped. Raises CorpusError."""
    # Not splitlines(): JSON strings may hold U+2028 and other characters it would split at.
    for line, text in enumerate(read_text(path).split("\n"), start=1):
        if text.strip():
            yield Row(path, line, _parse(text, f"{path}:{line}"))


def _parse(text: str, at: str) -> dict[str, object]:
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise CorpusError(f"{at}: not JSON: write one JSON object a line") from error
    if not isinstance(value, dict):
        raise CorpusError(f"{at}: not a JSON object: write one JSON object a line")
    return value
