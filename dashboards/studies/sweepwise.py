"""A row of contrasts, one for each value of a setting: as a sentence and as a table."""

from collections.abc import Iterator
from dataclasses import dataclass

from dashboards.report.wording import listed
from dashboards.studies.contrast import Contrast
from dashboards.studies.table import Table
from dashboards.studies.wording import factor, unit_of

_UNKNOWN = {
    "too little data": "too little data",
    "no interval": "figures without an interval",
    "not measured": "no usable run",
}


@dataclass(frozen=True, slots=True)
class Contrasts:
    """`found` are values of the setting, as text, each with its contrast; `unit` is what a sentence
    calls them, as `tokens of cache`."""

    unit: str
    found: tuple[tuple[str, Contrast], ...]

    def said(
        self,
        when: str,
        what: str,
        better: str,
        worse: str,
        nothing: str = "a difference in time to first token",
    ) -> str:
        """`WHEN, WHAT comes 2.4 and 1.8 times as fast with A and B …; there is no evidence of …
        with C …`, ending in a full stop. `better` and `worse` have a `{}` for factors from 1 on.
        """
        surely = [self._factors("better", better), self._factors("worse", worse)]
        shown = "; it ".join(part for part in surely if part)
        unseen = self._values("no evidence")
        parts = [f"{when}, {what} {shown}" if shown else ""]
        parts.append(f"there is no evidence of {nothing} with {unseen}" if unseen else "")
        for verdict, said in _UNKNOWN.items():
            values = self._values(verdict)
            parts.append(f"{said} with {values}" if values else "")
        text = "; ".join(part for part in parts if part)
        return f"{text}." if shown else f"{when}: {text}."

    @property
    def table(self) -> Table:
        """A row for each value."""
        sides = next(((each.base, each.new) for _, each in self.found), ("", ""))
        header = (self.unit, *sides, "change", "95 % interval", "")
        return Table(header, tuple((value, *each.columns) for value, each in self.found))

    def _of(self, verdict: str) -> Iterator[tuple[str, Contrast]]:
        return ((value, each) for value, each in self.found if each.verdict == verdict)

    def _values(self, verdict: str) -> str:
        values = [value for value, _ in self._of(verdict)]
        return f"{listed(values)} {unit_of(self.unit, values)}" if values else ""

    def _factors(self, verdict: str, said: str) -> str:
        ratios = [each.factor or 1.0 for _, each in self._of(verdict)]
        if not ratios:
            return ""
        shown = listed([factor(max(ratio, 1 / ratio)) for ratio in ratios])
        return f"{said.format(shown)} with {self._values(verdict)}"
