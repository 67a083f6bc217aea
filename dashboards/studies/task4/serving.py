"""Order by labels of KV, measured on an engine beside other labels."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib.resources import files
from pathlib import Path

from dashboards.report.wording import listed
from dashboards.studies.answer import MarkdownTable, cell_table
from dashboards.studies.cell import EACH_COMPUTED, FIRST, ORDERED, PLAIN, Cells
from dashboards.studies.contrast import Contrasts, contrast
from dashboards.studies.requests import share_right
from dashboards.studies.study import Study, StudyPlan
from dashboards.studies.task3 import OrderedArm
from dashboards.studies.wording import duration, percent
from loadgen.runs.directory import RUN_JSON
from loadgen.runs.json_file import read_object
from loadgen.sweep.definition import Definition, Options, read_definition
from loadgen.sweep.table import read_cells

SERVING = "serving"
LABELS = {
    "oracle": "the true label",
    "none": "the prompts alone",
    "kv": "KV's label",
    "rag": "RAG's label",
}
FOUND = ("rag", "kv")
SAME_PROMPTS, OTHER_PROMPTS = ("oracle", "none", "kv"), ("rag",)
OF_OTHERS = (
    "Of other prompts, and so not to be ranked with these: with RAG's label a request carries the"
    " context that was found, with all others the true one, as first come, first served. What"
    " follows is therefore not of the order alone."
)
COLUMNS = (
    *("requests", "label_accuracy", "retrieval_p50_ms", "retrieval_share"),
    *("ttft_p50_ms", FIRST, EACH_COMPUTED, "hit_rate"),
)


def serving_definition(more: Options, quick: bool) -> Definition:
    """The sweep with these options, such as the model; with `quick` one run of each cell."""
    path = Path(str(files("dashboards.studies"))) / "definitions" / "task4" / f"{SERVING}.toml"
    found = read_definition(path)
    repeats = 1 if quick else found.repeats
    return replace(found, repeats=repeats, options={**found.options, **more})


def serving_cells(definition: Definition, out: Path) -> Cells:
    """What was made of it in `out`."""
    plan = StudyPlan(Study(SERVING, "", "", ()), False, {SERVING: definition})
    return plan.cells(read_cells(out))


def serving_tables(cells: Cells) -> tuple[MarkdownTable, ...]:
    """Each order against first come, apart that of other prompts, and what every cell did."""
    return (
        _contrasts(cells, SAME_PROMPTS).table,
        _contrasts(cells, OTHER_PROMPTS, ", of other prompts").table,
        cell_table(cells, ("target", "labels"), COLUMNS),
    )


def serving_sentences(cells: Cells, random_weights: bool) -> Iterator[str]:
    """What labels of KV would do for an order of requests, and cost."""
    found = {label: cells.where(target=ORDERED, labels=label) for label in FOUND}
    yield from _right(found)
    yield from _took(found)
    yield "The order is by policy `lpm`, which goes by labels; the default one asks for none."
    yield from _ordered(_contrasts(cells, SAME_PROMPTS))
    none, kv = (cells.where(target=ORDERED, labels=label) for label in ("none", "kv"))
    against = contrast(none, kv, ("by the prompts alone", "by KV's label"))
    yield f"Against the order that asks for no label: {against.words}."
    yield OF_OTHERS
    yield from _ordered(_contrasts(cells, OTHER_PROMPTS))
    yield (
        "In all tables the time to the label, `retrieval`, is part of the time to first token, and"
        " the service that finds it computes on the engine's cores; `retrieval left out` takes the"
        " former away, not the latter."
    )
    if random_weights:
        yield (
            "**The weights are random**: this measures what a label from a forward pass costs, and"
            " what order by labels so often wrong does; not what a trained model's KV would find."
        )


def _ordered(contrasts: Contrasts) -> Iterator[str]:
    for name, each in contrasts.found:
        if each.row is not None:
            yield f"Ordered by {name}: {each.words}."


def _contrasts(cells: Cells, labels: Sequence[str], more: str = "") -> Contrasts:
    base = cells.where(target=PLAIN)
    arms = (
        OrderedArm(
            *(LABELS[label], cells.where(target=ORDERED, labels=label), base, "first come"),
            label in FOUND,
        )
        for label in labels
    )
    return Contrasts(f"ordered by{more}", tuple(pair for arm in arms for pair in arm.contrasts))


def _right(found: dict[str, Cells]) -> Iterator[str]:
    shares = {label: share_right(cells.counted) for label, cells in found.items()}
    told = [f"{LABELS[label]} {share}" for label, share in shares.items() if share]
    if not told:
        yield "Not measured on an engine."
        return
    documents = _documents(found["kv"])
    drawn = f"; one of {documents} documents drawn at random"
    chance = f"{drawn} {percent(1 / documents)}" if documents else ""
    yield (
        "On an engine that serves context by context, the share of right labels of requests is:"
        f" {listed(told)}{chance}. Centroids are of the questions of the split"
        " `dev`, asked are those of `test`, where the corpus has these splits."
    )


def _took(found: dict[str, Cells]) -> Iterator[str]:
    told = [
        f"{LABELS[label]} {duration(took)} ({percent(share)} of the time to first token)"
        for label, cells in found.items()
        if (took := cells.middle("retrieval_p50_ms")) is not None
        and (share := cells.middle("retrieval_share")) is not None
    ]
    if told:
        yield f"A label took (median, under this load): {listed(told)}."


def _documents(cells: Cells) -> int:
    described = (read_object(cell.run / RUN_JSON).get("rag") or {} for cell in cells)
    return max((int(rag.get("documents") or 0) for rag in described), default=0)
