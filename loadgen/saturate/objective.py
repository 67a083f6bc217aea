"""The service level that a load is to meet: `ttft_ms.p95<=500, errors<=0.1%`."""

import re
from dataclasses import dataclass, replace
from typing import Self

from loadgen.compare.gate import Limit, parse_limit
from loadgen.compare.metrics import Statistic
from loadgen.errors import UsageError
from loadgen.stats.metrics import CATALOG, compared, limited, of_requests
from loadgen.stats.slo import Slo

ERRORS = "errors"
DEFAULT_ERRORS = "errors<=1%"
GOODPUT = Statistic(replace(CATALOG["goodput_share"], name="goodput"))
_GOODPUT = re.compile(r"goodput\s*>=\s*(\d+(?:\.\d+)?)\s*%")
_OF_REQUESTS = tuple(each for each in of_requests() if each in compared())
_SPOKEN = re.compile(r"(p\d[\d.]*|mean)\s+(\w+)\s*(?=<=|>=)")


@dataclass(frozen=True, slots=True)
class Objective:
    """`limits` are all met or the load is too much. `request` is what a request must keep to count
    for the limit on goodput, None where there is no such limit."""

    limits: tuple[Limit, ...]
    request: Slo | None = None

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read limits as `kvswarm compare --gate` has them; `p95 ttft_ms<=500` says the same as
        `ttft_ms.p95<=500`. A limit without a statistic is one of single requests, of which
        `goodput>=95%` says how many must keep it. Errors are limited to 1 % where nothing is said.
        Raises UsageError.
        """
        parts = [_SPOKEN.sub(r"\2.\1", part.strip()) for part in text.split(",")]
        of_requests = [part for part in parts if _column(part) in limited()]
        limits = [slo_limit(part) for part in parts if part not in of_requests]
        _check(limits, of_requests)
        if all(limit.statistic.name != ERRORS for limit in limits):
            limits.append(parse_limit(DEFAULT_ERRORS))
        request = Slo.parse(",".join(of_requests)) if of_requests else None
        return cls(tuple(limits), request)

    @property
    def latency(self) -> Limit | None:
        """The first limit on a percentile or a mean, which pictures show."""
        return next((limit for limit in self.limits if limit.statistic.of_values), None)

    def __str__(self) -> str:
        each = [limit.text for limit in self.limits]
        return ", ".join([*([str(self.request)] if self.request else []), *each])


def _column(part: str) -> str:
    return part.partition("<=")[0].strip()


def slo_limit(part: str) -> Limit:
    """One part of an objective. Raises UsageError."""
    try:
        limit = parse_limit(part)
    except UsageError as error:
        said = str(error).replace("--gate", "--slo").replace("<=+10%", "<=500")
        raise UsageError(said if "--slo" in said else f"--slo: {said}") from None
    if found := _GOODPUT.fullmatch(part):
        return replace(limit, statistic=GOODPUT, text=f"goodput>={found[1]}%")
    _check_limit(limit)
    return limit


def _check_limit(limit: Limit) -> None:
    name = limit.statistic.metric.name
    if limit.kind != "value":
        raise UsageError(
            f"--slo: {limit.text} is a change, there is no other run: leave + or - out"
        )
    if name != ERRORS and name not in _OF_REQUESTS:
        raise UsageError(
            f"--slo: {name} is not for this: limit {', '.join(_OF_REQUESTS)}, errors, goodput"
        )
    if not limit.at_most:
        raise UsageError(f"--slo: {limit.text} would want more of it: write {name} with <=")


def _check(limits: list[Limit], of_requests: list[str]) -> None:
    names = [limit.statistic.name for limit in limits]
    for name in names:
        if names.count(name) > 1:
            raise UsageError(f"--slo limits {name} twice: keep one of them")
    has_goodput = GOODPUT.name in names
    if of_requests and not has_goodput:
        raise UsageError(
            f"--slo: {of_requests[0]} is of single requests: add goodput>=95%, the share that must"
            f" keep it, or write {_column(of_requests[0])}.p95"
        )
    if has_goodput and not of_requests:
        raise UsageError("--slo: goodput of which requests? Add their limits, as ttft_ms<=500")
