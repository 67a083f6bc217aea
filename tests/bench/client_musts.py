"""What kvswarm's load engine must reach, and whether it did."""

from dataclasses import dataclass

from table import REFERENCE, Results

OURS = "kvswarm"
LOAD = "no delay"
CHAT = "no delay, chat"
LATE = "server_late_p99_ms"
SATURATED_TOO = "kvswarm called itself saturated in a run: its errors there are what it warns of"
MAX_LATE_MS = 1.0
"""Beyond it errors are no longer the client's alone: something else ran on the server's core."""


def paced(streams: int) -> str:
    """The name of a scenario of paced replies."""
    return f"{streams} paced streams"


HTTPS_STREAMS = 1000
HTTPS = f"{paced(HTTPS_STREAMS)}, https"
OPEN_LOOP_RATE = 5000.0
OPEN_LOOP = f"open loop, {OPEN_LOOP_RATE:,.0f}/s"


@dataclass(frozen=True, slots=True)
class Must:
    """A limit on the median of one of kvswarm's figures, or on its ratio to that of `bare`."""

    scenario: str
    figure: str
    limit: float
    to_bare: bool = False
    at_least: bool = False

    def value(self, results: Results) -> float | None:
        """What was reached, None where it was not measured."""
        ours = results.median(self.scenario, self.figure, OURS)
        if not self.to_bare or ours is None:
            return ours
        bare = results.median(self.scenario, self.figure, REFERENCE)
        counts = [results.count(self.scenario, self.figure, name) for name in (OURS, REFERENCE)]
        # A lucky one of several repeats, where the others failed, is no reference.
        return None if bare is None or counts[0] != counts[1] else ours / bare

    def line(self, results: Results) -> str:
        """What was asked, what was reached, and the verdict."""
        value = self.value(results)
        bound = "at least" if self.at_least else "at most"
        unit = " of bare" if self.to_bare else ""
        reached = "not measured" if value is None else f"{value:.3g}"
        verdict = "met" if self.is_met(results) else "MISSED"
        asked = f"{bound} {self.limit:g}{unit}"
        return f"| {self.scenario} | {self.figure} | {asked} | {reached} | {verdict} |"

    def is_met(self, results: Results) -> bool:
        """False also where nothing was measured: silence is no proof."""
        value = self.value(results)
        if value is None:
            return False
        return value >= self.limit if self.at_least else value <= self.limit


MUSTS = (
    Must(LOAD, "requests_per_s", 1.0, to_bare=True, at_least=True),
    Must(LOAD, "cpu_s_per_1000", 1.0, to_bare=True),
    Must(CHAT, "requests_per_s", 1.2, to_bare=True, at_least=True),
    Must(CHAT, "cpu_s_per_1000", 0.8, to_bare=True),
    Must(LOAD, "start_s", 0.4),
    Must(OPEN_LOOP, "dispersion", 1.5),
    Must(paced(64), "ttft_error_mean_ms", 1.7),
    Must(paced(64), "ttft_error_p99_ms", 3.2),
    Must(paced(256), "ttft_error_mean_ms", 6.0),
    Must(paced(256), "ttft_error_p99_ms", 23.0),
    Must(paced(1000), "ttft_error_mean_ms", 48.0),
    Must(paced(1000), "ttft_error_p99_ms", 130.0),
    Must(paced(1000), "itl_error_p99_ms", 20.0),
    Must(paced(1000), "peak_rss_mb", 90.0),
    Must(HTTPS, "ttft_error_p99_ms", 60.0),
    Must(HTTPS, "itl_error_p99_ms", 10.0),
    Must(HTTPS, "peak_rss_mb", 100.0),
)


def judgement(results: Results) -> list[str]:
    """The musts as a table, then the line that counts them."""
    met = sum(must.is_met(results) for must in MUSTS)
    late = [results.median(scenario, LATE, OURS) or 0.0 for scenario, _ in results.rows()]
    late_ms = max(late, default=0.0)
    head = ["| scenario | figure | must | reached | |", "|---|---|---|---|---|"]
    rows = [must.line(results) for must in MUSTS]
    noise = f"the mock server itself was late by {late_ms:.3g} ms (p99): the machine was not quiet"
    told = [noise, ""] if late_ms > MAX_LATE_MS else []
    told += [SATURATED_TOO, ""] if results.saturated else []
    return [*head, *rows, "", *told, f"musts met: {met} of {len(MUSTS)}"]


def all_met(results: Results) -> bool:
    """Whether every must was measured and met."""
    return all(must.is_met(results) for must in MUSTS)
