"""The trace of a finished run, from its directory."""

import statistics
from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from loadgen.context import Draw
from loadgen.errors import UsageError
from loadgen.locality.shared_prefixes import shared_prefix_chains
from loadgen.locality.token_ids import TokenIds
from loadgen.locality.trace import BlockNames, Chain, Trace
from loadgen.runs.directory import RUN_JSON
from loadgen.runs.recorded import REQUESTS_CSV, RecordedRun
from loadgen.runs.requests import Requests, read_requests
from loadgen.workload.corpus import load_corpus
from loadgen.workload.settings import Span, WorkloadSettings
from loadgen.workload.stream import Stream
from loadgen.workload.workload import Workload

USUAL_BLOCK_SIZE = 16
"""Tokens of a KV block of vLLM on a GPU, for runs whose engine kvswarm did not start."""


@dataclass(frozen=True, slots=True)
class Sent:
    """A row of `requests.csv` that was sent; `context` is the one before the question, empty where
    there was none."""

    index: int
    context: str
    question: str
    batch: str
    sent_s: float
    end_s: float
    prompt_tokens: int
    output_tokens: int


def trace_of_run(path: Path, tokenizer: str | None = None, block_size: int | None = None) -> Trace:
    """What the run sent, in the order of sending, as chains of blocks.

    Prompts are made anew from the run's settings, seed and corpus; where the tokenizer is not
    known, or they do not come out as long as the engine counted them, the chains are made of
    context ids and prompt lengths alone, and `source` says so. Raises UsageError.
    """
    run = recorded_run(path)
    sent = _in_order(_sent(run), run.options)
    if not sent:
        raise UsageError(f"{path} has no request whose length the engine told: nothing to predict")
    known_size = run.target.get("block_size") or USUAL_BLOCK_SIZE
    names = BlockNames(known_size if block_size is None else block_size)
    chains, source = _chains(run, sent, names, tokenizer)
    batched = any(each.batch for each in sent)
    return Trace(
        chains=chains,
        block_size=names.block_size,
        users=max(int(run.description.get("users") or 1), 1) if batched else _in_flight(sent),
        batch_size=int(run.options.get("batch_size") or 1) if batched else 1,
        source=source,
        remarks=tuple(_remarks(run)),
    )


def recorded_run(path: Path) -> RecordedRun:
    """A run that must be there. Raises UsageError."""
    if not (path / RUN_JSON).is_file():
        raise UsageError(f"no run at {path}: name a directory that `kvswarm run` has written")
    return RecordedRun(path, is_strict=True)


def _sent(run: RecordedRun) -> list[Sent]:
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
    requests = Requests.of(rows.sound())
    is_told = ~np.isnan(requests.number("prompt_tokens"))
    requests = requests.taken(~np.isnan(requests.number("sent_s")) & is_told)
    index, sent_s, prompt_tokens = (
        requests.number(name).tolist() for name in ("request_id", "sent_s", "prompt_tokens")
    )
    true, question, batch = (
        requests.text(name).as_list() for name in ("context_id", "question_id", "batch_id")
    )
    output_tokens = np.nan_to_num(requests.number("output_tokens"), nan=1).tolist()
    told = zip(
        map(int, index),
        requests.context.as_list(),
        (f"{context} {each}" for context, each in zip(true, question, strict=True)),
        batch,
        sent_s,
        requests.end_s.tolist(),
        map(int, prompt_tokens),
        map(int, output_tokens),
        strict=True,
    )
    return [Sent(*each) for each in told]


def _in_order(rows: Sequence[Sent], options: Mapping[str, Any]) -> list[Sent]:
    """The prompts of a list call are sent at the same moment, in the order of the batch."""
    found = sorted(rows, key=lambda each: each.index)
    if options.get("order") != "grouped":
        return sorted(found, key=lambda each: each.sent_s)
    first: dict[tuple[str, str], int] = {}
    for each in found:
        first.setdefault((each.batch, each.context), each.index)
    return sorted(found, key=lambda each: (each.sent_s, first[each.batch, each.context]))


def _in_flight(sent: Sequence[Sent]) -> int:
    """The median number of requests on their way when one is sent, itself included."""
    ends = sorted(each.end_s for each in sent)
    counts = (place + 1 - bisect_right(ends, each.sent_s) for place, each in enumerate(sent))
    return max(round(statistics.median(counts)), 1)


def _chains(
    run: RecordedRun, sent: Sequence[Sent], names: BlockNames, tokenizer: str | None
) -> tuple[tuple[Chain, ...], str]:
    tokens = TokenIds.from_path_or_name(tokenizer) if tokenizer else _own_tokens(run)
    if tokens is None:
        reason = "no tokenizer is known here (give --tokenizer)"
    elif run.options.get("endpoint") == "chat":
        reason = "the host adds a chat template"
    elif made := _made_anew(run, sent, names, tokens):
        return made, "the prompts of this run, made anew, as token ids"
    else:
        reason = "the prompts do not come out as the engine counted them"
    return (
        shared_prefix_chains(sent, names.block_size),
        f"context ids and prompt lengths, as {reason}: a shared prefix may be taken for longer than"
        " it is by the shortest question",
    )


def _own_tokens(run: RecordedRun) -> TokenIds | None:
    """Those of the run; None where it names no tokenizer, or one that is not on this machine."""
    source = run.options.get("tokenizer") or run.target.get("tokenizer")
    with suppress(UsageError):
        return TokenIds.from_path_or_name(source) if source else None
    return None


def _made_anew(
    run: RecordedRun, sent: Sequence[Sent], names: BlockNames, tokens: TokenIds
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
    return tuple(chains)


def _draws(settings: WorkloadSettings, indexes: set[int]) -> dict[int, Draw]:
    stream = islice(Stream(settings), max(indexes) + 1)
    return {draw.index: draw for draw in stream if draw.index in indexes}


def _workload(options: Mapping[str, Any], tokens: TokenIds) -> Workload | None:
    with suppress(KeyError, TypeError, ValueError, UsageError):
        corpus, questions = (
            Path(options[name]).expanduser() if options.get(name) else None
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
    )


def _remarks(run: RecordedRun) -> Iterator[str]:
    if run.description.get("cache_state") != "cold":
        yield "what the cache held at the start is not known; it is taken for empty"
    if not run.target.get("block_size"):
        yield f"the engine's block size is not known: {USUAL_BLOCK_SIZE} unless told otherwise"
    if "--no-enable-prefix-caching" in run.engine_argv:
        yield "the engine had no prefix cache; this is what one would have done"
    if "--kv-transfer-config" in run.engine_argv:
        yield "this is the engine's own cache; what a KV connector adds to it is not in it"
    if "--scheduler-cls" in run.engine_argv:
        yield "the engine orders its queue itself; this is first come, first served"
