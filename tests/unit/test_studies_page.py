"""Studies as they come: definitions that a sweep takes, pages and the overview made of runs."""

import itertools
import json
import re
import shutil
import tomllib
from argparse import Namespace
from importlib.resources import files
from pathlib import Path
from types import SimpleNamespace

import pytest
from study_cells import Made, noisy, write_run

from dashboards.studies import page
from dashboards.studies.catalog import STUDIES
from dashboards.studies.corpora import SIZES, all_documents, write_corpora
from dashboards.studies.study import StudyPlan, estimate, planned_s, read_plan
from loadgen.cli import kv_study
from loadgen.cli.made_by import without_folders
from loadgen.cli.study import STUDY_JSON, study_command
from loadgen.errors import UsageError
from loadgen.launch.checking import check_cells
from loadgen.runs.exit_code import SATURATED
from loadgen.sweep.definition import Definition
from loadgen.sweep.matrix import cells_of
from loadgen.sweep.table import MadeCell
from loadgen.workload.corpus import load_corpus

MOST_BYTES = 100_000
DEFINITIONS = Path(str(files("dashboards.studies"))) / "definitions"
PLANS = [(name, quick) for name in STUDIES for quick in (True, False)]


@pytest.mark.parametrize(("name", "quick"), PLANS)
def test_every_part_is_a_sweep_and_all_are_one(name: str, quick: bool, tmp_path: Path) -> None:
    plan = read_plan(STUDIES[name], quick)
    asked = {part for question in plan.study.questions for part in question.parts}
    assert asked == set(plan.parts)
    merged = plan.merged(tmp_path)
    assert plan.runs == plan.repeats * len(cells_of(merged))
    assert plan.engine_starts <= 7 or not quick


@pytest.mark.parametrize("name", STUDIES)
def test_quick_changes_parts_that_are_there_and_measures_less(name: str) -> None:
    full, quick = (read_plan(STUDIES[name], quick) for quick in (False, True))
    less = tomllib.loads((DEFINITIONS / name / "quick.toml").read_text())
    assert less.keys() <= {*full.parts, "every"}
    assert quick.parts.keys() == full.parts.keys()
    assert all(quick.parts[part].repeats < full.parts[part].repeats for part in full.parts)
    assert quick.runs < full.runs / 2


@pytest.mark.parametrize("names", [("task1", "task2"), ("task3",)])
def test_a_sweep_accepts_the_options(names: tuple[str, ...], tmp_path: Path) -> None:
    """One cell of each part, by the check that a sweep makes before it starts anything."""
    write_corpora(tmp_path)
    plans = [read_plan(STUDIES[name], quick=False) for name in names]
    cells = [
        {key: str(value).replace("{corpora}", str(tmp_path)) for key, value in first.items()}
        for plan in plans
        for part in plan.parts.values()
        for first in [cells_of(part)[0].options]
    ]
    locustfile = next(iter(plans[0].parts.values())).locustfile
    definition = Definition(name="check", locustfile=locustfile, cells=cells)
    assert len(check_cells(definition, cells_of(definition), tmp_path / "out")) == len(cells)


def test_parts_that_differ_in_their_repeats_are_refused(tmp_path: Path) -> None:
    plan = read_plan(STUDIES["task1"], quick=True)
    other = Definition(name="other", repeats=7, cells=[{"users": 1}], locustfile="batched")
    with pytest.raises(UsageError, match="repeats: must be as in the other parts"):
        StudyPlan(plan.study, True, {**plan.parts, "other": other}).merged(tmp_path)


def test_runs_take_no_less_than_their_time() -> None:
    """10 starts of 40 s, and 112 runs of 8 s and 5 s around them."""
    assert "112 runs, 10 engine starts, about 31 min" in estimate(
        read_plan(STUDIES["task3"], quick=False)
    )


@pytest.mark.parametrize("name", STUDIES)
def test_a_study_takes_at_most_an_hour(name: str) -> None:
    plan = read_plan(STUDIES[name], quick=False)
    assert planned_s(plan) <= 3600


def test_corpora_hold_the_first_documents_with_their_questions(tmp_path: Path) -> None:
    """The largest one has others behind all of them, which nobody asks about."""
    write_corpora(tmp_path)
    whole = load_corpus()
    small, large = (load_corpus(tmp_path / str(size)) for size in SIZES)
    assert small.documents == whole.documents[: SIZES[0]]
    assert large.documents[: all_documents()] == whole.documents
    assert len({each.text for each in large.documents}) > 0.95 * SIZES[1] == 0.95 * 900
    for corpus in (small, large):
        for document in whole.documents[: SIZES[0]]:
            assert corpus.questions[document.doc_id] == whole.questions[document.doc_id]


def made_study(folder: Path, name: str) -> StudyPlan:
    """All runs of a quick study: by context is twice as fast as first come."""
    plan = read_plan(STUDIES[name], quick=True)
    definition = plan.merged(folder / "corpora")
    steps = itertools.product(cells_of(definition), range(1, plan.repeats + 1))
    for position, (cell, repeat) in enumerate(steps, 1):
        run = folder / "cells" / f"{cell.cell_id}-r{repeat}"
        middle_ms = 200 if cell.options.get("target") == "vllm-context" else 400
        times = noisy(middle_ms, 0.1, position)
        write_run(run, Made(times, contexts=["a", "b", "c"] * 20), repeat)
        summary = {"requests": 60, "server": {"computed_prompt_tokens": middle_ms * 100}}
        (run / "summary.json").write_text(json.dumps(summary))
        fixed = {key: str(value) for key, value in definition.options.items()}
        MadeCell(cell.cell_id, cell.axes, fixed, repeat, repeat, position, 0, 20.0).write(run)
    (folder / "cells.csv").write_text(f"run\n{folder}/cells/x\n")
    (folder / STUDY_JSON).write_text(json.dumps({"study": name, "quick": True}))
    return plan


@pytest.fixture
def _words_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes seconds, and most tests are not about it."""
    monkeypatch.setattr(page, "save_svg", lambda figure, path: None)


def test_the_page_answers_every_question(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = made_study(tmp_path / "runs", "task2")
    docs = tmp_path / "docs"
    assert study_command(["report", str(tmp_path / "runs"), "-o", str(docs)]) == 0
    text = (docs / "task2.md").read_text()
    assert capsys.readouterr().out.strip() == str(docs / "task2.md")
    assert text.count("\n## ") == len(plan.study.questions) + 1
    assert "times as fast with 5,120 and 40,960 tokens of cache" in text
    assert "Not all of it was measured" not in text
    assert "Each cell was run 3 times" in text
    assert "It was made with `--quick`, which is for trying" in text
    assert text.count("Each engine was started once for all its repeats.") == 1
    assert "an unknown machine, unknown versions" in text
    pictures = re.findall(r"!\[[^]]+\]\(([^)]+)\)", text)
    assert len(pictures) == len(plan.study.questions)
    assert all((docs / name).stat().st_size < MOST_BYTES for name in pictures)
    overview = (docs / "README.md").read_text()
    assert "times as fast with 5,120 and 40,960 tokens of cache" in overview
    assert all(f"task2.md#{question.key}" in overview for question in plan.study.questions)
    assert str(tmp_path) not in (docs / "task2-cells.csv").read_text()


@pytest.mark.usefixtures("_words_only")
def test_runs_with_a_late_client_are_named_and_if_many_remarked(tmp_path: Path) -> None:
    made_study(tmp_path, "task2")
    runs = sorted((tmp_path / "cells").glob("*"))
    for run in runs[: len(runs) // 2]:
        made = json.loads((run / "cell.json").read_text())
        (run / "cell.json").write_text(json.dumps({**made, "exit_code": SATURATED}))
        told = {"requests": 60, "client_saturated": True, "client_saturated_reason": "busy"}
        (run / "summary.json").write_text(json.dumps(told))
    assert study_command(["report", str(tmp_path)]) == 0
    text = (tmp_path / "task2.md").read_text()
    assert f"In {len(runs) // 2} of {len(runs)} runs the client was late" in text
    assert f"<summary>The {len(runs) // 2} runs with faults</summary>" in text
    assert f"- times of {runs[0].name}: " in text


@pytest.mark.usefixtures("_words_only")
@pytest.mark.parametrize("is_asked_from_there", [False, True])
def test_a_page_does_not_tell_where_its_study_lies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_asked_from_there: bool
) -> None:
    made_study(tmp_path, "task3")
    named = next(run for run in (tmp_path / "cells").glob("*-r1") if "_tmp-" in run.name)
    (named / "run.json").write_text(json.dumps({"exit_code": 3}))
    (tmp_path / "cells.csv").write_text(f"corpus,run\n{tmp_path}/corpora/6,cells/{named.name}\n")
    if is_asked_from_there:
        monkeypatch.chdir(tmp_path.parent)
    folder = tmp_path.name if is_asked_from_there else str(tmp_path)
    assert study_command(["report", folder]) == 0
    for name in ("task3.md", "task3-cells.csv"):
        text = (tmp_path / name).read_text()
        assert "_corpora" in text
        assert "pytest-of" not in text
        assert f"{tmp_path.parent}" not in text


@pytest.mark.usefixtures("_words_only")
def test_a_page_does_not_tell_where_logs_lie(tmp_path: Path) -> None:
    made_study(tmp_path, "task2")
    run = min((tmp_path / "cells").glob("*"))
    made = json.loads((run / "cell.json").read_text())
    error = "router exited with code 1: no port (log: /home/me/x y/router.log)"
    (run / "cell.json").write_text(json.dumps({**made, "error": error}))
    (tmp_path / "cells.csv").write_text(f"run,fault\ncells/{run.name},{error}\n")
    assert study_command(["report", str(tmp_path)]) == 0
    assert "router exited with code 1: no port\n" in (tmp_path / "task2.md").read_text()
    assert "no port\n" in (tmp_path / "task2-cells.csv").read_text()


@pytest.mark.usefixtures("_words_only")
def test_what_was_not_measured_is_said(tmp_path: Path) -> None:
    made_study(tmp_path, "task2")
    for run in (tmp_path / "cells").glob("*users-16*"):
        shutil.rmtree(run)
    damaged, other, gone = sorted((tmp_path / "cells").glob("*"))[:3]
    (damaged / "run.json").write_text(json.dumps({"exit_code": 3}))
    machine = {"cpus": 64, "cpu": "Some CPU", "memory_gb": 256, "platform": "Linux-6"}
    target = {"argv": {"vllm": ["--dtype", "float32"]}}
    described = {"exit_code": 0, "machine": machine, "target": target}
    (other / "run.json").write_text(json.dumps(described))
    shutil.rmtree(gone)
    assert study_command(["report", str(tmp_path)]) == 0
    text = (tmp_path / "task2.md").read_text()
    assert "users: 6 runs are missing" in text
    assert f"{damaged.name}: the host died" in text
    assert "Each cell was run 2 to 3 times" in text
    assert "64 cores (Some CPU), 256 GB, Linux, engine in float32 (1 run)" in text
    assert "runs began with caches that were not shown to be empty" in text


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["report"], "name the directory of a study"),
        (["report", "nowhere"], "nowhere holds no study"),
        (["report", "here", "--out", "there"], "name the directory of a study alone"),
        (["report", "here", "--quick"], "name the directory of a study alone"),
        (["task1", "here"], "a word too many"),
        (["task9"], "invalid choice"),
        (["task1", "--out", "/dev/null/x"], "^--out /dev/null/x cannot be written"),
        (["task1", "-o", "/dev/null/x"], "^--page /dev/null/x cannot be written"),
    ],
)
def test_wrong_use_is_one_line(words: list[str], message: str) -> None:
    with pytest.raises(UsageError, match=message) as caught:
        study_command(words)
    assert "\n" not in str(caught.value)


def test_a_study_of_a_recording_is_reported_by_its_own_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Which measures nothing that is there."""
    given = ["--quick", "--out", "elsewhere", "--corpus=texts", "-o", "docs"]
    kept = {"study": "task4", "arguments": without_folders(given)}
    (tmp_path / STUDY_JSON).write_text(json.dumps(kept))
    asked: list[list[str]] = []
    monkeypatch.setattr(kv_study, "kv_study_command", lambda words: asked.append(words) or 0)
    assert study_command(["report", str(tmp_path), "-o", "pages"]) == 0
    kept_words = ["--quick", "--corpus", "texts"]
    assert asked == [[*kept_words, "--out", str(tmp_path), "--page", "pages"]]


def test_another_study_is_not_mixed_in(tmp_path: Path) -> None:
    made_study(tmp_path, "task2")
    with pytest.raises(UsageError, match="holds something else"):
        study_command(["task1", "--quick", "--out", str(tmp_path)])


def test_a_study_is_the_same_one_from_wherever_it_is_asked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its page is written anew with its runs on an engine, not without them."""
    monkeypatch.setattr("kv_reading.recording.read_facts", lambda _: SimpleNamespace(model="m"))
    parsed = Namespace(model=None, corpus=None, targets=None, quick=False)
    out = tmp_path / "out"
    out.mkdir()
    there = kv_study._serving(parsed, out / "recording", out)
    monkeypatch.chdir(tmp_path)
    assert kv_study._serving(parsed, Path("out/recording"), Path("out")) == there
