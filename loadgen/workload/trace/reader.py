"""Reads a trace, whichever form it has.

- Mooncake (https://github.com/kvcache-ai/Mooncake): JSON lines with `timestamp` in ms,
  `input_length` and `output_length` in tokens, `hash_ids`, one for each block of 512 tokens.
- Azure's LLM inference traces (https://github.com/Azure/AzurePublicDataset): a CSV with a date in
  `TIMESTAMP` and lengths.
- BurstGPT (https://github.com/HPMLL/BurstGPT): a CSV with seconds in `Timestamp` and lengths;
  requests that failed have replies of 0 tokens and are left out.
- ShareGPT: a JSON array, or JSON lines, of conversations, which are turns with their texts.
"""

import csv
import json
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TextIO

from loadgen.errors import UsageError
from loadgen.scratch import without_device

MAX_TOKENS = 10_000_000
BLOCK_TOKENS = 512
MIN_ID, MAX_ID = -(1 << 63), (1 << 64) - 1
"""Of a block, so that workers can be told of it."""
READ_CHARACTERS = 1 << 20
MAX_ITEM_CHARACTERS = 1 << 28
ASKING, ANSWERING = ("human", "user"), ("gpt", "assistant", "chatgpt", "bing", "bard")
_SKIPPED = re.compile(r"[\s,\[\]\ufeff]*")
UNFINISHED = 16
"""Characters of the longest literal or escape, which may lack its end where a piece ends."""
TURN_BREAK = "\n\n"
MEND = "write objects with `conversations`, a list of turns with `from` and `value`"
HEAD_CHARACTERS = 100_000
"""Of the first line, by which the form is seen; all conversations may stand in that line."""
FORMS = (
    "JSON lines of Mooncake (timestamp, input_length, output_length, hash_ids), a CSV of Azure"
    " (TIMESTAMP, ContextTokens, GeneratedTokens) or BurstGPT (Timestamp, Request tokens,"
    " Response tokens), or conversations of ShareGPT"
)


@dataclass(frozen=True, slots=True)
class TraceEntry:
    """When a request came and how long it was.

    `at_s` counts from the first entry; None where the trace has no times. `block_ids` name the
    blocks of `block_tokens` tokens that the prompt is made of, the last of them perhaps cut off:
    equal leading ids are a shared prefix. Entries of one `session_id` follow each other. `prompt`
    and `reply` are the texts where the trace has them, and then the lengths are estimates.
    """

    at_s: float | None
    input_tokens: int
    output_tokens: int
    block_ids: tuple[int, ...] = ()
    block_tokens: int = 0
    session_id: str = ""
    prompt: str = ""
    reply: str = ""


@dataclass(slots=True)
class TraceChanges:
    """What is otherwise in a replay than in its trace, counted while it is read.

    `empty` entries without a prompt or a reply are left out; times that go `backwards`, by
    `most_back_s` at most, become those of the entry before.
    """

    empty: int = 0
    backwards: int = 0
    most_back_s: float = 0.0

    def came_late(self, back_s: float) -> None:
        """An entry is so much earlier than one before it."""
        self.backwards += 1
        self.most_back_s = max(self.most_back_s, back_s)


def sendable(text: str) -> str:
    """The text with question marks for lone surrogates, which JSON allows and UTF-8 does not."""
    return text.encode(errors="replace").decode()


@dataclass(frozen=True, slots=True)
class TracePlace:
    """A line of a file, from 1, or for formats without lines the number of the entry."""

    path: Path
    number: int
    unit: str = "line"

    def wrong(self, what: str, mend: str) -> UsageError:
        """The error that names file, line and field."""
        return UsageError(f"{self.path}, {self.unit} {self.number}: {what}: {mend}")

    def tokens(self, fields: Mapping[str, Any], name: str, least: int = 1) -> int:
        """A number of tokens from `least` on. Raises UsageError."""
        value = self._number(fields, name)
        if not least <= value <= MAX_TOKENS or value != int(value):
            mend = f"write a whole number from {least} to {MAX_TOKENS}"
            raise self.wrong(f"{name} is {fields[name]!r}", mend)
        return int(value)

    def seconds(self, fields: Mapping[str, Any], name: str, per_second: float = 1.0) -> float:
        """A time from 0 on in seconds; the field has `per_second` units a second."""
        value = self._number(fields, name)
        if not 0 <= value < math.inf:
            raise self.wrong(f"{name} is {fields[name]!r}", "write a time from 0 on")
        return value / per_second

    def _number(self, fields: Mapping[str, Any], name: str) -> float:
        given = fields.get(name)
        try:
            if given is None or isinstance(given, bool):
                raise ValueError
            return float(given)
        except (ValueError, TypeError, OverflowError):
            said = f"{name} is missing" if given in (None, "") else f"{name} is {repr(given)[:40]}"
            raise self.wrong(said, "write a number") from None


def read_mooncake(path: Path, lines: Iterable[str]) -> Iterator[TraceEntry]:
    """An entry for each line that is not empty. Raises UsageError, at the line concerned."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield _line_entry(TracePlace(path, number), line)


def _line_entry(place: TracePlace, line: str) -> TraceEntry:
    fields = _object(place, line)
    tokens = place.tokens(fields, "input_length")
    session_id = fields.get("session_id")
    at_s = None
    if fields.get("timestamp") is not None:
        at_s = place.seconds(fields, "timestamp", per_second=1000)
    return TraceEntry(
        at_s=at_s,
        input_tokens=tokens,
        output_tokens=place.tokens(fields, "output_length"),
        block_ids=_block_ids(place, fields, tokens),
        block_tokens=BLOCK_TOKENS,
        session_id="" if session_id is None else sendable(str(session_id)),
    )


def _object(place: TracePlace, line: str) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise place.wrong("not a JSON object", "write one object a line")
    return fields


def _block_ids(place: TracePlace, fields: dict[str, Any], tokens: int) -> tuple[int, ...]:
    """As many as the prompt has blocks; a trace may name fewer, and the rest is its own."""
    given = fields.get("hash_ids") or []
    whole = isinstance(given, list) and all(
        isinstance(each, int) and not isinstance(each, bool) and MIN_ID <= each <= MAX_ID
        for each in given
    )
    if not whole:
        mend = "write a list of whole numbers of 64 bits"
        raise place.wrong(f"hash_ids is {repr(given)[:40]}", mend)
    if len(given) > -(-tokens // BLOCK_TOKENS):
        raise place.wrong(
            f"hash_ids names {len(given)} blocks of {BLOCK_TOKENS} tokens, but input_length"
            f" is {tokens}",
            "name no more blocks than the prompt has",
        )
    return tuple(given)


@dataclass(frozen=True, slots=True)
class LengthColumns:
    """What a format calls its columns; `dated` times are dates, others seconds."""

    at: str
    input: str
    output: str
    dated: bool
    session: str = "Session ID"


AZURE = LengthColumns("TIMESTAMP", "ContextTokens", "GeneratedTokens", dated=True)
BURSTGPT = LengthColumns("Timestamp", "Request tokens", "Response tokens", dated=False)


def columns_of(header: str) -> LengthColumns | None:
    """The format of a CSV by its first line; None for an unknown one."""
    names = set(next(csv.reader([header]), []))
    for columns in (AZURE, BURSTGPT):
        if {columns.at, columns.input, columns.output} <= names:
            return columns
    return None


def read_lengths(
    path: Path, lines: Iterable[str], columns: LengthColumns, changes: TraceChanges
) -> Iterator[TraceEntry]:
    """An entry for each row with a reply. Raises UsageError, at the line concerned."""
    rows = csv.DictReader(lines)
    try:
        rows.fieldnames = next((row for row in rows.reader if any(map(str.strip, row))), [])
        for row in rows:
            entry = _row_entry(TracePlace(path, rows.line_num), row, columns)
            if entry is None:
                changes.empty += 1
            else:
                yield entry
    except csv.Error as error:
        raise TracePlace(path, rows.line_num).wrong(
            str(error), "write one request a line"
        ) from None


def _row_entry(
    place: TracePlace, row: Mapping[str, str], columns: LengthColumns
) -> TraceEntry | None:
    asked = place.tokens(row, columns.input, least=0)
    replied = place.tokens(row, columns.output, least=0)
    if not asked or not replied:
        return None
    at_s = _date_s(place, row, columns.at) if columns.dated else place.seconds(row, columns.at)
    return TraceEntry(at_s, asked, replied, session_id=row.get(columns.session) or "")


def _date_s(place: TracePlace, row: Mapping[str, str], name: str) -> float:
    try:
        date = datetime.fromisoformat(_microseconds(row[name] or ""))
    except ValueError:
        raise place.wrong(
            f"{name} is {row[name]!r}", "write a date, as 2023-11-16 18:15:46.6805900"
        ) from None
    return (date if date.tzinfo else date.replace(tzinfo=UTC)).timestamp()


def _microseconds(text: str) -> str:
    """A date with at most six digits behind the point: Azure writes seven."""
    whole, point, rest = text.partition(".")
    digits = len(rest) - len(rest.lstrip("0123456789"))
    return whole + point + rest[: min(digits, 6)] + rest[digits:]


def read_sharegpt(path: Path, file: TextIO, changes: TraceChanges) -> Iterator[TraceEntry]:
    """An entry for each question that has a reply, behind all that was said before it.

    The replies of the trace, not those of the engine, are the history of later turns. Lengths are
    in characters / 4 until somebody measures the texts. Raises UsageError.
    """
    for number, item in enumerate(_items(path, file), 1):
        place = TracePlace(path, number, "conversation")
        session_id = sendable(str(item.get("id") or f"conversation-{number}"))
        yield from _turns(place, item, session_id, changes)


def _turns(
    place: TracePlace, item: Mapping[str, Any], session_id: str, changes: TraceChanges
) -> Iterator[TraceEntry]:
    history = ""
    for asked, replied in _exchanges(place, item):
        prompt = history + asked
        changes.empty += not (asked and replied)
        if asked and replied:
            yield TraceEntry(
                at_s=None,
                input_tokens=max(1, len(prompt) // 4),
                output_tokens=max(1, len(replied) // 4),
                session_id=session_id,
                prompt=prompt,
                reply=replied,
            )
        history = f"{prompt}{TURN_BREAK}{replied}{TURN_BREAK}"


def _exchanges(place: TracePlace, item: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What was asked and what was replied, nothing at the end; texts of others are asked, too."""
    turns = item.get("conversations")
    if not isinstance(turns, list):
        raise place.wrong("there is no list `conversations`", MEND)
    asked: list[str] = []
    for turn in turns:
        text = turn.get("value") if isinstance(turn, dict) else None
        if not isinstance(text, str):
            raise place.wrong(f"a turn is {str(turn)[:40]!r}", MEND)
        if turn.get("from") in ANSWERING:
            yield sendable(TURN_BREAK.join(asked)), sendable(text)
            asked = []
        else:
            asked.append(text)
    if asked:
        yield sendable(TURN_BREAK.join(asked)), ""


def _items(path: Path, file: TextIO) -> Iterator[dict[str, Any]]:
    """The objects of the file one by one; never more than a piece and one of them in memory."""
    decoder = json.JSONDecoder()
    buffer, start, count = "", 0, 0
    while True:
        start = _SKIPPED.match(buffer, start).end()  # type: ignore[union-attr]
        try:
            item, start = decoder.raw_decode(buffer, start)
        except RecursionError:
            raise TracePlace(path, count + 1, "conversation").wrong(
                "nested too deep", MEND
            ) from None
        except ValueError as error:
            rest = buffer[start:]
            # More each time: an item that is decoded anew with every piece stays linear.
            more = max(READ_CHARACTERS, len(rest) // 2)
            piece = "" if _is_broken(error) else file.read(more)
            if not piece and not rest:
                return
            if not piece or len(rest) > MAX_ITEM_CHARACTERS:
                raise TracePlace(path, count + 1, "conversation").wrong("not JSON", MEND) from None
            buffer, start = rest + piece, 0
            continue
        count += 1
        if not isinstance(item, dict):
            raise TracePlace(path, count, "conversation").wrong("not an object", MEND)
        yield item


def _is_broken(error: ValueError) -> bool:
    """Whether no more text could make JSON of it: all but a string fails where the text ends."""
    if not isinstance(error, json.JSONDecodeError):
        return True
    is_string = error.msg.startswith("Unterminated string")
    return not is_string and error.pos < len(error.doc) - UNFINISHED


def _head(file: TextIO) -> str:
    """The beginning of the first line that is not blank; empty where there is none."""
    while line := file.readline(HEAD_CHARACTERS):
        if head := line.lstrip():
            return head
    return ""


def read_trace(path: Path, changes: TraceChanges | None = None) -> Iterator[TraceEntry]:
    """The entries of a trace in their order, one line at a time; the form is seen by the content.

    What is left out is counted in `changes`. Raises UsageError, which names file, line and field.
    """
    try:
        if path.is_fifo():
            raise UsageError(f"{path} is a pipe, and a trace is read several times: give a file")
        with without_device(path).open(encoding="utf-8-sig", newline="") as file:
            first = _head(file)
            file.seek(0)
            if '"input_length"' in first:
                yield from read_mooncake(path, file)
            elif first.startswith(("[", "{")):
                yield from read_sharegpt(path, file, changes or TraceChanges())
            elif (columns := columns_of(first)) is not None:
                yield from read_lengths(path, file, columns, changes or TraceChanges())
            else:
                raise UsageError(f"{path} is no trace: give {FORMS}")
    except OSError as error:
        raise UsageError(f"{path} cannot be read ({error.strerror}): name a trace") from None
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not UTF-8 text: give {FORMS}") from None
