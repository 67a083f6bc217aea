"""One row of figures each second, from what a run counts anyway."""

from typing import TYPE_CHECKING

from dashboards.live_tab.series import Figures
from dashboards.live_tab.window import WINDOW_S, Reading, Window
from loadgen.stats.self_watch import ClientSample
from loadgen.stats.server_counters import server_figures
from loadgen.stats.server_metrics import ServerSample

if TYPE_CHECKING:
    from loadgen.swarm.leading.swarm_run import SwarmRun


class Sampler:
    """Reads one run."""

    def __init__(self, run: "SwarmRun") -> None:
        self.saturated = ""
        """Why the client cannot be trusted; empty while it can."""
        self._run = run
        self._window = Window()
        self._clients: list[ClientSample] = []
        self._clients_read = run.ledger.clients.count

    def take(self) -> Figures:
        """The values of this second, in the order of `series.COLUMNS`."""
        run, window, at_s = self._run, self._window, self._run.now_s
        window.add(Reading.take(run.ledger.tally, at_s))
        self.saturated = run.ledger.clients.verdict().reason
        return tuple(
            _rounded(value)
            for value in (
                at_s,
                run.users,
                window.per_s("ok"),
                window.per_s("failed"),
                window.per_s("output_tokens"),
                window.goodput_share,
                *window.quantiles("ttft_ms"),
                *window.quantiles("itl_ms"),
                *self._cache(),
                *self._load_generator(),
            )
        )

    @property
    def server_state(self) -> str:
        """`metrics`, or why there are no figures of the engine: `silent` or `none`."""
        recent = self._run.server.recent
        if not recent or not recent[-1].reachable:
            return "silent"
        return "none" if recent[-1].prompt_tokens is None else "metrics"

    def _cache(self) -> Figures:
        """Of the engine: hit rates of the last seconds, and what it holds at this moment."""
        samples = [*self._run.server.recent][-WINDOW_S - 1 :] or [ServerSample(0.0)]
        first, last = samples[0], samples[-1]
        gained = server_figures(first, last)
        return (
            gained["hit_rate"],
            gained["external_hit_rate"],
            self._window.told_hit_rate,
            last.kv_cache_usage,
            last.running,
            last.waiting,
        )

    def _load_generator(self) -> Figures:
        """The worst process by its last samples: those of a second may come in the next one."""
        clients = self._run.ledger.clients
        self._clients = clients.since(self._clients_read) or self._clients
        self._clients_read = clients.count
        late = [each.send_lateness_p99_ms for each in self._clients]
        return (
            max((each.loop_lag_p99_ms for each in self._clients), default=None),
            max((ms for ms in late if ms is not None), default=None),
        )


def _rounded(value: float | bool | None) -> float | None:
    """Four significant digits are more than a chart shows."""
    return None if value is None else float(f"{value:.4g}")
