"""A simulation as a run directory, so that whatever reads a run reads it, and says what it is."""

import csv
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, astuple, dataclass, field, replace
from itertools import pairwise
from operator import attrgetter
from pathlib import Path
from typing import Any, Self

from loadgen.errors import UsageError
from loadgen.record import COLUMNS, NEVER_SENT, Outcome, RequestRecord, batch_record
from loadgen.runs.csv_log import with_formula
from loadgen.runs.directory import CSV_NAMES, RUN_JSON, RunDirectory, open_directory
from loadgen.runs.exit_code import DONE
from loadgen.runs.recorded import REQUESTS_CSV, SIMULATED, DescribedRun, RecordedRun, flag_of
from loadgen.runs.replicas import replica_figures
from loadgen.runs.requests import Requests, read_requests
from loadgen.stats.counts import Counts
from loadgen.stats.server_counters import NO_FIGURES
from loadgen.stats.slo import CutOffRule
from loadgen.stats.summary import summarize, write_summary
from loadgen.stats.token_gaps import spread
from loadgen.twin.engine import PLUGIN, EngineShape
from loadgen.twin.ledger import EngineLedger
from loadgen.twin.routing import ONE_ENGINE, Fleet
from loadgen.twin.sending import NO_USER, Outgoing, RequestFacts
from loadgen.twin.serve import ServedRequest
from loadgen.workload.diversity import measure_diversity

NOTE = "simulated, not measured: no server answered"
CUT_OFF = "cut off at the end of the run"
FLUSHED_ROWS = 1000
OF_SEVERAL = "-fleet"
"""Behind the name of a target of several engines."""
_PASSED_ON = (
    *("seed", "users", "corpus_sha256", "trace_sha256"),
    *("model", "workers", "versions", "start_unix_s"),
)
_values = attrgetter(*COLUMNS)


@dataclass(frozen=True, slots=True)
class SimulatedRun(DescribedRun):
    """What is written of a simulation beside its requests: as in `run.json` of the run whose
    requests, or whose workload, it has. `user_class` names the users of a load that nobody has
    sent. `note` says where the requests are from. `is_as_recorded` where the engine is that of the
    description, unchanged. What is due in the first `warmup_s` seconds does not count."""

    description: Mapping[str, Any] = field()  # else the property above were its default
    shape: EngineShape
    command: Sequence[str]
    note: str
    fleet: Fleet = ONE_ENGINE
    rule: CutOffRule = field(default_factory=CutOffRule)
    user_class: str = "User"
    is_as_recorded: bool = False
    known: Mapping[str, RequestFacts] = field(default_factory=dict)
    warmup_s: float = 0.0

    def on_fleet(self, fleet: Fleet) -> Self:
        """On so many engines."""
        return replace(self, fleet=fleet)


def simulated_run(
    run: RecordedRun, shape: EngineShape, command: Sequence[str], is_as_recorded: bool
) -> SimulatedRun:
    """Of the requests of a recorded run."""
    with (run.path / REQUESTS_CSV).open(newline="", encoding="utf-8-sig") as file:
        known = {row["request_id"]: _facts_of(row) for row in csv.DictReader(file)}
    note = f"the requests are those of {run.path}"
    return SimulatedRun(
        description=run.description,
        shape=shape,
        command=command,
        note=note,
        is_as_recorded=is_as_recorded,
        known=known,
        warmup_s=run.own_warmup_s,
    )


def _facts_of(row: Mapping[str, str]) -> RequestFacts:
    def text(name: str) -> str:
        return with_formula(row.get(name) or "")

    told = row.get("label_correct")
    return RequestFacts(
        context_id=text("context_id"),
        question_id=text("question_id"),
        batch_id=text("batch_id"),
        rag_context_id=text("rag_context_id"),
        worker=text("worker"),
        user=text("user"),
        label=text("label"),
        kv_scope=text("kv_scope"),
        repeat=row.get("repeat") == "true",
        label_correct=told == "true" if told else None,
    )


class SimulatedDirectory:
    """A run directory that fills while requests are served. Raises UsageError where `out` holds a
    run or cannot be written."""

    def __init__(self, out: Path, run: SimulatedRun, batched: bool) -> None:
        self._run = run
        self._directory: RunDirectory = open_directory(out, batched)
        self._directory.describe(_facts(run))
        self._counts = Counts(run.warmup_s)
        self._rows: list[tuple[RequestRecord, list[float]]] = []
        self._open: dict[str, list[RequestRecord]] = defaultdict(list)

    def add(self, each: ServedRequest) -> None:
        """A request was served, or cut off."""
        facts = each.facts or self._run.known[each.request.name]
        record, gaps_ms = _record(facts, self._user(each.user, facts), each)
        if each.is_cut:
            self._run.rule.judge(record, gaps_ms)
        else:
            self._run.rule.judge_ended(record, gaps_ms)
        self._take(record, gaps_ms, len(each.unit.requests))

    def add_unsent(self, outgoing: Outgoing, end_s: float) -> None:
        """What was due and never sent."""
        unit = outgoing.unit
        for request, facts in zip(unit.requests, unit.facts, strict=True):
            record = _unsent(request.name, facts, outgoing.scheduled_s, end_s)
            self._run.rule.judge(record, [])
            self._take(record, [], len(unit.requests))

    def close(self, ledger: EngineLedger) -> None:
        """Nothing more comes: the rest of the files. Raises UsageError."""
        self._flush()
        directory = self._directory
        directory.describe({"exit_code": DONE})
        directory.close()
        if directory.fault:
            raise UsageError(directory.fault)
        rows = read_requests(directory.requests.path)
        requests = Requests.of(rows, warmup_s=self._run.warmup_s)
        write_summary(directory.path, _summary(self._counts, requests, self._run, ledger))

    def discard(self) -> None:
        """Nothing came of it: its files go, and the folder is free for another run."""
        self._directory.close()
        for name in (RUN_JSON, *CSV_NAMES):
            (self._directory.path / name).unlink(missing_ok=True)

    def _user(self, number: int, facts: RequestFacts) -> str:
        return facts.user or f"{self._run.user_class}-{max(number, NO_USER + 1)}"

    def _take(self, record: RequestRecord, gaps_ms: list[float], size: int) -> None:
        self._rows.append((record, gaps_ms))
        if record.batch_id:
            own = self._open[record.batch_id]
            own.append(record)
            if len(own) == size:
                self._close_batch(self._open.pop(record.batch_id))
        if len(self._rows) >= FLUSHED_ROWS:
            self._flush()

    def _close_batch(self, members: Sequence[RequestRecord]) -> None:
        batch = batch_record(members[0].batch_id, members)
        self._counts.add_batch(batch)
        if self._directory.batches is not None:
            self._directory.batches.append([astuple(batch)])

    def _flush(self) -> None:
        self._counts.add_many(self._rows)
        self._directory.requests.append(_values(record) for record, _ in self._rows)
        self._directory.flush()
        self._rows = []


def _record(
    facts: RequestFacts, user: str, each: ServedRequest
) -> tuple[RequestRecord, list[float]]:
    """The row of a request with the times of the simulation."""
    times_s = each.tokens.times_s
    gaps_ms = [1000 * (later - earlier) for earlier, later in pairwise(times_s)]
    mean, p50, p95, p99, most = spread(gaps_ms)
    has_begun = not math.isnan(each.first_token_s)
    outcome: Outcome = "cancelled" if each.is_cut else "ok"
    record = RequestRecord(
        request_id=each.request.name,
        worker=facts.worker,
        user=user,
        context_id=facts.context_id,
        question_id=facts.question_id,
        batch_id=facts.batch_id,
        label=facts.label,
        repeat=facts.repeat,
        scheduled_s=each.scheduled_s,
        sent_s=each.sent_s,
        first_token_s=each.first_token_s if has_begun else None,
        end_s=each.end_s,
        ttft_ms=1000 * each.ttft_s if has_begun else None,
        itl_mean_ms=mean,
        itl_p50_ms=p50,
        itl_p95_ms=p95,
        itl_p99_ms=p99,
        itl_max_ms=most,
        tpot_ms=mean,
        e2e_ms=1000 * each.e2e_s,
        prompt_tokens=None if each.is_cut else len(each.request.prompt),
        cached_tokens=None if each.is_cut else each.tokens.cached,
        output_tokens=None if each.is_cut else len(times_s),
        outcome=outcome,
        status=200,
        error=CUT_OFF if each.is_cut else "",
        rag_context_id=facts.rag_context_id,
        label_correct=facts.label_correct,
        retrieval_ms=0.0 if facts.is_retrieved else None,
        resends=0,
        retries=0,
        engine=each.engine,
        kv_scope=facts.kv_scope,
    )
    return record, gaps_ms


def _unsent(name: str, facts: RequestFacts, due_s: float, end_s: float) -> RequestRecord:
    told = {
        "request_id": name,
        "worker": facts.worker,
        "user": "",
        "context_id": facts.context_id,
        "question_id": facts.question_id,
        "batch_id": facts.batch_id,
        "label": "",
        "rag_context_id": "",
        "repeat": facts.repeat,
        "scheduled_s": due_s,
        "end_s": end_s,
        "e2e_ms": 1000 * (end_s - due_s),
        "outcome": "cancelled",
        "error": NEVER_SENT,
    }
    return RequestRecord(**{**dict.fromkeys(COLUMNS), **told})  # type: ignore[arg-type]


def _facts(run: SimulatedRun) -> dict[str, Any]:
    """All but the exit code, without which a run did not come to its end."""
    described, shape = run.description, run.shape
    target = {
        **_services(run),
        "block_size": shape.block_size,
        "usable_blocks": shape.usable_blocks,
        "usable_tokens": shape.usable_blocks * shape.block_size,
        "max_model_len": shape.max_model_len,
        "tokenizer": run.target.get("tokenizer"),
        "versions": run.target.get("versions"),
        "sources": {"engine": {"name": "vllm"}},
        SIMULATED: {
            "command_line": list(run.command),
            **asdict(run.fleet),
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
        "notes": [NOTE, run.note],
        "machine": described.get("machine"),
        "user_errors": 0,
        "host_died": False,
        "interrupted": False,
    }


def _services(run: SimulatedRun) -> dict[str, Any]:
    """Name, variables and command lines: as recorded where the engine is."""
    told, shape = run.target, run.shape
    if run.is_as_recorded and told.get("name"):
        known = {name: told.get(name) for name in ("argv", "env", "l1_gb")}
        return {"name": _name(str(told["name"]), run.fleet), **known}
    name = "vllm" if shape.tier is None else shape.tier.target
    services = told.get("argv") or {"vllm": []}
    return {
        "name": _name(name if shape.plugin is None else f"{name}-context", run.fleet),
        "argv": {
            each: list(_argv(words, shape, len(services) == 1 or "--model" in words))
            for each, words in services.items()
        },
        "env": told.get("env"),
    }


def _name(name: str, fleet: Fleet) -> str:
    """As the catalogue calls a target of one engine, or of several behind a router."""
    alone = name.removesuffix(OF_SEVERAL)
    return f"{alone}{OF_SEVERAL}" if fleet.replicas > 1 else alone


def _argv(recorded: Sequence[str], shape: EngineShape, is_engine: bool) -> Iterator[str]:
    """A recorded command line, that of the engine with the simulated order and blocks."""
    replaced = {"--num-gpu-blocks-override": str(shape.usable_blocks + 1)}
    dropped = {"--scheduler-cls", "--additional-config", "--kv-transfer-config"}
    words = iter(recorded)
    for word in words:
        flag = flag_of(word)
        if flag not in dropped and flag not in replaced:
            yield word
            continue
        if "=" not in word:
            next(words, None)
        if flag in replaced:
            yield from (flag, replaced[flag])
    if is_engine and shape.plugin is not None:
        yield from ("--scheduler-cls", PLUGIN)


def _summary(
    counts: Counts, requests: Requests, run: SimulatedRun, ledger: EngineLedger
) -> dict[str, Any]:
    first_s, last_s = requests.sent.span_s
    summary = summarize(
        counts.counted,
        duration_s=last_s - first_s,
        diversity=asdict(measure_diversity(requests.emitted())),
        server=_server(ledger, requests.peak_concurrency),
        client_saturated=False,
    )
    steady_state = requests.steady_state(run.options, bool(counts.counted.batch_outcomes))
    return summary | {
        "peak_concurrency": requests.peak_concurrency,
        "server_note": NOTE,
        "replicas": replica_figures(requests, {}),
        "token_times": {"clock": SIMULATED},
        "stats_reset_s": None,
        "lost_workers": 0,
        "lost_share": 0.0,
        "warmup": _left_out(counts),
        "steady_state": None if steady_state is None else steady_state.to_json(),
        "gate": None,
    }


def _left_out(counts: Counts) -> dict[str, Any] | None:
    """As a run tells it. The server's figures are of the whole run, as where it was found."""
    if not counts.warmup_s:
        return None
    early = counts.warmup
    told = {"seconds": counts.warmup_s, "requests": early.requests, "failed": early.failed}
    return {**told, "given": False}


def _server(ledger: EngineLedger, most_sent: int) -> dict[str, Any]:
    """Engines have their peaks at different moments: together at most what was under way."""
    cached, computed = ledger.reported_cached_tokens, ledger.reported_tokens
    external = ledger.reported_external_tokens
    prompt = max(1, cached + computed + external)
    return dict(NO_FIGURES) | {
        "computed_prompt_tokens": computed,
        "cached_prompt_tokens": cached,
        "external_prompt_tokens": external,
        "hit_rate": cached / prompt,
        "external_hit_rate": external / prompt,
        "generation_tokens": ledger.generated_tokens,
        "num_preemptions": ledger.preemptions,
        "peak_running": min(ledger.peak_running, most_sent),
    }
