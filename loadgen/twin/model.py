"""What `kvswarm calibrate` finds out of a server, and keeps as JSON."""

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, astuple, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, Self

from scipy.stats import t as student

from loadgen.errors import UsageError
from loadgen.runs.json_file import write_json
from loadgen.scratch import without_device
from loadgen.twin.ledger import TwinRequest
from loadgen.twin.step_time import StepTime

VERSION = 1
LEAST_LEFT_OUT = 4
"""Of so many runs that tell the speed each is foretold from the others."""
LEVEL = 0.9
"""Of the intervals of predictions."""


@dataclass(frozen=True, slots=True)
class FrontTime:
    """What is not the engine's step: seconds before the queue for each request and each of its
    prompt tokens, one request after the other, and from a token to the client."""

    request_s: float = 0.0
    prompt_token_s: float = 0.0
    output_s: float = 0.0


@dataclass(frozen=True, slots=True)
class TwinModel:
    """`speed_sd` is how much the logarithm of whole runs' times differs from what it says, over
    `steady_runs` of `runs`, or of one run's over `windows` of its time, and `figure_sd` how much
    that of each figure does; `error_share` the median error of single requests. `intervals`
    by the names of the two times' fields; `open_questions` what these runs leave open. Each run was
    made on so many `replicas`."""

    step: StepTime
    front: FrontTime
    speed_sd: float
    runs: int
    error_share: float
    intervals: Mapping[str, tuple[float, float]]
    open_questions: tuple[str, ...] = ()
    machine: str = ""
    engine: Mapping[str, Any] = field(default_factory=dict)
    """The engine that the runs were made on, as `CalibratedEngine` has it; empty in older files."""
    lengths: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Least and most tokens of their prompts and replies; empty in older files."""
    windows: int = 0
    """0 for several runs, and in older files."""
    figure_sd: Mapping[str, float] = field(default_factory=dict)
    """Of several runs; empty in older files."""
    steady_runs: int = 0
    """0 in older files: all."""
    replicas: int = 1
    otherwise: tuple[str, ...] = ()
    """Where it computes other prompt tokens than its runs did."""

    @property
    def speed_factor(self) -> float:
        """By which a run may be slower or faster than it says, infinite where that is not known."""
        return self._factor(self.speed_sd)

    def slower(self, factor: float) -> Self:
        """Where everything takes so many times as long."""
        step = StepTime(*(factor * each for each in astuple(self.step)))
        front = FrontTime(*(factor * each for each in astuple(self.front)))
        return replace(self, step=step, front=front)

    def outside(self, lengths: Mapping[str, tuple[int, int]], replicas: int = 1) -> Iterator[str]:
        """In words, what the intervals do not hold, which of these lengths the twin was not made
        from, and whether of so many engines."""
        if replicas != self.replicas:
            yield (
                f"the twin was made from runs of {self.replicas} engine"
                f"{'s' if self.replicas > 1 else ''}, not of {replicas}: engines that share a"
                " machine slow each other, which is not in these figures"
            )
        if self.runs == 1 and self.windows:
            yield (
                f"intervals are of one run's own speed in {self.windows} windows of its time:"
                " other runs may differ by more"
            )
        if 1 < self._told_by < LEAST_LEFT_OUT:
            yield (
                f"intervals are of {self._told_by} runs, too few to leave one out: other workloads"
                " may differ by more"
            )
        for name, (low, high) in lengths.items():
            least, most = self.lengths.get(name, (low, high))
            if low < least or high > most:
                yield (
                    f"{name} of {low:,} to {high:,} tokens: outside what the twin was made from,"
                    f" {least:,} to {most:,}"
                )

    def interval(self, value: float, figure: str = "") -> tuple[float, float]:
        """Where that figure of a run, or any time, would lie, as far as runs here, or windows of
        one, differ from it."""
        factor = self._factor(max(self.speed_sd, self.figure_sd.get(figure, 0.0)))
        return (value / factor, value * factor) if factor < math.inf else (0.0, math.inf)

    @property
    def _told_by(self) -> int:
        """How many runs tell its speed."""
        return self.steady_runs or self.runs

    def _factor(self, sd: float) -> float:
        count = self.windows if self.runs == 1 else self._told_by
        if count < 2:
            return math.inf
        reach = float(student.ppf((1 + LEVEL) / 2, count - 1))
        return math.exp(reach * sd * math.sqrt(1 + 1 / count))

    def write(self, path: Path) -> None:
        """Keep it. Raises UsageError."""
        try:
            write_json(path, {"twin": VERSION, **asdict(self)})
        except OSError as error:
            raise UsageError(f"{path} cannot be written ({error.strerror}): name another") from None

    @classmethod
    def read(cls, path: Path) -> Self:
        """What `write` kept. Raises UsageError."""
        try:
            content = json.loads(without_device(path).read_text(encoding="utf-8"))
            return cls._of(content)
        except OSError as error:
            raise UsageError(
                f"no twin at {path} ({error.strerror}): make one with `kvswarm calibrate RUN`"
            ) from None
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise UsageError(
                f"{path} is no twin of this version ({error}): make one with `kvswarm"
                " calibrate RUN`"
            ) from None

    @classmethod
    def _of(cls, content: Mapping[str, Any]) -> Self:
        if content["twin"] != VERSION:
            raise ValueError(f"version {content['twin']}")
        later: dict[str, Any] = {"engine": {}, "lengths": {}, "windows": 0}
        later |= {"figure_sd": {}, "steady_runs": 0, "replicas": 1, "otherwise": ()}
        later |= {name: content[name] for name in later if name in content}
        kept = {each.name: content[each.name] for each in fields(cls) if each.name not in later}
        kept |= later
        for name in ("speed_sd", "runs", "windows", "error_share", "steady_runs"):
            _require_time(name, kept[name])
        for name, value in kept["figure_sd"].items():
            _require_time(name, value)
        if not isinstance(kept["replicas"], int) or kept["replicas"] < 1:
            raise ValueError(f"replicas is {kept['replicas']}")
        kept["lengths"] = {
            name: (int(low), int(high)) for name, (low, high) in kept["lengths"].items()
        }
        kept["step"], kept["front"] = StepTime(**kept["step"]), FrontTime(**kept["front"])
        kept["intervals"] = {name: tuple(each) for name, each in kept["intervals"].items()}
        for name in ("open_questions", "otherwise"):
            kept[name] = tuple(kept[name])
        told = {**asdict(kept["step"]), **asdict(kept["front"])}
        told |= {
            f"{name}, {n}": end
            for name, ends in kept["intervals"].items()
            for n, end in enumerate(ends)
        }
        for name, value in told.items():
            _require_time(name, value)
        return cls(**kept)


def add_lengths(known: dict[str, tuple[int, int]], request: TwinRequest) -> None:
    """With those of another request."""
    for name, tokens in (("prompts", len(request.prompt)), ("replies", request.output_tokens)):
        low, high = known.get(name, (tokens, tokens))
        known[name] = min(low, tokens), max(high, tokens)


def _require_time(name: str, value: object) -> None:
    """Raise ValueError for anything but a finite number from 0 on."""
    if not isinstance(value, int | float) or not 0 <= value < math.inf:
        raise ValueError(f"{name} is {str(value)[:40]!r}")
