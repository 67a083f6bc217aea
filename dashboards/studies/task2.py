"""Task 2: what serving context by context is worth, and where it is worth nothing."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from statistics import median

from dashboards.figures.timeline import timeline
from dashboards.report.wording import listed
from dashboards.studies.answer import MarkdownTable, StudyAnswer, StudyPicture, cell_table
from dashboards.studies.cell import COMPUTED, EACH_COMPUTED, FIRST, ORDERED, PLAIN, Cells, is_number
from dashboards.studies.contrast import Contrast, Contrasts, contrast
from dashboards.studies.pictures import Line, against, cost_panels, line_of
from dashboards.studies.requests import answered, orders_of_service, turns
from dashboards.studies.study import StudyQuestion
from dashboards.studies.wording import count, times, unit_of

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

    @property
    def as_question(self) -> StudyQuestion:
        """Of the part of a study that has its name."""
        return StudyQuestion(self.name, (self.name,), self.answer)

    def answer(self, cells: Cells) -> StudyAnswer:
        """For each value the mean time to first token and the computed tokens of both orders."""
        contrasts = Contrasts(
            self.unit,
            tuple((count(float(value)), _contrast(part)) for value, part in cells.by(self.setting)),
        )

        def lines(figure: str) -> list[Line]:
            return [
                line_of(name, cells.where(target=target), self.setting, figure)
                for target, name in ORDERS.items()
            ]

        picture = StudyPicture(
            self.name,
            against(cost_panels(EACH_COMPUTED, "prompt tokens a request", lines), self.axis),
            f"computed tokens and time to first token of both orders against {self.axis}",
        )
        return StudyAnswer(
            self.question,
            (
                " ".join((contrasts.said("Served by context"), *self._besides(cells, contrasts))),
                *self._computed(cells),
            ),
            (contrasts.table, cell_table(cells, (self.setting, "target"), COLUMNS)),
            (picture,),
        )

    def _besides(self, cells: Cells, contrasts: Contrasts) -> Iterator[str]:
        """Where time differs and tokens hardly do, and which cache holds all contexts."""
        parts = [part for _, part in cells.by(self.setting)]
        near = [
            value
            for (value, each), part in zip(contrasts.found, parts, strict=True)
            if each.verdict in ("better", "worse") and _is_near(part)
        ]
        if near:
            yield (
                f"Yet with {listed(near)} {unit_of(self.unit, near)} both orders compute about the"
                " same prompt tokens, under 10 % apart."
            )
        yield from filter(None, map(_held, parts))

    def _computed(self, cells: Cells) -> Iterator[str]:
        """Why: what first come, first served computes again."""
        kinds: dict[str, dict[str, str]] = {kind: {} for kind in KINDS}
        for value, part in cells.by(self.setting):
            plain, ordered = (part.where(target=name).middle(EACH_COMPUTED) for name in ORDERS)
            if plain is None or not ordered:
                continue
            kind, told = _kind(part)
            size = count(float(value))
            kinds[kind][size] = f"{count(plain)} against {count(ordered)}{told} with {size}"
        for kind, found in kinds.items():
            if found:
                unit = unit_of(self.unit, [*found])
                yield f"{KINDS[kind]}; for each request, {listed([*found.values()])} {unit}."


KINDS = {
    "more": "First come, first served computes prompt tokens again that serving by context finds in"
    " the cache",
    "same": "Both orders compute about the same prompt tokens",
    "fewer": "Serving by context computes more prompt tokens than first come, first served",
    "some more": "In some runs, and never the other way round, first come, first served computes"
    " over 5 % more prompt tokens than serving by context",
    "some fewer": "In some runs, and never the other way round, serving by context computes over"
    " 5 % more prompt tokens than first come, first served",
    "unpaired": "No run of one order has its counterpart of the other",
    "mixed": "Runs do not agree on which order computes more prompt tokens",
}
MORE = 1.05
"""By so much more tokens count as more: single blocks come and go with the moment of arrival."""
NEAR = 1.1


def _kind(cells: Cells) -> tuple[str, str]:
    """Of `KINDS`, from the runs of both orders with the same requests; how many of them if some."""
    plain, ordered = (cells.where(target=name).by_repeat(EACH_COMPUTED) for name in ORDERS)
    ratios = [
        tokens / others
        for repeat, tokens in plain.items()
        if tokens and (others := ordered.get(repeat))
    ]
    more = sum(ratio > MORE for ratio in ratios)
    fewer = sum(ratio < 1 / MORE for ratio in ratios)
    if not ratios or bool(more) == bool(fewer):
        return "mixed" if more else "same" if ratios else "unpaired", ""
    kind, found = ("more", more) if more else ("fewer", fewer)
    told = f" ({found} of {len(ratios)} runs)"
    return (kind, "") if found == len(ratios) else (f"some {kind}", told)


def _is_near(cells: Cells) -> bool:
    """Whether the orders compute about the same, by the medians of their runs."""
    tokens = [cells.where(target=name).middle(EACH_COMPUTED) or 0.0 for name in ORDERS]
    return max(tokens) < NEAR * min(tokens)


def _held(cells: Cells) -> str:
    """Of a cache that has room for all contexts and computes the same in both orders."""
    names = ("kv_tokens", "contexts", "context_tokens")
    found = [each for name in names if is_number(each := cells.all[0].settings.get(name, ""))]
    sizes = [*map(float, found)]
    if len(sizes) < len(names) or sizes[1] * sizes[2] > sizes[0] or _kind(cells)[0] != "same":
        return ""
    return "A cache of {} tokens holds all {} contexts of {} tokens.".format(*map(count, sizes))


def _contrast(cells: Cells) -> Contrast:
    plain, ordered = (cells.where(target=name) for name in ORDERS)
    return contrast(plain, ordered, SIDES)


def why(cells: Cells) -> StudyAnswer:
    """How often the engine turns to another context, and what it computes for that, on the
    smallest cache."""
    smallest = cells.values("kv_tokens")[0]
    cells = cells.where(kv_tokens=smallest)
    cache = f"{count(float(smallest))} tokens of cache"
    served = {
        name: runs
        for target, name in ORDERS.items()
        if (runs := [answered(cell.run) for cell in cells.counted.where(target=target)])
    }
    taken = {name: _middle([*map(turns, runs)]) for name, runs in served.items()}
    computed = {
        name: cells.where(target=target).middle(COMPUTED) for target, name in ORDERS.items()
    }
    rows = [
        (
            name,
            count(len(served[name])),
            *map(count, found),
            "" if (tokens := computed[name]) is None else count(tokens),
        )
        for name, found in taken.items()
    ]
    contexts, orders = orders_of_service({name: runs[0] for name, runs in served.items()})
    picture = StudyPicture(
        "order",
        timeline(orders, contexts, 7.2),
        "each request of a run in the colour of its context, in the order of service",
    )
    header = ("order", "runs", "contexts taken up", "fewest possible", "computed tokens")
    return StudyAnswer(
        "Why does the order of contexts matter?",
        tuple(_sentences(cache, taken, *computed.values())),
        (MarkdownTable(header, tuple(rows)),),
        (picture,),
    )


def _sentences(
    cache: str, taken: Mapping[str, tuple[float, float]], plain: float | None, ordered: float | None
) -> Iterator[str]:
    if len(taken) < 2:
        yield "Not measured in both orders."
        return
    if plain is not None and ordered:
        yield f"With {cache}, the smallest here, {_tokens(plain, ordered)}"
    said = [
        f"{name} {count(found)} times (at least {count(fewest)} are needed)"
        for name, (found, fewest) in taken.items()
    ]
    yield f"In a run with {cache} the engine takes up a context: {'; '.join(said)}."


def _tokens(plain: float, ordered: float) -> str:
    if plain > MORE * ordered:
        return (
            "a context that the engine turns back to may have left it: first come, first"
            f" served computes {times(plain / ordered)} as many prompt tokens"
            f" ({count(plain)} against {count(ordered)})."
        )
    if ordered > MORE * plain:
        return (
            "it is no gain: serving by context computes more prompt tokens"
            f" ({count(ordered)} against {count(plain)})."
        )
    return (
        "it does not: both orders compute about the same prompt tokens"
        f" ({count(plain)} and {count(ordered)})."
    )


def _middle(found: list[tuple[int, int]]) -> tuple[float, float]:
    """Turns and fewest turns of a run, the medians over all."""
    taken, fewest = zip(*found, strict=True)
    return median(taken), median(fewest)
