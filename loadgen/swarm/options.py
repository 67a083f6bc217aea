"""kvswarm's options inside Locust: command line, config file, environment and the web form."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from loadgen.errors import UsageError
from loadgen.workload.settings import Span, WorkloadSettings

ENDPOINTS = ("completions", "chat")
ARRIVALS = ("closed", "constant", "poisson")


@dataclass(frozen=True, slots=True)
class SwarmOptions:
    """Everything a run is told on Locust's side; built once from Locust's parsed options."""

    workload: WorkloadSettings
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
    arrivals: str
    rate: float | None
    drain_s: float
    max_failures_percent: float
    max_lag_ms: float
    keep_cache: bool
    out: Path | None

    @classmethod
    def read(cls, values: Mapping[str, Any]) -> "SwarmOptions":
        """Build from Locust's options or a submitted web form; UsageError names a bad value."""
        return cls(
            workload=_workload(values),
            corpus=_path(values, "corpus"),
            questions=_path(values, "questions"),
            tokenizer=_text(values, "tokenizer"),
            model=_text(values, "model"),
            endpoint=_choice(values, "endpoint", ENDPOINTS),
            temperature=_number(values, "temperature", 0.0, least=0.0),
            extra_body=_text(values, "extra_body"),
            headers=_headers(values.get("header")),
            timeout_s=_number(values, "timeout", 600.0, above=0.0),
            connect_timeout_s=_number(values, "connect_timeout", 10.0, above=0.0),
            arrivals=_choice(values, "arrivals", ARRIVALS),
            rate=_rate(values),
            drain_s=_number(values, "drain", 30.0, least=0.0),
            max_failures_percent=_number(values, "max_failures", 0.0, least=0.0),
            max_lag_ms=_number(values, "max_lag_ms", 100.0, above=0.0),
            keep_cache=_flag(values, "keep_cache"),
            out=_path(values, "out"),
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
    _add_request_options(parser)
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


def _add_run_options(parser: Any) -> None:
    add = _adder(parser)
    add(
        "--arrivals",
        choices=ARRIVALS,
        default="closed",
        # The web form shows about 110 characters of a label.
        help="closed = users wait for replies; else open loop at --rate: users cap those in flight,"
        " 0 = no cap",
    )
    add("--rate", type=float, default=None, help="open loop: requests per second, whole swarm")
    add("--drain", type=float, default=30.0, help="seconds the last requests may take at the end")
    add("--max-failures", type=float, default=0.0, help="percent of failed requests still passed")
    add("--max-lag-ms", type=float, default=100.0, help="client lag beyond which a run is invalid")
    add("--keep-cache", action="store_true", help="do not empty the engine's caches at the start")
    add("--out", default="", include_in_web_ui=False, help="the run directory to write")


def _adder(parser: Any) -> Any:
    def add(flag: str, **settings: Any) -> None:
        name = flag.removeprefix("--").replace("-", "_").upper()
        parser.add_argument(flag, env_var=f"LOCUST_{name}", **settings)

    return add


def _workload(values: Mapping[str, Any]) -> WorkloadSettings:
    context_tokens = _text(values, "context_tokens")
    return WorkloadSettings(
        seed=_whole(values, "seed", 0),
        contexts=_whole(values, "contexts", 8),
        zipf=_number(values, "zipf", 0.0),
        stickiness=_number(values, "stickiness", 0.0),
        repeat=_number(values, "repeat", 0.0),
        context_tokens=Span.parse(context_tokens, "--context-tokens") if context_tokens else None,
        output_tokens=Span.parse(_text(values, "output_tokens") or "16", "--output-tokens"),
    )


def _flag_name(name: str) -> str:
    return "--" + name.replace("_", "-")


def _text(values: Mapping[str, Any], name: str) -> str | None:
    value = values.get(name)
    return str(value).strip() or None if value is not None else None


def _path(values: Mapping[str, Any], name: str) -> Path | None:
    text = _text(values, name)
    return Path(text).expanduser() if text else None


def _flag(values: Mapping[str, Any], name: str) -> bool:
    return str(values.get(name, "")).lower() in ("true", "1", "yes", "on")


def _whole(values: Mapping[str, Any], name: str, default: int) -> int:
    text = _text(values, name)
    try:
        return int(text) if text else default
    except ValueError:
        raise UsageError(f"{_flag_name(name)} {text!r} is not a whole number") from None


def _number(
    values: Mapping[str, Any],
    name: str,
    default: float,
    least: float = -math.inf,
    above: float = -math.inf,
) -> float:
    text = _text(values, name)
    try:
        number = float(text) if text else default
    except ValueError:
        raise UsageError(f"{_flag_name(name)} {text!r} is not a number") from None
    if not math.isfinite(number) or number < least or number <= above:
        bound = f"above {max(above, 0):g}" if above > -math.inf else f"from {max(least, 0):g} on"
        raise UsageError(f"{_flag_name(name)} {number:g} is out of range: give a number {bound}")
    return number


def _rate(values: Mapping[str, Any]) -> float | None:
    return _number(values, "rate", 0.0, above=0.0) if _text(values, "rate") else None


def _choice(values: Mapping[str, Any], name: str, choices: tuple[str, ...]) -> str:
    text = _text(values, name) or choices[0]
    if text not in choices:
        raise UsageError(f"{_flag_name(name)} {text!r} is unknown: choose {', '.join(choices)}")
    return text


def _headers(value: Any) -> tuple[str, ...]:
    lines = value.splitlines() if isinstance(value, str) else (value or ())
    return tuple(line.strip() for line in lines if line.strip())
