"""A run as the comparison sees it, whatever file it came from."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from loadgen.compare.metrics import MEAN, METRICS, Statistic
from loadgen.compare.series import Ratio, Series
from loadgen.compare.soundness import Fault

Stream = Mapping[str, tuple[str, str]]
"""The context and the question of each request by its id; empty where a file does not tell them."""


@dataclass(frozen=True, slots=True)
class Run:
    """`series` by metric; `totals` by statistic are figures that came without their data, each of
    so many samples. `facts` say how the run was made, None where the file does not tell; `users`
    (most at once) and `rows` (Locust's) then do where they are known. One with `faults` decides
    nothing. `found_warmup_s` is where a warm-up ends that was found in what is here."""

    name: str
    series: Mapping[str, Series] = field(default_factory=dict)
    totals: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    facts: Mapping[str, str] | None = None
    stream: Stream = field(default_factory=dict)
    users: str = ""
    rows: frozenset[str] = frozenset()
    machine: str = ""
    faults: tuple[Fault, ...] = ()
    remarks: tuple[str, ...] = ()
    found_warmup_s: float = 0.0

    @property
    def seed(self) -> str:
        """The workload's, empty where it is not known."""
        return (self.facts or {}).get("seed", "")

    @property
    def metrics(self) -> tuple[str, ...]:
        """What the file tells; of a metric that has only sums its mean."""
        means = {
            f"{name}.{MEAN}"
            if METRICS[name].form == "values" and isinstance(series, Ratio)
            else name
            for name, series in self.series.items()
        }
        return tuple(sorted({*means, *self.totals}))

    def has(self, statistic: Statistic) -> bool:
        """Whether the file could tell it."""
        return self.data(statistic) is not None or statistic.name in self.totals

    def data(self, statistic: Statistic) -> Series | None:
        """What it is computed from: a mean may have only sums, which give no percentile."""
        series = self.series.get(statistic.metric.name)
        return None if statistic.quantile and isinstance(series, Ratio) else series

    def samples(self, statistic: Statistic) -> int:
        """Usable samples of it."""
        data = self.data(statistic)
        return self.totals.get(statistic.name, (0.0, 0))[1] if data is None else data.samples
