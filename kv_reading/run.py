"""The directory of a recording."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kv_reading.errors import KvError

KV_JSON, CHUNKS, LIBRARY_JSONL = "kv.json", "chunks", "library.jsonl"


@dataclass(frozen=True, slots=True)
class RunFacts:
    """`model` is the folder that was served; a chunk has `chunk_tokens`."""

    model: str
    random_weights: bool
    chunk_tokens: int
    seed: int
    versions: Mapping[str, Any] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """As kv.json keeps it."""
        return asdict(self)


@dataclass(frozen=True, slots=True)
class LibraryDocument:
    """`text` is the document less the passages that stand for questions, `whole` all of it."""

    doc_id: str
    title: str
    text: str
    whole: str


def read_facts(folder: Path) -> RunFacts:
    """Raises KvError for a directory that holds no complete recording."""
    path = folder / KV_JSON
    try:
        return RunFacts(**json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise KvError(
            f"{folder} holds no complete recording: make one by `kvswarm kv record`"
        ) from error
    except (ValueError, TypeError) as error:
        raise KvError(f"{path} is damaged ({error}): record again") from error


def read_library(folder: Path) -> list[LibraryDocument]:
    """The documents of a recording. Raises KvError."""
    path = folder / LIBRARY_JSONL
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
        return [LibraryDocument(**json.loads(line)) for line in lines if line]
    except (OSError, ValueError, TypeError) as error:
        raise KvError(f"cannot read {path} ({error}): record again") from error
