"""Where each computed prompt token of a run could have been a hit, and what would make it one."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from operator import attrgetter
from pathlib import Path
from statistics import median

from loadgen.errors import UsageError
from loadgen.locality.curve import predict
from loadgen.locality.engine_at_hand import EngineAtHand, TierAtHand
from loadgen.locality.kv_format import odd_attention
from loadgen.locality.lru_stack import LruStack
from loadgen.locality.trace import SCOPE_NAMES, BlockNames, Chain, Trace
from loadgen.locality.trace_sources import (
    USUAL_BLOCK_SIZE,
    all_requests,
    busy_engines,
    chains_of,
    recorded_run,
    trace_of_run,
    unfinished,
)
from loadgen.runs.recorded import PREFIX_CACHING, RecordedRun, is_on
from loadgen.runs.requests import Requests

LEAST_HITS, LEAST_UNLIKE = 10, 3
"""Of so many numbers of cached tokens, so many of them unlike, a block's size is told."""
SAME_STEP_S = 0.002
"""Replies that begin as close together were computed in the same step."""
CAUSES: Mapping[str, str] = {
    "first": "first use of a text",
    "evicted": "evicted before it was used again",
    "order": "evicted while its next user was waiting: another order would have kept it",
    "tier": "in the tier behind the cache, by its size, which did not give it in time",
    "replica": "computed before by another engine",
    "salt": "computed before under another salt, model or adapter",
    "together": "computed in the same step as another request's",
    "off": "the engine has no prefix cache, or requests go past it",
    "tail": "behind the last full block of a prompt",
}
"""Of computed tokens; each has one."""
TURN = attrgetter("first_token_s")
"""In the order of which prompts were served."""
CURES: Mapping[str, str] = {
    "order": "Serve what waits by context (--target vllm-context): up to {saved}, without a larger"
    " cache.",
    "evicted": "",
    "tier": "The tier behind the cache has room for it and did not give it in time: a faster one,"
    " or one that takes all it is offered, would keep up to {saved}.",
    "replica": "Keep a context on one engine (--router consistent_hash --session-header"
    " X-Session-ID, or cache_aware): up to {saved}.",
    "salt": "Give requests that may share their texts one cache_salt and one model: up to {saved}.",
    "together": "Requests of one context came at the same moment: {saved} were computed twice.",
    "off": "Switch the prefix cache on: up to {saved}.",
}
"""Of causes that have one, for an engine that has it not yet."""


@dataclass(frozen=True, slots=True)
class ServedPrompt:
    """One request as the engine served it; times are of the run's clock. One that does not `count`,
    as of a warm-up, is only what was there before others. So many blocks from its start on are
    cached or `in_tier`."""

    chain: Chain
    sent_s: float
    first_token_s: float
    cached_tokens: int
    engine: str = ""
    counts: bool = True
    context: str = ""
    end_s: float = math.nan
    in_tier: int = 0

    @property
    def held_until_s(self) -> float:
        """Nobody else is given its blocks before; by its first token where its end is not known."""
        return max(self.first_token_s, self.end_s)


Late = dict[int, tuple[ServedPrompt, ServedPrompt, int]]
"""Prompts of which blocks were evicted: each, who used the last of these before, and its place."""


@dataclass(frozen=True, slots=True)
class ComputedCauses:
    """Tokens by cause, which add up to `computed`. `engine` is the engine's own count of these,
    None where it was not told. `enough_tokens` is a cache that would keep all but 1 % of what is
    used again, or all of it where the run had that much; `evicted` a sentence on what came too
    late, `remarks` what may make the causes wrong."""

    tokens: Mapping[str, int]
    prompts: int
    engine: int | None
    cache_tokens: int | None
    enough_tokens: int
    source: str
    evicted: str = ""
    at_hand: EngineAtHand = field(default_factory=EngineAtHand)
    remarks: tuple[str, ...] = ()

    @property
    def computed(self) -> int:
        """Of all requests."""
        return sum(self.tokens.values())

    def sentences(self) -> Iterator[str]:
        """The cheapest cure, with what it would save."""
        lost = {name: self.tokens[name] for name in CURES}
        most = max(lost, key=lambda name: lost[name])
        share = lost[most] / self.computed if self.computed else 0.0
        if share < 0.01:
            yield (
                f"No cache and no order would save much: {self._part('first')} of what is computed"
                f" is used for the first time, {self._part('tail')} stands behind the last full"
                " block."
            )
            return
        yield self._cure(most)
        if self.evicted:
            yield self.evicted
        if lost["order"] and most != "order" and not self.at_hand.by_context:
            yield f"An order by context (--target vllm-context) would save {self._said('order')}."

    def _cure(self, cause: str) -> str:
        saved = self._said(cause)
        if cause == "evicted":
            return self._larger(saved)
        return (self.at_hand.cure(cause) or CURES[cause]).format(saved=saved)

    def _larger(self, saved: str) -> str:
        tier = ", or a tier behind it," if self.at_hand.tier is None else ""
        size = f" instead of {self.cache_tokens:,}" if self.cache_tokens else ""
        if self.cache_tokens and self.enough_tokens <= self.cache_tokens:
            return (
                "All that is used again fits into the cache, but not beside what runs: fewer"
                f" requests at once{tier} would keep up to {saved}."
            )
        return (
            f"A cache of {self.enough_tokens:,} tokens{size}{tier} would keep what is used"
            f" again: up to {saved}."
        )

    def _said(self, cause: str) -> str:
        return f"{self.tokens[cause]:,} tokens ({self._part(cause)})"

    def _part(self, cause: str) -> str:
        return f"{self.tokens[cause] / self.computed:.0%}" if self.computed else "none"


def causes_of_run(path: Path) -> ComputedCauses:
    """What a run's computed tokens are due to. Raises UsageError where the host did not tell which
    tokens were cached."""
    run = recorded_run(path)
    size, assumed = _block_size(run)
    usable, at_hand = run.target.get("usable_tokens"), EngineAtHand.of_run(run)
    prompts, source = _served(run, size, at_hand.tier)
    has_hits = any(each.cached_tokens for each in prompts)
    is_off = not is_on(run.engine_argv, PREFIX_CACHING)
    has_cache = not is_off and (has_hits or not at_hand.prompt_logprobs)
    known = (run.summary.get("server") or {}).get("computed_prompt_tokens")
    knees = [predict(trace_of_run(path, None, size, name)).knee for name in busy_engines(run)]
    enough = max(knee.enough_tokens for knee in knees)
    if usable and enough <= usable:
        enough = max(knee.working_set_tokens for knee in knees)
    late: Late = {}
    known_blocks = (usable or 0) // size if at_hand.tier is None else 0
    return ComputedCauses(
        tokens=causes(prompts, size, has_cache, late),
        prompts=sum(each.counts for each in prompts),
        engine=int(known) if isinstance(known, int | float) else None,
        cache_tokens=usable,
        enough_tokens=enough,
        source=source,
        evicted=evictions(prompts, late, size, known_blocks),
        at_hand=at_hand,
        remarks=(*_remarks(run, prompts, has_cache, at_hand.tier), *assumed),
    )


def _block_size(run: RecordedRun) -> tuple[int, list[str]]:
    """In tokens; and a line on what it was taken from, where the run does not tell it."""
    if told := run.target.get("block_size"):
        return int(told), []
    cached = Requests.of(run.rows).told_cached_tokens
    hits = [int(each) for each in cached[cached > 0].tolist()]
    size, is_told = math.gcd(*hits), len(hits) >= LEAST_HITS and len(set(hits)) >= LEAST_UNLIKE
    if is_told and size >= USUAL_BLOCK_SIZE:
        words = "what was cached was always whole ones of these"
        return size, [f"taken for granted: blocks of {size} tokens: {words}"]
    return USUAL_BLOCK_SIZE, [
        f"taken for granted: blocks of {USUAL_BLOCK_SIZE} tokens, vLLM's own on a GPU: of larger"
        " ones ends of prompts count as evicted"
    ]


def _remarks(
    run: RecordedRun, prompts: Sequence[ServedPrompt], has_cache: bool, tier: TierAtHand | None
) -> Iterator[str]:
    """What may make the causes wrong."""
    yield from unfinished(run)
    counting, known = len(run.requests.sent), sum(each.counts for each in prompts)
    if known < counting:
        yield (
            f"{counting - known:,} of {counting:,} requests told no cached tokens, as failed ones:"
            " they are left out, and what came again only of them counts as a first use"
        )
    if tier is not None and tier.tokens is None:
        yield "the run does not tell what the tier held: what that gave too late counts as evicted"
    requests = run.requests.sent
    is_nameless = requests.text("context_id").among("") & requests.text("question_id").among("")
    if nameless := int(is_nameless.sum()):
        yield f"{nameless:,} requests name no text: what they share counts as a first use"
    held = {
        "warm": "the run began with caches that held something",
        "unknown": "what the caches held when the run began is not known",
    }
    if begun := held.get(run.description.get("cache_state") or ""):
        yield f"{begun}: what was evicted of that counts as a first use"
    if run.description.get("trace_sha256"):
        yield (
            "the run replayed a trace: which blocks its prompts share is not in the run, and is"
            " taken from their contexts and lengths"
        )
    if found := odd_attention(run):
        yield (
            f"the model has {found}: what its engine cannot keep of a text counts as evicted, and"
            " no larger cache would keep it"
        )
    if has_cache and not any(each.cached_tokens for each in prompts):
        yield "no request took anything from a cache: is the engine's prefix cache on?"


def causes(
    prompts: Sequence[ServedPrompt], block_size: int, has_cache: bool, late: Late | None = None
) -> dict[str, int]:
    """Tokens by cause. Prompts are taken in the order in which their replies began; each engine
    has a cache of its own, and each scope its own blocks there. Those of which blocks were evicted
    are noted in `late`."""
    tokens = dict.fromkeys(CAUSES, 0)
    last_user: dict[tuple[str, int], ServedPrompt] = {}
    anywhere: set[int] = set()
    texts: set[int] = set()
    for prompt in sorted(prompts, key=TURN):
        blocks = prompt.chain.blocks
        hits = min(prompt.cached_tokens // block_size, len(blocks))
        rest = prompt.chain.prompt_tokens - len(blocks) * block_size
        inside = prompt.cached_tokens - hits * block_size  # where the host counts so
        for place, block in enumerate(blocks[hits:] if prompt.counts else (), hits):
            before = last_user.get((prompt.engine, block))
            # Something must be computed to go on from: of a whole hit the last block is.
            is_end = not rest and place == hits == len(blocks) - 1 and before is not None
            cause = "tail" if is_end else _cause(prompt, place, before, has_cache)
            if cause == "first" and has_cache and block % SCOPE_NAMES in texts:
                cause = "replica" if block in anywhere else "salt"
            if before is not None and cause == "evicted" and late is not None:
                late[id(prompt)] = prompt, before, place
            tokens[cause] += block_size - (inside if place == hits else 0)
        if prompt.counts:
            tokens["tail"] += max(0, rest - inside) if hits == len(blocks) else rest
        last_user.update(dict.fromkeys(((prompt.engine, block) for block in blocks), prompt))
        anywhere.update(blocks)
        texts.update(block % SCOPE_NAMES for block in blocks)
    return tokens


def evictions(
    prompts: Sequence[ServedPrompt], late: Late, block_size: int, cache_blocks: int
) -> str:
    """By how many blocks the cache (0: not known) was too small for `late` ones of these prompts,
    in the order served, and whose requests computed most of what came in between; "" for none."""
    needed, between = [], Counter[str]()
    for engine in sorted({prompt.engine for prompt, *_ in late.values()}):
        served = [each for each in sorted(prompts, key=TURN) if each.engine == engine]
        visits = LruStack(Trace(tuple(each.chain for each in served), block_size)).visits
        turns = {id(each): turn for turn, each in enumerate(served)}
        begun = [0] * (len(served) + 1)
        for prompt, before, place in late.values():
            if prompt.engine == engine:
                depths = visits[turns[id(prompt)]].depths
                needed.append(depths[min(place, len(depths) - 1)] + 2)  # with one not full yet
                begun[turns[id(before)] + 1] += 1
                begun[turns[id(prompt)]] -= 1
        for each, times in zip(served, accumulate(begun), strict=False):
            held = -(-each.chain.kept_tokens // block_size)
            between[each.context] += times * (held - each.cached_tokens // block_size)
    said, shares = [], [(name, n / between.total()) for name, n in between.most_common(3) if n]
    short = [blocks - cache_blocks for blocks in needed if 0 < cache_blocks < blocks]
    if short:
        said = [f"lacked a median of {median(short):.0f} and at most {max(short)} blocks of cache"]
    if shares:
        named = ", ".join(f"{name or 'no context'} ({share:.0%})" for name, share in shares)
        said.append(f"made room for requests of {named}")
    return f"What was evicted {', and '.join(said)}." if said else ""


def _cause(prompt: ServedPrompt, place: int, before: ServedPrompt | None, has_cache: bool) -> str:
    if before is None:
        return "first"
    if not has_cache:
        return "off"
    if prompt.first_token_s - before.first_token_s < SAME_STEP_S:
        return "together"
    if place < prompt.in_tier:
        return "tier"
    return "order" if prompt.sent_s < before.held_until_s else "evicted"


def _served(run: RecordedRun, size: int, tier: TierAtHand | None) -> tuple[list[ServedPrompt], str]:
    """Those whose cached tokens are known, and what their blocks were made from. Raises UsageError
    where that leaves none that counts."""
    sent = all_requests(run)
    chains, source = chains_of(run, sent, BlockNames(size))
    counting = set(run.requests.sent.number("request_id").tolist())
    if not any(each.index in counting for each in sent):
        raise UsageError(
            f"{run.path}: all its requests are of the warm-up or before a reset: nothing to explain"
        )
    prompts = [
        ServedPrompt(chain, each.sent_s, each.first_token_s, int(each.cached_tokens), *facts)
        for each, chain in zip(sent, chains, strict=True)
        for facts in [(each.engine, each.index in counting, each.context, each.end_s)]
        if not math.isnan(each.cached_tokens)
    ]
    if not any(each.counts for each in prompts):
        raise UsageError(
            f"{run.path}: its host did not tell which tokens were cached (vLLM does with"
            " --enable-prompt-tokens-details): nothing to explain"
        )
    return prompts if tier is None else _behind(tier, prompts, size), source


def _behind(tier: TierAtHand, prompts: list[ServedPrompt], size: int) -> list[ServedPrompt]:
    """With what such a tier surely has of each; every engine has one of its own."""
    found = []
    for engine in sorted({each.engine for each in prompts}):
        served = sorted((each for each in prompts if each.engine == engine), key=TURN)
        asked = [(each.chain.blocks, each.cached_tokens // size) for each in served]
        held = tier.sure_blocks(asked, size)
        found += [replace(each, in_tier=n) for each, n in zip(served, held, strict=True)]
    return found
