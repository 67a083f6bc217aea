"""Stdout, whose errors are one line for the user, in all of `kvswarm`."""

import os
import re
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, nullcontext, redirect_stdout, suppress
from textwrap import fill
from typing import Any, TextIO, cast

from rag_store.documents import printable

SHORTENED = 200
LONGEST = 800
LONG_WORD = re.compile(rf"\S{{{2 * SHORTENED},}}")
"""No name that a user has typed, and few paths."""


class Output:
    """A stream that raises `fails` where it cannot be written, and from then on always.

    BrokenPipeError stays what it is: then nobody wants to read on. A character that the stream's
    encoding lacks is written as an escape.
    """

    def __init__(self, stream: TextIO, fails: type[Exception]) -> None:
        self._stream = stream
        self._fails = fails
        self._error: Exception | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def write(self, text: str) -> int:
        """As of any stream. Raises `fails` and BrokenPipeError."""
        with self._told():
            try:
                return self._stream.write(text)
            except UnicodeEncodeError:
                encoding = self._stream.encoding
                escaped = text.encode(encoding, "backslashreplace").decode(encoding)
                return self._stream.write(escaped)

    def flush(self) -> None:
        """As of any stream. Raises `fails` and BrokenPipeError."""
        with self._told():
            self._stream.flush()

    def finish(self) -> None:
        """Flush; what cannot be written is dropped. Raises `fails` and BrokenPipeError."""
        try:
            self.flush()
        except (self._fails, BrokenPipeError):
            drop_output(self._stream)
            raise

    @contextmanager
    def _told(self) -> Iterator[None]:
        if self._error:  # what comes now would follow a gap
            raise self._error
        try:
            yield
        except BrokenPipeError:
            raise
        except OSError as error:
            reason = f"cannot write to stdout: {error.strerror}"
            self._error = self._fails(f"{reason}: send the output elsewhere")
            raise self._error from error


@contextmanager
def told_output(fails: type[Exception]) -> Iterator[None]:
    """What is printed inside is written when it is left. Raises `fails` and BrokenPipeError.

    What else ends it, an error or an exit code other than 0, is raised instead of them.
    """
    if sys.stdout is None:  # closed by whoever started us, who wants to read nothing
        yield
        return
    output = Output(sys.stdout, fails)
    try:
        with redirect_stdout(cast(TextIO, output)):
            yield
    except BaseException as error:
        is_success = isinstance(error, SystemExit) and not error.code  # as of `--help`
        with nullcontext() if is_success else suppress(fails, BrokenPipeError):
            output.finish()
        raise
    output.finish()


def width_of(stream: Any) -> int | None:
    """Columns of the terminal behind a stream, as `COLUMNS` says or as it is; None for a file or
    a pipe, whose readers look for whole lines."""
    if stream is None or not stream.isatty():
        return None
    told = os.environ.get("COLUMNS", "")
    if told.isdecimal() and int(told):
        return int(told)
    with suppress(AttributeError, OSError, ValueError):
        return os.get_terminal_size(stream.fileno()).columns or None
    return None


def fitted(text: str, stream: Any) -> str:
    """The text with lines too wide for a terminal broken between words, which stay whole."""
    width = width_of(stream)
    if width is None:
        return text
    return "\n".join(_broken(line, max(width, 20)) for line in text.split("\n"))


def aligned(rows: Iterable[Sequence[str]], figures: bool = False) -> Iterator[str]:
    """Cells below each other, two blanks between them; `figures` behind the first to the right."""
    lines = list(rows)
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for line in lines:
        cells = [
            cell.rjust(width) if figures and at else cell.ljust(width)
            for at, (cell, width) in enumerate(zip(line, widths, strict=True))
        ]
        yield "  ".join(cells).rstrip()


def complaint(error: object, program: str = "kvswarm") -> str:
    """What stderr gets of what a user can mend: one line, whatever was in the words it repeats."""
    said = LONG_WORD.sub(lambda word: f"{word[0][:SHORTENED]}…", printable(str(error)))
    said = said if len(said) <= LONGEST else f"{said[:LONGEST]}…"
    return fitted(f"{program}: {said}", sys.stderr)


def _broken(line: str, width: int) -> str:
    if len(line) <= width:
        return line
    indent = " " * (len(line) - len(line.lstrip()))
    return fill(
        line.strip(),
        width,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def drop_output(stream: TextIO) -> None:
    """What is left in the stream goes nowhere, or the interpreter fails over it at its end."""
    with suppress(OSError):  # no file is behind it
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
