"""A simulation as a run directory, so that whatever reads a run reads it, and says what it is."""

import csv
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any

from loadgen.record import COLUMNS, BatchRecord, RequestRecord, batch_record
from loadgen.runs.csv_log import with_formula
from loadgen.runs.directory import open_directory
from loadgen.runs.exit_code import DONE
from loadgen.runs.recorded import REQUESTS_CSV, RecordedRun
from loadgen.runs.requests import Requests, read_requests
from loadgen.stats.counts import Counts
from loadgen.stats.server_counters import NO_FIGURES
from loadgen.stats.summary import summarize, write_summary
from loadgen.stats.token_gaps import spread
from loadgen.twin.engine import PLUGIN, EngineShape
from loadgen.twin.ledger import EngineLedger
from loadgen.twin.serve import ServedLoad, ServedRequest
from loadgen.workload.diversity import measure_diversity

SIMULATED = "simulated"
"""The `cache_state` of such a run, in which it differs from every real one."""
NOTE = "simulated, not measured: no server answered"
_KEPT = ("worker", "user", "context_id", "question_id", "batch_id", "label")
_PASSED_ON = ("seed", "users", "corpus_sha256", "model", "workers", "versions", "start_unix_s")
_values = attrgetter(*COLUMNS)


def write_simulated(
    out: Path, run: RecordedRun, shape: EngineShape, served: ServedLoad, command: Sequence[str]
) -> None:
    """What the run would have left behind on that engine. Raises UsageError where `out` holds a run
    or cannot be written."""
    rows = list(_rows(run.path, served))
    batches = list(_batches([record for record, _ in rows]))
    directory = open_directory(out, bool(batches))
    directory.describe(_facts(run, shape, served, command))
    directory.requests.append(_values(record) for record, _ in rows)
    if directory.batches is not None:
        directory.batches.append(map(astuple, batches))
    directory.close()
    counts = Counts()
    counts.add_many(rows)
    for batch in batches:
        counts.add_batch(batch)
    write_summary(out, _summary(counts, served, run, read_requests(directory.requests.path)))


def _rows(path: Path, served: ServedLoad) -> Iterator[tuple[RequestRecord, list[float]]]:
    with (path / REQUESTS_CSV).open(newline="", encoding="utf-8") as file:
        known = {row["request_id"]: row for row in csv.DictReader(file)}
    for each in served.requests:
        yield _record(known[each.request.name], each, served.ledger)


def _record(
    known: Mapping[str, str], each: ServedRequest, ledger: EngineLedger
) -> tuple[RequestRecord, list[float]]:
    """The recorded request with the times of the simulation."""
    name = each.request.name
    times_s = ledger.token_times_s[name]
    gaps_ms = [1000 * (later - earlier) for earlier, later in pairwise(times_s)]
    mean, p50, p95, p99, most = spread(gaps_ms)
    worker, user, context_id, question_id, batch_id, label = (
        with_formula(known.get(column) or "") for column in _KEPT
    )
    told = known.get("label_correct")
    record = RequestRecord(
        request_id=name,
        worker=worker,
        user=user,
        context_id=context_id,
        question_id=question_id,
        batch_id=batch_id,
        label=label,
        repeat=known.get("repeat") == "true",
        scheduled_s=each.sent_s,
        sent_s=each.sent_s,
        first_token_s=each.first_token_s,
        end_s=each.end_s,
        ttft_ms=1000 * each.ttft_s,
        itl_mean_ms=mean,
        itl_p50_ms=p50,
        itl_p95_ms=p95,
        itl_p99_ms=p99,
        itl_max_ms=most,
        tpot_ms=mean,
        e2e_ms=1000 * each.e2e_s,
        prompt_tokens=len(each.request.prompt),
        cached_tokens=ledger.cached_tokens.get(name),
        output_tokens=ledger.output_tokens[name],
        outcome="ok",
        status=200,
        error="",
        label_correct=told == "true" if told else None,
        resends=0,
        retries=0,
    )
    return record, gaps_ms


def _batches(records: Sequence[RequestRecord]) -> Iterator[BatchRecord]:
    members: dict[str, list[RequestRecord]] = defaultdict(list)
    for record in records:
        if record.batch_id:
            members[record.batch_id].append(record)
    yield from (batch_record(name, own) for name, own in members.items())


def _facts(
    run: RecordedRun, shape: EngineShape, served: ServedLoad, command: Sequence[str]
) -> dict[str, Any]:
    described = run.description
    by_context = shape.plugin is not None
    target = {
        "name": "vllm-context" if by_context else "vllm",
        "argv": {"vllm": list(_argv(run.engine_argv, shape))},
        "block_size": shape.block_size,
        "usable_blocks": shape.usable_blocks,
        "usable_tokens": shape.usable_blocks * shape.block_size,
        "max_model_len": shape.max_model_len,
        "tokenizer": run.target.get("tokenizer"),
        "sources": {"engine": {"name": "vllm"}},
        SIMULATED: {
            "command_line": list(command),
            "replicas": len(served.replicas),
            **asdict(shape),
        },
    }
    return {
        "command_line": described.get("command_line"),
        "options": run.options,
        **{name: described.get(name) for name in _PASSED_ON},
        "host": SIMULATED,
        "target": target,
        "cache_state": SIMULATED,
        "notes": [NOTE, f"the requests are those of {run.path}"],
        "machine": described.get("machine"),
        "exit_code": DONE,
        "user_errors": 0,
        "host_died": False,
        "interrupted": False,
    }


def _argv(recorded: Sequence[str], shape: EngineShape) -> Iterator[str]:
    """The recorded engine's command line with the simulated order and number of blocks."""
    replaced = {"--num-gpu-blocks-override": str(shape.usable_blocks + 1)}
    dropped = {"--scheduler-cls", "--additional-config"}
    words = iter(recorded)
    for word in words:
        if word in dropped:
            next(words, None)
        elif word in replaced:
            next(words, None)
            yield from (word, replaced[word])
        else:
            yield word
    if shape.plugin is not None:
        yield from ("--scheduler-cls", PLUGIN)


def _summary(counts: Counts, served: ServedLoad, run: RecordedRun, rows: Any) -> dict[str, Any]:
    requests = Requests.of(rows)
    summary = summarize(
        counts.counted,
        duration_s=served.duration_s,
        diversity=asdict(measure_diversity(requests.emitted())),
        server=_server(served.ledger),
        client_saturated=False,
    )
    steady_state = requests.steady_state(run.options, bool(counts.counted.batch_outcomes))
    return summary | {
        "peak_concurrency": requests.peak_concurrency,
        "server_note": NOTE,
        "replicas": None,
        "token_times": {"clock": SIMULATED},
        "stats_reset_s": None,
        "lost_workers": 0,
        "lost_share": 0.0,
        "warmup": None,
        "steady_state": None if steady_state is None else steady_state.to_json(),
        "gate": None,
    }


def _server(ledger: EngineLedger) -> dict[str, Any]:
    cached, computed = sum(ledger.cached_tokens.values()), ledger.reported_tokens
    return dict(NO_FIGURES) | {
        "computed_prompt_tokens": computed,
        "cached_prompt_tokens": cached,
        "hit_rate": cached / max(1, cached + computed),
        "generation_tokens": sum(ledger.output_tokens.values()),
        "num_preemptions": sum(len(step.preempted) for step in ledger.steps),
        "peak_running": max((len(step.scheduled) for step in ledger.steps), default=0),
    }
