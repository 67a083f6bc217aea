"""What an engine's cache did in a finished run, beside what is predicted for that run."""

from dataclasses import dataclass
from pathlib import Path

from loadgen.errors import UsageError
from loadgen.locality.curve import predict
from loadgen.locality.finished import recorded_run, trace_of_run
from loadgen.locality.kv_bytes import kv_bytes_per_token
from loadgen.runs.recorded import argument


@dataclass(frozen=True, slots=True)
class MeasuredRun:
    """A run with a cache of `tokens`. Both rates are of the engine's own cache, 0 to 1; the
    predicted one is that of the requests which this very run sent."""

    name: str
    tokens: int
    hit_rate: float
    predicted: float
    requests: int
    in_flight: int

    @property
    def error_points(self) -> float:
        """Predicted less measured, in percentage points."""
        return 100 * (self.predicted - self.hit_rate)


def measured_run(run: Path, tokenizer: str | None = None) -> MeasuredRun:
    """The run's point and the error of its prediction. Raises UsageError where the size of the
    cache or the hit rate is not known."""
    recorded = recorded_run(run)
    tokens = recorded.target.get("usable_tokens")
    hit_rate = (recorded.summary.get("server") or {}).get("hit_rate")
    if tokens is None:
        raise UsageError(
            f"{run} does not tell its cache size: measure with `kvswarm run --target … --kv-tokens`"
        )
    if "--no-enable-prefix-caching" in recorded.engine_argv:
        raise UsageError(f"{run} was measured on an engine without a prefix cache: leave it out")
    if hit_rate is None:
        raise UsageError(f"{run} has no hit rate of the engine in its summary.json: run it again")
    trace = trace_of_run(run, tokenizer)
    predicted = predict(trace, [int(tokens)]).points[0].hit_rate
    return MeasuredRun(
        name=str(run),
        tokens=int(tokens),
        hit_rate=float(hit_rate),
        predicted=predicted,
        requests=len(trace.chains),
        in_flight=trace.in_flight,
    )


def run_bytes_per_token(run: Path) -> int | None:
    """Bytes of cache for each token in this run's engine; None where its model is not known."""
    argv = recorded_run(run).engine_argv
    model = argument(argv, "--model")
    if model is None:
        return None
    given = (argument(argv, "--kv-cache-dtype"), argument(argv, "--dtype"))
    named = [dtype for dtype in given if dtype and dtype != "auto"]
    return kv_bytes_per_token(Path(model), *named[:1])
