"""A measured cell of a sweep, and sets of them."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import geometric_mean, median

from loadgen.stats.server_counters import LMCACHE
from loadgen.stats.server_counters import OFFLOAD as OFFLOADED

PLAIN, NO_REUSE = "vllm", "vllm-no-prefix-cache"
ORDERED, OFFLOAD = "vllm-context", "vllm-lmcache"
NATIVE, EIGHT_BITS = "vllm-offload", "vllm-fp8"
"""Names of targets as the catalog has them."""
COLD = "cold"
FIRST, P50, REQUESTS_PER_S = "ttft_mean_ms", "ttft_p50_ms", "requests_per_s"
CONTRASTED = frozenset((FIRST, REQUESTS_PER_S))
"""Figures that stand beside an interval, too, and there are geometric means over runs."""
COMPUTED = "computed_prompt_tokens"
SAME = 1.01
"""Up to so many times the tokens is as few: single blocks come and go with the moment."""
EACH_COMPUTED = "computed_tokens_a_request"
"""Not of the sweep: runs of a fixed time answer more or fewer requests."""
COUNTED = frozenset(
    (
        *("requests", "hit_rate", "external_hit_rate", "label_accuracy", "refused_share"),
        "context_affinity",
        *(COMPUTED, EACH_COMPUTED, "cached_prompt_tokens", "external_prompt_tokens"),
        *(*OFFLOADED, *LMCACHE),
    )
)
"""Figures that no late client changes."""


@dataclass(frozen=True, slots=True)
class StudyCell:
    """One run of a study, made for a part of it. `settings` are by option, as `kv_tokens`; `run` is
    its directory, `figures` are named as in the sweep's cells.csv. One with a `fault` decides
    nothing; where it is `late`, the fault is only that the client was: then its times mean nothing,
    and what was counted does. `cache_state` is what it began with, as in `run.json`."""

    part: str
    settings: Mapping[str, str]
    repeat: int
    run: Path
    figures: Mapping[str, float | None]
    fault: str = ""
    late: bool = False
    cache_state: str = COLD

    def figure(self, name: str) -> float | None:
        """A figure that may be used; None where there is none."""
        usable = not self.fault or (self.late and name in COUNTED)
        return self.figures.get(name) if usable else None


@dataclass(frozen=True, slots=True)
class Cells:
    """Cells in the order of the sweep."""

    all: tuple[StudyCell, ...]

    def __iter__(self) -> Iterator[StudyCell]:
        return iter(self.all)

    def __len__(self) -> int:
        return len(self.all)

    def of(self, *parts: str) -> "Cells":
        """Those made for these parts of the study."""
        return self._kept(lambda cell: cell.part in parts)

    def where(self, **settings: object) -> "Cells":
        """Those with these settings; a setting a cell does not have is empty text."""
        wanted = {name: str(value) for name, value in settings.items()}
        return self._kept(
            lambda cell: all(same(cell.settings.get(name, ""), to) for name, to in wanted.items())
        )

    @property
    def sound(self) -> "Cells":
        """Those whose times can decide something."""
        return self._kept(lambda cell: not cell.fault)

    @property
    def counted(self) -> "Cells":
        """Those whose counts can."""
        return self._kept(lambda cell: not cell.fault or cell.late)

    @property
    def runs_of_each(self) -> set[int]:
        """How many runs there are of a cell, sound or not: one number where it is the same of all.
        A cell of several parts counts once."""
        runs = {cell.run: frozenset(cell.settings.items()) for cell in self.all}
        return set(Counter(runs.values()).values())

    def values(self, setting: str) -> list[str]:
        """The different values of a setting, numbers by size, else as they come."""
        found = dict.fromkeys(cell.settings.get(setting, "") for cell in self.all)
        return sorted(found, key=float) if all(map(is_number, found)) else [*found]

    def by(self, setting: str) -> list[tuple[str, "Cells"]]:
        """Each value of a setting with its cells."""
        return [(value, self.where(**{setting: value})) for value in self.values(setting)]

    def middles(self, setting: str, name: str) -> dict[str, float]:
        """Of each value of a setting the middle of a figure, where there is any."""
        found = {value: cells.middle(name) for value, cells in self.by(setting)}
        return {value: middle for value, middle in found.items() if middle is not None}

    def figures(self, name: str) -> list[float]:
        """The figure of each cell that has it and may be used."""
        found = (cell.figure(name) for cell in self.all)
        return [value for value in found if value is not None]

    def by_repeat(self, name: str) -> dict[int, float]:
        """A figure by the number of the repeat, where there is any."""
        found = ((cell.repeat, cell.figure(name)) for cell in self.all)
        return {repeat: value for repeat, value in found if value is not None}

    def middle(self, name: str) -> float | None:
        """`middle_of` the cells, None without any."""
        found = self.figures(name)
        return middle_of(name, found) if found else None

    def _kept(self, keep: Callable[[StudyCell], bool]) -> "Cells":
        return Cells(tuple(filter(keep, self.all)))


def middle_of(name: str, values: Sequence[float]) -> float:
    """What texts, tables and pictures tell of a figure of several runs: one of `CONTRASTED` by its
    geometric mean, any other by its median."""
    if name not in CONTRASTED or min(values) <= 0:
        return median(values)
    return min(max(geometric_mean(values), min(values)), max(values))  # rounded, it may be outside


def same(one: str, other: str) -> bool:
    """Whether two settings mean the same: 1 is 1.0."""
    return one == other or (is_number(one) and is_number(other) and float(one) == float(other))


def is_number(text: str) -> bool:
    """Whether it is one as Python writes it."""
    try:
        float(text)
    except ValueError:
        return False
    return True
