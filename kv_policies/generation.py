"""transformers' generate() with a KV cache and without, alone and in static batches.

One generation of the longest length tells of all shorter ones: each token is stamped.
"""

import statistics
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from kv_policies.device import clock_s, peak_of
from kv_policies.policy import PolicyError, require_size

LAST_STEPS = 8
"""A step's time at a length is the median of so many before it."""
WARM_UP_TOKENS = 2


@dataclass(frozen=True, slots=True)
class GenerationPlan:
    """Lengths in tokens. Generated lengths are measured after the shortest prompt, prompts with
    the shortest generated length; batches with a cache, after `batch_prompt` tokens."""

    generated: tuple[int, ...] = (200, 500, 1000)
    prompts: tuple[int, ...] = (64, 256, 512)
    batches: tuple[int, ...] = (1, 2, 4, 8, 16, 32, 64)
    batch_prompt: int = 64
    batch_generated: int = 32
    repeats: int = 2

    def __post_init__(self) -> None:
        if not (self.generated and self.prompts and self.batches):
            raise PolicyError("a ladder takes one length of each kind at least")
        for value in (*self.prompts, *self.batches, self.batch_prompt):
            require_size("a length or batch of", value)
        for value in (*self.generated, self.batch_generated):
            require_size("a generated length of", value, 2)
        require_size("repeats", self.repeats)

    @property
    def pairs(self) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Prompts, and up to which generated lengths each is measured."""
        shortest, least = min(self.prompts), min(self.generated)
        for prompt in sorted(self.prompts):
            yield prompt, tuple(sorted(self.generated)) if prompt == shortest else (least,)


@dataclass(frozen=True, slots=True)
class GenerationRow:
    """One text: `seconds` from the call to the last token, and `step_ms` of a token there. A cache
    holds `kv_bytes` then, 0 without."""

    has_cache: bool
    prompt_tokens: int
    generated_tokens: int
    seconds: float
    step_ms: float
    kv_bytes: int


@dataclass(frozen=True, slots=True)
class BatchRow:
    """So many texts in one call: `step_ms` gives each of them a token. `peak_bytes` is what the
    call took beside the model, None where nobody counts it."""

    batch: int
    prompt_tokens: int
    generated_tokens: int
    seconds: float
    step_ms: float
    kv_bytes: int
    peak_bytes: int | None

    @property
    def tokens_per_s(self) -> float:
        """Generated, of all texts together."""
        return self.batch * self.generated_tokens / self.seconds


def measure_generation(model: PreTrainedModel, plan: GenerationPlan) -> Iterator[GenerationRow]:
    """Every prompt and generated length, with the cache and without."""
    for has_cache in (True, False):
        _generated(model, random_tokens(model, 1, min(plan.prompts)), WARM_UP_TOKENS, has_cache)
        for prompt, lengths in plan.pairs:
            tokens = random_tokens(model, 1, prompt)
            made = [_generated(model, tokens, max(lengths), has_cache) for _ in range(plan.repeats)]
            for length in lengths:
                yield GenerationRow(
                    has_cache,
                    prompt,
                    length,
                    statistics.median(each.stamps_s[length - 1] for each in made),
                    statistics.median(each.step_ms(length) for each in made),
                    _kv_bytes_at(made[0], prompt, length),
                )


def measure_batches(model: PreTrainedModel, plan: GenerationPlan) -> Iterator[BatchRow]:
    """Static batches of texts of one length, with the cache."""
    for batch in plan.batches:
        tokens = random_tokens(model, batch, plan.batch_prompt)
        call = partial(_generated, model, tokens, plan.batch_generated, True)
        call()
        peaks, made = [], []
        for _ in range(plan.repeats):
            found, peak = peak_of(model.device, call)
            made.append(found)
            peaks.append(peak)
        known = [peak for peak in peaks if peak is not None]
        yield BatchRow(
            batch,
            plan.batch_prompt,
            plan.batch_generated,
            statistics.median(each.stamps_s[-1] for each in made),
            statistics.median(each.step_ms(plan.batch_generated) for each in made),
            made[0].kv_bytes,
            max(known, default=None),
        )


def random_tokens(model: PreTrainedModel, batch: int, tokens: int) -> Tensor:
    """[batch, tokens] of the model's vocabulary; the same for the same size."""
    vocabulary = model.config.get_text_config(decoder=True).vocab_size
    seeded = torch.Generator().manual_seed(tokens)
    return torch.randint(vocabulary, (batch, tokens), generator=seeded).to(model.device)


def held_bytes(layers: Iterable[object]) -> int:
    """Of the keys and values in layers of a cache."""
    tensors = (getattr(layer, name, None) for layer in layers for name in ("keys", "values"))
    return sum(each.nbytes for each in tensors if isinstance(each, Tensor))


@dataclass(frozen=True, slots=True)
class _Generated:
    """When each token was there, in seconds from the call, and what the cache held at the end."""

    stamps_s: Sequence[float]
    kv_bytes: int

    def step_ms(self, length: int) -> float:
        first = max(1, length - LAST_STEPS)
        steps = [self.stamps_s[at] - self.stamps_s[at - 1] for at in range(first, length)]
        return 1000 * statistics.median(steps)


class _TokenClock:
    """Stamps what generate() streams: first the prompt, then token by token."""

    def __init__(self) -> None:
        self.stamps_s: list[float] = []

    def put(self, value: Tensor) -> None:
        self.stamps_s.append(time.perf_counter())

    def end(self) -> None:
        pass


def _generated(model: PreTrainedModel, tokens: Tensor, length: int, has_cache: bool) -> _Generated:
    """Greedy, of exactly this length."""
    clock, cache = _TokenClock(), DynamicCache(config=model.config)
    since_s = clock_s(model.device)
    with torch.inference_mode():
        model.generate(
            tokens,
            attention_mask=torch.ones_like(tokens),
            max_new_tokens=length,
            min_new_tokens=length,
            do_sample=False,
            use_cache=has_cache,
            streamer=clock,
            pad_token_id=0,
            **({"past_key_values": cache} if has_cache else {}),
        )
    stamps_s = [each - since_s for each in clock.stamps_s[1:]]
    return _Generated(stamps_s, held_bytes(cache.layers))


def _kv_bytes_at(made: _Generated, prompt: int, length: int) -> int:
    """At an earlier length; the last token is never read, and so not held."""
    return made.kv_bytes * (prompt + length - 1) // (prompt + len(made.stamps_s) - 1)
