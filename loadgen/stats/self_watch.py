"""The client's own health: whether it was fast enough for its figures to be trusted."""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, fields

import psutil

from loadgen.client.token_times import TokenTimes
from loadgen.stats.memory import MB
from loadgen.stats.sketch import Sketch

TICK_S = 0.01
MOST_TICKS = 5000
"""Of one stall: those of a longer one lie further apart."""
MAX_LAG_MS = 100.0
"""Unless `--max-lag-ms` says another."""


def awake_clock() -> float:
    """Seconds that go on while the machine sleeps, where the system tells them."""
    boottime = getattr(time, "CLOCK_BOOTTIME", None)
    return time.perf_counter() if boottime is None else time.clock_gettime(boottime)


@dataclass(frozen=True, slots=True)
class ClientSample:
    """A second of one client process, longer where it stood still: a row of `client_metrics.csv`.

    `at_s` counts from the run's start. `cpu_share` is CPU seconds of all threads per second of
    wall time (1.0 is one full core). `send_lateness_p99_ms` is None when nothing was sent.
    """

    at_s: float
    """When."""
    process: str
    """Index of the process, as `worker` in `requests.csv`."""
    loop_lag_p50_ms: float
    """Median lateness of a 10 ms timer in the event loop."""
    loop_lag_p99_ms: float
    """Its 99th percentile."""
    loop_lag_max_ms: float
    """Its worst."""
    send_lateness_p99_ms: float | None
    """Open loop: how long after its due time a request was released; empty where none was."""
    cpu_share: float
    """CPU seconds per second: 1.0 is one full core."""
    rss_mb: float
    """Resident memory."""
    elapsed_s: float = 1.0
    """What the row stands for: more than a second where the process stood still."""
    sends: int = 0
    """Open loop: requests that were released."""
    late_sends: int = 0
    """Of these, those later than `--max-lag-ms`."""
    tokens: int = 0
    """Token times."""
    shared_tokens: int = 0
    """Read with the token before, whose time they share."""
    late_tokens: int = 0
    """Read too late for a time of their own."""
    late_token_ms: float | None = None
    """Their longest wait, in the mean."""
    reads: int = 0
    """Of connections."""
    unstamped_reads: int = 0
    """Without the kernel's time."""
    full_reads: int = 0
    """Of 16 KB, the most."""
    late_looks: int = 0
    """Looks at connections over 20 ms late."""

    @property
    def token_times(self) -> TokenTimes:
        """The same, to be added."""
        late_ms = (self.late_token_ms or 0.0) * self.late_tokens
        reads = (self.reads, self.unstamped_reads, self.full_reads, self.late_looks)
        return TokenTimes(self.tokens, self.shared_tokens, self.late_tokens, late_ms, *reads)


COLUMNS: tuple[str, ...] = tuple(each.name for each in fields(ClientSample))


class LoopWatch:
    """Watches this process from inside its event loop.

    It ticks every 10 ms and notes how late the loop let each tick be. Ticks lie on a fixed grid
    and those a stall swallowed count too, each with its own lateness; else a stall of half a
    second would be one value among fifty good ones. All methods belong to the watched loop.
    """

    def __init__(
        self,
        process: str,
        clock: Callable[[], float] = awake_clock,
        max_lag_ms: float = MAX_LAG_MS,
    ) -> None:
        self._process = process
        self._clock = clock
        self._max_lag_ms = max_lag_ms
        self._due_s = math.inf
        self._sampled_s = clock()
        self._sends = self._late_sends = 0
        self._lag_ms = Sketch()
        self._late_ms = Sketch()
        self._psutil, self._rss_mb = psutil.Process(), 0.0
        self._wall_s, self._cpu_s = time.perf_counter(), time.process_time()

    async def run(self) -> None:
        """Tick until cancelled."""
        self._due_s = self._clock() + TICK_S
        while True:
            # At least a millisecond: uvloop rounds shorter waits to none and would spin.
            await asyncio.sleep(max(self._due_s - self._clock(), 0.001))
            self._catch_up()

    def _catch_up(self) -> None:
        now_s = self._clock()
        step_s = TICK_S
        if now_s > self._due_s + MOST_TICKS * TICK_S:
            step_s = (now_s - self._due_s) / MOST_TICKS
        while self._due_s <= now_s:
            self._lag_ms.add((now_s - self._due_s) * 1000)
            self._due_s += step_s

    def send_late(self, ms: float) -> None:
        """Note how long after its intended time a request was sent.

        A timer may fire a little early, which counts as 0.
        """
        self._late_ms.add(max(ms, 0.0))
        self._sends += 1
        self._late_sends += ms > self._max_lag_ms

    def sample(self, at_s: float, times: TokenTimes | None = None) -> ClientSample:
        """What happened since the last call, with `times` of tokens; to be called each second."""
        times = times or TokenTimes()
        self._catch_up()
        lag_ms, self._lag_ms = self._lag_ms, Sketch()
        late_ms, self._late_ms = self._late_ms, Sketch()
        sends, late_sends = self._sends, self._late_sends
        self._sends = self._late_sends = 0
        now_s = self._clock()
        elapsed_s, self._sampled_s = now_s - self._sampled_s, now_s
        return ClientSample(
            at_s=at_s,
            process=self._process,
            loop_lag_p50_ms=lag_ms.quantile(0.5) or 0.0,
            loop_lag_p99_ms=lag_ms.quantile(0.99) or 0.0,
            loop_lag_max_ms=lag_ms.max or 0.0,
            send_lateness_p99_ms=late_ms.quantile(0.99),
            cpu_share=self._cpu_share(),
            rss_mb=self._rss_mb_now(),
            elapsed_s=elapsed_s,
            sends=sends,
            late_sends=late_sends,
            tokens=times.tokens,
            shared_tokens=times.shared,
            late_tokens=times.late,
            late_token_ms=times.late_mean_ms,
            reads=times.reads,
            unstamped_reads=times.unstamped_reads,
            full_reads=times.full_reads,
            late_looks=times.late_looks,
        )

    def _rss_mb_now(self) -> float:
        with suppress(OSError):  # no descriptor is left to ask the system with
            self._rss_mb = self._psutil.memory_info().rss / MB
        return self._rss_mb

    def _cpu_share(self) -> float:
        wall_s, cpu_s = time.perf_counter(), time.process_time()
        elapsed_s, used_s = wall_s - self._wall_s, cpu_s - self._cpu_s
        self._wall_s, self._cpu_s = wall_s, cpu_s
        return used_s / elapsed_s if elapsed_s > 0 else 0.0


ADVICE = "use more processes or less load"
KEPT = 60
"""So many samples are kept for each process, for those who look at the last seconds."""


@dataclass(frozen=True, slots=True)
class Saturation:
    """Whether the client was saturated and, if so, a sentence saying why."""

    saturated: bool
    reason: str = ""


@dataclass(frozen=True, slots=True)
class SaturationRule:
    """When a run's figures are not to be trusted.

    A second is bad when the p99 of loop lag or of send lateness is above `max_lag_ms`. A run is
    saturated when in any process more than `share_of_seconds` of its seconds, and at least
    `least_seconds`, were bad. It is too when a process stood still, for `pause_s` or longer at
    once, in more than `spoiled_share` of its time, or sent `late_send_share` of its requests
    or more, and at least `least_late`, later than `max_lag_ms`: then a p99 is of its making. And
    it is when more than `late_token_share` of its tokens were read so late that their times are not
    their own, unless that are those of a few hiccups, less than `least_late`, or the lateness is on
    average within `late_token_part` of `max_lag_ms`.
    """

    max_lag_ms: float = MAX_LAG_MS
    share_of_seconds: float = 0.1
    least_seconds: int = 2
    pause_s: float = 1.0
    spoiled_share: float = 0.02
    late_send_share: float = 0.01
    least_late: int = 10
    late_token_share: float = 0.05
    late_token_part: float = 0.2

    def is_pause(self, ms: float) -> bool:
        """Whether a loop that was so late stood still."""
        return ms >= self.pause_s * 1000 and ms > self.max_lag_ms


@dataclass(slots=True)
class _Lateness:
    """The time of one process."""

    seconds: float = 0.0
    bad_s: float = 0.0
    worst_ms: float = 0.0
    paused_s: float = 0.0
    sends: int = 0
    late_sends: int = 0
    times: TokenTimes = field(default_factory=TokenTimes)

    def add(self, sample: ClientSample, rule: SaturationRule) -> None:
        late_ms = max(sample.loop_lag_p99_ms, sample.send_lateness_p99_ms or 0.0)
        self.seconds += sample.elapsed_s
        if late_ms > rule.max_lag_ms:
            self.bad_s += sample.elapsed_s
        self.worst_ms = max(self.worst_ms, late_ms)
        if rule.is_pause(sample.loop_lag_max_ms):
            self.paused_s += sample.loop_lag_max_ms / 1000
        self.sends += sample.sends
        self.late_sends += sample.late_sends
        self.times += sample.token_times

    def _is_bad(self, rule: SaturationRule) -> bool:
        # A timer of a second may fire a little early.
        enough = round(self.bad_s, 1) >= rule.least_seconds
        return enough and self.bad_s > rule.share_of_seconds * self.seconds

    def reasons(self, rule: SaturationRule) -> Iterator[str]:
        """Why its figures do not hold, each to follow its name; none where they do."""
        seconds, limit_ms = f"{self.seconds:.0f} seconds", f"more than {rule.max_lag_ms:g} ms"
        if self.paused_s > rule.spoiled_share * self.seconds:
            yield f"stood still for {self.paused_s:.1f} of {seconds}"
        elif self._is_bad(rule):
            yield (
                f"was late by {limit_ms} in {self.bad_s:.0f} of {seconds}"
                f" (worst {self.worst_ms:.0f} ms)"
            )
        if self.late_sends >= max(rule.least_late, rule.late_send_share * self.sends):
            yield f"sent {self.late_sends} of {self.sends} requests late by {limit_ms}"
        times = self.times
        is_lasting = times.late_looks >= rule.least_late
        is_much = (times.late_mean_ms or 0.0) > rule.late_token_part * rule.max_lag_ms
        if is_lasting and is_much and times.late > rule.late_token_share * times.tokens:
            yield (
                f"read {times.late} of {times.tokens} tokens so late, by up to"
                f" {times.late_mean_ms:.0f} ms, that their times are not their own"
            )


class ClientHealth:
    """What the samples of all processes of a run say by one rule, and the last of them.

    Its size depends on the number of processes alone.
    """

    def __init__(self, rule: SaturationRule | None = None) -> None:
        self.recent: deque[ClientSample] = deque()
        self.count = 0
        """How many samples were added."""
        self._rule = rule or SaturationRule()
        self._processes: dict[str, _Lateness] = {}

    def add(self, sample: ClientSample) -> None:
        """Take in a sample of one process; of several they may come out of order."""
        self._processes.setdefault(sample.process, _Lateness()).add(sample, self._rule)
        self.count += 1
        self.recent.append(sample)
        while len(self.recent) > KEPT * len(self._processes):
            self.recent.popleft()

    @property
    def token_times(self) -> TokenTimes:
        """Of all processes."""
        return sum((each.times for each in self._processes.values()), TokenTimes())

    def since(self, count: int) -> list[ClientSample]:
        """Those after the first `count`, as far as they are kept."""
        new = min(self.count - count, len(self.recent))
        return [self.recent[at] for at in range(-new, 0)]

    def verdict(self) -> Saturation:
        """Whether the client was fast enough so far."""
        alone = len(self._processes) == 1
        told = [
            f"{'the client' if alone else f'process {process}'} {' and '.join(reasons)}: {ADVICE}."
            for process, lateness in sorted(self._processes.items())
            if (reasons := list(lateness.reasons(self._rule)))
        ]
        return Saturation(bool(told), " ".join(told))
