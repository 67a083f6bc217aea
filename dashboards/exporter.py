"""An HTTP server beside the swarm, for Prometheus: its figures, and where to find the engine's."""

import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from loadgen.errors import UsageError
from loadgen.swarm.leading.own_page import WsgiApp, own_page_only
from loadgen.swarm.leading.supervisor import CHECK_VARIABLE
from loadgen.swarm.options import values as given
from rag_store.service.foreign import ANY, OwnNames, is_loopback

if TYPE_CHECKING:
    from loadgen.swarm.leading.leader import Leader

TARGETS = "/targets"
LAST_PORT = 65535


@dataclass(frozen=True, slots=True)
class MetricsAddress:
    """Where the exporter listens; port 0 is any that is free."""

    host: str
    port: int

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> "MetricsAddress | None":
        """Out of Locust's options; None where no exporter is wanted. Raises UsageError."""
        if given.text(values, "metrics_port") is None:
            return None
        port = given.whole(values, "metrics_port", 0)
        if not 0 <= port <= LAST_PORT:
            raise UsageError(f"--metrics-port {port} is no port: give 1 to {LAST_PORT}, or 0")
        return cls(given.text(values, "metrics_host") or "127.0.0.1", port)

    @property
    def netloc(self) -> str:
        """As it stands in a URL."""
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def open_exporter(leader: "Leader") -> None:
    """Serve the leader's figures until its process ends, where `--metrics-port` asks for it.

    Raises UsageError where the address cannot be listened on.
    """
    address = MetricsAddress.read(vars(leader.environment.parsed_options))
    if address is None:
        return
    # Where other machines reach it, Prometheus may know it by any name.
    names = OwnNames(address.host, () if is_loopback(address.host) else (ANY,), "--metrics-host")
    pages = own_page_only(_pages(leader), names)
    listening = MetricsAddress(address.host, _listen(address, pages))
    if not os.environ.get(CHECK_VARIABLE):
        leader.view.say(f"metrics for Prometheus at http://{listening.netloc}/metrics")


def _listen(address: MetricsAddress, app: WsgiApp) -> int:
    """Start to serve; returns the port."""
    # Here and in `_pages`: who exports nothing need not wait for the import.
    from gevent.pywsgi import WSGIServer

    server = WSGIServer((address.host, address.port), app, log=None)
    try:
        server.start()
    except OSError as error:
        reason = str(error.strerror).partition(": (")[0].lower()  # gevent adds the address
        raise UsageError(
            f"--metrics-port: cannot listen on {address.netloc} ({reason}): give another"
            " --metrics-port, 0 for any, or another --metrics-host"
        ) from None
    return int(server.server_port)


def _pages(leader: "Leader") -> WsgiApp:
    """`/targets` for Prometheus' HTTP service discovery; the metrics under any other path."""
    from prometheus_client import CollectorRegistry, make_wsgi_app

    from dashboards.swarm_collector import SwarmCollector

    registry = CollectorRegistry()
    registry.register(SwarmCollector(leader))
    metrics: WsgiApp = make_wsgi_app(registry)

    def app(request: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if request["PATH_INFO"] != TARGETS:
            return metrics(request, start_response)
        start_response("200 OK", [("Content-Type", "application/json")])
        return [json.dumps(list(targets(leader))).encode()]

    return app


def targets(leader: "Leader") -> Iterator[dict[str, Any]]:
    """What this swarm's engine and services offer to Prometheus, which the exporter does not
    repeat; none before the first swarm is ready."""
    if leader.run is None:
        return
    ready = leader.run.preparation
    sources = leader.supervisor.facts.get("sources", {})
    if ready.facts.has_metrics:
        replicas = sources.get("engine", {}).get("replicas", {}).values()
        for url in [each["metrics_url"] for each in replicas] or [f"{ready.facts.url}/metrics"]:
            yield _target("vllm" if ready.facts.is_vllm else "engine", url)
    cache = sources.get("cache", {})
    if cache.get("metrics_url"):
        yield _target(cache["name"], cache["metrics_url"])
    if ready.rag is not None:
        yield _target("rag", f"{ready.rag.url}/metrics")


def _target(job: str, url: str) -> dict[str, Any]:
    parts = urlsplit(url)
    labels = {"job": job, "__scheme__": parts.scheme, "__metrics_path__": parts.path}
    return {"targets": [parts.netloc], "labels": labels}
