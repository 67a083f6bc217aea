"""What a run left behind, read by one rule: what was sent, what counts, what cannot be read."""

import json
import random
import subprocess
import sys
import tracemalloc
from dataclasses import astuple
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from report_runs import record, requests, write_report_run

from loadgen.errors import UsageError
from loadgen.record import COLUMNS, RequestRecord
from loadgen.runs.csv_log import to_csv
from loadgen.runs.recorded import RecordedRun
from loadgen.runs.requests import Requests, read_requests
from loadgen.stats.metrics import CATALOG
from loadgen.stats.steady_state import COLUMNS as STEADY_COLUMNS
from loadgen.stats.tally import Tally
from loadgen.workload.diversity import Diversity, measure_diversity


def run_of(folder: Path, records: list[RequestRecord], **summary: Any) -> RecordedRun:
    text = to_csv([COLUMNS]) + to_csv(map(astuple, records))
    return run_with(folder, text, **summary)


def run_with(folder: Path, requests_csv: str, **summary: Any) -> RecordedRun:
    (folder / "requests.csv").write_text(requests_csv)
    (folder / "summary.json").write_text(json.dumps(summary))
    return RecordedRun(folder)


def ids(run: RecordedRun) -> list[str]:
    return run.requests.text("request_id").as_list()


def remarks(run: RecordedRun) -> list[str]:
    return [each.remark for each in run.problems if not each.remark.startswith("there is no")]


def test_requests_stand_in_the_order_of_sending(tmp_path: Path) -> None:
    late, early = record(0, sent_s=5.0), record(1, sent_s=2.0)
    due = record(2, scheduled_s=3.0, sent_s=None, outcome="connect_error")
    never = record(3, scheduled_s=1.0, sent_s=None, outcome="cancelled")
    run = run_of(tmp_path, [late, early, due, never])
    assert ids(run) == ["1", "2", "0", "3"]
    assert run.requests.at_s[:3].tolist() == [2.0, 3.0, 5.0]
    assert [len(run.requests), len(run.requests.sent)] == [4, 3]
    assert run.requests.outcomes == {"ok": 2, "connect_error": 1, "cancelled": 1}


def test_late_requests_count_alike_in_the_summary_and_in_whoever_reads_the_rows(
    tmp_path: Path,
) -> None:
    silent = {"ttft_ms": None, "first_token_s": None, "outcome": "timeout", "late": True}
    records = [
        record(0, retrieval_ms=5.0),
        record(1, **silent, e2e_ms=9000.0, scheduled_s=1.0, end_s=10.0, retrieval_ms=6.0),
        record(2, **silent, e2e_ms=8000.0, scheduled_s=2.0, end_s=10.0, sent_s=None),
        record(3, outcome="timeout", late=True, e2e_ms=7000.0, scheduled_s=3.0, end_s=10.0),
        record(4, outcome="timeout", ttft_ms=1.0),
        record(5, outcome="cancelled"),
    ]
    tally = Tally()
    tally.add_many([(each, []) for each in records])
    rows = run_of(tmp_path, records).requests
    for name, count in (("ttft_ms", 4), ("e2e_ms", 4), ("retrieval_ms", 3), ("tpot_ms", 4)):
        values = rows.latency(name)
        values = values[~np.isnan(values)]
        sketch = tally.sketches[name]
        assert (len(values), sketch.count) == (count, count), name
        assert (values.max(), values.sum()) == pytest.approx((sketch.max, sketch.sum)), name
    assert tally.sketches["ttft_ms"].max == 9000.0
    assert (tally.late, int(rows.is_late.sum()), tally.failed) == (3, 3, 4)


def test_what_ended_before_a_reset_or_was_due_in_the_warmup_does_not_count(tmp_path: Path) -> None:
    records = [record(n, scheduled_s=float(n), sent_s=float(n), end_s=n + 1.5) for n in range(6)]
    assert ids(run_of(tmp_path, records, stats_reset_s=3.0)) == ["2", "3", "4", "5"]
    assert ids(run_of(tmp_path, records, warmup={"seconds": 4.0})) == ["4", "5"]
    both = run_of(tmp_path, records, stats_reset_s=6.0, warmup={"seconds": 4.0})
    assert ids(both) == ["5"]
    both.given_warmup_s = 0.0
    assert RecordedRun(tmp_path, given_warmup_s=0.0).own_warmup_s == 4.0


def test_a_row_that_a_crash_cut_off_is_left_out(tmp_path: Path) -> None:
    whole = to_csv([COLUMNS]) + to_csv(map(astuple, requests(3)))
    run = run_with(tmp_path, whole + "3,0,user-0,")
    run.is_strict = True
    assert len(run.requests) == 3
    assert remarks(run) == ["requests.csv: 1 row(s) were not whole and are left out"]


def test_a_row_that_is_not_whole_amid_others_allows_no_decision(tmp_path: Path) -> None:
    rows = [to_csv([astuple(each)]) for each in requests(3)]
    run = run_with(tmp_path, "".join([to_csv([COLUMNS]), rows[0], "1,0,user\n", *rows[1:]]))
    assert len(run.requests) == 3
    with pytest.raises(UsageError, match=f"row 3: 3 cells, header {len(COLUMNS)}"):
        _ = RecordedRun(tmp_path, is_strict=True).requests


def test_a_row_that_is_there_twice_counts_once(tmp_path: Path) -> None:
    run = run_of(tmp_path, [*requests(3), *requests(2)])
    assert ids(run) == ["0", "1", "2"]
    assert remarks(run) == ["requests.csv: 2 row(s) are there twice and count once"]


def test_rows_that_the_summary_counted_are_missed(tmp_path: Path) -> None:
    run = run_of(tmp_path, requests(3), requests=5)
    assert len(run.requests) == 3
    assert remarks(run) == ["requests.csv has 3 of the 5 requests that the summary counts"]


def test_rows_that_the_summary_did_not_count_are_told(tmp_path: Path) -> None:
    run = run_of(tmp_path, requests(5), requests=3)
    assert remarks_of(run) == "requests.csv has 5 requests, and the summary counts 3"


@pytest.mark.parametrize("cell", ["fast", "-1", "1e999"])
def test_a_cell_without_a_number_is_left_out_or_refused(tmp_path: Path, cell: str) -> None:
    text = to_csv([COLUMNS]) + to_csv(map(astuple, requests(2)))
    run = run_with(tmp_path, text.replace(",11,ok", f",{cell},ok", 1))
    assert np.isnan(run.requests.number("output_tokens")).tolist() == [True, False]
    with pytest.raises(UsageError, match=f"row 2: output_tokens is '{cell}', which is no number"):
        _ = RecordedRun(tmp_path, is_strict=True).requests


def test_a_missing_column_is_unknown_in_every_row(tmp_path: Path) -> None:
    head = "request_id,sent_s,end_s,ttft_ms,e2e_ms,output_tokens,outcome\n"
    run = run_with(tmp_path, f"{head}0,1,2,5,9,3,ok\n1,2,3,,,,timeout\n")
    assert run.requests.figure("cached_share") is None
    assert run.requests.figure("errors") == 0.5
    assert run.requests.figure("label_accuracy") is None
    (tmp_path / "requests.csv").write_text("a,b\n1,2\n")
    assert "no column request_id" in remarks_of(RecordedRun(tmp_path))
    with pytest.raises(UsageError, match=r"has not the columns of a requests\.csv"):
        _ = RecordedRun(tmp_path, is_strict=True).requests


def remarks_of(run: RecordedRun) -> str:
    _ = run.requests
    return " ".join(remarks(run))


@pytest.mark.parametrize(
    ("text", "refusal"),
    [("{", "no whole JSON"), ("[]", "no JSON object"), ('{"options": 3}', "options")],
)
def test_a_broken_description_is_empty_or_refused(tmp_path: Path, text: str, refusal: str) -> None:
    (tmp_path / "run.json").write_text(text)
    run = RecordedRun(tmp_path)
    assert run.description == run.options == {}
    assert len(run.problems) == 1
    with pytest.raises(UsageError, match=refusal):
        _ = RecordedRun(tmp_path, is_strict=True).description


def test_a_context_that_was_found_is_that_of_the_prompt(tmp_path: Path) -> None:
    found = {"retrieval_ms": 5.0, "rag_context_id": "x"}
    records = [record(0, "a", **found), record(1, "b", **found | {"rag_context_id": ""})]
    run = run_of(tmp_path, [*records, record(2, "x"), record(3, "=c")])
    context = run.requests.context
    assert context.as_list() == ["x", "", "x", "=c"]
    assert list(run.requests.emitted()) == ["x", "x", "=c"]


def test_columns_say_what_a_tally_says(tmp_path: Path) -> None:
    """Each share and rate is defined once: by part and whole, whatever they are summed over."""
    records = [
        record(
            n,
            cached_tokens=None if n % 4 else 900,
            outcome="timeout" if n % 7 == 0 else "cancelled" if n % 11 == 0 else "ok",
            slo_met=None if n % 11 == 0 else n % 3 == 0,
            label_correct=None if n % 2 else n % 5 > 0,
            retrieval_ms=None if n % 5 == 0 else 7.0,
            rag_context_id="x" if n % 6 else "",
        )
        for n in range(200)
    ]
    tally = Tally()
    for each in records:
        tally.add(each)
    found = run_of(tmp_path, records).requests
    seconds = found.span_s[1] - found.span_s[0]
    for metric in CATALOG.values():
        if metric.form != "values":
            expected = tally.figure(metric.name, seconds)
            assert expected is not None
            assert found.figure(metric.name) == pytest.approx(expected), metric.name


def test_the_most_requests_at_once_are_those_between_sending_and_end(tmp_path: Path) -> None:
    times = [(0.0, 4.0), (1.0, 2.0), (2.0, 3.0), (2.5, 3.5), (None, 9.0)]
    records = [
        record(n, sent_s=sent_s, end_s=end_s, outcome="ok" if sent_s is not None else "cancelled")
        for n, (sent_s, end_s) in enumerate(times)
    ]
    assert run_of(tmp_path, records).requests.peak_concurrency == 3
    (tmp_path / "none").mkdir()
    assert run_of(tmp_path / "none", []).requests.peak_concurrency == 0


def test_a_host_that_leaves_zeros_out_took_nothing_from_a_cache_there(tmp_path: Path) -> None:
    """Every fourth reply has 900 of 1,000 tokens from a cache, the others do not say."""
    records = [
        record(n, prompt_tokens=1000, cached_tokens=None if n % 4 else 900) for n in range(40)
    ]
    assert run_of(tmp_path, records).requests.figure("cached_share") == pytest.approx(0.225)
    untold = [record(n, cached_tokens=None) for n in range(40)]
    assert run_of(tmp_path, untold).requests.figure("cached_share") is None


def test_a_whole_run_has_nothing_to_be_said_of_it(tmp_path: Path) -> None:
    run = RecordedRun(write_report_run(tmp_path / "run"), is_strict=True)
    assert len(run.requests) == 200
    assert run.server.number("prompt_tokens")[-1] == 6000
    assert run.client.text("process").names == ("0",)
    assert run.steady_state is not None
    assert not len(run.makespans_s)
    assert run.problems == []


def diversity(path: Path, reset_s: float | None = None) -> Diversity:
    return measure_diversity(Requests.of(read_requests(path), reset_s).emitted())


def test_diversity_counts_what_was_sent_in_its_order(tmp_path: Path) -> None:
    path = tmp_path / "requests.csv"
    path.write_text("context_id,sent_s\nb,3\na,1\na,2\nnever,\n")
    assert diversity(path).distinct_contexts == 2
    assert diversity(path).reuse_distance.max == 0
    assert diversity(path, 2.5).distinct_contexts == 1


def test_diversity_is_that_of_the_retrieved_contexts(tmp_path: Path) -> None:
    path = tmp_path / "requests.csv"
    head = "context_id,sent_s,rag_context_id,retrieval_ms\n"
    path.write_text(f"{head}a,1,x,5\nb,2,x,5\nc,3,,5\nd,4,,\n")
    found = diversity(path)
    assert (found.requests, found.distinct_contexts) == (3, 2)


def test_rows_of_many_workers_are_put_in_the_order_of_sending(tmp_path: Path) -> None:
    random.seed(7)
    sent = [(at / 10, f"context-{random.randrange(9)}") for at in range(150)]
    rows = random.sample(sent, len(sent))
    path = tmp_path / "requests.csv"
    lines = "".join(f"{at},{at},{context_id}\n" for at, context_id in rows)
    path.write_text(f"scheduled_s,sent_s,context_id\n{lines}")
    found = diversity(path, reset_s=2.0)
    assert found == measure_diversity(context_id for at, context_id in sent if at >= 2.0)
    assert found.requests == 130


def test_a_million_rows_take_some_bytes_each(tmp_path: Path) -> None:
    rows = 50_000
    path, line = tmp_path / "requests.csv", to_csv([astuple(record(1))])
    path.write_text(to_csv([COLUMNS]) + line * rows)
    tracemalloc.start()
    try:
        found = Requests.of(read_requests(path, (*STEADY_COLUMNS, "context_id")))
        held, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(found) == 1
    assert held < 100 * rows
    assert most < 200 * rows


def test_no_swarm_waits_for_numpy_at_its_start() -> None:
    script = "import sys, loadgen.swarm.plugin, loadgen.cli.main; print('numpy' in sys.modules)"
    command = [sys.executable, "-c", script]
    assert subprocess.check_output(command, text=True, timeout=60).strip() == "False"
