"""What the documentation says, against the code: options, columns, exit codes, links, examples."""

import argparse
import json
import re
import signal
import subprocess
import sys
from contextlib import redirect_stdout, suppress
from functools import cache
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from loadgen.cli.main import HELP, main
from loadgen.errors import TargetError
from loadgen.launch.terminal import Interruption
from loadgen.record import BATCH_OUTCOMES, OUTCOMES
from loadgen.stats.counts import Counts
from loadgen.stats.metrics import figures
from loadgen.stats.self_watch import ClientHealth
from loadgen.stats.server_counters import FIGURES, NO_FIGURES, ServerAccumulator
from loadgen.stats.summary import FIELDS
from loadgen.swarm.leading.closing import summarize_run
from scripts.reference.options import option_row

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
README, RUNS = ROOT / "README.md", DOCS / "start" / "reading-a-run.md"
WRITTEN = (
    README,
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    *(page for group in ("start", "guides", "reference") for page in (DOCS / group).glob("*.md")),
)
"""Pages that people write; those of docs/measurements are made by commands."""
PAGES = (*WRITTEN, *(DOCS / "measurements").glob("*.md"))
MADE = "<!-- Made by `make reference`"
MOST_WORDS, MOST_README_WORDS, LONGEST_SENTENCE = 25_000, 900, 30
"""Of all pages, of the README, of a sentence."""
COMMANDS = (
    ["run"],
    ["ui"],
    ["demo"],
    ["targets"],
    ["serve"],
    ["compare"],
    ["report"],
    ["noise"],
    ["sweep"],
    ["saturate"],
    ["study"],
    ["kv", "record"],
    ["kv", "extract"],
    ["kv", "link"],
    ["kv", "codecs"],
    ["kv", "serve"],
    ["curve"],
    ["tiers"],
    ["calibrate"],
    ["simulate"],
    ["advise"],
    ["why"],
    ["policies"],
    ["policies", "attention"],
    ["policies", "train-gqa"],
    ["ladder"],
    ["model", "build"],
    ["rag", "index"],
    ["rag", "serve"],
    ["rag", "label"],
    ["rag", "eval"],
    ["rag", "fit-threshold"],
)

FOREIGN = {
    *("--no-deps", "--disable-log-stats", "--config", "--storage", "--homepath"),
    *("--only", "--repeats", "--seconds", "--served", "--runs", "--for", "--more", "--epochs"),
    *("--kv-cache-dtype", "--set", "--wait", "--reuse-values", "--from-literal", "--patch-file"),
    "--gpu-memory-utilization",
}
"""Options of other programs, and of our benchmarks, that a page speaks of."""
OPTION = re.compile(r"(?<![\w-])--[a-z][a-z0-9-]*")
LOCUST_SIDE = """
import json
import loadgen.swarm.plugin
from loadgen.stats.metrics import CATALOG
from locust.argument_parser import get_parser
actions = get_parser()._actions
print(json.dumps({
    "defaults": {flag: action.default for action in actions for flag in action.option_strings},
    "rows": [each.row for each in CATALOG.values() if each.row],
}, default=str))
"""


@cache
def locust_side() -> dict[str, Any]:
    """Asked of another process: importing Locust patches threads and sockets."""
    command = [sys.executable, "-c", LOCUST_SIDE]
    return dict(json.loads(subprocess.check_output(command, cwd=ROOT, timeout=60)))


def section(page: Path, heading: str) -> str:
    """The text below a heading, up to the next one of the same level."""
    level = heading.split()[0]
    _, _, rest = page.read_text().partition(f"\n{heading}\n")
    assert rest, f"{page.name} has no {heading!r}"
    return re.split(rf"^{level} ", rest, flags=re.MULTILINE)[0]


def table(text: str, head: str) -> list[list[str]]:
    """The cells of each row of the first table whose header starts with `head`."""
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith(f"| {head} |"):
            next(lines)
            rows = (line for line in iter(lambda: next(lines, ""), ""))
            return [[cell.strip() for cell in row.strip("|").split("|")] for row in rows]
    raise AssertionError(f"no table with {head!r}")


def names(rows: list[list[str]]) -> list[str]:
    """What stands in backticks in the first column, in this order."""
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row[0])]


@cache
def own_options() -> set[str]:
    """Those in the help of any command."""
    with redirect_stdout(StringIO()) as told:
        for command in COMMANDS:
            with suppress(SystemExit):
                main([*command, "--help"])
    return set(OPTION.findall(told.getvalue()))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_option_exists(page: Path) -> None:
    engine = set(OPTION.findall((ROOT / "loadgen/targets/catalog.toml").read_text()))
    known = FOREIGN | own_options() | engine | locust_side()["defaults"].keys()
    assert set(OPTION.findall(page.read_text())) <= known


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_command_and_make_target_exists(page: Path) -> None:
    lines = code(page.read_text())
    commands = re.findall(r"^(?:\$ )?kvswarm ([a-z]+)", lines, re.MULTILINE)
    assert all(f"\n  kvswarm {command} " in HELP for command in commands)
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert set(re.findall(r"\bmake ([a-z]+(?:-[a-z]+)*)", lines)) <= set(targets)


def code(text: str) -> str:
    """Code blocks and code spans, one a line."""
    blocks = re.findall(r"```\w*\n(.*?)```", text, re.S)
    spans = re.findall(r"`([^`\n]+)`", re.sub(r"```.*?```", "", text, flags=re.S))
    return "\n".join([*blocks, *spans])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s]+)", page.read_text())
    broken = [link for link in links if "://" not in link and not (page.parent / link).is_file()]
    assert broken == []


def test_where_to_change_what_names_what_is_there() -> None:
    rows = table(section(ROOT / "CONTRIBUTING.md", "## Where do I change what"), "to add")
    named = re.findall(r"`([\w./-]+/[\w./-]+)`", " ".join(cell for row in rows for cell in row))
    assert len(named) > 15
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_every_outcome_is_described() -> None:
    assert tuple(names(table(RUNS.read_text(), "outcome"))) == OUTCOMES
    assert tuple(names(table(RUNS.read_text(), "batch outcome"))) == BATCH_OUTCOMES


def test_the_reference_is_what_the_code_says() -> None:
    command = [sys.executable, "-W", "ignore", "-m", "scripts.reference", "--check"]
    done = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_choices_and_names_stand_in_the_reference_as_they_are_typed() -> None:
    parser = argparse.ArgumentParser()
    choices = ("user", "none", "conversation")
    by = parser.add_argument("--by", choices=choices, help="conversation = the trace's")
    said = "`conversation` = the trace's: `user`, `none`, `conversation`"
    assert option_row(by, parser)[2] == said
    all_told = parser.add_argument("--x", choices=("a1", "b1"), help="what is sent: a1 or b1")
    assert option_row(all_told, parser)[2] == "what is sent: a1 or b1"


def test_exit_codes_of_servers_and_engines_are_described() -> None:
    listed = section(DOCS / "reference" / "exit-codes.md", "## All others")
    said = dict(re.findall(r"^- `(\d+)`: (.*)$", listed, re.MULTILINE))
    assert "Ctrl-C" in said[str(Interruption(signal.SIGINT).exit_code)]
    assert "engine" in said[str(TargetError.exit_code)]
    assert said.keys() == {"0", "1", "2", "3", "130"}


def test_every_field_of_a_summary_is_described() -> None:
    assert summary_of_nothing().keys() - {each.name for each in figures()} == FIELDS.keys()
    assert list(NO_FIGURES) == list(FIGURES)


def summary_of_nothing() -> dict[str, Any]:
    run = SimpleNamespace(
        preparation=SimpleNamespace(options=SimpleNamespace(max_lag_ms=100.0)),
        ledger=SimpleNamespace(counts=Counts(), clients=ClientHealth()),
        server=SimpleNamespace(counted=ServerAccumulator(), note=None, replicas={}),
        fleet=SimpleNamespace(deaths=[]),
        directory=None,
        workers=None,
        stats_reset_s=None,
    )
    return summarize_run(cast(Any, run))


def test_pages_are_as_short_as_promised() -> None:
    words = {page: len(page.read_text().split()) for page in WRITTEN}
    assert sum(words.values()) <= MOST_WORDS
    assert words[README] <= MOST_README_WORDS


@pytest.mark.parametrize(
    "page", [p for p in WRITTEN if MADE not in p.read_text()], ids=lambda p: p.name
)
def test_sentences_are_short(page: Path) -> None:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    long = [said for said in sentences(text) if len(said.split()) > LONGEST_SENTENCE]
    assert long == []


def sentences(text: str) -> list[str]:
    """Of paragraphs and list items; a link counts as its words, a cell of a table is left out."""
    text = re.sub(r"!?\[([^\]]*)\]\([^)]*\)", r"\1", text)
    blocks = re.split(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.)\s)", text)
    prose = [" ".join(block.split()) for block in blocks if not block.lstrip().startswith("|")]
    return [said for block in prose for said in re.split(r"(?<=[.!?:;])\s+", block)]


def test_the_locustfile_in_the_readme_loads(tmp_path: Path) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", section(README, "## Your own locustfile"), re.S)
    (tmp_path / "reader.py").write_text(example)
    command = [sys.executable, "-m", "locust", "-f", str(tmp_path / "reader.py"), "--list"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert "Reader" in done.stdout, done.stderr
