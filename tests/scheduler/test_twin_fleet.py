"""A twin of several engines behind a router, and what it says of loads near what one holds."""

import csv
import json
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
from test_twin import ARGV, BLOCK, FRONT, STEP, served_run, write_run

from loadgen.cli.advise import advise_command
from loadgen.cli.simulate import simulate_command
from loadgen.cli.twin import calibrate_command
from loadgen.errors import UsageError
from loadgen.locality.trace_sources import all_requests, recorded_run
from loadgen.runs.recorded import RecordedRun
from loadgen.twin.calibrate import calibrate, residuals_of
from loadgen.twin.engine import EngineShape
from loadgen.twin.ledger import TwinRequest
from loadgen.twin.load import recorded_load
from loadgen.twin.model import TwinModel
from loadgen.twin.predict import predict_load, with_edges
from loadgen.twin.routing import ROUTERS, Fleet
from loadgen.twin.sending import Pace, SendUnit
from loadgen.twin.serve import TwinServer
from loadgen.twin.shape_of import shape_of_run

HASHED = {"name": "vllm-fleet", "replicas": 2, "router": "consistent_hash"}
TURNS = {**HASHED, "router": "round_robin"}


@pytest.fixture(scope="module")
def fleets(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Runs of servers whose times are `STEP` and `FRONT`, two behind a router."""
    folder = tmp_path_factory.mktemp("fleets")
    return [
        served_run(folder / "hashed", users=6, target=HASHED),
        served_run(folder / "turns", batch=12, users=1, target=TURNS),
    ]


def test_times_are_found_from_runs_of_several_engines(fleets: list[Path], tmp_path: Path) -> None:
    model = calibrate(fleets)
    assert model.replicas == 2
    assert model.step.prefill_token_s == pytest.approx(STEP.prefill_token_s, rel=0.05)
    assert model.step.step_s == pytest.approx(STEP.step_s, rel=0.2)
    assert model.figure_sd == {}  # of four runs on
    model.write(tmp_path / "twin.json")
    assert TwinModel.read(tmp_path / "twin.json") == model
    assert [*model.outside({}, 2)] == [
        "intervals are of 2 runs, too few to leave one out: other workloads may differ by more"
    ]
    assert "runs of 2 engines, not of 1: engines that share" in " ".join(model.outside({}))


def test_a_fleet_is_simulated_as_it_was_recorded_and_again(
    fleets: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    replace(calibrate(fleets), step=STEP, front=FRONT).write(tmp_path / "twin.json")
    twin = ["--twin", str(tmp_path / "twin.json"), "--format", "json"]
    first, second = tmp_path / "first", tmp_path / "second"
    assert simulate_command([str(fleets[0]), *twin, "--out", str(first)]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["measured"] == pytest.approx(told["figures"], rel=0.05)
    assert told["fleet"] == {"replicas": 2, "router": "consistent_hash"}
    assert Fleet.of_run(RecordedRun(first, is_strict=True)) == Fleet(2, "consistent_hash")
    assert simulate_command([str(first), *twin, "--out", str(second)]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["figures"] == pytest.approx(told["figures"], rel=0.05)
    assert simulate_command([str(fleets[0]), *twin, "--replicas", "1"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert alone["measured"] is None
    assert alone["figures"]["ttft_mean_ms"] > told["figures"]["ttft_mean_ms"]
    assert "not of 1" in alone["outside"][0]


def with_engines_swapped(run: Path) -> Path:
    """As a router would have done it that hashes in another way."""
    return rewritten_all(run, lambda row: {"engine": f"vllm-{3 - int(row['engine'][-1])}"})


def rewritten_all(run: Path, change: Callable[[dict[str, str]], dict[str, str]]) -> Path:
    with (run / "requests.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    with (run / "requests.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(row | change(row) for row in rows)
    return run


def test_contexts_go_where_the_router_s_own_hash_sent_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Which differs from the twin's."""
    TwinModel(STEP, FRONT, 0.0, 1, 0.0, {}, replicas=2).write(tmp_path / "twin.json")
    run = served_run(tmp_path / "run", users=6, target=HASHED)
    with_engines_swapped(run)
    words = [str(run), "--twin", str(tmp_path / "twin.json"), "--out"]
    assert simulate_command([*words, str(tmp_path / "out")]) == 0
    assert "2 engines behind consistent_hash, each with" in capsys.readouterr().out
    told, known = (
        {each.index: each.engine for each in all_requests(recorded_run(path))}
        for path in (tmp_path / "out", run)
    )
    assert told == known
    alike = ["--router", "cache_aware"]
    assert simulate_command([*words, str(tmp_path / "other"), *alike]) == 0
    other = {each.index: each.engine for each in all_requests(recorded_run(tmp_path / "other"))}
    assert other != known


def test_a_router_that_is_not_modelled_is_named_and_can_be_replaced(
    fleets: list[Path], tmp_path: Path
) -> None:
    calibrate(fleets).write(tmp_path / "twin.json")
    run = served_run(tmp_path / "run", users=6, target=HASHED)
    facts = json.loads((run / "run.json").read_text())
    facts["target"]["router"] = "kv_aware"
    (run / "run.json").write_text(json.dumps(facts))
    words = [str(run), "--twin", str(tmp_path / "twin.json")]
    with pytest.raises(UsageError, match="--router kv_aware is not modelled: choose one of"):
        simulate_command(words)
    assert simulate_command([*words, "--router", "cache_aware"]) == 0
    assert calibrate([run]).replicas == 2  # who answered what is in the run
    with pytest.raises(UsageError, match="is of several engines: advice is about one"):
        advise_command([str(fleets[0]), *words[1:], "--slo", "ttft_ms.p95<=500"])


def test_of_engines_alike_busy_the_one_chosen_longest_ago_is_next() -> None:
    router, request = ROUTERS["haproxy-leastconn"](), TwinRequest("0", "c", (1,))
    chosen = [router.choose(request, counts) for counts in ([0, 0], [0, 0], [0, 0], [1, 0], [0, 0])]
    assert chosen == [0, 1, 0, 1, 0]


def test_runs_that_are_no_witnesses_are_named(fleets: list[Path], tmp_path: Path) -> None:
    calibrate(fleets).write(tmp_path / "twin.json")
    run = served_run(tmp_path / "run", target=TURNS)
    words = [str(run), "--twin", str(tmp_path / "twin.json")]
    summary = json.loads((run / "summary.json").read_text())
    death = {"engine": "vllm-2", "at_s": 3.0, "reason": "was ended by SIGKILL"}
    death |= {"failed": 1, "served_again_s": None}
    (run / "summary.json").write_text(json.dumps({**summary, "engine_deaths": [death]}))
    with pytest.raises(UsageError, match="no witness of a server, an engine died"):
        calibrate([run])
    with pytest.raises(UsageError, match="an engine died, which is not modelled"):
        simulate_command(words)
    warm = served_run(tmp_path / "warm")
    facts = json.loads((warm / "run.json").read_text())
    (warm / "run.json").write_text(json.dumps({**facts, "cache_state": "warm"}))
    with pytest.raises(UsageError, match="caches that held something"):
        calibrate([warm])


def test_a_run_of_another_engine_than_the_twin_s_is_simulated_and_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = [
        served_run(tmp_path / name, argv=[*ARGV, "--dtype", name]) for name in ("float32", "half")
    ]
    calibrate(runs[:1]).write(tmp_path / "twin.json")
    for run, is_said in zip(runs, (False, True), strict=True):
        assert simulate_command([str(run), "--twin", str(tmp_path / "twin.json")]) == 0
        assert ("another engine than the twin, by --dtype" in capsys.readouterr().out) is is_said


def test_residuals_are_drawn_by_the_clock_of_the_run(
    fleets: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output, picture = tmp_path / "twin.json", tmp_path / "residuals.svg"
    words = [*map(str, fleets), "-o", str(output), "--picture"]
    assert calibrate_command([*words, str(picture)]) == 0
    assert f"twin: {output}" in capsys.readouterr().out
    assert picture.read_text().startswith("<?xml")
    (first, _) = residuals_of(TwinModel.read(output), fleets)
    assert list(first.sent_s) == sorted(
        each.sent_s for each in all_requests(recorded_run(fleets[0]))
    )
    assert first.twin_e2e_s == pytest.approx(first.e2e_s, rel=0.1)
    with pytest.raises(UsageError, match=r"--picture .*\.txt is no picture"):
        calibrate_command([*words, str(tmp_path / "residuals.txt")])


def test_each_figure_s_error_is_of_runs_foretold_from_the_others(tmp_path: Path) -> None:
    alike = [served_run(tmp_path / f"{users}", users=users) for users in (1, 2, 3, 4)]
    sure = calibrate(alike)
    assert sure.steady_runs == 4
    assert max(sure.figure_sd.values()) < 0.1
    slow = rewritten_all(
        alike[0],
        lambda row: {"first_token_s": str(2 * float(row["first_token_s"]) - float(row["sent_s"]))},
    )
    unsure = calibrate([slow, *alike[1:]])
    assert unsure.figure_sd["ttft_mean_ms"] > 0.2
    assert unsure.figure_sd["ttft_mean_ms"] > unsure.figure_sd["e2e_mean_ms"]


def test_an_open_loop_s_queue_does_not_tell_how_fast_the_server_was(tmp_path: Path) -> None:
    closed = [served_run(tmp_path / f"{users}", users=users) for users in (2, 4)]
    queued = served_run(tmp_path / "open", arrivals="constant")
    rewritten_all(
        queued,
        lambda row: {name: str(30 + float(row[name])) for name in ("first_token_s", "end_s")},
    )
    model = calibrate([*closed, queued])
    assert (model.runs, model.steady_runs) == (3, 2)
    assert model.speed_sd < 0.1
    assert "intervals are of 2 runs, too few" in " ".join(model.outside({}))


def test_one_engine_and_two_are_unlike_servers(fleets: list[Path], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="their number of engines differs"):
        calibrate([fleets[0], served_run(tmp_path / "alone")])


@dataclass(frozen=True)
class Offered:
    units: list[SendUnit]
    pace: Pace


def offered(per_s: float) -> Offered:
    """Requests of contexts of their own, at even distances."""
    units = [
        SendUnit(n, (TwinRequest(str(n), str(n), (n,) * 512, n / per_s, 4),), (0.0,), n / per_s)
        for n in range(200)
    ]
    return Offered(units, Pace(is_open=True))


def test_near_its_capacity_a_load_has_an_interval_that_says_so() -> None:
    shape = EngineShape(usable_blocks=400, block_size=16, max_num_seqs=1)
    model = TwinModel(STEP, FRONT, speed_sd=0.05, runs=8, error_share=0.0, intervals={})
    alone = predict_load(model, offered(0.1), shape)
    holds_per_s = 1 / float(alone.e2e_s.mean())

    def told(share: float) -> tuple[float, str]:
        load = offered(share * holds_per_s)
        plain = predict_load(model, load, shape)
        found = with_edges(plain, model, load, shape)
        slow = predict_load(model.slower(model.speed_factor), load, shape)
        low, high = found.intervals["ttft_mean_ms"]
        assert low <= plain.figures["ttft_mean_ms"] <= high
        assert slow.figures["ttft_mean_ms"] <= high
        return high / plain.figures["ttft_mean_ms"], " ".join(found.outside)

    wide, words = told(0.98)
    assert wide > 3
    assert f"on a server slower by {model.speed_factor - 1:.0%}" in words
    narrow, words = told(0.5)
    assert narrow < 1.3
    assert words == ""


def test_a_slow_server_that_ends_no_reply_opens_the_interval() -> None:
    shape = EngineShape(usable_blocks=400, block_size=16, max_num_seqs=1)
    model = TwinModel(STEP, FRONT, speed_sd=2.0, runs=4, error_share=0.0, intervals={})
    alone = predict_load(model, offered(0.1), shape)
    load = replace(offered(0.1), pace=Pace(is_open=True, cut_s=2 * float(alone.e2e_s.mean())))
    plain = predict_load(model, load, shape)
    found = with_edges(plain, model, load, shape)
    assert found.is_at_edge
    assert found.intervals["ttft_mean_ms"][1] == math.inf


def test_intervals_hold_how_far_each_figure_of_whole_runs_was_off() -> None:
    sure = TwinModel(STEP, FRONT, speed_sd=0.02, runs=10, error_share=0.0, intervals={})
    off = {"ttft_p95_ms": 0.2, "ttft_mean_ms": 0.001}
    model = replace(sure, figure_sd=off)
    assert model.interval(100.0) == model.interval(100.0, "ttft_mean_ms") == sure.interval(100.0)
    low, high = model.interval(100.0, "ttft_p95_ms")
    assert low < 70 < 140 < high


def test_times_are_found_of_a_server_far_slower_than_the_first_guess(tmp_path: Path) -> None:
    """By users of whom most wait: then the guess has no queue, and the run little else."""
    slow = TwinModel(STEP, FRONT, 0.0, 1, 0.0, {}).slower(6)
    run = write_run(tmp_path / "run", users=12)
    served = TwinServer(recorded_load(run, BLOCK), shape_of_run(run), slow.step, slow.front).serve()
    model = calibrate([write_run(tmp_path / "run", served, users=12)])
    assert model.error_share < 0.2
    assert model.step.prefill_token_s == pytest.approx(slow.step.prefill_token_s, rel=0.1)


def test_sessions_other_than_contexts_are_not_hashed_in_silence(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    TwinModel(STEP, FRONT, 0.0, 1, 0.0, {}, replicas=2).write(tmp_path / "twin.json")
    run = served_run(tmp_path / "run", users=6, target=HASHED)
    facts = json.loads((run / "run.json").read_text())
    facts["options"] = {**facts.get("options", {}), "session_by": "user"}
    (run / "run.json").write_text(json.dumps(facts))
    words = [str(run), "--twin", str(tmp_path / "twin.json")]
    assert simulate_command(words) == 0, "each goes where it went"
    with pytest.raises(UsageError, match="--session-by user is not modelled behind --router"):
        simulate_command([*words, "--replicas", "3"])
    assert simulate_command([*words, "--replicas", "3", "--router", "cache_aware"]) == 0
    assert "as with --session-header" not in capsys.readouterr().out
    (run / "run.json").write_text(json.dumps({**facts, "options": {}}))
    assert simulate_command([*words, "--replicas", "3"]) == 0
    assert "as with --session-header, without which" in capsys.readouterr().out
