"""kvswarm's options inside Locust: command line, config file, environment and the web form."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, get_args

from loadgen.client.settings import TransportName
from loadgen.stats.slo import Slo
from loadgen.swarm import option_values as given
from loadgen.workload.arrivals import ARRIVALS
from loadgen.workload.batches import ORDERS, Batching
from loadgen.workload.rate import Rate
from loadgen.workload.settings import Span, WorkloadSettings
from loadgen.workload.trace.selection import Selection

ENDPOINTS = ("completions", "chat")
BATCH_FORMS = ("requests", "list")
TRANSPORTS: tuple[TransportName, ...] = get_args(TransportName)
LABELS = ("oracle", "none", "shuffled", "rag")


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
    timeout_s: float
    connect_timeout_s: float
    transport: TransportName
    arrivals: str
    rate: Rate | None
    burstiness: float | None
    drain_s: float
    slo: Slo | None
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
            timeout_s=given.number(values, "timeout", 600.0, above=0.0),
            connect_timeout_s=given.number(values, "connect_timeout", 10.0, above=0.0),
            transport=_transport(values),
            arrivals=given.choice(values, "arrivals", ARRIVALS),
            rate=_rate(values),
            burstiness=_burstiness(values),
            drain_s=given.number(values, "drain", 30.0, least=0.0),
            slo=_slo(values),
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
    names = [*collector.names, "num_users", "spawn_rate", "run_time"]
    return {name: values[name] for name in names if name in values}


def add_options(parser: Any) -> None:
    """Add every option to Locust's parser itself: its web form skips argument groups."""
    _add_workload_options(parser)
    _add_batch_options(parser)
    _add_trace_options(parser)
    _add_request_options(parser)
    _add_label_options(parser)
    _add_run_options(parser)


def _add_workload_options(parser: Any) -> None:
    add = _adder(parser)
    add("--contexts", type=int, default=8, help="how many different contexts the requests share")
    add("--zipf", type=float, default=0.0, help="popularity: 0 = all alike, 1 = few are hot")
    add("--stickiness", type=float, default=0.0, help="P(next request keeps the context), 0 to 1")
    add("--repeat", type=float, default=0.0, help="P(an old request returns unchanged), 0 to <1")
    add("--context-tokens", default="", help="N or min-max; empty = the documents as they are")
    add("--output-tokens", default="16", help="N or min-max: length of each reply")
    add("--seed", type=int, default=0, help="same seed, same requests in the same order")
    add("--corpus", default="", help="folder of .txt/.md or a .jsonl; empty = the demo corpus")
    add("--questions", default="", help=".jsonl with qid, question, doc_id; empty = beside it")
    add("--tokenizer", default="", help="folder, tokenizer.json or hub name, to measure lengths")


def _add_batch_options(parser: Any) -> None:
    """Those of locustfiles that send batches; others take no notice of them."""
    add = _adder(parser)
    add("--batch-size", type=int, default=12, help="batches: requests in each")
    add(
        "--batch-as",
        choices=BATCH_FORMS,
        default=BATCH_FORMS[0],
        help="batches: requests = all at once; list = one call with a list of prompts",
    )
    add(
        "--order",
        choices=ORDERS,
        default=ORDERS[0],
        help="batches: shuffled = as drawn; grouped = sorted by context",
    )
    add("--batches", type=int, default=0, help="how many the swarm sends, then it ends; 0 = no end")


def _add_trace_options(parser: Any) -> None:
    """What replays recorded traffic in place of the drawn stream."""
    add = _adder(parser)
    add("--trace", default="", help="replay this: Mooncake, Azure, BurstGPT or ShareGPT")
    add("--trace-speed", type=float, default=1.0, help="trace: 2 = twice as fast as it was")
    add("--trace-length-scale", type=float, default=1.0, help="trace: what lengths are times")
    add(
        "--trace-max-tokens", type=int, default=0, help="trace: leave longer requests out; 0 = none"
    )
    add("--trace-limit", type=int, default=0, help="trace: the first so many requests; 0 = all")


def _add_request_options(parser: Any) -> None:
    add = _adder(parser)
    add("--endpoint", choices=ENDPOINTS, default="completions", help="which OpenAI endpoint")
    add("--model", default="", help="served model name; empty = the only one the host serves")
    add("--temperature", type=float, default=0.0, help="sampling temperature; 0 = greedy")
    add("--extra-body", default="", help='JSON merged into every request, e.g. {"top_k": 1}')
    add(
        "--header",
        action="append",
        default=None,
        include_in_web_ui=False,  # the page would show every visitor what may be a key
        help="'Name: value', sent with every request",
    )
    add("--timeout", type=float, default=600.0, help="seconds a request may take in all")
    add("--connect-timeout", type=float, default=10.0, help="seconds a connection may take")
    add(
        "--transport",
        choices=TRANSPORTS,
        default=TRANSPORTS[0],
        help="what sends the requests: wire = fastest; aiohttp = where wire does not get through",
    )


def _add_label_options(parser: Any) -> None:
    add = _adder(parser)
    add(
        "--labels",
        choices=LABELS,
        default=LABELS[0],
        help="what vLLM is told of a context: oracle = true; none; shuffled = wrong; rag = found",
    )
    add("--rag-url", default="", help="labels rag: the service that finds a question's context")
    add("--rag-wrong", type=float, default=0.0, help="labels rag: share of wrong contexts, 0 to 1")


def _add_run_options(parser: Any) -> None:
    add = _adder(parser)
    add(
        "--arrivals",
        choices=ARRIVALS,
        default="closed",
        # The web form shows about 110 characters of a label.
        help="closed = users wait for replies; else open loop (at --rate): "
        "users cap those in flight, 0 = no cap",
    )
    add(
        "--rate",
        default="",
        help="open loop: requests (or batches) per second, as 5, or over time: 2:30,2-10:60,10",
    )
    add(
        "--burstiness",
        type=float,
        default=None,
        help="gamma arrivals: below 1 in bursts, 1 = poisson, above 1 more even",
    )
    add("--drain", type=float, default=30.0, help="seconds the last requests may take at the end")
    add("--slo", default="", help="objective of a request, for goodput: ttft_ms<=500,tpot_ms<=50")
    add("--max-failures", type=float, default=0.0, help="percent of failed requests still passed")
    add("--max-lag-ms", type=float, default=100.0, help="client lag beyond which a run is invalid")
    add("--keep-cache", action="store_true", help="do not empty the engine's caches at the start")
    add("--out", default="", include_in_web_ui=False, help="the run directory to write")
    add(
        "--metrics-port",
        type=int,
        default=None,
        include_in_web_ui=False,
        help="serve this swarm's figures to Prometheus at /metrics; 0 = a free port",
    )
    add(
        "--metrics-host",
        default="127.0.0.1",
        include_in_web_ui=False,
        help="address that --metrics-port listens on",
    )


def _adder(parser: Any) -> Any:
    def add(flag: str, **settings: Any) -> None:
        name = flag.removeprefix("--").replace("-", "_").upper()
        parser.add_argument(flag, env_var=f"LOCUST_{name}", **settings)

    return add


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
    )


def _trace(values: Mapping[str, Any]) -> Selection | None:
    path = given.path(values, "trace")
    if path is None:
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


def _rate(values: Mapping[str, Any]) -> Rate | None:
    rate = given.text(values, "rate")
    return Rate.parse(rate) if rate else None


def _transport(values: Mapping[str, Any]) -> TransportName:
    chosen = given.choice(values, "transport", TRANSPORTS)
    return "aiohttp" if chosen == "aiohttp" else "wire"


def _slo(values: Mapping[str, Any]) -> Slo | None:
    slo = given.text(values, "slo")
    return Slo.parse(slo) if slo else None


def _burstiness(values: Mapping[str, Any]) -> float | None:
    if given.text(values, "burstiness") is None:
        return None
    return given.number(values, "burstiness", 1.0, least=0.001, most=1000.0)
