"""The page of a run with a warm-up, without a steady state, or with an objective."""

import json
from pathlib import Path
from random import Random
from typing import Any

import pytest
from report_runs import DESCRIPTION, Page, record, write_report_run

from dashboards.report import page
from dashboards.report.page import make_page
from loadgen.cli.main import main
from loadgen.record import RequestRecord


@pytest.fixture(autouse=True)
def _words_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSWARM_HOME", str(tmp_path / "home"))
    monkeypatch.setattr(page, "pictures", lambda runs: [])


def page_of(*paths: Path) -> Page:
    return Page(make_page(paths))


def requests(count: int = 300, cold: int = 0, growth: float = 0.0) -> list[RequestRecord]:
    """One each tenth of a second; the first `cold` take a second longer."""
    random = Random(1)
    values = [(80 + random.random() * 40) * (1 + growth * at / count) for at in range(count)]
    return [
        record(at, ttft_ms=ms + 1000 * (at < cold), e2e_ms=ms + 1000 * (at < cold) + 100)
        for at, ms in enumerate(values)
    ]


def options(**more: Any) -> dict[str, Any]:
    return {"options": DESCRIPTION["options"] | more}


def test_a_run_that_never_settled_is_doubted(tmp_path: Path) -> None:
    shown = page_of(write_report_run(tmp_path / "run", requests(growth=2.0)))
    state, finding = shown.row("steady state")
    assert state == "doubt"
    assert "never settled" in finding
    assert "steady state" in next(text for text in shown.texts("p") if "Mind before" in text)


def test_a_steady_run_is_good_and_has_no_table_of_a_warmup(tmp_path: Path) -> None:
    shown = page_of(write_report_run(tmp_path / "run", requests()))
    assert shown.row("steady state")[0] == "good"
    assert "Warm-up" not in shown.texts("caption")


def test_figures_with_and_without_a_warmup_stand_side_by_side(tmp_path: Path) -> None:
    shown = page_of(write_report_run(tmp_path / "run", requests(cold=50)))
    state, finding = shown.row("steady state")
    assert state == "doubt"
    assert finding.startswith("50 requests of the first 5 s are a warm-up")
    everything = [float(cell.replace(",", "")) for cell in shown.row("ttft_ms, all")]
    rest = [float(cell) for cell in shown.row("ttft_ms, from 5 s on")]
    assert (everything[0], rest[0]) == (300, 250)
    assert everything[1] == pytest.approx(267, abs=4)
    assert rest[1] == pytest.approx(100, abs=2)
    assert everything[3] > 1000 > rest[3]


def test_what_warmup_left_out_is_left_out_of_the_page(tmp_path: Path) -> None:
    told = {"warmup": {"seconds": 5.0, "requests": 50, "failed": 2}}
    run = write_report_run(tmp_path / "run", requests(cold=50), summary=told, **options(warmup=5.0))
    shown = page_of(run)
    assert shown.row("warm-up") == [
        "note",
        "the first 5 s are left out (--warmup), 50 requests, of which 2 failed",
    ]
    assert shown.row("steady state")[0] == "good"
    assert shown.row("a")[0] == "250"
    (run / "summary.json").unlink()
    assert page_of(run).row("ttft_ms")[0] == "250"


def test_runs_are_compared_without_the_longest_warmup_of_them(tmp_path: Path) -> None:
    base = write_report_run(tmp_path / "base", requests(cold=50))
    new = write_report_run(tmp_path / "new", requests(cold=50), **options(warmup=5.0))
    shown = page_of(base, new)
    base_p95, new_p95, *_ = shown.row("ttft_ms.p95")
    assert base_p95 == new_p95
    assert float(base_p95.split()[0]) < 130


@pytest.mark.parametrize("with_summary", [True, False])
def test_goodput_is_told_with_its_objective(tmp_path: Path, with_summary: bool) -> None:
    records = [record(at, slo_met=at % 4 > 0) for at in range(200)]
    run = write_report_run(tmp_path / "run", records, **options(slo="ttft_ms<=50"))
    if not with_summary:
        (run / "summary.json").unlink()
    (told,) = (text for text in page_of(run).texts("p") if "objective" in text)
    assert told == (
        "75.0 % of the finished requests kept the objective ttft_ms<=50: a goodput of 7.49"
        " requests/s."
    )
    plain = page_of(write_report_run(tmp_path / "plain"))
    assert "objective" not in plain.body


def test_requests_that_were_sent_again_are_told(tmp_path: Path) -> None:
    run = write_report_run(tmp_path / "run", summary={"resends": 3})
    assert "3 were sent again" in page_of(run).row("outcomes")[1]
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(summary | {"resends": 0}))
    assert "sent again" not in page_of(run).row("outcomes")[1]


def test_a_run_named_twice_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_report_run(tmp_path / "run")
    code = main(["report", str(run), f"{run}/../run"])
    out, err = capsys.readouterr()
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "is given 2 times: name each run once" in err
    assert not (run / "report.html").exists()
