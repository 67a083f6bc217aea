"""What a simulation would send is what a run sends: the same prompts, contexts and labels."""

import json
from collections.abc import Iterator, Sequence
from itertools import chain, islice
from pathlib import Path

import pytest
from run_process import HostProcess, Ran, host_process, run_swarm

from loadgen.launch.planned_run import PlannedRun, plan_run
from loadgen.locality.trace import TokenIds
from loadgen.targets.demo_model import build_model
from loadgen.twin.ledger import TwinRequest
from loadgen.twin.sending import RequestFacts
from loadgen.workload.corpus import load_corpus

WINDOW = 100_000
DIVERSE = "--contexts 30 --zipf .8 --stickiness .3 --repeat .2 --context-tokens 60-200 --seed 7"
OPEN = "--arrivals gamma --burstiness .5 --rate 5:1,5-20:1 -t 2s -u 0 --seed 5"
CASES = {
    "unordered": f"{DIVERSE} --output-tokens 1-4 -t 2s -u 1",
    "shuffled": f"{DIVERSE} --labels shuffled -t 2s -u 1",
    "batched": "--contexts 5 --batch-size 6 --batches 4 --order grouped --seed 3 -u 1",
    "list": "--contexts 5 --batch-size 6 --batches 2 --batch-as list --seed 3 -u 1",
    "replay": "--arrivals closed --seed 4 -u 1",
}


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> str:
    texts = [document.text for document in load_corpus().documents]
    return str(build_model(tmp_path_factory.mktemp("models") / "tiny", "tiny", texts))


def write_trace(path: Path) -> Path:
    lines = [
        {"timestamp": 100 * n, "input_length": 700, "output_length": 2, "hash_ids": [n % 3, 10 + n]}
        for n in range(12)
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def ran(case: str, words: Sequence[str], tokenizer: str, host: HostProcess, out: Path) -> Ran:
    file = {"shuffled": "unordered", "list": "batched"}.get(case, case)
    more = ("--model", "normal", "--tokenizer", tokenizer, *words)
    return run_swarm(host.url, out, *more, file=file)


def planned(case: str, words: Sequence[str], tokenizer: str) -> PlannedRun:
    file = {"shuffled": "unordered", "list": "batched"}.get(case, case)
    return plan_run([file, *words], tokenizer, WINDOW, WINDOW)


def sent(plan: PlannedRun, count: int) -> list[tuple[TwinRequest, RequestFacts]]:
    pairs: Iterator[tuple[TwinRequest, RequestFacts]] = chain.from_iterable(
        zip(unit.requests, unit.facts, strict=True) for unit in plan.load.units
    )
    return list(islice(pairs, count))


@pytest.mark.parametrize("case", CASES)
def test_a_simulation_sends_what_a_run_sends(case: str, tokenizer: str, tmp_path: Path) -> None:
    words = CASES[case].split()
    if case == "replay":
        words += ["--trace", str(write_trace(tmp_path / "trace.jsonl"))]
    with host_process("vllm") as host:
        real = ran(case, words, tokenizer, host, tmp_path / "run")
        assert real.code == 0, real.output
        prompts = host.prompts()
        lengths = [body["max_tokens"] for body in host.bodies()]
    rows = sorted(
        (row for row in real.rows if row["sent_s"]), key=lambda row: int(row["request_id"])
    )
    made = sent(planned(case, words, tokenizer), len(rows))
    assert len(rows) >= 12
    ids = TokenIds.from_path_or_name(tokenizer).ids
    assert sorted(request.prompt for request, _ in made) == sorted(map(tuple, map(ids, prompts)))
    if case in ("unordered", "shuffled", "replay"):  # one after the other
        assert [request.prompt for request, _ in made] == [tuple(ids(each)) for each in prompts]
        assert [request.output_tokens for request, _ in made] == lengths
    told = ("context_id", "question_id", "batch_id", "label", "label_correct")
    by_name = {request.name: facts for request, facts in made}
    for row in rows:
        facts = by_name[row["request_id"]]
        assert [row[name] for name in told] == [
            facts.context_id,
            facts.question_id,
            facts.batch_id,
            facts.label,
            "" if facts.label_correct is None else str(facts.label_correct).lower(),
        ]
        assert row["repeat"] == str(facts.repeat).lower()


def test_an_open_loop_is_due_when_a_run_is(tokenizer: str, tmp_path: Path) -> None:
    words = [
        "--arrivals",
        "gamma",
        "--burstiness",
        ".5",
        "--rate",
        "5:1,5-20:1",
        "-t",
        "2s",
        "-u",
        "0",
        "--seed",
        "5",
    ]
    with host_process("vllm") as host:
        real = ran("unordered", words, tokenizer, host, tmp_path / "run")
    assert real.code == 0, real.output
    due_s = sorted(float(row["scheduled_s"]) for row in real.rows)
    plan = planned("unordered", words, tokenizer)
    known = [unit.due_s for unit in islice(plan.load.units, len(due_s))]
    assert known == pytest.approx(due_s, abs=2e-3)
