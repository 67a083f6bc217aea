"""Which entries of a trace are replayed, how fast and how long."""

import hashlib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path

from loadgen.errors import UsageError
from loadgen.workload.trace.reader import MAX_TOKENS, TraceChanges, TraceEntry, read_trace

COMMON_SHARE = 0.5


@dataclass(frozen=True, slots=True)
class Selection:
    """A part of a trace, scaled.

    `speed` 2 replays twice as fast; `length_scale` multiplies every length and the blocks with
    them. Entries of more than `most_tokens` (prompt and reply, after scaling) are left out, and
    `limit` is how many of the others are replayed. Texts that a trace brings along are not scaled.
    Raises UsageError for what is out of range.
    """

    path: Path
    speed: float = 1.0
    length_scale: float = 1.0
    most_tokens: int | None = None
    limit: int | None = None

    def __post_init__(self) -> None:
        for name, count in (("max-tokens", self.most_tokens), ("limit", self.limit)):
            if count is not None and count < 1:
                raise UsageError(
                    f"--trace-{name} {count} is out of range: give 1 or more, 0 for all"
                )

    @property
    def sha256(self) -> str:
        """Of the whole trace, whatever is replayed of it."""
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    def entries(self, changes: TraceChanges | None = None) -> Iterator[TraceEntry]:
        """The entries in their order; times begin at 0 and never go back, which is counted in
        `changes`. Raises UsageError."""
        return islice(self._fitting(changes or TraceChanges()), self.limit)

    def _fitting(self, changes: TraceChanges) -> Iterator[TraceEntry]:
        first_s = last_s = None
        for entry in read_trace(self.path, changes):
            scaled = self._scaled(entry)
            if self.most_tokens and scaled.input_tokens + scaled.output_tokens > self.most_tokens:
                continue
            if entry.at_s is not None:
                first_s = entry.at_s if first_s is None else first_s
                # Logs of several machines may be a little out of order.
                at_s = (entry.at_s - first_s) / self.speed
                if at_s < (last_s or 0.0):
                    changes.came_late(((last_s or 0.0) - at_s) * self.speed)
                last_s = max(at_s, last_s or 0.0)
            yield replace(scaled, at_s=None if entry.at_s is None else last_s)

    def _scaled(self, entry: TraceEntry) -> TraceEntry:
        if self.length_scale == 1 or entry.prompt:
            return entry
        block_tokens = max(1, round(entry.block_tokens * self.length_scale))
        input_tokens = max(1, round(entry.input_tokens * self.length_scale))
        return replace(
            entry,
            input_tokens=max(input_tokens, (len(entry.block_ids) - 1) * block_tokens + 1),
            output_tokens=max(1, round(entry.output_tokens * self.length_scale)),
            block_tokens=block_tokens,
        )


@dataclass(frozen=True, slots=True)
class Survey:
    """What a whole selection adds up to, found before any of it is sent.

    `common` are the blocks that more than half of the entries share, as a system prompt; `changes`
    is how it differs from the trace. Where it `has_texts`, tokens are estimates.
    """

    entries: int
    has_times: bool
    duration_s: float
    longest_tokens: int
    common: frozenset[int]
    changes: TraceChanges = field(default_factory=TraceChanges)
    has_texts: bool = False


def survey(selection: Selection) -> Survey:
    """Read all of it once. Raises UsageError for a broken trace or one of which nothing is left."""
    count, untimed, texts, last_s, longest = 0, 0, 0, 0.0, 0
    seen: Counter[int] = Counter()
    changes = TraceChanges()
    for entry in selection.entries(changes):
        count += 1
        untimed += entry.at_s is None
        texts += bool(entry.prompt)
        last_s = entry.at_s or last_s
        longest = max(longest, entry.input_tokens + entry.output_tokens)
        seen.update(set(entry.block_ids))
    if not count:
        raise UsageError(
            f"{selection.path} leaves no request to replay: raise --trace-max-tokens, or give"
            " another trace"
        )
    if longest > MAX_TOKENS:
        raise UsageError(
            f"{selection.path} has a request of {longest} tokens: give --trace-max-tokens to leave"
            " it out, or a smaller --trace-length-scale"
        )
    common = frozenset(block for block, times in seen.items() if times > COMMON_SHARE * count)
    shared = common if count > 1 else frozenset[int]()
    return Survey(count, not untimed, last_s, longest, shared, changes, texts > 0)
