"""What the terminal shows during a run and after it."""

import contextlib
import logging
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gevent

from loadgen.runs.cut_off import count_cut_off
from loadgen.swarm.pulse import Pulse, pulse
from loadgen.swarm.request_sender import CUT_OFF_RETRIEVAL

if TYPE_CHECKING:  # rich comes when a table is drawn: the first request does not wait for it
    from rich.console import Console
    from rich.live import Live
    from rich.table import Table

    from loadgen.swarm.leader import Leader

VIEW_VARIABLE = "KVSWARM_VIEW"
"""Set by `kvswarm run`; plain Locust keeps its own terminal output."""
LINES_EVERY_S = 5
MOST_ERRORS = 5
NO_CACHED_TOKENS = (
    "cached tokens: the host does not send them, the column is empty"
    " (start vLLM with --enable-prompt-tokens-details; a list call never tells them)"
)


class View:
    """A live line of figures in a terminal, a plain line every few seconds elsewhere."""

    def __init__(self, leader: "Leader") -> None:
        self._leader = leader
        self._enabled = bool(os.environ.get(VIEW_VARIABLE))
        self._live: Live | None = None
        self._greenlet: gevent.Greenlet | None = None

    def say(self, text: str) -> None:
        """One line that the user should see."""
        _tell(f"kvswarm: {text}")

    def open(self) -> None:
        """Start showing the swarm that has just started."""
        if not self._enabled:
            return
        # Locust's closing tables would say in other words what our report says.
        logging.getLogger("locust.stats_logger").disabled = True
        if sys.stderr.isatty():
            self._live = _live_display()
            self._live.start()
        self._greenlet = gevent.spawn(self._show_for_ever)

    def close(self) -> None:
        """Stop showing."""
        if self._greenlet is not None:
            self._greenlet.kill()
            self._greenlet = None
        if self._live is not None:
            self._live.stop()
            self._live = None

    def report(self, summary: dict[str, Any], directory: Path | None) -> None:
        """Say what the run measured and where it is kept."""
        if not self._enabled:
            if directory is not None:
                self.say(f"run written to {directory}")
            return
        from rich.console import Console

        out = Console(highlight=False, file=sys.stdout)
        with contextlib.suppress(BrokenPipeError):  # who reads has left; the files are complete
            self._print(out, summary, directory)

    def _print(self, out: "Console", summary: dict[str, Any], directory: Path | None) -> None:
        lines = summary_lines(summary)
        if directory is not None:
            lines += [*self._hung(summary, directory), f"run directory: {directory}"]
        for line in error_lines(self._leader.environment.runner):
            out.print(line, markup=False, soft_wrap=True)
        out.print(summary_table(summary))
        for line in lines:
            out.print(line, markup=False, soft_wrap=True)

    def _hung(self, summary: dict[str, Any], directory: Path) -> list[str]:
        """What a RAG service that stopped answering has left: cancelled is no failure."""
        ready = self._leader.preparation
        if ready is None or ready.rag is None or not summary["outcomes"].get("cancelled"):
            return []
        count = count_cut_off(directory / "requests.csv", CUT_OFF_RETRIEVAL)
        return [f"{count} requests were still waiting for the RAG service"] if count else []

    def _show_for_ever(self) -> None:
        last = pulse(self._leader, None)
        seconds = 0
        while True:
            gevent.sleep(1.0)
            seconds += 1
            now = pulse(self._leader, last)
            if self._live is not None:
                self._live.update(_live_table(now), refresh=True)
            elif seconds % LINES_EVERY_S == 0:
                _tell(_line(now))
            last = now


def _tell(line: str) -> None:
    # While there is a live line, rich stands in for stderr and writes above it.
    print(line, file=sys.stderr, flush=True)  # noqa: T201


def _live_display() -> "Live":
    from rich.console import Console
    from rich.live import Live

    return Live(console=Console(stderr=True, highlight=False), auto_refresh=False, transient=True)


def _live_table(now: Pulse) -> "Table":
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    cells = _cells(now)
    for name in cells:
        table.add_column(name, justify="right")
    table.add_row(*cells.values())
    return table


def _line(now: Pulse) -> str:
    return "  ".join(f"{name} {value}" for name, value in _cells(now).items())


def _cells(now: Pulse) -> dict[str, str]:
    retrieval = {}
    if now.retrieval_p50_ms is not None:
        retrieval["retrieval p50/p95"] = _pair(now.retrieval_p50_ms, now.retrieval_p95_ms)
    return {
        "t": f"{now.elapsed_s:.0f} s",
        "users": str(now.users),
        "requests": str(now.requests),
        "failed": str(now.failed),
        "req/s": f"{now.requests_per_s:.1f}",
        **retrieval,
        "TTFT p50/p95": _pair(now.ttft_p50_ms, now.ttft_p95_ms),
        "E2E p50/p95": _pair(now.e2e_p50_ms, now.e2e_p95_ms),
        "tokens/s": f"{now.output_tokens_per_s:.0f}",
        "hit rate": "-" if now.hit_rate is None else f"{now.hit_rate:.0%}",
    }


def _pair(p50_ms: float | None, p95_ms: float | None) -> str:
    return f"{_ms(p50_ms)} / {_ms(p95_ms)} ms"


def _ms(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def summary_table(summary: dict[str, Any]) -> "Table":
    """The latency metrics of a summary as a table, with retrieval and makespan where they were."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    table.add_column("")
    for name in ("count", "mean", "p50", "p90", "p95", "p99", "max"):
        table.add_column(name, justify="right")
    for name in ("retrieval_ms", "ttft_ms", "itl_ms", "tpot_ms", "e2e_ms", "makespan_s"):
        metric = summary["metrics"][name]
        if name in ("retrieval_ms", "makespan_s") and not metric["count"]:
            continue
        figures = [_ms(metric[key]) for key in ("mean", "p50", "p90", "p95", "p99", "max")]
        table.add_row(name, str(metric["count"]), *figures)
    return table


def summary_lines(summary: dict[str, Any]) -> list[str]:
    """The rest of a summary in words."""
    outcomes = ", ".join(f"{count} {name}" for name, count in summary["outcomes"].items())
    lines = [
        f"requests: {outcomes} in {summary['duration_s']:.1f} s",
        f"throughput: {_rate(summary['requests_per_s'])} requests/s,"
        f" {_rate(summary['output_tokens_per_s'])} output tokens/s",
        _cache_line(summary),
    ]
    if summary["batches"]:
        counts = ", ".join(f"{count} {name}" for name, count in summary["batches"].items())
        lines.insert(1, f"batches: {counts}")
    if summary["goodput_share"] is not None:
        lines.append(
            f"goodput: {summary['goodput_share']:.1%} of requests within the objective,"
            f" {_rate(summary['goodput_per_s'])} requests/s"
        )
    if summary["refused_share"] is not None:
        lines.append(_retrieval_line(summary))
    if summary["outcomes"]["ok"] and not summary["metrics"]["cached_tokens"]["count"]:
        lines.append(NO_CACHED_TOKENS)
    if summary["diversity"]:
        lines.append(_diversity_line(summary["diversity"]))
    if summary["lost_workers"]:
        lines.append(f"{summary['lost_workers']} WORKER(S) LOST: a share of the load was not sent")
    if summary["stats_reset_s"] is not None:
        lines.append(f"figures count from the reset at {summary['stats_reset_s']:.1f} s on")
    if summary["client_saturated"]:
        lines.append("CLIENT SATURATED: the load generator lagged; do not trust these figures")
    return lines


def error_lines(runner: Any) -> list[str]:
    """The most frequent failures and the exceptions of users, a line each."""
    failures = sorted(runner.errors.values(), key=lambda failure: -failure.occurrences)
    lines = [f"{failure.occurrences} x {failure.error}" for failure in failures[:MOST_ERRORS]]
    raised = runner.exceptions.values()
    lines += [f"{row['count']} x exception in a user: {row['msg']}" for row in raised]
    return lines


def _rate(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"


def _cache_line(summary: dict[str, Any]) -> str:
    server, told = summary["server"], summary["cached_share"]
    if not server or server.get("hit_rate") is None:
        if told is not None:
            return (
                f"prompt tokens: {told:.1%} from cache, by the replies of the host"
                " (no /metrics of vLLM)"
            )
        return "prompt tokens: the host tells nothing about its cache (no /metrics of vLLM)"
    line = (
        f"prompt tokens: {server['computed_prompt_tokens']:.0f} computed,"
        f" {server['cached_prompt_tokens']:.0f} from cache, hit rate {server['hit_rate']:.1%}"
    )
    if server.get("external_prompt_tokens"):
        line += f", {server['external_hit_rate']:.1%} from offload"
    return line


def _retrieval_line(summary: dict[str, Any]) -> str:
    share = summary["retrieval_share"]
    return (
        f"retrieval: {summary['label_accuracy']:.1%} of the contexts right,"
        f" {summary['refused_share']:.1%} refused"
        + ("" if share is None else f", {share:.1%} of TTFT")
    )


def _diversity_line(diversity: dict[str, Any]) -> str:
    return (
        f"diversity: {diversity['distinct_contexts']} contexts,"
        f" effectively {diversity['effective_contexts']:.1f},"
        f" {diversity['entropy_bits']:.2f} bits"
    )
