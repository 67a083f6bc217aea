"""What kvswarm's options inside Locust say, checked."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loadgen.client.settings import (
    auth_headers,
    parse_extra_body,
    parse_header,
    parse_header_name,
)
from loadgen.errors import UsageError
from loadgen.stats.slo import USUAL_DRAIN_S, Slo
from loadgen.swarm.options import values as given
from loadgen.swarm.options.flags import (
    AUTO,
    BATCH_FORMS,
    ENDPOINTS,
    LABELS,
    SESSIONS,
    add_options,
)
from loadgen.workload.arrivals import ARRIVALS, Rate
from loadgen.workload.batches import ORDERS, Batching
from loadgen.workload.settings import Span, WorkloadSettings
from loadgen.workload.trace.selection import Selection

OF_TRACES = {
    "trace_speed": 1.0,
    "trace_length_scale": 1.0,
    "trace_max_tokens": 0.0,
    "trace_limit": 0.0,
}
"""Options that say what is replayed of one, with what changes nothing."""
FOREIGN_HOST = "foreign_host"
"""Among the values: the host is none that the command line named, and gets no credentials."""


@dataclass(frozen=True, slots=True)
class SwarmOptions:
    """Everything a run is told on Locust's side; built once from Locust's parsed options."""

    workload: WorkloadSettings
    batching: Batching
    batch_as: str
    labels: str
    rag_url: str | None
    rag_wrong: float
    trace: Selection | None
    corpus: Path | None
    questions: Path | None
    tokenizer: str | None
    model: str | None
    endpoint: str
    temperature: float
    extra_body: str | None
    headers: tuple[str, ...]
    session_header: str
    session_by: str
    foreign_host: bool
    timeout_s: float
    connect_timeout_s: float
    retry: int
    arrivals: str
    rate: Rate | None
    burstiness: float | None
    drain_s: float
    max_silence_s: float
    slo: Slo | None
    gate: str | None
    require_proof: bool
    warmup_s: float | None
    max_failures_percent: float
    max_lag_ms: float
    keep_cache: bool
    out: Path | None

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> "SwarmOptions":
        """Build from Locust's options or a submitted web form; UsageError names a bad value."""
        return cls(
            workload=_workload(values),
            batching=_batching(values),
            batch_as=given.choice(values, "batch_as", BATCH_FORMS),
            labels=given.choice(values, "labels", LABELS),
            rag_url=given.text(values, "rag_url"),
            rag_wrong=given.number(values, "rag_wrong", 0.0, least=0.0, most=1.0),
            trace=_trace(values),
            corpus=given.path(values, "corpus"),
            questions=given.path(values, "questions"),
            tokenizer=given.text(values, "tokenizer"),
            model=given.text(values, "model"),
            endpoint=given.choice(values, "endpoint", ENDPOINTS),
            temperature=given.number(values, "temperature", 0.0, least=0.0),
            extra_body=given.text(values, "extra_body"),
            headers=given.lines(values.get("header")),
            session_header=_session_header(values),
            session_by=given.choice(values, "session_by", SESSIONS),
            foreign_host=given.flag(values, FOREIGN_HOST),
            timeout_s=given.number(values, "timeout", 600.0, above=0.0),
            connect_timeout_s=given.number(values, "connect_timeout", 10.0, above=0.0),
            retry=given.whole(values, "retry", 0, least=0),
            arrivals=given.choice(values, "arrivals", ARRIVALS),
            rate=_rate(values),
            burstiness=_burstiness(values),
            drain_s=given.number(values, "drain", USUAL_DRAIN_S, least=0.0),
            max_silence_s=given.number(values, "max_silence", 60.0, least=0.0),
            slo=_slo(values),
            gate=values.get("gate"),
            require_proof=given.flag(values, "require_proof"),
            warmup_s=_warmup_s(values),
            max_failures_percent=given.number(values, "max_failures", 0.0, least=0.0),
            max_lag_ms=given.number(values, "max_lag_ms", 100.0, above=0.0),
            keep_cache=given.flag(values, "keep_cache"),
            out=given.path(values, "out"),
        )


class _NameCollector:
    """Stands where a parser would, to learn the names of the options."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def add_argument(self, flag: str, **_: Any) -> None:
        self.names.append(flag.removeprefix("--").replace("-", "_"))


def own_options(values: Mapping[str, Any]) -> dict[str, Any]:
    """kvswarm's options and the size of the swarm, out of all of Locust's parsed options.

    The others stay out: Locust's web log-in, for one, is nobody else's business.
    """
    collector = _NameCollector()
    add_options(collector)
    names = [*collector.names, "num_users", "spawn_rate", "run_time", FOREIGN_HOST]
    return {name: values[name] for name in names if name in values}


def default_users(arrivals: str) -> int:
    """The users of a headless swarm without `-u`: one, as in Locust, or no cap in an open loop."""
    return 1 if arrivals == "closed" else 0


def extra_body(options: SwarmOptions, target: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """What the target and `--extra-body` add to every request, to a foreign host nothing.

    Raises UsageError, also for a field that both would set.
    """
    body = parse_extra_body(options.extra_body) if options.extra_body else {}
    for name in sorted(body.keys() & (target or {}).keys()):
        raise UsageError(f"extra body sets {name!r}, which the target sets itself: leave it out")
    return {} if options.foreign_host else {**(target or {}), **body}


def request_headers(options: SwarmOptions) -> dict[str, str]:
    """The API key of the environment and the `--header`s over it, to a foreign host none.

    Raises UsageError.
    """
    headers = auth_headers() | dict(parse_header(line) for line in options.headers)
    return {} if options.foreign_host else headers


def withheld_note(options: SwarmOptions) -> tuple[str, ...]:
    """What a foreign host does not get, in words; nothing where there is nothing to keep back."""
    own = replace(options, foreign_host=False)
    if not options.foreign_host or not (request_headers(own) or extra_body(own)):
        return ()
    return (
        "no API key, --header or --extra-body goes to this host: the command line names another,"
        " start with --key-host for this one",
    )


def _workload(values: Mapping[str, Any]) -> WorkloadSettings:
    context_tokens = given.text(values, "context_tokens")
    return WorkloadSettings(
        seed=given.whole(values, "seed", 0),
        contexts=given.whole(values, "contexts", 8),
        zipf=given.number(values, "zipf", 0.0),
        stickiness=given.number(values, "stickiness", 0.0),
        repeat=given.number(values, "repeat", 0.0),
        context_tokens=Span.parse(context_tokens, "--context-tokens") if context_tokens else None,
        output_tokens=Span.parse(given.text(values, "output_tokens") or "16", "--output-tokens"),
        system_tokens=given.whole(values, "system_tokens", 0),
    )


def _trace(values: Mapping[str, Any]) -> Selection | None:
    path = given.path(values, "trace")
    if path is None:
        for name, usual in OF_TRACES.items():
            if given.number(values, name, usual) != usual:
                flag = f"--{name.replace('_', '-')}"
                raise UsageError(f"{flag} changes a trace, and there is none: give --trace FILE")
        return None
    return Selection(
        path=path,
        speed=given.number(values, "trace_speed", 1.0, least=1e-6, most=1e6),
        length_scale=given.number(values, "trace_length_scale", 1.0, least=1e-6, most=1e6),
        most_tokens=given.whole(values, "trace_max_tokens", 0) or None,
        limit=given.whole(values, "trace_limit", 0) or None,
    )


def _batching(values: Mapping[str, Any]) -> Batching:
    order = given.choice(values, "order", ORDERS)
    return Batching(
        size=given.whole(values, "batch_size", 12),
        order="grouped" if order == "grouped" else "shuffled",
        limit=given.whole(values, "batches", 0) or None,
    )


def _session_header(values: Mapping[str, Any]) -> str:
    name = given.text(values, "session_header")
    return parse_header_name(name) if name else ""


def _rate(values: Mapping[str, Any]) -> Rate | None:
    rate = given.text(values, "rate")
    return Rate.parse(rate) if rate else None


def _slo(values: Mapping[str, Any]) -> Slo | None:
    slo = given.text(values, "slo")
    return Slo.parse(slo) if slo else None


def _burstiness(values: Mapping[str, Any]) -> float | None:
    if given.text(values, "burstiness") is None:
        return None
    return given.number(values, "burstiness", 1.0, least=0.001, most=1000.0)


def _warmup_s(values: Mapping[str, Any]) -> float | None:
    """None where it is to be found."""
    if given.text(values, "warmup") == AUTO:
        return None
    return given.number(values, "warmup", 0.0, least=0.0)
