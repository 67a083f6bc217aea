"""Step times of a server, from nothing but what its clients recorded.

Whatever the times of steps are, the scheduler says which steps lie between the arrival of a request
and its first or last token. For given times it is simulated; the latencies are then a line in the
times, which least squares without negative parts (Lawson and Hanson 1974) fit; with the times found
it is simulated again, until they stay. Residuals far out count less.
"""

from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from loadgen.errors import UsageError
from loadgen.locality.trace_sources import recorded_run
from loadgen.runs.columns import Floats
from loadgen.runs.recorded import RecordedRun, argument
from loadgen.twin.engine import EngineShape
from loadgen.twin.ledger import EngineLedger
from loadgen.twin.load import RecordedLoad, recorded_load
from loadgen.twin.model import FrontTime, TwinModel, add_lengths
from loadgen.twin.serve import ServedLoad, TwinServer
from loadgen.twin.shape_of import CalibratedEngine, shape_of_run
from loadgen.twin.step_time import StepTime, parts

ROUNDS, RESAMPLES = 5, 60
FAR = 2.5
"""Residuals, in their median size, from which on they count less."""
LEAST_REQUESTS = 20
WINDOWS, WINDOW_REPLIES = 8, 10
"""Of a single run's time at most so many, in the order of sending, of so many replies or more."""
NAMES = tuple(f"step.{each.name}" for each in fields(StepTime)) + tuple(
    f"front.{each.name}" for each in fields(FrontTime)
)
OF_THE_SERVER = ("--model", "--dtype")
"""Flags of an engine by which the times of its steps differ."""
OF_THE_MACHINE = ("cpu", "cpus", "memory_gb")
"""What a machine keeps when its system is brought up to date."""
WHAT_TELLS = {
    "step.prefill_token_s": "prompts that are computed (more contexts than the cache holds)",
    "step.attended_s": "prompts of very different lengths (--context-tokens 300-8000)",
    "step.decode_s": "replies of some length, of many at once (--output-tokens 64 -u 16)",
    "step.context_token_s": "long replies behind long and short prompts",
    "front.prompt_token_s": "batches of long prompts that are cached",
}
"""Which requests tell a time that these leave open."""


@dataclass(frozen=True, slots=True)
class CalibrationRun:
    """A run with its requests and the engine it was made on."""

    path: Path
    load: RecordedLoad
    shape: EngineShape

    @classmethod
    def read(cls, path: Path) -> "CalibrationRun":
        """Raises UsageError."""
        if recorded_run(path).is_simulated:
            raise UsageError(f"{path} is simulated, which tells nothing of a server: leave it out")
        shape = shape_of_run(path)
        load = recorded_load(path, shape.block_size)
        if not load.measured:
            raise UsageError(f"{path} has no reply that counts: leave it out")
        return cls(path, load, shape)

    def serve(self, step: StepTime, front: FrontTime) -> ServedLoad:
        """Its requests on its twin."""
        return TwinServer(self.load, self.shape, step, front).serve()


def calibrate(paths: Sequence[Path]) -> TwinModel:
    """The twin of the server that these runs were made on. Raises UsageError."""
    _require_same_server(paths)
    runs = [CalibrationRun.read(path) for path in paths]
    known = sum(len(run.load.measured) for run in runs)
    if known < LEAST_REQUESTS:
        raise UsageError(f"{known} replies tell too little: give runs of {LEAST_REQUESTS} or more")
    step, front = StepTime(), FrontTime()
    rows: list[tuple[Floats, Floats]] = []
    for _ in range(ROUNDS):
        rows = [_rows(run, run.serve(step, front)) for run in runs]
        found = _fitted(np.concatenate([x for x, _ in rows]), np.concatenate([y for _, y in rows]))
        step, front = _times(found)
    factor = _mean_slowness(runs, step, front)
    step, front = _times(factor * found)
    times_s = [_times_s(run, run.serve(step, front)) for run in runs]
    samples = times_s if len(runs) > 1 else _windows(*times_s[0])
    speeds = np.array([_slowness(*each) for each in samples])
    errors = np.concatenate([np.abs(twin / measured - 1) for measured, twin in times_s])
    lengths: dict[str, tuple[int, int]] = {}
    for request in (each for run in runs for each in run.load.requests):
        add_lengths(lengths, request)
    return TwinModel(
        step=step,
        front=front,
        speed_sd=float(speeds.std(ddof=1)),
        runs=len(runs),
        windows=len(samples) if len(runs) == 1 else 0,
        error_share=float(np.median(errors)),
        intervals=_intervals(rows, factor),
        open_questions=tuple(_open(rows, found)),
        machine=str(recorded_run(paths[0]).description.get("machine", "")),
        engine=CalibratedEngine.of_run(paths[0]).to_json(),
        lengths=lengths,
    )


def _require_same_server(paths: Sequence[Path]) -> None:
    """Raise UsageError for a run that is given twice, and for runs of unlike machines or models, as
    far as they tell them. The sizes of their engines may differ."""
    known: dict[str, tuple[Path, object]] = {}
    for number, path in enumerate(paths):
        if path.resolve() in {other.resolve() for other in paths[:number]}:
            raise UsageError(f"{path} is given twice: name each run once")
        run = recorded_run(path)
        told: dict[str, object] = {"machine": _machine(run)}
        told |= {flag: argument(run.engine_argv, flag) for flag in OF_THE_SERVER}
        for name, value in told.items():
            other, usual = known.setdefault(name, (path, value)) if value else (path, value)
            if value != usual:
                raise UsageError(
                    f"{other} and {path} are not of the same server: their {name} differs"
                )


def _machine(run: RecordedRun) -> dict[str, object]:
    told = run.description.get("machine") or {}
    return {name: told[name] for name in OF_THE_MACHINE if name in told}


def _mean_slowness(runs: Sequence[CalibrationRun], step: StepTime, front: FrontTime) -> float:
    """By how much whole runs were slower than these times: the fit leans to the faster replies, as
    slow ones lie far out."""
    speeds = [_slowness(*_times_s(run, run.serve(step, front))) for run in runs]
    return float(np.exp(np.mean(speeds)))


def _times(found: Floats) -> tuple[StepTime, FrontTime]:
    count = len(fields(StepTime))
    return StepTime(*map(float, found[:count])), FrontTime(*map(float, found[count:]))


def _rows(run: CalibrationRun, served: ServedLoad) -> tuple[Floats, Floats]:
    """For each reply two rows, of its first and of its last token: what lay before it, and the
    seconds it took; both divided by the seconds, so that errors are relative."""
    work = _Work(served.ledger)
    x, y = [], []
    for each in served.requests:
        measured = run.load.measured.get(each.request.name)
        if measured is None:
            continue
        front = (each.front_requests, each.front_tokens, 1.0)
        late_s = each.end_s - served.ledger.finished_s[each.request.name]
        for end_s, took_s in (
            (each.first_token_s - late_s, measured.ttft_s),
            (each.end_s - late_s, measured.e2e_s),
        ):
            x.append(np.append(work.between(each.queued_s, end_s), front) / took_s)
            y.append(1.0)
    return np.array(x), np.array(y)


class _Work:
    """What the engine computed up to any moment, each part of its steps' times by itself."""

    def __init__(self, ledger: EngineLedger) -> None:
        done = [step for step in ledger.steps if any(parts(step.work))]
        knots = [edge for step in done for edge in (step.begins_s, step.ends_s)]
        sums = np.cumsum([parts(step.work) for step in done], axis=0)
        before = np.vstack((np.zeros(sums.shape[1]), sums[:-1]))
        self._knots = np.array(knots)
        self._values = np.stack((before, sums), axis=1).reshape(-1, sums.shape[1])

    def between(self, begin_s: float, end_s: float) -> Floats:
        """Of the steps between two moments; of one that was under way its share."""
        found = [
            np.interp((begin_s, end_s), self._knots, self._values[:, place])
            for place in range(self._values.shape[1])
        ]
        return np.array([end - begin for begin, end in found])


def _fitted(x: Floats, y: Floats) -> Floats:
    """Times without negative ones; residuals that are far out are taken less seriously."""
    weight = np.ones(len(y))
    found = np.zeros(x.shape[1])
    scale = np.maximum(np.abs(x).max(axis=0), 1e-12)
    for _ in range(4):
        root = np.sqrt(weight)
        found = nnls(x / scale * root[:, None], y * root)[0] / scale
        residual = np.abs(x @ found - y)
        middle = max(float(np.median(residual)), 1e-6)
        weight = np.minimum(1.0, FAR * middle / np.maximum(residual, 1e-12))
    return found


def _times_s(run: CalibrationRun, served: ServedLoad) -> tuple[Floats, Floats]:
    """Of each reply, as measured and on the twin, in the order of sending."""
    pairs = [
        (run.load.measured[each.request.name].e2e_s, each.e2e_s)
        for each in served.requests
        if each.request.name in run.load.measured
    ]
    measured, twin = np.array(pairs).T
    return measured, twin


def _slowness(measured: Floats, twin: Floats) -> float:
    """The logarithm of how much slower these were than on the twin."""
    return float(np.log(measured.mean() / twin.mean()))


def _windows(measured: Floats, twin: Floats) -> list[tuple[Floats, Floats]]:
    """The same, apart by windows of time."""
    count = min(WINDOWS, len(measured) // WINDOW_REPLIES)
    return list(zip(np.array_split(measured, count), np.array_split(twin, count), strict=True))


def _intervals(
    rows: Sequence[tuple[Floats, Floats]], factor: float
) -> dict[str, tuple[float, float]]:
    """90 % of each time, by bootstrap: over runs where there are several, else over replies."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(RESAMPLES):
        if len(rows) > 2:
            taken = [rows[at] for at in rng.integers(len(rows), size=len(rows))]
            x, y = (np.concatenate(side) for side in zip(*taken, strict=True))
        else:
            x, y = (np.concatenate(side) for side in zip(*rows, strict=True))
            which = rng.integers(len(y), size=len(y))
            x, y = x[which], y[which]
        found.append(_fitted(x, y))
    low, high = factor * np.quantile(found, (0.05, 0.95), axis=0)
    return {
        name: (float(at_least), float(at_most))
        for name, at_least, at_most in zip(NAMES, low, high, strict=True)
    }


def _open(rows: Sequence[tuple[Floats, Floats]], found: Floats) -> list[str]:
    """What these runs cannot tell: a part that hardly any of their time goes to."""
    share = np.concatenate([x for x, _ in rows]).mean(axis=0) * found
    return [
        f"{name}: {WHAT_TELLS[name]} would tell it"
        for name, each in zip(NAMES, share, strict=True)
        if name in WHAT_TELLS and each < 0.01
    ]


def shown_times(model: TwinModel) -> list[tuple[str, float, tuple[float, float]]]:
    """Each time in seconds that is more than 0, with its interval."""
    values = (*astuple(model.step), *astuple(model.front))
    return [
        (name, value, model.intervals[name])
        for name, value in zip(NAMES, values, strict=True)
        if value or model.intervals[name][1]
    ]
