"""Why prompt tokens were computed: each has one cause, and the cheapest cure is named."""

import csv
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from loadgen.cli.why import why_command
from loadgen.errors import UsageError
from loadgen.locality.causes import (
    CAUSES,
    ComputedCauses,
    Late,
    ServedPrompt,
    causes,
    causes_of_run,
    evictions,
)
from loadgen.locality.engine_at_hand import EngineAtHand, TierAtHand
from loadgen.locality.lru_stack import LruStack
from loadgen.locality.trace import BlockNames, Chain, Trace
from loadgen.locality.trace_sources import all_requests, recorded_run, trace_of_run
from loadgen.record import COLUMNS

BLOCK = 16


def prompt(
    blocks: Sequence[int], served_s: float, cached: int = 0, tail: int = 5, waited_s: float = 0.1
) -> ServedPrompt:
    """Full blocks by name and a rest of `tail` tokens; `cached` blocks came from the cache."""
    chain = Chain(tuple(blocks), len(blocks) * BLOCK + tail, 4)
    return ServedPrompt(chain, served_s - waited_s, served_s, cached * BLOCK)


A, B = (1, 2, 3), (11, 12, 13)

INJECTED: dict[str, tuple[list[ServedPrompt], bool, dict[str, int]]] = {
    "nothing comes again": ([prompt(A, 1), prompt(B, 2)], True, {"first": 6, "tail": 10}),
    "all of it hits": ([prompt(A, 1), prompt(A, 2, cached=3)], True, {"first": 3, "tail": 10}),
    "evicted by another": (
        [prompt(A, 1), prompt(B, 2), prompt(A, 3)],
        True,
        {"first": 6, "evicted": 3, "tail": 15},
    ),
    "the end of it evicted": (
        [prompt(A, 1), prompt(B, 2), prompt(A, 3, cached=1)],
        True,
        {"first": 6, "evicted": 2, "tail": 15},
    ),
    "evicted while its next user waited": (
        [prompt(A, 1), prompt(B, 2), prompt(A, 3, waited_s=2.9)],
        True,
        {"first": 6, "order": 3, "tail": 15},
    ),
    "computed side by side": (
        [prompt(A, 1), prompt(A, 1.0005)],
        True,
        {"first": 3, "together": 3, "tail": 10},
    ),
    "no prefix cache": (
        [prompt(A, 1), prompt(A, 2)],
        False,
        {"first": 3, "off": 3, "tail": 10},
    ),
    "shorter than a block": (
        [prompt((), 1, tail=9), prompt((), 2, tail=9)],
        True,
        {"tail": 18},
    ),
    "the end of a whole hit": (
        [prompt(A, 1, tail=0), prompt(A, 2, cached=2, tail=0)],
        True,
        {"first": 3, "tail": BLOCK},
    ),
    "a text that goes on": (
        [prompt(A, 1), prompt((*A, 4, 5), 2, cached=3)],
        True,
        {"first": 5, "tail": 10},
    ),
    "a hit inside a block": (
        [prompt(A, 1), ServedPrompt(Chain(A, 53, 4), 1.9, 2.0, 50)],
        True,
        {"first": 3, "tail": 8},
    ),
    "a hit inside a block that others follow": (
        [prompt(A, 1), ServedPrompt(Chain(A, 53, 4), 1.9, 2.0, 26)],
        True,
        {"first": 3, "evicted": 22 / BLOCK, "tail": 10},
    ),
    "served in another order than sent": (
        [prompt(A, 5, waited_s=4.5), prompt(A, 4)],
        True,
        {"first": 3, "order": 3, "tail": 10},
    ),
}


@pytest.mark.parametrize("name", INJECTED)
def test_each_computed_token_has_its_cause(name: str) -> None:
    prompts, has_cache, wanted = INJECTED[name]
    found = causes(prompts, BLOCK, has_cache)
    told = {cause: BLOCK * n if cause != "tail" else n for cause, n in wanted.items()}
    assert {cause: tokens for cause, tokens in found.items() if tokens} == told
    computed = sum(each.chain.prompt_tokens - each.cached_tokens for each in prompts)
    assert sum(found.values()) == computed


@pytest.mark.parametrize(
    ("tokens", "said"),
    [
        ({"first": 900, "order": 1000, "evicted": 50}, "by context (--target vllm-context): up to"),
        ({"first": 100, "evicted": 800}, "A cache of 4,096 tokens instead of 1,024"),
        ({"first": 100, "off": 700}, "Switch the prefix cache on"),
        ({"first": 1000, "tail": 20}, "No cache and no order would save much: 98%"),
        ({"first": 100, "together": 700}, "were computed twice"),
        ({"first": 100, "salt": 700}, "one cache_salt and one model: up to 700 tokens (88%)"),
        ({"first": 100, "tier": 700}, "a faster one, or one that takes all it is offered, would"),
    ],
)
def test_the_cheapest_cure_is_named(tokens: dict[str, int], said: str) -> None:
    known = dict.fromkeys(CAUSES, 0) | tokens
    found = ComputedCauses(known, 10, None, 1024, 4096, "made")
    assert said in " ".join(found.sentences())


@pytest.mark.parametrize(
    ("tokens", "at_hand", "said"),
    [
        ({"order": 900}, EngineAtHand(by_context=True), "Though the order is by context"),
        ({"evicted": 900}, EngineAtHand(tier=TierAtHand()), "instead of 1,024 would keep"),
        ({"replica": 900}, EngineAtHand(affine_router="cache_aware"), "Router cache_aware sent"),
    ],
)
def test_no_cure_is_named_that_the_run_had(
    tokens: dict[str, int], at_hand: EngineAtHand, said: str
) -> None:
    known = dict.fromkeys(CAUSES, 0) | tokens
    found = ComputedCauses(known, 10, None, 1024, 4096, "made", at_hand=at_hand)
    told = " ".join(found.sentences())
    assert said in told
    assert "--target vllm-context" not in told
    assert "--router consistent_hash" not in told


def test_a_cache_that_is_large_enough_is_not_advised_again() -> None:
    known = dict.fromkeys(CAUSES, 0) | {"evicted": 900}
    found = ComputedCauses(known, 10, None, 8192, 4096, "made")
    assert "fewer requests at once, or a tier behind it, would keep" in " ".join(found.sentences())


def test_who_comes_while_the_last_one_still_runs_was_waiting_when_it_was_evicted() -> None:
    """The blocks of a long reply are held to its end."""
    long = replace(prompt(A, 1), end_s=30.0)
    late = prompt(A, 60, waited_s=58)
    found = causes([long, prompt(B, 40), late], BLOCK, has_cache=True)
    assert found["order"] == BLOCK * 3
    found = causes([replace(long, end_s=1.5), prompt(B, 40), late], BLOCK, has_cache=True)
    assert found["evicted"] == BLOCK * 3


@pytest.mark.parametrize("blocks", [4, 6])
def test_what_was_evicted_says_how_much_was_missing_and_what_took_its_place(blocks: int) -> None:
    """Twice evicted: behind one other prompt, and behind two."""
    told = [(A, "a"), (B, "b"), (A, "a"), (B, "b"), ((21, 22), "c"), (A, "a")]
    prompts = [
        replace(prompt(chain, turn), context=context) for turn, (chain, context) in enumerate(told)
    ]
    late: Late = {}
    found = causes(prompts, BLOCK, has_cache=True, late=late)
    assert sum(found.values()) == sum(each.chain.prompt_tokens for each in prompts)
    assert found["evicted"] == 9 * BLOCK
    # 7 blocks hold two prompts of 3 and the one that is not full of a third, 9 those of c too.
    assert evictions(prompts, late, BLOCK, blocks) == (
        f"What was evicted lacked a median of {7 - blocks} and at most {9 - blocks} blocks of"
        " cache, and made room for requests of b (53%), a (27%), c (20%)."
    )
    stack = LruStack(Trace(tuple(each.chain for each in prompts), BLOCK))
    kept = [stack.cached_tokens(size) // BLOCK for size in (6, 7, 8, 9)]
    assert kept == [4, 7, 8, 9]
    unknown = evictions(prompts, late, BLOCK, 0)
    assert unknown == "What was evicted made room for requests of b (53%), a (27%), c (20%)."
    assert evictions(prompts, {}, BLOCK, blocks) == ""


def test_a_warm_up_is_history_and_not_counted() -> None:
    prompts = [replace(prompt(A, 1), counts=False), prompt(A, 2), prompt(B, 3)]
    found = causes(prompts, BLOCK, has_cache=True)
    told = {name: tokens for name, tokens in found.items() if tokens}
    assert told == {"first": 3 * BLOCK, "evicted": 3 * BLOCK, "tail": 10}


SIZES = {"block_size": 16, "usable_tokens": 480}


def write_run(path: Path, *cached: str, rows: int = 6, **told: object) -> Path:
    path.mkdir()
    with (path / "requests.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="")
        writer.writeheader()
        for number in range(rows):
            times = {"sent_s": number, "scheduled_s": number, "end_s": number + 0.4}
            writer.writerow(
                {
                    **times,
                    "request_id": number,
                    "context_id": f"c{number % 2}",
                    "question_id": f"q{number}",
                    "first_token_s": number + 0.2,
                    "prompt_tokens": 330,
                    "cached_tokens": cached[number % len(cached)],
                    "engine": "e-1" if "replicas" in told else "",
                    "output_tokens": 4,
                    "outcome": "ok",
                }
            )
    facts = {"options": {}, "target": SIZES, "exit_code": 0}
    (path / "run.json").write_text(json.dumps(facts))
    summary = {"server": {"computed_prompt_tokens": 2000}, **told}
    (path / "summary.json").write_text(json.dumps(summary))
    return path


def test_the_command_adds_up(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = write_run(tmp_path / "run", "0")
    assert why_command([str(run)]) == 0
    said = capsys.readouterr().out
    assert "1,980 prompt tokens computed for 6 requests" in said
    assert "the engine itself counted 2,000" in said
    assert "evicted before it was used again" in said
    assert why_command([str(run), "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert sum(told["tokens"].values()) == 1980
    assert "What was evicted lacked" in told["sentences"][1]


def test_a_reply_without_cached_tokens_took_none_where_others_tell(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert why_command([str(write_run(tmp_path / "run", "", "", "320"))]) == 0
    assert "1,340 prompt tokens computed for 6 requests" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("facts", "said"),
    [
        ({"cache_state": "warm"}, "began with caches that held something"),
        ({"cache_state": "unknown"}, "what the caches held when the run began is not known"),
        ({"trace_sha256": "0"}, "replayed a trace"),
        ({"options": {"tokenizer": "MODEL"}}, "sliding_window 64 (config.json of "),
        ({"options": {"extra_body": '{"prompt_logprobs": 0}'}}, "Leave prompt_logprobs out of"),
        ({"target": {"simulated": {"tier": {}}, **SIZES}}, " tokens instead of 480 would keep"),
    ],
)
def test_what_may_make_the_causes_wrong_is_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], facts: dict[str, object], said: str
) -> None:
    run = write_run(tmp_path / "run", "0")
    (tmp_path / "config.json").write_text('{"sliding_window": 64}')
    told = json.loads((run / "run.json").read_text())
    assert why_command([str(run)]) == 0
    assert "is the engine's prefix cache on?" in (plain := capsys.readouterr().out)
    assert said not in plain
    (run / "run.json").write_text(
        json.dumps(told | facts).replace("MODEL", str(tmp_path / "config.json"))
    )
    assert why_command([str(run)]) == 0
    assert said in capsys.readouterr().out


@pytest.mark.parametrize(
    ("early", "size", "evicted"),
    [(("128", "256"), 128, 384), (("384", "384"), 16, 16 * 112), (("100", "256"), 16, 2204)],
)
def test_of_a_host_a_block_is_as_long_as_what_was_cached(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    early: tuple[str, str],
    size: int,
    evicted: int,
) -> None:
    """Prompts of 500 tokens: three blocks of 128 tokens each, of which nothing is lacking."""
    run = write_run(tmp_path / "run", "0", "0", *early, *(14 * ["384"]), rows=18)
    rows = (run / "requests.csv").read_text()
    (run / "requests.csv").write_text(rows.replace(",330,", ",500,"))
    (run / "run.json").write_text(json.dumps({"options": {}, "target": None, "exit_code": 0}))
    assert why_command([str(run), "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["tokens"]["evicted"] == evicted
    assert f"taken for granted: blocks of {size} tokens" in told["remarks"][-1]


def test_requests_of_the_warm_up_are_left_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run", "0", warmup={"seconds": 1.5})
    assert why_command([str(run), "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    assert told["tokens"]["first"] == 0
    assert sum(told["tokens"].values()) == 4 * 330


def test_an_engine_that_answered_nothing_is_no_part_of_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = write_run(tmp_path / "run", "0", replicas={"engines": {"e-1": {}, "e-2": {}}})
    assert why_command([str(run)]) == 0
    assert "1,980 prompt tokens computed for 6 requests" in capsys.readouterr().out
    with pytest.raises(UsageError, match="e-2 answered no request"):
        trace_of_run(run, engine="e-2")


def test_a_host_that_told_no_cached_tokens_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="did not tell which tokens were cached"):
        why_command([str(write_run(tmp_path / "run", ""))])


def test_what_another_engine_has_is_a_cause_of_its_own() -> None:
    prompts = [
        replace(prompt(A, 1), engine="e-1"),
        replace(prompt(A, 2), engine="e-2"),
        replace(prompt(A, 3, cached=3), engine="e-1"),
        replace(prompt(B, 4), engine="e-2"),
        replace(prompt(A, 5, cached=1), engine="e-2"),
    ]
    found = causes(prompts, BLOCK, has_cache=True)
    assert {name: tokens for name, tokens in found.items() if tokens} == {
        "first": 6 * BLOCK,
        "replica": 3 * BLOCK,
        "evicted": 2 * BLOCK,
        "tail": 25,
    }
    told = ComputedCauses({**dict.fromkeys(CAUSES, 0), "replica": 480}, 5, None, None, 0, "")
    assert "Keep a context on one engine" in next(told.sentences())


def test_what_another_salt_has_is_a_cause_of_its_own() -> None:
    """The second of the other salt is evicted like anybody's, on another engine it is elsewhere."""
    told = [("", 0), ("red", 0), ("red", 3), ("", 0), ("red", 0)]
    plain = [prompt(A, turn, cached) for turn, (_, cached) in enumerate(told)]
    chains = BlockNames.apart([each.chain for each in plain], [scope for scope, _ in told])
    prompts = [replace(each, chain=chain) for each, chain in zip(plain, chains, strict=True)]
    prompts[4] = replace(prompts[4], engine="other")
    found = causes(prompts, BLOCK, has_cache=True)
    assert {name: tokens for name, tokens in found.items() if tokens} == {
        "first": 3 * BLOCK,
        "salt": 3 * BLOCK,
        "evicted": 3 * BLOCK,
        "replica": 3 * BLOCK,
        "tail": 25,
    }
    assert causes(plain[:2], BLOCK, has_cache=True)["salt"] == 0


def scoped_run(path: Path, *scopes: str) -> Path:
    """Requests by turns of two contexts, whose bodies had these scopes by turns."""
    run = write_run(path, "0")
    rows = [*csv.DictReader((run / "requests.csv").open())]
    with (run / "requests.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for number, row in enumerate(rows):
            writer.writerow(row | {"kv_scope": scopes[number % len(scopes)]})
    return run


def test_requests_of_several_salts_share_no_blocks(tmp_path: Path) -> None:
    alone = trace_of_run(scoped_run(tmp_path / "alone", "cache_salt=1"))
    apart_ones = trace_of_run(scoped_run(tmp_path / "apart", "", "", "cache_salt=1"))
    assert LruStack(alone).cached_tokens(None) == 4 * 320
    assert LruStack(apart_ones).cached_tokens(None) == 2 * 320
    found = causes_of_run(tmp_path / "apart")
    assert (found.tokens["salt"], found.tokens["evicted"]) == (2 * 320, 2 * 320)
    assert found.computed == 1980


def test_a_tier_that_surely_has_it_gave_it_too_late() -> None:
    """Of 5 blocks each, in chunks of 2, where three of the prompts find room."""
    chains = [prompt(tuple(range(n, n + 5)), 1).chain for n in (0, 10, 0, 20, 30, 0)]
    asked = [(chain.blocks, 0) for chain in chains]
    tier = TierAtHand(15 * BLOCK, 2 * BLOCK)
    held = [*tier.sure_blocks(asked, BLOCK)]
    assert held == [0, 0, 4, 0, 0, 4]
    assert [*replace(tier, tokens=14 * BLOCK).sure_blocks(asked, BLOCK)] == [0, 0, 4, 0, 0, 0]
    assert [*TierAtHand(0, BLOCK, has_files=True).sure_blocks(asked, BLOCK)] == [0, 0, 5, 0, 0, 5]
    assert not any(TierAtHand().sure_blocks(asked, BLOCK))
    hit = [*asked[:2], (chains[2].blocks, 3), *asked[3:]]
    assert [*tier.sure_blocks(hit, BLOCK)] == [0, 0, 4, 0, 0, 0], "what was cached is no younger"
    prompts = [
        replace(ServedPrompt(chain, turn, turn, 0), in_tier=n)
        for turn, (chain, n) in enumerate(zip(chains, held, strict=True))
    ]
    found = causes(prompts, BLOCK, has_cache=True)
    assert (found["tier"], found["evicted"]) == (8 * BLOCK, 2 * BLOCK)
    assert sum(found.values()) == sum(each.chain.prompt_tokens for each in prompts)


CONFIG = {"num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2}
MODEL = json.dumps({**CONFIG, "hidden_size": 128, "torch_dtype": "float32"})
"""512 bytes of KV for each token."""
OFFLOAD = {"cpu_bytes_to_use": 512 * 800}


@pytest.mark.parametrize(
    ("connector", "extra", "words", "tokens"),
    [
        ("OffloadingConnector", OFFLOAD, (), 1280),
        ("OffloadingConnector", {"cpu_bytes_to_use": 512 * 300}, (), 0),
        ("OffloadingConnector", {**OFFLOAD, "secondary_tiers": [{}]}, (), 1280),
        ("OffloadingConnector", {**OFFLOAD, "blocks_per_chunk": 8}, (), 4 * 256),
        ("LMCacheMPConnector", {}, ("--chunk-size", "256"), 4 * 256),
        ("LMCacheMPConnector", {}, ("--chunk-size", "256", "--l2-adapter", "{}"), None),
        ("OtherConnector", {}, (), None),
    ],
)
def test_a_recorded_tier_is_told_by_the_command_line(
    tmp_path: Path,
    connector: str,
    extra: dict[str, object],
    words: tuple[str, ...],
    tokens: int | None,
) -> None:
    """Two contexts by turns, of 20 blocks each: used again behind 21 blocks of the other."""
    run = write_run(tmp_path / "run", "0")
    (tmp_path / "config.json").write_text(MODEL)
    told = json.dumps({"kv_connector": connector, "kv_connector_extra_config": extra})
    engine = ["vllm", "--model", str(tmp_path), "--kv-transfer-config", told]
    target = {**SIZES, "argv": {"vllm": engine, "cache": list(words)}, "l1_gb": 800 / 2**21 / 0.64}
    facts = {"options": {}, "target": target, "exit_code": 0}
    (run / "run.json").write_text(json.dumps(facts))
    found = causes_of_run(run)
    assert found.tokens["tier"] == (tokens or 0)
    assert found.computed == 1980
    silent = [each for each in found.remarks if "does not tell what the tier held" in each]
    assert bool(silent) is (tokens is None)


@pytest.mark.parametrize(
    ("words", "by_context", "has_tier"),
    [
        (["--scheduler-cls=scheduler_plugin.ContextScheduler"], True, False),
        (["--scheduler_cls", "own.Scheduler", "--kv-offloading-size=4"], False, True),
        (["--kv-transfer-config.kv_connector=X"], False, True),
    ],
)
def test_what_an_engine_has_is_told_by_any_spelling(
    tmp_path: Path, words: list[str], by_context: bool, has_tier: bool
) -> None:
    run = write_run(tmp_path / "run", "0")
    limits = ["--max-num-batched-tokens=8k", "--max_num_seqs", "1K"]
    target = {**SIZES, "argv": {"vllm": ["vllm", *limits, *words]}}
    (run / "run.json").write_text(json.dumps({"options": {}, "target": target, "exit_code": 0}))
    found, trace = EngineAtHand.of_run(recorded_run(run)), trace_of_run(run)
    assert (found.by_context, found.tier is not None) == (by_context, has_tier)
    assert (trace.step_tokens, trace.most_running) == (8000, 1024)
    assert ("orders its queue itself" in str(trace.remarks)) == ("scheduler" in words[0])


def test_a_simulated_tier_is_told_by_the_simulation(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", "0")
    for files, tokens in ((None, 0), ({}, 1280)):
        tier = {"tokens": 100, "chunk_tokens": 16, "files": files}
        target = {**SIZES, "simulated": {"tier": tier}}
        (run / "run.json").write_text(json.dumps({"options": {}, "target": target}))
        assert causes_of_run(run).tokens["tier"] == tokens


def test_failed_requests_are_left_out_and_said(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", "0", rows=9)
    rows = (run / "requests.csv").read_text().splitlines()
    rows[3] = rows[3].replace(",330,0,", ",,,").replace(",ok,", ",timeout,")
    (run / "requests.csv").write_text("\n".join([*rows, ""]))
    found = causes_of_run(run)
    assert (found.prompts, found.computed) == (8, 8 * 330)
    assert any("1 of 9 requests told no cached tokens" in each for each in found.remarks)


def test_a_reply_without_a_token_counts_too(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", "0")
    rows = (run / "requests.csv").read_text()
    (run / "requests.csv").write_text(rows.replace(",1.2,", ",,"))
    assert [each.first_token_s for each in all_requests(recorded_run(run))][:3] == [0.2, 1.4, 2.2]
    assert causes_of_run(run).computed == 1980


def test_a_run_that_is_all_warm_up_is_refused(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", "0", warmup={"seconds": 60.0})
    with pytest.raises(UsageError, match="all its requests are of the warm-up or before a reset"):
        causes_of_run(run)


def test_requests_that_name_no_text_share_none(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", "0", rows=8)
    rows = (run / "requests.csv").read_text()
    for name in ("c0", "c1", *(f"q{n}" for n in range(4))):
        rows = rows.replace(f",{name},", ",,")
    (run / "requests.csv").write_text(rows)
    found = causes_of_run(run)
    assert found.tokens["first"] == 8 * 320
    assert any("4 requests name no text" in each for each in found.remarks)


def test_a_count_of_the_engine_that_is_no_number_is_left_out(tmp_path: Path) -> None:
    run = write_run(tmp_path / "run", "0", server={"computed_prompt_tokens": "many"})
    assert causes_of_run(run).engine is None
