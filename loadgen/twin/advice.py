"""What was tried for an objective, and the advice in sentences: size, order, rate and tier."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import permutations

from loadgen.compare.gate import Limit
from loadgen.targets.plan import BYTES_PER_GB
from loadgen.twin.highest_rate import EXACT, HighestRate
from loadgen.twin.predict import TwinPrediction

ORDERS = {False: "first come, first served", True: "by context"}


MOST_ANSWERS = 4
"""Runs that are named to overturn the advice."""


@dataclass(frozen=True, slots=True)
class Reuse:
    """So large a share of what is used again comes back within `within_tokens` of others, and
    nearly all of it within `nearly_all_tokens`."""

    share: float
    within_tokens: int
    nearly_all_tokens: int


@dataclass(frozen=True, slots=True)
class SizeTried:
    """One size and order with what it would give; `value` is of the limit's statistic. With
    `tier_tokens` all that is used again lies behind it, on a link of so many bytes a second."""

    kv_tokens: int
    by_context: bool
    prediction: TwinPrediction
    value: float
    interval: tuple[float, float]
    rate: HighestRate | None = None
    tier_tokens: int = 0
    bytes_per_s: float = 0.0

    @property
    def words(self) -> str:
        """What was tried."""
        link = f"{self.bytes_per_s / 1e9:.3g} GB/s"
        tier = f" and a tier at {link}" if self.tier_tokens else ""
        return f"{self.kv_tokens:,} tokens{tier}, {ORDERS[self.by_context]}"

    @property
    def per_s(self) -> float:
        """Its highest rate, 0 where none was looked for or found."""
        return 0.0 if self.rate is None else self.rate.per_s

    def keeps(self, limit: Limit) -> bool:
        """Whether the run that is expected does."""
        return self.value <= limit.bound

    def is_open(self, limit: Limit) -> bool:
        """Whether runs here differ by more than decides it."""
        return self.interval[0] <= limit.bound < self.interval[1]


@dataclass(frozen=True, slots=True)
class TierAdvice:
    """From which bandwidth on loading so many tokens of a prompt, the load's mean, is faster than
    computing them, with its interval, and what tiers around it give to a cache that is `below`."""

    bytes_per_token: int
    reused_tokens: int
    break_even: float
    interval: tuple[float, float]
    below: SizeTried
    tried: tuple[SizeTried, ...]

    @property
    def best(self) -> SizeTried:
        """The one that gives most."""
        return min(self.tried, key=lambda each: each.value)


@dataclass(frozen=True, slots=True)
class Advice:
    """All candidates, small first, for one limit on one load. `most_tokens` is the largest cache
    that fits, None where nobody asks; `has_bytes` is whether those of a token are known, and `seen`
    how many first requests told reuse where not all did."""

    limit: Limit
    candidates: tuple[SizeTried, ...]
    reuse: Reuse | None = None
    tier: TierAdvice | None = None
    most_tokens: int | None = None
    price: float | None = None
    has_bytes: bool = False
    seen: int = 0

    def smallest(self, by_context: bool) -> SizeTried | None:
        """The smallest that keeps the limit in this order, and of which no larger one misses it."""
        found = None
        for each in sorted(self._of(by_context), key=lambda each: -each.kv_tokens):
            if not each.keeps(self.limit):
                break
            found = each
        return found

    def contrary(self, by_context: bool) -> list[SizeTried]:
        """Where the largest of this order misses the limit: the largest that keeps it and the next
        larger one, which does not. Else nothing."""
        tried = sorted(self._of(by_context), key=lambda each: each.kv_tokens)
        keep = [place for place, each in enumerate(tried) if each.keeps(self.limit)]
        if not keep or keep[-1] == len(tried) - 1:
            return []
        return tried[keep[-1] : keep[-1] + 2]

    @property
    def fastest(self) -> SizeTried | None:
        """The smallest cache of those whose rates are as good as the highest, of one size the one
        with the higher rate; None where no rate was found."""
        return min(self._as_fast, key=lambda each: (each.kv_tokens, -each.per_s), default=None)

    @property
    def _as_fast(self) -> list[SizeTried]:
        least_per_s = max(each.per_s for each in self.candidates) / self._alike
        return [each for each in self.candidates if each.per_s >= least_per_s > 0]

    @property
    def _alike(self) -> float:
        """The factor up to which rates are alike: what searches leave open, or more where a larger
        cache seems to hold less than a smaller one, which is chance."""
        turned = [
            small.per_s / large.per_s
            for order in ORDERS
            for small, large in permutations(self._of(order), 2)
            if small.kv_tokens < large.kv_tokens and large.per_s
        ]
        return min(max([EXACT, *turned]), EXACT**4)

    def sentences(self) -> Iterator[str]:
        """The answer, what the order adds, and what could overturn it."""
        best = {order: self.smallest(order) for order in ORDERS}
        if not any(each.keeps(self.limit) for each in self.candidates):
            nearest = min(self.candidates, key=lambda each: each.value)
            cures = "Fewer users, a lower rate, shorter prompts or a faster engine"
            if self._is_out_of_reach:
                cures = "Shorter prompts or a faster engine"
            yield (
                f"No size that was tried keeps {self.limit.text}: the nearest is"
                f" {self._named(nearest)}. {cures}"
                f" {'might, or a tier' if self._has_tier else 'would'}."
            )
            yield from self._rates()
            yield from self._tier()
            yield from self._fitting()
            yield from self._doubts()
            return
        yield " ".join(self._told(order, each) for order, each in best.items())
        if not any(map(self.contrary, ORDERS)):
            yield self._order(best[False], best[True])
        yield from self._rates()
        yield from self._reuse()
        yield from self._tier()
        yield from self._fitting()
        yield from self._doubts()

    def _doubts(self) -> Iterator[str]:
        """What runs that differ could turn, and a percentile that no request lies beyond."""
        served, wanted = len(self.candidates[0].prediction.ttft_s), self.limit.statistic
        if served < wanted.least_values:
            needs = f"which needs {wanted.least_values:,}: send more before you rely on it"
            yield f"Of {served:,} requests no {wanted.of_values} is known, {needs}."
        best = [self.smallest(order) for order in ORDERS]
        for each in best:
            if each is not None and each.is_open(self.limit):
                yield (
                    f"{self._named(each)} is within what runs here differ by: measure it before you"
                    " rely on it."
                )
        for each in self.nearly:
            yield (
                f"{self._named(each)} misses it by less than runs here differ by: measure it, too."
            )

    @property
    def answers(self) -> list[SizeTried]:
        """Of each order the smallest, the two that contradict each other, or the largest; a tier
        that keeps what the cache before it misses; smaller sizes that nearly keep it. A run on one
        could overturn the answer."""
        told: list[SizeTried] = []
        for order in ORDERS:
            best, largest = self.smallest(order), max(self._of(order), key=lambda e: e.kv_tokens)
            told += [best] if best else self.contrary(order) or [largest]
        tier = self.tier
        if tier and self._has_tier and not tier.below.keeps(self.limit):
            told.append(tier.best)
        near = [each for each in self.nearly if not any(each is other for other in told)]
        return [*told, *near][:MOST_ANSWERS]

    @property
    def nearly(self) -> list[SizeTried]:
        """Of each order the next smaller size than the answer, or the largest where none keeps the
        limit, if runs differ by more than what it misses the limit by."""
        found = []
        for order in ORDERS:
            tried = sorted(self._of(order), key=lambda each: each.kv_tokens)
            best = self.smallest(order)
            if best is not None:
                tried = tried[: tried.index(best)]
            elif self.contrary(order):
                continue
            found += [each for each in tried[-1:] if each.is_open(self.limit)]
        return found

    @property
    def _has_tier(self) -> bool:
        return self.tier is not None and self.tier.best.keeps(self.limit)

    @property
    def _is_out_of_reach(self) -> bool:
        """Whether no rate keeps the limit, not even of requests one by one."""
        return all(each.rate and not each.per_s for each in self.candidates)

    def _of(self, by_context: bool) -> list[SizeTried]:
        return [each for each in self.candidates if each.by_context == by_context]

    def _told(self, order: bool, found: SizeTried | None) -> str:
        said = ORDERS[order][0].upper() + ORDERS[order][1:]
        if contrary := self.contrary(order):
            kept, missing = contrary
            return (
                f"{said}, {kept.kv_tokens:,} tokens of cache keep {self.limit.text}"
                f" ({in_ms(kept.value)}), but {missing.kv_tokens:,} do not"
                f" ({in_ms(missing.value)}): measure both."
            )
        if found is None:
            most = max(each.kv_tokens for each in self._of(order))
            return f"{said}, no cache up to {most:,} tokens keeps {self.limit.text}."
        is_least = found.kv_tokens == min(each.kv_tokens for each in self._of(order))
        least = " (the least that was tried)" if is_least else ""
        return (
            f"{said}, {found.kv_tokens:,} tokens of cache{least} keep {self.limit.text}:"
            f" {in_ms(found.value)}{_within(found.interval)}."
        )

    def _order(self, plain: SizeTried | None, ordered: SizeTried | None) -> str:
        if plain is None or ordered is None:
            return "The order decides." if ordered is not None else "The order does not help."
        if ordered.kv_tokens < plain.kv_tokens:
            share = 1 - ordered.kv_tokens / plain.kv_tokens
            return f"An order by context saves {share:.0%} of the cache."
        if ordered.kv_tokens > plain.kv_tokens:
            return "An order by context needs more cache here."
        return "An order by context saves no cache here."

    def cost(self, each: SizeTried) -> float | None:
        """Of a million requests at the highest rate, None where no price was told."""
        return self.price / each.per_s * 1e6 / 3600 if self.price and each.per_s else None

    def _rates(self) -> Iterator[str]:
        best = self.fastest
        if best is None or best.rate is None:
            if self._is_out_of_reach:
                yield f"No rate keeps {self.limit.text}, with caches that are empty at first."
            return
        low, high = best.rate.interval
        within = "" if math.isinf(high) else f" ({low:.3g} to {high:.3g})"
        cost = self.cost(best)
        price = "" if cost is None else f", {cost:,.2f} for a million requests"
        yield (
            f"The highest rate that keeps it is {best.rate.per_s:.3g} requests/s{within}, with"
            f" {best.kv_tokens:,} tokens {ORDERS[best.by_context]}{price}."
        )
        if len(self._as_fast) > 1:
            said = f"Rates up to {self._alike - 1:.0%} apart are alike"
            yield f"{said}: of those the smallest cache is named."

    def _reuse(self) -> Iterator[str]:
        if self.reuse is not None:
            yield (
                f"The reason: {self.reuse.share:.0%} of reused tokens come back within"
                f" {self.reuse.within_tokens:,} tokens of others, 95 % within"
                f" {self.reuse.nearly_all_tokens:,}."
            )
        if self.seen:
            yield f"Sizes, reuse and tier are by the first {self.seen:,} requests."

    def _tier(self) -> Iterator[str]:
        tier = self.tier
        if tier is None:
            needs = "the bytes of a token of KV: give --model"
            if self.has_bytes:
                needs = "the time of a prompt token, which the twin leaves open: calibrate it anew"
            yield f"What a tier adds needs {needs}."
            return
        low, high = tier.interval
        yield (
            f"Loading KV is faster than computing it from {tier.break_even / 1e9:.3g} GB/s on"
            f" ({low / 1e9:.3g} to {high / 1e9:.3g}), at {tier.bytes_per_token:,} bytes a token"
            f" and {tier.reused_tokens:,} reused tokens a prompt."
        )
        best, alone = tier.best, tier.below.value
        if best.value >= alone:
            yield f"A tier adds nothing to {best.kv_tokens:,} tokens of cache here."
            return
        kept = "keeps" if best.keeps(self.limit) else "does not keep"
        size_gb = best.tier_tokens * tier.bytes_per_token / BYTES_PER_GB
        yield (
            f"Behind {best.kv_tokens:,} tokens of cache a tier of {size_gb:.3g} GiB"
            f" ({best.tier_tokens:,} tokens) at {best.bytes_per_s / 1e9:.3g} GB/s gives"
            f" {in_ms(best.value)}{_within(best.interval)} instead of {in_ms(alone)},"
            f" which {kept} {self.limit.text}."
        )

    def _fitting(self) -> Iterator[str]:
        if self.most_tokens is not None:
            yield (
                f"Beside the weights {self.most_tokens:,} tokens fit on the GPU: larger caches were"
                " not tried."
            )

    def _named(self, each: SizeTried) -> str:
        return f"{each.words} ({in_ms(each.value)}{_within(each.interval)})"


def in_ms(value: float) -> str:
    """Of a time in ms, with three digits where it has fewer before the point."""
    return f"{value:.3g} ms" if value < 100 else f"{value:,.0f} ms"


def _within(interval: tuple[float, float]) -> str:
    low, high = interval
    within = f"{in_ms(low).removesuffix(' ms')} to {in_ms(high)}"
    return "" if math.isinf(high) else f", {within} in nine of ten runs"
