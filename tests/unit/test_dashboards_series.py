"""The pages of sweeps and of searches, against the files they are made of."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import astuple, fields, replace
from pathlib import Path
from typing import Any

import pytest
from report_runs import Page

from dashboards.report import sweep_page as sweep_module
from dashboards.report.saturation_page import read_points, saturation_page
from dashboards.report.sweep_page import axes_of, sweep_page
from loadgen.cli.main import main
from loadgen.errors import UsageError
from loadgen.runs.csv_log import to_csv
from loadgen.runs.json_file import write_json
from loadgen.saturate.folder import SATURATE_JSON, TRIALS_CSV, Point
from loadgen.stats.summary import TAILS
from loadgen.sweep.table import MadeCell, read_cells

CELLS = [(target, users) for target in ("vllm", "vllm-context") for users in ("1", "2", "10")]


def write_cell(
    folder: Path, axes: Mapping[str, str], repeat: int, ttft_ms: float, count: int = 20
) -> Path:
    name = "_".join(axes.values())
    run = folder / "cells" / f"{name}-r{repeat}"
    run.mkdir(parents=True)
    MadeCell(name, axes, {"contexts": "8"}, repeat, repeat - 1, repeat, 0, 1.0).write(run)
    described = {"start_unix_s": 1_700_000_000 + repeat, "exit_code": 0}
    write_json(run / "run.json", described)
    metric = {"count": count, "mean": ttft_ms, "p50": ttft_ms, "p95": 2 * ttft_ms, "p99": ttft_ms}
    summary = {
        "requests": count,
        "outcomes": {"ok": count},
        "client_saturated": False,
        "lost_workers": 0,
        "metrics": {"ttft_ms": metric},
    }
    write_json(run / "summary.json", summary)
    return run


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """TTFT is 100 ms and 10 more for each user, half of it in context order; a repeat adds 1."""
    write_json(tmp_path / "sweep.json", {"definition": {"name": "by-<users>"}})
    for target, users in CELLS:
        whole = 100 + 10 * float(users)
        for repeat in (1, 2, 3):
            ttft_ms = (whole if target == "vllm" else whole / 2) + repeat
            write_cell(tmp_path, {"target": target, "users": users}, repeat, ttft_ms)
    return tmp_path


def test_a_sweep_is_told_over_each_of_its_axes(sweep: Path) -> None:
    page = Page(sweep_page(sweep))
    said = " ".join(page.texts("p"))
    assert "18 runs of 6 cells came to their end." in said
    assert "TTFT p50 (ms) by target: 122 at vllm and 62 at vllm-context" in said
    assert "by users: 84.5 at 1, 92 at 2 and 152 at 10 (medians" in said
    assert page.row("target vllm, users 10") == ["3", "202", "404"]
    markup = sweep_page(sweep)
    assert "by-&lt;users&gt;" in markup
    for axis, lines in (
        ("users", ("target vllm", "target vllm-context")),
        ("target", ("users 2",)),
    ):
        assert f'id="over-{axis}"' in markup
        assert all(f">{line}<" in markup for line in lines)


def test_a_p95_of_fewer_than_20_requests_is_not_told(sweep: Path) -> None:
    write_cell(sweep, {"target": "vllm", "users": "500"}, 1, 9000.0, count=19)
    page = Page(sweep_page(sweep))
    assert page.row("target vllm, users 500") == ["1", "9,000", "-"]
    assert page.row("target vllm, users 10") == ["3", "202", "404"]
    assert f"Medians of the runs of a cell. {TAILS}" in page.texts("p")


def test_only_what_differs_in_an_axis_alone_is_set_against_each_other(sweep: Path) -> None:
    write_cell(sweep, {"target": "vllm", "users": "500"}, 1, 9000.0)
    said = " ".join(Page(sweep_page(sweep)).texts("p"))
    assert "by target: 122 at vllm and 62 at vllm-context" in said


def test_a_value_with_fewer_repeats_is_set_against_the_same_ones(sweep: Path) -> None:
    for repeat in (2, 3):
        shutil.rmtree(sweep / "cells" / f"vllm_10-r{repeat}")
    said = " ".join(Page(sweep_page(sweep)).texts("p"))
    assert "by target: 121 at vllm and 61 at vllm-context" in said


def test_cells_without_an_option_do_not_change_the_order_of_its_numbers(sweep: Path) -> None:
    write_cell(sweep, {"target": "vllm"}, 1, 100.0)
    assert axes_of(read_cells(sweep))["users"] == ["1", "2", "10"]


def test_cells_without_a_numeric_option_stand_before_those_that_have_it(tmp_path: Path) -> None:
    write_json(tmp_path / "sweep.json", {"definition": {"name": "caches"}})
    for target, size, ttft_ms in (("vllm", "", 100.0), ("vllm-lmcache", "1", 90.0)):
        write_cell(tmp_path, {"target": target, "l1-gb": size}, 1, ttft_ms)
    write_cell(tmp_path, {"target": "vllm-lmcache", "l1-gb": "2"}, 1, 80.0)
    markup = sweep_page(tmp_path)
    assert markup.index(">l1-gb -<") < markup.index(">l1-gb 1<") < markup.index(">l1-gb 2<")


def test_a_page_that_cannot_be_drawn_leaves_a_sweep_its_exit_code(
    sweep: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(folder: Path) -> str:
        raise KeyError("elsewhere")

    monkeypatch.setattr(sweep_module, "sweep_page", fail)
    assert main(["sweep", "--table", str(sweep)]) == 0
    said = capsys.readouterr().err
    assert "no page: KeyError('elsewhere')" in said
    assert f"`kvswarm report {sweep}`" in said


def test_a_run_that_decides_nothing_is_named_and_left_out(sweep: Path) -> None:
    run = sweep / "cells" / "vllm_1-r1"
    summary = json.loads((run / "summary.json").read_text())
    write_json(run / "summary.json", {**summary, "client_saturated": True})
    page = Page(sweep_page(sweep))
    assert "1 run decides nothing and is left out here" in " ".join(page.texts("p"))
    assert page.row("target vllm, users 1")[0] == "2"
    assert "saturated" in page.row("vllm_1-r1")[0]


@pytest.mark.parametrize("start_unix_s", [1e300, "yesterday"])
def test_a_time_that_is_none_is_left_out(sweep: Path, start_unix_s: object) -> None:
    begun = "2023-11-14 22:13:21 UTC"
    assert begun in sweep_page(sweep)
    for run in (sweep / "cells").iterdir():
        write_json(run / "run.json", {"start_unix_s": start_unix_s, "exit_code": 0})
    assert " UTC" not in sweep_page(sweep)


def test_a_sweep_without_a_run_is_refused(tmp_path: Path) -> None:
    write_json(tmp_path / "sweep.json", {"definition": {"name": "empty"}})
    with pytest.raises(UsageError, match="came to its end"):
        sweep_page(tmp_path)


POINT = Point(
    trial=1,
    load=5.0,
    repeat=1,
    seed=0,
    seconds=30,
    warm_up_s=0.5,
    settled=None,
    arrivals=150,
    ok=150,
    failed=0,
    unserved=0,
    offered_per_s=5.0,
    ok_per_s=5.0,
    metric="ttft_ms",
    p50_ms=90.0,
    p95_ms=120.0,
    p99_ms=130.0,
    goodput=1.0,
    goodput_per_s=5.0,
    backlog_growth=None,
    verdict="met",
    reason="",
    run="trials/01-5",
)
POINTS = [
    POINT,
    replace(POINT, trial=2, load=20.0, p95_ms=900.0, verdict="missed", reason="the queue <grew>"),
    replace(POINT, trial=3, load=10.0, p95_ms=None, goodput=None, verdict="undecided"),
]


@pytest.fixture
def search(tmp_path: Path) -> Path:
    header = [each.name for each in fields(Point)]
    (tmp_path / TRIALS_CSV).write_text(to_csv([header]) + to_csv(map(astuple, POINTS)))
    definition: dict[str, Any] = {
        "objective": "ttft_ms.p95<=500, errors<=1%",
        "by": "rate",
        "from": 5.0,
        "to": None,
        "tolerance": 0.05,
        "command": ["unordered", "--host=http://127.0.0.1:1"],
    }
    result = {"met": 5.0, "not_met": 20.0, "said": ["highest rate found to meet it: 5/s."]}
    write_json(tmp_path / SATURATE_JSON, {"definition": definition, "result": result})
    return tmp_path


def test_a_search_is_shown_with_its_edge_and_its_trials(search: Path) -> None:
    assert read_points(search / TRIALS_CSV) == POINTS
    markup = saturation_page(search)
    page = Page(markup)
    assert "highest rate found to meet it: 5/s." in page.texts("p")
    for label in ("met at 5/s", "not met at 20/s", "objective: ttft_ms.p95&lt;=500"):
        assert label in markup
    assert page.row("20/s")[0] == "not met"
    assert page.row("20/s")[-1] == "the queue <grew>"
    assert page.row("10/s")[4] == "-"
    assert TAILS in " ".join(page.texts("p"))


def test_the_page_of_a_series_is_renewed_by_the_command_that_makes_reports(
    search: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["report", str(search)]) == 0
    assert capsys.readouterr().out.strip() == str(search / "report.html")
    (search / TRIALS_CSV).write_text("trial,load\n1,many\n")
    assert main(["report", str(search)]) == 2
    said = capsys.readouterr().err
    assert "trials.csv" in said
    assert "Traceback" not in said
    (search / SATURATE_JSON).write_text("{}")
    assert main(["report", str(search)]) == 2
