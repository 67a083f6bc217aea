"""Tiers behind the engine's cache, on the counted clock: what is kept, and when it is there."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from test_twin import BLOCK, STEP, served_run, write_run
from test_twin_planned import BATCHES, rows_of, twin

from loadgen.cli.simulate import simulate_command
from loadgen.errors import UsageError
from loadgen.locality.break_even import Link
from loadgen.twin.advise import AdviceLoad
from loadgen.twin.calibrate import calibrate
from loadgen.twin.engine import EngineShape, VirtualEngine
from loadgen.twin.ledger import EngineLedger, TwinRequest
from loadgen.twin.load import recorded_load
from loadgen.twin.model import FrontTime
from loadgen.twin.serve import ServedLoad, TwinServer
from loadgen.twin.shape_of import shape_of_run
from loadgen.twin.tier import TierShape

__all__ = ["twin"]
CONTEXTS, SHARED, OWN, REQUESTS = 6, 1536, 64, 40
FAST, SLOW = Link("fast", 1e9, 1e-4), Link("slow", 2e6, 1e-3)
HOLDS_ALL = TierShape("vllm-offload", 100_000, 1000, FAST)


def asked(every_s: float = 1.0) -> list[TwinRequest]:
    """Contexts in turn, each longer than the engine's cache keeps until its next use."""
    return [
        TwinRequest(
            str(n),
            f"c{n % CONTEXTS}",
            (1 + n % CONTEXTS,) * SHARED + (100 + n,) * OWN,
            arrival_s=every_s * n,
            output_tokens=4,
        )
        for n in range(REQUESTS)
    ]


def engine(tier: TierShape | None, is_async: bool = False) -> VirtualEngine:
    shape = EngineShape(usable_blocks=20, async_scheduling=is_async, tier=tier)
    return VirtualEngine(shape, STEP)


def ttft_s(ledger: EngineLedger) -> float:
    first = ledger.first_token_s
    return sum(first[each.name] - each.arrival_s for each in ledger.arrived) / REQUESTS


@pytest.mark.parametrize("is_async", [False, True])
@pytest.mark.parametrize("is_in_step", [False, True])
def test_a_tier_that_holds_all_leaves_first_uses(is_async: bool, is_in_step: bool) -> None:
    none = engine(None).run(asked())
    assert none.computed_tokens == REQUESTS * (SHARED + OWN), "the cache alone holds nothing"
    found = engine(replace(HOLDS_ALL, is_in_step=is_in_step), is_async)
    ledger = found.run(asked())
    first_uses = CONTEXTS * (SHARED + OWN) + (REQUESTS - CONTEXTS) * OWN
    assert ledger.computed_tokens == ledger.reported_tokens == first_uses
    assert ledger.reported_external_tokens == (REQUESTS - CONTEXTS) * SHARED
    assert ledger.cached_tokens["39"] == SHARED
    assert found.leaked_blocks == 0
    assert ttft_s(ledger) < ttft_s(none)


def test_loading_takes_bytes_over_bandwidth_and_latency() -> None:
    link = Link("link", 1e7, 0.25)
    for is_in_step in (False, True):
        ledger = engine(replace(HOLDS_ALL, memory=link, is_in_step=is_in_step)).run(asked(10.0))
        took_s = {each.name: ledger.first_token_s[each.name] - each.arrival_s for each in asked(10)}
        computed_s = STEP.step_s + STEP.prefill_token_s * OWN
        loaded_s = 0.25 + SHARED * 1000 / 1e7
        assert took_s["39"] == pytest.approx(computed_s + loaded_s, rel=0.05)


def test_a_slow_tier_is_slower_than_computing() -> None:
    none, slow = engine(None).run(asked()), engine(replace(HOLDS_ALL, memory=SLOW)).run(asked())
    assert slow.computed_tokens < none.computed_tokens
    assert ttft_s(slow) > ttft_s(none)


def test_what_was_used_least_recently_goes_first() -> None:
    """Room for all contexts but one, used in turn: nothing is ever found again."""
    room = (CONTEXTS - 1) * SHARED
    assert engine(replace(HOLDS_ALL, tokens=room)).run(asked()).reported_external_tokens == 0
    often = [replace(each, prompt=each.prompt) for each in asked() if int(each.name) % CONTEXTS < 4]
    found = engine(replace(HOLDS_ALL, tokens=room)).run(often)
    assert found.reported_external_tokens == (len(often) - 4) * SHARED


def test_files_hold_what_memory_does_not() -> None:
    tier = replace(HOLDS_ALL, tokens=2 * SHARED, files=Link("files", 1e8, 0.01))
    found = engine(tier)
    ledger = found.run(asked())
    assert ledger.reported_external_tokens == (REQUESTS - CONTEXTS) * SHARED
    assert found.tier is not None
    assert found.tier.memory_tokens == 0
    assert found.tier.file_tokens == ledger.reported_external_tokens
    assert ttft_s(ledger) > ttft_s(engine(HOLDS_ALL).run(asked()))


def test_loads_share_their_link() -> None:
    """All at once: the last waits for the loads of all others."""
    link = Link("link", 1e7, 0.0)
    warm = [replace(each, arrival_s=0.01 * n) for n, each in enumerate(asked()[:CONTEXTS])]
    again = [replace(each, arrival_s=100.0) for each in asked()[CONTEXTS : 2 * CONTEXTS]]
    shape = EngineShape(usable_blocks=100, tier=replace(HOLDS_ALL, memory=link))
    own = VirtualEngine(shape, STEP)
    own.run(warm)
    own.scheduler.reset_prefix_cache()
    ledger = own.run(again)
    waits = sorted(ledger.first_token_s[each.name] - 100.0 for each in again)
    assert waits[0] > SHARED * 1000 / 1e7
    assert waits[-1] > CONTEXTS * SHARED * 1000 / 1e7


def test_a_preempted_request_and_a_tier_end_well() -> None:
    many = [replace(each, arrival_s=0.0, output_tokens=200) for each in asked()]
    found = engine(HOLDS_ALL)
    ledger = found.run(many)
    assert len(ledger.finished_s) == REQUESTS
    assert found.leaked_blocks == 0


def test_the_command_knows_targets_with_tiers(
    twin: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def told(target: str, *more: str) -> dict[str, float]:
        words = [*BATCHES.split(), "--twin", str(twin), "--target", target, *more]
        assert simulate_command([*words, "--out", str(tmp_path / target)]) == 0
        server = json.loads((tmp_path / target / "summary.json").read_text())["server"]
        return dict(server)

    none = told("vllm")
    links = ("--link", "10GB/s,20us")
    for target in ("vllm-offload", "vllm-offload-context", "vllm-lmcache"):
        found = told(target, *links)
        assert found["computed_prompt_tokens"] < none["computed_prompt_tokens"]
        assert bool(found["external_prompt_tokens"]) == (not target.endswith("context"))
    told("vllm-tiered", *links, "--l2-link", "1GB/s", "--l1-gb", "0.001")
    assert "behind it" in capsys.readouterr().out
    again = ["--twin", str(twin), "--format", "json"]
    assert simulate_command([str(tmp_path / "vllm-lmcache"), *again]) == 0
    tier = json.loads(capsys.readouterr().out)["shape"]["tier"]
    assert tier["target"] == "vllm-lmcache"
    total = sum(int(row["prompt_tokens"]) for row in rows_of(tmp_path / "vllm-offload"))
    server = json.loads((tmp_path / "vllm-offload" / "summary.json").read_text())["server"]
    names = ("computed_prompt_tokens", "cached_prompt_tokens", "external_prompt_tokens")
    assert sum(server[name] for name in names) == total


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ("--target vllm-offload", "needs --link RATE"),
        ("--target vllm-tiered --link 1GB/s", "needs --l2-link RATE"),
        ("--target vllm-offload --link fast", "is no link"),
        ("--target vllm-tiered --link 1GB/s --l2-link fast", "--l2-link 'fast' is no link"),
        ("--target vllm --link 1GB/s", "--link is of a tier: --target vllm has none"),
        ("--l2-link 1GB/s", "--link is of a tier: --target vllm has none"),
        ("--target vllm-offload --link 1GB/s --l2-link 1GB/s", "--l2-link is of files: --target"),
        ("--target vllm-offload --link 1GB/s --l1-gb 0.000001", "--l1-gb holds no chunk"),
        ("--target vllm-offload --link 0GB/s", "give a rate from 1 B/s to"),
    ],
)
def test_what_a_tier_lacks_is_said(twin: Path, more: str, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        simulate_command([*BATCHES.split(), "--twin", str(twin), *more.split()])


@pytest.mark.parametrize("more", ["--link 1GB/s", "--l2-link 1GB/s", "--l1-gb 2"])
def test_what_is_of_a_tier_needs_one_for_a_recorded_run_too(
    twin: Path, tmp_path: Path, more: str
) -> None:
    run = tmp_path / "run"
    assert simulate_command([*BATCHES.split(), "--twin", str(twin), "--out", str(run)]) == 0
    for target in ((), ("--target", "vllm")):
        with pytest.raises(UsageError, match="is of a tier: "):
            simulate_command([str(run), "--twin", str(twin), *more.split(), *target])


@pytest.mark.parametrize("size", ["nan", "inf", "1e300", "-1", "0"])
def test_a_tier_of_no_size_is_refused_for_a_recorded_run(
    twin: Path, tmp_path: Path, size: str
) -> None:
    run = tmp_path / "run"
    assert simulate_command([*BATCHES.split(), "--twin", str(twin), "--out", str(run)]) == 0
    words = [str(run), "--twin", str(twin), "--target", "vllm-offload", "--link", "1GB/s"]
    with pytest.raises(UsageError, match="--l1-gb"):
        simulate_command([*words, "--l1-gb", size])


def test_the_time_of_a_byte_is_calibrated(tmp_path: Path) -> None:
    """Of runs on vLLM's own offload, where steps wait for loads."""
    step = replace(STEP, loaded_byte_s=2e-7)
    argv = offload_argv(tmp_path)
    runs = []
    for users in (1, 4):
        path = small_run(tmp_path / str(users), users=users, argv=argv)
        shape = shape_of_run(path)
        assert shape.tier is not None
        served = TwinServer(recorded_load(path, BLOCK), shape, step, FrontTime()).serve()
        assert served.ledger.reported_external_tokens > 0
        runs.append(small_run(path, served, users=users, argv=argv))
    plain = served_run(tmp_path / "plain", users=2)
    found = calibrate([*runs, plain]).step
    assert found.loaded_byte_s == pytest.approx(2e-7, rel=0.2)
    assert "has a tier" in AdviceLoad.of_run(runs[0]).remarks[-1]


def small_run(path: Path, served: ServedLoad | None = None, **how: Any) -> Path:
    """Of an engine whose cache holds hardly more than the longest request."""
    write_run(path, served, **how)
    facts = json.loads((path / "run.json").read_text())
    facts["target"]["usable_blocks"] = 16
    (path / "run.json").write_text(json.dumps(facts))
    return path


def offload_argv(folder: Path) -> Sequence[str]:
    model = folder / "model"
    model.mkdir()
    config = {"num_attention_heads": 1, "num_hidden_layers": 1, "hidden_size": 250}
    (model / "config.json").write_text(json.dumps({**config, "dtype": "bfloat16"}))
    extra = {"spec_module_path": "kv_tiers.spec", "cpu_bytes_to_use": 100_000_000}
    told = {"kv_connector": "OffloadingConnector", "kv_connector_extra_config": extra}
    words = ("python", "-m", "vllm", "--block-size", "128", "--model", str(model))
    return (*words, "--kv-transfer-config", json.dumps(told))
