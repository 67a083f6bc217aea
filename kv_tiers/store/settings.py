"""Settings of a tier, and the file by which some of them change while somebody serves by them."""

import asyncio
import json
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from types import NoneType
from typing import Any

from kv_tiers.store.evictions import EVICTIONS
from kv_tiers.store.placement import WHOLE_CONTEXT
from kv_tiers.store.placements import PLACEMENTS

POLL_S = 0.25
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TierSettings:
    """Of one user of the store; all that share chunks have the same `copies`, `placement` and
    `run_chunks`. Raises ValueError."""

    nodes: tuple[str, ...]
    copies: int = 1
    placement: str = "rendezvous"
    run_chunks: int = WHOLE_CONTEXT
    codec: str = "raw"
    level: int = 1
    profile: str | None = None
    node_deadline_s: float = 1.0
    """For one call of one node: longer than a chunk takes over the link."""
    load_deadline_s: float = 5.0
    """After which a load ends with what has come."""
    at_once: int = 4
    """Chunks of one load, and of all that is stored."""
    near_bytes: int = 0
    """Of memory of our own before the nodes, which get what it gives up."""
    eviction: str = "lru"
    central: tuple[str, ...] = ()
    """Nodes of a store for all regions; `nodes` are then those of this region, and asked first."""
    central_deadline_s: float = 5.0
    force_latest: bool = False
    """Ask the centre first what it has; no bytes of it."""
    exchange_s: float = 0.0
    """From exchange to exchange with the centre; 0: rounds of the centre tell this region."""
    recompute_chunks_per_s: float = 0.0
    """What the engine computes; where loads from afar are slower, lookups find what is near alone.
    0: not asked."""

    def __post_init__(self) -> None:
        for kinds, names in _KINDS.items():
            for name in names:
                value = getattr(self, name)
                if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
                    raise ValueError(f"{name} {value!r} has the wrong type")
        if self.placement not in PLACEMENTS:
            known = ", ".join(PLACEMENTS)
            raise ValueError(f"unknown placement {self.placement!r}: choose one of {known}")
        if self.eviction not in EVICTIONS:
            known = ", ".join(EVICTIONS)
            raise ValueError(f"unknown eviction {self.eviction!r}: choose one of {known}")
        for name in ("near_bytes", "exchange_s", "recompute_chunks_per_s", "run_chunks"):
            if not 0 <= getattr(self, name) <= sys.float_info.max:
                raise ValueError(f"{name} {getattr(self, name)!r} must be 0 or more and finite")
        for name in ("node_deadline_s", "load_deadline_s", "central_deadline_s", "at_once"):
            if not 0 < getattr(self, name) <= sys.float_info.max:
                raise ValueError(f"{name} {getattr(self, name)!r} must be more than 0 and finite")
        for each in fields(self):
            owner = _OWNERS.get(each.name)
            if owner and not getattr(self, owner) and getattr(self, each.name) != each.default:
                raise ValueError(f"{each.name} means nothing without {owner}: leave it out")

    @classmethod
    def of(cls, given: Mapping[str, Any]) -> "TierSettings":
        """From a JSON object. Raises ValueError."""
        known = [each.name for each in fields(cls)]
        if unknown := sorted(given.keys() - set(known)):
            raise ValueError(f"unknown setting {unknown[0]!r}, known are {', '.join(known)}")
        told: dict[str, Any] = {"nodes": None, "central": (), **given}
        for name in ("nodes", "central"):
            nodes = told[name]
            if not isinstance(nodes, list | tuple) or not all(isinstance(n, str) for n in nodes):
                raise ValueError(f"{name} {nodes!r} must be a list of host:port")
            told[name] = tuple(nodes)
        try:
            return cls(**told)
        except TypeError as error:
            raise ValueError(f"a setting has the wrong type: {error}") from error


_OWNERS: Mapping[str, str] = {
    "eviction": "near_bytes",
    **dict.fromkeys(("central_deadline_s", "force_latest", "exchange_s"), "central"),
}
"""Settings of what is only there with another one."""
_KINDS: Mapping[tuple[type, ...], Sequence[str]] = {
    (str,): ("placement", "codec", "eviction"),
    (str, NoneType): ("profile",),
    (bool,): ("force_latest",),
    (int,): ("copies", "run_chunks", "level", "at_once"),
    (int, float): (
        *("node_deadline_s", "load_deadline_s", "central_deadline_s", "exchange_s"),
        *("near_bytes", "recompute_chunks_per_s"),
    ),
}


async def follow(path: Path, change: Callable[[Mapping[str, Any]], None]) -> None:
    """Until cancelled. A file that cannot be read, or says what cannot be, changes nothing, and is
    told once."""
    seen: str | None = None
    told = ""
    while True:
        try:
            text = await asyncio.to_thread(path.read_text, encoding="utf-8")
            if text != seen:
                seen = text
                change(_json_object(text))
            told = ""
        except (OSError, ValueError, RecursionError) as error:
            if told != str(error):
                told = str(error)
                _LOG.warning("settings in %s are not taken: %s", path, told)
        await asyncio.sleep(POLL_S)


def _json_object(text: str) -> dict[str, Any]:
    found = json.loads(text)
    if not isinstance(found, dict):
        raise ValueError("it is no JSON object")
    return found
