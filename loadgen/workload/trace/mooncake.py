"""Traces in Mooncake's form: JSON lines with times, lengths and the ids of shared blocks.

The form of the traces that come with Mooncake (https://github.com/kvcache-ai/Mooncake): `timestamp`
in ms, `input_length` and `output_length` in tokens, `hash_ids`, one for each block of 512 tokens.
"""

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from loadgen.workload.trace.entry import TraceEntry
from loadgen.workload.trace.place import Place, sendable

BLOCK_TOKENS = 512


def read_mooncake(path: Path, lines: Iterable[str]) -> Iterator[TraceEntry]:
    """An entry for each line that is not empty. Raises UsageError, at the line concerned."""
    for number, line in enumerate(lines, 1):
        if line.strip():
            yield _entry(Place(path, number), line)


def _entry(place: Place, line: str) -> TraceEntry:
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


def _object(place: Place, line: str) -> dict[str, Any]:
    try:
        fields = json.loads(line)
    except (ValueError, RecursionError):
        fields = None
    if not isinstance(fields, dict):
        raise place.wrong("not a JSON object", "write one object a line")
    return fields


def _block_ids(place: Place, fields: dict[str, Any], tokens: int) -> tuple[int, ...]:
    """As many as the prompt has blocks; a trace may name fewer, and the rest is its own."""
    given = fields.get("hash_ids") or []
    whole = isinstance(given, list) and all(
        isinstance(each, int) and not isinstance(each, bool) for each in given
    )
    if not whole:
        raise place.wrong(f"hash_ids is {str(given)[:40]!r}", "write a list of whole numbers")
    if len(given) > -(-tokens // BLOCK_TOKENS):
        raise place.wrong(
            f"hash_ids names {len(given)} blocks of {BLOCK_TOKENS} tokens, but input_length"
            f" is {tokens}",
            "name no more blocks than the prompt has",
        )
    return tuple(given)
