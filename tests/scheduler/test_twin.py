"""A server's twin: calibrated from recorded runs alone, and what it says of other sizes."""

import csv
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from vllm.platforms.interface import UnspecifiedPlatform

from loadgen.cli.advise import advise_command
from loadgen.cli.compare import compare_command
from loadgen.cli.report import report_command
from loadgen.cli.simulate import simulate_command
from loadgen.cli.twin import calibrate_command
from loadgen.errors import TargetError, UsageError
from loadgen.locality.trace_sources import recorded_run
from loadgen.record import COLUMNS
from loadgen.runs.recorded import RecordedRun
from loadgen.targets.settings import ROUTERS as FLEET_ROUTERS
from loadgen.twin.advise import AdviceLoad, AdviceOptions, advise, parse_objective
from loadgen.twin.calibrate import CalibrationRun, _parts_of, calibrate
from loadgen.twin.directory import SimulatedDirectory
from loadgen.twin.engine import EngineShape, VirtualEngine
from loadgen.twin.ledger import TwinRequest
from loadgen.twin.load import RecordedLoad, recorded_load
from loadgen.twin.model import FrontTime, TwinModel
from loadgen.twin.predict import predict_load
from loadgen.twin.routing import ROUTERS, Fleet
from loadgen.twin.serve import ServedLoad, TwinServer
from loadgen.twin.shape_of import changed, shape_of_run
from loadgen.twin.step_time import StepTime, parts

STEP = StepTime(0.02, 2.0e-4, 8.0e-8, 1.0e-3, 4.0e-7)
FRONT = FrontTime(0.003, 2.0e-6, 0.002)
BLOCKS, BLOCK = 40, 128
ARGV = ["python", "-m", "vllm", "--block-size", "128", "--kv-cache-memory-bytes", "1G"]
"""As on a CPU."""
CONTEXTS, REQUESTS = 5, 60


def lengths(number: int) -> tuple[int, int]:
    """Prompt and output tokens of a request: contexts of unlike lengths, replies too."""
    return 400 + 300 * (number * 7 % CONTEXTS) + 30, (4, 12, 40)[number % 3]


def write_run(
    path: Path,
    served: ServedLoad | None = None,
    *,
    batch: int = 0,
    users: int = 4,
    argv: Sequence[str] = ARGV,
    target: Mapping[str, Any] | None = None,
    **options: Any,
) -> Path:
    """A run directory with the times of `served`, without it with some that will be replaced."""
    path.mkdir(parents=True, exist_ok=True)
    times = {each.request.name: each for each in served.requests} if served else {}
    with (path / "requests.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="")
        writer.writeheader()
        for number in range(REQUESTS):
            known = times.get(str(number))
            sent_s = known.sent_s if known else 0.5 * (number // batch if batch else number)
            first_s, end_s = (
                (known.first_token_s, known.end_s) if known else (sent_s + 0.2, sent_s + 0.4)
            )
            prompt, output = lengths(number)
            writer.writerow(
                {
                    "request_id": number,
                    "worker": 0,
                    "user": f"U-{number // batch % users if batch else number % users}",
                    "context_id": f"c{number * 7 % CONTEXTS}",
                    "label": f"c{number * 7 % CONTEXTS}",
                    "question_id": f"q{number}",
                    "scheduled_s": sent_s,
                    "sent_s": sent_s,
                    "first_token_s": first_s,
                    "end_s": end_s,
                    "ttft_ms": 1000 * (first_s - sent_s),
                    "e2e_ms": 1000 * (end_s - sent_s),
                    "prompt_tokens": prompt,
                    "cached_tokens": known.tokens.cached if known else "",
                    "output_tokens": output,
                    "outcome": "ok",
                    "batch_id": number // batch if batch else "",
                    "engine": known.engine if known else "",
                }
            )
    facts = {
        "options": {"labels": "oracle", "arrivals": "closed", **options},
        "users": users,
        "target": {
            "name": "vllm",
            "usable_blocks": BLOCKS,
            "block_size": BLOCK,
            "usable_tokens": BLOCKS * BLOCK,
            "max_model_len": 4096,
            "argv": {"vllm": list(argv)},
            "sources": {"engine": {"name": "vllm"}},
            **(target or {}),
        },
        "command_line": ["bin/kvswarm", "run", "batched", "--target=vllm", "-u", "4", "--out", "x"],
        "cache_state": "cold",
        "exit_code": 0,
    }
    (path / "run.json").write_text(json.dumps(facts))
    if several := (target or {}).get("replicas"):
        engines = {f"vllm-{number}": {} for number in range(1, several + 1)}
        (path / "summary.json").write_text(json.dumps({"replicas": {"engines": engines}}))
    return path


def served_run(path: Path, **how: Any) -> Path:
    """A run of a server whose times are `STEP` and `FRONT`."""
    write_run(path, **how)
    shape, fleet = shape_of_run(path), Fleet.of_run(recorded_run(path))
    served = TwinServer(recorded_load(path, BLOCK), shape, STEP, FRONT, fleet=fleet).serve()
    return write_run(path, served, **how)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("runs")
    return [
        served_run(folder / "users", users=4),
        served_run(folder / "batches", batch=12, users=1),
        served_run(folder / "alone", users=1),
    ]


@pytest.fixture(scope="module")
def model(runs: list[Path]) -> TwinModel:
    return calibrate(runs)


@pytest.mark.parametrize(
    ("argv", "limits"),
    [
        (ARGV, (128, 2048, False)),
        ([*ARGV, "--async-scheduling"], (128, 2048, False)),
        ([*ARGV, "--max-num-batched-tokens=64"], (64, 64, False)),
        (ARGV[:5], (256, 2048, True)),
        ([*ARGV[:5], "--no-async-scheduling"], (256, 2048, False)),
        ([*ARGV[:5], "--max-num-seqs=9", "--max-num-batched-tokens", "64"], (9, 64, True)),
        ([], (128, 2048, False)),
    ],
)
def test_where_its_command_is_silent_an_engine_has_the_limits_of_its_platform(
    argv: Sequence[str], limits: tuple[int, int, bool], tmp_path: Path
) -> None:
    shape = shape_of_run(write_run(tmp_path / "run", argv=argv))
    assert (shape.max_num_seqs, shape.max_num_batched_tokens, shape.async_scheduling) == limits


def test_times_are_found_from_what_clients_recorded(model: TwinModel) -> None:
    assert model.step.prefill_token_s == pytest.approx(STEP.prefill_token_s, rel=0.05)
    prompts, replies = zip(*map(lengths, range(REQUESTS)), strict=True)
    assert model.lengths == {
        "prompts": (min(prompts), max(prompts)),
        "replies": (min(replies), max(replies)),
    }
    assert model.step.step_s == pytest.approx(STEP.step_s, rel=0.1)
    assert model.step.decode_s == pytest.approx(STEP.decode_s, rel=0.25)
    assert model.error_share < 0.02
    assert model.speed_sd < 0.02
    low, high = model.intervals["step.prefill_token_s"]
    assert low <= model.step.prefill_token_s <= high


@pytest.mark.parametrize("kv_tokens", [2560, 20_480])
@pytest.mark.parametrize("target", ["vllm", "vllm-context"])
def test_another_size_and_order_are_predicted(
    runs: list[Path], model: TwinModel, kv_tokens: int, target: str
) -> None:
    """Held against the server itself, which the twin has not seen so."""
    load = recorded_load(runs[0], BLOCK)
    shape = changed(shape_of_run(runs[0]), kv_tokens, target)
    truth = TwinServer(load, shape, STEP, FRONT).serve()
    told = predict_load(model, load, shape)
    true_ttft_ms = 1000 * sum(each.ttft_s for each in truth.requests) / REQUESTS
    assert told.figures["ttft_mean_ms"] == pytest.approx(true_ttft_ms, rel=0.05)
    assert told.figures["computed_prompt_tokens"] == pytest.approx(
        truth.ledger.computed_tokens, rel=0.03
    )


def test_of_each_reply_all_parts_of_the_steps_before_it_are_counted(runs: list[Path]) -> None:
    run = CalibrationRun.read(runs[1])
    served = run.serve(STEP, FRONT)
    found = _parts_of(run, served)
    rows = iter(found.parts * found.took_s[:, None])
    for each in run.counted(served):
        late_s = each.end_s - served.ledger.finished_s[each.request.name]
        for until_s in (each.first_token_s - late_s, each.end_s - late_s):
            known = np.zeros(6)
            for step in served.ledger.steps:
                begins_s, ends_s = max(step.begins_s, each.queued_s), min(step.ends_s, until_s)
                share = max(0.0, ends_s - begins_s) / (step.ends_s - step.begins_s)
                known += share * np.array(parts(step.work))
            front = (each.front_requests, each.front_tokens, 1.0)
            assert next(rows) == pytest.approx([*known, *front])


def test_a_twin_needs_no_device(monkeypatch: pytest.MonkeyPatch) -> None:
    """As where vLLM is built for a GPU and there is none."""
    for name, module in list(sys.modules.items()):
        for each in {"current_platform", "_current_platform"} & set(vars(module)):
            if name.startswith("vllm."):
                monkeypatch.setattr(module, each, UnspecifiedPlatform())
    request = TwinRequest("0", "c", (7,) * 300, 0.0, 4)
    shape = EngineShape(usable_blocks=77)
    assert VirtualEngine(shape).run([request]).computed_tokens == 300


def test_a_larger_cache_computes_less(runs: list[Path], model: TwinModel) -> None:
    load, shape = recorded_load(runs[0], BLOCK), shape_of_run(runs[0])
    computed = [
        predict_load(model, load, replace(shape, usable_blocks=blocks)).figures[
            "computed_prompt_tokens"
        ]
        for blocks in (20, 40, 200)
    ]
    assert computed[0] > computed[1] > computed[2]
    none = predict_load(model, load, replace(shape, prefix_caching=False))
    prompts = sum(lengths(number)[0] for number in range(REQUESTS))
    assert none.figures["computed_prompt_tokens"] == prompts


def in_flight(load: RecordedLoad, shape: EngineShape) -> int:
    """The most requests at once."""
    served = TwinServer(load, shape, STEP, FRONT).serve()
    moments = sorted(
        [(each.sent_s, 1) for each in served.requests]
        + [(each.end_s, -1) for each in served.requests]
    )
    most = now = 0
    for _, step in moments:
        now += step
        most = max(most, now)
    return most


def test_users_wait_for_their_replies_and_an_open_loop_does_not(tmp_path: Path) -> None:
    shape = shape_of_run(write_run(tmp_path / "three", users=3))
    assert in_flight(recorded_load(tmp_path / "three", BLOCK), shape) <= 3
    write_run(tmp_path / "batches", users=1, batch=12)
    assert in_flight(recorded_load(tmp_path / "batches", BLOCK), shape) == 12
    write_run(tmp_path / "open", arrivals="constant")
    load = recorded_load(tmp_path / "open", BLOCK)
    slow = TwinServer(load, shape, replace(STEP, step_s=1.0), FRONT).serve()
    assert [each.sent_s for each in slow.requests] == [0.5 * n for n in range(REQUESTS)]


def test_one_run_alone_has_the_interval_of_its_own_speed_over_time(
    runs: list[Path], tmp_path: Path
) -> None:
    alone, path = calibrate(runs[:1]), tmp_path / "twin.json"
    alone.write(path)
    assert TwinModel.read(path) == alone
    low, high = alone.interval(100.0)
    assert 90 < low < 100 < high < 110
    slower = calibrate([slower_from(served_run(tmp_path / "slower"), REQUESTS // 2)])
    assert (slower.runs, slower.windows) == (1, REQUESTS // 10)
    assert slower.speed_sd > 0.1
    assert slower.interval(100.0)[1] > 120
    assert "other runs may differ by more" in " ".join(slower.outside({}))
    older = {name: told for name, told in json.loads(path.read_text()).items() if name != "windows"}
    path.write_text(json.dumps(older))
    assert TwinModel.read(path).interval(100.0) == (0.0, float("inf"))


def slower_from(run: Path, number: int) -> Path:
    """With half as much time again for each reply from this one on."""
    with (run / "requests.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows[number:]:
        for name in ("first_token_s", "end_s"):
            row[name] = str(float(row["sent_s"]) + 1.5 * (float(row[name]) - float(row["sent_s"])))
    with (run / "requests.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return run


def test_nothing_on_a_terminal_is_wider_than_it(
    runs: list[Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda self: True)
    twin = ["--twin", str(tmp_path / "twin.json")]
    assert calibrate_command([str(runs[0]), "-o", twin[1]]) == 0
    assert simulate_command([str(runs[0]), *twin]) == 0
    assert advise_command([str(runs[0]), *twin, "--slo", "e2e_ms.mean<=1000000", "--no-rates"]) == 0
    told = capsys.readouterr().out
    assert "kvswarm run batched" in told
    assert [line for line in told.splitlines() if len(line) > 80 and len(line.split()) > 1] == []


def test_the_commands_tell_what_a_user_can_use(
    runs: list[Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    twin = str(tmp_path / "twin.json")
    assert calibrate_command([*map(str, runs), "-o", twin]) == 0
    said = capsys.readouterr().out
    assert "step.prefill_token_s" in said
    assert "whole runs differ from the twin by" in said
    assert simulate_command([str(runs[0]), "--twin", twin]) == 0
    assert "measured" in capsys.readouterr().out
    command = [str(runs[0]), "--twin", twin, "--kv-tokens", "20480", "--target", "vllm-context"]
    assert simulate_command(command) == 0
    said = capsys.readouterr().out
    assert "on 20,480 tokens of cache, by context" in said
    assert "measured" not in said
    assert simulate_command([*command, "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["simulated"] is True
    assert told["intervals"]["ttft_mean_ms"][0] < told["figures"]["ttft_mean_ms"]
    assert calibrate_command([str(runs[0]), "-o", twin]) == 0
    assert "in 6 windows of its time its speed differs by" in capsys.readouterr().out
    assert simulate_command([*command, "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    low, high = told["intervals"]["ttft_mean_ms"]
    assert low < told["figures"]["ttft_mean_ms"] < high
    assert "intervals are of one run's own speed in 6 windows" in told["outside"][0]


def test_a_simulation_that_was_stopped_is_no_run_that_came_to_its_end(
    runs: list[Path], model: TwinModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model.write(tmp_path / "twin.json")

    def stopped(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(SimulatedDirectory, "close", stopped)
    out = tmp_path / "simulated"
    with pytest.raises(KeyboardInterrupt):
        simulate_command([str(runs[0]), "--twin", str(tmp_path / "twin.json"), "--out", str(out)])
    described = json.loads((out / "run.json").read_text())
    assert described["cache_state"] == "simulated"
    assert "exit_code" not in described


def test_a_router_that_keeps_contexts_together_computes_less(
    runs: list[Path], model: TwinModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load, shape = recorded_load(runs[0], BLOCK), shape_of_run(runs[0])
    computed = {name: predict_load(model, load, shape, Fleet(2, name)) for name in ROUTERS}
    tokens = {name: served.ledger.computed_tokens for name, served in computed.items()}
    assert tokens["consistent_hash"] < tokens["round_robin"]
    assert tokens["cache_aware"] < tokens["round_robin"]
    assert set(ROUTERS) < set(FLEET_ROUTERS)
    for served in computed.values():
        assert sum(each.requests for each in served.replicas) == REQUESTS
        assert (
            sum(each.computed_tokens for each in served.replicas) == served.ledger.computed_tokens
        )
        assert len(served.e2e_s) == REQUESTS
    turns = computed["round_robin"].replicas
    assert [each.requests for each in turns] == [REQUESTS // 2] * 2
    apart = [each.contexts for each in computed["consistent_hash"].replicas]
    assert not apart[0] & apart[1]
    model.write(tmp_path / "twin.json")
    words = [str(runs[0]), "--twin", str(tmp_path / "twin.json")]
    assert simulate_command([*words, "--replicas", "2", "--router", "consistent_hash"]) == 0
    assert "prompt tokens computed" in capsys.readouterr().out
    for wrong, said in (
        (["--replicas", "0"], "give 1 to"),
        (["--replicas", "2", "--router", "magic"], "choose one of round_robin"),
        (["--router", "round_robin"], "needs more than one engine"),
    ):
        with pytest.raises(UsageError, match=said):
            simulate_command([*words, *wrong])


def test_a_simulation_is_a_run_that_says_it_is_one(
    runs: list[Path], model: TwinModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model.write(tmp_path / "twin.json")
    batches, out = runs[1], tmp_path / "simulated"
    words = [str(batches), "--twin", str(tmp_path / "twin.json"), "--out", str(out)]
    assert simulate_command([*words, "--kv-tokens", "2560", "--target", "vllm-context"]) == 0
    made = RecordedRun(out, is_strict=True)
    assert shape_of_run(out) == changed(shape_of_run(batches), 2560, "vllm-context")
    assert made.description["cache_state"] == "simulated"
    assert "no server answered" in made.description["notes"][0]
    load, shape = recorded_load(batches, BLOCK), shape_of_run(out)
    told = predict_load(model, load, shape)
    summary = json.loads((out / "summary.json").read_text())
    assert summary["metrics"]["ttft_ms"]["mean"] == pytest.approx(told.figures["ttft_mean_ms"])
    computed = summary["server"]["computed_prompt_tokens"]
    assert computed == told.figures["computed_prompt_tokens"]
    assert summary["batches"] == {"ok": REQUESTS // 12}
    gaps = sum(max(0, count - 1) for _, count in map(lengths, range(REQUESTS)))
    assert summary["metrics"]["itl_ms"]["count"] == gaps
    again = recorded_load(out, BLOCK)
    assert [each.prompt for each in again.requests] == [each.prompt for each in load.requests]
    with pytest.raises(UsageError, match="already holds a run"):
        simulate_command(words)
    assert report_command([str(out), "-o", str(tmp_path / "page.html")]) == 0
    assert "no server answered" in (tmp_path / "page.html").read_text()
    with pytest.raises(UsageError, match=r"cache_state '?cold"):
        compare_command([str(batches), str(out)])
    capsys.readouterr()


def test_advice_is_the_smallest_cache_that_keeps_the_objective(
    runs: list[Path], model: TwinModel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    load, shape = recorded_load(runs[0], BLOCK), shape_of_run(runs[0])
    sizes = (2048, 4096, 8192, 16_384)
    times = {
        size: predict_load(model, load, changed(shape, size, "vllm")).figures["ttft_p95_ms"]
        for size in sizes
    }
    bound = (times[4096] + times[8192]) / 2
    about, options = AdviceLoad.of_run(runs[0]), AdviceOptions(sizes)
    advice = advise(model, about, parse_objective(f"ttft_ms.p95<={bound:.0f}"), options)
    found = advice.smallest(by_context=False)
    assert found is not None
    assert found.kv_tokens == 8192
    assert f"8,192 tokens of cache keep ttft_ms.p95<={bound:.0f}" in " ".join(advice.sentences())
    assert found in advice.answers
    nothing = advise(model, about, parse_objective("ttft_ms.p95<=1"), options)
    assert next(nothing.sentences()).startswith("No size that was tried keeps")
    assert [each.kv_tokens for each in nothing.answers] == [16_384, 16_384]
    model.write(tmp_path / "twin.json")
    words = [str(runs[0]), "--twin", str(tmp_path / "twin.json"), "--slo", "e2e_ms.mean<=1000000"]
    words += ["--no-rates"]
    assert advise_command(words) == 0
    told = capsys.readouterr().out
    assert "(the least that was tried) keep" in told
    assert "  kvswarm run batched -u 4 --target vllm --kv-tokens " in told
    assert "  kvswarm run batched -u 4 --target vllm-context --kv-tokens " in told
    with pytest.raises(UsageError, match="the twin tells ttft_ms and e2e_ms"):
        parse_objective("errors<=1%")
    with pytest.raises(UsageError, match="write whole numbers"):
        advise_command([*words, "--kv-tokens", "many"])
    facts = json.loads((runs[0] / "run.json").read_text())
    (runs[0] / "run.json").write_text(json.dumps({**facts, "command_line": ["locust", "-f", "x"]}))
    assert advise_command(words) == 0
    assert "which `kvswarm run` has not made" in capsys.readouterr().out
    with pytest.raises(UsageError, match="was not made by `kvswarm run`"):
        advise_command([*words, "--verify", str(tmp_path / "made")])
    (runs[0] / "run.json").write_text(json.dumps(facts))


@pytest.mark.parametrize("code", [0, 2, 3])
def test_the_runs_that_could_overturn_advice_are_made_and_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], code: int
) -> None:
    run, folder = served_run(tmp_path / "run"), tmp_path / "made"
    TwinModel(STEP, FRONT, 0.0, 1, 0.0, {}).write(tmp_path / "twin.json")

    async def made(words: Sequence[str], _: object) -> int:
        told = dict(pairwise(words))
        shape = changed(shape_of_run(run), int(told["--kv-tokens"]), told["--target"])
        served = TwinServer(recorded_load(run, BLOCK), shape, STEP, FRONT).serve()
        write_run(Path(told["--out"]), served)
        return code

    monkeypatch.setattr("loadgen.cli.advise.command_run", made)
    words = [str(run), "--twin", str(tmp_path / "twin.json"), "--slo", "ttft_ms.p95<=100000"]
    words += ["--no-rates", "--kv-tokens", "2048,4096", "--verify", str(folder)]
    if code:
        failed = TargetError if code == 3 else UsageError
        with pytest.raises(failed, match=f"--kv-tokens 2048 ended with exit code {code}: see"):
            advise_command(words)
        with pytest.raises(UsageError, match="holds runs already: name another folder"):
            advise_command(words)
        return
    assert advise_command(words) == 0
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("measured: ")]
    orders = ("first come, first served", "by context")
    for order, line in zip(orders, said, strict=True):
        assert line.startswith(f"measured: 2,048 tokens, {order}: ")
        assert "ms, which keeps ttft_ms.p95<=100000; the twin was " in line
        assert line.rsplit(" ", 2)[1] in ("+0%", "-0%")
    assert {each.name for each in folder.iterdir()} == {"2048-first-come", "2048-context"}


def test_what_the_twin_cannot_do_is_refused_in_a_line(runs: list[Path], tmp_path: Path) -> None:
    twin = tmp_path / "twin.json"
    with pytest.raises(UsageError, match="no twin at"):
        simulate_command([str(runs[0]), "--twin", str(twin)])
    twin.write_text("{}")
    with pytest.raises(UsageError, match="no twin of this version"):
        simulate_command([str(runs[0]), "--twin", str(twin)])
    TwinModel(STEP, FRONT, 0.0, 1, 0.0, {}).write(twin)
    whole = json.loads(twin.read_text())
    for name, value in (
        ("runs", "2"),
        ("speed_sd", -1.0),
        ("step", {**whole["step"], "step_s": "x"}),
    ):
        twin.write_text(json.dumps({**whole, name: value}))
        with pytest.raises(UsageError, match="no twin of this version"):
            TwinModel.read(twin)
    for output in ("", ".", str(tmp_path)):
        with pytest.raises(UsageError, match="is a directory: name a file"):
            calibrate_command([str(runs[0]), "-o", output])
    tiered = write_run(tmp_path / "tiered", argv=[*ARGV, "--kv-transfer-config", "{}"])
    with pytest.raises(
        UsageError, match="--kv-transfer-config, which the twin does not model from"
    ):
        calibrate([tiered])
    twice = write_run(tmp_path / "twice")
    rows = (twice / "requests.csv").read_text()
    (twice / "requests.csv").write_text(rows.replace("\n1,", "\n0,", 1))
    with pytest.raises(UsageError, match="of the same request_id"):
        calibrate([twice])
    found = write_run(tmp_path / "rag", labels="rag")
    with pytest.raises(UsageError, match="--labels rag"):
        calibrate([found])
    shape = shape_of_run(runs[0])
    with pytest.raises(UsageError, match="less than two blocks"):
        changed(shape, 100, None)
    with pytest.raises(UsageError, match="--target vllm-fp8 is not modelled"):
        changed(shape, None, "vllm-fp8")
    TwinModel(STEP, FRONT, 0.0, 1, 0.0, {}).write(tmp_path / "known.json")
    known = str(tmp_path / "known.json")
    with pytest.raises(UsageError, match="longest request needs"):
        simulate_command([str(runs[0]), "--twin", known, "--kv-tokens", "512"])
    with pytest.raises(UsageError, match="no run at"):
        calibrate([tmp_path / "nowhere"])


@pytest.mark.parametrize("options", [{}, {"arrivals": "closed"}])
def test_a_run_that_sent_nothing_is_refused(tmp_path: Path, options: dict[str, str]) -> None:
    (tmp_path / "requests.csv").write_text("request_id,sent_s,end_s,prompt_tokens,outcome\n")
    (tmp_path / "run.json").write_text(json.dumps({"options": options}))
    (tmp_path / "summary.json").write_text("{}")
    with pytest.raises(UsageError):
        recorded_load(tmp_path, BLOCK)
