"""What the tab keeps of a request: from a record, or from the CSV text that a worker sends."""

import csv
import io
from collections.abc import Iterator
from dataclasses import dataclass

from loadgen.record import COLUMNS, RequestRecord
from loadgen.runs.csv_log import without_formula
from loadgen.swarm.sending.ledger import Row

MOST_ERROR_CHARACTERS = 160

_AT = {name: COLUMNS.index(name) for name in COLUMNS}


@dataclass(frozen=True, slots=True)
class Served:
    """One request that the host has answered or failed; `context_id` is the one in its prompt.

    `first_token_s` counts from the run's start and is None where no token came.
    """

    request_id: str
    context_id: str
    first_token_s: float | None
    end_s: float
    ttft_ms: float | None
    prompt_tokens: int | None
    cached_tokens: int | None
    outcome: str
    error: str

    @property
    def cached_share(self) -> float | None:
        """Cached over all prompt tokens, 0 to 1; None where the host does not tell."""
        if self.cached_tokens is None or not self.prompt_tokens:
            return None
        return self.cached_tokens / self.prompt_tokens


def served(rows: list[Row] | str) -> Iterator[Served]:
    """Those of the rows that ended by themselves, well or badly."""
    if isinstance(rows, str):
        for cells in csv.reader(io.StringIO(rows)):
            if cells[_AT["outcome"]] != "cancelled":
                yield _of_cells(cells)
        return
    for record, _ in rows:
        if record.outcome != "cancelled":
            yield _of_record(record)


def _of_record(record: RequestRecord) -> Served:
    retrieved = record.retrieval_ms is not None
    return Served(
        request_id=record.request_id,
        context_id=record.rag_context_id if retrieved else record.context_id,
        first_token_s=record.first_token_s,
        end_s=record.end_s,
        ttft_ms=record.ttft_ms,
        prompt_tokens=record.prompt_tokens,
        cached_tokens=record.cached_tokens,
        outcome=record.outcome,
        error=record.error[:MOST_ERROR_CHARACTERS],
    )


def _of_cells(cells: list[str]) -> Served:
    retrieved = bool(cells[_AT["retrieval_ms"]])
    return Served(
        request_id=cells[_AT["request_id"]],
        context_id=_text(cells[_AT["rag_context_id" if retrieved else "context_id"]]),
        first_token_s=_number(cells[_AT["first_token_s"]]),
        end_s=float(cells[_AT["end_s"]]),
        ttft_ms=_number(cells[_AT["ttft_ms"]]),
        prompt_tokens=_whole(cells[_AT["prompt_tokens"]]),
        cached_tokens=_whole(cells[_AT["cached_tokens"]]),
        outcome=cells[_AT["outcome"]],
        error=_text(cells[_AT["error"]])[:MOST_ERROR_CHARACTERS],
    )


def _text(cell: str) -> str:
    """What `without_formula` made the cell of."""
    is_guarded = cell.startswith("'") and without_formula(cell[1:]) == cell
    return cell[1:] if is_guarded else cell


def _number(cell: str) -> float | None:
    return float(cell) if cell else None


def _whole(cell: str) -> int | None:
    return int(cell) if cell else None
