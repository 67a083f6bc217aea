"""What `kvswarm run` leaves behind after a swarm on a host that behaves."""

import csv
import math
from pathlib import Path

import pytest
from run_process import Ran, host_process, run_swarm

from loadgen.record import COLUMNS

SECRET = "sk-very-secret-value"


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Ran:
    with host_process() as host:
        ran = run_swarm(
            host.url,
            tmp_path_factory.mktemp("runs") / "run",
            *("--model", "normal", "-u", 3, "-r", 3, "-t", "3s", "--output-tokens", 8),
            *("--contexts", 5, "--seed", 7, "--header", f"X-Team: {SECRET}"),
            env={"KVSWARM_API_KEY": SECRET},
        )
        (ran.out / "prompts").write_text(str(len(host.prompts())))
    return ran


def test_exits_0_and_says_where_the_run_is(ran: Ran) -> None:
    assert ran.code == 0, ran.output
    assert str(ran.out) in ran.output
    assert "Traceback" not in ran.output


def test_has_a_row_per_request_that_the_host_got(ran: Ran) -> None:
    assert tuple(ran.rows[0]) == COLUMNS
    assert len(ran.rows) == int((ran.out / "prompts").read_text())
    assert sorted(int(row["request_id"]) for row in ran.rows) == list(range(len(ran.rows)))
    assert {row["outcome"] for row in ran.rows} == {"ok"}


def test_times_are_consistent(ran: Ran) -> None:
    for row in ran.rows:
        assert row["scheduled_s"] == row["sent_s"]
        times = [float(row[name]) for name in ("sent_s", "first_token_s", "end_s")]
        assert 0 <= times[0] <= times[1] <= times[2]
        ttft_ms, e2e_ms = float(row["ttft_ms"]), float(row["e2e_ms"])
        assert ttft_ms == pytest.approx(1000 * (times[1] - times[0]), abs=0.01)
        assert e2e_ms == pytest.approx(1000 * (times[2] - times[0]), abs=0.01)
        assert float(row["itl_p50_ms"]) <= float(row["itl_p99_ms"]) <= float(row["itl_max_ms"])


def test_cached_tokens_stay_empty_where_the_host_says_nothing(ran: Ran) -> None:
    assert {row["cached_tokens"] for row in ran.rows} == {""}
    assert ran.json("summary.json")["metrics"]["cached_tokens"]["count"] == 0
    assert "--enable-prompt-tokens-details" in ran.output


def test_summary_agrees_with_the_rows(ran: Ran) -> None:
    summary = ran.json("summary.json")
    ok = len(ran.rows)
    assert summary["outcomes"] == {"ok": ok}
    ttfts = sorted(float(row["ttft_ms"]) for row in ran.rows)
    metric = summary["metrics"]["ttft_ms"]
    assert metric["count"] == ok
    assert metric["min"] == pytest.approx(ttfts[0], abs=1e-5)
    assert metric["max"] == pytest.approx(ttfts[-1], abs=1e-5)
    assert metric["mean"] == pytest.approx(sum(ttfts) / ok, abs=1e-4)
    assert summary["metrics"]["itl_ms"]["count"] == 7 * ok
    assert summary["metrics"]["output_tokens"]["max"] == 8
    assert summary["client_saturated"] is False
    assert summary["server"]["hit_rate"] is None
    assert summary["diversity"]["distinct_contexts"] == len({r["context_id"] for r in ran.rows})


def test_run_json_tells_how_it_was_made(ran: Ran) -> None:
    run = ran.json("run.json")
    assert run["seed"] == 7
    assert run["options"]["contexts"] == 5
    assert run["cache_state"] == "unknown"
    assert run["versions"]["locust"]
    assert run["model"] == "normal"
    assert run["exit_code"] == 0
    assert math.isfinite(run["start_unix_s"])


def test_no_secret_is_written_anywhere(ran: Ran) -> None:
    files = [path for path in ran.out.rglob("*") if path.is_file()]
    assert len(files) >= 10
    for path in files:
        assert SECRET not in path.read_text(), path
    assert SECRET not in ran.output


def test_locusts_own_csv_has_our_rows(ran: Ran) -> None:
    with (ran.out / "locust_stats.csv").open(newline="") as file:
        rows = {row["Name"]: row for row in csv.DictReader(file)}
    ok = len(ran.rows)
    assert int(rows["/v1/completions"]["Request Count"]) == ok
    assert int(rows["Aggregated"]["Request Count"]) == ok, "our rows must not count as requests"
    assert int(rows["TTFT (ms)"]["Request Count"]) == ok
    assert int(rows["ITL (ms)"]["Request Count"]) == 7 * ok
    assert int(rows["TPOT (ms)"]["Request Count"]) == ok
    assert int(rows["Output tokens/s"]["Request Count"]) == 8 * ok
    assert "Cached-token share (%)" not in rows


def test_client_metrics_has_a_row_per_second(ran: Ran) -> None:
    with Path(ran.out / "client_metrics.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) >= 2
    assert all(float(row["rss_mb"]) > 10 for row in rows)
