"""The trace of a run: of one that nobody has sent yet, or of a finished one by its directory."""

import math
import statistics
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import chain, count, islice
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.context import Draw, Request
from loadgen.errors import UsageError
from loadgen.locality.trace import MOST_RUNNING, STEP_TOKENS, BlockNames, Chain, TokenIds, Trace
from loadgen.runs.directory import RUN_JSON
from loadgen.runs.recorded import (
    PREFIX_CACHING,
    REQUESTS_CSV,
    RecordedRun,
    argument,
    count_of,
    flag_of,
    is_on,
)
from loadgen.runs.requests import Requests, read_requests
from loadgen.scratch import expanded
from loadgen.workload.batches import Batching
from loadgen.workload.corpus import Corpus, load_corpus
from loadgen.workload.settings import Span, WorkloadSettings
from loadgen.workload.stream import Stream
from loadgen.workload.workload import Workload

MAX_REQUESTS = 1_000_000
MOST_TOKENS = 10_000_000
"""Of a request: no model takes more, and what is longer is a slip that would take for ever."""
USUAL_BLOCK_SIZE = 16
"""Tokens of a KV block of vLLM on a GPU, for runs whose engine kvswarm did not start."""


@dataclass(frozen=True, slots=True)
class SentRequest:
    """A row of `requests.csv` that was sent; `context` is the one before the question, empty where
    there was none. `label` is what the engine was told, None where the file does not say.
    One without a token has its first at its end; those of another `kv_scope` have their own KV."""

    index: int
    context: str
    question: str
    batch: str
    sent_s: float
    end_s: float
    prompt_tokens: int
    output_tokens: int
    engine: str = ""
    label: str | None = None
    first_token_s: float = math.nan
    cached_tokens: float = math.nan
    kv_scope: str = ""


def trace_of_plan(
    corpus: Corpus,
    settings: WorkloadSettings,
    tokens: TokenIds,
    requests: int,
    block_size: int,
    users: int = 1,
    batching: Batching | None = None,
) -> Trace:
    """The first requests that a run with these settings sends, in batches where told so.

    `users` keep one request, or one batch, in flight each; `block_size` is in tokens. Raises
    UsageError for what is out of range.
    """
    _require("--requests", requests, MAX_REQUESTS)
    _require("-u", users, MAX_REQUESTS)
    names = BlockNames(block_size)
    sent = islice(_requests(Workload(corpus, settings, tokens), batching), requests)
    return Trace(
        chains=tuple(names.chain(tokens.ids(each.prompt), each.max_tokens) for each in sent),
        block_size=block_size,
        users=users,
        batch_size=batching.size if batching else 1,
        source="the requests that this workload sends first, as token ids",
    )


def _requests(workload: Workload, batching: Batching | None) -> Iterator[Request]:
    if batching is None:
        return workload.requests()
    return chain.from_iterable(batch.requests for batch in workload.batches(batching))


def _require(name: str, value: int, most: int) -> None:
    if not 1 <= value <= most:
        raise UsageError(f"{name} {value} is out of range: give 1 to {most}")


def trace_of_run(
    path: Path, tokenizer: str | None = None, block_size: int | None = None, engine: str = ""
) -> Trace:
    """What the run sent, in the order of sending, as chains of blocks; of several engines, what
    went to one.

    Prompts are made anew from the run's settings, seed and corpus; where the tokenizer is not
    known, or they do not come out as long as the engine counted them, the chains are made of
    context ids and prompt lengths alone, and `source` says so. Raises UsageError.
    """
    run = recorded_run(path)
    sent = sent_requests(run, engine)
    known_size = run.target.get("block_size") or USUAL_BLOCK_SIZE
    names = BlockNames(known_size if block_size is None else block_size)
    chains, source = chains_of(run, sent, names, tokenizer)
    is_closed = run.options.get("arrivals") in (None, "closed")
    by_batch = is_closed and not engine and any(each.batch for each in sent)
    told = (
        argument(run.engine_argv, flag) for flag in ("--max-num-batched-tokens", "--max-num-seqs")
    )
    step_tokens, most_running = (count_of(each or "") for each in told)
    return Trace(
        chains=chains,
        block_size=names.block_size,
        users=max(int(run.description.get("users") or 1), 1) if by_batch else _in_flight(sent),
        batch_size=int(run.options.get("batch_size") or 1) if by_batch else 1,
        source=source,
        remarks=tuple(_remarks(run)),
        step_tokens=step_tokens or STEP_TOKENS,
        most_running=most_running or MOST_RUNNING,
    )


def _require_possible(file: Path, name: str, tokens: "np.ndarray[Any, Any]") -> None:
    """Raise UsageError, with its line, for a request that no model takes."""
    for row in np.flatnonzero(tokens > MOST_TOKENS)[:1]:
        raise UsageError(
            f"{file} line {row + 2}: {name} {tokens[row]:.12g} is more than {MOST_TOKENS},"
            " the most that is taken: correct the row or leave it out"
        )


def recorded_run(path: Path) -> RecordedRun:
    """A run that must be there. Raises UsageError."""
    if not (path / RUN_JSON).is_file():
        raise UsageError(f"no run at {path}: name a directory that `kvswarm run` has written")
    return RecordedRun(path, is_strict=True)


def engines_of(run: RecordedRun) -> list[str]:
    """The names of those behind a router; none where one engine had all requests."""
    return list((run.summary.get("replicas") or {}).get("engines") or {})


def sent_requests(run: RecordedRun, engine: str = "") -> list[SentRequest]:
    """All that an engine counted, in the order of sending; of several engines, what went to one.

    Raises UsageError, also for none, and for several of which none is named.
    """
    engines = engines_of(run)
    if engine not in (engines or [""]):
        raise UsageError(
            f"{run.path} has requests of {len(engines)} engines, each with a cache of its own: give"
            f" a run of one engine (`kvswarm curve --engine` takes one of {', '.join(engines)})"
            if engines
            else f"{run.path} names no engine {engine}: it had but one"
        )
    found = [each for each in all_requests(run) if each.engine == engine or not engines]
    if not found:
        raise UsageError(f"{run.path}: {engine} answered no request: choose another engine")
    return found


def busy_engines(run: RecordedRun) -> list[str]:
    """Of several engines those that answered a request; of one alone its name, which is empty.
    Raises UsageError, also where no request tells its engine."""
    if not (engines := engines_of(run)):
        return [""]
    answered = {each.engine for each in all_requests(run)}
    found = [name for name in engines if name in answered]
    if not found:
        raise UsageError(f"{run.path}: no request says which of its {len(engines)} engines it was")
    return found


def all_requests(run: RecordedRun) -> list[SentRequest]:
    """All that any engine counted, in the order of sending. Raises UsageError, also for none."""
    sent = _in_order(_sent(run), run.options)
    if not sent:
        raise UsageError(
            f"{run.path} has no request whose length the engine told: nothing to predict"
        )
    return sent


def _sent(run: RecordedRun) -> list[SentRequest]:
    """All requests that an engine counted, those of a warm-up too. Raises UsageError."""
    rows = read_requests(run.path / REQUESTS_CSV)
    if not rows.rows and rows.has(("sent_s", "prompt_tokens")):
        return []
    prompts = rows.number("prompt_tokens")
    if (prompts < 1).any():
        raise UsageError(
            f"{run.path / REQUESTS_CSV} is not as kvswarm writes it (prompt_tokens"
            f" {prompts[prompts < 1][0]:g} is no length of a prompt): restore it"
        )
    for name in ("prompt_tokens", "output_tokens"):
        _require_possible(run.path / REQUESTS_CSV, name, rows.number(name))
    requests = Requests.of(rows.sound())
    is_told = ~np.isnan(requests.number("prompt_tokens"))
    requests = requests.taken(~np.isnan(requests.number("sent_s")) & is_told)
    if np.isnan(requests.number("request_id")).any():
        raise UsageError(
            f"{run.path / REQUESTS_CSV} is not as kvswarm writes it (a request_id is no number):"
            " restore it"
        )
    index, sent_s, prompt_tokens = (
        requests.number(name).tolist() for name in ("request_id", "sent_s", "prompt_tokens")
    )
    true, question, batch, engine, scope = (
        requests.text(name).as_list()
        for name in ("context_id", "question_id", "batch_id", "engine", "kv_scope")
    )
    has_labels = rows.has(("label",))
    labels = requests.text("label").as_list() if has_labels else [None] * len(index)
    output_tokens = np.nan_to_num(requests.number("output_tokens"), nan=1).tolist()
    told = zip(
        map(int, index),
        requests.context.as_list(),
        (f"{each[0]} {each[1] or each}" for each in zip(true, question, index, strict=True)),
        batch,
        sent_s,
        requests.end_s.tolist(),
        map(int, prompt_tokens),
        map(int, output_tokens),
        engine,
        labels,
        np.fmin(requests.number("first_token_s"), requests.end_s).tolist(),
        np.minimum(requests.told_cached_tokens, requests.number("prompt_tokens")).tolist(),
        scope,
        strict=True,
    )
    return [SentRequest(*each) for each in told]


def _in_order(rows: Sequence[SentRequest], options: Mapping[str, Any]) -> list[SentRequest]:
    """The prompts of a list call are sent at the same moment, in the order of the batch."""
    found = sorted(rows, key=lambda each: each.index)
    if options.get("order") != "grouped":
        return sorted(found, key=lambda each: each.sent_s)
    first: dict[tuple[str, str], int] = {}
    for each in found:
        first.setdefault((each.batch, each.context), each.index)
    return sorted(found, key=lambda each: (each.sent_s, first[each.batch, each.context]))


def _in_flight(sent: Sequence[SentRequest]) -> int:
    """The median number of requests on their way when one is sent, itself included."""
    ends = sorted(each.end_s for each in sent)
    counts = (place + 1 - bisect_right(ends, each.sent_s) for place, each in enumerate(sent))
    return max(round(statistics.median(counts)), 1)


def chains_of(
    run: RecordedRun, sent: Sequence[SentRequest], names: BlockNames, tokenizer: str | None = None
) -> tuple[tuple[Chain, ...], str]:
    """The blocks of each prompt, apart by their `kv_scope`; and in words what they were made of."""
    tokens = TokenIds.from_path_or_name(tokenizer) if tokenizer else _own_tokens(run)
    if tokens is None:
        reason = "no tokenizer is known here (`kvswarm curve --tokenizer` takes one)"
    elif run.options.get("endpoint") == "chat":
        reason = "the host adds a chat template"
    elif made := _made_anew(run, sent, names, tokens):
        return made, "the prompts of this run, made anew, as token ids"
    else:
        reason = "the prompts do not come out as the engine counted them"
    return (
        shared_prefix_chains(sent, names.block_size, _system_tokens(run) // names.block_size),
        f"context ids and prompt lengths, as {reason}: a shared prefix may be taken for longer than"
        " it is by the shortest question",
    )


def _system_tokens(run: RecordedRun) -> int:
    """What all prompts of a run have in common; 0 where that is not told as a number."""
    told = run.options.get("system_tokens")
    return max(told, 0) if isinstance(told, int) else 0


def _own_tokens(run: RecordedRun) -> TokenIds | None:
    """Those of the run; None where it names no tokenizer, or one that is not on this machine."""
    source = run.options.get("tokenizer") or run.target.get("tokenizer")
    with suppress(UsageError):
        return TokenIds.from_path_or_name(source) if source else None
    return None


def _made_anew(
    run: RecordedRun, sent: Sequence[SentRequest], names: BlockNames, tokens: TokenIds
) -> tuple[Chain, ...] | None:
    """None where a prompt is not as long as the engine counted it."""
    workload = _workload(run.options, tokens)
    if workload is None:
        return None
    draws = _draws(workload.settings, {each.index for each in sent})
    chains = []
    for each in sent:
        question = workload.request_for(draws[each.index]).question
        ids = tokens.ids(workload.prompt_behind(each.context or None, "", question))
        if len(ids) != each.prompt_tokens:
            return None
        chains.append(names.chain(ids, each.output_tokens))
    return BlockNames.apart(chains, [each.kv_scope for each in sent])


def _draws(settings: WorkloadSettings, indexes: set[int]) -> dict[int, Draw]:
    stream = islice(Stream(settings), max(indexes) + 1)
    return {draw.index: draw for draw in stream if draw.index in indexes}


def _workload(options: Mapping[str, Any], tokens: TokenIds) -> Workload | None:
    with suppress(KeyError, TypeError, ValueError, UsageError):
        corpus, questions = (
            expanded(options[name]) if options.get(name) else None
            for name in ("corpus", "questions")
        )
        return Workload(load_corpus(corpus, questions), _settings(options), tokens)
    return None


def _settings(options: Mapping[str, Any]) -> WorkloadSettings:
    context_tokens = options["context_tokens"]
    return WorkloadSettings(
        seed=int(options["seed"]),
        contexts=int(options["contexts"]),
        zipf=float(options["zipf"]),
        stickiness=float(options["stickiness"]),
        repeat=float(options["repeat"]),
        context_tokens=Span.parse(context_tokens, "--context-tokens") if context_tokens else None,
        output_tokens=Span.parse(str(options["output_tokens"]), "--output-tokens"),
        system_tokens=int(options.get("system_tokens") or 0),
    )


def unfinished(run: RecordedRun) -> Iterator[str]:
    """In words, what of a run's requests is not there."""
    if "exit_code" not in run.description and not run.is_simulated:
        yield "the run did not come to its end: these are its requests so far"
    if isinstance(run.summary.get("requests"), int) and run.missing:
        yield run.missing


def _remarks(run: RecordedRun) -> Iterator[str]:
    yield from unfinished(run)
    if run.description.get("cache_state") != "cold":
        yield "what the cache held at the start is not known; it is taken for empty"
    if not run.target.get("block_size"):
        yield f"the engine's block size is not known: {USUAL_BLOCK_SIZE} unless told otherwise"
    flags = set(map(flag_of, run.engine_argv))
    if not is_on(run.engine_argv, PREFIX_CACHING):
        yield "the engine had no prefix cache; this is what one would have done"
    if "--kv-transfer-config" in flags:
        yield "of a KV connector nothing is told but of vLLM's own host memory, with --tier-tokens"
    if "--scheduler-cls" in flags:
        yield "the engine orders its queue itself; this is first come, first served"


def shared_prefix_chains(
    requests: Sequence[SentRequest], block_size: int, system_blocks: int = 0
) -> tuple[Chain, ...]:
    """One chain for each request. All prompts of a context share what its shortest prompt has, so
    the prefix is too long by that prompt's question; the same question is the same prompt. So many
    `system_blocks` at the start are the same in all."""
    shared = _shortest(requests)
    names: dict[tuple[str, str, int], int] = {}
    chains = []
    for each in requests:
        common = shared[each.context] // block_size if each.context else 0
        keys = chain(
            (("", "", place) for place in range(system_blocks)),
            ((each.context, "", place) for place in range(system_blocks, common)),
            ((each.context, each.question, place) for place in count(max(common, system_blocks))),
        )
        blocks = (names.setdefault(key, len(names) + 1) for key in keys)
        chains.append(_cut(blocks, each, block_size))
    return BlockNames.apart(chains, [each.kv_scope for each in requests])


def _cut(blocks: Iterable[int], request: SentRequest, block_size: int) -> Chain:
    full = request.prompt_tokens // block_size
    named = tuple(name for name, _ in zip(blocks, range(full), strict=False))
    return Chain(named, request.prompt_tokens, request.output_tokens)


def _shortest(requests: Iterable[SentRequest]) -> dict[str, int]:
    found: dict[str, int] = {}
    for each in requests:
        found[each.context] = min(each.prompt_tokens, found.get(each.context, each.prompt_tokens))
    return found
