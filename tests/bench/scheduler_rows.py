"""The rows that are kept, one CSV file for each kind; the report is made of these files alone."""

import csv
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, TypeVar


@dataclass(frozen=True, slots=True)
class EngineRow:
    """One batch on the real engine, served by one arm.

    Tokens are prompt tokens: computed by the engine's counters, fetched from LMCache, and the
    fewest any order computes. Times count from the first send. `others_cpu` is the share of the
    machine (0 to 1) that other programs took meanwhile.
    """

    FILE: ClassVar[str] = "engine_batches.csv"
    case: str
    setup: str
    arm: str
    repeat: int
    requests: int
    bound_tokens: int
    computed_tokens: int
    external_tokens: int
    preemptions: int
    total_s: float
    ttft_p50_s: float
    ttft_p95_s: float
    others_cpu: float


@dataclass(frozen=True, slots=True)
class OneEngineRow:
    """One batch on the engine that all arms share; `computed_tokens` are prompt tokens.

    `total_s` is from the first request to the last reply; `others_cpu` is the share of the machine
    (0 to 1) that other programs took meanwhile.
    """

    FILE: ClassVar[str] = "one_engine_batches.csv"
    case: str
    blocks: int
    arm: str
    repeat: int
    requests: int
    bound_tokens: int
    computed_tokens: int
    steps: int
    total_s: float
    others_cpu: float


@dataclass(frozen=True, slots=True)
class EnginePoissonRow:
    """Poisson arrivals on the real engine, the same for each arm; latency is to the last token."""

    FILE: ClassVar[str] = "engine_poisson.csv"
    arm: str
    load: float
    rate: float
    requests: int
    mean_s: float
    p99_s: float
    worst_s: float
    computed_tokens: int
    others_cpu: float


@dataclass(frozen=True, slots=True)
class OutputsRow:
    """Greedy replies of one serving of a batch against those of stock vLLM.

    `same` counts replies with the same tokens throughout, `same_first` with the same first token.
    """

    FILE: ClassVar[str] = "engine_outputs.csv"
    serving: str
    replies: int
    tokens: int
    same: int
    same_first: int


@dataclass(frozen=True, slots=True)
class VirtualBatchRow:
    """One kind of batch on vLLM's scheduler object without a model, medians over seeds.

    `most_tokens` is the worst seed's computed tokens, `over_bound` the median's share of the bound,
    `total_s` virtual time from the first admission to the last reply.
    """

    FILE: ClassVar[str] = "virtual_batches.csv"
    batch: str
    policy: str
    usable_blocks: int
    max_num_seqs: int
    requests: int
    bound_tokens: int
    computed_tokens: float
    most_tokens: int
    over_bound: float
    total_s: float
    total_ratio: float
    overtakes: int


@dataclass(frozen=True, slots=True)
class VirtualPoissonRow:
    """Poisson arrivals with a virtual clock, medians over seeds, the worst of them for overtakes.

    `load` is a share of what vLLM's own order can serve. `over_bound` is how far the worst request
    was past its bound of overtakes; 0 or less holds it.
    """

    FILE: ClassVar[str] = "virtual_poisson.csv"
    policy: str
    load: float
    mean_s: float
    p99_s: float
    mean_ratio: float
    p99_ratio: float
    computed_tokens: float
    overtakes: int
    over_bound: int


@dataclass(frozen=True, slots=True)
class VirtualStarvationRow:
    """One hot context with nearly all of an overload, beside cold ones; virtual clock."""

    FILE: ClassVar[str] = "virtual_starvation.csv"
    policy: str
    cold_mean_s: float
    cold_worst_s: float
    hot_mean_s: float
    cold_overtakes: int
    over_bound: int


@dataclass(frozen=True, slots=True)
class AdmissionRow:
    """CPU time of one request with `waiting` requests of `contexts` in the queue, medians.

    `admission_us` is all of schedule() and update_from_output() for it, `arrival_us` add_request(),
    `scan_ms` a schedule() in which all wait for a grammar; ratios are to stock in the same repeat.
    """

    FILE: ClassVar[str] = "virtual_admission.csv"
    policy: str
    contexts: int
    waiting: int
    admission_us: float
    admission_ratio: float
    arrival_us: float
    arrival_ratio: float
    scan_ms: float
    scan_ratio: float


Row = TypeVar(
    "Row",
    EngineRow,
    OneEngineRow,
    EnginePoissonRow,
    OutputsRow,
    VirtualBatchRow,
    VirtualPoissonRow,
    VirtualStarvationRow,
    AdmissionRow,
)


def write_rows(rows: Sequence[Row], directory: Path) -> None:
    """All rows of one kind into their file; nothing when there are none."""
    if not rows:
        return
    with (directory / rows[0].FILE).open("w", newline="") as file:
        names = [field.name for field in fields(rows[0])]
        writer = csv.DictWriter(file, names, lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)


def read_rows(kind: type[Row], directory: Path) -> list[Row]:
    """The rows of one kind, none where there is no file."""
    path = directory / kind.FILE
    if not path.is_file():
        return []
    with path.open(newline="") as file:
        return [_row(kind, cells) for cells in csv.DictReader(file)]


def _row(kind: type[Row], cells: dict[str, str]) -> Row:
    values: dict[str, Any] = {}
    for field in fields(kind):
        assert isinstance(field.type, type)
        values[field.name] = field.type(cells[field.name])
    return kind(**values)
