"""The page about what lies behind the network: for each question a sentence, a picture, a table."""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from dashboards.figures.style import save_svg
from dashboards.network.counted import eviction_answer, placement_answer
from dashboards.network.served import death_answer, link_answer, loading_answer, regions_answer
from dashboards.network.streamed import levels_answer, parts_answer
from dashboards.studies.answer import StudyAnswer, in_short, section, written
from dashboards.studies.page import Provenance, page_head
from kv_tiers.trials import (
    NetworkFigures,
    evicting,
    loading,
    node_death,
    placing,
    regions,
    sharing,
    streaming,
)

NAME = "network"
PAGE, CSV = f"{NAME}.md", f"{NAME}.csv"
ANSWERS: dict[str, Callable[[NetworkFigures], StudyAnswer]] = {
    placing.QUESTION: placement_answer,
    node_death.QUESTION: death_answer,
    sharing.QUESTION: link_answer,
    evicting.QUESTION: eviction_answer,
    loading.QUESTION: loading_answer,
    streaming.LEVELS_QUESTION: levels_answer,
    streaming.PARTS_QUESTION: parts_answer,
    regions.QUESTION: regions_answer,
}
"""In the order of the page."""


def write_network_page(rows: NetworkFigures, made: Provenance, folder: Path) -> Path:
    """Page, pictures and CSV into a folder that is there."""
    answers = [*network_answers(rows)]
    for _, answer in answers:
        for picture in answer.pictures:
            save_svg(picture.figure, folder / f"{NAME}-{picture.name}.svg")
    rows.write(folder / CSV)
    return written(folder / PAGE, _blocks(answers, made))


def _blocks(answers: Sequence[tuple[str, StudyAnswer]], made: Provenance) -> Iterator[str]:
    head = page_head(
        "Behind the network: placed, lost, shared, given up, loaded, streamed",
        "Each part of a store of KV on several nodes, measured against not having it, without an"
        " engine. Nodes are real valkey servers; what is counted, and not timed, says so. No engine"
        " stores or loads: the ledger of its bytes is in the study of tiers. In `levels` and"
        " `parts` the link's clock is counted. What codecs lose of a model's KV, and"
        " of what it says then, `kvswarm kv codecs` measures.",
        made,
    )
    rule = f"Sentences are made from the figures by rules; all figures are in [{CSV}]({CSV})."
    yield f"{head} {rule}"
    yield in_short(answer.linked(key) for key, answer in answers)
    for key, answer in answers:
        yield from section(key, answer, NAME)


def network_findings(rows: NetworkFigures) -> Iterator[str]:
    """Of each question the first sentence of its answer."""
    for _, answer in network_answers(rows):
        yield answer.short


def network_answers(rows: NetworkFigures) -> Iterator[tuple[str, StudyAnswer]]:
    """Of each question that was measured, by its key."""
    for key, answer in ANSWERS.items():
        if (own := rows.of(key)).rows:
            yield key, answer(own)
