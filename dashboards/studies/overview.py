"""The report over all studies, from what each has left in a folder."""

import json
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

from dashboards.studies.answer import written
from loadgen.runs.json_file import malformed, read_object

README = "README.md"


@dataclass(frozen=True, slots=True)
class SummaryEntry:
    """A question with the sentences of its answer. `pictures` are files and what they show."""

    key: str
    question: str
    answer: tuple[str, ...]
    pictures: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Summary:
    """A study in short, as its `NAME.json` keeps it."""

    name: str
    title: str
    command: str
    when: str
    machine: str
    versions: str
    entries: tuple[SummaryEntry, ...]

    def write(self, folder: Path) -> None:
        """Keep it beside the page."""
        text = json.dumps(asdict(self), indent=1, ensure_ascii=False)
        (folder / f"{self.name}.json").write_text(f"{text}\n", encoding="utf-8")


def read_summary(path: Path) -> Summary | None:
    """None where there is no such file. Raises UsageError for a damaged one."""
    found = read_object(path)
    if not found:
        return None
    try:
        entries = tuple(_entry(each) for each in found.pop("entries"))
        return Summary(**found, entries=entries)
    except (KeyError, TypeError) as error:
        raise malformed(path, str(error)) from None


def _entry(found: dict[str, Any]) -> SummaryEntry:
    pictures = tuple((str(name), str(shows)) for name, shows in found.pop("pictures"))
    answer = tuple(map(str, found.pop("answer")))
    return SummaryEntry(**found, answer=answer, pictures=pictures)


def write_overview(folder: Path, names: Sequence[str]) -> Path:
    """Write README.md over the studies of these names that were published there."""
    summaries = [found for name in names if (found := read_summary(folder / f"{name}.json"))]
    introduction = (files("dashboards.studies") / "overview.md").read_text(encoding="utf-8")
    blocks = [introduction.strip(), _measured(summaries)]
    for summary in summaries:
        blocks += _study(summary)
    return written(folder / README, blocks)


def _measured(summaries: Sequence[Summary]) -> str:
    rows = ["| study | measured | machine | versions |", "|---|---|---|---|"]
    rows += [
        f"| [{each.name}]({each.name}.md) | {each.when} | {each.machine} | {each.versions} |"
        for each in summaries
    ]
    return "\n".join(rows)


def _study(summary: Summary) -> Iterator[str]:
    yield f"## {summary.title}"
    yield f"```sh\n{summary.command}\n```"
    for entry in summary.entries:
        yield f"### {entry.question}"
        yield "\n".join(f"- {sentence}" for sentence in entry.answer)
        for name, shows in entry.pictures[:1]:
            yield f"![{shows}]({name})"
        yield f"[Tables and commands]({summary.name}.md#{entry.key})"
