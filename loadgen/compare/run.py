"""A run as the comparison sees it, whatever file it came from."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from loadgen.compare.metrics import MEAN, METRICS, Statistic
from loadgen.compare.series import Ratio, Series
from loadgen.runs.exit_code import DONE, FAILED, SATURATED, TARGET_DIED
from loadgen.runs.requests import Requests
from loadgen.stats.summary import death_line

Stream = Mapping[str, tuple[str, str]]
"""The context and the question of each request by its id; empty where a file does not tell them."""

Prompt = tuple[str, str, float]
"""The context that was sent, the question, and the prompt's tokens by the host's count."""


@dataclass(frozen=True, slots=True)
class Fault:
    """`text` is ours, `detail` comes from the run's files."""

    text: str
    detail: str = ""

    def __str__(self) -> str:
        return f"{self.text} ({self.detail})" if self.detail else self.text


@dataclass(frozen=True, slots=True)
class ComparedRun:
    """`series` by metric; `totals` by statistic are figures that came without their data, each of
    so many samples. `stream` is what was drawn, `prompts` what was sent. `facts` say how the run
    was made, None where the file does not tell; `users` (most at once) and `rows` (Locust's) then
    do where they are known. One with `faults` decides nothing. `found_warmup_s` is where a warm-up
    ends that was found in what is here."""

    name: str
    series: Mapping[str, Series] = field(default_factory=dict)
    totals: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    facts: Mapping[str, str] | None = None
    stream: Stream = field(default_factory=dict)
    prompts: Mapping[str, Prompt] = field(default_factory=dict)
    users: str = ""
    rows: frozenset[str] = frozenset()
    machine: str = ""
    versions: Mapping[str, str] = field(default_factory=dict)
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


def faults_of(description: Mapping[str, Any], summary: Mapping[str, Any]) -> Iterator[Fault]:
    """What `run.json` and `summary.json` tell. Failed requests are none, they are measured."""
    code = description.get("exit_code", DONE)
    if summary.get("client_saturated") or code == SATURATED:
        detail = str(summary.get("client_saturated_reason") or "see its client_metrics.csv")
        yield Fault("the client was saturated, so its times are not the server's", detail)
    if summary.get("lost_workers"):
        yield Fault("workers were lost", str(summary["lost_workers"]))
    if user_errors := description.get("user_errors"):
        yield Fault("a user class raised exceptions", str(user_errors))
    deaths = summary.get("engine_deaths") or []
    for death in deaths:
        yield Fault("an engine died during the run", death_line(death))
    if description.get("host_died") or (code == TARGET_DIED and not deaths):
        yield Fault("the host died")
    elif description and "exit_code" not in description:
        yield Fault("it did not come to its end")
    elif code not in (DONE, FAILED, TARGET_DIED, SATURATED):
        yield Fault("it failed", f"exit code {code}")
    if description.get("interrupted") and (planned := _planned_end(description)):
        yield Fault("it was interrupted before its end", planned)


def _planned_end(description: Mapping[str, Any]) -> str:
    """The end that a run was given; without one, Ctrl-C is how it ends."""
    options = description.get("options") or {}
    if run_time_s := options.get("run_time"):
        return f"it was to take {run_time_s} s"
    batches = options.get("batches")
    return f"it was to send {batches} batches" if batches else ""


def stream_of(requests: Requests) -> Stream:
    """In a stream, a request has the same id in every run."""
    if not requests.columns.has(("context_id", "question_id")):
        return {}
    names = ("request_id", "context_id", "question_id")
    told = zip(*(requests.text(name).as_list() for name in names), strict=True)
    return {number: (context, question) for number, context, question in told if context}


def prompts_of(requests: Requests) -> Mapping[str, Prompt]:
    """What was sent, by the request's id, of those whose tokens the host counted."""
    if not requests.columns.has(("context_id", "question_id")):
        return {}
    told = zip(
        requests.text("request_id").as_list(),
        requests.context.as_list(),
        requests.text("question_id").as_list(),
        requests.number("prompt_tokens").tolist(),
        strict=True,
    )
    return {
        number: (context, question, tokens)
        for number, context, question, tokens in told
        if context and tokens > 0
    }
