"""A recorded prompt: what it is about, under which context it was asked, and its token ids."""

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path

from kv_reading.errors import KvError

REQUESTS_JSONL = "requests.jsonl"


@dataclass(frozen=True, slots=True)
class KvRequest:
    """`prompt` is what stands before the question: `own`, `alone`, `other` or `swapped`, for short
    questions `short-own` or `short-alone`. `topic` is the document the question is about,
    `context` the one its context was taken from, empty without one. The question begins with
    token `question_from` and goes to the end. `text` is the question."""

    prompt: str
    question_id: str
    topic: str
    context: str
    question_from: int
    token_ids: tuple[int, ...]
    text: str


def write_requests(folder: Path, requests: Iterable[KvRequest]) -> None:
    """One JSON object a line, in a folder that is there."""
    lines = (json.dumps(asdict(request), ensure_ascii=False) for request in requests)
    (folder / REQUESTS_JSONL).write_text("\n".join(lines) + "\n", encoding="utf-8")


def read_requests(folder: Path) -> list[KvRequest]:
    """Raises KvError for a folder without them, or with a damaged file."""
    path = folder / REQUESTS_JSONL
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return [_request(json.loads(line)) for line in lines if line]
    except OSError as error:
        raise KvError(
            f"{folder} holds no recorded prompts: make them by `kvswarm kv record`"
        ) from error
    except (ValueError, TypeError, KeyError) as error:
        raise KvError(f"{path} is damaged ({error}): record again") from error


def _request(found: dict[str, object]) -> KvRequest:
    ids = found.pop("token_ids")
    if not isinstance(ids, list) or not all(isinstance(each, int) for each in ids):
        raise ValueError("token_ids are no list of numbers")
    return KvRequest(**found, token_ids=tuple(ids))  # type: ignore[arg-type]
