"""A swarm's figures as Prometheus' metric families, made anew for each scrape.

Names, units and meanings are those of vLLM's own metrics where it has the same, so that the
client's view can be laid over the engine's. Nothing has a label per context or question: how many
there are is up to the workload, and each would be a series for ever.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector
from prometheus_client.utils import floatToGoString

from loadgen.record import BATCH_OUTCOMES, OUTCOMES
from loadgen.stats.memory import MB
from loadgen.stats.metrics import summarized
from loadgen.stats.self_watch import ClientSample
from loadgen.stats.sketch import Sketch
from loadgen.stats.tally import Tally

if TYPE_CHECKING:
    from loadgen.swarm.leading.leader import Leader
    from loadgen.swarm.leading.swarm_run import SwarmRun

BUCKETS_S: tuple[float, ...] = (
    *(
        float(f"{digits}e{power}")
        for power in range(-4, 3)
        for digits in (1, 1.5, 2.2, 3.3, 4.7, 6.8)
    ),
    1000.0,
)
"""0.1 ms to 1000 s; each bound is at most half again the one before (E6 of IEC 60063)."""
WORST_OF_S = 15.0
"""A scrape sees one moment: the client's lag is the worst of so many seconds before it."""
STATES = ("idle", "running", "stopping")


class SwarmCollector(Collector):
    """Reads one leader; belongs on gevent's hub. No counter falls: those of swarms before this one
    and of the time before a reset of Locust's statistics stay in."""

    def __init__(self, leader: "Leader") -> None:
        self._leader = leader

    def collect(self) -> Iterator[Metric]:
        """Every family, also those without a sample yet."""
        total = Tally()
        total.merge(self._leader.earlier)
        if self._leader.run is not None:
            total.merge(self._leader.run.ledger.tally)
        yield from _counts(total)
        yield from _latencies(total)
        yield from self._run()
        yield from self._client()

    def _run(self) -> Iterator[Metric]:
        leader, run = self._leader, self._leader.current
        state = "idle" if run is None else "stopping" if run.is_stopping else "running"
        yield _family(
            GaugeMetricFamily("kvswarm_run_state", "1 for the state it is in", labels=["state"]),
            {(name,): float(name == state) for name in STATES},
        )
        users = leader.environment.runner.user_count
        yield GaugeMetricFamily("kvswarm_users", "Users that are running", users)
        workers = leader.run.workers if leader.run is not None else None
        lost = workers.lost if workers is not None else 0
        yield GaugeMetricFamily("kvswarm_lost_workers", "Workers lost in this run", lost)
        if run is not None:
            start_unix_s = run.plan.start_unix_s
            yield GaugeMetricFamily("kvswarm_run_start_time_seconds", "Unix time", start_unix_s)
            labels = _labels_of_run(run)
            info = GaugeMetricFamily(
                "kvswarm_run_info", "What is run: always 1", labels=list(labels)
            )
            yield _family(info, {tuple(labels.values()): 1.0})

    def _client(self) -> Iterator[Metric]:
        run, worst = self._leader.run, dict[str, dict[str, float]]()
        if run is not None:
            yield GaugeMetricFamily(
                "kvswarm_client_saturated",
                "1 where the client is too late for this run to be valid",
                float(run.ledger.clients.verdict().saturated),
            )
            worst = {} if run.is_over else _worst(run.ledger.clients.recent)
        for name, what in _CLIENT.items():
            family = GaugeMetricFamily(f"kvswarm_client_{name}", what, labels=["process"])
            known = ((process, found) for process, found in worst.items() if name in found)
            yield _family(family, {(process,): found[name] for process, found in known})


_CLIENT = {
    "loop_lag_p99_seconds": f"Event loop's lag, worst p99 of a second in {WORST_OF_S:g} s",
    "send_lateness_p99_seconds": f"Open loop's sends, worst p99 of a second in {WORST_OF_S:g} s",
    "cpu_cores": f"CPU seconds per second, most of a second in {WORST_OF_S:g} s",
    "resident_memory_bytes": f"Resident memory, most in {WORST_OF_S:g} s",
}


def _counts(total: Tally) -> Iterator[Metric]:
    outcomes, batches, labels = total.outcomes, total.batch_outcomes, total.labels
    yield _family(
        CounterMetricFamily("kvswarm_requests", "Requests by outcome", labels=["outcome"]),
        {(name,): float(outcomes.get(name, 0)) for name in OUTCOMES},
    )
    yield _family(
        CounterMetricFamily("kvswarm_batches", "Batches by outcome", labels=["outcome"]),
        {(name,): float(batches.get(name, 0)) for name in BATCH_OUTCOMES},
    )
    yield CounterMetricFamily("kvswarm_prompt_tokens", "Of ok requests", total.prompt_tokens)
    yield CounterMetricFamily("kvswarm_output_tokens", "Of ok requests", total.output_tokens)
    if total.sketches["cached_tokens"].count:
        yield CounterMetricFamily(
            "kvswarm_cached_prompt_tokens", "From a cache, by the host's word", total.cached_tokens
        )
    yield _family(
        CounterMetricFamily("kvswarm_labels", "Labels that can be judged", labels=["correct"]),
        {("true",): labels["correct"], ("false",): labels["known"] - labels["correct"]},
    )
    yield _family(
        CounterMetricFamily(
            "kvswarm_slo_requests", "Requests held against the objective", labels=["met"]
        ),
        {("true",): total.good or 0, ("false",): total.judged - (total.good or 0)},
    )
    yield _family(
        CounterMetricFamily("kvswarm_retrievals", "Answers of the RAG service", labels=["result"]),
        {("found",): labels["retrieved"] - labels["refused"], ("refused",): labels["refused"]},
    )


def _latencies(total: Tally) -> Iterator[Metric]:
    for metric in summarized():
        if metric.histogram:
            name, said = f"kvswarm_{metric.histogram}_seconds", metric.meaning.replace("`", "")
            sketch = total.sketches[metric.name]
            yield _histogram(name, f"{said[0].upper()}{said[1:]}", sketch, metric.per_s)


def _histogram(name: str, what: str, sketch: Sketch, per_s: float) -> Metric:
    """`sketch` has values of which `per_s` are a second."""
    counts = sketch.counts_up_to([bound * per_s for bound in BUCKETS_S])
    bounds = map(floatToGoString, BUCKETS_S)
    buckets = [*zip(bounds, map(float, counts), strict=True), ("+Inf", float(sketch.count))]
    return HistogramMetricFamily(name, what, buckets, sketch.sum / per_s)


def _labels_of_run(run: "SwarmRun") -> dict[str, str]:
    told = {
        "host": run.plan.url,
        "model": run.plan.model,
        "target": str(run.supervisor.facts.get("name", "")),
        "cache_state": run.preparation.cache_state,
        "run": run.directory.path.name if run.directory is not None else "",
    }
    # A folder's name need not be UTF-8, which the page is.
    return {name: value.encode(errors="replace").decode() for name, value in told.items()}


def _worst(samples: Sequence[ClientSample]) -> dict[str, dict[str, float]]:
    """Of each process, over the last seconds before the newest sample."""
    worst: dict[str, dict[str, float]] = {}
    for sample in reversed(samples):
        if sample.at_s < samples[-1].at_s - WORST_OF_S:
            break
        found = worst.setdefault(sample.process, {})
        for name, value in _in_base_units(sample).items():
            found[name] = max(found.get(name, value), value)
    return worst


def _in_base_units(sample: ClientSample) -> dict[str, float]:
    """What was measured: nothing is late where nothing was due."""
    late_ms = sample.send_lateness_p99_ms
    return {
        "loop_lag_p99_seconds": sample.loop_lag_p99_ms / 1000,
        **({} if late_ms is None else {"send_lateness_p99_seconds": late_ms / 1000}),
        "cpu_cores": sample.cpu_share,
        "resident_memory_bytes": sample.rss_mb * MB,
    }


def _family(family: Any, samples: Mapping[tuple[str, ...], float]) -> Metric:
    for labels, value in samples.items():
        family.add_metric(labels, value)
    return family  # type: ignore[no-any-return]
