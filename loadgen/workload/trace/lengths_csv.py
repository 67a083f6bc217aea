"""Traces that tell times and lengths alone: Azure's and BurstGPT's CSVs.

Azure's LLM inference traces (https://github.com/Azure/AzurePublicDataset) have a date in
`TIMESTAMP`, BurstGPT (https://github.com/HPMLL/BurstGPT) seconds in `Timestamp` and, for requests
that failed, replies of 0 tokens, which are left out.
"""

import csv
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from loadgen.workload.trace.entry import TraceEntry
from loadgen.workload.trace.place import Place


@dataclass(frozen=True, slots=True)
class Columns:
    """What a format calls its columns; `dated` times are dates, others seconds."""

    at: str
    input: str
    output: str
    dated: bool
    session: str = "Session ID"


AZURE = Columns("TIMESTAMP", "ContextTokens", "GeneratedTokens", dated=True)
BURSTGPT = Columns("Timestamp", "Request tokens", "Response tokens", dated=False)


def columns_of(header: str) -> Columns | None:
    """The format of a CSV by its first line; None for an unknown one."""
    names = set(next(csv.reader([header]), []))
    for columns in (AZURE, BURSTGPT):
        if {columns.at, columns.input, columns.output} <= names:
            return columns
    return None


def read_lengths(path: Path, lines: Iterable[str], columns: Columns) -> Iterator[TraceEntry]:
    """An entry for each row with a reply. Raises UsageError, at the line concerned."""
    rows = csv.DictReader(lines)
    try:
        for row in rows:
            entry = _entry(Place(path, rows.line_num), row, columns)
            if entry is not None:
                yield entry
    except csv.Error as error:
        raise Place(path, rows.line_num).wrong(str(error), "write one request a line") from None


def _entry(place: Place, row: Mapping[str, str], columns: Columns) -> TraceEntry | None:
    asked = place.tokens(row, columns.input, least=0)
    replied = place.tokens(row, columns.output, least=0)
    if not asked or not replied:
        return None
    at_s = _date_s(place, row, columns.at) if columns.dated else place.seconds(row, columns.at)
    return TraceEntry(at_s, asked, replied, session_id=row.get(columns.session) or "")


def _date_s(place: Place, row: Mapping[str, str], name: str) -> float:
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
