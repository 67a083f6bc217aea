"""KV streamed over links that are steady or change: chunks in levels against a deadline, and
anchors and deltas of a chunk apart.

Bytes, time of decoding and usable tokens are of real codecs on a model's own KV; the link's clock
is counted.
"""

import time
from collections.abc import AsyncIterator, Collection, Iterator, Sequence
from itertools import takewhile

from kv_tiers.codecs import Bits, CacheGen, CacheGenProfile, pack
from kv_tiers.codecs.apart import ANCHOR, PartId, PartReassembly, split
from kv_tiers.link import RateSchedule
from kv_tiers.link.rate import BYTES_PER_MBIT
from kv_tiers.store.adaptive import ADAPTIVE, LEVELS, AdaptiveLoader
from kv_tiers.store.coder import ChunkCoder, RawChunk
from kv_tiers.trials.figures import NetworkFigure
from kv_tiers.trials.loading import LoadingPlan, chunks_of

LEVELS_QUESTION, PARTS_QUESTION = "levels", "parts"
ALONE, KEY = "alone", b"context"
RATES_MBIT = (10, 20, 50, 100, 200, 500, 1000)
FALLING, RISING, CHANGING = "100 falling to 10", "10 rising to 100", "100 and 10 in turns"
WHOLE, BESIDE, ANCHORS_FIRST, ANCHORS_LAST = ORDERS = (
    "whole groups",
    "each anchor before its deltas",
    "all anchors first",
    "all anchors last",
)
PARTS_UNIT_S = 0.1


def links(unit_s: float) -> dict[str, RateSchedule]:
    """By their Mbit/s; those that change do so after `unit_s`."""
    fast, slow = 100.0 * BYTES_PER_MBIT, 10.0 * BYTES_PER_MBIT
    turns = range(1000)
    return {
        **{f"{rate} Mbit/s": RateSchedule.fixed(rate) for rate in RATES_MBIT},
        FALLING: RateSchedule((0.0, unit_s), (fast, slow)),
        RISING: RateSchedule((0.0, unit_s), (slow, fast)),
        CHANGING: RateSchedule(
            tuple(unit_s * at for at in turns), tuple((fast, slow)[at % 2] for at in turns)
        ),
    }


class _OneLevel(AdaptiveLoader):
    """What there is without levels: all that comes until the deadline."""

    only = 0

    def level(
        self, sizes: Sequence[int], left_s: float, spare_s: float, missing: Collection[int] = ()
    ) -> int | None:
        return self.only if left_s > 0 else None


async def stream_levels(
    plan: LoadingPlan, bits: Bits, tokens_per_s: float
) -> AsyncIterator[NetworkFigure]:
    """With the time of computing all as the deadline, by link: `ttft_s`, with computing what has
    not come, the share of chunks that `came`, and of all chunks the share at each level."""
    chunks, deadline_s = chunks_of(plan, bits), plan.tokens / tokens_per_s
    weights = [[_weight(name, chunk) for chunk in chunks] for name in LEVELS]
    yield NetworkFigure(LEVELS_QUESTION, ADAPTIVE, ALONE, "deadline_s", deadline_s)
    for setting, schedule in links(deadline_s / 4).items():
        for subject in (ADAPTIVE, *LEVELS):
            came, end_s = await _streamed(schedule, weights, subject, deadline_s)
            rest = (len(chunks) - len(came)) * plan.chunk_tokens
            shares = {name: came.count(at) / len(chunks) for at, name in enumerate(LEVELS)}
            for measure, value in (
                ("ttft_s", end_s + rest / tokens_per_s),
                ("came", len(came) / len(chunks)),
                *shares.items(),
            ):
                yield NetworkFigure(LEVELS_QUESTION, subject, setting, measure, value)


def _weight(codec: str, chunk: RawChunk) -> tuple[int, float]:
    """Its bytes, and the processor time of decoding it."""
    coder = ChunkCoder(codec)
    frame = coder.frame(chunk, KEY)
    since_s = time.thread_time()
    coder.content(frame, KEY, chunk)
    return len(frame), time.thread_time() - since_s


async def _streamed(
    schedule: RateSchedule,
    weights: Sequence[Sequence[tuple[int, float]]],
    subject: str,
    deadline_s: float,
) -> tuple[list[int], float]:
    """Of a second load, which knows what the first one saw: levels of the chunks that were decoded
    by the deadline, one after the other, and its end."""
    now_s = 0.0
    ready: dict[int, tuple[float, int]] = {}

    async def fetch(at: int, level: int) -> bytes:
        nonlocal now_s
        size, decode_s = weights[level][at]
        now_s = schedule.through_s(now_s, size)
        decoded_s = max((end_s for end_s, _ in ready.values()), default=0.0)
        ready[at] = max(now_s, decoded_s) + decode_s, level
        return bytes(size)

    async def decode(at: int, level: int, frame: bytes) -> None:
        nonlocal now_s
        now_s = max(now_s, ready[at][0])

    kind = AdaptiveLoader if subject == ADAPTIVE else _OneLevel
    loader = kind(lambda: now_s)
    if isinstance(loader, _OneLevel):
        loader.only = LEVELS.index(subject)
    sizes = [size for size, _ in weights[0]]
    for _ in range(2):
        now_s = 0.0
        ready.clear()
        await loader.load(sizes, fetch, decode, deadline_s)
    came = [*takewhile(lambda each: each[0] <= deadline_s, ready.values())]
    return [level for _, level in came], min(now_s, deadline_s)


def in_order(order: str, parts: Sequence[PartId]) -> list[list[PartId]]:
    """What is sent together, one after the other; `parts` are group by group."""
    if order == WHOLE:
        groups = dict.fromkeys(part.group for part in parts)
        return [[part for part in parts if part.group == group] for group in groups]
    sign = {BESIDE: 0, ANCHORS_FIRST: 1, ANCHORS_LAST: -1}[order]
    return [[part] for part in sorted(parts, key=lambda part: sign * (part.position != ANCHOR))]


def send_parts(bits: Bits, profile: CacheGenProfile) -> Iterator[NetworkFigure]:
    """By order and link when the first quarter of the tokens, the mean token and all are usable:
    `first_s`, `mean_s`, `all_s`, and `link_first_s` and so on where decoding takes no time."""
    codec, tokens = CacheGen(profile), bits.shape[2]
    parts = split(codec, bits, KEY)
    sent = sum(map(len, parts.values()))
    anchors = sum(len(each) for part, each in parts.items() if part.position == ANCHOR)
    for measure, value in (
        ("tokens", tokens),
        ("bytes_per_token", sent / tokens),
        ("frame_bytes_per_token", len(pack(codec, bits, KEY)) / tokens),
        ("anchor_share", anchors / sent),
    ):
        yield NetworkFigure(PARTS_QUESTION, WHOLE, ALONE, measure, float(value))
    decode_s = 0.0  # of a part, each of a token
    for order in (BESIDE, WHOLE, ANCHORS_FIRST, ANCHORS_LAST):
        together = in_order(order, [*parts])
        met = PartReassembly(codec, (bits.shape[0], 2, tokens, bits.shape[3]), KEY)
        since_s, usable = time.thread_time(), list[int]()
        for each in together:
            met.add(b"".join(parts[part] for part in each))
            usable.append(met.usable_tokens)
        decode_s = decode_s or (time.thread_time() - since_s) / len(parts)
        sizes = [sum(len(parts[part]) for part in each) for each in together]
        for setting, schedule in links(PARTS_UNIT_S).items():
            for prefix, share in (("", decode_s), ("link_", 0.0)):
                decoding = [share * len(each) for each in together]
                seconds = _seconds(schedule, sizes, decoding, usable)
                for measure, value in (
                    ("first_s", seconds[tokens // 4 - 1]),
                    ("mean_s", sum(seconds) / tokens),
                    ("all_s", seconds[-1]),
                ):
                    yield NetworkFigure(PARTS_QUESTION, order, setting, prefix + measure, value)


def _seconds(
    schedule: RateSchedule,
    sizes: Sequence[int],
    decoding: Sequence[float],
    usable: Sequence[int],
) -> list[float]:
    """When each token is usable; what has come is decoded while more comes."""
    sent_s, ready_s, found = 0.0, 0.0, list[float]()
    for size, decode_s, tokens in zip(sizes, decoding, usable, strict=True):
        sent_s = schedule.through_s(sent_s, size)
        ready_s = max(ready_s, sent_s) + decode_s
        found += [ready_s] * (tokens - len(found))
    return found
