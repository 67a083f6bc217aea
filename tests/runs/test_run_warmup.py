"""A warm-up that was given is left out of the figures, over all workers, and told."""

import pytest
from run_process import Ran, Run

WARMUP_S = 1.03
"""Between two of the 20 requests a second."""
SWARM = ("--model", "flaky", "--max-failures", 100, "-t", "3s", "--output-tokens", 2)
OPEN = ("-u", 0, "--arrivals", "constant", "--rate", 20, "--slo", "ttft_ms<=60000")


@pytest.mark.parametrize("processes", [(), ("--processes", 2)], ids=["one", "workers"])
def test_figures_are_of_what_was_due_after_the_warmup(
    run: Run, processes: tuple[object, ...]
) -> None:
    ran = run(*SWARM, *OPEN, *processes, "--warmup", WARMUP_S)
    early = [row for row in ran.rows if float(row["scheduled_s"]) < WARMUP_S]
    late = [row for row in ran.rows if float(row["scheduled_s"]) > WARMUP_S]
    summary = ran.json("summary.json")
    assert {"0", "20"} <= {row["request_id"] for row in early}, "all rows are kept"
    assert summary["warmup"] == {
        "seconds": WARMUP_S,
        "requests": len(early),
        "failed": failures(early),
        "given": True,
    }
    assert failures(early) > 0
    assert (summary["requests"], summary["failed"]) == (len(late), failures(late))
    ok = [row for row in late if row["outcome"] == "ok"]
    assert summary["metrics"]["ttft_ms"]["count"] == len(ok)
    assert summary["metrics"]["ttft_ms"]["max"] == pytest.approx(
        max(float(row["ttft_ms"]) for row in ok), abs=1e-5
    )
    assert summary["goodput_share"] == pytest.approx(len(ok) / (len(ok) + failures(late)))
    assert summary["diversity"]["requests"] == sum(bool(row["sent_s"]) for row in late)
    assert said(ran, "warm-up:") == (
        f"warm-up: the first 1.03 s are left out, {len(early)} requests, {failures(early)} of them"
        " failed"
    )


def test_a_warmup_that_is_found_can_be_left_out(run: Run) -> None:
    ran = run(
        *("--model", "warming", "-t", "5s", "--output-tokens", 1, "--processes", 2),
        *("-u", 0, "--arrivals", "constant", "--rate", 50, "--warmup", "auto"),
    )
    assert ran.code == 0, ran.output
    summary = ran.json("summary.json")
    found, steady = summary["warmup"], summary["steady_state"]
    rows = [row for row in ran.rows if row["sent_s"]]  # one may be due as the run ends
    cold = [float(row["scheduled_s"]) for row in rows if float(row["ttft_ms"]) >= 2000]
    assert len(cold) >= 40
    # The host's warm-up ends before 2 s; on a busy machine other requests are slow after it.
    assert sorted(cold)[39] < found["seconds"] < 3.5
    early = [row for row in rows if float(row["scheduled_s"]) < found["seconds"]]
    assert (found["given"], found["requests"]) == (False, len(early))
    assert summary["requests"] == len(ran.rows) - len(early)
    ok = summary["outcomes"]["ok"]
    assert ok == summary["metrics"]["ttft_ms"]["count"]
    assert ok == len(rows) - len(early) == summary["diversity"]["requests"]
    assert steady["requests"] + steady["early"] == ok
    assert "s are left out as they were found to be one" in said(ran, "warm-up:")


def test_a_run_of_nothing_but_warmup_is_refused(run: Run) -> None:
    ran = run(*SWARM, *OPEN, "--warmup", 3)
    assert ran.code == 2
    assert "--warmup 3 leaves nothing of -t 3s to measure" in ran.output
    assert not ran.out.exists()


def test_a_run_whose_queue_grows_to_the_end_says_that_it_never_settled(run: Run) -> None:
    ran = run(
        *("--model", "queued", "-t", "3s", "--output-tokens", 1),
        *("-u", 0, "--arrivals", "constant", "--rate", 60),
    )
    assert ran.code == 0, ran.output
    steady = ran.json("summary.json")["steady_state"]
    assert steady["settled"] is False
    assert steady["requests"] == steady["metrics"]["e2e_ms"]["count"] == len(ran.rows)
    assert said(ran, "NOT SETTLED")


def failures(rows: list[dict[str, str]]) -> int:
    return sum(row["outcome"] not in ("ok", "cancelled") for row in rows)


def said(ran: Ran, start: str) -> str:
    return next(line for line in ran.output.splitlines() if line.startswith(start))
