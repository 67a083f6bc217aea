"""How few tokens any order computes in the random cases, and which musts exclude each other."""

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from scheduler_markdown import table
from scheduler_study_reach import BOTH, PASSES, SEARCH_STEPS, TOKENS, TRIED_SEEDS
from scheduler_study_rows import (
    ALIKE,
    MUCH_WORSE,
    OURS,
    SGLANG,
    STOCK,
    WORSE,
    StudyRow,
    by_case,
    geometric_mean,
    ratios,
    share_above,
)

Case = Mapping[str, StudyRow]
"""The rows of a case by order."""
METRIC_NAMES = {"tokens": "tokens", "mean_s": "mean", "p99_s": "p99"}
MOST_TOGETHER = 0.03 + 0.08
"""In so many cases a mean may be worse than lpm's or a p99 worse than stock's."""


def limits(rows: Sequence[StudyRow]) -> str:
    """The section of the page."""
    cases = by_case(rows)
    tried = [case for case in cases if set(PASSES) <= set(case)]
    if not tried:
        return ""
    return "\n\n".join(
        (
            "## How far any order gets: fewer tokens",
            _fewer_tokens(cases, tried),
            _tokens_table(tried),
            "The bound lets no order be idle at other moments than vLLM's, computes each block once"
            " between two such moments, and forgets what the cache cannot hold over them. Between"
            " the bound and the best of the orders tried nothing is known.",
            "## Musts that exclude each other: lpm's mean and vLLM's order",
            _excluded(cases),
            _passing_table(tried),
            "A request may pass the oldest so often for a longer cached prefix, though that saves"
            f" nothing; otherwise as `{OURS}`. {_together(tried)}",
            "## How often any order keeps lpm's figures and vLLM's p99",
            _kept_table(tried),
            f"Of the same {len(tried)} cases. An order may be another in each case, chosen by its"
            " result, and is vLLM's where all fits; the musts ask for 97 %. What no order tried"
            " has is no proof that none could, but the number to be beaten.",
        )
    )


def _fewer_tokens(cases: Sequence[Case], tried: Sequence[Case]) -> str:
    nothing = _share(cases, lambda case: _bound(case) > ALIKE)
    orders = max(len(case) for case in tried)
    return (
        f"In {nothing:.1%} of all cases the bound is vLLM's own figure: nothing can be gained. In"
        f" the {len(tried)} cases of every {TRIED_SEEDS}th seed the best of up to {orders} orders,"
        " chosen for each case by its result, computes"
        f" {_mean(tried, _fewest):.3f} of vLLM's tokens, `{OURS}`"
        f" {_mean(tried, _ours):.3f}.{_of_search(tried)}"
    )


def _of_search(tried: Sequence[Case]) -> str:
    searched = [case for case in tried if TOKENS in case]
    if not searched:
        return ""
    before = _mean(searched, partial(_fewest, searched=False))
    return (
        f" In {len(searched)} of them the best was above its bound; {SEARCH_STEPS} random changes"
        f" to that order brought these from {before:.3f} to {_mean(searched, _fewest):.3f}."
    )


def _tokens_table(tried: Sequence[Case]) -> str:
    loads = sorted({case[STOCK].load for case in tried}, key=lambda load: load or 0.0)
    parts = {f"{load or 'burst'}": [c for c in tried if c[STOCK].load == load] for load in loads}
    open_to_gain = [case for case in tried if _bound(case) <= ALIKE]
    parts |= {"all": list(tried), "all that can gain": open_to_gain}
    head = ("load", "cases", "bound", "best of all orders", OURS, SGLANG)
    lines = [
        (
            name,
            f"{len(own)}",
            *(f"{_mean(own, each):.3f}" for each in (_bound, _fewest, _ours, _lpm)),
        )
        for name, own in parts.items()
        if own
    ]
    return table(head, lines)


def _excluded(cases: Sequence[Case]) -> str:
    means, tails = (
        _share(
            cases,
            lambda case, metric=metric: (
                case[STOCK].fits
                and getattr(case[STOCK], metric) > WORSE * getattr(case[SGLANG], metric)
            ),
        )
        for metric in ("mean_s", "p99_s")
    )
    theirs = [case[SGLANG].p99_s / case[STOCK].p99_s for case in cases]
    return (
        "Where all fits, the order must be vLLM's, decision for decision. In"
        f" {means:.1%} of all cases it all fits and vLLM's mean is more than 3 % above lpm's; in"
        f" {tails:.1%} its p99 is. So no order that keeps this must is within 3 % of lpm's mean in"
        f" more than {1 - means:.1%} of the cases, or of its p99 in more than {1 - tails:.1%}. lpm"
        f" itself has a p99 more than 3 % above vLLM's in {share_above(theirs, WORSE):.1%}, more"
        f" than 25 % in {share_above(theirs, MUCH_WORSE):.1%}, where 8 % and 1 % are allowed."
        f" Of tokens it computes more than 3 % fewer than `{OURS}` in"
        f" {_share(cases, lambda case: _ours(case) > WORSE * _lpm(case)):.1%} of the cases, more"
        f" than 3 % more in {_share(cases, lambda case: _lpm(case) > WORSE * _ours(case)):.1%}."
    )


def _passing_table(tried: Sequence[Case]) -> str:
    rows = [row for case in tried for row in case.values()]
    head = ("passing", "mean > 3 % above lpm's", "p99 > 3 % above vLLM's", "> 25 %", "tokens")
    lines = []
    for name, order in {"never": OURS, **{name: name for name in PASSES}, SGLANG: SGLANG}.items():
        tails = ratios(rows, order, STOCK, "p99_s")
        shares = (
            share_above(ratios(rows, order, SGLANG, "mean_s"), WORSE),
            share_above(tails, WORSE),
            share_above(tails, MUCH_WORSE),
        )
        tokens = geometric_mean(ratios(rows, order, STOCK, "tokens"))
        lines.append((name, *(f"{share:.1%}" for share in shares), f"{tokens:.3f}"))
    return table(head, lines)


def _kept_table(tried: Sequence[Case]) -> str:
    head = ("within 3 % of lpm's", OURS, "some order tried", "which has vLLM's p99 too")
    lines = []
    for metric, name in METRIC_NAMES.items():
        kept = [[o for o in _allowed(case) if _keeps(case, o, metric)] for case in tried]
        shares = (
            _share(tried, partial(_keeps, order=OURS, metric=metric)),
            sum(map(bool, kept)) / len(tried),
            sum(any(_has_tail(c, o) for o in those) for c, those in zip(tried, kept, strict=True))
            / len(tried),
        )
        lines.append((name, *(f"{share:.1%}" for share in shares)))
    return table(head, lines)


def _together(tried: Sequence[Case]) -> str:
    neither = _share(tried, lambda case: not any(_has_both(case, order) for order in case))
    kept = _share(tried, lambda case: not any(_has_both(case, order) for order in _allowed(case)))
    return (
        f"In {neither:.1%} of these cases no order that was tried, searched ones included, is"
        f" within 3 % of both lpm's mean and vLLM's p99; with vLLM's order where all fits, in"
        f" {kept:.1%}."
        f" The musts allow {MOST_TOGETHER:.0%} together."
    )


def _has_both(case: Case, order: str) -> bool:
    return _keeps(case, order, "mean_s") and _has_tail(case, order)


def _keeps(case: Case, order: str, metric: str) -> bool:
    return bool(getattr(case[order], metric) <= WORSE * getattr(case[SGLANG], metric))


def _has_tail(case: Case, order: str) -> bool:
    return case[order].p99_s <= WORSE * case[STOCK].p99_s


def _allowed(case: Case) -> Sequence[str]:
    """Where all fits, vLLM's order alone."""
    return [STOCK] if case[STOCK].fits else list(case)


def _bound(case: Case) -> float:
    return case[STOCK].bound_tokens / case[STOCK].tokens


def _ours(case: Case) -> float:
    return case[OURS].tokens / case[STOCK].tokens


def _lpm(case: Case) -> float:
    return case[SGLANG].tokens / case[STOCK].tokens


def _fewest(case: Case, searched: bool = True) -> float:
    names = [name for name in case if searched or name not in (TOKENS, BOTH)]
    return min(case[name].tokens for name in names) / case[STOCK].tokens


def _mean(cases: Sequence[Case], value: Callable[[Case], float]) -> float:
    return geometric_mean(map(value, cases))


def _share(cases: Sequence[Case], holds: Callable[[Case], bool]) -> float:
    return sum(map(holds, cases)) / len(cases)
