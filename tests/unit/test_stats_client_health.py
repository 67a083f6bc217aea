from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from loadgen.stats.self_watch import KEPT, ClientHealth, ClientSample, Saturation, SaturationRule


def seconds(
    *lag_ms: float, process: str = "w1", late_ms: float | None = None
) -> list[ClientSample]:
    return [
        ClientSample(float(at_s), process, 1.0, lag, lag, late_ms, 0.5, 50.0)
        for at_s, lag in enumerate(lag_ms)
    ]


def judged(samples: Sequence[ClientSample], rule: SaturationRule | None = None) -> Saturation:
    health = ClientHealth(rule)
    for each in samples:
        health.add(each)
    return health.verdict()


@pytest.mark.parametrize(
    ("samples", "expected"),
    [
        ([], False),
        (seconds(*[5.0] * 30), False),
        (seconds(*[100.0] * 30), False),
        (seconds(500.0), False),
        (seconds(500.0, 1.0), False),
        (seconds(500.0, 500.0, 1.0), True),
        (seconds(*[500.0] * 3, *[1.0] * 27), False),
        (seconds(*[500.0] * 4, *[1.0] * 26), True),
        (seconds(*[1.0] * 5, late_ms=101.0), True),
        (seconds(*[1.0] * 50) + seconds(*[200.0] * 5, process="w2"), True),
        (seconds(200.0) + seconds(200.0, process="w2"), False),
    ],
)
def test_the_rule_weighs_bad_seconds_in_each_process(
    samples: list[ClientSample], expected: bool
) -> None:
    assert judged(samples).saturated is expected


@pytest.mark.parametrize(
    ("sample", "expected"),
    [
        ({"loop_lag_max_ms": 4000.0, "elapsed_s": 5.0}, "stood still for 4.0 of 49 seconds"),
        ({"loop_lag_max_ms": 4000.0, "elapsed_s": 5.0, "process": "w2"}, "process w2 stood still"),
        ({"loop_lag_max_ms": 900.0, "elapsed_s": 1.9}, ""),
        ({"sends": 1000, "late_sends": 10}, "sent 10 of 1000 requests late by more than 100 ms"),
        ({"sends": 1000, "late_sends": 9}, ""),
        ({"sends": 20, "late_sends": 2}, ""),
    ],
)
def test_a_sample_weighs_as_much_as_the_time_it_stands_for(
    sample: dict[str, Any], expected: str
) -> None:
    calm = seconds(*[1.0] * 44)
    odd = replace(calm[0], **sample)
    verdict = judged([*calm, odd])
    assert verdict.saturated is bool(expected)
    assert expected in verdict.reason


TOLD = "read 180 of 3000 tokens so late, by up to 60 ms, that their times are not their own"


@pytest.mark.parametrize(
    ("late", "looks", "shared", "expected"),
    [
        ([180, 0, 0], 4, 0, TOLD),
        ([140, 0, 0], 4, 0, ""),
        ([1000, 1000, 0], 3, 0, ""),  # few hiccups
        ([0, 0, 0], 0, 900, ""),  # the host's own way
    ],
)
def test_tokens_without_a_time_of_their_own_spoil_a_run(
    late: list[int], looks: int, shared: int, expected: str
) -> None:
    calm = replace(seconds(1.0)[0], tokens=1000, shared_tokens=shared, late_looks=looks)
    verdict = judged([replace(calm, late_tokens=each, late_token_ms=60.0) for each in late])
    assert verdict.saturated is bool(expected)
    assert expected in verdict.reason


@pytest.mark.parametrize(("max_lag_ms", "spoils"), [(100.0, True), (299.0, True), (301.0, False)])
def test_a_higher_limit_is_one_for_the_times_of_tokens_too(max_lag_ms: float, spoils: bool) -> None:
    sample = replace(seconds(1.0)[0], tokens=100, late_looks=20, late_tokens=90, late_token_ms=60.0)
    assert judged([sample], SaturationRule(max_lag_ms=max_lag_ms)).saturated is spoils


def test_the_verdict_names_the_process_and_the_figures() -> None:
    late, calm = seconds(250.0, 120.0, 1.0, process="2"), seconds(1.0, process="0")
    reason = judged(calm + late).reason
    assert reason.startswith("process 2 was late by more than 100 ms in 2 of 3 seconds")
    assert "250 ms" in reason
    assert judged(late).reason.startswith("the client was late by")
    assert judged(seconds(1.0)) == Saturation(False, "")


def test_the_limits_can_be_set() -> None:
    rule = SaturationRule(max_lag_ms=10, share_of_seconds=0.5, least_seconds=1)
    assert judged(seconds(11.0), rule).saturated
    assert not judged(seconds(11.0, 9.0), rule).saturated


def test_an_hour_of_samples_takes_no_more_room_than_a_minute() -> None:
    health = ClientHealth()
    for second in range(3600):
        for process in ("0", "1"):
            health.add(seconds(300.0 if second < 400 else 1.0, process=process)[0])
    assert len(health.recent) == 2 * KEPT
    assert (health.count, len(health.since(health.count - 3))) == (7200, 3)
    assert health.since(0) == list(health.recent)
    assert health.since(7200) == []
    assert "400 of 3600 seconds" in health.verdict().reason
