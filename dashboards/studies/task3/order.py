"""Order by the label that retrieval found, against the true one, none and wrong ones."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from matplotlib.figure import Figure

from dashboards.studies.answer import Answer, Picture
from dashboards.studies.cell import Cells
from dashboards.studies.contrast import Contrast, contrast, contrast_runs
from dashboards.studies.pictures import Bar, bars
from dashboards.studies.requests import without_retrieval
from dashboards.studies.sweepwise import Contrasts
from dashboards.studies.table import FIRST, cell_table
from dashboards.studies.targets import ORDERED, PLAIN
from dashboards.studies.wording import percent, times

RETRIEVAL = "retrieval_mean_ms"
COLUMNS = ("requests", FIRST, RETRIEVAL, "requests_per_s", "label_accuracy", "hit_rate")
LABELS = {
    "oracle": "the true label",
    "shuffled": "wrong labels",
    "none": "the prompts alone",
    "rag": "the label that was found",
}
FIRST_COME = {"oracle": "first come, true contexts", "rag": "first come, found contexts"}
SIDES = "first come, mean TTFT", "ordered, mean TTFT"
APART = ", retrieval left out"
KEPT = 0.9
"""The share of the true label's gain that counts as keeping it."""


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to order, with first come, first served on the same prompts as its base. Where the
    label `is_found`, the time to first token has the retrieval in it, in both orders."""

    name: str
    ordered: Cells
    first_come: Cells
    base_name: str
    is_found: bool

    @property
    def ttft(self) -> Contrast:
        """The mean time to first token."""
        return contrast(self.first_come, self.ordered, SIDES, "ttft_ms.mean")

    @property
    def contrasts(self) -> Iterator[tuple[str, Contrast]]:
        """By name: of what users wait for, and of that without the retrieval."""
        yield self.name, self.ttft
        if self.is_found:
            sides = self.first_come, self.ordered
            base, new = ([without_retrieval(cell.run) for cell in side.sound] for side in sides)
            found = contrast_runs(base, new, SIDES, "ttft_ms.mean", max(map(len, sides)))
            yield f"{self.name}{APART}", found


def order_by_label(cells: Cells) -> Answer:
    """Every kind of label; what was retrieved is set against first come with retrieval."""
    arms = list(_arms(cells))
    found = Contrasts("ordered by", tuple(pair for arm in arms for pair in arm.contrasts))
    picture = Picture(
        "labels",
        _bars(arms),
        "time to first token, retrieval and hit rate for each kind of label",
    )
    return Answer(
        "Does order by the label that retrieval found keep the gain of the true one?",
        (
            *_kept(dict(found.found)),
            *(f"Ordered by {name}: {_said(each)}." for name, each in found.found),
        ),
        (found.table, cell_table(cells, ("target", "labels", "rag_wrong"), COLUMNS)),
        (picture,),
    )


def _bars(arms: Sequence[Arm]) -> Figure:
    """Each base once, then every arm."""
    bases = {arm.base_name: arm.first_come for arm in arms}
    rows = [_row(name, side, stands_out=False) for name, side in bases.items()]
    rows += [_row(f"by {arm.name}", arm.ordered, stands_out=True) for arm in arms]
    panels = (
        ("Time to first token", "mean, ms"),
        ("Retrieval, part of it", "mean, ms"),
        ("From the cache", "% of prompt tokens"),
    )
    return bars(panels, rows)


def _row(name: str, cells: Cells, stands_out: bool) -> Bar:
    hits = [100 * rate for rate in cells.figures("hit_rate")]
    return Bar(name, (cells.figures(FIRST), cells.figures(RETRIEVAL), hits), stands_out)


def _said(found: Contrast) -> str:
    if found.verdict == "better" and found.factor:
        return f"the first token comes {times(1 / found.factor)} as fast as first come"
    if found.verdict == "worse" and found.factor:
        return f"the first token takes {times(found.factor)} as long as first come"
    if found.verdict == "no evidence":
        return "there is no evidence of a difference from first come"
    return f"{found.verdict}, so that nothing can be said against first come"


def _arms(cells: Cells) -> Iterator[Arm]:
    for label, name in LABELS.items():
        of_label = cells.where(labels=label)
        sent = "rag" if label == "rag" else "oracle"
        base = cells.where(labels=sent, target=PLAIN)
        for wrong in of_label.where(target=ORDERED).values("rag_wrong"):
            ordered = of_label.where(target=ORDERED, rag_wrong=wrong)
            more = f", {percent(float(wrong))} made wrong" if float(wrong or 0) else ""
            yield Arm(f"{name}{more}", ordered, base, FIRST_COME[sent], sent == "rag")


def _kept(found: dict[str, Contrast]) -> Iterator[str]:
    """What of the true label's gain is left with the found one, in what the engine does: retrieval
    takes its time whatever the order."""
    true, rag = found.get(LABELS["oracle"]), found.get(f"{LABELS['rag']}{APART}")
    if true is None or rag is None or not true.factor or not rag.factor:
        yield "Not measured with both kinds of label."
        return
    if true.verdict != "better":
        yield f"Even the true label shows no gain here ({true.verdict}), so that none can be kept."
        return
    if rag.verdict != "better":
        yield f"The true label gains, the found one does not ({rag.verdict})."
        return
    share = (1 - rag.factor) / (1 - true.factor)
    less = "loses a part of" if _surely_more(rag, true) else "shows no clear loss of"
    kept = "keeps" if share >= KEPT else less
    yield (
        f"The found label {kept} the gain: retrieval left out, the first token takes"
        f" {percent(rag.factor)} of the time of first come, first served, and"
        f" {percent(true.factor)} with the true label."
    )


def _surely_more(one: Contrast, other: Contrast) -> bool:
    """Whether the intervals of both changes lie apart."""
    changes = [each.row.change if each.row is not None else None for each in (one, other)]
    first, second = changes
    return first is not None and second is not None and first.low > second.high
