"""Which of several engines behind a router answered what, by a run's rows and their counters."""

from collections.abc import Mapping
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


def replica_figures(
    requests: Requests | None, engines: Mapping[str, Figures]
) -> dict[str, Any] | None:
    """`replicas` of a summary: figures of each engine by its name; None where there is but one.

    `requests` of an engine, its `share` of all that were answered and how many `contexts` it saw
    are by the rows. `context_affinity` is the share of requests that went to the engine which got
    most of their context: 1 where each context has one engine.
    """
    answered = None if requests is None else _answered(requests)
    names = list(engines) or ([] if answered is None else _names(answered.text("engine")))
    if len(names) < 2:
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
    counts = np.zeros((len(context.names), len(engine.names)), dtype=np.int64)
    np.add.at(counts, (context.codes, engine.codes), 1)
    return float(counts.max(axis=1).sum() / counts.sum())
