"""`make bench-noise`: its models, one trial of it, and what it counts as met."""

import sys
from dataclasses import replace
from pathlib import Path

import noise_bench
import numpy as np
import pytest
from noise_bench import MOST_ALARMS, NoiseRow, main, trial
from noise_models import RUN_S, SERVICE_S, USERS, closed, drift, single_server

MET = NoiseRow("m", "ttft_ms.mean", 200, 8, 2, 0.15, 195, 0.99, 0)


def made(seed: int) -> np.random.Generator:
    return np.random.default_rng(seed)


def test_a_closed_loop_keeps_its_users_busy() -> None:
    run = closed(made(0), made(1), 1.0)
    assert len(run.at_s) == pytest.approx(USERS * RUN_S / SERVICE_S, rel=0.1)
    middle_s = RUN_S / 2
    assert ((run.at_s <= middle_s) & (run.at_s + run.took_s > middle_s)).sum() == USERS


def test_one_server_serves_one_at_a_time_and_waits_grow_with_load() -> None:
    light, heavy = (single_server(load)(made(0), made(1), 1.0) for load in (0.3, 0.9))
    ends_s = heavy.at_s + heavy.took_s
    assert (np.diff(ends_s) > 0).all()
    assert heavy.took_s.mean() > 2 * light.took_s.mean()


def test_a_drift_has_its_deviation_and_remembers_for_its_time() -> None:
    series = np.log([[drift(0.1, 5.0, made(seed))(at) for at in (0, 5)] for seed in range(400)])
    assert series.std() == pytest.approx(0.1, rel=0.1)
    assert np.corrcoef(series.T)[0, 1] == pytest.approx(np.exp(-1), abs=0.12)


def test_a_trial_finds_a_slow_side_and_not_an_equal_one() -> None:
    found = trial(0, 0)
    (alike, verdict), (slower, worse) = found.alike[0], found.slower[0]
    assert (verdict, worse) == ("no evidence", "worse")
    assert abs(alike) < 0.1 < slower < 0.2
    assert (found.gate_alarm, found.gate_found) == (False, True)


def test_every_model_is_tried_and_stands_on_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = noise_bench.MODELS[:3]
    monkeypatch.setattr(noise_bench, "MODELS", models)
    command = ["noise_bench.py", "--trials", "2", "--processes", "1", "--report", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", command)
    main()
    text = (tmp_path / "noise.md").read_text()
    assert [text.count(f"| {model.name} |") for model in models] == [2, 2, 2]


@pytest.mark.parametrize(
    ("changed", "met"),
    [
        ({}, True),
        ({"alarms": 30}, False),
        ({"gate_alarms": 30}, False),
        ({"alarms": int(200 * MOST_ALARMS) + 2}, True),
        ({"found": 100}, False),
        ({"found": 100, "bound": 0.6}, True),
        ({"found": 100, "statistic": "ttft_ms.p95"}, True),
    ],
)
def test_what_is_met(changed: dict[str, object], met: bool) -> None:
    row = replace(MET, **changed)  # type: ignore[arg-type]
    assert row.is_met is met
    marked = noise_bench.table([row]).splitlines()[-1]
    assert marked.endswith("| met |") is met
    assert ("**missed**: " in marked) is not met
