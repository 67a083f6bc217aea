"""An answer with its tables and pictures, and how it stands on a page."""

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from dashboards.studies.cell import COMPUTED, EACH_COMPUTED, FIRST, Cells, StudyCell, is_number
from dashboards.studies.wording import count, duration, memory, percent, seconds


@dataclass(frozen=True, slots=True)
class MarkdownTable:
    """Cells of text under a header."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    @property
    def markdown(self) -> str:
        """With the figures set to the right; nothing in a cell ends it."""
        lines = [self.header, ("---", *["---:"] * (len(self.header) - 1)), *self.rows]
        return "\n".join(f"| {' | '.join(map(_escaped, line))} |" for line in lines)


def in_short(sentences: Iterable[str]) -> str:
    """The answers that a page begins with."""
    return "## In short\n\n" + "\n".join(f"- {each}" for each in sentences)


def write_rows(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> None:
    """A CSV file of rows that name their columns."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)


def written(page: Path, blocks: Iterable[str]) -> Path:
    """Write a page of Markdown; returns its path."""
    page.write_text("\n\n".join(blocks) + "\n", encoding="utf-8")
    return page


def _escaped(text: str) -> str:
    return " ".join(text.replace("|", "\\|").replace("<", "&lt;").split())


Column = tuple[str, Callable[[float], str]]

COLUMNS: dict[str, Column] = {
    "requests": ("requests", count),
    "ttft_p50_ms": ("TTFT p50", duration),
    "ttft_mean_ms": ("TTFT mean", duration),
    "ttft_p95_ms": ("TTFT p95", duration),
    "e2e_p50_ms": ("whole reply p50", duration),
    "makespan_p50_s": ("batch p50", seconds),
    "requests_per_s": ("requests/s", lambda value: f"{value:.2f}"),
    "context_affinity": ("to the usual engine", percent),
    "output_tokens_per_s": ("output tokens/s", lambda value: f"{value:.3g}"),
    "tpot_p50_ms": ("time of a token p50", duration),
    "peak_engine_rss_mb": ("memory of the engine", lambda value: memory(1e6 * value)),
    "server_cpu_ms_per_token": ("CPU of a token", lambda value: f"{value:.3g} ms"),
    COMPUTED: ("computed tokens", count),
    EACH_COMPUTED: ("computed tokens a request", count),
    "hit_rate": ("hit rate", percent),
    "external_hit_rate": ("from LMCache", percent),
    "cached_prompt_tokens": ("from its cache", count),
    "external_prompt_tokens": ("from a tier", count),
    "disk_prompt_tokens": ("of these from files", count),
    "offload_stored_bytes": ("stored", memory),
    "offload_loaded_bytes": ("loaded", memory),
    "label_accuracy": ("labels right", percent),
    "refused_share": ("refused", percent),
    "retrieval_p50_ms": ("retrieval p50", duration),
    "retrieval_mean_ms": ("retrieval mean", duration),
    "retrieval_share": ("of TTFT", percent),
    "goodput_share": ("within the objective", percent),
    "rejected_share": ("rejected", percent),
}
"""What a summary's figure is called in a table, and how it is written."""
NOT_MEASURED = "Not measured."
LATENCY = ("requests", "ttft_p50_ms", FIRST, "ttft_p95_ms")
REUSED = ("hit_rate", COMPUTED)


def cell_table(cells: Cells, settings: Sequence[str], figures: Sequence[str]) -> MarkdownTable:
    """A row for each combination of `settings`, with the middle of each figure over its repeats,
    and the range where they differ."""
    header = (*(setting.replace("_", " ") for setting in settings), "runs")
    header = (*header, *(COLUMNS[name][0] for name in figures))
    groups: dict[tuple[str, ...], list[StudyCell]] = {}
    for cell in cells:
        groups.setdefault(tuple(cell.settings.get(name, "") for name in settings), []).append(cell)
    rows = (
        (*key, _runs(part), *(_shown_figure(part, name) for name in figures))
        for key, group in sorted(groups.items(), key=lambda item: _order(item[0]))
        for part in (Cells(tuple(group)),)
    )
    return MarkdownTable(header, tuple(rows))


def _runs(cells: Cells) -> str:
    """How many there are, and how many of them have times that mean something."""
    timed = len(cells.sound)
    return str(len(cells)) if timed == len(cells) else f"{len(cells)}, times of {timed}"


def _shown_figure(cells: Cells, name: str) -> str:
    values, write = cells.figures(name), COLUMNS[name][1]
    if not values:
        return ""
    middle = write(cells.middle(name) or 0.0)
    low, high = write(min(values)), write(max(values))
    return middle if low == high else f"{middle} ({low} to {high})"


def _order(key: tuple[str, ...]) -> list[tuple[float, str]]:
    return [(float(part), "") if is_number(part) else (0.0, part) for part in key]


@dataclass(frozen=True, slots=True)
class StudyPicture:
    """A figure, the name of its file, and what it shows for those who do not see it."""

    name: str
    figure: Figure
    shows: str


@dataclass(frozen=True, slots=True)
class StudyAnswer:
    """`sentences` are made from the figures of the cells; the first is the answer in short."""

    question: str
    sentences: tuple[str, ...]
    tables: tuple[MarkdownTable, ...] = ()
    pictures: tuple[StudyPicture, ...] = ()

    @property
    def short(self) -> str:
        """The answer in one sentence."""
        return self.sentences[0] if self.sentences else NOT_MEASURED

    def linked(self, key: str) -> str:
        """The question as a link to its section, and the answer in short."""
        return f"[{self.question}](#{key}) {self.short}"


def section(key: str, answer: StudyAnswer, name: str) -> Iterator[str]:
    """Its paragraphs in Markdown; `name` is that of the study, with which its pictures begin."""
    yield f'<a id="{key}"></a>\n## {answer.question}'
    yield f"**{answer.short}**"
    if answer.sentences[1:]:
        yield "\n".join(f"- {sentence}" for sentence in answer.sentences[1:])
    for picture in answer.pictures:
        yield f"![{picture.shows}]({name}-{picture.name}.svg)"
    for table in answer.tables:
        yield table.markdown
