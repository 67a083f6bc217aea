"""Every command in a fenced block of the pages: run here where this machine is all it takes, else
behind a marker that says what it takes, and held against the parsers that would read it."""

import argparse
import json
import re
import shlex
import shutil
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from unittest.mock import patch

import pytest
from report_runs import write_report_run
from test_docs import PAGES, ROOT

from dashboards.report import page as report_page
from loadgen.cli.advise import advise_parser
from loadgen.cli.main import main
from loadgen.cli.saturate import parse_search
from loadgen.cli.simulate import run_words
from loadgen.launch.arguments import find_locustfile, parse_run
from loadgen.launch.checking import ask_locust, last_line
from loadgen.launch.target_run import plan_target_runs
from loadgen.runs.json_file import write_json
from loadgen.sweep.table import MadeCell

FENCE = re.compile(r"^(?:<!-- needs: ([a-z]+) -->\n)?```(\w*)\n(.*?)^```", re.M | re.S)
NEEDS = {"", "gpu", "cluster", "engine", "model", "server"}
HERE = ("curve", "tiers", "compare", "report", "noise", "targets", "rag", "why")
"""Commands that read files and write files."""
WITHOUT_A_MODEL = ("--embedder", "hashing")
"""For `kvswarm rag` where a library is made: what the default one finds is not the question."""
SWARMS = ("run", "ui", "saturate")
VALUES = {"OLD": "http://127.0.0.1:8000", "NEW": "http://127.0.0.1:8001", "n": "1"}
"""Variables that a script of a page sets."""
IN_REPOSITORY = re.compile(r"(?:docs|dashboards|loadgen|locustfiles|scheduler_plugin|scripts)/\S+")


@dataclass(frozen=True)
class Line:
    """A command of a page, as a shell would split it, and what its block needs."""

    page: str
    needs: str
    words: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.page}: {shlex.join(self.words)}"

    @property
    def is_run_here(self) -> bool:
        if self.words[:2] == ("kvswarm", "rag"):
            return self.words[2] != "serve"
        if self.words[:2] == ("kvswarm", "sweep"):
            return not {"--dry-run", "--table"}.isdisjoint(self.words)
        return self.words[0] == "kvswarm" and self.words[1] in HERE


def lines_of(page: Path) -> Iterator[Line]:
    for needs, language, text in FENCE.findall(page.read_text()):
        assert needs in NEEDS, f"{page.name}: {needs}"
        if language == "yaml":
            text = "\n".join(re.findall(r"^ +- (kvswarm .*)$", text, re.M))
        elif language != "sh":
            continue
        for name, value in VALUES.items():
            text = text.replace(f'"${name}"', value).replace(f"${name}", value)
        for each in re.sub(r"\\\n", " ", text).splitlines():
            for part in re.split(r" && | > |; do$", each):
                words = tuple(shlex.split(part, comments=True))
                if words and words[0] not in ("for", "done", ".", "compare.xml"):
                    yield Line(page.name, needs, words)


LINES = [line for page in PAGES for line in lines_of(page)]
OURS = [line for line in LINES if line.words[0] == "kvswarm"]


def test_pages_have_commands() -> None:
    assert len(OURS) > 40
    assert len([line for line in OURS if line.is_run_here]) > 15


@pytest.mark.parametrize("line", [line for line in LINES if not line.needs], ids=str)
def test_what_has_no_marker_needs_only_this_machine(line: Line) -> None:
    first, *rest = line.words
    match first:
        case "kvswarm":
            assert line.is_run_here, "say above its block what it needs"
        case "make":
            targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)
            assert set(rest) <= set(targets)
        case "pip":
            assert rest[0] == "install"
            assert_installable(rest[-1])
        case "python3":
            assert rest[:2] == ["-m", "venv"]
        case "scripts/test.sh":
            assert all((ROOT / each).is_dir() for each in rest)
        case _:
            assert first == "export", "say above its block what it needs"


def assert_installable(what: str) -> None:
    folder, _, extras = what.removesuffix("]").partition("[")
    known = tomllib.loads((ROOT / folder / "pyproject.toml").read_text())["project"]
    named = set(extras.split(",")) - {""}
    assert named <= known.get("optional-dependencies", {}).keys()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_that_a_command_names_are_there(page: Path) -> None:
    named = [word for line in lines_of(page) for word in line.words if IN_REPOSITORY.match(word)]
    assert [word for word in named if not (ROOT / word).exists()] == []


@pytest.fixture(scope="module")
def before(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where a reader has made the files that pages show, and nothing has been run."""
    folder = tmp_path_factory.mktemp("reader")
    for known, name, guide in (
        ("[gate]", "gate.toml", "ci-gate"),
        ("[axes]", "cache-size.toml", "sweep"),
    ):
        text = (ROOT / "docs" / "guides" / f"{guide}.md").read_text()
        (shown,) = [each for each in re.findall(r"```toml\n(.*?)```", text, re.S) if known in each]
        (folder / name).write_text(shown)
    trace = {"timestamp": 0, "input_length": 10, "output_length": 2, "hash_ids": [1]}
    (folder / "trace.jsonl").write_text(json.dumps(trace) + "\n")
    known = {"qid": "1", "question": "Who elects the leader of a Raft cluster?"}
    for name, doc_id in (("answerable", "raft-consensus"), ("unanswerable", None)):
        (folder / f"{name}.jsonl").write_text(json.dumps({**known, "doc_id": doc_id}) + "\n")
    for name in ("loadgen", "locustfiles"):
        (folder / name).symlink_to(ROOT / name)
    return folder


@pytest.fixture(scope="module")
def after(before: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with the runs that pages speak of."""
    folder = tmp_path_factory.mktemp("runs") / "reader"
    shutil.copytree(before, folder, symlinks=True)
    runs = "mine simulated ordered before after a b first order/vllm order/vllm-context demo/one"
    cell = "cache-size/cells/users=1-r1"
    for name in (*runs.split(), "demo/two", *(f"same-{n}" for n in range(1, 6)), cell):
        write_report_run(folder / "runs" / name)
    MadeCell("users=1", {"users": "1"}, {}, 1, 0, 1, 0, 1.0).write(folder / "runs" / cell)
    write_json(
        folder / "runs" / "cache-size" / "sweep.json", {"definition": {"name": "cache-size"}}
    )
    for name in ("base", "new", *(f"{side}{n}" for side in "ab" for n in (1, 2, 3))):
        write_report_run(folder / name, seed=int(name[1:]) if name[1:].isdecimal() else 0)
    for n in range(1, 5):
        write_report_run(folder / f"old{n}", seed=n)
        write_report_run(folder / f"new{n}", seed=n)
    return folder


def expanded(words: tuple[str, ...]) -> list[str]:
    """As a shell does with the names of files."""
    found = (sorted(Path().glob(word)) if word.endswith("?") else [] for word in words)
    return [str(n) for word, names in zip(words, found, strict=True) for n in names or [word]]


@pytest.mark.parametrize("line", [line for line in OURS if line.is_run_here], ids=str)
def test_it_runs(
    line: Line,
    before: Path,
    after: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(before if "--dry-run" in line.words else after)
    monkeypatch.setenv("XDG_CACHE_HOME", str(after / "cache"))
    monkeypatch.setattr(report_page, "pictures", lambda runs: [])  # they take a second each
    more = WITHOUT_A_MODEL if line.words[1] == "rag" else ()
    assert main([*expanded(line.words[1:]), *more]) == 0, capsys.readouterr().err
    assert capsys.readouterr().out


def swarm_words(line: Line) -> list[str] | None:
    """The command line behind `kvswarm run`, also of what is only simulated; None without any."""
    words = list(line.words)
    if words[:2] == ["locust", "-f"]:
        words[:3] = ["kvswarm", "run", words[2]]
    if words[0] != "kvswarm" or "--worker" in words:
        return None  # a worker is told by its master what to check
    if words[1] in ("simulate", "advise"):
        own = None if words[1] == "simulate" else advise_parser()
        planned = run_words(words[2:], own)
        return None if planned is None else [*planned, "--target", "vllm"]
    if words[1] not in SWARMS:
        return None
    return trial(words[2:]) if words[1] == "saturate" else words[2:]


def trial(words: list[str]) -> list[str]:
    """Of a search: at the rate or with the users that it would begin with."""
    plan, _ = parse_search(words)
    load = "--rate" if plan.space.by == "rate" else "--users"
    return [*plan.words, f"{load}={plan.space.first:g}"]


def test_every_swarm_would_start(before: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the checks of `kvswarm run`, all of a locustfile's in one process."""
    monkeypatch.chdir(before)
    swarms: dict[Path, list[tuple[Line, object]]] = {}
    for line in LINES:
        words = swarm_words(line)
        if words is None:
            continue
        run = parse_run("run", words)
        target = plan_target_runs(run)[0] if run.targets else None
        swarms.setdefault(find_locustfile(run.file), []).append((line, (run, target)))
    assert sum(map(len, swarms.values())) > 15
    for file, checks in swarms.items():
        answer = ask_locust(file, [check for _, check in checks])["results"]
        said = [
            (str(line), last_line(each["said"]))
            for (line, _), each in zip(checks, answer, strict=False)
            if each["code"]
        ]
        assert said == []
        assert len(answer) == len(checks)


class ParsedError(Exception):
    """The command line was read to its end."""


@pytest.mark.parametrize(
    "line",
    [line for line in OURS if not line.is_run_here and swarm_words(line) is None],
    ids=str,
)
def test_the_parser_takes_it(line: Line) -> None:
    parse = argparse.ArgumentParser.parse_args

    def read(parser: argparse.ArgumentParser, words: list[str]) -> None:
        parse(parser, words)
        raise ParsedError

    with patch.object(argparse.ArgumentParser, "parse_args", read), pytest.raises(ParsedError):
        main(list(line.words[1:]))
