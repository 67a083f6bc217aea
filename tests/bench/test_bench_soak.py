"""The pure parts of `make bench-soak`: what counts as lost, what counts as a trend."""

import random

import pytest
from mock_log import LATE_NS, Counts
from soak_figures import count_figures, trend_figures
from soak_musts import FIGURES, MUSTS, all_met, report

CLIENT = {
    "rows": 100,
    "ok": 100,
    "sent": 100,
    "tokens": 3200,
    "summary_ok": 100,
    "locust": 100,
    "locust_gaps": 3100,
}
SERVER = {"requests": 100, "replies": 100, "events": 3200, "late": 0}


def samples(
    seconds: int, rss_mb_per_s: float = 0.0, lag_ms_per_s: float = 0.0
) -> list[dict[str, float]]:
    """A client that is noisy, and stalls for 3 s in its last quarter."""
    random.seed(3)
    return [
        {
            "at_s": float(at),
            "rss_mb": 80.0 + rss_mb_per_s * at + random.random() / 10,
            "loop_lag_p50_ms": 1.0,
            "loop_lag_p99_ms": 5.0 + lag_ms_per_s * at + random.random() + 80.0 * (750 < at < 754),
            "cpu_share": 0.4,
        }
        for at in range(seconds)
    ]


def figures(client: dict[str, int], server: dict[str, int], **slopes: float) -> dict[str, float]:
    process = {"peak_rss_mb": 90.0, "saturated": 0.0}
    return {**count_figures(client, server), **trend_figures(samples(1000, **slopes)), **process}


def test_a_run_without_loss_or_trend_meets_every_must() -> None:
    found = figures(CLIENT, SERVER)
    assert all_met(found)
    assert found.keys() == FIGURES.keys()
    assert report(found).endswith(f"musts met: {len(MUSTS)} of {len(MUSTS)}\n")


@pytest.mark.parametrize(
    ("client", "server", "missed"),
    [
        ({"sent": 99}, {}, "requests_apart"),
        ({}, {"replies": 101}, "replies_apart"),
        ({}, {"events": 3201}, "tokens_apart"),
        ({"summary_ok": 99}, {}, "statistics_apart"),
        ({"locust_gaps": 3099}, {}, "statistics_apart"),
        ({"rows": 101}, {}, "not_ok"),
    ],
)
def test_one_lost_anywhere_is_a_must_missed(
    client: dict[str, int], server: dict[str, int], missed: str
) -> None:
    found = figures(CLIENT | client, SERVER | server)
    assert [must.figure for must in MUSTS if not must.is_met(found)] == [missed]


def test_growth_is_told_in_megabytes_an_hour() -> None:
    found = figures(CLIENT, SERVER, rss_mb_per_s=0.01)
    assert found["rss_mb_per_hour"] == pytest.approx(36, rel=0.05)
    assert not all_met(found)


def test_a_lag_that_rises_is_told_and_one_stall_is_not() -> None:
    calm, rising = figures(CLIENT, SERVER), figures(CLIENT, SERVER, lag_ms_per_s=0.005)
    assert abs(calm["loop_lag_drift"]) < 0.1
    assert rising["loop_lag_drift"] == pytest.approx(0.5, rel=0.2)


def test_too_short_a_run_is_not_judged() -> None:
    with pytest.raises(RuntimeError, match="--minutes"):
        trend_figures(samples(30))


def test_the_server_counts_without_keeping_times() -> None:
    counts = Counts()
    assert [counts.received(now_ns, True) for now_ns in (5, 6)] == [1, 2]
    counts.spoke(1, 100, 90)
    counts.spoke(1, LATE_NS + 200, 190)
    counts.done(LATE_NS + 200)
    assert (counts.first_post_ns, counts.requests, counts.replies) == (5, 2, 1)
    assert (counts.events, counts.late, counts.worst_late_ns) == (2, 1, LATE_NS + 10)
