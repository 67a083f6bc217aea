"""The catalogue of metrics: what each is, where it comes from, and where it is shown.

Whatever counts, compares, draws, exports or describes metrics goes through `CATALOG`, in its order.
A new column of `RequestRecord` becomes a metric everywhere by one entry here.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Form = Literal["values", "rate", "share"]
Source = Literal["request", "gaps", "batch", "locust"]
"""Of values: a column of each `ok` request, all gaps between its tokens, which only a run itself
counts, a column of each batch, or only what Locust's own files tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A quantity of a run, whose name ends in its unit. One of values has statistics
    (`ttft_ms.p95`); a rate or a share is one figure. A share is a part of a whole, 0 to 1, and is
    shown in percent.

    `other_column` has its values in the CSV file, where it is not called as the metric. `part` over
    `whole` makes a share, `part` over seconds a rate; both are names of `COUNTS`. `defaults` are
    the statistics that a comparison shows unasked. `row` is its row in Locust's tables, `histogram`
    its name for Prometheus. What is `neutral` has no better direction: it is not compared.
    """

    name: str
    meaning: str
    better: Literal["lower", "higher"] = "lower"
    neutral: bool = False
    source: Source = "request"
    other_column: str = ""
    part: str = ""
    whole: str = ""
    is_summarized: bool = True
    is_limited: bool = False
    """Whether an objective of single requests (`--slo`) may limit its column."""
    is_usual: bool = True
    """Whether every run has it: it is left out of tables where a run has none and it is not."""
    defaults: tuple[str, ...] = ()
    row: str = ""
    histogram: str = ""

    @property
    def form(self) -> Form:
        """Of values, or a rate, or a share."""
        return "share" if self.whole else "rate" if self.part else "values"

    @property
    def unit(self) -> str:
        """`ms`, `s`, `tokens`, `1/s` or `%`."""
        if self.form == "values":
            return self.name.rpartition("_")[2]
        return "1/s" if self.form == "rate" else "%"

    @property
    def column(self) -> str:
        """Of `requests.csv`, of batches of `batches.csv`; empty where no file has its values."""
        has_none = self.form != "values" or self.source in ("gaps", "locust")
        return "" if has_none else self.other_column or self.name

    @property
    def per_s(self) -> float:
        """How many of its unit are a second, for what is exported in seconds."""
        return 1000.0 if self.unit == "ms" else 1.0

    @property
    def is_proportion(self) -> bool:
        """Whether it is a share of counted requests, each of which is in it or not."""
        return self.form == "share" and not self.whole.endswith(("_tokens", "_ms"))

    def statistic(self, of_values: str) -> str:
        """A column's name for a statistic: `ttft_p95_ms`."""
        stem = self.name.removesuffix(f"_{self.unit}")
        return f"{stem}_{of_values}" + (f"_{self.unit}" if stem != self.name else "")


COUNTS: Mapping[str, str] = {
    "ok": "requests that ended `ok`",
    "finished": "requests that ended by themselves, well or badly",
    "failed": "finished requests that did not end `ok`",
    "rejected": "of these, those that the host rejected",
    "prompt_tokens": "prompt tokens of `ok` requests",
    "cached_tokens": "of these, tokens from a cache; a reply without the field counts as 0 where"
    " the host told it of any",
    "output_tokens": "output tokens of `ok` requests",
    "total_tokens": "prompt and output tokens of `ok` requests",
    "judged": "requests that were held against an objective",
    "good": "judged requests that kept it",
    "known_labels": "requests whose label can be judged",
    "right_labels": "of these, those with the right one",
    "retrieved": "requests for which a context was looked for",
    "refused": "of these, those without one",
    "retrieval_ms": "time of retrieval of `ok` and `late` requests",
    "ttft_ms": "time to first token of `ok` and `late` requests",
}
"""What rates and shares are made of, each a sum over requests."""

_SPREAD = "of each request's gaps"

CATALOG: dict[str, Metric] = {
    metric.name: metric
    for metric in (
        Metric(
            name="retrieval_ms",
            meaning="from asking the RAG service to its answer, of `ok` and `late` requests",
            is_limited=True,
            is_usual=False,
            row="Retrieval (ms)",
            histogram="retrieval",
        ),
        Metric(
            name="ttft_ms",
            meaning="time to first token of each `ok` or `late` request",
            is_limited=True,
            defaults=("p50", "p95"),
            row="TTFT (ms)",
            histogram="time_to_first_token",
        ),
        Metric(
            name="itl_ms",
            meaning="every gap between events with output, of `ok` and `late` requests",
            source="gaps",
            row="ITL (ms)",
            histogram="inter_token_latency",
        ),
        *(
            Metric(
                name=f"itl_{each}_ms",
                meaning=f"{said} {_SPREAD}",
                is_summarized=False,
                is_limited=True,
                defaults=("p50", "p95") if each == "mean" else (),
            )
            for each, said in (
                ("mean", "mean"),
                ("p50", "median"),
                ("p95", "95th percentile"),
                ("p99", "99th percentile"),
                ("max", "largest"),
            )
        ),
        Metric(
            name="tpot_ms",
            meaning="time per output token of each `ok` or `late` request",
            is_limited=True,
            row="TPOT (ms)",
            histogram="request_time_per_output_token",
        ),
        Metric(
            name="e2e_ms",
            meaning="from the intended start to the last event of each `ok` or `late` request",
            is_limited=True,
            defaults=("p50", "p95"),
            histogram="e2e_request_latency",
        ),
        Metric(
            name="makespan_s",
            meaning="from the start of a batch to its last reply, of batches that ended `ok`",
            source="batch",
            is_usual=False,
            defaults=("p50",),
            row="Batch makespan (s)",
            histogram="batch_makespan",
        ),
        Metric(
            name="response_ms",
            meaning="response time, by Locust's own files",
            source="locust",
            is_summarized=False,
            defaults=("mean", "p50", "p95"),
        ),
        *(
            Metric(name=name, meaning=meaning, neutral=True)
            for name, meaning in (
                ("prompt_tokens", "length of the prompt of each `ok` request"),
                ("cached_tokens", "of these, tokens from a cache, by the host's word"),
                ("output_tokens", "length of the reply of each `ok` request"),
            )
        ),
        Metric(
            name="requests_per_s",
            meaning="`ok` requests over the time from the first send to the last end",
            better="higher",
            part="ok",
            defaults=("",),
        ),
        Metric(
            name="output_tokens_per_s",
            meaning="their output tokens over that time, with those of whole list calls",
            better="higher",
            part="output_tokens",
            defaults=("",),
            row="Output tokens/s",
        ),
        Metric(
            name="total_tokens_per_s",
            meaning="their prompt and output tokens over that time",
            better="higher",
            part="total_tokens",
            is_usual=False,
        ),
        Metric(
            name="cached_share",
            meaning="client's view: cached over all prompt tokens of `ok` requests; a reply without"
            " the field counts as 0 where the host told it of any",
            better="higher",
            part="cached_tokens",
            whole="prompt_tokens",
            defaults=("",),
            row="Cached-token share (%)",
        ),
        Metric(
            name="goodput_share",
            meaning="finished requests within their objective over those held against one",
            better="higher",
            part="good",
            whole="judged",
            is_usual=False,
            defaults=("",),
        ),
        Metric(
            name="goodput_per_s",
            meaning="finished requests within their objective over the time of the run",
            better="higher",
            part="good",
            is_usual=False,
        ),
        Metric(
            name="errors",
            meaning="failed requests over finished ones",
            part="failed",
            whole="finished",
            is_summarized=False,
            defaults=("",),
        ),
        Metric(
            name="rejected_share",
            meaning="requests that the host rejected over finished ones",
            part="rejected",
            whole="finished",
            is_usual=False,
        ),
        Metric(
            name="label_accuracy",
            meaning="right labels over those that can be judged, whatever became of the requests",
            better="higher",
            part="right_labels",
            whole="known_labels",
            is_usual=False,
        ),
        Metric(
            name="refused_share",
            meaning="retrievals after which no context was sent over all retrievals",
            part="refused",
            whole="retrieved",
            is_usual=False,
        ),
        Metric(
            name="retrieval_share",
            meaning="retrieval's part of TTFT: all `retrieval_ms` over all `ttft_ms`",
            part="retrieval_ms",
            whole="ttft_ms",
            is_usual=False,
        ),
    )
}


def summarized() -> list[Metric]:
    """Those of values that a run counts itself, each in a sketch."""
    return [each for each in CATALOG.values() if each.form == "values" and each.is_summarized]


def figures() -> list[Metric]:
    """The rates and shares that a summary has."""
    return [each for each in CATALOG.values() if each.part and each.is_summarized]


def of_requests() -> dict[str, str]:
    """Metric to column of `requests.csv`."""
    return {
        each.name: each.column
        for each in CATALOG.values()
        if each.column and each.source == "request"
    }


def compared() -> dict[str, Metric]:
    """Those in which two runs can be set against each other."""
    return {name: each for name, each in CATALOG.items() if not each.neutral}


def limited() -> tuple[str, ...]:
    """Columns of which an objective may say how much a request may have."""
    found = [each for each in CATALOG.values() if each.is_limited]
    return tuple(each.column for each in sorted(found, key=lambda each: not each.is_usual))


def figure_of(
    metric: Metric, counts: Mapping[str, float | None], duration_s: float
) -> float | None:
    """A rate or a share out of the sums of `COUNTS`, None where one of them was not told."""
    part = counts.get(metric.part)
    whole = duration_s if metric.form == "rate" else counts.get(metric.whole)
    return part / whole if part is not None and whole and whole > 0 else None
