"""Run directories for the tests of `kvswarm report`, by the code that writes those of real runs;
and a page as those tests see it."""

from collections.abc import Sequence
from dataclasses import astuple, dataclass, field
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

from compare_runs import argv

from loadgen.record import RequestRecord
from loadgen.runs.directory import RunDirectory
from loadgen.stats.self_watch import ClientHealth, ClientSample
from loadgen.stats.server_counters import ServerSample, server_figures
from loadgen.stats.summary import summarize, write_summary
from loadgen.stats.tally import Tally

DESCRIPTION = {
    "command_line": ["kvswarm", "run", "--target", "vllm"],
    "options": {"contexts": 3, "run_time": 20, "arrivals": "closed", "max_lag_ms": 100.0},
    "seed": 0,
    "users": 2,
    "workers": 1,
    "host": "http://127.0.0.1:8000",
    "model": "tiny",
    "target": {"name": "vllm", "usable_tokens": 5120, "argv": {"vllm": argv()}, "env": {}},
    "cache_state": "cold",
    "notes": [],
    "versions": {"python": "3.11"},
    "machine": {"cpus": 2},
    "start_unix_s": 1_750_000_000.0,
    "exit_code": 0,
    "host_died": False,
}


def record(number: int, context: str = "a", **fields: Any) -> RequestRecord:
    """A request that took 0.05 ms for each of its computed tokens."""
    prompt, cached = 1000 + 10 * (number % 50), 900 if number % 3 else 0
    ttft_ms, sent_s = (prompt - cached) / 20 + number % 7, number * 0.1
    known: dict[str, Any] = {
        "request_id": str(number),
        "worker": "0",
        "user": "user-0",
        "context_id": context,
        "question_id": "q",
        "repeat": False,
        "scheduled_s": sent_s,
        "sent_s": sent_s,
        "first_token_s": sent_s + ttft_ms / 1000,
        "end_s": sent_s + ttft_ms / 1000 + 0.1,
        "ttft_ms": ttft_ms,
        "itl_mean_ms": 10.0,
        "itl_p50_ms": 10.0,
        "itl_p95_ms": 11.0,
        "itl_p99_ms": 12.0,
        "itl_max_ms": 13.0,
        "tpot_ms": 10.0,
        "e2e_ms": ttft_ms + 100,
        "prompt_tokens": prompt,
        "cached_tokens": cached,
        "output_tokens": 11,
        "outcome": "ok",
        "status": 200,
        "error": "",
    }
    return RequestRecord(**known | fields)


def requests(count: int = 200, contexts: Sequence[str] = ("a", "b", "c")) -> list[RequestRecord]:
    """As many requests, ten for a context at a time."""
    return [record(each, contexts[each // 10 % len(contexts)]) for each in range(count)]


def write_report_run(
    path: Path,
    records: Sequence[RequestRecord] | None = None,
    *,
    lag_ms: float = 2.0,
    summary: dict[str, Any] | None = None,
    **description: Any,
) -> Path:
    """A finished run of 20 s in which a third of the prompt tokens was computed."""
    path.mkdir(parents=True)
    records = requests() if records is None else records
    directory, tally = RunDirectory(path), Tally()
    for each in records:
        tally.add(each, [10.0] * 10)
    clients = [ClientSample(each, "0", 1.0, lag_ms, lag_ms, None, 0.2, 80.0) for each in range(21)]
    servers = [_server(each) for each in range(21)]
    directory.requests.append(astuple(each) for each in records)
    directory.client_metrics.append(astuple(each) for each in clients)
    directory.server_metrics.append(astuple(each) for each in servers)
    directory.describe(DESCRIPTION | description)
    directory.close()
    health = ClientHealth()
    for sample in clients:
        health.add(sample)
    saturation = health.verdict()
    figures = summarize(
        tally,
        duration_s=(tally.last_end_s or 0) - (tally.first_sent_s or 0),
        diversity=None,
        server=server_figures(servers[0], servers[-1], servers[1:-1]),
        client_saturated=saturation.saturated,
        client_saturated_reason=saturation.reason,
    )
    extra = {"stats_reset_s": None, "lost_workers": 0}
    write_summary(path, figures | extra | (summary or {}))
    return path


def _server(at_s: int) -> ServerSample:
    return ServerSample(
        at_s,
        True,
        prompt_tokens=300 * at_s,
        computed_prompt_tokens=100 * at_s,
        cached_prompt_tokens=200 * at_s,
        external_prompt_tokens=0,
        generation_tokens=10 * at_s,
        num_preemptions=0,
        running=2,
        waiting=1,
        kv_cache_usage=0.5,
        engine_rss_mb=1200,
        engine_cpu_s=0.5 * at_s,
    )


@dataclass
class Element:
    """A start tag with the text inside it."""

    tag: str
    attributes: dict[str, str]
    text: str = ""


@dataclass
class Page(HTMLParser):
    """A page as elements in their order; `open` are those not closed yet."""

    markup: str
    elements: list[Element] = field(default_factory=list)
    open: list[Element] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()
        self.feed(self.markup)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        element = Element(tag, {name: value or "" for name, value in attrs})
        self.elements.append(element)
        if tag not in ("meta", "link", "img"):
            self.open.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append(Element(tag, {name: value or "" for name, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        while self.open and self.open.pop().tag != tag:
            pass

    def handle_data(self, data: str) -> None:
        for element in self.open:
            element.text += data

    def all(self, tag: str, **attributes: str) -> list[Element]:
        """Elements of that tag with these attributes."""
        return [
            each
            for each in self.elements
            if each.tag == tag and attributes.items() <= each.attributes.items()
        ]

    def texts(self, tag: str, **attributes: str) -> list[str]:
        """Their texts, each on one line."""
        return [" ".join(each.text.split()) for each in self.all(tag, **attributes)]

    @property
    def rows(self) -> list[list[str]]:
        """Every row of every table as its cells."""
        found: list[list[str]] = []
        for each in self.elements:
            if each.tag == "tr":
                found.append([])
            elif each.tag in ("td", "th") and found:
                found[-1].append(" ".join(each.text.split()))
        return found

    def row(self, head: str) -> list[str]:
        """The cells behind the first row head of that text."""
        return next(row[1:] for row in self.rows if row[0] == head)

    @property
    def body(self) -> str:
        """All words of the body."""
        return self.texts("body")[0]
