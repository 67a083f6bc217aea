"""Causes brought about on vLLM's own scheduler are named, and add up to what it counts."""

import csv
import json
from dataclasses import replace
from pathlib import Path

import pytest
from test_twin_planned import write_twin

from loadgen.cli.simulate import simulate_command
from loadgen.cli.why import why_command
from loadgen.record import COLUMNS
from loadgen.twin.model import TwinModel

ONE_BY_ONE = "batched --batch-size 1 --batches 30 -u 1"
SIX = "--contexts 6 --context-tokens 500 --zipf 0 --repeat 0 --stickiness 0 --output-tokens 4"
SMALL, LARGE = "--kv-tokens 1536", "--kv-tokens 20480"
"""Room for two of the six contexts, and for all."""
INJECTED = {
    "no context comes again": (f"{ONE_BY_ONE} {SIX} --contexts 90000 {LARGE}", "first"),
    "prompts shorter than a block": (
        f"{ONE_BY_ONE} {SIX} --context-tokens 60 {LARGE}",
        "tail",
    ),
    "a cache for two of six": (f"{ONE_BY_ONE} {SIX} {SMALL}", "evicted"),
    "a long context between the others": (
        f"{ONE_BY_ONE} {SIX} --context-tokens 300-1300 --kv-tokens 2048",
        "evicted",
    ),
    "a system prompt and a small cache": (
        f"{ONE_BY_ONE} {SIX} --system-tokens 256 --kv-tokens 1792",
        "evicted",
    ),
    "by context, and nobody waits": (
        f"{ONE_BY_ONE} {SIX} {SMALL} --target vllm-context",
        "evicted",
    ),
    "a batch that nobody sorts": (
        f"batched --batch-size 30 --batches 1 -u 1 {SIX} {SMALL}",
        "order",
    ),
    "users who wait in a queue": (f"unordered -u 24 -r 24 -t 8s {SIX} {SMALL}", "order"),
    "two users with batches": (f"batched --batch-size 12 --batches 4 -u 2 {SIX} {SMALL}", "order"),
    "two engines that take turns": (
        f"{ONE_BY_ONE} {SIX} {LARGE} --replicas 2 --router round_robin",
        "replica",
    ),
    "three engines that take turns": (
        f"{ONE_BY_ONE} {SIX} {LARGE} --replicas 3 --router round_robin",
        "replica",
    ),
    "no prefix cache": (f"{ONE_BY_ONE} {SIX} {LARGE}", "off"),
}
SAID = {
    "first": "No cache and no order would save much",
    "tail": "behind the last full block",
    "evicted": "A cache of ",
    "order": "Serve what waits by context",
    "replica": "Keep a context on one engine",
    "off": "Switch the prefix cache on",
}


@pytest.fixture(scope="module")
def twin(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_twin(tmp_path_factory.mktemp("twin"))


@pytest.mark.parametrize("name", INJECTED)
def test_the_cause_that_was_brought_about_is_named(
    name: str, twin: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, cause = INJECTED[name]
    made = tmp_path / "twin.json"
    model = TwinModel.read(twin)
    if cause == "off":
        shape = {**model.engine["shape"], "prefix_caching": False}
        argv = [*model.engine["argv"], "--no-enable-prefix-caching"]
        model = replace(model, engine={**model.engine, "shape": shape, "argv": argv})
    model.write(made)
    out = tmp_path / "run"
    assert simulate_command([*words.split(), "--twin", str(made), "--out", str(out)]) == 0
    capsys.readouterr()
    assert why_command([str(out), "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    tokens = told["tokens"]
    assert sum(tokens.values()) == told["engine"], "as the engine counted"
    known = {each: count for each, count in tokens.items() if each != "first" or cause == "first"}
    assert max(known, key=lambda each: known[each]) == cause, tokens
    assert SAID[cause] in told["sentences"][0]


def test_requests_of_several_salts_compute_each_others_texts_again(
    twin: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sent, served = tmp_path / "sent", tmp_path / "served"
    words = f"{ONE_BY_ONE} {SIX} {LARGE}".split()
    assert simulate_command([*words, "--twin", str(twin), "--out", str(sent)]) == 0
    rows = [*csv.DictReader((sent / "requests.csv").open())]
    with (sent / "requests.csv").open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        for number, row in enumerate(rows):
            writer.writerow(row | {"kv_scope": f"cache_salt={number % 4}"})
    assert simulate_command([str(sent), "--twin", str(twin), "--out", str(served)]) == 0
    capsys.readouterr()
    assert why_command([str(served), "--format", "json"]) == 0
    told = json.loads(capsys.readouterr().out)
    tokens = told["tokens"]
    assert sum(tokens.values()) == told["engine"], "as the engine counted"
    assert tokens["salt"] > 4000
    assert sum(tokens[each] for each in ("evicted", "order", "tier", "replica", "together")) == 0
    assert "one cache_salt and one model" in told["sentences"][0]
