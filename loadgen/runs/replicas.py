"""Which of several engines behind a router answered what, and what the death of one cost, by a
run's rows and their counters."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from loadgen.runs.columns import Texts
from loadgen.runs.requests import Requests
from loadgen.stats.server_counters import Figures

OF_ENGINE = (
    "computed_prompt_tokens",
    "cached_prompt_tokens",
    "external_prompt_tokens",
    "hit_rate",
    "generation_tokens",
    "num_preemptions",
    "peak_running",
    "peak_waiting",
)
MOST_LATE_S = 10.0
"""A death is noted some time after requests fail of it: a large process takes seconds to exit."""
LAST_BYTES_S = 0.25
"""A last reply may end a little after others have failed."""
MOST_NAMES = 64
"""Of engines that nobody but the host tells of."""
NO_FAILURES = ("ok", "cancelled", "timeout")
"""Outcomes that no death is blamed for: a living engine lets requests wait too."""


def replica_figures(
    requests: Requests | None, engines: Mapping[str, Figures]
) -> dict[str, Any] | None:
    """`replicas` of a summary: figures of each engine by its name; None where there is but one, or
    more names than engines have: one for each request.

    `requests` of an engine, its `share` of all that were answered and how many `contexts` it saw
    are by the rows. `context_affinity` is the share of requests that went to the engine which got
    most of their context: 1 where each context has one engine.
    """
    answered = None if requests is None else _answered(requests)
    names = list(engines) or ([] if answered is None else _names(answered.text("engine")))
    if len(names) < 2 or (not engines and len(names) > MOST_NAMES):
        return None
    rows = {name: _rows_of(answered, name) for name in names}
    return {
        "context_affinity": None if answered is None else _affinity(answered),
        "engines": {
            name: {**rows[name], **{figure: told.get(figure) for figure in OF_ENGINE}}
            for name in names
            for told in (engines.get(name, {}),)
        },
    }


def _answered(requests: Requests) -> Requests | None:
    """Those of which it is known who answered them."""
    known = ~requests.text("engine").among("")
    return requests.taken(known) if known.any() else None


def _names(engine: Texts) -> list[str]:
    return sorted({engine.names[code] for code in engine.codes.tolist()})


def _rows_of(answered: Requests | None, name: str) -> dict[str, Any]:
    if answered is None:
        return {"requests": None, "share": None, "contexts": None}
    own = answered.text("engine").among(name)
    contexts = len(set(answered.context.codes[own].tolist()))
    return {"requests": int(own.sum()), "share": float(own.mean()), "contexts": contexts}


def _affinity(answered: Requests) -> float:
    engine, context = answered.text("engine"), answered.context
    codes = context.codes.astype(np.int64) * len(engine.names) + engine.codes
    pairs, counts = np.unique(codes, return_counts=True)
    most = np.zeros(len(context.names), dtype=np.int64)
    np.maximum.at(most, pairs // len(engine.names), counts)
    return float(most.sum() / counts.sum())


def engine_deaths(
    requests: Requests | None, deaths: Sequence[tuple[str, float, str]]
) -> list[dict[str, Any]]:
    """`engine_deaths` of a summary, of engines with the second of the run at which the death of
    each was noted and its reason, in the order of time.

    A request `failed` because of a death where it ended as none of `NO_FAILURES`, after the last
    `ok` reply of that engine and before that of the next one to die, and no living engine answered
    it: the dead one did, or the router for it. The first of these is the death, `at_s`, where it
    came before the death was noted. `served_again_s` is from the death to the end of the first `ok`
    request that ended after the last of these, or after the death where there are none. None is not
    known, or that there is none.
    """
    if requests is None:
        costs = [{"at_s": at_s, "failed": None, "served_again_s": None} for _, at_s, _ in deaths]
    else:
        costs = [*_costs(requests, [(engine, at_s) for engine, at_s, _ in deaths])]
    return [
        {"engine": engine, "reason": reason, **cost}
        for (engine, _, reason), cost in zip(deaths, costs, strict=True)
    ]


def _costs(requests: Requests, deaths: Sequence[tuple[str, float]]) -> Iterator[dict[str, Any]]:
    end_s, engine = requests.end_s, requests.text("engine")
    fails = ~requests.text("outcome").among(*NO_FAILURES)
    before_s = (-math.inf, *(noted_s for _, noted_s in deaths))
    begin_s = [
        max(_lived_s(requests, *death), earlier_s)
        for death, earlier_s in zip(deaths, before_s, strict=False)
    ]
    for number, (_, noted_s) in enumerate(deaths):
        dead = [name for name, _ in deaths[: number + 1]]
        is_then = (end_s >= begin_s[number]) & (end_s < [*begin_s, math.inf][number + 1])
        failed_s = end_s[is_then & fails & engine.among("", *dead)]
        at_s = float(failed_s.min(initial=noted_s))
        served_s = end_s[requests.ok & (end_s > failed_s.max(initial=at_s))]
        again_s = float(served_s.min()) - at_s if len(served_s) else None
        yield {"at_s": at_s, "failed": len(failed_s), "served_again_s": again_s}


def _lived_s(requests: Requests, engine: str, noted_s: float) -> float:
    """Until when it certainly lived."""
    served = requests.ok & requests.text("engine").among(engine)
    last_s = requests.end_s[served].max(initial=noted_s - MOST_LATE_S)
    return min(float(last_s) - LAST_BYTES_S, noted_s)
