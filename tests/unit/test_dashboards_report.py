"""`kvswarm report`: what the page says, against the files it was made of."""

import errno
import html
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_runs import Page, record, requests, write_report_run

from dashboards.figures.marks import MOST_MARKS, MOST_VECTOR_MARKS
from dashboards.figures.server import ServerSeries, hit_rates, tells_hits
from dashboards.figures.timeline import MOST_ROWS, ROW_CELLS
from dashboards.report import page
from dashboards.report.figures_of import METRICS
from dashboards.report.gallery import pictures
from dashboards.report.page import make_page
from dashboards.report.run_files import read_files
from dashboards.report.tables import MOST_CONTEXTS, MOST_ERRORS
from dashboards.report.wording import percent
from loadgen.cli.main import main
from loadgen.cli.report import MOST_RUNS
from loadgen.client.token_times import TokenTimes
from loadgen.compare import wording
from loadgen.compare.comparison import compare
from loadgen.compare.run_reader import read_run
from loadgen.compare.sides import Sides
from loadgen.errors import UsageError
from loadgen.stats.server_counters import ServerSample, server_figures
from loadgen.stats.summary import TAILS
from rag_store.extras import install_command

CONTEXT = {"name": "vllm-context", "usable_tokens": 5120, "argv": {}, "env": {}}


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVSWARM_HOME", str(tmp_path / "home"))


@pytest.fixture(scope="module")
def healthy(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    run = write_report_run(tmp_path_factory.mktemp("runs") / "run")
    return run, make_page([run])


@pytest.fixture
def _words_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing takes a second, and many a test is not about it."""
    monkeypatch.setattr(page, "pictures", lambda runs: [])


def page_of(*paths: Path) -> Page:
    return Page(make_page(paths))


def numbers(cells: list[str]) -> list[float]:
    return [float(cell.replace(",", "")) for cell in cells]


def test_page_says_in_words_and_numbers_what_the_summary_says(healthy: tuple[Path, str]) -> None:
    run, markup = healthy
    shown = Page(markup)
    summary = json.loads((run / "summary.json").read_text())
    ttft = summary["metrics"]["ttft_ms"]
    said = " ".join(shown.texts("p"))
    assert "200 requests about 3 contexts" in said
    assert "from 2 users in a closed loop to vllm with the model tiny" in said
    assert f"First token after {ttft['p50']:.3g} ms / {ttft['p95']:.3g} ms" in said
    assert "66.7 % of the prompt tokens came from the prefix cache; 2,000 tokens were" in said
    assert "cost about 50 ms of time to first token" in said
    assert "the context changed 19 times in 200 requests; in a random order" in said
    assert "it would be about 133 times" in said
    metrics = [name for name in METRICS if summary["metrics"].get(name, {}).get("count")]
    for name in metrics:
        figures = [summary["metrics"][name][each] for each in ("count", "mean", "p50", "p99")]
        cells = numbers(shown.row(name))
        assert [cells[0], cells[1], cells[2], cells[5]] == pytest.approx(figures, rel=0.006), name
    assert shown.row("ok") == ["200 (100 %)"]
    assert shown.row("hit rate of the prefix cache") == ["66.7 %"]
    assert shown.row("CPU time of a token, computed or written") == ["4.55 ms"]
    assert shown.row("a")[:2] == ["70", "70"]
    assert not shown.all("p", role="alert")
    assert {"good", "doubt"} == {*shown.texts("span")} - {""}


def test_the_page_begins_with_links_to_all_its_parts(healthy: tuple[Path, str]) -> None:
    shown = Page(healthy[1])
    (contents,) = shown.texts("nav")
    assert all(caption in contents for caption in shown.texts("caption")[1:])
    places = {each.attributes["id"] for each in shown.elements if "id" in each.attributes}
    assert {each.attributes["href"][1:] for each in shown.all("a")} <= places
    assert {"verdict", "health", "timeline", "table-1"} <= places


@pytest.mark.usefixtures("_words_only")
@pytest.mark.parametrize("broken", [None, {"met": True}, [], {"limits": [3], "verdict": "x"}])
def test_a_gate_is_told_in_words_and_as_a_table(tmp_path: Path, broken: Any) -> None:
    limit = {"limit": "errors<=1%", "met": False, "found": "3 % (n=100)"}
    gate = {"met": False, "verdict": "gate FAILED: 0 of 1 met", "limits": [limit]}
    shown = page_of(write_report_run(tmp_path / "run", summary={"gate": gate}))
    assert "Gate failed: 0 of 1 met: errors<=1% (3 % (n=100))." in shown.texts("p")
    assert shown.row("errors<=1%") == ["✗ not met", "3 % (n=100)"]
    odd = page_of(write_report_run(tmp_path / "odd", summary={"gate": broken}))
    assert "Gate" not in odd.body


@pytest.mark.usefixtures("_words_only")
@pytest.mark.parametrize(
    ("options", "told"),
    [
        ({"arrivals": "gamma", "rate": "2:30,10"}, "in an open loop (gamma, 2:30,10 a second)"),
        ({"arrivals": "trace", "rate": None}, "in an open loop at the times of a trace"),
    ],
)
def test_an_open_loop_is_not_called_closed(
    tmp_path: Path, options: dict[str, Any], told: str
) -> None:
    said = " ".join(page_of(write_report_run(tmp_path / "run", options=options)).texts("p"))
    assert told in said
    assert "closed loop" not in said


@pytest.mark.usefixtures("_words_only")
def test_wrong_labels_are_not_laid_at_the_door_of_retrieval(tmp_path: Path) -> None:
    """`--rag-wrong` makes labels wrong that retrieval found."""
    shares = {"label_accuracy": 0.7, "refused_share": 0.1, "retrieval_share": 0.2}
    said = " ".join(page_of(write_report_run(tmp_path / "run", summary=shares)).texts("p"))
    assert "Of the labels that can be judged 70.0 % were right" in said
    assert "no context for 10.0 % of the questions" in said


@pytest.mark.usefixtures("_words_only")
def test_an_idle_worker_takes_nothing_from_the_engine(tmp_path: Path) -> None:
    run = write_report_run(tmp_path / "run", workers=2)
    with (run / "client_metrics.csv").open("a") as file:
        file.writelines(f"{each},1,1.0,2.0,2.0,,0.0,80.0\n" for each in range(21))
    (found,) = [row for row in page_of(run).rows if row[0] == "engine CPU"]
    assert "the client took 10.0 %" in " ".join(found)


def test_page_stands_alone(healthy: tuple[Path, str]) -> None:
    _, markup = healthy
    shown = Page(markup)
    for element in shown.elements:
        for name in ("src", "href", "xlink:href", "data", "action"):
            target = element.attributes.get(name, "#")
            assert target.startswith(("#", "data:image/png")), target
    assert not {"script", "link", "iframe", "img"} & {each.tag for each in shown.elements}
    assert "@import" not in markup
    assert "url(http" not in markup
    figures = [each.attributes["id"] for each in shown.all("figure")]
    assert figures == [
        "timeline",
        "by-number",
        "over-time",
        "distribution",
        "prompt-length",
        "throughput",
        "hit-rate",
        "kv-usage",
        "memory",
        "outcomes",
    ]
    assert all(each.attributes["aria-label"] for each in shown.all("svg"))
    ids = [each.attributes["id"] for each in shown.elements if "id" in each.attributes]
    assert len(ids) == len(set(ids))
    assert shown.texts("h2") == ["Verdict", "Pictures", "Health", "Tables"]


@pytest.mark.usefixtures("_words_only")
@pytest.mark.parametrize("beyond", [10**400, "inf"], ids=["huge", "infinite"])
def test_options_beyond_all_numbers_are_none(tmp_path: Path, beyond: Any) -> None:
    names = ("run_time", "num_users", "max_lag_ms")
    options = {"arrivals": "closed", **dict.fromkeys(names, beyond)}
    shown = page_of(write_report_run(tmp_path / "run", options=options))
    assert shown.texts("p", role="alert") == []
    assert "of a growing load" not in " ".join(shown.texts("p"))


DEATH = {"engine": "e-1", "at_s": 5.0, "reason": "was ended", "failed": 2, "served_again_s": 1.0}


@pytest.mark.usefixtures("_words_only")
@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"lag_ms": 300.0, "exit_code": 5}, "the client was saturated"),
        ({"summary": {"lost_workers": 1}, "exit_code": 1}, "workers were lost (1)"),
        ({"host_died": True, "exit_code": 3}, "the host died"),
        (
            {"summary": {"engine_deaths": [DEATH]}, "exit_code": 3},
            "an engine died during the run (e-1 was ended at 5.0 s: 2 requests failed because of"
            " it, served again after 1.0 s)",
        ),
        ({"options": {"run_time": 60}}, "it was interrupted: 20 s of the 60 s asked for"),
    ],
)
def test_what_makes_a_run_invalid_stands_at_the_top(
    tmp_path: Path, change: dict[str, Any], told: str
) -> None:
    shown = page_of(write_report_run(tmp_path / "run", **change))
    (alert,) = shown.texts("p", role="alert")
    assert alert.startswith(f"run is not valid: {told}")
    tags = [each.tag for each in shown.elements if "role" in each.attributes or each.tag == "h2"]
    assert tags[:2] == ["p", "h2"]


@pytest.mark.usefixtures("_words_only")
@pytest.mark.parametrize(
    ("times", "told"),
    [
        (TokenTimes(tokens=100, shared=4, reads=96), "kernel's clock; 4.0 % are those"),
        (TokenTimes(tokens=100), "event loop's clock; 0 % are those"),
        (TokenTimes(tokens=100, late=9, late_ms=360.0, reads=9), "9.0 % are not their own"),
        (
            TokenTimes(tokens=100, reads=200, unstamped_reads=24, full_reads=3),
            "token before; 12.0 % of reads without the kernel's time; 1.5 % of reads of 16 KB, the",
        ),
    ],
)
def test_page_says_whose_the_times_of_tokens_are(
    tmp_path: Path, times: TokenTimes, told: str
) -> None:
    run = write_report_run(tmp_path / "run", summary={"token_times": times.figures()})
    assert told in html.unescape(make_page([run]))


@pytest.mark.filterwarnings("error")
def test_text_from_outside_is_never_markup(tmp_path: Path) -> None:
    evil = '"><script>alert(1)</script><img src=x onerror=a()> $x_{1}$ &amp;'
    others = ("plain", "\x1b[31m中文\r\n")
    records = [record(each, evil if each % 2 else others[each // 2 % 2]) for each in range(60)]
    records.append(record(60, outcome="http_error", error=f"500 {evil}"))
    run = write_report_run(tmp_path / "run", records, model=evil, notes=[evil])
    shown = page_of(run)
    assert not {"script", "img"} & {each.tag for each in shown.elements}
    assert not any("onerror" in each.attributes for each in shown.elements)
    assert ["1", f"500 {evil}"] in shown.rows
    assert shown.row(evil)[0] == "30"
    assert any(evil[:20] in text for text in shown.texts("text"))
    assert any("中文" in text for text in shown.texts("text"))
    assert f"with the model {evil}." in shown.body


def _killed(run: Path) -> None:
    (run / "summary.json").unlink()
    description = json.loads((run / "run.json").read_text())
    del description["exit_code"], description["host_died"]
    (run / "run.json").write_text(json.dumps(description))
    text = (run / "requests.csv").read_text()
    (run / "requests.csv").write_text(text[:-40])


def _only_requests(run: Path) -> None:
    for file in run.iterdir():
        if file.name != "requests.csv":
            file.unlink()


def _only_summary(run: Path) -> None:
    for file in run.iterdir():
        if file.name != "summary.json":
            file.unlink()


def _no_rows(run: Path) -> None:
    header = (run / "requests.csv").read_text().splitlines()[0]
    (run / "requests.csv").write_text(header + "\n")
    (run / "summary.json").unlink()


def _no_content(run: Path) -> None:
    for file in run.iterdir():
        file.write_text("")


def _no_lines(run: Path) -> None:
    (run / "requests.csv").write_text("a" * 140_000)


def _of_other_forms(run: Path) -> None:
    odd = dict.fromkeys(("options", "target", "machine", "versions", "notes", "users"), "x")
    (run / "run.json").write_text(json.dumps(odd | {"exit_code": 0, "start_unix_s": 1e300}))
    (run / "summary.json").write_text('{"metrics": {"ttft_ms": 3}, "outcomes": {"ok": "x"}}')
    (run / "server_metrics.csv").write_text("at_s,reachable\nx,true\n")
    (run / "client_metrics.csv").write_text("at_s,cpu_share\nnan,inf\n")


@pytest.mark.parametrize(
    ("breaking", "told", "figures"),
    [
        (_killed, "1 row(s) were not whole", "199 requests about 3 contexts"),
        (_only_requests, "there is no run.json", "200 requests about 3 contexts"),
        (_only_summary, "there is no requests.csv", "200 requests, prompts of"),
        (_no_rows, "requests.csv has no rows", "No request was recorded"),
        (_no_lines, "requests.csv breaks off after 0 rows", "200 requests, prompts of"),
        (_no_content, "run.json is broken", "No request was recorded"),
        (_of_other_forms, "run.json: options is not as", "200 requests about 3 contexts"),
    ],
)
@pytest.mark.filterwarnings("error")
def test_broken_runs_give_a_page_that_says_what_is_missing(
    tmp_path: Path, breaking: Any, told: str, figures: str
) -> None:
    run = write_report_run(tmp_path / "run")
    breaking(run)
    shown = page_of(run)
    assert told in " ".join(row[2] for row in shown.rows if row[0] == "files")
    assert figures in shown.body
    assert "nan" not in shown.body


@pytest.mark.usefixtures("_words_only")
def test_figures_without_a_summary_are_those_of_the_requests(tmp_path: Path) -> None:
    run = write_report_run(tmp_path / "run")
    told = page_of(run)
    (run / "summary.json").unlink()
    computed = page_of(run)
    for metric in ("ttft_ms", "e2e_ms", "prompt_tokens", "cached_tokens"):
        assert numbers(computed.row(metric)) == pytest.approx(numbers(told.row(metric)), rel=0.011)
    assert "computed from requests.csv" in computed.body


@pytest.mark.usefixtures("_words_only")
@pytest.mark.parametrize("with_summary", [True, False])
@pytest.mark.parametrize(("count", "is_known"), [(19, False), (20, True)])
def test_a_p95_of_fewer_than_20_requests_is_not_told(
    tmp_path: Path, count: int, is_known: bool, with_summary: bool
) -> None:
    run = write_report_run(tmp_path / "run", requests(count, ("a",)))
    if not with_summary:
        (run / "summary.json").unlink()
    shown = page_of(run)
    known = [cell != "-" for cell in shown.row("ttft_ms")]
    assert known == [True, True, True, True, is_known, False, True]
    assert (shown.row("a")[-1] != "-") == is_known
    (said,) = [each for each in shown.texts("p") if each.startswith("First token after")]
    assert (" / - and" in said) == (not is_known)
    assert TAILS in shown.body


def test_comparison_has_the_verdicts_of_compare(tmp_path: Path) -> None:
    base = write_report_run(tmp_path / "base", requests(400))
    faster = [
        record(each, ttft_ms=20.0 + each % 5, e2e_ms=60.0 + each % 5, cached_tokens=1000)
        for each in range(400)
    ]
    new = write_report_run(tmp_path / "new", faster, target=CONTEXT)
    shown = page_of(base, new)
    expected = compare(Sides((read_run(base),), (read_run(new),)))
    names = {row.statistic.name for row in expected.rows}
    rows = [row for row in shown.rows if row[0] in names]
    assert [(row[0], row[3], row[4], row[5]) for row in rows] == [
        (row.statistic.name, wording.change(row), wording.bounds(row), wording.verdict(row))
        for row in expected.rows
    ]
    assert {"better", "no evidence"} <= {row.verdict for row in expected.rows}
    (first,) = shown.texts("p", **{"class": "compared first"})
    better = [row for row in expected.rows if row.verdict == "better"]
    assert first.startswith("new against base: better in ")
    assert all(row.statistic.name in first for row in better)
    latency = next(row for row in better if row.statistic.metric.form == "values")
    size, bracket, factor = wording.change(latency)[1:].partition(" (")
    assert f"{latency.statistic.name} ({size} shorter{bracket}{factor}, " in first
    unsure = next(row for row in expected.rows if row.verdict == "no evidence")
    (told,) = [each for each in shown.texts("p") if each.endswith(": no evidence of a difference.")]
    assert told.startswith(f"{unsure.statistic.name} ({wording.change(unsure)[1:]}")
    assert f"interval {wording.bounds(unsure)})" in told
    assert shown.row("target") == ["vllm", "vllm-context"]
    strips = shown.all("svg")[0].attributes["aria-label"]
    assert strips.startswith("base: 400 requests")
    assert "new: 400 requests" in strips


def test_a_run_whose_name_begins_with_an_underscore_is_in_the_legends(tmp_path: Path) -> None:
    names = ("_first", "second")
    runs = [read_files(write_report_run(tmp_path / name), name) for name in names]
    drawn = {each.name: each.svg for each in pictures(runs)}
    for name in ("throughput", "distribution", "over-time", "hit-rate", "kv-usage", "memory"):
        assert all(run in drawn[name] for run in names), name


@pytest.mark.usefixtures("_words_only")
def test_runs_that_cannot_be_compared_are_shown_with_the_reason(tmp_path: Path) -> None:
    base = write_report_run(tmp_path / "base")
    new = write_report_run(tmp_path / "new", seed=1)
    with pytest.raises(UsageError) as refused:
        compare(Sides((read_run(base),), (read_run(new),)))
    shown = page_of(base, new)
    told = shown.texts("p", **{"class": "compared first"})
    assert told == [f"new cannot be compared with base: {refused.value}."]
    assert {"Contexts of base", "Contexts of new"} <= set(shown.texts("caption"))


@pytest.mark.usefixtures("_words_only")
def test_an_invalid_run_decides_nothing(tmp_path: Path) -> None:
    base = write_report_run(tmp_path / "base")
    new = write_report_run(tmp_path / "new", lag_ms=300.0, exit_code=5)
    told = page_of(base, new).texts("p", **{"class": "compared"})
    assert told[-1] == "Do not decide by this: new is not valid."


def test_documentation_names_the_limits_of_a_page() -> None:
    text = (Path(__file__).parents[2] / "docs" / "guides" / "report.md").read_text()
    told = " ".join(text.split())
    assert f"up to {MOST_RUNS} runs" in told
    assert f"at most {MOST_MARKS:,} marks" in told
    assert f"beyond {MOST_VECTOR_MARKS:,} they are an image" in told
    assert f"more than {MOST_ROWS * ROW_CELLS:,} requests shows {MOST_ROWS} stretches of" in told
    assert f"the {MOST_CONTEXTS} with most requests, one of errors the {MOST_ERRORS} most" in told


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main(["report", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.usefixtures("_words_only")
def test_command_writes_into_the_run_or_what_holds_the_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    late = write_report_run(tmp_path / "both" / "a-late", start_unix_s=2e9)
    write_report_run(tmp_path / "both" / "z-early", start_unix_s=1e9)
    assert call(capsys, late) == (0, f"{late / 'report.html'}\n", "")
    assert call(capsys, tmp_path / "both") == (0, f"{tmp_path / 'both' / 'report.html'}\n", "")
    shown = Page((tmp_path / "both" / "report.html").read_text())
    assert shown.texts("h1") == ["z-early against a-late"]


@pytest.mark.usefixtures("_words_only")
def test_command_renews_reports_and_leaves_other_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_report_run(tmp_path / "run")
    assert call(capsys, run)[0] == 0
    assert call(capsys, run)[0] == 0
    notes = tmp_path / "notes.html"
    notes.write_text("<h1>mine</h1>")
    code, out, err = call(capsys, run, "-o", notes)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "notes.html is no report of kvswarm" in err
    assert notes.read_text() == "<h1>mine</h1>"


@pytest.mark.usefixtures("_words_only")
@pytest.mark.parametrize("description", [{}, {"model": "\ud800"}])
def test_what_utf_8_cannot_hold_is_replaced(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], description: dict[str, str]
) -> None:
    run = write_report_run(tmp_path / "run")
    told = json.loads((run / "run.json").read_text()) | description
    (run / "run.json").write_text(json.dumps(told))
    run = run.rename(tmp_path / "r\udcff")
    assert call(capsys, run) == (0, f"{tmp_path}/r\\udcff/report.html\n", "")
    assert "r?" in (run / "report.html").read_text()


def _no_space(path: Path, page: bytes) -> int:
    path.touch()
    raise OSError(errno.ENOSPC, "No space left on device", str(path))


@pytest.mark.usefixtures("_words_only")
def test_a_full_disk_leaves_the_earlier_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = write_report_run(tmp_path / "run")
    assert call(capsys, run)[0] == 0
    before = {file: file.read_bytes() for file in run.iterdir()}
    monkeypatch.setattr(Path, "write_bytes", _no_space)
    code, _, err = call(capsys, run)
    assert (code, err.count("\n")) == (2, 1)
    assert "report.html cannot be written (No space left on device)" in err
    assert {file: file.read_bytes() for file in run.iterdir()} == before


@pytest.mark.timeout(60)
@pytest.mark.usefixtures("_words_only")
def test_a_link_a_pipe_and_the_mode_of_a_page_stay(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_report_run(tmp_path / "run")
    file, link, pipe = (tmp_path / name for name in ("page.html", "link.html", "pipe"))
    link.symlink_to(file)
    assert call(capsys, run, "-o", link)[0] == 0
    file.chmod(0o640)
    assert call(capsys, run, "-o", link)[0] == 0
    assert (link.is_symlink(), file.stat().st_mode & 0o777) == (True, 0o640)
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE) as reader:
        assert call(capsys, run, "-o", pipe)[0] == 0
        assert reader.communicate()[0] == file.read_bytes()
    assert pipe.is_fifo()


def test_a_page_needs_a_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    code, out, err = call(capsys, write_report_run(tmp_path / "run"), "-o", "-")
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert "-o - names no file" in err


@pytest.mark.usefixtures("_words_only")
def test_one_run_needs_no_noise(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = [write_report_run(tmp_path / name) for name in ("a", "b")]
    (tmp_path / "home").mkdir()
    (tmp_path / "home" / "noise.json").write_text("{")
    assert call(capsys, runs[0])[0] == 0
    assert call(capsys, *runs)[0] == 2


@pytest.mark.parametrize("name", ["missing", "empty", "file"])
def test_what_is_no_run_is_refused_in_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    code, out, err = call(capsys, tmp_path / name)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert str(tmp_path / name) in err


def test_without_matplotlib_the_extra_is_named(tmp_path: Path) -> None:
    run = write_report_run(tmp_path / "run")
    script = (
        "import sys; sys.modules['matplotlib'] = None\n"
        f"from loadgen.cli.main import main; sys.exit(main(['report', {str(run)!r}]))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert f": {install_command('report')}\n" in done.stderr


@pytest.mark.usefixtures("_words_only")
def test_figures_count_from_the_last_reset_as_the_summary_does(tmp_path: Path) -> None:
    run = write_report_run(tmp_path / "run", summary={"stats_reset_s": 10.0})
    shown = page_of(run)
    assert "statistics were reset at 10 s" in shown.body
    assert "times in 101 requests; in a random" in shown.body


@pytest.mark.usefixtures("_words_only")
def test_a_host_that_leaves_zeros_out_has_one_cached_share_on_all_of_the_page(
    tmp_path: Path,
) -> None:
    """Only every fourth reply carries `cached_tokens`: 900 of 1,000; the others took none."""
    records = [
        record(n, "ab"[n % 2], prompt_tokens=1000, cached_tokens=None if n % 4 else 900)
        for n in range(200)
    ]
    run = write_report_run(tmp_path / "run", records)
    (run / "server_metrics.csv").unlink()
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(summary | {"server": {}}))
    shown = page_of(run)
    assert "By the replies 22.5 % of the prompt tokens were cached." in shown.body
    assert shown.row("a")[3] == "45.0 %"
    assert shown.row("b")[3] == "0 %"
    (run / "summary.json").unlink()
    assert "By the replies 22.5 % of the prompt tokens were cached." in page_of(run).body


def test_prompts_of_a_host_that_tells_no_cached_tokens_are_told_as_all(tmp_path: Path) -> None:
    records = [record(each, cached_tokens=None, ttft_ms=50.0 + each % 50) for each in range(200)]
    shown = pictures([read_files(write_report_run(tmp_path / "run", records), "run")])
    (said,) = [each.caption for each in shown if each.name == "prompt-length"]
    assert "All prompts: 100 ms per 1,000 tokens" in said
    assert "ostly" not in said


def test_engines_without_counters_by_source_have_a_picture_of_their_hits() -> None:
    at_s = np.arange(21.0)
    hits = {"prompt_tokens": 100 * at_s, "prefix_cache_hits": 60 * at_s}
    series = ServerSeries(at_s, hits)
    first, last = (
        ServerSample(at, True, **{name: float(each[int(at)]) for name, each in hits.items()})
        for at in (0.0, 20.0)
    )
    assert server_figures(first, last)["hit_rate"] == 0.6
    assert tells_hits(series)
    _, rates = hit_rates(series)
    assert rates["prefix cache"] == pytest.approx(np.full(20, 0.6))
    assert not rates["external"].any()
    assert not tells_hits(ServerSeries(at_s, {"prompt_tokens": 100 * at_s}))


@pytest.mark.parametrize(
    ("share", "said"),
    [(1, "100 %"), (1.0, "100 %"), (0.99999, "99.99 %"), (0.9996, "99.96 %"), (0.9994, "99.9 %")],
)
def test_only_the_whole_is_100_percent(share: float, said: str) -> None:
    assert percent(share) == said
