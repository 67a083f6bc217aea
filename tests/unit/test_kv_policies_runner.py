"""The runner on a tiny model with random weights: rows, files, continuing, facts, misuse."""

import csv
import json
import re
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_llama import write_tiny_llama
from transformers import LlamaConfig

from dashboards.kv_policies_page import findings, write_policies_page
from dashboards.studies.page import Provenance
from kv_policies import PolicyError, PolicyPlan, note_of, policy_named, run_policies, usual_policies
from kv_policies import device as device_module
from kv_policies import runner as runner_module
from kv_policies.measuring import NeedlePrompt, PolicyMeasurement, tokens_asked
from kv_policies.needle import Needle, needles, planted
from kv_policies.rows import PolicyRow, RepeatSpread, wilson, write_object
from kv_policies.subject import subject_of
from loadgen.cli.main import main

PLAN = PolicyPlan(prompt_tokens=120, generate_tokens=6, repeats=2, needles=4)
TEXTS = [f"Sentence {number} of a text that is long enough. " * 8 for number in range(6)]
NAMES = ["full", "sink-window:4+28", "heavy-hitters:20+12", "int4-mixed:4+16", "mean-heads:1"]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_llama(tmp_path_factory.mktemp("model"))


class Told:
    """What progress said; stops at a policy where it is to."""

    def __init__(self, stop_at: int | None = None) -> None:
        self.names: list[str] = []
        self._stop_at = stop_at

    def __call__(self, done: int, total: int, name: str) -> None:
        if len(self.names) == self._stop_at:
            raise KeyboardInterrupt
        self.names.append(name)


def run(model: Path, out: Path, names: Sequence[str] = NAMES, **more: Any) -> list[PolicyRow]:
    return run_policies(model, TEXTS, names, out, **({"plan": PLAN} | more))


@pytest.fixture(scope="module")
def made(model: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[PolicyRow]]:
    out = tmp_path_factory.mktemp("out")
    return out, run(model, out)


def test_rows_of_random_weights_tell_fidelity_alone(made: tuple[Path, list[PolicyRow]]) -> None:
    out, rows = made
    full, sink, heavy, integers, heads = rows
    assert [row.policy for row in rows] == NAMES
    assert full.kl_nats == RepeatSpread(0.0, 0.0, 0.0)
    assert full.top1_agreement == RepeatSpread(1.0, 1.0, 1.0)
    for row in (sink, heavy, integers, heads):
        assert row.kl_nats is not None
        assert row.kl_nats.mean > 0
        assert row.perplexity_decode is row.perplexity_prefill is row.recall is None
    assert "guesses, as random weights do" in note_of(out)


def test_bytes_are_shares_of_the_full_cache(made: tuple[Path, list[PolicyRow]]) -> None:
    _, rows = made
    full, sink, _, integers, heads = rows
    bytes_of_token = 2 * 4 * 2 * 8 * 4
    assert full.kv_bytes == RepeatSpread(*[126 * bytes_of_token] * 3)
    assert sink.kv_bytes == RepeatSpread(*[32 * bytes_of_token] * 3)
    assert sink.kv_share is not None
    assert sink.kv_share.mean == pytest.approx(32 / 126)
    assert heads.kv_share is not None
    assert heads.kv_share.mean == pytest.approx(0.5)
    assert integers.kv_share is not None
    assert 0.25 < integers.kv_share.mean < 1


def test_peak_memory_is_beside_what_was_held_before(model: Path, tmp_path: Path) -> None:
    held = torch.ones(150_000_000)  # 600 MB, in use all the time
    (row,) = run(model, tmp_path, ["full"])
    assert row.peak_memory_bytes is not None
    assert row.peak_memory_bytes.high < held.nbytes / 2


def test_a_peak_that_cannot_begin_anew_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert device_module.peak_of(torch.device("cpu"), lambda: 7)[1] is not None
    monkeypatch.setattr(device_module, "CLEAR_REFS", tmp_path / "none" / "clear_refs")
    assert device_module.peak_of(torch.device("cpu"), lambda: 7) == (7, None)


def test_times_and_memory_are_measured(made: tuple[Path, list[PolicyRow]]) -> None:
    for row in made[1]:
        assert row.ttft_ms is not None
        assert row.ttft_ms.low > 0
        assert row.decode_ms_per_token is not None
        assert row.decode_ms_per_token.low > 0
        assert row.prefill_ms_per_token is not None
        assert row.prefill_ms_per_token.mean == pytest.approx(row.ttft_ms.mean / 120)


def test_the_table_is_a_file(made: tuple[Path, list[PolicyRow]]) -> None:
    out, rows = made
    with (out / "policies.csv").open(newline="") as file:
        found = list(csv.DictReader(file))
    assert [each["policy"] for each in found] == NAMES
    figures = [each.name for each in fields(PolicyRow)][3:]
    assert set(found[0]) == {"policy", "repeats", "placements"} | {
        f"{name}{end}" for name in figures for end in ("", "_low", "_high")
    }
    assert rows[1].kl_nats is not None
    assert float(found[1]["kl_nats_high"]) == rows[1].kl_nats.high
    assert found[1]["recall"] == ""


def test_what_is_there_is_not_measured_again(
    model: Path, made: tuple[Path, list[PolicyRow]]
) -> None:
    out, rows = made
    told = Told()
    assert run(model, out, progress=told) == rows
    assert told.names == [""]


def test_a_run_continues_where_it_was_stopped(model: Path, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        run(model, tmp_path, NAMES[:3], progress=Told(stop_at=2))
    left = Told()
    rows = run(model, tmp_path, NAMES[:3], progress=left)
    assert len(left.names) == 6 - 1 + 2 + 1, "one is made; two references, and the end"
    assert [row.repeats for row in rows] == [2, 2, 2]


def test_the_order_is_shuffled_and_the_same_again(model: Path, tmp_path: Path) -> None:
    orders = []
    for name in ("a", "b"):
        told = Told()
        run(model, tmp_path / name, progress=told)
        orders.append([each for each in told.names if each and each != "the reference"])
    assert orders[0] == orders[1]
    assert orders[0][:5] != orders[0][5:]
    assert sorted(orders[0][:5]) == sorted(NAMES)


def test_the_same_run_gives_the_same_figures(
    model: Path, made: tuple[Path, list[PolicyRow]], tmp_path: Path
) -> None:
    again = run(model, tmp_path)
    for before, after in zip(made[1], again, strict=True):
        assert before.kl_nats == after.kl_nats
        assert before.kv_bytes == after.kv_bytes


def test_a_model_with_meaning_has_all_columns(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "GUESSING", 1e9)
    full, sink = run(model, tmp_path, NAMES[:2])
    assert note_of(tmp_path) == ""
    assert full.perplexity_decode is not None
    assert full.perplexity_decode.mean == pytest.approx(256, rel=0.2), "of random weights"
    assert full.perplexity_prefill == sink.perplexity_prefill
    assert full.perplexity_decode != sink.perplexity_decode
    assert full.recall == wilson(0, 4)
    assert full.placements == 4


def test_passes_of_a_prompt_let_a_policy_act_in_it(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(runner_module, "GUESSING", 1e9)
    full, sink = run(model, tmp_path, NAMES[:2], plan=replace(PLAN, prefill_chunk=50))
    assert full.perplexity_prefill != sink.perplexity_prefill


@pytest.mark.parametrize(
    "name", ["sink-window:4+28", "int4-mixed:4+16", "minicache:1+16", "low-rank", "two-tier:16+1"]
)
def test_a_prompt_of_another_is_taken_over_as_it_would_be_computed(model: Path, name: str) -> None:
    with subject_of(model) as subject:
        haystack = subject.tokens("".join(TEXTS))
        (needle,) = needles(1, 0)
        prompt = NeedlePrompt(subject, haystack, needle, PLAN)
        chunked = NeedlePrompt(subject, haystack, needle, replace(PLAN, prefill_chunk=120))
        policy = policy_named(name)
        taken, computed = prompt.read(policy), chunked.read(policy)
        assert taken.held_bytes == computed.held_bytes
        for mine, its in zip(taken.layers, computed.layers, strict=True):
            for left, right in zip(mine.held(), its.held(), strict=True):
                assert torch.equal(left, right)


def test_a_batch_holds_so_many_times_the_bytes(
    model: Path, made: tuple[Path, list[PolicyRow]], tmp_path: Path
) -> None:
    (both,) = run(model, tmp_path, ["full"], plan=replace(PLAN, batch=2, repeats=1))
    assert made[1][0].kv_bytes is not None
    assert both.kv_bytes is not None
    assert both.kv_bytes.mean == 2 * made[1][0].kv_bytes.mean


def test_what_is_fetched_from_a_slower_tier_is_counted(model: Path, tmp_path: Path) -> None:
    full, tiers, three = run(model, tmp_path, ["full", "two-tier:16+1", "three-tier:16+1+1"])
    assert full.moved_bytes_per_token == full.slow_kv_bytes == RepeatSpread(0.0, 0.0, 0.0)
    assert full.miss_ms is None
    assert tiers.moved_bytes_per_token is not None
    assert tiers.moved_bytes_per_token.low > 0
    assert tiers.slow_kv_bytes == RepeatSpread(*[2 * 32 * 2 * 4 * 2 * 8 * 4] * 3)
    assert tiers.miss_ms is not None
    assert tiers.disk_kv_bytes == RepeatSpread(0.0, 0.0, 0.0)
    assert three.disk_kv_bytes == three.slow_kv_bytes == RepeatSpread(*[32 * 512] * 3)
    assert three.disk_miss_ms is not None
    assert three.moved_bytes_per_token is not None
    assert three.disk_bytes_per_token is not None
    both = three.moved_bytes_per_token.mean + three.disk_bytes_per_token.mean
    assert both == pytest.approx(tiers.moved_bytes_per_token.mean)
    page = write_policies_page([full, tiers], "", Provenance("", "", "", ""), tmp_path)
    assert "| slow tier, fetched a token |" in page.read_text()
    assert "| file |" not in page.read_text()
    page = write_policies_page([full, three], "", Provenance("", "", "", ""), tmp_path)
    assert "| file, fetched a token |" in page.read_text()


def test_facts_are_made_up_at_every_depth() -> None:
    found = list(needles(40, 7))
    assert found == list(needles(40, 7))
    assert found != list(needles(40, 8))
    assert sorted(int(40 * each.depth) for each in found) == list(range(40))
    assert len({each.answer for each in found}) > 35
    assert all(each.answer in each.sentence and each.answer not in each.question for each in found)


def test_a_fact_stands_at_its_depth() -> None:
    context = planted(range(1000), [-1, -2], 100, 0.5)
    assert len(context) == 100
    assert context[49:51] == [-1, -2]
    assert planted(range(1000), [-1, -2], 100, 0.0)[:2] == [-1, -2]


@pytest.mark.parametrize(
    ("said", "is_recalled"),
    [(" 12345.", True), ("12345\n", True), ("123456", False), ("1234", False), ("is 12345", False)],
)
def test_recall_is_exact(said: str, is_recalled: bool) -> None:
    assert Needle("", "", "12345", 0.5).is_recalled(said) is is_recalled


def test_perplexities_of_texts_have_the_mean_of_their_tokens() -> None:
    told = {"kl_nats": 0.1, "top1_agreement": 1.0, "recalled": 1, "asked": 2, "kv_bytes": 10}
    told |= {"slow_kv_bytes": 0, "moved_bytes_per_token": 0.0, "miss_ms": None}
    told |= {"disk_kv_bytes": 0, "disk_bytes_per_token": 0.0, "disk_miss_ms": None}
    times = {"ttft_ms": 1.0, "prefill_ms_per_token": 1.0, "decode_ms_per_token": 1.0}
    made = [
        PolicyMeasurement.parsed(
            told
            | times
            | {"perplexity_prefill": each, "perplexity_decode": each, "peak_memory_bytes": None}
        )
        for each in (10.0, 1000.0)
    ]
    found = PolicyRow.of("full", made, 20.0)
    assert found.perplexity_decode == RepeatSpread(pytest.approx(100.0), 10.0, 1000.0)
    assert found.recall == wilson(2, 4)
    assert found.kv_share == RepeatSpread(0.5, 0.5, 0.5)
    assert found.peak_memory_bytes is None


def test_intervals_of_shares_hold_at_the_ends() -> None:
    assert wilson(0, 40).low == 0
    assert wilson(0, 40).high == pytest.approx(0.0876, abs=1e-3)
    assert wilson(20, 40).low == pytest.approx(0.352, abs=1e-3)
    assert wilson(40, 40).high == 1


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"names": []}, "no policy is named"),
        ({"names": ["window:32", "window:32"]}, "policy window:32 is named twice"),
        ({"plan": replace(PLAN, generate_tokens=900)}, "the model has 512 positions"),
        (
            {"plan": replace(PLAN, prompt_tokens=509, generate_tokens=2, repeats=1)},
            "509 prompt tokens and .* after them .*: the model has 512 positions",
        ),
        ({"plan": replace(PLAN, repeats=20, needles=20)}, "give more text, or fewer tokens"),
    ],
)
def test_what_cannot_be_run_is_a_line(
    model: Path, tmp_path: Path, more: dict[str, Any], said: str
) -> None:
    with pytest.raises(PolicyError, match=said):
        run(model, tmp_path, **more)


def test_a_question_needs_positions_only_where_it_is_asked(
    model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = replace(PLAN, prompt_tokens=504, repeats=1)
    (row,) = run(model, tmp_path / "guesses", ["full"], plan=plan)
    assert row.recall is None
    monkeypatch.setattr(runner_module, "GUESSING", 1e9)
    said = r"504 prompt tokens and \d+ after them \(a question .*\): the model has 512 positions"
    with pytest.raises(PolicyError, match=said):
        run(model, tmp_path / "knows", ["full"], plan=plan)
    measured = run(model, tmp_path / "measured", ["full"])
    monkeypatch.setattr(runner_module, "tokens_asked", lambda *_: 10**6)
    assert run(model, tmp_path / "measured", ["full"]) == measured, "nobody asks again"


def test_a_question_needs_as_many_positions_as_are_read(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with subject_of(model) as subject:
        (needle,) = needles(1, 0)
        prompt = NeedlePrompt(subject, subject.tokens("".join(TEXTS)), needle, PLAN)
        policy = policy_named("full")
        cache = prompt.read(policy)
        before = cache.held_bytes
        monkeypatch.setattr(prompt, "read", lambda _: cache)
        prompt.is_recalled(policy)
        read_bytes = cache.held_bytes - before
        assert read_bytes * PLAN.prompt_tokens == before * tokens_asked(subject, [needle])


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"prompt_tokens": 10}, "prompt tokens 10: give 64 or more"),
        ({"repeats": 0}, "repeats 0: give 1 or more"),
        ({"needles": 1}, "1 needles for 2 repeats"),
        ({"prefill_chunk": -1}, "prefill chunk -1: give 0 or more"),
        ({"needles": 10**9}, "needles 1000000000: give 1,000,000 or less"),
    ],
)
def test_an_absurd_plan_is_a_line(more: dict[str, Any], said: str) -> None:
    with pytest.raises(PolicyError, match=said):
        replace(PLAN, **more)


def test_a_folder_of_another_run_is_left_alone(
    model: Path, made: tuple[Path, list[PolicyRow]]
) -> None:
    with pytest.raises(PolicyError, match="holds a run with another plan: name another --out"):
        run(model, made[0], plan=replace(PLAN, seed=1))


def test_other_weights_at_the_same_place_are_another_run(tmp_path: Path) -> None:
    model, out = tmp_path / "model", tmp_path / "out"
    (before,) = run(write_tiny_llama(model), out, ["full"])
    about = json.loads((out / "run.json").read_text())
    del about["weights_sha256"]
    (out / "run.json").write_text(json.dumps(about))
    assert run(model, out, ["full"]) == [before], "a folder made before weights were told"
    write_tiny_llama(model, seed=1)
    with pytest.raises(PolicyError, match="holds a run with another weights_sha256: name"):
        run(model, out, ["full"])


def test_a_broken_file_is_a_line(model: Path, tmp_path: Path) -> None:
    told = {"source_sha256": "", "repeats": {"0": {}}}
    (tmp_path / "policy-full.json").write_text(json.dumps(told))
    with pytest.raises(PolicyError, match=r"policy-full\.json is not whole: delete it"):
        run(model, tmp_path, ["full"])


def test_a_users_policy_that_has_changed_is_not_taken_for_what_was_measured(
    model: Path, tmp_path: Path
) -> None:
    file, out = tmp_path / "mine.py", tmp_path / "out"
    lines = "from kv_policies.policies.window import WindowAlone\nclass Mine(WindowAlone):\n"
    file.write_text(f"{lines}    name = ''\n")
    (before,) = run(model, out, [f"{file}:Mine:32"])
    assert run(model, out, [f"{file}:Mine:32"]) == [before]
    file.write_text(f"{lines}    name = ''\n\n")
    with pytest.raises(PolicyError, match=r"is of another version of Mine:32: delete it or name"):
        run(model, out, [f"{file}:Mine:32"])


def test_a_folder_that_cannot_be_made_is_a_line(model: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PolicyError, match="file cannot be written"):
        run(model, tmp_path / "file", ["full"])


@pytest.mark.parametrize("name", ["run.json", "policy-full.json", "policies.csv"])
def test_a_full_disk_is_a_line_and_the_run_goes_on(model: Path, tmp_path: Path, name: str) -> None:
    beside = tmp_path / f"{name}.tmp"
    beside.symlink_to("/dev/full")
    said = rf"{name} cannot be written \(No space left on device\): make room"
    with pytest.raises(PolicyError, match=said):
        run(model, tmp_path, ["full"])
    beside.unlink()
    assert [row.policy for row in run(model, tmp_path, ["full"])] == ["full"]


def test_room_is_asked_for_only_where_there_is_none(tmp_path: Path) -> None:
    (tmp_path / "run.json.tmp").mkdir()
    with pytest.raises(PolicyError, match=r"run\.json cannot be written \(Is a directory\)$"):
        write_object(tmp_path / "run.json", {})


def test_a_folder_without_a_model_is_a_line(tmp_path: Path) -> None:
    with pytest.raises(PolicyError, match="holds no model: give a folder"):
        run(tmp_path, tmp_path / "out")


def test_a_users_policy_that_fails_is_a_line(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from kv_policies import EvictionPolicy\n"
        "class Mine(EvictionPolicy):\n"
        "    def budget_tokens(self, layer, layers):\n"
        "        return 16\n"
        "    def scores(self, held):\n"
        "        return held.values + held.keys[..., :3]\n"
    )
    with pytest.raises(PolicyError, match="policy Mine fails: RuntimeError: The size of tensor"):
        run(model, tmp_path / "out", [f"{file}:Mine"])


def test_a_policy_that_makes_no_numbers_is_a_line(model: Path, tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(
        "from kv_policies.policies.full import Full, FullLayer\n"
        "class Layer(FullLayer):\n"
        "    def append(self, new):\n"
        "        return type(new)(*(each * float('nan') for each in super().append(new)))\n"
        "class Mine(Full):\n"
        "    name = ''\n"
        "    def layer(self, index, shape, earlier):\n"
        "        return Layer()\n"
    )
    with pytest.raises(PolicyError, match="policy Mine: what the model says is no number"):
        run(model, tmp_path / "out", [f"{file}:Mine"])


def test_the_usual_policies_are_those_the_model_can_have(model: Path, tmp_path: Path) -> None:
    names = usual_policies(model, PLAN)
    assert {"full", "mean-heads:1", "minicache:2+64", "int2-mixed:0+0"} <= set(names)
    assert len(names) > 2 * len(usual_policies(model, PLAN, is_quick=True)) - 2
    LlamaConfig(num_key_value_heads=1).save_pretrained(tmp_path)
    assert "mean-heads:1" not in usual_policies(tmp_path, PLAN)


def row(policy: str, share: float, perplexity: float, hits: int, kl: float = 0.1) -> PolicyRow:
    known = {each.name: None for each in fields(PolicyRow)} | {
        "policy": policy,
        "repeats": 1,
        "placements": 40,
        "perplexity_decode": RepeatSpread(*[perplexity] * 3),
        "recall": wilson(hits, 40),
        "kv_share": RepeatSpread(*[share] * 3),
        "kl_nats": RepeatSpread(*[kl] * 3),
        "ttft_ms": RepeatSpread(100.0, 90.0, 120.0),
    }
    return PolicyRow(**known)  # type: ignore[arg-type]


ROWS = [
    row("full", 1.0, 10.0, 38),
    row("sink-window:4+28", 0.25, 10.2, 8),
    row("window:32", 0.25, 500.0, 0),
    row("int4-mixed:4+64", 0.3, 10.1, 37),
    row("int2-token:0+0", 0.2, 900.0, 0, kl=4.0),
    row("int2-token:4+64", 0.25, 30.0, 2, kl=1.5),
    row("int2-mixed:4+64", 0.25, 12.0, 2, kl=0.5),
]


def test_the_page_says_what_the_rows_say() -> None:
    said = " ".join(findings(ROWS))
    assert "At 55 % of the bytes or less, `int4-mixed:4+64` of 6 policies" in said
    assert "At 30 % of the bytes or less, `int4-mixed:4+64` of 6" in said
    assert "`int2-token:0+0` (90 times, recall 0 %)" in said
    assert "Outlier channels of keys cost 3.0 times" in said
    assert "The first 4 tokens are worth 49 times" in said
    assert "Averaging heads" not in said
    averaged = " ".join(findings([*ROWS, row("mean-heads:1", 0.33, 3000.0, 0)]))
    assert "without training does not work: `mean-heads:1` has 300 times the full" in averaged
    assert "`int2-token` has a KL of 4 nats a token, with them (`int2-token:4+64`) of 1.5" in said


def test_nothing_is_said_that_the_rows_do_not_show() -> None:
    rows = [
        row("full", 1.0, 10.0, 38),
        row("minicache:0+0", 0.5, 20.0, 8, kl=2.0),
        row("minicache:15+64", 0.5, 20.0, 8, kl=1.0),
        row("sink-window:0+132", 0.25, 20.0, 8),
        row("sink-window:4+128", 0.25, 30.0, 8),
        row("window:132", 0.25, 20.0, 8),
        row("int4-token:4+64", 0.3, 10.0, 38, kl=0.1),
        row("int4-mixed:4+64", 0.3, 10.0, 38, kl=0.2),
    ]
    said = " ".join(findings(rows))
    assert "first and recent tokens in full" not in said, "minicache's first number is a layer"
    assert "The first 0 tokens" not in said
    assert "`window:132` loses nothing without the first tokens of `sink-window:4+128`" in said
    assert "Outlier channels" not in said


def test_what_a_policy_costs_in_time_is_said_where_repeats_and_a_tenth_tell_it() -> None:
    def timed(policy: str, *decode_ms: float) -> PolicyRow:
        known = replace(row(policy, 0.5, 10.0, 38), repeats=3)
        return replace(known, decode_ms_per_token=RepeatSpread(*decode_ms) if decode_ms else None)

    rows = [
        timed("full", 50.0, 45.0, 52.0),
        timed("a", 100.0, 56.0, 150.0),
        timed("b", 40.0, 30.0, 44.0),
        timed("c", 100.0, 50.0, 150.0),
        timed("d", 54.0, 53.0, 55.0),
        timed("e"),
    ]
    decoded, first = [each for each in findings(rows) if "token takes" in each]
    assert decoded == (
        "A decoded token takes 50 ms with the full cache; longer with `a` (2.0 times); less with"
        " `b` (0.80 times); 2 of 4 other policies are not told apart from it by a tenth."
    )
    assert first.endswith("; 5 of 5 other policies are not told apart from it by a tenth.")
    for few in (rows[:1], [replace(each, repeats=2) for each in rows]):
        assert not [each for each in findings(few) if "token takes" in each]


def test_a_page_is_written_with_its_pictures(tmp_path: Path) -> None:
    measured = Provenance("kvswarm policies --quick", "today", "a machine", "versions")
    page = write_policies_page(ROWS, "A note.", measured, tmp_path)
    text = page.read_text()
    assert "**A note.**" in text
    assert "a machine, versions. It was made with `--quick`, which is for trying" in text
    assert text.count("\n| `") == len(ROWS)
    assert {each.name for each in tmp_path.iterdir()} == {
        "policies.md",
        "policies-frontier.svg",
        "policies-time.svg",
    }


def test_the_command_lists_and_measures(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["policies", "--list"]) == 0
    listed = capsys.readouterr().out
    assert "sink-window:4+128 " in listed
    assert "the first tokens and a window of the last" in listed
    words = ["--model", str(model), "--policy", "full", "--policy", "window:32", "--quick"]
    sizes = ["--prompt-tokens", "100", "--generate", "4", "--needles", "2"]
    assert main(["policies", *words, *sizes, "--out", str(tmp_path / "out")]) == 0
    said = capsys.readouterr()
    assert "window:32" in said.out
    assert "guesses, as random weights do" in said.out
    assert (tmp_path / "out" / "policies.md").is_file()
    assert "0 of 4 measured" in said.err
    noted = tmp_path / "out" / "measured.json"
    told = json.loads(noted.read_text()) | {"when": "on a Friday", "machine": "another machine"}
    noted.write_text(json.dumps(told))
    study = ["study", "policies", *words, *sizes, "--out", str(tmp_path / "out")]
    assert main([*study, "--page", str(tmp_path / "docs")]) == 0
    assert "0 of 4 measured" not in capsys.readouterr().err
    page = (tmp_path / "docs" / "policies.md").read_text()
    assert "kvswarm study policies --model" in page
    assert "Measured on a Friday on another machine" in page, "not where the page was made"
    assert {"policies.csv", "policies-time.svg"} <= {e.name for e in (tmp_path / "docs").iterdir()}


def test_the_guides_policy_works(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    guide = Path(__file__).parents[2] / "docs" / "guides" / "kv-policies.md"
    (example,) = re.findall(r"```python\n(.*?)```", guide.read_text(), re.S)
    (tmp_path / "my_policy.py").write_text(example)
    monkeypatch.chdir(tmp_path)
    assert main(["policies", "--check", "--policy", "my_policy.py:Strided:200+32"]) == 0
    said = capsys.readouterr().out
    assert "Strided:200+32: the same as the full cache for 8 tokens, 40% of its bytes" in said


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--policy", "window:0"], "window: 0 window tokens: give 1 or more"),
        (["--repeats", "0"], "repeats 0: give 1 or more"),
        (["--policy", "sink-windw"], "did you mean 'sink-window'"),
    ],
)
def test_the_command_tells_mistakes_in_a_line(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    assert main(["policies", "--model", str(model), "--out", str(tmp_path / "o"), *words]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1
