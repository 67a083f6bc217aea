"""The table: a row for each policy, made of its repeats, and the files that keep both."""

import csv
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from errno import EDQUOT, ENOSPC
from math import sqrt
from pathlib import Path
from statistics import fmean, geometric_mean
from typing import Any, TextIO

from kv_policies.measuring import PolicyMeasurement
from kv_policies.policy import PolicyError

Z95 = 1.959964
"""Of the normal distribution, two-sided."""


@dataclass(frozen=True, slots=True)
class RepeatSpread:
    """A mean with the lowest and the highest of the repeats: of perplexity the geometric one, which
    is that of all tokens together; of recall, the share of all facts with Wilson's interval of
    95 %."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class PolicyRow:
    """Units are those of `PolicyMeasurement`; None is what was not measured or means nothing.

    `kv_share` is of the full cache's bytes, None where that was not measured."""

    policy: str
    repeats: int
    placements: int
    perplexity_prefill: RepeatSpread | None
    perplexity_decode: RepeatSpread | None
    kl_nats: RepeatSpread | None
    top1_agreement: RepeatSpread | None
    recall: RepeatSpread | None
    kv_bytes: RepeatSpread | None
    kv_share: RepeatSpread | None
    slow_kv_bytes: RepeatSpread | None
    moved_bytes_per_token: RepeatSpread | None
    miss_ms: RepeatSpread | None
    disk_kv_bytes: RepeatSpread | None
    disk_bytes_per_token: RepeatSpread | None
    disk_miss_ms: RepeatSpread | None
    peak_memory_bytes: RepeatSpread | None
    ttft_ms: RepeatSpread | None
    prefill_ms_per_token: RepeatSpread | None
    decode_ms_per_token: RepeatSpread | None

    @classmethod
    def of(
        cls, policy: str, made: Sequence[PolicyMeasurement], full_bytes: float | None
    ) -> "PolicyRow":
        """From its repeats, of which there is one at least."""
        names = {each.name for each in fields(PolicyMeasurement)} - {"recalled", "asked"}
        spreads = {
            name: _spread([getattr(each, name) for each in made], name.startswith("perplexity"))
            for name in names
        }
        asked = sum(each.asked or 0 for each in made)
        share = None
        if full_bytes:
            share = _spread([each.kv_bytes / full_bytes for each in made])
        recall = wilson(sum(each.recalled or 0 for each in made), asked) if asked else None
        return cls(policy, len(made), asked, recall=recall, kv_share=share, **spreads)

    def cells(self) -> dict[str, str | int | float | None]:
        """For a CSV: of each figure `NAME`, `NAME_low` and `NAME_high`."""
        found: dict[str, str | int | float | None] = {}
        for name in (each.name for each in fields(self)):
            value = getattr(self, name)
            if name in ("policy", "repeats", "placements"):
                found[name] = value
                continue
            for end, suffix in (("mean", ""), ("low", "_low"), ("high", "_high")):
                found[name + suffix] = None if value is None else getattr(value, end)
        return found


def _spread(values: Sequence[float | None], is_geometric: bool = False) -> RepeatSpread | None:
    known = [each for each in values if each is not None]
    if len(known) < len(values):
        return None
    mean = geometric_mean(known) if is_geometric else fmean(known)
    return RepeatSpread(mean, min(known), max(known))


def wilson(hits: int, asked: int) -> RepeatSpread:
    """A share with the interval of 95 % that holds at 0 and 1, too (Wilson, 1927)."""
    share, more = hits / asked, Z95**2 / asked
    middle = (share + more / 2) / (1 + more)
    half = Z95 * sqrt(share * (1 - share) / asked + more / (4 * asked)) / (1 + more)
    return RepeatSpread(
        share, max(0.0, min(share, middle - half)), min(1.0, max(share, middle + half))
    )


def write_csv(rows: Iterable[PolicyRow], path: Path) -> None:
    """All rows; readers never see half a file. Raises PolicyError."""
    cells = [row.cells() for row in rows]
    with _written(path) as file:
        writer = csv.DictWriter(file, [*cells[0]] if cells else [])
        writer.writeheader()
        writer.writerows(cells)


def write_object(path: Path, value: Mapping[str, Any]) -> None:
    """JSON; readers never see half a file. Raises PolicyError."""
    text = json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False)
    with _written(path) as file:
        file.write(f"{text}\n")


@contextmanager
def _written(path: Path) -> Iterator[TextIO]:
    """A file that takes the path's place once all of it is on the disk."""
    temporary = path.with_suffix(f"{path.suffix}.tmp")
    try:
        with temporary.open("w", newline="", encoding="utf-8") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except OSError as error:
        is_full = error.errno in (ENOSPC, EDQUOT)
        advice = ": make room, and the same command goes on" if is_full else ""
        raise PolicyError(f"{path} cannot be written ({error.strerror}){advice}") from error


def read_object(path: Path) -> dict[str, Any]:
    """The JSON object of a file, an empty one where there is none. Raises PolicyError."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        raise PolicyError(
            f"{path} cannot be read ({error}): delete it or name another --out"
        ) from None
    if not isinstance(value, dict):
        raise PolicyError(f"{path} holds no JSON object: delete it or name another --out")
    return value
