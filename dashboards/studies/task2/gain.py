"""Context order against first come, first served, over the values of one setting."""

from collections.abc import Iterator
from dataclasses import dataclass

from dashboards.report.wording import listed
from dashboards.studies.answer import Answer, Picture
from dashboards.studies.cell import EACH_COMPUTED, Cells
from dashboards.studies.contrast import Contrast, contrast
from dashboards.studies.pictures import Line, against, line_of
from dashboards.studies.sweepwise import Contrasts
from dashboards.studies.table import FIRST, cell_table
from dashboards.studies.targets import ORDERED, PLAIN
from dashboards.studies.wording import count, unit_of

ORDERS = {PLAIN: "first come", ORDERED: "by context"}
SIDES = "first come, mean TTFT", "by context, mean TTFT"
COLUMNS = ("requests", FIRST, "makespan_p50_s", "requests_per_s", "hit_rate", EACH_COMPUTED)


@dataclass(frozen=True, slots=True)
class Gain:
    """A question of this form: `setting` is what changes, `unit` what its values are called, as in
    `with 12 contexts`; `axis` stands under the picture."""

    name: str
    question: str
    setting: str
    unit: str
    axis: str

    def answer(self, cells: Cells) -> Answer:
        """For each value the mean time to first token and the computed tokens of both orders."""
        contrasts = Contrasts(
            self.unit,
            tuple(
                (count(float(value)), _contrast(cells.where(**{self.setting: value})))
                for value in cells.values(self.setting)
            ),
        )
        said = contrasts.said(
            "Served by context",
            "the first token",
            "comes {} times as fast",
            "takes {} times as long",
        )
        picture = Picture(
            self.name,
            against(list(self._panels(cells)), self.axis),
            f"computed tokens and time to first token of both orders against {self.axis}",
        )
        return Answer(
            self.question,
            (
                said,
                *self._computed(cells),
            ),
            (contrasts.table, cell_table(cells, (self.setting, "target"), COLUMNS)),
            (picture,),
        )

    def _computed(self, cells: Cells) -> Iterator[str]:
        """Why: what first come, first served computes again."""
        kinds: dict[str, dict[str, str]] = {kind: {} for kind in COMPUTED}
        for value in cells.values(self.setting):
            part = cells.where(**{self.setting: value})
            plain, ordered = (part.where(target=name).median(EACH_COMPUTED) for name in ORDERS)
            if plain is None or not ordered:
                continue
            kind = _kind(part)
            size = count(float(value))
            kinds[kind][size] = f"{count(plain)} against {count(ordered)} with {size}"
        for kind, found in kinds.items():
            if found:
                unit = unit_of(self.unit, [*found])
                yield f"{COMPUTED[kind]}; for each request, {listed([*found.values()])} {unit}."

    def _panels(self, cells: Cells) -> Iterator[tuple[str, str, list[Line]]]:
        for title, y, figure in (
            ("Computed", "prompt tokens a request", EACH_COMPUTED),
            ("Time to first token", "mean, ms", FIRST),
        ):
            yield (
                title,
                y,
                [
                    line_of(name, cells.where(target=target), self.setting, figure)
                    for target, name in ORDERS.items()
                ],
            )


COMPUTED = {
    "more": "First come, first served computes prompt tokens again that serving by context finds in"
    " the cache",
    "same": "Both orders compute about the same prompt tokens",
    "fewer": "Serving by context computes more prompt tokens than first come, first served",
    "unpaired": "No run of one order has its counterpart of the other",
    "mixed": "Runs do not agree on which order computes more prompt tokens",
}
MORE = 1.05
"""By so much more tokens count as more: single blocks come and go with the moment of arrival."""


def _kind(cells: Cells) -> str:
    """Of `COMPUTED`, from the runs of both orders with the same requests."""
    plain, ordered = (
        {cell.repeat: cell.figure(EACH_COMPUTED) for cell in cells.where(target=name)}
        for name in ORDERS
    )
    ratios = [
        tokens / others
        for repeat, tokens in plain.items()
        if tokens and (others := ordered.get(repeat))
    ]
    if ratios and min(ratios) > MORE:
        return "more"
    if ratios and max(ratios) < 1 / MORE:
        return "fewer"
    if not ratios:
        return "unpaired"
    return "same" if all(1 / MORE <= ratio <= MORE for ratio in ratios) else "mixed"


def _contrast(cells: Cells) -> Contrast:
    plain, ordered = (cells.where(target=name) for name in ORDERS)
    return contrast(plain, ordered, SIDES, "ttft_ms.mean")
