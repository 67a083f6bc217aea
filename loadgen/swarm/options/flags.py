"""kvswarm's options inside Locust: command line, config file, environment and the web form."""

from functools import partial
from typing import Any

from loadgen.stats.slo import USUAL_DRAIN_S
from loadgen.workload.arrivals import ARRIVALS
from loadgen.workload.batches import ORDERS

ENDPOINTS = ("completions", "chat")
BATCH_FORMS = ("requests", "list")
AUTO = "auto"
LABELS = ("oracle", "none", "shuffled", "rag", "kv")
SESSIONS = ("context", "user", "conversation")
SERVICE_LABELS = ("rag", "kv")
"""Those that a service is asked for, question by question."""

FORM_OPTIONS = (
    "arrivals",
    "rate",
    "contexts",
    "zipf",
    "stickiness",
    "context_tokens",
    "output_tokens",
    "seed",
    "batch_size",
    "order",
    "labels",
    "model",
    "endpoint",
    "slo",
    "warmup",
    "keep_cache",
)
"""What the web form shows, in its order. All others come by command line, configuration file or
environment: paths, what may be a key, and what hardly changes from swarm to swarm."""


def add_options(parser: Any) -> None:
    """Add every option to Locust's parser itself: its web form skips argument groups."""
    _add_workload_options(parser)
    _add_batch_options(parser)
    _add_trace_options(parser)
    _add_request_options(parser)
    _add_label_options(parser)
    _add_run_options(parser)
    _add_web_options(parser)


def _add_workload_options(parser: Any) -> None:
    add = _adder(parser)
    add("--contexts", type=int, default=8, help="how many different contexts the requests share")
    add("--zipf", type=float, default=0.0, help="popularity: 0 = all alike, 1 = few are hot")
    add("--stickiness", type=float, default=0.0, help="P(next request keeps the context), 0 to 1")
    add("--repeat", type=float, default=0.0, help="P(an old request returns unchanged), 0 to <1")
    add("--context-tokens", default="", help="N or min-max; empty = the documents as they are")
    add("--system-tokens", type=int, default=0, help="N: all prompts begin with the same; 0 = none")
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
    add(
        "--extra-body",
        default="",
        help='JSON merged into every request, e.g. {"top_k": 1}; {max_tokens} in a text is the '
        "length of its reply",
    )
    add(
        "--header",
        action="append",
        default=None,
        help="'Name: value', sent with every request",
    )
    add(
        "--session-header",
        default="",
        help="header that keeps requests on one of several engines, e.g. X-Session-ID",
    )
    add(
        "--session-by",
        choices=SESSIONS,
        default=SESSIONS[0],
        help="header's value; conversation = the trace's",
    )
    add("--timeout", type=float, default=600.0, help="seconds a request may take in all")
    add("--connect-timeout", type=float, default=10.0, help="seconds a connection may take")
    add(
        "--retry",
        type=int,
        default=0,
        help="how often a rejected request (429, 503) is tried again, after its Retry-After",
    )


def _add_label_options(parser: Any) -> None:
    add = _adder(parser)
    add(
        "--labels",
        choices=LABELS,
        default=LABELS[0],
        help="what vLLM is told of a context: oracle = true; none; shuffled = wrong; rag, kv found",
    )
    add("--rag-url", default="", help="labels rag, kv: the service that is asked of a question")
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
    add(
        "--drain",
        type=float,
        default=USUAL_DRAIN_S,
        help="seconds the last requests may take at the end",
    )
    add(
        "--max-silence",
        type=float,
        default=60.0,
        help="seconds without any answer, to requests or /metrics, that end the run; 0 = never",
    )
    add("--slo", default="", help="objective of a request, for goodput: ttft_ms<=500,tpot_ms<=50")
    add(
        "--gate",
        default=None,
        help="limits, else exit code 1: 'ttft_ms.p95<=500, goodput>=99%%', or a TOML file",
    )
    add("--require-proof", action="store_true", help="gate: the whole interval must keep a limit")
    add("--warmup", default="0", help="seconds at the start that figures leave out; auto = found")
    add("--max-failures", type=float, default=0.0, help="percent of failed requests still passed")
    add("--max-lag-ms", type=float, default=100.0, help="client lag beyond which a run is invalid")
    add("--keep-cache", action="store_true", help="do not empty the engine's caches at the start")
    add("--out", default="", help="the run directory to write")
    add(
        "--metrics-port",
        type=int,
        default=None,
        help="serve this swarm's figures to Prometheus at /metrics; 0 = a free port",
    )
    add(
        "--metrics-host",
        default="127.0.0.1",
        help="address that --metrics-port listens on",
    )


def _add_web_options(parser: Any) -> None:
    """What the web UI lets its visitors do; none of it can be changed in its form."""
    add = partial(_adder(parser), action="append", default=None)
    add("--web-allowed-host", help="web UI: a further NAME or NAME:PORT under which it is asked")
    add("--key-host", help="web UI: a further host that gets API key, headers and --extra-body")


def _adder(parser: Any) -> Any:
    def add(flag: str, **settings: Any) -> None:
        name = flag.removeprefix("--").replace("-", "_")
        shown = name in FORM_OPTIONS
        parser.add_argument(
            flag, env_var=f"LOCUST_{name.upper()}", include_in_web_ui=shown, **settings
        )

    return add
