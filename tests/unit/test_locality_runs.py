"""Traces of plans and of finished runs, and `kvswarm curve` as it is typed."""

import csv
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, processors

from loadgen.cli.main import main
from loadgen.errors import UsageError
from loadgen.locality.curve import predict
from loadgen.locality.measured import kv_bytes_per_token, measured_run, run_bytes_per_token
from loadgen.locality.replay import CacheReplay
from loadgen.locality.trace import Chain, TokenIds, Trace
from loadgen.locality.trace_sources import (
    SentRequest,
    shared_prefix_chains,
    trace_of_plan,
    trace_of_run,
)
from loadgen.record import COLUMNS
from loadgen.workload.batches import Batching
from loadgen.workload.corpus import load_corpus
from loadgen.workload.settings import Span, WorkloadSettings
from loadgen.workload.workload import Workload

SETTINGS = WorkloadSettings(seed=3, contexts=4, repeat=0.2, context_tokens=Span(1000, 1500))
OPTIONS = {
    "seed": 3,
    "contexts": 4,
    "zipf": 0.0,
    "stickiness": 0.0,
    "repeat": 0.2,
    "context_tokens": "1000-1500",
    "output_tokens": "16",
    "order": "shuffled",
    "batch_size": 12,
    "endpoint": "completions",
}
REQUESTS = 30
EMPTY_PROMPT = """\
request_id,context_id,question_id,sent_s,end_s,prompt_tokens,output_tokens
0,a,q,0,1,0,1
"""
ENDLESS_PROMPT = f"{EMPTY_PROMPT.replace('1,0,1', '1,5,1')}1,a,q,0,1,1e12,1\n"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A token per byte, behind one that begins every prompt."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {letter: number for number, letter in enumerate(["<s>", *letters])}
    made = Tokenizer(models.BPE(vocabulary, []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.post_processor = processors.TemplateProcessing("<s> $A", special_tokens=[("<s>", 0)])
    folder = tmp_path_factory.mktemp("model")
    made.save(str(folder / "tokenizer.json"))
    config = {
        "num_hidden_layers": 8,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "hidden_size": 512,
        "torch_dtype": "bfloat16",
    }
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def planned(
    tokenizer: Path, batching: Batching | None = None, settings: WorkloadSettings = SETTINGS
) -> Trace:
    tokens = TokenIds.from_path_or_name(str(tokenizer))
    return trace_of_plan(load_corpus(None, None), settings, tokens, REQUESTS, 16, batching=batching)


def write_run(path: Path, tokenizer: Path, **changes: Any) -> Path:
    """The run of the plan, as an engine would have left it; rows stand in reverse."""
    tokens = TokenIds.from_path_or_name(str(tokenizer))
    settings = changes.get("settings", SETTINGS)
    requests = islice(Workload(load_corpus(None, None), settings, tokens).requests(), REQUESTS)
    path.mkdir(parents=True)
    with (path / "requests.csv").open("w", newline="") as file:
        rows = csv.DictWriter(file, COLUMNS)
        rows.writeheader()
        for each in reversed(list(requests)):
            rows.writerow(
                {
                    "request_id": each.index,
                    "context_id": each.context_id,
                    "question_id": each.question_id,
                    "sent_s": each.index,
                    "end_s": each.index + changes.get("lasting_s", 0.5),
                    "prompt_tokens": len(tokens.ids(each.prompt)) + changes.get("extra_tokens", 0),
                    "output_tokens": 16,
                    "outcome": "ok",
                }
            )
    target = {
        "block_size": 16,
        "usable_tokens": 4096,
        "tokenizer": str(tokenizer),
        "argv": {"vllm": ["python", "--model", str(tokenizer)]},
    }
    told = {"cache_state": "cold", "target": target, "exit_code": 0}
    description = {"options": OPTIONS, "users": 1, **told}
    (path / "run.json").write_text(json.dumps({**description, **changes.get("description", {})}))
    summary = {"server": {"hit_rate": 0.5}}
    (path / "summary.json").write_text(json.dumps(summary))
    return path


def call(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main(["curve", *map(str, arguments)])
    out, err = capsys.readouterr()
    return code, out, err


def test_a_finished_run_gives_the_trace_that_was_planned(tmp_path: Path, tokenizer: Path) -> None:
    found = trace_of_run(write_run(tmp_path / "run", tokenizer))
    assert found.chains == planned(tokenizer).chains
    assert found.is_sequential
    assert "made anew" in found.source
    assert not found.remarks


def test_a_system_prompt_is_of_the_prompts_made_anew(tmp_path: Path, tokenizer: Path) -> None:
    settings = replace(SETTINGS, system_tokens=600)
    description = {"options": {**OPTIONS, "system_tokens": 600}}
    run = write_run(tmp_path / "run", tokenizer, settings=settings, description=description)
    assert not trace_of_run(run).source.startswith("context ids")
    (run / "run.json").write_text((run / "run.json").read_text().replace(str(tokenizer), "/gone"))
    expected = planned(tokenizer, settings=settings)
    shared = expected.chains[0].blocks[:36]
    assert all(each.blocks[:36] == shared for each in expected.chains)
    assert len({each.blocks[:44] for each in expected.chains}) == 4
    rough = trace_of_run(run)
    assert rough.source.startswith("context ids")
    assert predict(rough).bound == pytest.approx(predict(expected).bound, abs=0.05)


def test_a_request_without_a_number_is_told_in_a_line(tmp_path: Path, tokenizer: Path) -> None:
    run = write_run(tmp_path / "run", tokenizer)
    with (run / "requests.csv").open("a") as file:
        file.write(
            ",".join(
                {
                    "request_id": "x",
                    "sent_s": "1",
                    "end_s": "2",
                    "prompt_tokens": "9",
                    "outcome": "ok",
                }.get(name, "")
                for name in COLUMNS
            )
            + "\n"
        )
    with pytest.raises(UsageError, match="a request_id is no number"):
        trace_of_run(run)


def test_what_all_prompts_share_is_shared_by_length_too() -> None:
    def sent(context: str, question: str) -> SentRequest:
        return SentRequest(0, context, question, "", 0.0, 1.0, 80, 4)

    one, other, bare = shared_prefix_chains([sent("a", "1"), sent("b", "2"), sent("", "3")], 16, 2)
    assert one.blocks[:2] == other.blocks[:2] == bare.blocks[:2]
    assert len({*one.blocks, *other.blocks, *bare.blocks}) == 2 + 3 * 3


def test_a_spreadsheets_mark_before_the_header_is_read_over(
    tmp_path: Path, tokenizer: Path
) -> None:
    file = write_run(tmp_path / "run", tokenizer) / "requests.csv"
    file.write_text(file.read_text(), encoding="utf-8-sig")
    assert trace_of_run(tmp_path / "run").chains == planned(tokenizer).chains


def test_a_prompt_has_the_special_tokens_that_the_engine_adds(tokenizer: Path) -> None:
    tokens = TokenIds.from_path_or_name(str(tokenizer))
    assert tokens.ids("a")[0] == 0
    assert len(tokens.ids("a")) == 1 + tokens.count("a")


def test_two_that_overlap_were_in_flight_together(tmp_path: Path, tokenizer: Path) -> None:
    assert trace_of_run(write_run(tmp_path / "run", tokenizer, lasting_s=1.5)).users == 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"extra_tokens": 1}, "do not come out"),
        ({"description": {"target": None}}, "no tokenizer is known"),
        ({"description": {"target": {"tokenizer": "/nowhere/model"}}}, "no tokenizer is known"),
        ({"description": {"options": {**OPTIONS, "endpoint": "chat"}}}, "chat template"),
        ({"description": {"options": {}}}, "do not come out"),
        ({"description": {"options": {**OPTIONS, "system_tokens": "x"}}}, "do not come out"),
    ],
)
def test_prompts_that_cannot_be_made_anew_are_known_by_context_and_length(
    changes: dict[str, Any], said: str, tmp_path: Path, tokenizer: Path
) -> None:
    found = trace_of_run(write_run(tmp_path / "run", tokenizer, **changes))
    assert said in found.source
    exact, rough = predict(planned(tokenizer)), predict(found)
    assert rough.bound == pytest.approx(exact.bound, abs=0.05)
    assert rough.bound >= exact.bound - 0.01


def test_a_plan_in_batches_has_the_order_of_its_batches(tokenizer: Path) -> None:
    shuffled, grouped = planned(tokenizer), planned(tokenizer, Batching(10, "grouped"))
    assert grouped.in_flight == 10
    assert grouped.chains != shuffled.chains
    for start in range(0, REQUESTS, 10):
        batch, drawn = (each.chains[start : start + 10] for each in (grouped, shuffled))
        assert Counter(map(_lengths, batch)) == Counter(map(_lengths, drawn))
        contexts = [chain.blocks[0] for chain in batch]
        assert len(set(contexts)) == 1 + sum(
            before != after for before, after in pairwise(contexts)
        )


def _lengths(chain: Chain) -> tuple[int, int]:
    return chain.prompt_tokens, chain.output_tokens


def test_list_calls_of_a_grouped_run_stand_in_the_order_of_the_batch(
    tmp_path: Path, tokenizer: Path
) -> None:
    run = write_run(tmp_path / "run", tokenizer)
    rows = list(csv.DictReader((run / "requests.csv").open(newline="")))
    for row in rows:
        row["batch_id"] = str(int(row["request_id"]) // 10)
        row["sent_s"] = row["batch_id"]
    with (run / "requests.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    description = json.loads((run / "run.json").read_text())
    description["options"] = {**OPTIONS, "order": "grouped", "batch_size": 10}
    (run / "run.json").write_text(json.dumps(description))
    found = trace_of_run(run)
    assert found.chains == planned(tokenizer, Batching(10, "grouped")).chains
    assert (found.users, found.batch_size) == (1, 10)


@pytest.mark.parametrize(
    ("arrivals", "users", "batch_size"), [("closed", 1, 10), ("poisson", 5, 1)]
)
def test_what_comes_by_a_rate_is_in_flight_as_the_times_say(
    arrivals: str, users: int, batch_size: int, tmp_path: Path, tokenizer: Path
) -> None:
    run = write_run(tmp_path / "run", tokenizer)
    rows = list(csv.DictReader((run / "requests.csv").open(newline="")))
    for at, row in enumerate(rows):
        row |= {"batch_id": str(at // 10), "sent_s": str(at), "end_s": str(at + 4.5)}
    with (run / "requests.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    description = json.loads((run / "run.json").read_text())
    description["options"] = {**OPTIONS, "batch_size": 10, "arrivals": arrivals}
    description["users"] = 0
    (run / "run.json").write_text(json.dumps(description))
    found = trace_of_run(run)
    assert (found.users, found.batch_size) == (users, batch_size)


def test_the_engines_own_limits_are_replayed(tmp_path: Path, tokenizer: Path) -> None:
    run = write_run(tmp_path / "run", tokenizer)
    description = json.loads((run / "run.json").read_text())
    description["target"]["argv"]["vllm"] += ["--max-num-seqs=1", "--max-num-batched-tokens", "512"]
    (run / "run.json").write_text(json.dumps(description))
    found = trace_of_run(run)
    assert (found.most_running, found.step_tokens) == (1, 512)
    waiting, running = replace(found, users=8), replace(found, users=8, most_running=8)
    blocks = found.least_blocks + 40
    one, eight = (CacheReplay(each, blocks).run().cached for each in (waiting, running))
    assert one == CacheReplay(replace(found, users=1), blocks).run().cached != eight


@pytest.mark.parametrize("left_out", [{"warmup": {"given": True}}, {"stats_reset_s": 4.0}])
def test_a_hit_rate_of_a_part_of_the_run_is_not_set_against_that_of_all(
    left_out: dict[str, Any], tmp_path: Path, tokenizer: Path
) -> None:
    run = write_run(tmp_path / "run", tokenizer)
    summary = json.loads((run / "summary.json").read_text())
    (run / "summary.json").write_text(json.dumps(summary | left_out))
    with pytest.raises(UsageError, match="which its hit rate leaves out: run it without"):
        measured_run(run)


def test_a_measured_run_stands_beside_its_own_prediction(tmp_path: Path, tokenizer: Path) -> None:
    found = measured_run(write_run(tmp_path / "run", tokenizer))
    expected = predict(planned(tokenizer), [4096]).points[0].hit_rate
    assert found.predicted == expected
    assert found.error_points == pytest.approx(100 * (expected - 0.5))


@pytest.mark.parametrize(
    ("flag", "said"),
    [
        ("--no-enable-prefix-caching", "had no prefix cache"),
        ("--kv-transfer-config", "KV connector"),
        ("--scheduler-cls", "first come, first served"),
    ],
)
def test_what_the_engine_does_otherwise_is_remarked(
    flag: str, said: str, tmp_path: Path, tokenizer: Path
) -> None:
    run = write_run(tmp_path / "run", tokenizer)
    description = json.loads((run / "run.json").read_text())
    description["target"]["argv"]["vllm"].append(flag)
    (run / "run.json").write_text(json.dumps(description))
    assert any(said in remark for remark in trace_of_run(run).remarks)
    if flag == "--no-enable-prefix-caching":
        with pytest.raises(UsageError, match="without a prefix cache"):
            measured_run(run)
        description["target"]["argv"]["vllm"].append("--enable_prefix_caching")
        (run / "run.json").write_text(json.dumps(description))
        assert not any(said in remark for remark in trace_of_run(run).remarks)
        measured_run(run)


def test_a_run_that_is_not_whole_is_remarked_and_measures_nothing(
    tmp_path: Path, tokenizer: Path
) -> None:
    run = write_run(tmp_path / "run", tokenizer)
    description = json.loads((run / "run.json").read_text())
    del description["exit_code"]
    (run / "run.json").write_text(json.dumps(description))
    assert trace_of_run(run).remarks[0].startswith("the run did not come to its end")
    with pytest.raises(UsageError, match="give a whole run"):
        measured_run(run)


def test_a_run_on_a_host_says_nothing_of_its_cache(tmp_path: Path, tokenizer: Path) -> None:
    run = write_run(tmp_path / "run", tokenizer)
    description = json.loads((run / "run.json").read_text())
    del description["target"]
    (run / "run.json").write_text(json.dumps(description))
    assert run_bytes_per_token(run) is None


@pytest.mark.parametrize(
    ("given", "width"),
    [
        ([], 2),
        (["--dtype", "auto"], 2),
        (["--dtype", "float32"], 4),
        (["--dtype", "float32", "--dtype=bfloat16"], 2),
        (["--dtype=float32", "--kv-cache-dtype", "fp8_e4m3"], 1),
        (["--kv-cache-dtype", "auto", "--dtype", "float32"], 4),
        (["--dtype", "float32", "--dtype"], 4),
    ],
)
def test_bytes_of_a_token_are_those_of_the_type_the_engine_was_told(
    given: list[str], width: int, tmp_path: Path, tokenizer: Path
) -> None:
    run = write_run(tmp_path / "run", tokenizer)
    description = json.loads((run / "run.json").read_text())
    description["target"]["argv"]["vllm"] += given
    (run / "run.json").write_text(json.dumps(description))
    assert run_bytes_per_token(run) == 2 * 8 * 2 * 64 * width


@pytest.mark.parametrize(
    ("change", "bytes_per_token"),
    [
        ({}, 2 * 8 * 2 * 64 * 2),
        ({"head_dim": 128}, 2 * 8 * 2 * 128 * 2),
        ({"num_key_value_heads": None}, 2 * 8 * 8 * 64 * 2),
        ({"torch_dtype": "float32"}, 2 * 8 * 2 * 64 * 2),
        ({"quantization_config": {"quant_method": "awq"}}, 2 * 8 * 2 * 64 * 2),
        ({"quantization_config": {"kv_cache_scheme": None}}, 2 * 8 * 2 * 64 * 2),
        ({"quantization_config": {"kv_cache_scheme": {"num_bits": 8}}}, 2 * 8 * 2 * 64),
        ({"quantization_config": {"kv_cache_scheme": {"num_bits": 4}}}, None),
        ({"quantization_config": {"kv_cache_quant_algo": "FP8"}}, 2 * 8 * 2 * 64),
        ({"quantization_config": {"quantization": {"kv_cache_quant_algo": "NVFP4"}}}, None),
        ({"kv_lora_rank": 512}, None),
        ({"num_hidden_layers": None}, None),
        ({"torch_dtype": "int3"}, None),
        ({"torch_dtype": "auto"}, None),
        ({"layer_types": ["mamba"] * 7 + ["attention"]}, None),
        ({"layer_types": ["full_attention"] * 8}, 2 * 8 * 2 * 64 * 2),
        ({"full_attention_interval": 4}, None),
        ({"sliding_window": 128, "use_sliding_window": True}, None),
        ({"sliding_window": 128, "use_sliding_window": False}, 2 * 8 * 2 * 64 * 2),
        ({"sliding_window": None}, 2 * 8 * 2 * 64 * 2),
        ({"sliding_window": 9000, "max_position_embeddings": 8192}, 2 * 8 * 2 * 64 * 2),
    ],
)
def test_bytes_of_a_token_follow_from_the_models_shape(
    change: dict[str, Any], bytes_per_token: int | None, tmp_path: Path, tokenizer: Path
) -> None:
    config = json.loads((tokenizer / "config.json").read_text()) | change
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert kv_bytes_per_token(tmp_path) == bytes_per_token
    if bytes_per_token == 2 * 8 * 2 * 64:  # it asks for this by itself
        assert kv_bytes_per_token(tmp_path, "auto", "float32") == bytes_per_token
        assert kv_bytes_per_token(tmp_path, "bfloat16") == 2 * bytes_per_token
    elif bytes_per_token:
        assert kv_bytes_per_token(tmp_path, "fp8_e4m3") == bytes_per_token // 2
        assert kv_bytes_per_token(tmp_path, "auto", "float32") == 2 * bytes_per_token


def test_the_table_says_what_is_enough_and_the_error(
    tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run", tokenizer)
    code, out, err = call(capsys, run, "--measured", run)
    assert (code, err) == (0, "")
    knee = predict(planned(tokenizer)).knee
    flat = " ".join(out.split())
    assert f"{knee.enough_tokens} tokens ({knee.enough_tokens * 4096 / 1e6:.1f} MB) are" in flat
    assert "enough for this workload, because 99%" in flat
    assert f"{measured_run(run).error_points:+.2f}" in out


def test_json_and_csv_have_the_same_points(
    tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan: Sequence[object] = (
        *("--plan", "unordered", "--tokenizer", tokenizer, "--seed", 3, "--contexts", 4),
        *("--repeat", 0.2, "--context-tokens", "1000-1500", "--requests", REQUESTS),
        *("--kv-tokens", "4096,8192", "--bytes-per-token", 1000, "--block-size", 16),
    )
    _, as_json, _ = call(capsys, *plan, "--format", "json")
    _, as_csv, _ = call(capsys, *plan, "--format", "csv")
    content = json.loads(as_json)
    rows = list(csv.DictReader(as_csv.splitlines()))
    assert [row["kv_tokens"] for row in rows] == ["4096", "8192"]
    for point, row in zip(content["points"], rows, strict=True):
        assert {name: str(value) for name, value in point.items()} == row
    curve = predict(planned(tokenizer), [4096, 8192])
    assert [float(row["hit_rate"]) for row in rows] == [point.hit_rate for point in curve.points]
    assert [float(row["kv_mb"]) for row in rows] == [4.096, 8.192]
    assert content["knee"]["enough_tokens"] == curve.knee.enough_tokens


def test_a_tier_gives_what_the_cache_has_lost(
    tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run", tokenizer)
    sizes = "--kv-tokens", 2048, "--tier-tokens"
    code, out, _ = call(capsys, run, *sizes, 10**6, "--format", "json")
    (point,) = json.loads(out)["points"]
    alone = predict(planned(tokenizer), [2048])
    assert code == 0
    assert point["tier_tokens"] > 0
    assert point["cached_tokens"] - point["tier_tokens"] == alone.points[0].cached_tokens
    assert point["hit_rate"] == pytest.approx(alone.bound)
    with_tier = call(capsys, run, *sizes, 10**6)[1]
    assert "from the tier" in with_tier
    alone_says, tier_says = (
        " ".join(text.split()).partition("are enough")[2]
        for text in (call(capsys, run, *sizes[:2])[1], with_tier)
    )
    assert alone_says == tier_says
    assert "from the tier" not in call(capsys, run, *sizes[:2])[1]
    code, _, said = call(capsys, run, *sizes, 15)
    assert code == 2
    assert "a tier of 15 tokens holds no block: give 16 or more" in said


def test_the_picture_is_drawn_with_the_measured_points(
    tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    run, file = write_run(tmp_path / "run", tokenizer), tmp_path / "curve.svg"
    assert call(capsys, run, "--measured", run, "-o", file)[0] == 0
    text = file.read_text()
    assert "measured" in text
    assert f"enough: {predict(planned(tokenizer)).knee.enough_tokens} tokens" in text


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "give either"),
        (["/nowhere"], "no run at /nowhere"),
        (["/nowhere", "--plan", "unordered"], "give either"),
        (["--plan", "replay"], "is not known before it is sent"),
        (["--plan", "unordered", "--tokenizer", "/nowhere"], "--tokenizer /nowhere"),
        (["--plan", "unordered", "--kv-tokens", "0"], "--kv-tokens 0"),
        (["--plan", "unordered", "--kv-tokens", "1k"], "--kv-tokens '1k'"),
        (["--plan", "unordered", "--bytes-per-token", "0"], "--bytes-per-token 0"),
        (["--plan", "unordered", "-o", "curve.gif"], "-o curve.gif"),
        (["/nowhere", "-o", "/nowhere/curve.svg"], "/nowhere is no directory"),
        (["/nowhere", "-o", "/dev/null/curve.svg"], "/dev/null is no directory"),
        (["--plan", "unordered", "--contexts", "0"], "--contexts 0"),
    ],
)
def test_wrong_use_is_one_line(
    arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, err = call(capsys, *arguments)
    assert (code, out) == (2, "")
    assert said in err
    assert err.count("\n") == 1


def test_a_directory_is_no_picture(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "curve.svg"
    folder.mkdir()
    code, out, err = call(capsys, "/nowhere", "-o", folder)
    assert (code, out) == (2, "")
    assert f"{folder} is a directory: name a file" in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--block-size", "0"], "--block-size 0"),
        (["--requests", "0"], "--requests 0"),
        (["-u", "0"], "-u 0"),
        (["--kv-tokens", "16"], "does not hold the longest request"),
    ],
)
def test_a_plan_that_cannot_be_is_one_line(
    arguments: list[str], said: str, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = ("--plan", "unordered", "--requests", "5", "--tokenizer", tokenizer)
    code, _, err = call(capsys, *plan, *arguments)
    assert code == 2
    assert said in err
    assert err.count("\n") == 1


def test_without_a_tokenizer_the_next_step_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KVSWARM_HOME", str(tmp_path))
    code, _, err = call(capsys, "--plan", "unordered")
    assert code == 2
    assert "no tokenizer is known: give --tokenizer" in err


@pytest.mark.parametrize(
    ("file", "content", "said"),
    [
        ("run.json", "{", "no whole JSON"),
        ("run.json", "[]", "holds no JSON object"),
        ("requests.csv", "a,b\n1,2\n", "not as kvswarm writes it"),
        ("requests.csv", f"a\n{'9' * 131_073}\n", "field larger than field limit"),
        ("requests.csv", "sent_s,prompt_tokens\n", "no request whose length"),
        ("requests.csv", EMPTY_PROMPT, "not as kvswarm writes it .*prompt_tokens 0 is no length"),
        ("requests.csv", ENDLESS_PROMPT, "requests.csv line 3: prompt_tokens 1e\\+12 is more than"),
        ("summary.json", "{}", "no hit rate"),
    ],
)
def test_a_damaged_run_is_one_line(
    file: str, content: str, said: str, tmp_path: Path, tokenizer: Path
) -> None:
    run = write_run(tmp_path / "run", tokenizer)
    (run / file).write_text(content)
    with pytest.raises(UsageError, match=said) as caught:
        measured_run(run)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("platform", "block_size"), [("cpu", 128), ("gpu", 16)])
@pytest.mark.parametrize("has_bfloat16", [False, True])
def test_a_plan_is_of_the_engine_that_this_machine_would_start(
    platform: str,
    block_size: int,
    has_bfloat16: bool,
    tokenizer: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setattr("loadgen.locality.kv_format.detect_platform", lambda: platform)
    monkeypatch.setattr("loadgen.targets.plan.has_bfloat16_kernels", lambda: has_bfloat16)
    width = 4 if platform == "cpu" and not has_bfloat16 else 2
    size = 2 * 8 * 2 * 64 * width
    for model in (tokenizer, tokenizer / "config.json"):
        words = ("--plan", "unordered", "--model", model, "--tokenizer", tokenizer)
        code, out, err = call(capsys, *words, "--requests", 5, "--format", "json")
        told = json.loads(out)
        assert (code, told["block_size"], told["bytes_per_token"]) == (0, block_size, size), err
        assert f"({platform})" in told["block_size_source"]
        assert str(model) in told["bytes_per_token_source"]


def test_the_table_says_whose_block_size_and_bytes_these_are(
    tmp_path: Path, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run", tokenizer)
    _, out, _ = call(capsys, run)
    assert "block size: 16 tokens (the run's engine)" in out
    assert "a token: 4096 bytes" in out
    _, out, _ = call(capsys, run, "--block-size", 32, "--bytes-per-token", 7)
    assert "block size: 32 tokens (--block-size)" in out
    assert "a token: 7 bytes (--bytes-per-token)" in out
    assert max(map(len, out.splitlines())) <= 80


@pytest.mark.parametrize("model", ["no-such/model", "/nowhere", ""])
def test_a_model_that_is_not_there_is_one_line(
    model: str, tokenizer: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("--plan", "unordered", "--tokenizer", tokenizer, "--model", model)
    code, out, err = call(capsys, *words)
    assert (code, out) == (2, "")
    assert f"--model {model}: no config.json there" in err
    assert len(err.splitlines()) == 1
