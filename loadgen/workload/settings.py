"""What a user may choose about the workload, checked once where it enters."""

import math
import re
from dataclasses import dataclass
from hashlib import blake2b
from typing import Self

from loadgen.errors import UsageError

MAX_CONTEXTS = 10_000_000
MAX_TOKENS = 10_000_000
# One block of the usual KV cache: shorter contexts cannot be told apart by the engine.
MIN_CONTEXT_TOKENS = 16

_SPAN = re.compile(r"\s*([0-9]{1,9})\s*(?:-\s*([0-9]{1,9})\s*)?")
_CONTEXTS = f"from 1 to {MAX_CONTEXTS}"


@dataclass(frozen=True, slots=True)
class Span:
    """A range of whole numbers, both ends included."""

    low: int
    high: int

    @classmethod
    def parse(cls, text: str, name: str) -> Self:
        """Read `800` or `200-800`; `name` is the option an error speaks of.

        Raises UsageError.
        """
        match = _SPAN.fullmatch(text)
        if match is None:
            raise UsageError(f"{name} {text!r} is no number or range: write 800 or 200-800")
        low = int(match[1])
        span = cls(low, int(match[2]) if match[2] else low)
        span.check(name, least=1)
        return span

    def check(self, name: str, least: int) -> None:
        """Raise UsageError unless `least` <= low <= high <= MAX_TOKENS."""
        if not least <= self.low <= self.high <= MAX_TOKENS:
            raise UsageError(
                f"{name} {self} is out of range: from {least} to {MAX_TOKENS} tokens, low end first"
            )

    def pick(self, number: int) -> int:
        """The member of the range that a large random number stands for."""
        return self.low + number % (self.high - self.low + 1)

    def __str__(self) -> str:
        return str(self.low) if self.low == self.high else f"{self.low}-{self.high}"


@dataclass(frozen=True, slots=True)
class WorkloadSettings:
    """How diverse, how local and how long the requests of a run are.

    `zipf` is the exponent of the contexts' popularity (0: all equal), `stickiness` the
    probability that the next request keeps the context, `repeat` the probability that an old
    request returns unchanged. Without `context_tokens` a document is used whole. All prompts begin
    with the same `system_tokens`. Raises UsageError for what is out of range. `repeat` stays below
    1, where the first prompt would be the only one.
    """

    seed: int = 0
    contexts: int = 8
    zipf: float = 0.0
    stickiness: float = 0.0
    repeat: float = 0.0
    context_tokens: Span | None = None
    output_tokens: Span = Span(16, 16)
    system_tokens: int = 0

    def __post_init__(self) -> None:
        _require("--contexts", self.contexts, 1 <= self.contexts <= MAX_CONTEXTS, _CONTEXTS)
        _require("--zipf", self.zipf, 0 <= self.zipf < math.inf, "from 0 on")
        _require("--stickiness", self.stickiness, 0 <= self.stickiness <= 1, "from 0 to 1")
        _require("--repeat", self.repeat, 0 <= self.repeat < 1, "from 0 to below 1")
        system = self.system_tokens
        _require("--system-tokens", system, 0 <= system <= MAX_TOKENS, f"from 0 to {MAX_TOKENS}")
        self.output_tokens.check("--output-tokens", least=1)
        if self.context_tokens is not None:
            self.context_tokens.check("--context-tokens", least=MIN_CONTEXT_TOKENS)


def _require(name: str, value: float, allowed: bool, text: str) -> None:
    if not allowed:
        raise UsageError(f"{name} {value} is out of range: give a value {text}")


def random_bits(seed: int, purpose: str, index: int) -> int:
    """64 random bits that depend on the arguments alone, not on what was asked for before."""
    key = f"{seed}/{purpose}/{index}".encode()
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "big")
