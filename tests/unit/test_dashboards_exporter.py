"""The exporter's page, the dashboard that asks for what is on it, and Prometheus' configuration."""

import json
import re
import shutil
import subprocess
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import yaml
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from dashboards import exporter
from dashboards.exporter import MetricsAddress, targets
from dashboards.swarm_collector import BUCKETS_S, SwarmCollector
from loadgen.errors import UsageError
from loadgen.record import RequestRecord
from loadgen.stats.self_watch import ClientHealth, ClientSample
from loadgen.stats.tally import Tally
from rag_store.service.metrics import Metrics

ROOT = Path(__file__).parents[2]
GRAFANA = ROOT / "dashboards" / "grafana"
PAGES = ROOT / "tests" / "data" / "prometheus"
"""The families of a real vLLM 0.32.0 with the context scheduler, and of a real LMCache 0.5.6."""
PROMTOOL = shutil.which("promtool")


def record(ttft_ms: float | None, outcome: Any = "ok", **more: Any) -> RequestRecord:
    known: dict[str, Any] = dict.fromkeys(RequestRecord.__dataclass_fields__)
    times = {"scheduled_s": 0.0, "sent_s": 0.0, "end_s": 1.0, "ttft_ms": ttft_ms, "e2e_ms": ttft_ms}
    tokens = {"prompt_tokens": 100, "output_tokens": 4, "cached_tokens": 60}
    return RequestRecord(**{**known, **times, **tokens, "outcome": outcome, **more})


def sample(at_s: float, lag_ms: float, process: str = "0") -> ClientSample:
    return ClientSample(at_s, process, lag_ms / 2, lag_ms, lag_ms, None, 0.5, 100.0)


def leader(*records: RequestRecord, **more: Any) -> Any:
    """As much of a leader as an exporter reads; `model` and `samples` are its run's."""
    tally = Tally()
    for each in records:
        tally.add(each)
    facts = SimpleNamespace(url="http://host:8000", has_metrics=True, is_vllm=True)
    options = SimpleNamespace(max_lag_ms=100.0)
    clients = ClientHealth()
    for each in more.get("samples", []):
        clients.add(each)
    supervisor = SimpleNamespace(facts=more.get("facts", {}))
    run = SimpleNamespace(
        ledger=SimpleNamespace(tally=tally, clients=clients),
        plan=SimpleNamespace(
            url=facts.url, model=more.get("model", "tiny"), start_unix_s=1_700_000_000.5
        ),
        preparation=SimpleNamespace(facts=facts, options=options, cache_state="cold", rag=None),
        directory=SimpleNamespace(path=Path("runs/one")),
        supervisor=supervisor,
        workers=None,
        is_stopping=False,
        is_over=False,
    )
    return SimpleNamespace(
        earlier=Tally(),
        supervisor=supervisor,
        environment=SimpleNamespace(runner=SimpleNamespace(user_count=7)),
        run=run,
        current=run,
    )


def page(of: Any) -> str:
    registry = CollectorRegistry()
    registry.register(SwarmCollector(of))
    return generate_latest(registry).decode()


def samples(of: Any) -> list[Sample]:
    return [each for family in text_string_to_metric_families(page(of)) for each in family.samples]


def value(of: Any, name: str, **labels: str) -> float:
    (found,) = [each for each in samples(of) if each.name == name and each.labels == labels]
    return found.value


def test_requests_tokens_and_labels_are_counted() -> None:
    swarm = leader(
        *(record(50.0, label_correct=right) for right in (True, True, False)),
        record(None, "timeout"),
        record(None, "cancelled", retrieval_ms=3.0, rag_context_id=""),
    )
    assert value(swarm, "kvswarm_requests_total", outcome="ok") == 3
    assert value(swarm, "kvswarm_requests_total", outcome="timeout") == 1
    assert value(swarm, "kvswarm_requests_total", outcome="malformed") == 0
    assert value(swarm, "kvswarm_prompt_tokens_total") == 300
    assert value(swarm, "kvswarm_cached_prompt_tokens_total") == 180
    assert value(swarm, "kvswarm_output_tokens_total") == 12
    assert value(swarm, "kvswarm_labels_total", correct="true") == 2
    assert value(swarm, "kvswarm_labels_total", correct="false") == 1
    assert value(swarm, "kvswarm_retrievals_total", result="refused") == 1
    assert value(swarm, "kvswarm_users") == 7


def test_requests_within_their_objective_are_counted() -> None:
    swarm = leader(*(record(50.0, slo_met=met) for met in (True, True, False, None)))
    assert value(swarm, "kvswarm_slo_requests_total", met="true") == 2
    assert value(swarm, "kvswarm_slo_requests_total", met="false") == 1
    assert value(leader(record(50.0)), "kvswarm_slo_requests_total", met="false") == 0


def test_cached_tokens_that_no_host_tells_are_not_zero() -> None:
    assert "kvswarm_cached_prompt_tokens" not in page(leader(record(9.0, cached_tokens=None)))


def test_latencies_are_histograms_in_seconds() -> None:
    ttfts_ms = [0.05, 1.2, 40.0, 40.1, 900.0, 2e6]
    swarm = leader(*map(record, ttfts_ms))
    name = "kvswarm_time_to_first_token_seconds"
    assert value(swarm, f"{name}_sum") == pytest.approx(sum(ttfts_ms) / 1000)
    counts = {
        float(each.labels["le"]): each.value
        for each in samples(swarm)
        if each.name == f"{name}_bucket"
    }
    assert list(counts) == [*BUCKETS_S, float("inf")]
    expected = [sum(ms <= 1000 * bound for ms in ttfts_ms) for bound in counts]
    assert list(counts.values()) == expected
    assert counts[float("inf")] == value(swarm, f"{name}_count")


def test_bounds_rise_by_half_at_most() -> None:
    assert all(1 < b / a <= 1.5001 for a, b in pairwise(BUCKETS_S))


def test_no_counter_falls_when_statistics_are_reset() -> None:
    swarm = leader(record(40.0), record(90.0))
    before = counters(swarm)
    swarm.earlier.merge(swarm.run.ledger.tally.take())
    assert counters(swarm) == before
    swarm.run.ledger.tally.add(record(30.0))
    after = counters(swarm)
    assert all(after[key] >= count for key, count in before.items())
    assert value(swarm, "kvswarm_requests_total", outcome="ok") == 3


def counters(swarm: Any) -> dict[tuple[str, str], float]:
    endings = ("_total", "_bucket", "_count", "_sum")
    return {
        (each.name, str(each.labels)): each.value
        for each in samples(swarm)
        if each.name.endswith(endings)
    }


def test_labels_from_outside_stay_text() -> None:
    model = 'a"b\\c\nkvswarm_users 9'
    swarm = leader(model=model)
    swarm.run.directory.path = Path("runs/one\udcff")
    (info,) = [each for each in samples(swarm) if each.name == "kvswarm_run_info"]
    assert info.labels["model"] == model
    assert info.labels["run"] == "one?"


def test_the_state_is_one_of_three() -> None:
    swarm = leader()
    for name, current, is_stopping in (
        ("running", swarm.run, False),
        ("stopping", swarm.run, True),
        ("idle", None, False),
    ):
        swarm.current, swarm.run.is_stopping = current, is_stopping
        found = {s.labels["state"]: s.value for s in samples(swarm) if "run_state" in s.name}
        assert found == {"idle": 0, "running": 0, "stopping": 0} | {name: 1}


def test_a_scrape_sees_the_worst_of_the_last_seconds() -> None:
    lags_ms = [(1.0, 900.0), (5.0, 70.0), (18.0, 3.0)]
    swarm = leader(samples=[sample(*lag) for lag in lags_ms])
    assert value(swarm, "kvswarm_client_loop_lag_p99_seconds", process="0") == 0.07
    assert value(swarm, "kvswarm_client_saturated") == 0
    for n in range(3):
        swarm.run.ledger.clients.add(sample(19.0 + n, 400.0, "1"))
    assert value(swarm, "kvswarm_client_loop_lag_p99_seconds", process="1") == 0.4
    assert value(swarm, "kvswarm_client_saturated") == 1
    swarm.current, swarm.run.is_over = None, True
    assert "client_loop_lag_p99_seconds{" not in page(swarm)


def test_sends_that_nobody_timed_are_not_exported_as_punctual() -> None:
    swarm = leader(samples=[sample(1.0, 3.0)])
    assert "client_send_lateness_p99_seconds{" not in page(swarm)
    swarm.run.ledger.clients.add(replace(sample(2.0, 3.0), send_lateness_p99_ms=20.0))
    assert value(swarm, "kvswarm_client_send_lateness_p99_seconds", process="0") == 0.02


@pytest.mark.parametrize(
    ("values", "netloc"),
    [
        ({}, None),
        ({"metrics_port": 0}, "127.0.0.1:0"),
        ({"metrics_port": 9646, "metrics_host": "::1"}, "[::1]:9646"),
    ],
)
def test_addresses(values: dict[str, Any], netloc: str | None) -> None:
    address = MetricsAddress.read(values)
    assert (address and address.netloc) == netloc


@pytest.mark.parametrize("port", [-1, 65536])
def test_what_is_no_port_is_refused(port: int) -> None:
    with pytest.raises(UsageError, match=f"--metrics-port {port} is no port"):
        MetricsAddress.read({"metrics_port": port})


@pytest.mark.parametrize("path", ["/metrics", "/targets"])
def test_a_foreign_page_is_refused(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[Any] = []
    monkeypatch.setattr(exporter, "_listen", lambda address, app: opened.append(app) or 9646)
    swarm = leader(record(9.0))
    swarm.environment.parsed_options = SimpleNamespace(metrics_port=9646)
    swarm.view = SimpleNamespace(say=lambda text: None)
    exporter.open_exporter(swarm)
    own = {"REQUEST_METHOD": "GET", "PATH_INFO": path, "HTTP_HOST": "127.0.0.1:9646"}
    told: list[str] = []
    for foreign in ({}, {"HTTP_ORIGIN": "http://evil.example"}, {"HTTP_HOST": "evil.example:9646"}):
        opened[0](own | foreign, lambda status, headers, *error: told.append(status))
    assert [status[:3] for status in told] == ["200", "403", "403"]


def test_targets_are_what_the_swarm_loads() -> None:
    swarm = leader(
        facts={
            "sources": {
                "cache": {"name": "lmcache", "metrics_url": "http://127.0.0.1:9000/metrics"}
            }
        }
    )
    found = {each["labels"]["job"]: each["targets"] for each in targets(swarm)}
    assert found == {"vllm": ["host:8000"], "lmcache": ["127.0.0.1:9000"]}
    swarm.run.preparation.facts.url = "https://host/behind/proxy"
    (engine, _) = targets(swarm)
    labels = {"__scheme__": "https", "__metrics_path__": "/behind/proxy/metrics"}
    assert (engine["targets"], engine["labels"]) == (["host"], {"job": "vllm", **labels})
    places = {f"vllm-{n}": {"metrics_url": f"http://127.0.0.1:900{n}/metrics"} for n in (1, 2)}
    swarm.supervisor.facts["sources"]["engine"] = {"replicas": places}
    engines = [each["targets"] for each in targets(swarm) if each["labels"]["job"] == "vllm"]
    assert engines == [["127.0.0.1:9001"], ["127.0.0.1:9002"]]
    swarm.run.preparation.facts.has_metrics = False
    assert [each["labels"]["job"] for each in targets(swarm)] == ["lmcache"]
    swarm.run = None
    assert list(targets(swarm)) == []


def dashboard() -> dict[str, Any]:
    return cast(dict[str, Any], json.loads((GRAFANA / "kvswarm.json").read_text()))


def expressions() -> list[str]:
    content = dashboard()
    panels = [target["expr"] for panel in content["panels"] for target in panel.get("targets", ())]
    return [*panels, *(each["expr"] for each in content["annotations"]["list"])]


def test_the_panels_stand_beside_each_other() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {
            (x, y)
            for x in range(at["x"], at["x"] + at["w"])
            for y in range(at["y"], at["y"] + at["h"])
        }
        assert at["x"] + at["w"] <= 24
        assert not taken & cells, panel["title"]
        taken |= cells
        if panel["type"] != "row":
            assert panel["targets"]
            assert {each["datasource"]["uid"] for each in panel["targets"]} == {"${datasource}"}


def families(text: str) -> set[str]:
    """Names as PromQL asks for them, out of a page's TYPE lines."""
    found = set()
    for name, kind in re.findall(r"^# TYPE (\S+) (\w+)", text, re.MULTILINE):
        endings = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
        found |= {name + ending for ending in endings}
    return found


def test_the_dashboard_asks_for_metrics_that_exist() -> None:
    rag = Metrics(lambda: cast(Any, SimpleNamespace(documents=1, chunks=1)), lambda: 0)
    pages = [page(leader(record(9.0))), rag.page().decode()]
    known = families("\n".join([*pages, *(file.read_text() for file in PAGES.glob("*.prom"))]))
    asked = set(re.findall(r"\b(?:kvswarm_|vllm:|lmcache_)\w+", " ".join(expressions())))
    assert asked - known == set()
    # And of the swarm's figures it leaves out only these.
    told = {name.removesuffix(ending) for name in asked for ending in ("_bucket", "_sum", "_count")}
    own = families(pages[0])
    left = {name for name in own if not any(name.startswith(base) for base in told | asked)}
    assert left == {
        "kvswarm_batches_total",
        "kvswarm_client_resident_memory_bytes",
        "kvswarm_lost_workers",
        *(
            f"kvswarm_request_time_per_output_token_seconds{e}"
            for e in ("_bucket", "_sum", "_count")
        ),
    }


def test_the_page_describes_every_metric() -> None:
    text = (ROOT / "docs/reference/metrics.md").read_text().partition("## In Prometheus")[2]
    described = set(re.findall(r"`(kvswarm_\w+)`", text.partition("### The RAG service")[0]))
    told = page(leader(record(9.0), samples=[sample(1.0, 2.0)]))
    assert described == set(re.findall(r"^# TYPE (\S+)", told, re.MULTILINE))


def test_brackets_are_closed() -> None:
    for expression in expressions():
        bare = re.sub(r'"[^"]*"', "", expression)
        assert [bare.count(each) for each in "([{"] == [bare.count(each) for each in ")]}"]


def test_prometheus_looks_where_the_exporter_is_told_to_listen() -> None:
    (own, found) = yaml.safe_load((GRAFANA / "prometheus.yml").read_text())["scrape_configs"]
    (address,) = own["static_configs"][0]["targets"]
    assert found["http_sd_configs"][0]["url"] == f"http://{address}/targets"
    assert (
        f"--metrics-port {address.partition(':')[2]}"
        in (ROOT / "docs/guides/grafana.md").read_text()
    )
    for file in GRAFANA.glob("provisioning/*/*.yml"):
        assert yaml.safe_load(file.read_text())["apiVersion"] == 1


@pytest.mark.skipif(PROMTOOL is None, reason="the same again by promtool, which is not installed")
def test_promtool_finds_nothing_wrong(tmp_path: Path) -> None:
    rules = [
        {"record": f"panel:{n}", "expr": re.sub(r"\[\$\w+\]", "[20s]", each)}
        for n, each in enumerate(expressions())
    ]
    (tmp_path / "rules.yml").write_text(yaml.dump({"groups": [{"name": "g", "rules": rules}]}))
    promtool("check", "rules", str(tmp_path / "rules.yml"))
    promtool("check", "config", str(GRAFANA / "prometheus.yml"))
    swarm = leader(record(9.0), samples=[sample(1.0, 2.0)])
    promtool("check", "metrics", given=page(swarm))


def promtool(*arguments: str, given: str = "") -> None:
    done = subprocess.run(
        [str(PROMTOOL), *arguments], input=given, capture_output=True, text=True, timeout=30
    )
    assert done.returncode == 0, done.stdout + done.stderr
