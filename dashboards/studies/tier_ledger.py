"""Whether the bytes that tiers store, load and give up add up."""

import math
import statistics
from collections.abc import Iterator
from dataclasses import dataclass

from dashboards.studies.cell import COMPUTED, NATIVE, OFFLOAD, SAME, Cells, StudyCell
from dashboards.studies.tier_arms import (
    BACKED,
    EXTERNAL,
    KINDS,
    LOADED,
    STORED,
    TIERED,
    bytes_per_token,
    size_of,
)
from dashboards.studies.wording import count, memory, percent, span
from loadgen.locality.measured import run_bytes_per_token
from loadgen.locality.tier_replay import TierReplay
from loadgen.locality.trace_sources import recorded_run, trace_of_run
from loadgen.runs.recorded import RecordedRun, argument
from loadgen.targets.plan import BYTES_PER_GB

LMCACHE = (OFFLOAD, *BACKED)
FILES_KEEP = " Files give nothing up: whatever reached them is there at the end."
UNCOUNTED = (
    "No run counts the bytes that LMCache stores and loads: the ledger of its tiers is not closed"
    " here."
)
UNREAD = "No counter tells which of LMCache's chunks were never read."


def ledger(cells: Cells) -> Iterator[str]:
    """Bytes by vLLM's own counters against tokens by another of its counters."""
    for target in (NATIVE, TIERED):
        for size, part in cells.where(target=target).by("l1_gb"):
            known = [part.middle(name) for name in (STORED, LOADED, COMPUTED, EXTERNAL)]
            each = bytes_per_token(part)
            told = [value for value in known if value is not None]
            if each is None or len(told) < len(known) or not told[-1]:
                continue
            stored, loaded, computed, taken = told
            closes = "closes" if _closes(part, each) else "does not close"
            where = " between engine and memory" if target == TIERED else ""
            yield (
                f"{size_of(size)} of {KINDS[target]}: {memory(stored)} were stored,"
                f" {percent(stored / (computed * each))} of what was computed, and {memory(loaded)}"
                f" loaded, {count(loaded / taken)} bytes for each of {count(taken)} tokens. At"
                f" {count(each)} bytes a token the ledger of loads{where} {closes}."
                f"{FILES_KEEP if target == TIERED else _unread(part, each)}"
            )
    yield from _lmcache_ledger(cells)


def _lmcache_ledger(cells: Cells) -> Iterator[str]:
    """Chunks by LMCache's own counters: those of memory alone against what is there at the end."""
    own = [cell for target in LMCACHE for cell in cells.where(target=target).counted]
    if own and not any(map(_chunks, own)):
        yield UNCOUNTED
        return
    for size, part in cells.where(target=OFFLOAD).by("l1_gb"):
        told = [_chunks(cell) for cell in part.counted]
        known = [each for each in told if each is not None]
        found, taken = part.middle("lmcache_lookup_hit_l1_tokens"), part.middle(EXTERNAL)
        if not known or found is None or taken is None:
            continue
        closes = all(each.written == each.evicted + each.kept for each in known)
        written, read = (
            memory(statistics.median(each.bytes * getattr(each, name) for each in known))
            for name in ("written", "read")
        )
        yield (
            f"{size_of(size)} of {KINDS[OFFLOAD]}: {written} were stored, which"
            f" {'is' if closes else 'is not'} what was evicted and what was there at the end, and"
            f" {read} read: {count(found)} tokens were found there, of which the engine had all but"
            f" {count(taken)} itself."
        )
    for target in BACKED:
        for size, part in cells.where(target=target).by("l1_gb"):
            middles = [part.middle(f"lmcache_lookup_hit_{each}_tokens") for each in ("l1", "l2")]
            if None not in middles:
                near, far = (count(each) for each in middles if each is not None)
                yield (
                    f"{size_of(size)} of {KINDS[target]}: {near} tokens were found in memory and"
                    f" {far} behind it."
                )
    if own:
        yield UNREAD


@dataclass(frozen=True, slots=True)
class _Chunks:
    """Of one run, in LMCache's memory; `bytes` each."""

    bytes: int
    written: int
    read: int
    evicted: int
    kept: int


def _chunks(cell: StudyCell) -> _Chunks | None:
    """None where LMCache or the engine does not tell enough."""
    counts = [cell.figure(f"lmcache_l1_{name}_chunks") for name in ("written", "read", "evicted")]
    run, each = recorded_run(cell.run), run_bytes_per_token(cell.run)
    chunk_tokens = chunk_tokens_of(run)
    if counts[0] is None or each is None or not chunk_tokens:
        return None
    at_end = run.server.number("lmcache_l1_memory_usage_bytes")
    size = chunk_tokens * each
    if not len(at_end) or math.isnan(at_end[-1]):
        return None
    kept = round(at_end[-1] / size)
    written, read, evicted = (int(told or 0) for told in counts)
    return _Chunks(size, written, read, evicted, kept)


def chunk_tokens_of(run: RecordedRun) -> int:
    """Of LMCache, by its command line; 0 where it has none."""
    argv = (run.target.get("argv") or {}).get("lmcache") or ()
    return int(argument(argv, "--chunk-size") or 0)


def _closes(part: Cells, token_bytes: int) -> bool:
    """Whether each run loaded the bytes of the tokens that came from its tier."""
    told = [(cell.figure(LOADED), cell.figure(EXTERNAL)) for cell in part.counted]
    known = [
        (loaded, taken * token_bytes) for loaded, taken in told if taken and loaded is not None
    ]
    return bool(known) and all(abs(loaded / due - 1) < SAME - 1 for loaded, due in known)


def _unread(part: Cells, token_bytes: int) -> str:
    """How much of what was stored no request took, and what was kept, which vLLM does not tell: by
    a replay that stores as much."""
    unread, kept = list[float](), list[float]()
    for cell in part.counted:
        own, stored = recorded_run(cell.run).target.get("usable_tokens"), cell.figure(STORED)
        if own is None or not stored:
            return ""
        trace = trace_of_run(cell.run)
        tier_tokens = int(BYTES_PER_GB * float(cell.settings["l1_gb"])) // token_bytes
        blocks = (own // trace.block_size, tier_tokens // trace.block_size)
        replay = TierReplay(trace, *blocks).run()
        if abs(replay.stored_tokens * token_bytes / stored - 1) >= SAME - 1:
            return ""
        unread.append(replay.unread_tokens / replay.stored_tokens)
        kept.append(replay.kept_tokens / replay.stored_tokens)
    if not unread:
        return ""
    end = "all" if min(kept) == 1 else f"{span(kept, percent)}, without what was evicted,"
    return (
        f" By the replay, {span(unread, percent)} of what was stored was never loaded; {end} was"
        " kept to the end."
    )
