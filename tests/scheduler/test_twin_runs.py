"""Recorded runs as a twin takes them: their labels, engines, and the requests that count."""

import csv
import json
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_twin import ARGV, BLOCK, FRONT, REQUESTS, STEP, served_run, write_run

from loadgen.cli.advise import advise_command
from loadgen.cli.compare import compare_command
from loadgen.cli.simulate import simulate_command
from loadgen.cli.twin import calibrate_command
from loadgen.errors import UsageError
from loadgen.runs.recorded import RecordedRun
from loadgen.twin.calibrate import calibrate
from loadgen.twin.ledger import EngineLedger
from loadgen.twin.load import recorded_load
from loadgen.twin.model import TwinModel
from loadgen.twin.predict import predict_load
from loadgen.twin.serve import ServedRequest
from loadgen.twin.shape_of import CalibratedEngine, shape_of_run, unlike_servers

OFFLINE = {"env": {"vllm": {"HF_HUB_OFFLINE": "1"}}}


@pytest.fixture
def twin(tmp_path: Path) -> str:
    """That of the server of `served_run`."""
    path = tmp_path / "twin.json"
    TwinModel(STEP, FRONT, 0.0, 1, 0.0, {}).write(path)
    return str(path)


def rewritten(run: Path, which: slice = slice(None), /, **cells: str) -> Path:
    """With other cells in all rows, or in some."""
    with (run / "requests.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows[which]:
        row.update(cells)
    with (run / "requests.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    return run


@pytest.mark.parametrize("label", ["c9", ""])
def test_the_engine_is_told_the_label_that_was_sent(tmp_path: Path, label: str) -> None:
    run = rewritten(write_run(tmp_path / "run"), label=label)
    first, second, *_ = recorded_load(run, BLOCK).requests
    assert (first.context, second.context) == ("c0", "c2")
    assert (first.sent_label, second.sent_label) == (label, label)


def test_a_file_without_labels_has_those_of_its_contexts(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    rows = (run / "requests.csv").read_text()
    (run / "requests.csv").write_text(rows.replace(",label,", ",formerly,", 1))
    assert all(each.sent_label == each.context for each in recorded_load(run, BLOCK).requests)


LOST = {"prompt_tokens": "", "output_tokens": "", "first_token_s": "", "cached_tokens": ""}


@pytest.mark.parametrize("outcome", ["timeout", "connect_error"])
def test_a_load_of_the_survivors_alone_is_refused(
    tmp_path: Path, twin: str, outcome: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = rewritten(write_run(tmp_path / "run"), slice(-1, None), **LOST, outcome=outcome)
    said = "1 of 60 requests were sent and not served (timeouts, lost connections, errors)"
    assert recorded_load(run, BLOCK).remarks == (f"{said}: the load is without them",)
    told = [str(run), "--twin", twin]
    for command, words in (
        (simulate_command, told),
        (advise_command, [*told, "--slo", "ttft_ms.p95<=9", "--no-rates", "--kv-tokens", "5120"]),
    ):
        assert command(words) == 0
        assert capsys.readouterr().out.count(said) == 1
    rewritten(run, slice(-2, None), **LOST, outcome=outcome)
    for refused in (lambda: calibrate([run]), lambda: simulate_command(told)):
        with pytest.raises(UsageError, match=r"2 of 60 .*: give a run in which they were answered"):
            refused()


@pytest.mark.parametrize(
    "cells",
    [
        {"outcome": "rejected", "status": "503"},
        {"outcome": "http_error", "status": "400"},
        {"outcome": "cancelled"},
        {"outcome": "timeout", "late": "true"},
    ],
)
def test_requests_that_no_engine_had_are_told_apart(tmp_path: Path, cells: dict[str, str]) -> None:
    run = rewritten(write_run(tmp_path / "run"), slice(-9, None), **LOST, **cells)
    (said,) = recorded_load(run, BLOCK).remarks
    assert said.startswith("9 of 60 requests were rejected or cut off at the end")


def test_what_went_wrong_in_a_run_is_told(
    tmp_path: Path, twin: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = served_run(tmp_path / "run")
    (run / "summary.json").write_text('{"lost_workers": 1}')
    told = [str(run), "--twin", twin]
    assert simulate_command(told) == 0
    assert "of the run: workers were lost (1)" in capsys.readouterr().out
    words = ["--slo", "ttft_ms.p95<=9", "--no-rates", "--kv-tokens", "5120"]
    assert advise_command([*told, *words]) == 0
    assert "of the run: workers were lost (1)" in capsys.readouterr().out


PLUGIN = ["--scheduler-cls", "scheduler_plugin.ContextScheduler", "--additional-config"]


@pytest.mark.parametrize("more", [[], [*PLUGIN, '{"context_scheduler": {"policy": "lpm"}}']])
def test_a_run_compares_with_its_simulation(tmp_path: Path, twin: str, more: list[str]) -> None:
    target = {**OFFLINE, "name": "vllm-context" if more else "vllm", "l1_gb": 2.0}
    run = served_run(tmp_path / "run", argv=[*ARGV, *more], target=target)
    out = tmp_path / "out"
    assert simulate_command([str(run), "--twin", twin, "--out", str(out)]) == 0
    assert compare_command([str(run), str(out), "--vary", "cache_state"]) == 0
    assert shape_of_run(out) == shape_of_run(run)
    named = ["--target", "vllm-context" if more else "vllm", "--out", str(tmp_path / "named")]
    assert simulate_command([str(run), "--twin", twin, *named]) == 0
    assert shape_of_run(tmp_path / "named") == shape_of_run(run)
    other = tmp_path / "other"
    words = [str(run), "--twin", twin, "--kv-tokens", "2560", "--out", str(other)]
    assert simulate_command(words) == 0
    vary = "cache_state,target_arguments"
    assert compare_command([str(run), str(other), "--vary", vary]) == 0


def test_of_a_run_with_a_warm_up_both_columns_are_of_the_same_requests(
    tmp_path: Path, twin: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run = served_run(tmp_path / "run", users=1, warmup="4")
    load = recorded_load(run, BLOCK)
    assert load.pace.starts_s == (0.0,)
    assert 20 < len(load.measured) < len(load.requests)
    assert simulate_command([str(run), "--twin", twin, "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["figures"] == pytest.approx(told["measured"], rel=0.02)
    assert simulate_command([str(run), "--twin", twin]) == 0
    more = len(load.requests) - len(load.measured)
    assert f"{more} more were served and do not count" in capsys.readouterr().out
    served: list[ServedRequest] = []
    model, shape = TwinModel.read(Path(twin)), shape_of_run(run)
    found = predict_load(model, load, shape, on_served=served.append, counted=load.measured)
    assert len(served) == len(load.requests)
    assert sorted(found.e2e_s) == sorted(
        each.e2e_s for each in served if each.request.name in load.measured
    )


@pytest.mark.parametrize("how", [{"users": 2}, {"users": 1, "batch": 12}])
def test_users_of_a_faster_server_send_sooner_than_they_did(
    tmp_path: Path, how: dict[str, int]
) -> None:
    """They wait for replies and for no moment of the recording."""
    run = served_run(tmp_path / "run", **how)
    load, shape = recorded_load(run, BLOCK), shape_of_run(run)
    load = replace(load, pace=replace(load.pace, gaps_s=(0.0,)))
    model = TwinModel(STEP, FRONT, 0.0, 1, 0.0, {})
    same, fast = (predict_load(each, load, shape).figures for each in (model, model.slower(1 / 3)))
    assert fast["requests_per_s"] == pytest.approx(3 * same["requests_per_s"], rel=0.15)
    assert fast["e2e_mean_ms"] == pytest.approx(same["e2e_mean_ms"] / 3, rel=0.15)


def test_the_rate_that_was_measured_is_of_the_requests_that_count(
    tmp_path: Path, twin: str, capsys: pytest.CaptureFixture[str]
) -> None:
    failed = {"outcome": "timeout", "first_token_s": "", "end_s": "9999"}
    run = rewritten(served_run(tmp_path / "run"), slice(-1, None), **failed)
    assert simulate_command([str(run), "--twin", twin, "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    rate = told["figures"]["requests_per_s"]
    assert told["measured"]["requests_per_s"] == pytest.approx(rate, rel=0.1)


def test_a_simulation_leaves_out_the_warm_up_of_its_run(tmp_path: Path, twin: str) -> None:
    run, out = served_run(tmp_path / "run", users=1, warmup="4"), tmp_path / "out"
    assert simulate_command([str(run), "--twin", twin, "--out", str(out)]) == 0
    made = RecordedRun(out, is_strict=True)
    assert made.missing == ""
    assert 20 < made.summary["requests"] == len(made.requests) < REQUESTS
    first_s, last_s = made.requests.span_s
    assert made.summary["duration_s"] == pytest.approx(last_s - first_s)
    told = made.summary["warmup"]
    assert told["seconds"] == 4
    assert told["requests"] == REQUESTS - len(made.requests)


@pytest.mark.parametrize(
    ("warmup", "cells"), [("0", {"outcome": "timeout", "first_token_s": ""}), ("99999", {})]
)
def test_a_run_without_a_reply_that_counts_is_left_out(
    tmp_path: Path,
    twin: str,
    warmup: str,
    cells: dict[str, str],
    capsys: pytest.CaptureFixture[str],
) -> None:
    bad = rewritten(write_run(tmp_path / "bad", warmup=warmup), **cells)
    with pytest.raises(UsageError, match="bad has no reply that counts: leave it out"):
        calibrate([served_run(tmp_path / "good"), bad])
    assert simulate_command([str(bad), "--twin", twin]) == 0
    said = capsys.readouterr().out
    assert "simulated, 60 requests" in said
    assert "measured" not in said


GPU, CPU = {"vllm": "0.29.0"}, {"vllm": "0.29.0+cpu"}


@pytest.mark.parametrize(
    ("versions", "more", "is_on_cpu"),
    [(GPU, "--kv-cache-memory-bytes 8G", False), (CPU, "", True), (None, "", False)],
)
def test_what_an_engine_ran_on_is_told_by_its_vllm(
    tmp_path: Path, versions: object, more: str, is_on_cpu: bool
) -> None:
    argv, target = [*ARGV[:3], *more.split()], {"versions": versions}
    run = write_run(tmp_path / "run", argv=argv, target=target)
    assert shape_of_run(run).max_num_seqs == (128 if is_on_cpu else 256)
    engine = CalibratedEngine.of_run(run)
    assert engine.is_on_cpu == CalibratedEngine.of_twin(engine.to_json()).is_on_cpu == is_on_cpu


@pytest.mark.parametrize(
    ("versions", "more", "assumed"),
    [
        (GPU, "", "--max-num-seqs 256 and --max-num-batched-tokens 2048, vLLM's own"),
        (GPU, "--max_num_seqs=9", "taken for granted: --max-num-batched-tokens 2048, vLLM's own"),
        (GPU, "--max-num-seqs 9 --max-num-batched-tokens 8k", ""),
        (CPU, "", ""),
    ],
)
def test_limits_of_a_gpu_that_nobody_told_are_said(
    tmp_path: Path,
    twin: str,
    versions: object,
    more: str,
    assumed: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    argv = [*ARGV[:5], *more.split()]
    run = str(served_run(tmp_path / "run", argv=argv, target={"versions": versions}))
    told = [run, "--twin", twin]
    for command, words in (
        (calibrate_command, [run, "-o", str(tmp_path / "made.json")]),
        (simulate_command, told),
        (simulate_command, [*told, "--format", "json"]),
        (advise_command, [*told, "--slo", "ttft_ms.p95<=9", "--no-rates", "--kv-tokens", "5120"]),
    ):
        assert command(words) == 0
        said = capsys.readouterr().out
        assert assumed in said
        assert said.count("taken for granted") == bool(assumed)


@pytest.mark.parametrize(
    ("more", "limits"),
    [
        ("--max_num_seqs 4", (4, 2048)),
        ("--max_num_seqs=4 --max-num-batched-tokens 8k", (4, 8000)),
        ("--max-num-batched-tokens=2K", (128, 2048)),
        ("--max-num-batched-tokens 1.5k", (128, 1500)),
        ("--scheduling-policy fcfs --data-parallel-size=1 -dcp 1 --stream-interval 1", (128, 2048)),
    ],
)
def test_an_engine_s_limits_are_read_as_vllm_reads_them(
    tmp_path: Path, more: str, limits: tuple[int, int]
) -> None:
    shape = shape_of_run(write_run(tmp_path / "run", argv=[*ARGV, *more.split()]))
    assert (shape.max_num_seqs, shape.max_num_batched_tokens) == limits


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("--max-num-active-seqs 4", "--max-num-active-seqs, which the twin does not model"),
        ("--max-num-queued-reqs=9", "--max-num-queued-reqs, which"),
        ("--scheduling-policy priority", "--scheduling-policy priority, which"),
        ("--scheduling_policy=priority", "--scheduling-policy priority, which"),
        ("--data-parallel-size 2", "--data-parallel-size 2, which"),
        ("-dp 2", "-dp 2, which"),
        ("--stream-interval 8", "--stream-interval 8, which"),
        ('--speculative-config={"method":"ngram"}', "--speculative-config, which"),
        ("--speculative-config.method=ngram", "--speculative-config.method, which"),
        ("-sc.method ngram", "-sc.method, which"),
        ("--kv_transfer_config.kv_connector=X", "give --kv-transfer-config as one JSON object"),
        ("--additional-config.a.b 1", "give --additional-config as one JSON object"),
        ("--spec-model m", "--spec-model, which"),
        ("--spec-tokens=3", "--spec-tokens, which"),
        ("-dcp 2", "-dcp 2, which"),
        ("--prefill-context-parallel-size=2", "--prefill-context-parallel-size 2, which"),
        ("--kv-sharing-fast-prefill", "--kv-sharing-fast-prefill, which"),
        ("--config engine.yaml", "--config, which"),
        ("--prefix-match-unit 8", "--prefix-match-unit, which"),
        ("-dc.canvas_length 8", "-dc.canvas_length, which"),
        ("--max-num-batched-tokens many", "--max-num-batched-tokens many is no number"),
        ("--max-num-batched-tokens 1.5K", "1.5K is no number"),
        (" ".join([*PLUGIN, "{"]), "--additional-config is no JSON object"),
        (" ".join([*PLUGIN, "[1]"]), "--additional-config is no JSON object"),
    ],
)
def test_an_engine_that_is_not_modelled_is_refused(tmp_path: Path, more: str, said: str) -> None:
    run = write_run(tmp_path / "run", argv=[*ARGV, *more.split()])
    with pytest.raises(UsageError, match=said):
        shape_of_run(run)


@pytest.mark.parametrize("where", ["--model", "tokenizer"])
@pytest.mark.parametrize(
    ("config", "said"),
    [
        ({"sliding_window": 1024}, "its model has sliding_window 1024 "),
        ({"attention_chunk_size": 2048}, "its model has attention_chunk_size 2048 "),
        ({"text_config": {"sliding_window": 512}}, "its model has sliding_window 512 "),
        ({"layer_types": ["mamba", "attention"]}, "its model has layer_types mamba "),
        ({"mamba_d_state": 128}, "its model has mamba_d_state "),
        ({"sliding_window": 1024, "use_sliding_window": False}, ""),
        ({"sliding_window": 4096, "max_position_embeddings": 8192}, ""),
        ({"kv_lora_rank": 512, "layer_types": ["full_attention"]}, ""),
        ({"layer_types": 1}, ""),
    ],
)
def test_a_model_whose_layers_do_not_attend_to_all_is_refused(
    tmp_path: Path, where: str, config: dict[str, Any], said: str
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(config))
    here, elsewhere = str(tmp_path), str(tmp_path / "elsewhere")
    argv = [*ARGV, "--model", here if where == "--model" else elsewhere]
    target = {"tokenizer": here if where == "tokenizer" else elsewhere}
    run = write_run(tmp_path / "run", argv=argv, target=target)
    if not said:
        assert shape_of_run(run).usable_blocks == 40
        return
    with pytest.raises(UsageError, match=f"run: {said}.*, which the twin does not model"):
        shape_of_run(run)


def test_a_simulation_is_no_witness_of_a_server(
    tmp_path: Path, twin: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run, out = served_run(tmp_path / "run"), tmp_path / "out"
    assert simulate_command([str(run), "--twin", twin, "--out", str(out)]) == 0
    assert "measured" in capsys.readouterr().out
    assert simulate_command([str(out), "--twin", twin]) == 0
    assert "measured" not in capsys.readouterr().out
    with pytest.raises(UsageError, match="out is simulated, which tells nothing of a server"):
        calibrate([run, out])


SMALL = [*ARGV, "--model", "small", "--dtype", "float32"]


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ({"argv": [*SMALL, "--model", "large"]}, "--model"),
        ({"argv": [*ARGV, "--model", "small", "--dtype=half"]}, "--dtype"),
        ({"machine": {"cpus": 64}}, "machine"),
        ({"argv": [*ARGV, "--model", "small"]}, "--dtype"),
        ({"argv": [*SMALL, "-q", "fp8"]}, "--quantization"),
        ({"argv": [*SMALL, "-tp=2"]}, "--tensor-parallel-size"),
        ({"argv": [*SMALL, "--enforce-eager"]}, "--enforce-eager"),
    ],
)
def test_runs_of_unlike_servers_are_not_fitted_together(
    tmp_path: Path, other: dict[str, Any], said: str
) -> None:
    runs = []
    cases: dict[str, dict[str, Any]] = {"one": {}, "two": other}
    for name, how in cases.items():
        run = write_run(tmp_path / name, argv=how.get("argv", SMALL))
        facts = json.loads((run / "run.json").read_text())
        machine = how.get("machine", {"cpus": 2})
        (run / "run.json").write_text(json.dumps({**facts, "machine": machine}))
        runs.append(run)
    with pytest.raises(UsageError, match=f"two are not of the same server: their {said} differs"):
        calibrate(runs)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("--tensor-parallel-size=1 --kv-cache-dtype auto --no-enforce-eager", ""),
        ("--tensor-parallel-size 2 -tp 1", ""),
        ("--enforce-eager --port 1", "--enforce-eager"),
        ("-tp 2 --quantization fp8", "--quantization and --tensor-parallel-size"),
    ],
)
def test_a_run_of_another_engine_than_the_twin_is_told_by_its_flags(more: str, said: str) -> None:
    model = TwinModel(STEP, FRONT, 0.0, 1, 0.0, {}, engine={"argv": SMALL})
    found = unlike_servers(model, [*SMALL, *more.split()])
    assert bool(found) == bool(said)
    assert f"by {said}:" in " ".join(found) or not said
    assert unlike_servers(model, []) == unlike_servers(replace(model, engine={}), SMALL) == []


HERE = {"platform": "Linux-6.1", "cpu": "A", "cpus": 2, "memory_gb": 7.8}


@pytest.mark.parametrize(
    ("known", "machine", "said"),
    [
        (HERE, HERE | {"platform": "Linux-6.8"}, ""),
        (HERE, HERE | {"cpu": "B", "cpus": 64}, "by the machine's cpu and the machine's cpus:"),
        (HERE, HERE | {"cpu": None}, ""),
        (HERE, {}, ""),
        ("", HERE, ""),
        ("two cores", HERE, ""),
    ],
)
def test_a_run_of_another_machine_than_the_twin_is_told(
    tmp_path: Path, known: object, machine: Any, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    run, twin = write_run(tmp_path / "run"), tmp_path / "twin.json"
    TwinModel(STEP, FRONT, 0.0, 1, 0.0, {}, machine=str(known)).write(twin)
    facts = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**facts, "machine": machine}))
    told = [str(run), "--twin", str(twin)]
    advice = [*told, "--slo", "ttft_ms.p95<=9", "--no-rates", "--kv-tokens", "5120"]
    for command, words in ((simulate_command, told), (advise_command, advice)):
        assert command(words) == 0
        out = capsys.readouterr().out
        assert ("of another engine than the twin" in out) == bool(said)
        assert said in " ".join(out.split())


def test_a_run_of_another_cache_than_the_twin_s_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run, made = served_run(tmp_path / "run", users=1), tmp_path / "made.json"
    known = recorded_load(run, BLOCK).computed_tokens
    words = [str(run), "-o", str(made)]
    assert calibrate_command(words) == 0
    assert "the twin computes" not in capsys.readouterr().out
    rewritten(run, slice(0, 3), cached_tokens=str(2 * BLOCK))
    assert calibrate_command(words) == 0
    said = f"the twin computes {known:,} prompt tokens, the engine computed {known - 6 * BLOCK:,}"
    assert said in capsys.readouterr().out
    assert said in TwinModel.read(made).otherwise[0]
    with pytest.raises(UsageError, match=r"prompt_logprobs\), or its blocks are not of 128 tokens"):
        calibrate_command([str(rewritten(run, cached_tokens="0")), "-o", str(made)])


def test_a_server_stays_the_same_when_its_system_is_brought_up_to_date(tmp_path: Path) -> None:
    runs = [served_run(tmp_path / name) for name in ("before", "after")]
    for run in runs:
        facts = json.loads((run / "run.json").read_text())
        machine = {"platform": f"Linux-{run.name}", "cpu": "X", "cpus": 2, "memory_gb": 7.6}
        (run / "run.json").write_text(json.dumps({**facts, "machine": machine}))
    assert calibrate(runs).runs == 2


def test_a_run_behind_an_unknown_router_is_refused_with_what_helps(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    replicas = {"engines": {"e-1": {}, "e-2": {}}}
    (run / "summary.json").write_text(json.dumps({"replicas": replicas}))
    with pytest.raises(UsageError, match="several engines and does not tell their router: give a"):
        calibrate([run])


def test_another_vllm_is_said_and_not_fitted_with_one(tmp_path: Path) -> None:
    told = [{"versions": {"vllm": f"0.{n}.0+cpu"}} for n in (11, 12)]
    runs = [write_run(tmp_path / str(n), target=each) for n, each in enumerate(told)]
    (said,) = CalibratedEngine.of_run(runs[0]).assumed
    assert said.startswith("its engine was vLLM 0.11.0, and here decides the scheduler of 0.")
    with pytest.raises(UsageError, match="their vLLM differs"):
        calibrate(runs)


def test_a_load_that_is_not_all_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", arrivals="poisson", num_users=2)
    rewritten(run, slice(-9, None), **LOST, outcome="cancelled", sent_s="")
    with pytest.raises(UsageError, match="9 requests that were due waited"):
        recorded_load(run, BLOCK)
    run = write_run(tmp_path / "run", extra_body='{"prompt_logprobs": 1}')
    with pytest.raises(UsageError, match="have prompt_logprobs and go past"):
        recorded_load(run, BLOCK)


def test_users_who_stopped_are_told(tmp_path: Path) -> None:
    run = rewritten(write_run(tmp_path / "run", arrivals=None), slice(20, None), user="U-0")
    load = recorded_load(run, BLOCK)
    assert load.remarks[0].startswith("3 of its users ended long before")
    assert not load.pace.is_open


def test_flags_with_equals_signs_are_replaced(tmp_path: Path, twin: str) -> None:
    plugin = "--scheduler-cls=scheduler_plugin.ContextScheduler"
    argv = [*ARGV, "--num_gpu_blocks_override=41", plugin, "--additional-config={}"]
    run, out = served_run(tmp_path / "run", argv=argv), tmp_path / "out"
    words = [str(run), "--twin", twin, "--target", "vllm", "--kv-tokens", "2560"]
    assert simulate_command([*words, "--out", str(out)]) == 0
    assert RecordedRun(out).engine_argv == [*ARGV, "--num-gpu-blocks-override", "21"]


def test_a_run_that_is_given_twice_is_not_two(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run")
    with pytest.raises(UsageError, match="is given twice: name each run once"):
        calibrate([run, tmp_path / "x" / ".." / "run"])
    facts = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**facts, "start_unix_s": 1.5e9}))
    copied = shutil.copytree(run, tmp_path / "copied")
    with pytest.raises(UsageError, match=r"run and .*copied are the same run: name it once"):
        calibrate([run, copied])


@pytest.mark.parametrize(
    ("words", "name"),
    [
        ("--replicas 2", "vllm-fleet"),
        ("--replicas 2 --target vllm-context", "vllm-context-fleet"),
        ("--target vllm-context", "vllm-context"),
    ],
)
def test_a_simulated_target_has_the_name_and_the_words_of_a_real_one(
    tmp_path: Path, twin: str, words: str, name: str
) -> None:
    argv = {"vllm": [*ARGV, "--model", "m"], "cache": ["python", "-m", "cache"]}
    run, out = served_run(tmp_path / "run", target={"argv": argv}), tmp_path / "out"
    assert simulate_command([str(run), "--twin", twin, *words.split(), "--out", str(out)]) == 0
    target = json.loads((out / "run.json").read_text())["target"]
    assert target["name"] == name
    assert ("--scheduler-cls" in target["argv"]["vllm"]) is ("context" in words)
    assert target["argv"]["cache"] == argv["cache"]


def test_engines_have_no_more_at_work_than_users_have_sent(
    tmp_path: Path, twin: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    merged = EngineLedger.merged

    def with_peaks_apart(ledgers: Sequence[EngineLedger]) -> EngineLedger:
        return replace(merged(ledgers), peak_running=16)

    monkeypatch.setattr(EngineLedger, "merged", with_peaks_apart)
    run, out = served_run(tmp_path / "run", users=8), tmp_path / "out"
    words = [str(run), "--twin", twin, "--replicas", "2", "--out", str(out)]
    assert simulate_command(words) == 0
    summary = json.loads((out / "summary.json").read_text())
    assert summary["server"]["peak_running"] == summary["peak_concurrency"] <= 8


def test_a_replayed_trace_is_not_served_by_lengths_alone(tmp_path: Path, twin: str) -> None:
    run = write_run(tmp_path / "run")
    facts = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**facts, "trace_sha256": "0" * 64}))
    with pytest.raises(UsageError, match=r"replayed a trace, .*simulate replay --trace FILE"):
        simulate_command([str(run), "--twin", twin])
    with pytest.raises(UsageError, match="replayed a trace"):
        calibrate([run])


@pytest.mark.parametrize(("rows", "is_told"), [(slice(None), True), (slice(0, 1), False)])
def test_an_open_loop_that_waited_for_its_users_is_not_told_again(
    rows: slice, is_told: bool, tmp_path: Path
) -> None:
    run = write_run(tmp_path / "run", arrivals="poisson", num_users=2)
    rewritten(run, rows, scheduled_s="-1")
    if not is_told:
        assert recorded_load(run, BLOCK).units
        return
    with pytest.raises(UsageError, match=rf"{REQUESTS} requests that were due waited for a free"):
        recorded_load(run, BLOCK)
    facts = json.loads((run / "run.json").read_text())
    facts["options"]["num_users"] = 0
    (run / "run.json").write_text(json.dumps(facts))
    assert recorded_load(run, BLOCK).units


def test_a_cache_that_was_smaller_than_the_model_s_window_bounds_no_larger_one(
    tmp_path: Path,
) -> None:
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text('{"max_position_embeddings": 32768}')
    argv = [*ARGV, "--model", str(model)]
    small = write_run(tmp_path / "small", argv=argv, target={"max_model_len": 40 * BLOCK})
    assert shape_of_run(small).max_model_len == 32_768
    told = write_run(tmp_path / "told", argv=argv, target={"max_model_len": 2048})
    assert shape_of_run(told).max_model_len == 2048, "somebody said so"


def test_a_window_that_is_not_told_holds_the_longest_request(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", target={"max_model_len": None, "usable_blocks": 200})
    assert shape_of_run(run).max_model_len == 12_288
    rewritten(run, slice(1, None), prompt_tokens="", output_tokens="")
    rewritten(run, slice(0, 1), prompt_tokens="20000", output_tokens="64")
    assert shape_of_run(run).max_model_len == 20_064


def test_offload_to_a_gpu_has_no_time_in_a_run(tmp_path: Path) -> None:
    config = {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": {}}
    argv = [*ARGV[:5], "--kv-transfer-config", json.dumps(config)]
    with pytest.raises(UsageError, match="what loads take from memory to a GPU is not told"):
        shape_of_run(write_run(tmp_path / "run", argv=argv))
