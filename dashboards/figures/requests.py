"""The requests of a run as pictures need them: with a number, and so a colour, for each context."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from loadgen.runs.columns import Flags, Floats, Indices, Texts
from loadgen.runs.requests import Requests, span_of


@dataclass(frozen=True, slots=True)
class DrawnRequests:
    """Columns of one length in the order of sending; NaN is "not known" or "did not happen".

    `at_s` is when each was sent, else when it was due. `context` and `outcome` hold positions in
    `contexts` and `outcomes`; contexts stand in the order of their first appearance, and "" is
    that of a request without one.
    """

    at_s: Floats
    first_token_s: Floats
    end_s: Floats
    ttft_ms: Floats
    e2e_ms: Floats
    prompt_tokens: Floats
    cached_tokens: Floats
    output_tokens: Floats
    context: Indices
    contexts: tuple[str, ...]
    outcome: Indices
    outcomes: tuple[str, ...]
    late: Flags | None = None

    def __len__(self) -> int:
        return len(self.at_s)

    @property
    def ok(self) -> Flags:
        """Which of them ended `ok`."""
        if "ok" not in self.outcomes:
            return np.zeros(len(self), dtype=np.bool_)
        return np.asarray(self.outcome == self.outcomes.index("ok"))

    @property
    def timed(self) -> Flags:
        """Which have a latency that counts: late ones too, with what they had waited."""
        return self.ok if self.late is None else self.ok | self.late

    @property
    def service_order(self) -> Indices:
        """Positions of those that got a first token, in the order in which they got it."""
        served = np.flatnonzero(~np.isnan(self.first_token_s))
        return served[np.argsort(self.first_token_s[served], kind="stable")]

    @property
    def cached_share(self) -> Floats:
        """Cached over prompt tokens of each request, 0 to 1."""
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.asarray(self.cached_tokens / self.prompt_tokens)

    @property
    def span_s(self) -> tuple[float, float]:
        """From the first send to the last end; (0, 0) without requests."""
        return span_of(self.at_s, self.end_s)


def drawn(requests: Requests) -> DrawnRequests:
    """The requests of a run."""
    context, outcome = _appearing(requests.context), requests.text("outcome")
    names = ("first_token_s", "ttft_ms", "e2e_ms", "prompt_tokens", "output_tokens")
    return DrawnRequests(
        at_s=requests.at_s,
        end_s=requests.number("end_s"),
        cached_tokens=requests.cached_tokens,
        **{name: requests.at_least_ms(name) for name in names},
        context=context.codes,
        contexts=context.names,
        outcome=outcome.codes,
        outcomes=outcome.names,
        late=requests.is_late,
    )


def _appearing(text: Texts) -> Texts:
    """Numbered in the order of appearance, those that do not appear left out."""
    codes, first, inverse = np.unique(text.codes, return_index=True, return_inverse=True)
    order = np.argsort(first, kind="stable")
    rank = np.empty(len(order), dtype=np.intp)
    rank[order] = np.arange(len(order))
    names = tuple(text.names[code] for code in codes[order])
    return Texts(rank[inverse] if len(names) else text.codes, names)


def renumbered(runs: Sequence[DrawnRequests]) -> list[DrawnRequests]:
    """The same requests with contexts numbered alike in all of them, so that one context has one
    colour: by first appearance in the first run, then in the next."""
    names = list(dict.fromkeys(name for run in runs for name in run.contexts))
    place = {name: number for number, name in enumerate(names)}
    found = []
    for run in runs:
        numbers = np.asarray([place[name] for name in run.contexts], dtype=np.intp)
        context = numbers[run.context] if len(numbers) else run.context
        found.append(replace(run, context=context, contexts=tuple(names)))
    return found


def context_changes(order: Indices) -> int:
    """How often neighbours in a row of contexts differ."""
    return int(np.count_nonzero(order[1:] != order[:-1]))


def changes_by_chance(order: Indices) -> float:
    """How often they would differ on average, were the row in random order."""
    counts = np.bincount(order).astype(np.float64)
    return float(len(order) - (counts @ counts) / len(order)) if len(order) else 0.0
