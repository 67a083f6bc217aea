"""What the terminal shows during a run and after it, and the figures of the moment."""

import contextlib
import logging
import os
import sys
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import gevent

from loadgen.compare.run_gate import gate_lines
from loadgen.errors import OutputError
from loadgen.swarm.showing.summary_words import (
    error_lines,
    in_ms,
    in_percent,
    summary_lines,
    summary_table,
)
from rag_store.cli.output import fitted

if TYPE_CHECKING:  # rich comes when a table is drawn: the first request does not wait for it
    from rich.live import Live

    from loadgen.swarm.leading.swarm_run import SwarmRun

VIEW_VARIABLE = "KVSWARM_VIEW"
"""Set by `kvswarm run`; plain Locust keeps its own terminal output."""
LINES_EVERY_S = 5


@dataclass(frozen=True, slots=True)
class LiveFigures:
    """Totals of the run so far and rates since the ones before."""

    at: float
    elapsed_s: float
    users: int
    requests: int
    failed: int
    output_tokens: int
    requests_per_s: float
    output_tokens_per_s: float
    retrieval_p50_ms: float | None
    retrieval_p95_ms: float | None
    ttft_p50_ms: float | None
    ttft_p95_ms: float | None
    e2e_p50_ms: float | None
    e2e_p95_ms: float | None
    hit_rate: float | None
    goodput_share: float | None


def live_figures(run: "SwarmRun", last: LiveFigures | None) -> LiveFigures:
    """Those of this moment; rates are over the time since `last`."""
    tally = run.ledger.tally
    now = time.perf_counter()
    span_s = now - last.at if last else 0.0
    requests, tokens = tally.finished, tally.output_tokens
    ttft, e2e = tally.sketches["ttft_ms"], tally.sketches["e2e_ms"]
    retrieval = tally.sketches["retrieval_ms"]
    return LiveFigures(
        at=now,
        elapsed_s=run.now_s,
        users=run.users,
        requests=requests,
        failed=tally.failed,
        output_tokens=tokens,
        requests_per_s=(requests - last.requests) / span_s if last and span_s else 0.0,
        output_tokens_per_s=(tokens - last.output_tokens) / span_s if last and span_s else 0.0,
        retrieval_p50_ms=retrieval.quantile(0.5),
        retrieval_p95_ms=retrieval.known_quantile(0.95),
        ttft_p50_ms=ttft.quantile(0.5),
        ttft_p95_ms=ttft.known_quantile(0.95),
        e2e_p50_ms=e2e.quantile(0.5),
        e2e_p95_ms=e2e.known_quantile(0.95),
        hit_rate=_hit_rate(run),
        goodput_share=tally.figure("goodput_share"),
    )


def _hit_rate(run: "SwarmRun") -> float | None:
    rate = run.server.whole.figures()["hit_rate"]
    return run.ledger.tally.figure("cached_share") if rate is None else float(rate)


class View:
    """A live line of figures in a terminal, a plain line every few seconds elsewhere."""

    def __init__(self) -> None:
        self._enabled = bool(os.environ.get(VIEW_VARIABLE))
        self._live: Live | None = None
        self._greenlet: gevent.Greenlet | None = None

    def say(self, text: str) -> None:
        """One line that the user should see."""
        _tell(f"kvswarm: {text}")

    def open(self, run: "SwarmRun") -> None:
        """Start showing the swarm that has just started."""
        if not self._enabled:
            return
        # Locust's closing tables would say in other words what our report says.
        logging.getLogger("locust.stats_logger").disabled = True
        if sys.stderr is not None and sys.stderr.isatty():
            self._live = _live_display()
            self._live.start()
        self._greenlet = gevent.spawn(self._show_for_ever, run)

    def close(self) -> None:
        """Stop showing."""
        if self._greenlet is not None:
            self._greenlet.kill()
            self._greenlet = None
        if self._live is not None:
            with contextlib.suppress(OSError):  # the terminal has been closed
                self._live.stop()
            self._live = None

    def report(self, run: "SwarmRun", summary: dict[str, Any], still_waiting: int = 0) -> None:
        """Say what the run measured and where it is kept; `still_waiting` are requests that a RAG
        service which stopped answering has left."""
        directory = None if run.directory is None else run.directory.path
        if not self._enabled:
            told = [] if directory is None else [f"run written to {directory}"]
            for line in (*told, *gate_lines(summary["gate"])):
                self.say(line)
            return
        from rich.console import Console

        lines = summary_lines(summary)
        if still_waiting:
            lines.append(f"{still_waiting} requests were still waiting for the RAG service")
        if directory is not None:
            lines.append(f"run directory: {directory}" if run.fault is None else run.fault)
        lines += gate_lines(summary["gate"])
        out = Console(highlight=False, emoji=False, file=sys.stdout)
        # The files are complete; who reads has left, of which rich makes an exit, or the disk is
        # full, which whoever started us says.
        with contextlib.suppress(BrokenPipeError, SystemExit, OutputError):
            for line in error_lines(run.environment.runner):
                out.print(fitted(line, sys.stdout), markup=False, soft_wrap=True)
            out.print(summary_table(summary))
            for line in lines:
                out.print(fitted(line, sys.stdout), markup=False, soft_wrap=True)

    def _show_for_ever(self, run: "SwarmRun") -> None:
        last = live_figures(run, None)
        seconds = 0
        while True:
            gevent.sleep(1.0)
            seconds += 1
            now = live_figures(run, last)
            if self._live is not None:
                self._live.update("\n".join(live_lines(now)), refresh=True)
            elif seconds % LINES_EVERY_S == 0:
                _tell("\n".join(live_lines(now)))
            last = now


def _tell(line: str) -> None:
    # While there is a live line, rich stands in for stderr and writes above it. A run does not end
    # with who reads of it.
    with contextlib.suppress(OSError):
        print(fitted(line, sys.stderr), file=sys.stderr, flush=True)  # noqa: T201


class _FittedFormatter(logging.Formatter):
    """What another makes of a record, no wider than the terminal that a handler writes to."""

    def __init__(self, form: logging.Formatter, stream: Any) -> None:
        super().__init__()
        self._form, self._stream = form, stream

    def format(self, record: logging.LogRecord) -> str:
        return fitted(self._form.format(record), self._stream)


def fit_log() -> None:
    """Break the lines that Locust's log writes to a terminal where it ends."""
    for name in ("", "locust"):
        for handler in logging.getLogger(name).handlers:
            if isinstance(handler, logging.StreamHandler) and handler.formatter is not None:
                handler.formatter = _FittedFormatter(handler.formatter, handler.stream)


def _live_display() -> "Live":
    from rich.console import Console
    from rich.live import Live

    return Live(console=Console(stderr=True, highlight=False), auto_refresh=False, transient=True)


def live_lines(now: LiveFigures) -> list[str]:
    """The last second, and beside it the run so far; each fits into 80 columns."""
    elapsed_s = max(now.elapsed_s, 1e-9)
    last = f"last second {_rate(now.requests_per_s)}, {now.output_tokens_per_s:.0f} tokens/s"
    lines = [
        f"{now.elapsed_s:.0f} s: {now.users} users, {now.requests} requests, {now.failed} failed",
        f"  {last}; so far {_rate(now.requests / elapsed_s)},"
        f" {now.output_tokens / elapsed_s:.0f} tokens/s",
        f"  so far p50/p95: TTFT {_pair(now.ttft_p50_ms, now.ttft_p95_ms)},"
        f" E2E {_pair(now.e2e_p50_ms, now.e2e_p95_ms)}",
    ]
    more = []
    if now.hit_rate is not None:
        more.append(f"hit rate {in_percent(now.hit_rate)}")
    if now.goodput_share is not None:
        more.append(f"{in_percent(now.goodput_share)} in objective")
    if now.retrieval_p50_ms is not None:
        more.append(f"retrieval {_pair(now.retrieval_p50_ms, now.retrieval_p95_ms)}")
    if more:
        lines.append(f"  {', '.join(more)}")
    return lines


def _rate(per_s: float) -> str:
    return f"{per_s:.1f} req/s" if per_s < 100 else f"{per_s:.0f} req/s"


def _pair(p50_ms: float | None, p95_ms: float | None) -> str:
    return f"{in_ms(p50_ms)}/{in_ms(p95_ms)} ms"
