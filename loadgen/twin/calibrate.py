"""Step times of a server, from nothing but what its clients recorded.

Whatever the times of steps are, the scheduler says which steps lie between the arrival of a request
and its first or last token. For given times it is simulated; the latencies are then a line in the
times, which least squares without negative parts (Lawson and Hanson 1974) fit; half way to the
times found it is simulated again, until they stay: in full steps, times that are too short and
queues that are too long take turns. Residuals far out count less.
"""

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields, replace
from pathlib import Path

import numpy as np
from scipy.optimize import nnls

from loadgen.compare.run import faults_of
from loadgen.errors import UsageError
from loadgen.locality.trace_sources import recorded_run
from loadgen.runs.columns import Floats
from loadgen.twin.engine import EngineShape
from loadgen.twin.ledger import EngineLedger
from loadgen.twin.load import RecordedLoad, recorded_load
from loadgen.twin.model import LEAST_LEFT_OUT, FrontTime, TwinModel, add_lengths
from loadgen.twin.predict import RATE, TIMES, figures_of
from loadgen.twin.routing import AsRecorded, Fleet
from loadgen.twin.serve import ServedLoad, ServedRequest, TwinServer
from loadgen.twin.shape_of import CalibratedEngine, server_of, shape_of_run
from loadgen.twin.step_time import StepTime, parts

ROUNDS, RESAMPLES = 10, 60
FAR = 2.5
"""Residuals, in their median size, from which on they count less."""
LEAST_REQUESTS = 20
WINDOWS, WINDOW_REPLIES = 8, 10
"""Of a single run's time at most so many, in the order of sending, of so many replies or more."""
NAMES = tuple(f"step.{each.name}" for each in fields(StepTime)) + tuple(
    f"front.{each.name}" for each in fields(FrontTime)
)
USUAL_OFF, MOST_OFF = 0.02, 0.1
"""How far computed tokens may be off: unsaid of the run's own, and at all of its prompts'."""
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
    """A run with its requests and the engines it was made on."""

    path: Path
    load: RecordedLoad
    shape: EngineShape
    fleet: Fleet

    @classmethod
    def read(cls, path: Path) -> "CalibrationRun":
        """Raises UsageError."""
        run = recorded_run(path)
        if run.is_simulated:
            raise UsageError(f"{path} is simulated, which tells nothing of a server: leave it out")
        for fault in faults_of(run.description, run.summary):
            raise UsageError(f"{path} is no witness of a server, {fault}: leave it out")
        shape = shape_of_run(path)
        load = recorded_load(path, shape.block_size)
        if not load.measured:
            raise UsageError(f"{path} has no reply that counts: leave it out")
        fleet = Fleet.of_run(run)
        if fleet.replicas > 1 and not load.places:
            raise UsageError(f"{path} does not tell which engine answered what: leave it out")
        return cls(path, load, shape, fleet)

    def serve(self, step: StepTime, front: FrontTime) -> ServedLoad:
        """Its requests on its twin, none sooner than it was sent: by times that are too short, ever
        fewer would be under way at once, and the times be fitted to another load than the run's."""
        load = replace(self.load, pace=replace(self.load.pace, keeps_due=True))
        router = AsRecorded(self.load.places) if self.fleet.replicas > 1 else None
        return TwinServer(load, self.shape, step, front, fleet=self.fleet, router=router).serve()

    def counted(self, served: ServedLoad) -> list[ServedRequest]:
        """Those of which there is a measured time."""
        return [each for each in served.requests if each.request.name in self.load.measured]


def calibrate(paths: Sequence[Path]) -> TwinModel:
    """The twin of the server that these runs were made on. Raises UsageError."""
    _require_same_server(paths)
    runs = [CalibrationRun.read(path) for path in paths]
    known = sum(len(run.load.measured) for run in runs)
    if known < LEAST_REQUESTS:
        raise UsageError(f"{known} replies tell too little: give runs of {LEAST_REQUESTS} or more")
    found = np.array([*astuple(StepTime()), *astuple(FrontTime())])
    rows: list[ReplyParts] = []
    for _ in range(ROUNDS):
        rows = [_parts_of(run, run.serve(*_times(found))) for run in runs]
        found = (found + _fitted(np.concatenate([each.parts for each in rows]))) / 2
    step, front = _times(found)
    steady = _steady(runs)
    factor = _mean_slowness([runs[at] for at in steady], step, front)
    step, front = _times(factor * found)
    served = [run.serve(step, front) for run in runs]
    times_s = [_times_s(*each) for each in zip(runs, served, strict=True)]
    samples = [times_s[at] for at in steady] if len(runs) > 1 else _windows(*times_s[0])
    speeds = np.array([_slowness(*each) for each in samples])
    otherwise = [_computed_otherwise(*each) for each in zip(runs, served, strict=True)]
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
        steady_runs=len(steady),
        figure_sd=_figure_sd(rows, steady, factor),
        replicas=runs[0].fleet.replicas,
        error_share=float(np.median(errors)),
        intervals=_intervals(rows, found, factor),
        open_questions=tuple(_open(rows, found)),
        machine=str(recorded_run(paths[0]).description.get("machine", "")),
        engine=CalibratedEngine.of_run(paths[0]).to_json(),
        lengths=lengths,
        otherwise=tuple(filter(None, otherwise)),
    )


@dataclass(frozen=True, slots=True)
class RunResiduals:
    """Of the replies of a run, in the order of sending: when each was sent, what its first and its
    last token took, and the same on the twin."""

    name: str
    sent_s: Floats
    ttft_s: Floats
    e2e_s: Floats
    twin_ttft_s: Floats
    twin_e2e_s: Floats


def residuals_of(model: TwinModel, paths: Sequence[Path]) -> list[RunResiduals]:
    """Of each run, one of those that the twin was made of or another. Raises UsageError."""
    found = []
    for run in map(CalibrationRun.read, paths):
        known = run.counted(run.serve(model.step, model.front))
        measured = [run.load.measured[each.request.name] for each in known]
        told = (
            [each.sent_s for each in measured],
            [each.ttft_s for each in measured],
            [each.e2e_s for each in measured],
            [each.ttft_s for each in known],
            [each.e2e_s for each in known],
        )
        order = np.argsort(told[0], kind="stable")
        found.append(RunResiduals(str(run.path), *(np.array(each)[order] for each in told)))
    return found


def _steady(runs: Sequence[CalibrationRun]) -> list[int]:
    """The places of the runs that tell how fast the server was: those whose users wait for replies,
    if there are two. In an open loop a little speed may be a long queue."""
    found = [at for at, run in enumerate(runs) if not run.load.pace.is_open]
    return found if len(found) > 1 else list(range(len(runs)))


def _require_same_server(paths: Sequence[Path]) -> None:
    """Raise UsageError for a run that is given twice, and for runs of unlike machines or models, as
    far as they tell them. The sizes of their engines may differ."""
    known: dict[str, tuple[Path, object]] = {}
    begun: dict[object, Path] = {}
    for number, path in enumerate(paths):
        if path.resolve() in {other.resolve() for other in paths[:number]}:
            raise UsageError(f"{path} is given twice: name each run once")
        run = recorded_run(path)
        start_unix_s = run.description.get("start_unix_s")
        if start_unix_s is not None and begun.setdefault(start_unix_s, path) is not path:
            raise UsageError(f"{begun[start_unix_s]} and {path} are the same run: name it once")
        told = {"number of engines": Fleet.of_run(run).replicas, **server_of(run)}
        for name, value in told.items():
            other, usual = known.setdefault(name, (path, value))
            if value != usual:
                raise UsageError(
                    f"{other} and {path} are not of the same server: their {name} differs"
                )


def _mean_slowness(runs: Sequence[CalibrationRun], step: StepTime, front: FrontTime) -> float:
    """By how much whole runs were slower than these times: the fit leans to the faster replies, as
    slow ones lie far out."""
    speeds = [_slowness(*_times_s(run, run.serve(step, front))) for run in runs]
    return float(np.exp(np.mean(speeds)))


def _times(found: Floats) -> tuple[StepTime, FrontTime]:
    count = len(fields(StepTime))
    return StepTime(*map(float, found[:count])), FrontTime(*map(float, found[count:]))


@dataclass(frozen=True, slots=True)
class ReplyParts:
    """Of a run: for each reply two rows, of its first and of its last token. `took_s` are the
    seconds until then, `parts` what lay before it, divided by them, so that errors are relative:
    by the times that are looked for they are to be 1."""

    parts: Floats
    took_s: Floats


def _parts_of(run: CalibrationRun, served: ServedLoad) -> ReplyParts:
    known = run.counted(served)
    measured = [run.load.measured[each.request.name] for each in known]
    late_s = [each.end_s - served.ledger.finished_s[each.request.name] for each in known]
    moments_s = np.array(
        [
            (each.queued_s, each.first_token_s - late, each.end_s - late)
            for each, late in zip(known, late_s, strict=True)
        ]
    )
    done = np.zeros((*moments_s.shape, len(fields(StepTime))))
    replicas = np.array([each.replica for each in known])
    for place in set(replicas.tolist()):
        done[replicas == place] = _done_by(served.replicas[place], moments_s[replicas == place])
    front = np.array([(each.front_requests, each.front_tokens, 1.0) for each in known])
    took_s = np.array([(each.ttft_s, each.e2e_s) for each in measured])
    parts_of_both = (done[:, 1:] - done[:, :1], np.repeat(front[:, None], 2, axis=1))
    x = np.concatenate(parts_of_both, axis=2) / took_s[..., None]
    return ReplyParts(x.reshape(-1, x.shape[2]), took_s.ravel())


def _done_by(ledger: EngineLedger, moments_s: Floats) -> Floats:
    """What an engine had computed at these moments, with one axis more for the parts of its steps'
    times; of a step that was under way its share."""
    done = [step for step in ledger.steps if any(parts(step.work))]
    assert done, "an engine answered in no step"
    knots_s = np.array([edge for step in done for edge in (step.begins_s, step.ends_s)])
    sums = np.cumsum([parts(step.work) for step in done], axis=0)
    before = np.vstack((np.zeros(sums.shape[1]), sums[:-1]))
    values = np.stack((before, sums), axis=1).reshape(-1, sums.shape[1])
    return np.stack([np.interp(moments_s, knots_s, each) for each in values.T], axis=-1)


def _fitted(x: Floats) -> Floats:
    """Times without negative ones by which all rows are 1; residuals that are far out are taken
    less seriously."""
    weight = np.ones(len(x))
    found = np.zeros(x.shape[1])
    scale = np.maximum(np.abs(x).max(axis=0), 1e-12)
    for _ in range(4):
        root = np.sqrt(weight)
        found = nnls(x / scale * root[:, None], root)[0] / scale
        residual = np.abs(x @ found - 1)
        middle = max(float(np.median(residual)), 1e-6)
        weight = np.minimum(1.0, FAR * middle / np.maximum(residual, 1e-12))
    return found


def _times_s(run: CalibrationRun, served: ServedLoad) -> tuple[Floats, Floats]:
    """Of each reply, as measured and on the twin, in the order of sending."""
    pairs = [
        (run.load.measured[each.request.name].e2e_s, each.e2e_s) for each in run.counted(served)
    ]
    measured, twin = np.array(pairs).T
    return measured, twin


def _slowness(measured: Floats, twin: Floats) -> float:
    """The logarithm of how much slower these were than on the twin."""
    return float(np.log(measured.mean() / twin.mean()))


def _figure_sd(
    rows: Sequence[ReplyParts], steady: Sequence[int], factor: float
) -> dict[str, float]:
    """How far each figure of a run is off as the other runs foretell it: the root of the mean
    square of the logarithm. Empty for fewer than `LEAST_LEFT_OUT` runs. What is computed in which
    step is taken as known."""
    if len(steady) < LEAST_LEFT_OUT:
        return {}
    off: dict[str, list[float]] = {name: [] for name in TIMES}
    for number in steady:
        others = [each.parts for place, each in enumerate(rows) if place != number]
        took_s = rows[number].took_s
        told_s = took_s * (rows[number].parts @ _fitted(np.concatenate(others))) * factor
        real, told = (figures_of(each[::2], each[1::2], 1.0) for each in (took_s, told_s))
        for name, each in off.items():
            each.append(math.log(told[name] / real[name]))
    found = {name: float(np.sqrt(np.sum(np.square(v)) / (len(v) - 1))) for name, v in off.items()}
    return found | {RATE: found["e2e_mean_ms"]}


def _computed_otherwise(run: CalibrationRun, served: ServedLoad) -> str:
    """In words, that the twin computes other prompt tokens than the engine did, "" where it does
    not. Raises UsageError for so many that the engine had another cache."""
    known, real = run.counted(served), run.load.computed_tokens
    prompts = sum(len(each.request.prompt) for each in known)
    twin = prompts - sum(each.tokens.cached or 0 for each in known)
    if real is None or abs(twin - real) <= USUAL_OFF * real:
        return ""
    said = f"{run.path}: the twin computes {twin:,} prompt tokens, the engine computed {real:,}"
    if abs(twin - real) > MOST_OFF * prompts:
        raise UsageError(
            f"{said}, as where requests go past the prefix cache (prompt_logprobs), or its blocks"
            f" are not of {run.shape.block_size} tokens: leave it out"
        )
    return said


def _windows(measured: Floats, twin: Floats) -> list[tuple[Floats, Floats]]:
    """The same, apart by windows of time."""
    count = min(WINDOWS, len(measured) // WINDOW_REPLIES)
    return list(zip(np.array_split(measured, count), np.array_split(twin, count), strict=True))


def _intervals(
    rows: Sequence[ReplyParts], times: Floats, factor: float
) -> dict[str, tuple[float, float]]:
    """90 % of each time, by bootstrap: over runs where there are several, else over replies."""
    rng = np.random.default_rng(0)
    found = []
    for _ in range(RESAMPLES):
        if len(rows) > 2:
            x = np.concatenate([rows[at].parts for at in rng.integers(len(rows), size=len(rows))])
        else:
            x = np.concatenate([each.parts for each in rows])
            x = x[rng.integers(len(x), size=len(x))]
        found.append(_fitted(x))
    low, high = np.quantile(found, (0.05, 0.95), axis=0)
    low, high = factor * np.minimum(low, times), factor * np.maximum(high, times)
    return {
        name: (float(at_least), float(at_most))
        for name, at_least, at_most in zip(NAMES, low, high, strict=True)
    }


def _open(rows: Sequence[ReplyParts], found: Floats) -> list[str]:
    """What these runs cannot tell: a part that hardly any of their time goes to."""
    share = np.concatenate([each.parts for each in rows]).mean(axis=0) * found
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
