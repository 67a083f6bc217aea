"""One policy on one text: what the model still says, what is held, how long it takes."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from math import exp, isfinite
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import cross_entropy, kl_div

from kv_policies.device import clock_s, peak_of
from kv_policies.needle import Needle, planted
from kv_policies.policies.full import Full, FullLayer
from kv_policies.policy import KeysValues, KvPolicy, PolicyCache, PolicyError, Traffic, require_size
from kv_policies.subject import Subject

SPEED_STEPS = 8
"""Decode steps after the timed prefill, in which memory reaches its peak."""
POSITIONS_AT_ONCE = 128
MOST_NATS = 700.0
LEAST_PROMPT_TOKENS = 64
"""A needle must find room."""
SPARE_TOKENS = 2
"""More than an answer has, so that a digit too many is seen."""


@dataclass(frozen=True, slots=True)
class PolicyPlan:
    """What is measured of each policy; sizes in tokens, of each text. `prefill_chunk` of 0 computes
    a prompt in one pass; with more a policy acts between the passes of a prompt, too."""

    prompt_tokens: int = 1024
    generate_tokens: int = 256
    batch: int = 1
    repeats: int = 3
    needles: int = 42
    prefill_chunk: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        least = {"prefill_chunk": 0, "seed": 0, "prompt_tokens": LEAST_PROMPT_TOKENS}
        for name, value in (asdict(self) | {"seed": min(self.seed, 0)}).items():
            require_size(name.replace("_", " "), value, least.get(name, 1))
        if self.needles < self.repeats:
            raise PolicyError(
                f"{self.needles} needles for {self.repeats} repeats: give one for each"
            )

    @property
    def text_tokens(self) -> int:
        """Of a text: the last token is only foretold."""
        return self.prompt_tokens + self.generate_tokens + 1


@dataclass(frozen=True, slots=True)
class PolicyMeasurement:
    """Of one repeat. Perplexity is of the prompt's own tokens, and of those read one at a time
    after it; KL (nats a token, from the full cache's distribution to this one's) and agreement of
    the most probable token are over the latter. `recalled` of `asked` facts were said again.
    `kv_bytes` are held after the last token, without `slow_kv_bytes` of a slower tier, from which
    a decode step fetches `moved_bytes_per_token`, a block of one head in `miss_ms`, and without
    `disk_kv_bytes` of a file, with figures of the same kind. A decode step gives each text of the
    batch a token. `peak_memory_bytes` are those beside what was held before, such as weights."""

    perplexity_prefill: float | None
    perplexity_decode: float | None
    kl_nats: float
    top1_agreement: float
    recalled: int | None
    asked: int | None
    kv_bytes: int
    slow_kv_bytes: int
    moved_bytes_per_token: float
    miss_ms: float | None
    disk_kv_bytes: int
    disk_bytes_per_token: float
    disk_miss_ms: float | None
    peak_memory_bytes: int | None
    ttft_ms: float
    prefill_ms_per_token: float
    decode_ms_per_token: float

    def as_object(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def parsed(cls, told: Mapping[str, Any]) -> "PolicyMeasurement":
        """Raises KeyError for what is not whole."""
        return cls(**{each.name: told[each.name] for each in fields(cls)})


@dataclass(frozen=True, slots=True)
class ForcedText:
    """What a model said of a text it was led through: negative log likelihoods in nats, logits of
    [batch, generated, vocabulary] in the model's type, and what was held at the end."""

    prefill_nats: float
    decode_nats: float
    logits: Tensor
    kv_bytes: int
    slow_bytes: int
    disk_bytes: int
    decode_traffic: Traffic
    disk_traffic: Traffic
    decode_s: float


def forced(subject: Subject, policy: KvPolicy, text: Tensor, plan: PolicyPlan) -> ForcedText:
    """Lead the model through [batch, prompt + generate + 1] tokens, the prompt at once and then one
    token at a time, whatever it would have said."""
    cache = subject.cache(policy)
    prompt = text[:, : plan.prompt_tokens]
    prefill = _prefill(subject, policy, cache, prompt, plan, keep=0)
    prefill_nats = _nats(prefill[:, :-1], prompt[:, 1:])
    del prefill
    logits = []
    before, since = (cache.traffic, cache.disk_traffic), clock_s(subject.device)
    for at in range(plan.prompt_tokens, plan.prompt_tokens + plan.generate_tokens):
        logits.append(subject.read(text[:, at : at + 1], cache, policy, last=1))
    decode_s = clock_s(subject.device) - since
    said = torch.cat(logits, dim=1)
    decode_nats = _nats(said, text[:, plan.prompt_tokens + 1 :])
    return ForcedText(
        prefill_nats=prefill_nats,
        decode_nats=decode_nats,
        logits=said,
        kv_bytes=cache.held_bytes,
        slow_bytes=cache.slow_bytes,
        disk_bytes=cache.disk_bytes,
        decode_traffic=cache.traffic.since(before[0]),
        disk_traffic=cache.disk_traffic.since(before[1]),
        decode_s=decode_s,
    )


def answer_tokens(subject: Subject, needle: Needle) -> int:
    """So many are read of what a model answers."""
    return len(subject.tokens(f" {needle.answer}")) + SPARE_TOKENS


def tokens_after_prompt(plan: PolicyPlan) -> int:
    """How many follow a prompt at most: of its text, or while it is timed."""
    return max(plan.generate_tokens + 1, SPEED_STEPS)


def tokens_asked(subject: Subject, needles: Sequence[Needle]) -> int:
    """How many follow a prompt at most where its fact is asked for: of a question and its answer,
    the last token of which is only foretold."""
    return max(
        len(subject.tokens(each.question)) + answer_tokens(subject, each) - 1 for each in needles
    )


class NeedlePrompt:
    """A context with a fact in it, and the question after it."""

    def __init__(
        self, subject: Subject, haystack: Sequence[int], needle: Needle, plan: PolicyPlan
    ) -> None:
        self._subject, self._needle, self._plan = subject, needle, plan
        fact = subject.tokens(needle.sentence)
        context = planted(haystack, fact, plan.prompt_tokens, needle.depth)
        self._context = torch.tensor([context])
        self._question = torch.tensor([subject.tokens(needle.question)])
        self._answer_tokens = answer_tokens(subject, needle)

    def is_recalled(self, policy: KvPolicy) -> bool:
        """Whether the fact is said again, greedily, by a model that was asked after the policy has
        acted on the context."""
        cache = self.read(policy)
        ahead = self._question
        said: list[int] = []
        for _ in range(self._answer_tokens):
            ahead = self._subject.read(ahead, cache, policy, last=1).argmax(-1)
            said.append(int(ahead))
        return self._needle.is_recalled(self._subject.tokenizer.decode(said))

    def read(self, policy: KvPolicy) -> PolicyCache:
        """The cache after the context, which is computed once for all policies that leave a pass
        as it is."""
        cache = self._subject.cache(policy)
        if policy.sees_attention or self._plan.prefill_chunk or not policy.is_exact_in_pass:
            _prefill(self._subject, policy, cache, self._context, self._plan, keep=1)
        else:
            for layer, kv in zip(cache.layers, self._recorded, strict=True):
                layer.update(*(each.to(self._subject.device) for each in kv))
        return cache

    @cached_property
    def _recorded(self) -> list[KeysValues]:
        """In the host's memory: those of all facts are held at once."""
        full = Full()
        cache = self._subject.cache(full)
        _prefill(self._subject, full, cache, self._context, self._plan, keep=1)
        layers = (layer for layer in cache.layers if isinstance(layer, FullLayer))
        return [KeysValues(*(each.cpu() for each in layer.kv)) for layer in layers if layer.kv]


def measured(
    subject: Subject,
    policy: KvPolicy,
    text: Tensor,
    needles: Sequence[NeedlePrompt],
    *,
    plan: PolicyPlan,
    reference: ForcedText,
) -> PolicyMeasurement:
    """Everything of one repeat, against the full cache's `reference` on the same text. Without
    needles nothing is said of meaning: the model has none."""
    found = forced(subject, policy, text, plan)
    kl, agreement = _fidelity(reference.logits, found.logits)
    if not isfinite(kl + found.prefill_nats + found.decode_nats):
        raise PolicyError(f"policy {policy.label}: what the model says is no number any more")
    prefill_s, peak = _speed(subject, policy, text, plan)
    recalled = sum(each.is_recalled(policy) for each in needles)
    has_meaning, moved, disk = bool(needles), found.decode_traffic, found.disk_traffic
    return PolicyMeasurement(
        perplexity_prefill=perplexity(found.prefill_nats) if has_meaning else None,
        perplexity_decode=perplexity(found.decode_nats) if has_meaning else None,
        kl_nats=kl,
        top1_agreement=agreement,
        recalled=recalled if has_meaning else None,
        asked=len(needles) if has_meaning else None,
        kv_bytes=found.kv_bytes,
        slow_kv_bytes=found.slow_bytes,
        moved_bytes_per_token=moved.moved_bytes / plan.generate_tokens,
        miss_ms=moved.block_ms,
        disk_kv_bytes=found.disk_bytes,
        disk_bytes_per_token=disk.moved_bytes / plan.generate_tokens,
        disk_miss_ms=disk.block_ms,
        peak_memory_bytes=peak,
        ttft_ms=1000 * prefill_s,
        prefill_ms_per_token=1000 * prefill_s / (plan.batch * plan.prompt_tokens),
        decode_ms_per_token=1000 * found.decode_s / plan.generate_tokens,
    )


def perplexity(nats: float) -> float:
    """Of a mean negative log likelihood, as far as floats go."""
    return exp(min(nats, MOST_NATS))


def _prefill(
    subject: Subject,
    policy: KvPolicy,
    cache: PolicyCache,
    prompt: Tensor,
    plan: PolicyPlan,
    keep: int,
) -> Tensor:
    """Logits of the last `keep` tokens of each pass, 0 for all."""
    chunks = torch.split(prompt, plan.prefill_chunk or prompt.shape[1], dim=1)
    return torch.cat([subject.read(each, cache, policy, last=keep) for each in chunks], dim=1)


def _speed(
    subject: Subject, policy: KvPolicy, text: Tensor, plan: PolicyPlan
) -> tuple[float, int | None]:
    """Seconds to the first token, and the peak of memory with some decode steps after it."""
    prompt = text[:, : plan.prompt_tokens]

    def first_tokens() -> float:
        cache = subject.cache(policy)
        since = clock_s(subject.device)
        ahead = _prefill(subject, policy, cache, prompt, plan, keep=1)[:, -1:].argmax(-1)
        prefill_s = clock_s(subject.device) - since
        for _ in range(SPEED_STEPS):
            ahead = subject.read(ahead, cache, policy, last=1).argmax(-1)
        return prefill_s

    return peak_of(subject.device, first_tokens)


def _nats(logits: Tensor, tokens: Tensor) -> float:
    """Mean negative log likelihood of tokens, some positions at a time."""
    flat, wanted = logits.flatten(0, 1), tokens.flatten().to(logits.device)
    total = 0.0
    for start in range(0, len(wanted), POSITIONS_AT_ONCE):
        part = slice(start, start + POSITIONS_AT_ONCE)
        total += float(cross_entropy(flat[part].float(), wanted[part], reduction="sum"))
    return total / len(wanted)


def _fidelity(reference: Tensor, found: Tensor) -> tuple[float, float]:
    """KL in nats a token from the reference's distribution to the found one, and the share of
    positions with the same most probable token."""
    before, after = reference.flatten(0, 1), found.flatten(0, 1)
    nats, same = 0.0, 0
    for start in range(0, len(before), POSITIONS_AT_ONCE):
        part = slice(start, start + POSITIONS_AT_ONCE)
        wanted, said = (each[part].float().log_softmax(-1) for each in (before, after))
        nats += float(kl_div(said, wanted, reduction="sum", log_target=True))
        same += int((wanted.argmax(-1) == said.argmax(-1)).sum())
    return max(0.0, nats / len(before)), same / len(before)
