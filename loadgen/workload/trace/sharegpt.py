"""Conversations in ShareGPT's form: a JSON array, or JSON lines, of turns with their texts."""

import json
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TextIO

from loadgen.workload.trace.entry import TraceEntry
from loadgen.workload.trace.place import Place, sendable

READ_CHARACTERS = 1 << 20
MAX_ITEM_CHARACTERS = 1 << 28
ASKING, ANSWERING = ("human", "user"), ("gpt", "assistant", "chatgpt", "bing", "bard")
_SKIPPED = re.compile(r"[\s,\[\]\ufeff]*")
UNFINISHED = 16
"""Characters of the longest literal or escape, which may lack its end where a piece ends."""
TURN_BREAK = "\n\n"
MEND = "write objects with `conversations`, a list of turns with `from` and `value`"


def read_sharegpt(path: Path, file: TextIO) -> Iterator[TraceEntry]:
    """An entry for each question that has a reply, behind all that was said before it.

    The replies of the trace, not those of the engine, are the history of later turns. Lengths are
    in characters / 4 until somebody measures the texts. Raises UsageError.
    """
    for number, item in enumerate(_items(path, file), 1):
        place = Place(path, number, "conversation")
        session_id = sendable(str(item.get("id") or f"conversation-{number}"))
        yield from _turns(place, item, session_id)


def _turns(place: Place, item: Mapping[str, Any], session_id: str) -> Iterator[TraceEntry]:
    history = ""
    for asked, replied in _exchanges(place, item):
        prompt = history + asked
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


def _exchanges(place: Place, item: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """What was asked and what was replied, turn by turn; texts of others are asked, too."""
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


def _items(path: Path, file: TextIO) -> Iterator[dict[str, Any]]:
    """The objects of the file one by one; never more than a piece and one of them in memory."""
    decoder = json.JSONDecoder()
    buffer, start, count = "", 0, 0
    while True:
        start = _SKIPPED.match(buffer, start).end()  # type: ignore[union-attr]
        try:
            item, start = decoder.raw_decode(buffer, start)
        except RecursionError:
            raise Place(path, count + 1, "conversation").wrong("nested too deep", MEND) from None
        except ValueError as error:
            rest = buffer[start:]
            # More each time: an item that is decoded anew with every piece stays linear.
            more = max(READ_CHARACTERS, len(rest) // 2)
            piece = "" if _is_broken(error) else file.read(more)
            if not piece and not rest:
                return
            if not piece or len(rest) > MAX_ITEM_CHARACTERS:
                raise Place(path, count + 1, "conversation").wrong("not JSON", MEND) from None
            buffer, start = rest + piece, 0
            continue
        count += 1
        if not isinstance(item, dict):
            raise Place(path, count, "conversation").wrong("not an object", MEND)
        yield item


def _is_broken(error: ValueError) -> bool:
    """Whether no more text could make JSON of it: all but a string fails where the text ends."""
    if not isinstance(error, json.JSONDecodeError):
        return True
    is_string = error.msg.startswith("Unterminated string")
    return not is_string and error.pos < len(error.doc) - UNFINISHED
