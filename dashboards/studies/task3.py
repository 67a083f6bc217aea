"""Task 3: contexts that have to be found, and an order that goes by what was found."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from matplotlib.figure import Figure

from dashboards.report.wording import listed
from dashboards.studies.answer import NOT_MEASURED, StudyAnswer, StudyPicture, cell_table
from dashboards.studies.cell import FIRST, ORDERED, PLAIN, Cells, is_number
from dashboards.studies.contrast import LEVEL, MEAN, Contrast, Contrasts, contrast, contrast_runs
from dashboards.studies.corpora import all_documents
from dashboards.studies.pictures import FIRST_PANEL, Bar, against, bars, line_of
from dashboards.studies.requests import paired, share_right, without_retrieval
from dashboards.studies.task2 import ORDERS
from dashboards.studies.wording import count, crowd, duration, percent
from loadgen.compare.estimate import estimate
from loadgen.compare.interval import between_repeats
from loadgen.compare.metrics import parse_statistic
from loadgen.compare.run import ComparedRun
from loadgen.compare.run_reader import read_run

RETRIEVAL = "retrieval_mean_ms"
LABEL_COLUMNS = ("requests", FIRST, RETRIEVAL, "requests_per_s", "label_accuracy", "hit_rate")
LABELS = {
    "oracle": "true labels",
    "shuffled": "wrong labels",
    "none": "no labels",
    "rag": "contexts that were found",
}
FIRST_COME = {"oracle": "first come, given contexts", "rag": "first come, found contexts"}
NOT_ASKED = (
    "The plugin's default policy, which served here, goes by the prompts alone and asks no label:"
    " true ones, wrong ones and none are the same order."
)
SIDES = "first come, mean TTFT", "ordered, mean TTFT"
APART = ", retrieval left out"
KEPT = 0.9
"""The share of the gain with given contexts that counts as keeping it."""
TTFT = parse_statistic(MEAN)


@dataclass(frozen=True, slots=True)
class OrderedArm:
    """Prompts served by context, with first come, first served on the same ones as its base. Where
    the context `is_found`, the time to first token has the retrieval in it, in both orders."""

    name: str
    ordered: Cells
    first_come: Cells
    base_name: str
    is_found: bool

    @property
    def contrasts(self) -> Iterator[tuple[str, Contrast]]:
        """By name: of what users wait for, and of that without the retrieval."""
        yield self.name, contrast(self.first_come, self.ordered, SIDES)
        if self.is_found:
            made = max(len(self.first_come), len(self.ordered))
            found = contrast_runs(*self.runs, SIDES, made=made)
            yield f"{self.name}{APART}", found

    @property
    def runs(self) -> tuple[list[ComparedRun], list[ComparedRun]]:
        """Of both orders, without the time of retrieval."""
        read = without_retrieval if self.is_found else read_run
        first_come, ordered = (
            [read(cell.run) for cell in side.sound] for side in (self.first_come, self.ordered)
        )
        return first_come, ordered

    @property
    def log_factors(self) -> dict[str, float]:
        """By seed: of the time to first token over that of first come, first served."""
        base, new = (
            {
                run.seed: math.log(estimate(data, TTFT, 1).value)
                for run in side
                if (data := run.data(TTFT)) is not None and data.samples
            }
            for side in self.runs
        )
        return {seed: new[seed] - base[seed] for seed in sorted(base.keys() & new.keys())}


def order_by_label(cells: Cells) -> StudyAnswer:
    """Every kind of label; what was retrieved is set against first come with retrieval."""
    arms = list(_arms(cells))
    found = Contrasts("by context, with", tuple(pair for arm in arms for pair in arm.contrasts))
    picture = StudyPicture(
        "labels",
        _bars(arms),
        "time to first token, retrieval and hit rate for each kind of label",
    )
    return StudyAnswer(
        "Does serving by context keep its gain where the context has to be found?",
        (
            *_kept(dict(found.found), {arm.name: arm for arm in arms}),
            *(f"By context, with {name}: {_said(each)}." for name, each in found.found),
            NOT_ASKED,
        ),
        (found.table, cell_table(cells, ("target", "labels", "rag_wrong"), LABEL_COLUMNS)),
        (picture,),
    )


def _bars(arms: Sequence[OrderedArm]) -> Figure:
    """Each base once, then every arm."""
    bases = {arm.base_name: arm.first_come for arm in arms}
    rows = [Bar(name, side, stands_out=False) for name, side in bases.items()]
    rows += [Bar(f"by context, {arm.name}", arm.ordered, stands_out=True) for arm in arms]
    panels = {
        FIRST: FIRST_PANEL,
        RETRIEVAL: ("Retrieval, part of it", "mean, ms"),
        "hit_rate": ("From the cache", "% of prompt tokens"),
    }
    return bars(panels, rows)


def _said(found: Contrast) -> str:
    return found.said(
        "the first token comes {} as fast as first come",
        "the first token takes {} as long as first come",
        "there is no evidence of a difference from first come",
        "{}, so that nothing can be said against first come",
    )


def _arms(cells: Cells) -> Iterator[OrderedArm]:
    for label, name in LABELS.items():
        of_label = cells.where(labels=label)
        sent = "rag" if label == "rag" else "oracle"
        base = cells.where(labels=sent, target=PLAIN)
        for wrong in of_label.where(target=ORDERED).values("rag_wrong"):
            ordered = of_label.where(target=ORDERED, rag_wrong=wrong)
            more = f", {percent(float(wrong))} made wrong" if float(wrong or 0) else ""
            yield OrderedArm(f"{name}{more}", ordered, base, FIRST_COME[sent], sent == "rag")


def _kept(found: dict[str, Contrast], arms: dict[str, OrderedArm]) -> Iterator[str]:
    """What of the gain with given contexts is left with found ones, in what the engine does:
    retrieval takes its time whatever the order."""
    true, rag = found.get(LABELS["oracle"]), found.get(f"{LABELS['rag']}{APART}")
    if true is None or rag is None or not true.factor or not rag.factor:
        yield "Not measured with both given and found contexts."
        return
    if true.verdict != "better":
        yield f"Even given contexts show no gain here ({true.verdict}), so that none can be kept."
        return
    if rag.verdict != "better":
        yield f"With given contexts there is a gain, with found ones there is not ({rag.verdict})."
        return
    share = (1 - rag.factor) / (1 - true.factor)
    is_less, told = gain_lost(arms[LABELS["oracle"]].log_factors, arms[LABELS["rag"]].log_factors)
    kept = "keeps a part of" if is_less else "keeps"
    yield (
        f"Serving by context {kept if is_less or share >= KEPT else 'shows no clear loss of'} its"
        " gain where contexts are found: retrieval left out, the first token takes"
        f" {percent(rag.factor)} of the time of first come, first served, and"
        f" {percent(true.factor)} where they are given{told}."
    )


def gain_lost(given: dict[str, float], found: dict[str, float]) -> tuple[bool, str]:
    """Whether the time with found contexts is surely the longer part of first come's, by the seeds
    that both have; and how much."""
    seeds = sorted(given.keys() & found.keys())
    base, new = ([each[seed] for seed in seeds] for each in (given, found))
    lost = between_repeats(base, new, (seeds, seeds), LEVEL) if len(seeds) > 2 else None
    if lost is None:
        return False, ""
    low, middle, high = (f"{math.exp(each):.2f}" for each in (lost.low, lost.estimate, lost.high))
    more = sum(found[seed] > given[seed] for seed in seeds)
    told = f" ({middle} times the share, {low} to {high}; more in {more} of {len(seeds)} runs)"
    return lost.low > 0, told


RETRIEVAL_COLUMNS = (
    "requests",
    "label_accuracy",
    "refused_share",
    "retrieval_p50_ms",
    "ttft_p50_ms",
    "retrieval_share",
)


def documents(cells: Cells) -> StudyAnswer:
    """Accuracy and time of the labels against the number of documents to choose from."""
    cells = _counted(cells)
    shares = {size: share_right(part.counted) for size, part in cells.by("documents")}
    known = {size: share for size, share in shares.items() if share}
    parts = [f"{share} with {count(float(size))} documents" for size, share in known.items()]
    panels = [
        ("Labels", "% right", [line_of("", cells, "documents", "label_accuracy", 100)]),
        ("Retrieval", "p50, ms", [line_of("", cells, "documents", "retrieval_p50_ms")]),
    ]
    picture = StudyPicture(
        "documents",
        against(panels, "documents in the library"),
        "accuracy of labels and time of retrieval against the number of documents",
    )
    return StudyAnswer(
        "How accurate are labels in the loop, against the number of documents?",
        (
            f"The share of right labels is {listed(parts)}; the intervals count each question once,"
            " however often it was asked."
            if parts
            else NOT_MEASURED,
            *_fewer(cells.counted, [*known]),
            *_retrieval_times(cells),
        ),
        (cell_table(cells, ("documents", "users"), RETRIEVAL_COLUMNS),),
        (picture,),
    )


def _counted(cells: Cells) -> Cells:
    """With the number of documents as a setting: that of the corpus's folder, or all there are."""
    whole = str(all_documents())
    sizes = ({"documents": cell.settings.get("corpus") or whole} for cell in cells)
    counted = zip(cells, sizes, strict=True)
    return Cells(tuple(replace(cell, settings={**cell.settings, **size}) for cell, size in counted))


def _fewer(cells: Cells, sizes: Sequence[str]) -> Iterator[str]:
    """The fewest documents against the most, by the questions that were asked with both."""
    if len(sizes) < 2:
        return
    few, many = sizes[0], sizes[-1]
    found = paired(cells.where(documents=few), cells.where(documents=many))
    if found is None:
        return
    told = (
        f"of {count(found.questions)} questions asked with both, {count(found.first)} were right"
        f" more often with {few} documents and {count(found.second)} with {many} (sign test,"
        f" p = {found.p:.2g})"
    )
    if found.p >= 1 - LEVEL:
        yield f"There is no evidence that accuracy differs between these: {told}."
        return
    better, worse = (few, many) if found.first > found.second else (many, few)
    yield f"Labels are worse with {worse} documents than with {better}: {told}."


def _retrieval_times(cells: Cells) -> Iterator[str]:
    parts = [
        f"{duration(took_ms)} with {count(float(size))}"
        for size, took_ms in cells.middles("documents", "retrieval_p50_ms").items()
    ]
    shares = listed([*map(percent, cells.middles("documents", "retrieval_share").values())])
    told = f", which is {shares} of the time to first token{_served(cells)}" if shares else ""
    if parts:
        yield f"A retrieval takes (median) {listed(parts)} documents to choose from{told}."


def _served(cells: Cells) -> str:
    """` (by context, 5,120 tokens of cache)`, where all cells are alike in it."""
    orders, sizes = cells.values("target"), cells.values("kv_tokens")
    if len(orders) > 1 or len(sizes) > 1 or not is_number(sizes[0]) or orders[0] not in ORDERS:
        return ""
    return f" ({ORDERS[orders[0]]}, {count(float(sizes[0]))} tokens of cache)"


def relevance(cells: Cells) -> StudyAnswer:
    """The method, and how often it found nothing that fits."""
    refused = _counted(cells).middles("documents", "refused_share")
    told = f"{listed([*map(percent, refused.values())])} of the questions"
    return StudyAnswer(
        "How is relevance decided?",
        (
            "The score of a document adds up the cosine between the question and its best chunk,"
            " how well the question's words are met in its nearest sentences, and half of the share"
            " of the highest possible BM25 that it has.",
            "The document with the highest score is the label; where even that is low, the question"
            " is refused and goes without a context.",
            *([f"{told} were refused with {listed([*refused])} documents."] if refused else ()),
        ),
    )


def retrieval(cells: Cells) -> StudyAnswer:
    """Retrieval's part of the time to first token, against the number of users."""
    said = [
        f"{percent(share)} with {crowd(users)}"
        for users, share in cells.middles("users", "retrieval_share").items()
    ]
    took = [
        f"{duration(middle_ms)} with {crowd(users)}"
        for users, middle_ms in cells.middles("users", "retrieval_p50_ms").items()
    ]
    parts = [
        ("Part of TTFT", "%", [line_of("", cells, "users", "retrieval_share", 100)]),
        (
            "Median times",
            "ms",
            [
                line_of("retrieval", cells, "users", "retrieval_p50_ms"),
                line_of("time to first token", cells, "users", "ttft_p50_ms"),
            ],
        ),
    ]
    picture = StudyPicture(
        "retrieval", against(parts, "users"), "retrieval's part of the time to first token"
    )
    return StudyAnswer(
        "How much of the time to first token is retrieval?",
        (
            f"Of all time to first token of a run, retrievals are {listed(said)}{_served(cells)}."
            if said
            else NOT_MEASURED,
            *([f"A retrieval takes (median) {listed(took)}."] if took else ()),
        ),
        (cell_table(cells, ("users", "target"), RETRIEVAL_COLUMNS),),
        (picture,),
    )
