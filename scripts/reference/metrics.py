"""metrics.md: the catalogue, and every series for Prometheus."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from loadgen.stats.metrics import CATALOG
from scripts.reference.interfaces import kv_service
from scripts.reference.text import bracketed, code, listing, page, table


def metrics() -> str:
    rows = [
        (
            code(metric.name),
            metric.unit,
            "" if metric.neutral else metric.better,
            metric.meaning,
        )
        for metric in CATALOG.values()
    ]
    return page(
        "Metrics",
        "Of metrics in ms, s and tokens a summary has `count`, `mean`, `stddev`, `min`, `p50`,"
        " `p90`, `p95`, `p99` and `max`. Percentiles are at most 1 % off, the others exact."
        " `kvswarm compare` takes each that has a better direction; a percentile it takes may be"
        " any, such as `.p99.9`.",
        table(("metric", "unit", "better", "meaning"), rows),
        f"Rows of type `LLM` in Locust's tables: {', '.join(map(code, rows_in_locust()))}.",
        "## In Prometheus",
        f"Histograms of the metrics above: {', '.join(map(code, histograms()))}.",
        *(f"### {title}\n\n{prometheus(families())}" for title, families in EXPOSED.items()),
    )


def rows_in_locust() -> list[str]:
    return [metric.row for metric in CATALOG.values() if metric.row]


def histograms() -> list[str]:
    """Series of the catalogue."""
    return [f"kvswarm_{each.histogram}_seconds" for each in CATALOG.values() if each.histogram]


def prometheus(families: Iterable[tuple[str, str, Iterable[str]]]) -> str:
    rows = [
        (bracketed(code(name), ", ".join(sorted(labels))), said.rstrip("."))
        for name, said, labels in families
    ]
    return listing(rows)


Families = Iterator[tuple[str, str, Iterable[str]]]


def exposed(collected: Iterable[Any], leave_out: str = "le") -> Families:
    for family in collected:
        labels = {name for sample in family.samples for name in sample.labels} - {leave_out}
        name = family.name + ("_total" if family.type == "counter" else "")
        yield name, family.documentation, labels


def of_swarm() -> Families:
    from dashboards.swarm_collector import _CLIENT, SwarmCollector
    from loadgen.stats.self_watch import ClientHealth
    from loadgen.stats.tally import Tally

    tally, run = Tally(), SimpleNamespace(workers=None, is_stopping=False, is_over=True)
    tally.sketches["cached_tokens"].add(1)
    run.plan = SimpleNamespace(start_unix_s=0.0, url="", model="")
    run.ledger = SimpleNamespace(tally=tally, clients=ClientHealth())
    run.supervisor, run.directory = SimpleNamespace(facts={}), None
    run.preparation = SimpleNamespace(cache_state="")
    runner = SimpleNamespace(user_count=0)
    leader: Any = SimpleNamespace(earlier=Tally(), run=run, current=run)
    leader.environment = SimpleNamespace(runner=runner)
    for name, said, labels in exposed(SwarmCollector(leader).collect()):
        if name in histograms():
            continue
        is_client = name.removeprefix("kvswarm_client_") in _CLIENT
        yield name, said, {"process"} if is_client else labels


def of_rag() -> Families:
    from rag_store.document_index import Size
    from rag_store.service.metrics import Metrics

    found = Metrics(lambda: Size(0, 0), lambda: 0)._registry
    names = {
        each: metric for metric, all_of in found._collector_to_names.items() for each in all_of
    }
    for name, said, _ in exposed(found.collect()):
        yield name, said, names[name]._labelnames


def of_kv() -> Families:
    return exposed(kv_service()._registry.collect())


def of_plugin() -> Families:
    from scheduler_plugin import exposition

    found = list[tuple[str, str, Iterable[str]]]()

    def noted(kind: Any, ending: str) -> Callable[..., Any]:
        def make(name: str, said: str, labels: Sequence[str], **settings: Any) -> Any:
            found.append((name + ending, said, labels))
            return kind(name, said, labels, **settings)

        return make

    kinds = {"Counter": "_total", "Gauge": "", "Histogram": ""}
    with patch.multiple(
        exposition, **{name: noted(getattr(exposition, name), end) for name, end in kinds.items()}
    ):
        exposition.Exposition("0").open()
    yield from found


EXPOSED: dict[str, Callable[[], Families]] = {
    "A swarm, with `--metrics-port`": of_swarm,
    "The RAG service": of_rag,
    "The KV service": of_kv,
    "The scheduler plugin, in the engine's `/metrics`": of_plugin,
}
