"""The router of a fleet as one program: becomes vLLM's router, or HAProxy, by the policy.

    python -m loadgen.targets.router --policy haproxy-hash --port 8000 --metrics-port 8001 \\
        --scratch-dir /tmp/x http://127.0.0.1:8002,http://127.0.0.1:8003
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path

from yarl import URL

from loadgen.targets.fleet import router_program
from loadgen.targets.settings import ROUTERS

SESSION_HEADER = "X-Session-ID"
"""What both routers hash by."""
NO_ORIGIN = "http://127.0.0.1:0"
"""No page's: without one every page may read what vLLM's router answers."""
BALANCE = {
    "haproxy-hash": f"balance hdr({SESSION_HEADER})\n    hash-type consistent",
    "haproxy-leastconn": "balance leastconn",
}
HAPROXY = """\
defaults
    mode http
    option http-keep-alive
    timeout connect 5s
    timeout client 1h
    timeout server 1h
frontend requests
    bind {host}:{port}
    monitor-uri /health
    default_backend engines
backend engines
    {balance}
    option httpchk GET /health
    http-reuse safe
{servers}
"""


def command(policy: str, host: str, port: int, metrics_port: int, urls: Sequence[str]) -> list[str]:
    """The arguments of vLLM's router; its own retries would hide what an engine refuses."""
    words = ["--policy", policy, "--host", host, "--port", str(port)]
    words += ["--prometheus-port", str(metrics_port), "--disable-retries", "--log-level", "warning"]
    words += ["--max-concurrent-requests", "20000", "--request-timeout-secs", "3600"]
    words += ["--cors-allowed-origins", NO_ORIGIN]
    return [*words, "--worker-urls", *urls]


def event_sources(urls: Sequence[str], ports: Sequence[str]) -> list[str]:
    """More arguments of vLLM's router: where each engine tells which KV blocks it has."""
    both = zip(urls, ports, strict=True)
    return [f"--kv-event-source={url}=tcp://127.0.0.1:{port}" for url, port in both]


def haproxy_config(policy: str, host: str, port: int, urls: Sequence[str]) -> str:
    """The file of HAProxy: a frontend that says how it is, and a backend of engines it checks."""
    servers = [
        f"    server engine-{number} {URL(url).host}:{URL(url).port} check"
        for number, url in enumerate(urls, 1)
    ]
    lines = "\n".join(servers)
    return HAPROXY.format(host=host, port=port, balance=BALANCE[policy], servers=lines)


def main() -> None:
    """Become the router."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--policy", choices=ROUTERS, required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--metrics-port", type=int, required=True)
    parser.add_argument("--scratch-dir", type=Path, required=True)
    parser.add_argument("--event-ports", default="", help="on which engines tell their blocks")
    parser.add_argument("urls", help="the engines, with commas between")
    given, more = parser.parse_known_args()
    urls, program = given.urls.split(","), router_program(given.policy)
    if program is None:
        parser.error(f"{ROUTERS[given.policy]} is not installed")
    if given.policy in BALANCE:
        path = given.scratch_dir / "haproxy.cfg"
        path.write_text(haproxy_config(given.policy, given.host, given.port, urls), "utf-8")
        words = ["-f", str(path)]
    else:
        words = command(given.policy, given.host, given.port, given.metrics_port, urls)
        words += [*more, *event_sources(urls, given.event_ports.split(","))] if more else []
    os.execv(program, [str(program), *words])


if __name__ == "__main__":
    main()
