"""Rows of what was measured, one figure each, and how they are asked for."""

import csv
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from statistics import fmean
from typing import Self


@dataclass(frozen=True, slots=True)
class NetworkFigure:
    """`measure` of a `subject` (a placement, a scheduler, a policy, a codec) in a `setting`; the
    unit is in the measure's name, shares are of 0 to 1."""

    question: str
    subject: str
    setting: str
    measure: str
    value: float
    repeat: int = 0


@dataclass(frozen=True, slots=True)
class NetworkFigures:
    """Rows of any questions, in the order in which they were measured."""

    rows: tuple[NetworkFigure, ...]

    @classmethod
    def read(cls, path: Path) -> Self:
        """What `write` wrote. Raises OSError, KeyError, ValueError."""
        with path.open(newline="", encoding="utf-8") as file:
            return cls(tuple(_row(each) for each in csv.DictReader(file)))

    def write(self, path: Path) -> None:
        """As a CSV with a line for each figure."""
        with path.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, [each.name for each in fields(NetworkFigure)])
            writer.writeheader()
            writer.writerows({**asdict(row), "value": f"{row.value:.9g}"} for row in self.rows)

    def of(self, question: str) -> "NetworkFigures":
        """Of one question alone."""
        return NetworkFigures(tuple(row for row in self.rows if row.question == question))

    def subjects(self) -> list[str]:
        """In the order of their first row."""
        return [*dict.fromkeys(row.subject for row in self.rows)]

    def settings(self) -> list[str]:
        """In the order of their first row."""
        return [*dict.fromkeys(row.setting for row in self.rows)]

    def values(self, subject: str, setting: str, measure: str) -> list[float]:
        """Of all repeats."""
        wanted = subject, setting, measure
        return [r.value for r in self.rows if (r.subject, r.setting, r.measure) == wanted]

    def value(self, subject: str, setting: str, measure: str) -> float | None:
        """The mean over repeats; None where it was not measured."""
        found = self.values(subject, setting, measure)
        return fmean(found) if found else None

    def each(self, settings: Iterable[str], subject: str, measure: str) -> Sequence[float]:
        """Of several settings, those that were measured."""
        found = (self.value(subject, setting, measure) for setting in settings)
        return [value for value in found if value is not None]


def _row(found: dict[str, str]) -> NetworkFigure:
    texts = {name: found[name] for name in ("question", "subject", "setting", "measure")}
    return NetworkFigure(**texts, value=float(found["value"]), repeat=int(found["repeat"]))
