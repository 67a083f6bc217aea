"""Everything that is checked before the first request: options, corpus, host, lengths, cache."""

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from loadgen.client.label_probe import KvFacts, RagFacts
from loadgen.client.probe import HostFacts, probe
from loadgen.client.settings import tells_length
from loadgen.compare.gate import Limit
from loadgen.compare.run_gate import parse_run_gate
from loadgen.errors import HostError, UsageError
from loadgen.runs.directory import check_directory
from loadgen.swarm.engine import Engine
from loadgen.swarm.leading.rag_checks import (
    check_arm,
    check_url,
    kv_notes,
    rag_notes,
    ready_kv,
    ready_rag,
)
from loadgen.swarm.leading.supervisor import Supervisor
from loadgen.swarm.leading.tried_completion import try_completion
from loadgen.swarm.options import values as given
from loadgen.swarm.options.replay import Replay, check_replay, check_trace_fit, pacer_of
from loadgen.swarm.options.swarm_options import (
    SwarmOptions,
    extra_body,
    own_options,
    request_headers,
    withheld_note,
)
from loadgen.swarm.sending.labels import check_labels
from loadgen.swarm.sending.lengths import LengthSource, measure_on_host
from loadgen.swarm.sending.stage import client_settings
from loadgen.workload.corpus import Corpus, load_corpus, unread_notes
from loadgen.workload.lengths import EstimatedTokens
from loadgen.workload.workload import Workload

TEMPLATE_TOKENS = 64
"""Room for what a chat template adds around one user message."""
SAMPLED_WAITS = 1000


@dataclass(frozen=True, slots=True)
class Preparation:
    """A swarm that may start: what it was told, whom it will load, how lengths are measured.

    `rag` is the service that finds contexts or labels, None where none is asked. `body` are fields
    that the target asks of every request.
    """

    options: SwarmOptions
    raw_options: Mapping[str, Any]
    corpus_sha256: str
    facts: HostFacts
    rag: RagFacts | KvFacts | None
    lengths: LengthSource
    cache_state: str
    notes: tuple[str, ...]
    batched: bool
    replay: Replay | None = None
    gate: tuple[Limit, ...] = ()
    body: Mapping[str, Any] = field(default_factory=dict)
    trace_sha256: str | None = None


def sends_batches(user_classes: Iterable[type]) -> bool | None:
    """Whether these users send batches, None where none of them sends requests of ours.

    Raises UsageError when only some of them do.
    """
    kinds = {each.sends_batches for each in user_classes if hasattr(each, "sends_batches")}
    if len(kinds) > 1:
        raise UsageError(
            "some users send batches and some single requests: name the user classes of one kind"
        )
    return True in kinds if kinds else None


def described_users(environment: Any, seed: int) -> dict[str, Any]:
    """What the users of a swarm do, for who simulates or checks them: whether it is `batched`, the
    `load_shape` that says how many there are (None without one), whether the `shape_hears` `-u`,
    `-r` and `-t`, and `classes`, of each user class its `name`, whether it `is_ours`, and
    `waits_s`, pauses between its tasks (empty: only a living user knows)."""
    shape = environment.shape_class
    return {
        "batched": bool(sends_batches(environment.user_classes)),
        "load_shape": None if shape is None else type(shape).__name__,
        "shape_hears": bool(getattr(shape, "use_common_options", False)),
        "classes": [
            {
                "name": each.__name__,
                "is_ours": hasattr(each, "sends_batches"),
                "waits_s": _waits_s(each, environment, seed),
            }
            for each in environment.user_classes
        ],
    }


def _waits_s(user_class: Any, environment: Any, seed: int) -> list[float]:
    random.seed(seed)
    try:
        user = user_class(environment)
        began_s = user._cp_last_run
        found = [float(user.wait_time() or 0.0) for _ in range(SAMPLED_WAITS)]
    except Exception:  # a method of the user's own, which may want a run around it
        return []
    if user._cp_last_run != began_s:  # a pace, by how long the task before took
        return []
    return found[:1] if len(set(found)) == 1 else found


def check_offline(
    values: Mapping[str, Any], supervisor: Supervisor, batched: bool | None = False
) -> Replay | None:
    """Find what is wrong with options, corpus and trace without a host; returns what is replayed.

    `batched` is as of `sends_batches`. Raises UsageError.
    """
    batched = bool(batched)
    options = SwarmOptions.read(values)
    corpus = load_corpus(options.corpus, options.questions)
    replay = check_replay(options, batched)
    pacer_of(options)
    router = supervisor.facts.get("router")
    check_labels(options.labels, extra_body(options, supervisor.body), router)
    check_arm(options, corpus, batched)
    for host in values.get("key_host") or ():
        check_url("--key-host", host)
    request_headers(options)
    check_users(values)
    check_warmup(values, options)
    gate_of(options, batched)
    users, workers = values.get("num_users"), values.get("expect_workers") or 1
    check_shares(users if isinstance(users, int) else 0, workers, options, batched)
    if batched:
        check_batches(options)
    lengths = _local_lengths(options, supervisor)
    if not lengths.is_estimate:
        lengths.tokens()
        _check_fit(options, corpus, lengths, supervisor.max_model_len, supervisor, replay)
    if options.out is not None:
        check_directory(options.out)
    return replay


def gate_of(options: SwarmOptions, batched: bool) -> tuple[Limit, ...]:
    """The limits that the run must keep; an empty `--gate`, as of a variable that is not set, is
    refused. Raises UsageError."""
    if options.gate is None and options.require_proof:
        raise UsageError("--require-proof is of limits: give them with --gate")
    if options.gate is None:
        return ()
    return parse_run_gate(
        options.gate, options.slo is not None, batched, needs_proof=options.require_proof
    )


def check_users(values: Mapping[str, Any]) -> None:
    """Raise UsageError for a number of users that sends nothing, and for a rate at which none
    comes."""
    given.number(values, "spawn_rate", 1.0, above=0.0)
    users = values.get("num_users")
    if not isinstance(users, int):
        if users is not None:
            raise UsageError(f"{users!r} users: give a whole number")
        return
    if users < 0:
        raise UsageError(f"{users} users: give 1 or more, or 0 for an open loop without a cap")
    if users == 0 and values.get("arrivals") == "closed":
        raise UsageError("0 users send nothing: give 1 or more, or other --arrivals and a --rate")


def check_warmup(values: Mapping[str, Any], options: SwarmOptions) -> None:
    """Raise UsageError for a run that ends at once, or whose warm-up lasts as long as it."""
    run_time_s = given.number(values, "run_time", 1.0, above=0.0)
    if values.get("run_time") and options.warmup_s is not None and options.warmup_s >= run_time_s:
        raise UsageError(
            f"--warmup {options.warmup_s:g} leaves nothing of -t {run_time_s:g}s to measure:"
            " give fewer seconds, or a longer run"
        )


def check_batches(options: SwarmOptions) -> None:
    """Raise UsageError for batches that cannot be sent as they were asked for."""
    output_tokens = options.workload.output_tokens
    if options.batch_as == "list" and options.endpoint == "chat":
        raise UsageError("--batch-as list needs --endpoint completions: a chat takes one prompt")
    if options.batch_as == "list" and output_tokens.low != output_tokens.high:
        raise UsageError(
            f"--output-tokens {output_tokens} needs --batch-as requests: "
            "a list call has one length for all its replies, so give one number"
        )


def check_shares(users: int, workers: int, options: SwarmOptions, batched: bool) -> None:
    """Raise UsageError where a worker would have a share of the load and no user to send it."""
    is_open = options.arrivals != "closed"
    shared = "the trace" if options.trace else "the load of an open loop" if is_open else ""
    if batched and options.batching.limit:
        shared = "--batches"
    if shared and 0 < users < workers:
        uncapped = ", or -u 0 for no cap" if is_open else ""
        raise UsageError(
            f"{shared} is shared out over {workers} workers, and {users} user(s) leave some "
            f"of them idle: give -u {workers} or more{uncapped}"
        )


def prepare(
    values: Mapping[str, Any],
    host: str | None,
    supervisor: Supervisor,
    batched: bool | None = False,
) -> Preparation:
    """Check everything and make the caches cold; blocks the calling greenlet only.

    Raises UsageError, or TargetError when the engine of ours cannot be made cold.
    """
    replay = check_offline(values, supervisor, batched)
    options = SwarmOptions.read(values)
    if not host:
        raise UsageError("no host to load: give --host URL, or start with `kvswarm run --target`")
    supervisor.check_host(host)
    headers = request_headers(options)
    corpus = load_corpus(options.corpus, options.questions)
    rag = ready_rag(options, corpus)
    withheld = withheld_note(options)
    try:
        facts = Engine.of_process().run(probe(host, options.model, headers))
    except HostError as error:
        raise HostError("; ".join((str(error), *withheld))) from error
    kv = ready_kv(options, corpus, facts.model)
    lengths = _local_lengths(options, supervisor)
    if lengths.is_estimate:
        lengths = measure_on_host(facts, corpus, headers)
    _check_fit(options, corpus, lengths, facts.max_model_len, supervisor, replay)
    odd = "" if batched is None else _try_completion(options, facts, supervisor, batched)
    return Preparation(
        options=options,
        raw_options=own_options(values),
        corpus_sha256=corpus.sha256,
        facts=facts,
        rag=rag or kv,
        lengths=lengths,
        cache_state=supervisor.make_cold(keep=options.keep_cache),
        notes=(
            *withheld,
            *_notes(facts, lengths, replay, tells_length(supervisor.body)),
            *unread_notes(options.corpus),
            *rag_notes(rag, options, corpus),
            *kv_notes(kv),
            *([odd] if odd else []),
        ),
        batched=bool(batched),
        replay=replay,
        gate=gate_of(options, bool(batched)),
        body=supervisor.body,
        trace_sha256=options.trace.sha256 if options.trace else None,
    )


def _try_completion(
    options: SwarmOptions, facts: HostFacts, supervisor: Supervisor, batched: bool
) -> str:
    """Once for all swarms of a supervisor that ask in the same way. Raises HostError."""
    settings = client_settings(options, facts, supervisor.body)
    as_list = batched and options.batch_as == "list"
    asked = f"{settings} {as_list}"
    if supervisor.has_tried(asked):
        return ""
    tokens = options.workload.output_tokens.low
    odd = Engine.of_process().run(try_completion(settings, facts, tokens, as_list))
    supervisor.note_tried(asked)
    return odd


def _notes(
    facts: HostFacts, lengths: LengthSource, replay: Replay | None, is_fixed: bool
) -> tuple[str, ...]:
    notes = [] if replay is None else [replay.note, *replay.changes]
    if lengths.is_estimate:
        notes.append(EstimatedTokens.announcement)
    if not facts.is_vllm and not is_fixed:
        notes.append("the host is not vLLM: replies may end before --output-tokens")
    if not facts.has_metrics:
        notes.append("the host has no /metrics: its own counters stay empty")
    return tuple(notes)


def _local_lengths(options: SwarmOptions, supervisor: Supervisor) -> LengthSource:
    return LengthSource(tokenizer=options.tokenizer or supervisor.tokenizer)


def _check_fit(
    options: SwarmOptions,
    corpus: Corpus,
    lengths: LengthSource,
    window_tokens: int | None,
    supervisor: Supervisor,
    replay: Replay | None,
) -> None:
    if window_tokens is None:
        return
    template_tokens = TEMPLATE_TOKENS if options.endpoint == "chat" else 0
    if replay is not None:
        check_trace_fit(replay, window_tokens - template_tokens, supervisor.cache_tokens)
        return
    settings = options.workload
    if options.labels == "rag":  # any document may be found, not only those asked about
        settings = replace(settings, contexts=len(corpus.documents))
    workload = Workload(corpus, settings, lengths.tokens())
    workload.check_fit(window_tokens, supervisor.cache_tokens, template_tokens)
