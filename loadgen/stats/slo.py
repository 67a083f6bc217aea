"""A service level objective of single requests, and so what goodput counts."""

import math
import re
from dataclasses import dataclass
from typing import Self

from loadgen.client.failures import TIME_LIMITS
from loadgen.errors import UsageError
from loadgen.record import BETWEEN_TOKENS, RequestRecord
from loadgen.stats.metrics import limited
from loadgen.stats.token_gaps import count_open_gap, last_sign_s

_LIMIT = re.compile(r"\s*([a-z0-9_]+)\s*<=\s*([0-9.]+(?:e[0-9]+)?)\s*")


@dataclass(frozen=True, slots=True)
class Slo:
    """The most that each of some columns of a request may be, in ms.

    Goodput is the rate, or the share, of requests within it (Zhong et al., DistServe, OSDI 2024).
    """

    limits: tuple[tuple[str, float], ...]

    @classmethod
    def parse(cls, text: str, name: str = "--slo") -> Self:
        """Read `ttft_ms<=500,tpot_ms<=50`. Raises UsageError."""
        limits: dict[str, float] = {}
        for part in text.split(","):
            column, most_ms = _limit(part, name, text)
            if column in limits:
                raise UsageError(f"{name} {text!r} limits {column} twice: keep one of them")
            limits[column] = most_ms
        return cls(tuple(limits.items()))

    def is_met(self, record: RequestRecord) -> bool:
        """Whether the request ended `ok` and within every limit.

        An unknown figure keeps no limit: TPOT where the host counts no tokens, or keeps back all
        but one that it counts. One that there cannot be does: TPOT of a single token, retrieval
        without a service.
        """
        if record.outcome != "ok" or record.ttft_ms is None:
            return False
        return all(_keeps(record, name, most_ms) for name, most_ms in self.limits)

    def outwaited(self, record: RequestRecord, stalled_ms: float) -> str:
        """The first limit beyond which a request that was cut off was still waiting, else empty.

        `stalled_ms` is how long it had had nothing from the host.
        """
        for name, most_ms in self.limits:
            waited_ms = record.waited_ms(name) or 0.0
            if name == "itl_max_ms" and record.ttft_ms is not None:
                waited_ms = stalled_ms
            if waited_ms > most_ms:
                return f"{name}<={most_ms:g}"
        return ""

    def is_missed(self, record: RequestRecord) -> bool:
        """Whether what is known of a request that was cut off is beyond a limit."""
        return any((getattr(record, name) or 0.0) > most_ms for name, most_ms in self.limits)

    def __str__(self) -> str:
        return ",".join(f"{name}<={most_ms:g}" for name, most_ms in self.limits)


def _keeps(record: RequestRecord, name: str, most_ms: float) -> bool:
    value = getattr(record, name)
    if value is not None:
        return bool(value <= most_ms)
    if name in BETWEEN_TOKENS:
        tokens = record.output_tokens
        return tokens is not None and tokens < 2 and record.itl_mean_ms is None
    return name == "retrieval_ms"


USUAL_DRAIN_S = 30.0
AT_ONCE_S = 1.0
"""A 408 or 504 that comes sooner says nothing of how long a reply takes."""
TOO_LONG = "it had waited longer than"


@dataclass(frozen=True, slots=True)
class CutOffRule:
    """Which requests that were cut off had waited too long, so that their waiting counts.

    One whose own time was over had. The end of the run excuses what could still have been good,
    and a 408 or 504 may come at once, which is within `AT_ONCE_S`.

    One of these is late where the host had sent it nothing for longer than `patience_s`, which is
    the drain time, or where it was beyond a limit of the objective.
    """

    patience_s: float = USUAL_DRAIN_S
    slo: Slo | None = None

    @classmethod
    def of(cls, drain_s: float, max_silence_s: float, slo: Slo | None) -> Self:
        """That of a run, where 0 says that there is no such time."""
        return cls(min(drain_s or USUAL_DRAIN_S, max_silence_s or math.inf), slo)

    def judge_ended(self, record: RequestRecord, gaps_ms: list[float]) -> None:
        """Of a record of a request that the end of the run did not touch."""
        is_told = record.status in TIME_LIMITS
        has_waited = not is_told or self._outwaited(record, gaps_ms, AT_ONCE_S)
        if record.outcome == "timeout" and has_waited:
            record.late = True
            count_open_gap(record, gaps_ms)
        if self.slo is not None and record.outcome != "cancelled":
            record.slo_met = self.slo.is_met(record)

    def judge(self, record: RequestRecord, gaps_ms: list[float]) -> None:
        """Call a record of a request that the end of the run cut off a late one, where it is."""
        limit = self._outwaited(record, gaps_ms, self.patience_s)
        if limit:
            record.outcome, record.late = "timeout", True
            record.error = f"{record.error}: {TOO_LONG} {limit}"
            count_open_gap(record, gaps_ms)
        if limit or (self.slo is not None and self.slo.is_missed(record)):
            record.slo_met = None if self.slo is None else False

    def _outwaited(self, record: RequestRecord, gaps_ms: list[float], patience_s: float) -> str:
        """The limit beyond which the request was still waiting at its end, else empty."""
        stalled_s = record.end_s - last_sign_s(record, gaps_ms)
        limit = self.slo.outwaited(record, stalled_s * 1000) if self.slo is not None else ""
        return limit or (f"{patience_s:g} s" if stalled_s > patience_s else "")


def _limit(part: str, name: str, text: str) -> tuple[str, float]:
    match = _LIMIT.fullmatch(part)
    if match is None:
        raise UsageError(
            f"{name} {text!r} is no list of limits: write COLUMN<=MS, as ttft_ms<=500,tpot_ms<=50"
        )
    if match[1] not in limited():
        raise UsageError(f"{name} limits {match[1]!r}: choose among {', '.join(limited())}")
    try:
        most_ms = float(match[2])
    except ValueError:
        raise UsageError(f"{name} limits {match[1]} to {match[2]!r}: give a number of ms") from None
    if not 0 < most_ms < float("inf"):
        raise UsageError(f"{name} limits {match[1]} to {match[2]}: give a number of ms above 0")
    return match[1], most_ms
