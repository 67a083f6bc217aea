"""What is read out of run directories and exported CSV files; Locust's were made by Locust 2.47."""

import csv
import json
from pathlib import Path

import pytest
from compare_runs import write_requests, write_run

from loadgen.compare.comparison import compare
from loadgen.compare.estimate import estimate
from loadgen.compare.gate import parse_gate
from loadgen.compare.locust_csv import HISTORY_HEADER, STATS_HEADER
from loadgen.compare.metrics import DEFAULTS, parse_statistic
from loadgen.compare.run import ComparedRun
from loadgen.compare.run_reader import read_run
from loadgen.compare.series import Ratio
from loadgen.compare.sides import Sides
from loadgen.errors import UsageError
from loadgen.runs.requests import NEEDED as REQUESTS_HEADER

LOCUST = Path(__file__).parents[1] / "data" / "locust"
OURS, STATS, HISTORY = map(",".join, (REQUESTS_HEADER, STATS_HEADER, HISTORY_HEADER))


def figure(run: ComparedRun, name: str) -> float:
    data = run.data(parse_statistic(name))
    assert data is not None
    return estimate(data, parse_statistic(name), 1).value


def told(run: ComparedRun) -> list[str]:
    return [name for name in DEFAULTS if run.has(parse_statistic(name))]


def test_figures_of_our_requests(tmp_path: Path) -> None:
    write_requests(tmp_path / "any.csv", [10.0, 20.0, 30.0, 60.0])
    run = read_run(tmp_path / "any.csv")
    assert figure(run, "ttft_ms.mean") == 30
    assert figure(run, "ttft_ms.p50") == 25
    assert figure(run, "requests_per_s") == pytest.approx(4 / 0.4)
    assert figure(run, "output_tokens_per_s") == pytest.approx(32 / 0.4)
    assert figure(run, "cached_share") == pytest.approx(0.6)
    assert figure(run, "errors") == 0
    assert run.facts is None


def test_failed_requests_have_no_latency_and_take_their_time(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", [10.0] * 6)
    file = path / "requests.csv"
    lines = file.read_text().splitlines()
    lines[1] = lines[1].replace("ok", "timeout").replace(",10.0,", ",9999,")
    lines[2] = lines[2].replace("ok", "cancelled")
    file.write_text("\n".join(lines) + "\n")
    run = read_run(path)
    assert figure(run, "ttft_ms.mean") == 10
    assert figure(run, "requests_per_s") == pytest.approx(4 / 0.6)
    assert figure(run, "errors") == pytest.approx(1 / 5)


def test_late_requests_break_a_gate_and_are_told(tmp_path: Path) -> None:
    base, new = (write_run(tmp_path / name, [10.0] * 400) for name in ("base", "new"))
    rows = list(csv.DictReader((new / "requests.csv").open(newline="")))
    for row in rows[::5]:
        row |= {"outcome": "timeout", "late": "true", "ttft_ms": "", "end_s": "49.9"}
    with (new / "requests.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    limits = parse_gate("ttft_ms.p95<=+10%, errors<=0.1%")
    found = compare(Sides((read_run(base),), (read_run(new),)), limits=limits)
    assert found.judgements[1].outcome == "broken"
    assert "the estimate is beyond the limit" in found.judgements[0].reason
    assert figure(read_run(new), "ttft_ms.p95") == pytest.approx(37_500, rel=0.1)
    assert "80 requests were cut off late" in " ".join(read_run(new).remarks)


@pytest.mark.parametrize("outcome", ["connect_error", "http_error", "timeout", "malformed"])
def test_requests_that_failed_before_they_were_sent_count(outcome: str, tmp_path: Path) -> None:
    file = tmp_path / "requests.csv"
    header = "request_id,scheduled_s,sent_s,end_s,ttft_ms,e2e_ms,output_tokens,outcome"
    rows = ["0,0,0,1,5,7,3,ok", f"1,1,,4,,,,{outcome}", "2,4,,9,,,,cancelled"]
    file.write_text("\n".join([header, *rows]) + "\n")
    run = read_run(file)
    assert figure(run, "errors") == 0.5
    assert figure(run, "requests_per_s") == 1 / 4


def test_requests_stand_in_the_order_of_sending(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", [1.0, 2.0, 3.0, 4.0])
    file = path / "requests.csv"
    header, *rows = file.read_text().splitlines()
    file.write_text("\n".join([header, *reversed(rows)]) + "\n")
    assert list(read_run(path).series["ttft_ms"].value) == [1, 2, 3, 4]  # type: ignore[union-attr]


def test_a_row_that_a_crash_cut_off_is_left_out(tmp_path: Path) -> None:
    file = tmp_path / "requests.csv"
    write_requests(file, [10.0, 20.0, 30.0])
    file.write_text(file.read_text()[:-30])
    assert figure(read_run(file), "ttft_ms.mean") == 15


def test_older_files_without_later_columns(tmp_path: Path) -> None:
    file = tmp_path / "old.csv"
    columns = "request_id,sent_s,end_s,ttft_ms,e2e_ms,output_tokens,outcome"
    file.write_text(f"{columns}\n0,0,1,5,7,3,ok\n")
    run = read_run(file)
    assert figure(run, "e2e_ms.mean") == 7
    assert run.samples(parse_statistic("cached_share")) == 0


@pytest.mark.parametrize("name", ["base_stats.csv", "download.csv"])
def test_locusts_statistics_are_totals(name: str) -> None:
    run = read_run(LOCUST / name)
    means = ["response_ms.mean", "response_ms.p50", "response_ms.p95"]
    assert told(run) == [*means, "requests_per_s", "errors"]
    assert all(run.data(parse_statistic(name)) is None for name in told(run))


def test_figures_of_locusts_statistics() -> None:
    totals = read_run(LOCUST / "base_stats.csv").totals
    lines = (LOCUST / "base_stats.csv").read_text().splitlines()
    last = dict(zip(lines[0].split(","), lines[-1].split(","), strict=True))
    requests, failures = int(last["Request Count"]), int(last["Failure Count"])
    assert totals["errors"] == (failures / requests, requests)
    assert totals["response_ms.p95"] == (float(last["95%"]), requests)
    per_s = float(last["Requests/s"]) - float(last["Failures/s"])
    assert totals["requests_per_s"] == (pytest.approx(per_s), requests - failures)


@pytest.mark.parametrize("side", ["base", "new"])  # new: with --csv-full-history
def test_locusts_history_gives_what_its_totals_give(side: str) -> None:
    history, totals = (
        read_run(LOCUST / f"{side}{kind}.csv") for kind in ("_stats_history", "_stats")
    )
    for name in ("response_ms.mean", "errors", "requests_per_s"):
        assert figure(history, name) == pytest.approx(totals.totals[name][0], rel=0.05)
    series = history.series["response_ms"]
    assert isinstance(series, Ratio)
    assert 30 <= series.samples <= 45
    assert history.has(parse_statistic("response_ms.p95")) == (side == "base")


def test_a_row_of_locusts_tables() -> None:
    whole, row = (
        read_run(LOCUST / "new_stats_history.csv", name) for name in ("Aggregated", "/version")
    )
    assert figure(row, "errors") == 0 < figure(whole, "errors")
    with pytest.raises(UsageError, match=r"no row named '/other'.*'/version'"):
        read_run(LOCUST / "new_stats_history.csv", "/other")


def test_rows_of_the_same_name_are_told_apart_by_their_type(tmp_path: Path) -> None:
    file = tmp_path / "stats.csv"
    file.write_text(f"{STATS}\nGET,/x,10,0,5\nPOST,/x,20,0,7\n,Aggregated,30,0,6\n")
    assert read_run(file, "POST /x").totals["response_ms.mean"] == (7, 20)
    with pytest.raises(UsageError, match=r"one of \['GET /x', 'POST /x'\]"):
        read_run(file, "/x")


def test_a_reset_in_locusts_history_starts_it_anew(tmp_path: Path) -> None:
    header, *rows = (LOCUST / "base_stats_history.csv").read_text().splitlines()
    middle = len(rows) // 2
    resets = [
        row.replace(row.split(",")[0], str(2_000_000_000 + n), 1) for n, row in enumerate(rows)
    ]
    file = tmp_path / "history.csv"
    file.write_text("\n".join([header, *rows[:middle], *resets]) + "\n")
    again = read_run(file).series["errors"]
    assert again.samples == read_run(LOCUST / "base_stats_history.csv").series["errors"].samples


def test_our_rows_in_locusts_table(tmp_path: Path) -> None:
    lines = (LOCUST / "base_stats.csv").read_text().splitlines()
    cells = lines[1].split(",")
    ours = {"TTFT (ms)": "12.5", "Output tokens/s": "9"}
    rows = [",".join(["LLM", name, *cells[2:5], mean, *cells[6:]]) for name, mean in ours.items()]
    file = tmp_path / "x.csv"
    file.write_text("\n".join([*lines[:-1], *rows, lines[-1]]) + "\n")
    totals = read_run(file).totals
    assert totals["ttft_ms.mean"][0] == 12.5
    assert totals["output_tokens_per_s"][0] == float(cells[9])


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("", "is empty"),
        ("a,b\n1\n1,2\n", "none of the files compare reads"),
        (f"{OURS}\n0,x,1,1,1,1,ok\n", "row 2"),
        ("Method,Name,Error,Occurrences,First Seen,Last Seen\n", "no times"),
        (f"{OURS}\n0,1\n0,0,1,1,1,1,ok\n", "row 2: 2 cells, header 7"),
        (f"{OURS}\n0,0,1,inf,1,1,ok\n", "row 2: ttft_ms is 'inf'"),
        (f"{OURS}\n0,0,1,-5,1,1,ok\n", "row 2: ttft_ms is '-5'"),
        (f"{OURS}\n0,0,1,1e308,1,1,ok\n", "row 2: ttft_ms is '1e308'"),
        (f"{OURS}\n0,-1e308,1,1,1,1,ok\n", "row 2: sent_s is '-1e308'"),
        (f"{STATS}\n", "a header and no rows"),
        (f"{STATS}\n,Aggregated,,0,5\n", "Request Count is not known"),
        (f"{STATS}\n,Aggregated,N/A,0,5\n", "Request Count is not known"),
        (f"{STATS}\n,Aggregated,inf,0,5\n", "row 2: Request Count is 'inf'"),
        (f"{STATS}\n,Aggregated,3,4,5\n", "Failure Count is above Request Count"),
        (f"{HISTORY}\n9,,Aggregated,3,0,5\n", "no two rows"),
        (f"{HISTORY}\n9,,Aggregated,3,0,5\n10,,Aggregated,,0,5\n", "Count is not known"),
    ],
)
def test_files_that_cannot_be_read(content: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "file.csv"
    file.write_text(content)
    with pytest.raises(UsageError, match=message) as raised:
        read_run(file)
    assert "\n" not in str(raised.value)


def test_what_is_no_run(tmp_path: Path) -> None:
    for path, message in ((tmp_path, "no requests.csv"), (tmp_path / "not", "no run at")):
        with pytest.raises(UsageError, match=message):
            read_run(path)


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("summary.json", '{"stats_reset_s": "x"}'),
        ("summary.json", f'{{"stats_reset_s": {10**400}}}'),
        ("summary.json", "[]"),
        ("run.json", "[" * 100_000),
        ("run.json", '{"options": ["x"]}'),
        ("run.json", '{"options": {"contexts": 6}, "se'),
    ],
)
def test_what_a_run_says_must_be_readable(name: str, content: str, tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", [10.0])
    (path / name).write_text(content)
    with pytest.raises(UsageError, match=name) as raised:
        read_run(path)
    assert "\n" not in str(raised.value)


def test_what_a_run_says_of_itself(tmp_path: Path) -> None:
    path = write_run(tmp_path / "run", [10.0], cache_state="unknown", host_died=True)
    (path / "summary.json").write_text('{"client_saturated": true, "stats_reset_s": 50}')
    run = read_run(path)
    assert [remark.split()[1] for remark in run.remarks] == [
        *("client", "host", "statistics", "the"),
    ]
    assert run.samples(parse_statistic("ttft_ms.mean")) == 0, "ended before the reset"


@pytest.mark.parametrize("name", ["", "requests.csv"])
def test_what_a_run_cannot_decide_neither_can_its_rows(name: str, tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", [100.0] * 40, exit_code=5)
    (run / "summary.json").write_text(json.dumps({"requests": 40, "client_saturated": True}))
    (fault,) = read_run(run / name).faults
    assert "the client was saturated" in str(fault)


@pytest.mark.parametrize("name", ["", "requests.csv"])
def test_a_file_with_fewer_rows_than_the_summary_beside_it_counts_decides_nothing(
    name: str, tmp_path: Path
) -> None:
    run = write_run(tmp_path / "run", [100.0] * 40)
    (run / "summary.json").write_text(json.dumps({"requests": 40}))
    assert read_run(run / name).faults == ()
    assert read_run(run / name).remarks == ()
    rows = (run / "requests.csv").read_text().splitlines(keepends=True)
    (run / "requests.csv").write_text("".join(rows[:31]))
    (fault,) = read_run(run / name).faults
    assert fault.detail == "requests.csv has 30 of the 40 requests that the summary counts"
    (run / "requests.csv").write_text("".join([*rows, *rows[1:]]))
    doubled = read_run(run / name)
    assert doubled.faults == ()
    assert doubled.remarks == ("requests.csv: 40 row(s) are there twice and count once",)
