"""What a hit from a tier costs, whether its bytes add up, and whether it was foretold."""

import statistics
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dashboards.report.wording import counted, listed
from dashboards.studies.answer import NOT_MEASURED, MarkdownTable, StudyAnswer
from dashboards.studies.cell import COMPUTED, NATIVE, Cells
from dashboards.studies.requests import answered, is_hit
from dashboards.studies.task1.caches import HitPrediction, hit_table, most_off
from dashboards.studies.tier_arms import (
    BACKED,
    CACHED,
    EXTERNAL,
    KINDS,
    Arm,
    bytes_per_token,
    size_of,
    small_and_large,
)
from dashboards.studies.tier_ledger import LMCACHE, chunk_tokens_of, ledger
from dashboards.studies.wording import NO_FINDING, count, duration, memory
from loadgen.locality.curve import predict
from loadgen.locality.lmcache_replay import (
    LmcacheReplay,
    LmcacheTier,
    ServedAt,
    frees_in_log,
    rounds_of,
)
from loadgen.locality.measured import run_bytes_per_token
from loadgen.locality.tier_replay import EnginePrefixCache
from loadgen.locality.trace_sources import recorded_run, sent_requests, trace_of_run
from loadgen.runs.columns import Flags
from loadgen.runs.recorded import RecordedRun
from loadgen.runs.requests import Requests
from loadgen.targets.plan import BYTES_PER_GB

FROM_FILES = "disk_prompt_tokens"


POOLED = "Hits of a tier are of all its sizes, and of those with files or nodes also from memory."


def hit(cells: Cells) -> StudyAnswer:
    """What a prompt costs that comes from a tier, by the requests of which that is so."""
    question = "What does a hit from a tier cost, against computing?"
    small, large = small_and_large(cells)
    if not small or not large:
        return StudyAnswer(question, (NOT_MEASURED,))
    computed = _medians([("computing it again", small)], _is_computed)
    cached = _medians([("the engine's cache", large)], _is_cached)
    tiers = [(KINDS[target], cells.where(target=target)) for target in KINDS]
    told = [*computed, *cached, *_medians(tiers, _is_from_tier)]
    if not computed or len(told) == 1:
        return StudyAnswer(question, (NOT_MEASURED,))
    said = listed([f"{duration(each.ttft_ms)} from {each.arm.name}" for each in told[1:]])
    first = (
        f"The first token comes after {duration(told[0].ttft_ms)} where the context is computed,"
        f" and after {said}: medians over requests most of whose prompt came from there."
    )
    known = cached[0].ttft_ms if cached else None
    return StudyAnswer(
        question,
        (first, *_break_even(large, told[0].ttft_ms, known), POOLED, NO_FINDING, *ledger(cells)),
        (_hit_table(told, known),),
    )


@dataclass(frozen=True, slots=True)
class _HitTime:
    """The median time to the first token of so many requests of an arm's runs."""

    arm: Arm
    requests: int
    ttft_ms: float


RequestFilter = Callable[[Path, Requests], Flags]


def _medians(parts: Sequence[tuple[str, Cells]], which: RequestFilter) -> list[_HitTime]:
    """Of the requests of each part that are of a kind, where there are enough of them."""
    found = []
    for name, part in parts:
        times: list[float] = []
        for cell in part.sound:
            requests = answered(cell.run)
            times += requests.taken(which(cell.run, requests)).number("ttft_ms").tolist()
        if len(times) >= LEAST_HITS:
            found.append(_HitTime(Arm(name, part), len(times), statistics.median(times)))
    return found


LEAST_HITS = 10
"""Fewer requests have no median that is told."""


def _is_computed(_: Path, requests: Requests) -> Flags:
    return np.asarray(requests.cached_share < 1 / 2)


def _is_cached(_: Path, requests: Requests) -> Flags:
    return is_hit(requests)


def _is_from_tier(run: Path, requests: Requests) -> Flags:
    """Those most of whose prompt was cached, and not in the engine's own cache, replayed."""
    own = _own_tokens(run)
    if len(own) != len(requests.at_s):  # some have failed
        return np.zeros(len(requests.at_s), bool)
    taken = requests.cached_tokens - np.asarray(own)
    return np.asarray(2 * taken > requests.number("prompt_tokens"))


def _own_tokens(run: Path) -> list[int]:
    """Of each prompt, the tokens that a cache of this run's size has from the requests before; none
    where that is not known."""
    trace, usable = trace_of_run(run), recorded_run(run).target.get("usable_tokens")
    if usable is None:
        return []
    cache = EnginePrefixCache(trace, usable // trace.block_size)
    had = []
    for request in trace.chains:
        found = cache.find(request)
        cache.serve(request, found)
        had.append(len(found) * trace.block_size)
    return had


def _break_even(large: Cells, computing_ms: float, known_ms: float | None) -> Iterator[str]:
    """How fast a tier has to load what a hit spares, so that it is no slower than computing."""
    each = bytes_per_token(large)
    cached = [
        tokens
        for cell in large.counted
        for tokens in answered(cell.run).number("cached_tokens").tolist()
        if tokens > 0
    ]
    if known_ms is None or each is None or not cached or computing_ms <= known_ms:
        return
    tokens, spared_s = statistics.median(cached), (computing_ms - known_ms) / 1000
    yield (
        f"A hit spares {count(tokens)} tokens, which are {memory(tokens * each)} of KV, and"
        f" {duration(1000 * spared_s)}: loading them pays from {memory(tokens * each / spared_s)} a"
        " second on."
    )


def _hit_table(told: Sequence[_HitTime], known_ms: float | None) -> MarkdownTable:
    header = "from", "requests", "TTFT p50", "beyond the engine's cache", *COPIES, *MEMORIES
    rows = [
        (
            each.arm.name,
            count(each.requests),
            duration(each.ttft_ms),
            "" if known_ms is None else f"{each.ttft_ms - known_ms:+.0f} ms",
            *(_seconds(each.arm.cells, name) for name in COPIES.values()),
            *(_peak(each.arm.cells, name) for name in MEMORIES.values()),
        )
        for each in told
    ]
    return MarkdownTable(header, tuple(rows))


COPIES = {
    "a copy back": "offload_load_mean_s",
    "a wait for files": "offload_wait_mean_s",
}
MEMORIES = {"memory of the engine": "peak_engine_rss_mb", "of LMCache": "peak_lmcache_rss_mb"}
"""Columns of a table of hits, each with its figure."""


def _seconds(cells: Cells, name: str) -> str:
    middle = cells.middle(name)
    return "" if middle is None else duration(1000 * middle)


def _peak(cells: Cells, name: str) -> str:
    middle = cells.middle(name)
    return "" if middle is None else memory(1e6 * middle)


def predicted(cells: Cells) -> StudyAnswer:
    """vLLM's own tier replayed behind the engine's cache, with files at the end of the curve.
    LMCache's is replayed with each moment at which its loop may begin."""
    found = list(_predictions(cells.counted))
    return StudyAnswer(
        "Can its hits be predicted from the order of requests alone?",
        (*how_far_off(found), READ_AT),
        (hit_table("behind it", found),),
    )


READ_AT = (
    "The prediction for vLLM's own is `kvswarm curve RUN --tier-tokens N`. LMCache frees memory in"
    " a loop, once a second, so that the order of requests does not settle its hits. Its share is"
    " worked out afterwards, from the times in the same run, the moments of the loop that LMCache's"
    " log tells, and its rules. Where the log tells none it is the mean over moments at which the"
    " loop may have begun, with their range. Nothing was fitted."
)


def how_far_off(found: Sequence[HitPrediction]) -> Iterator[str]:
    """The worst of each kind of tier, and whether that is within what it may be."""
    for name in KINDS.values():
        own = [each for each in found if each.kind == name]
        settled = [each for each in own if each.span is None or each.span[0] == each.span[1]]
        if settled:
            (off, too_far), runs = most_off(settled), counted(len(settled), "run")
            yield (
                f"For {name} the predicted share of tokens that need no computing is at most"
                f" {off:.1f} points off in {runs}{too_far}."
            )
        if open_ones := [each for each in own if each not in settled]:
            yield _left_open(name, open_ones)


def _left_open(name: str, found: Sequence[HitPrediction]) -> str:
    spans = [(each.measured, *each.span) for each in found if each.span is not None]
    widest, runs = 100 * max(high - low for _, low, high in spans), counted(len(found), "run")
    within = sum(low <= measured <= high for measured, low, high in spans)
    return (
        f"For {name} the order does not tell it in {runs}: the moment of LMCache's loop is"
        f" worth up to {widest:.1f} points. The measured share is in that range in {within} of"
        f" {len(spans)}, and at most {most_off(found)[0]:.1f} points from its mean."
    )


def _predictions(cells: Cells) -> Iterator[HitPrediction]:
    for target, kind in KINDS.items():
        for cell in cells.where(target=target):
            known = [cell.figure(name) for name in (CACHED, EXTERNAL, COMPUTED)]
            told = [value for value in known if value is not None]
            each = run_bytes_per_token(cell.run)
            if len(told) < len(known) or each is None:
                continue
            cached, taken, computed = told
            size_gb = cell.settings["l1_gb"]
            shares = _shares(cell.run, target, int(BYTES_PER_GB * float(size_gb)), each)
            span = (min(shares), max(shares)) if target in LMCACHE else None
            measured = (cached + taken) / (cached + taken + computed)
            by = f"{size_of(size_gb)} of {kind}"
            yield HitPrediction(by, cell.repeat, statistics.mean(shares), measured, kind, span)


def _shares(run: Path, target: str, memory_bytes: int, token_bytes: int) -> list[float]:
    """Of prompt tokens that a cache of this run, with such a tier behind it, need not compute;
    several where that is not settled."""
    trace, recorded = trace_of_run(run), recorded_run(run)
    own = recorded.target["usable_tokens"]
    if target == NATIVE:
        return [predict(trace, [own], tier_tokens=memory_bytes // token_bytes).points[0].hit_rate]
    if target not in LMCACHE:
        return [predict(trace).bound]
    chunk_tokens = chunk_tokens_of(recorded)
    tier = LmcacheTier(memory_bytes, chunk_tokens * token_bytes, chunk_tokens, target in BACKED)
    sent = sent_requests(recorded)
    times = [ServedAt(each.sent_s, each.first_token_s, each.end_s) for each in sent]
    replay = LmcacheReplay(trace, times, own // trace.block_size, tier)
    frees = _frees(recorded, times[-1].end_s)
    return [replay.share(rounds_of(frees))] if frees else replay.shares()


def _frees(run: RecordedRun, end_s: float) -> list[float]:
    """When LMCache freed memory in it, none where its log is not there."""
    start_unix_s = float(run.description["start_unix_s"])
    try:
        return frees_in_log(run.path / "engine" / "lmcache.log", start_unix_s, end_s)
    except OSError:
        return []
