"""The requests of a recorded run, and when each of them is sent if replies come at other times."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path

import numpy as np

from loadgen.compare.run import faults_of
from loadgen.errors import UsageError
from loadgen.locality.engine_at_hand import EngineAtHand
from loadgen.locality.trace import BlockNames, Chain
from loadgen.locality.trace_sources import (
    SentRequest,
    all_requests,
    chains_of,
    engines_of,
    recorded_run,
)
from loadgen.runs.recorded import RecordedRun
from loadgen.runs.requests import Requests
from loadgen.twin.ledger import TwinRequest
from loadgen.twin.sending import Pace, SendUnit

VOCABULARY = 30_000
WARM = "warm"
Turns = Sequence[Sequence[tuple[float, float]]]
HELD_S, MOST_HELD = 0.1, 0.02
"""A request of an open loop that went out so late had waited for a free user; up to this share may
have."""
MOST_LOST = 0.02
"""Share of the requests that were sent and not served up to which the others are taken for all."""


@dataclass(frozen=True, slots=True)
class MeasuredTimes:
    """Of one request that ended `ok`, in seconds from its sending, which was at `sent_s`."""

    ttft_s: float
    e2e_s: float
    sent_s: float


@dataclass(frozen=True, slots=True)
class RecordedLoad:
    """`units` in the order of the stream, which go out as `pace` says. `measured` is by the name of
    each request that counts, and `computed_tokens` of the same; `duration_s` is from their first
    send to their last end. `source` says what prompts were made from. `places` tells, of a run of
    several engines, which one answered a request. `remarks` say in words what is not in it."""

    units: tuple[SendUnit, ...]
    pace: Pace
    measured: dict[str, MeasuredTimes]
    computed_tokens: int | None
    duration_s: float
    source: str
    places: Mapping[str, int]
    remarks: tuple[str, ...] = ()

    @property
    def requests(self) -> list[TwinRequest]:
        """All of them."""
        return [each for unit in self.units for each in unit.requests]


def recorded_load(path: Path, block_size: int) -> RecordedLoad:
    """The load of a run directory, on however many engines. Raises UsageError for one that cannot
    be told again."""
    run = recorded_run(path)
    _require_modelled(run)
    remarks = tuple(_remarks(run))
    sent = all_requests(run)
    if len({each.index for each in sent}) < len(sent):
        raise UsageError(
            f"{path} has requests of the same request_id, which the twin cannot tell apart: give"
            " another run"
        )
    chains, source = chains_of(run, sent, BlockNames(block_size))
    labelled = run.options.get("labels") != "none"
    made = [
        _request(each, chain, block_size, _label(each, labelled))
        for each, chain in zip(sent, chains, strict=True)
    ]
    counted = _counted(run.requests.sent, sent)
    first_s, last_s = counted.span_s
    return RecordedLoad(
        units=tuple(_units(sent, made, run.options.get("batch_as") == "list")),
        pace=Pace(is_open=True) if _is_open(run) else _users(_turns(run)),
        measured=_measured(counted),
        computed_tokens=_computed(counted),
        duration_s=last_s - first_s,
        source=source,
        places=_places(engines_of(run), sent),
        remarks=remarks,
    )


def _remarks(run: RecordedRun) -> Iterator[str]:
    """What went wrong, and which requests were sent and are not in the load. Raises UsageError
    where those are too many of which nothing came."""
    yield from (f"of the run: {fault}" for fault in faults_of(run.description, run.summary))
    if isinstance(run.summary.get("requests"), int) and run.missing:
        yield run.missing
    rows = Requests.of(run.rows).sent
    sent = rows.taken(~np.isnan(rows.number("sent_s")))
    of_all = f"of {len(sent):,} requests were"
    left = sent.taken(np.isnan(sent.number("prompt_tokens")))
    is_refused = left.text("outcome").among("rejected") | (left.number("status") // 100 == 4)
    is_apart = is_refused | left.is_unanswered
    if lost := int((~is_apart).sum()):
        told = f"{lost:,} {of_all} sent and not served (timeouts, lost connections, errors)"
        if lost > MOST_LOST * len(sent):
            raise UsageError(f"{run.path}: {told}: give a run in which they were answered")
        yield f"{told}: the load is without them"
    if apart := int(is_apart.sum()):
        yield f"{apart:,} {of_all} rejected or cut off at the end: the load is without them"
    if not _is_open(run) and (stopped := _stopped(_turns(run))):
        said = f"{stopped:,} of its users ended long before the others, as in a load shape"
        yield f"{said}: those of the twin go on"


def _is_open(run: RecordedRun) -> bool:
    return (run.options.get("arrivals") or "closed") != "closed"


def _require_modelled(run: RecordedRun) -> None:
    if run.summary.get("engine_deaths"):
        raise UsageError(f"{run.path}: an engine died, which is not modelled: give another run")
    named = [name for name in ("rag", "kv") if run.options.get("labels") == name]
    if named:
        raise UsageError(
            f"{run.path} was made with --labels {named[0]}, which the twin does not model: give a"
            " run with other labels"
        )
    if run.description.get("trace_sha256"):
        raise UsageError(
            f"{run.path} replayed a trace, and which beginnings its prompts share is not in the"
            " run: give another, or `kvswarm simulate replay --trace FILE`"
        )
    if EngineAtHand.of_run(run).prompt_logprobs:
        raise UsageError(
            f"{run.path}: its requests have prompt_logprobs and go past the prefix cache, which the"
            " twin does not model: give a run without"
        )
    if held := _held_back(run):
        raise UsageError(
            f"{run.path}: {held:,} requests that were due waited for a free user, which the twin"
            " does not tell again: give a run with more users, or -u 0"
        )
    if run.description.get("cache_state") == WARM:
        raise UsageError(
            f"{run.path} began with caches that held something (--keep-cache), and a twin's are"
            " empty: give another run"
        )


def _held_back(run: RecordedRun) -> int:
    """How many requests of an open loop went out late or never, where those are more than a few."""
    if not _is_open(run) or not run.options.get("num_users"):
        return 0
    requests = Requests.of(run.rows)
    late_s = requests.number("sent_s") - requests.number("scheduled_s")
    held = int(((late_s > HELD_S) | np.isnan(requests.at_s)).sum())
    return held if held > MOST_HELD * len(requests) else 0


def _places(engines: Sequence[str], sent: Sequence[SentRequest]) -> dict[str, int]:
    """Of those that an engine answered, by its place among the names."""
    known = {name: place for place, name in enumerate(engines)}
    return {str(each.index): known[each.engine] for each in sent if each.engine in known}


def _label(sent: SentRequest, labelled: bool) -> str:
    """What the engine was told; by files without that column the context, where `labelled`."""
    return sent.label if sent.label is not None else sent.context if labelled else ""


def _request(sent: SentRequest, chain: Chain, block_size: int, label: str) -> TwinRequest:
    """With token ids that are alike where the blocks are, and nobody else's behind them."""
    ids: list[int] = []
    for name in chain.blocks:
        ids += _tokens(name, block_size)
    ids += _tokens(-1 - sent.index, chain.prompt_tokens - len(ids))
    return TwinRequest(
        name=str(sent.index),
        context=sent.context,
        prompt=tuple(ids),
        arrival_s=sent.sent_s,
        output_tokens=max(1, chain.output_tokens),
        labelled=bool(label),
        label=label,
    )


def _tokens(name: int, count: int) -> list[int]:
    """Ids that no other name begins with, as far as three of them go."""
    number = 2 * name if name >= 0 else -2 * name + 1
    head = [number % VOCABULARY, number // VOCABULARY % VOCABULARY, number // VOCABULARY**2]
    return (head + [0] * count)[:count]


def _units(
    sent: Sequence[SentRequest], made: Sequence[TwinRequest], is_list: bool
) -> list[SendUnit]:
    together: dict[str, list[tuple[SentRequest, TwinRequest]]] = {}
    for each, request in zip(sent, made, strict=True):
        together.setdefault(each.batch or f"request {each.index}", []).append((each, request))
    units = []
    for members in together.values():
        first_s = min(each.sent_s for each, _ in members)
        offsets = tuple(each.sent_s - first_s for each, _ in members)
        requests = tuple(request for _, request in members)
        units.append(SendUnit(0, requests, offsets, first_s, is_one_call=is_list))
    ordered = sorted(units, key=lambda unit: unit.due_s)
    return [replace(unit, number=number) for number, unit in enumerate(ordered)]


def _turns(run: RecordedRun) -> Turns:
    """Of each user when what it sent together went out, and when the last of it ended."""
    requests = Requests.of(run.rows).sent
    columns = ("worker", "user", "batch_id", "request_id")
    told = zip(
        *(requests.text(name).as_list() for name in columns),
        requests.at_s.tolist(),
        requests.end_s.tolist(),
        strict=True,
    )
    spans: dict[tuple[str, str], dict[str, tuple[float, float]]] = {}
    for worker, user, batch, number, at_s, end_s in told:
        own = spans.setdefault((worker, user), {})
        first_s, last_s = own.get(batch or f"request {number}", (at_s, end_s))
        own[batch or f"request {number}"] = min(first_s, at_s), max(last_s, end_s)
    return [sorted(own.values()) for own in spans.values()]


def _stopped(turns: Turns) -> int:
    """How many users had ended, for longer than any took to send again, when others still sent."""
    took_s = [later[0] - earlier[0] for own in turns for earlier, later in pairwise(own)]
    last_s = max((own[-1][0] for own in turns), default=0.0)
    return sum(last_s - own[-1][1] > max(took_s, default=math.inf) for own in turns)


def _users(turns: Turns) -> Pace:
    """When each user sent first, and how long one takes from a reply to what it sends next."""
    gaps_s = [max(0.0, later[0] - earlier[1]) for own in turns for earlier, later in pairwise(own)]
    starts_s = tuple(sorted(own[0][0] for own in turns))
    return Pace(starts_s=starts_s, gaps_s=(float(np.median(gaps_s)) if gaps_s else 0.0,))


def _counted(requests: Requests, sent: Sequence[SentRequest]) -> Requests:
    """Those with a whole reply, of the ones that the twin serves."""
    is_served = np.isin(requests.number("request_id"), [each.index for each in sent])
    return requests.taken(requests.ok & is_served & ~np.isnan(requests.number("first_token_s")))


def _measured(counted: Requests) -> dict[str, MeasuredTimes]:
    told = zip(
        counted.number("request_id").tolist(),
        counted.at_s.tolist(),
        counted.number("first_token_s").tolist(),
        counted.end_s.tolist(),
        strict=True,
    )
    return {
        str(int(number)): MeasuredTimes(first_s - at_s, end_s - at_s, at_s)
        for number, at_s, first_s, end_s in told
    }


def _computed(requests: Requests) -> int | None:
    prompt, cached = requests.number("prompt_tokens"), requests.told_cached_tokens
    known = ~np.isnan(prompt) & ~np.isnan(cached)
    return int((prompt - cached)[known].sum()) if known.any() else None
