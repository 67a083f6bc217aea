"""What a twin says of a load on an engine of another size or order."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from loadgen.twin.engine import EngineShape
from loadgen.twin.load import RecordedLoad
from loadgen.twin.model import TwinModel
from loadgen.twin.routing import ROUTERS
from loadgen.twin.serve import ServedLoad, TwinServer

TIMES = ("ttft_mean_ms", "ttft_p50_ms", "ttft_p95_ms", "e2e_mean_ms")


@dataclass(frozen=True, slots=True)
class TwinPrediction:
    """Figures by name, as in a sweep's table, with what a run may differ by from a time."""

    figures: Mapping[str, float]
    intervals: Mapping[str, tuple[float, float]]
    served: ServedLoad


def predict_load(
    model: TwinModel, load: RecordedLoad, shape: EngineShape, replicas: int = 1, router: str = ""
) -> TwinPrediction:
    """Serve the load on the twin of an engine of this shape, or of so many behind a router of
    `ROUTERS`."""
    chosen = ROUTERS[router]() if router else None
    server = TwinServer(load, shape, model.step, model.front, replicas=replicas, router=chosen)
    served = server.serve()
    figures = figures_of(
        np.array([each.ttft_s for each in served.requests]),
        np.array([each.e2e_s for each in served.requests]),
        served.duration_s,
    )
    figures["computed_prompt_tokens"] = float(served.ledger.computed_tokens)
    intervals = {name: model.interval(figures[name]) for name in TIMES}
    if not load.is_open:
        intervals["requests_per_s"] = model.interval(figures["requests_per_s"])
    return TwinPrediction(figures, intervals, served)


def figures_of(
    ttft_s: NDArray[np.float64], e2e_s: NDArray[np.float64], duration_s: float
) -> dict[str, float]:
    """Of replies; percentiles as everywhere, between neighbouring ranks."""
    p50, p95 = np.quantile(ttft_s, (0.5, 0.95))
    return {
        "ttft_mean_ms": 1000 * float(ttft_s.mean()),
        "ttft_p50_ms": 1000 * float(p50),
        "ttft_p95_ms": 1000 * float(p95),
        "e2e_mean_ms": 1000 * float(e2e_s.mean()),
        "requests_per_s": len(ttft_s) / duration_s,
    }


def measured_figures(load: RecordedLoad, duration_s: float) -> dict[str, float]:
    """The same of what the run recorded."""
    known = list(load.measured.values())
    figures = figures_of(
        np.array([each.ttft_s for each in known]),
        np.array([each.e2e_s for each in known]),
        duration_s,
    )
    if load.computed_tokens is not None:
        figures["computed_prompt_tokens"] = float(load.computed_tokens)
    return figures
