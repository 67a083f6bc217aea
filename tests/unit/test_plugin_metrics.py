"""What the plugin counts, when it tells Prometheus, and that neither can disturb serving."""

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from scheduler_plugin.tally import AdmissionTally, Spread

pytest.importorskip("prometheus_client")

from scheduler_plugin.engine_view import Nobody
from scheduler_plugin.metrics import FLUSH_EVERY_S, LOGGER, SchedulerMetrics, make_watcher

ROOT = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def log_is_heard(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> Iterator[None]:
    """Whatever engines' libraries, imported by other tests, have made of loggers."""
    for name, value in (("disabled", False), ("propagate", False)):
        monkeypatch.setattr(LOGGER, name, value)
    caplog.set_level(logging.WARNING, logger=LOGGER.name)
    LOGGER.addHandler(caplog.handler)
    yield
    LOGGER.removeHandler(caplog.handler)


def request(prompt: int = 100, cached: int = 0) -> Any:
    return SimpleNamespace(num_prompt_tokens=prompt, num_computed_tokens=cached)


class Recorder:
    """Takes the place of Prometheus."""

    def __init__(self) -> None:
        self.admitted: list[int] = []
        self.waiting: list[tuple[int, int]] = []

    def add(self, tally: AdmissionTally) -> None:
        self.admitted.append(sum(tally.wait_s.counts))

    def set_waiting(self, requests: int, contexts: int) -> None:
        self.waiting.append((requests, contexts))


class Bench:
    """Metrics with a clock that is set and an engine that runs or does not."""

    def __init__(self, exposition: Any) -> None:
        self.now_s = 100.0
        self.is_running = True
        self.metrics = SchedulerMetrics(exposition, lambda: self.is_running, lambda: self.now_s)

    def admit(self) -> None:
        self.metrics.arrived(is_labelled=True)
        self.metrics.admitted(request(), 0.5, 0)

    def look(self, requests: int, contexts: int = 1) -> None:
        self.metrics.looked(requests, SimpleNamespace(contexts=contexts))


def test_a_spread_counts_by_bucket_and_adds_up() -> None:
    spread = Spread((1, 2, 4))
    for value in (0.5, 1, 1.5, 4, 9):
        spread.add(value)
    assert spread.counts == [2, 1, 1, 1]
    assert spread.total == 16
    spread.clear()
    assert (spread.counts, spread.total) == ([0, 0, 0, 0], 0)


def test_tokens_are_resident_or_cold() -> None:
    tally = AdmissionTally()
    tally.admitted(request(prompt=100, cached=64), 1.0, 0)
    tally.admitted(request(prompt=50, cached=0), 1.0, 0)
    tally.admitted(request(prompt=10, cached=12), 1.0, 0)
    assert (tally.resident_tokens, tally.cold_tokens) == (74, 86)


def test_the_most_overtakes_are_kept_from_the_start_on() -> None:
    tally = AdmissionTally()
    tally.admitted(request(), 1.0, 9)
    tally.clear()
    tally.admitted(request(), 1.0, 3)
    assert tally.overtakes_max == 9
    assert sum(tally.wait_s.counts) == 1


def test_under_load_prometheus_is_told_at_intervals() -> None:
    recorder = Recorder()
    bench = Bench(recorder)
    for _ in range(50):
        bench.admit()
        bench.look(requests=5, contexts=2)
        bench.now_s += FLUSH_EVERY_S / 10
    assert len(recorder.admitted) == 5
    assert recorder.waiting == [(5, 2)] * 5


def test_nothing_is_lost_between_intervals() -> None:
    recorder = Recorder()
    bench = Bench(recorder)
    for _ in range(50):
        bench.admit()
        bench.look(requests=5)
        bench.now_s += FLUSH_EVERY_S / 10
    bench.is_running = False
    bench.look(requests=0)
    assert sum(recorder.admitted) == 50
    assert recorder.waiting[-1][0] == 0


def test_an_engine_that_falls_idle_has_told_all() -> None:
    recorder = Recorder()
    bench = Bench(recorder)
    bench.admit()
    bench.look(requests=0)
    bench.admit()
    bench.look(requests=0)
    assert recorder.admitted == [1], "the second admission is still running"
    bench.is_running = False
    bench.look(requests=0)
    assert recorder.admitted == [1, 1]


def test_an_idle_engine_writes_nothing() -> None:
    recorder = Recorder()
    bench = Bench(recorder)
    bench.is_running = False
    for _ in range(10):
        bench.look(requests=0)
        bench.now_s += 1
    assert recorder.admitted == []


def test_an_aborted_queue_is_seen_to_be_empty() -> None:
    recorder = Recorder()
    bench = Bench(recorder)
    bench.metrics.arrived(is_labelled=False)
    bench.look(requests=1)
    bench.is_running = False
    bench.look(requests=0, contexts=0)
    assert recorder.waiting == [(1, 1), (0, 0)]


class Broken(Recorder):
    def add(self, tally: AdmissionTally) -> None:
        raise OSError("no space left on device")


BREAKS: list[Callable[[Bench], None]] = [
    lambda bench: bench.look(requests=0),
    lambda bench: bench.metrics.admitted(object(), 1.0, 0),
    lambda bench: bench.metrics.turn_began("other"),  # type: ignore[arg-type]
]


@pytest.mark.parametrize("break_it", BREAKS)
def test_an_error_ends_the_metrics_and_nothing_else(
    break_it: Callable[[Bench], None], caplog: pytest.LogCaptureFixture
) -> None:
    bench = Bench(Broken())
    bench.admit()
    for _ in range(3):
        break_it(bench)
        bench.metrics.chosen(0.1)
        bench.metrics.turn_ended(3)
    said = [record for record in caplog.records if "metrics failed and are off" in record.message]
    assert len(said) == 1
    assert said[0].exc_info is not None


def scheduler(log_stats: bool = True) -> Any:
    parallel = SimpleNamespace(data_parallel_index=3)
    config = SimpleNamespace(parallel_config=parallel)
    return SimpleNamespace(log_stats=log_stats, vllm_config=config, running=[])


def test_without_the_directory_there_are_no_metrics_and_one_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.delenv("PROMETHEUS_MULTIPROC_DIR", raising=False)
    assert isinstance(make_watcher(scheduler(), is_active=True), Nobody)
    assert [r.levelno for r in caplog.records] == [logging.WARNING]
    assert "set PROMETHEUS_MULTIPROC_DIR to an empty directory before" in caplog.text


def test_a_directory_set_too_late_is_said_as_well(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    from prometheus_client import values

    monkeypatch.setattr(values, "ValueClass", values.MutexValue)
    monkeypatch.setenv("PROMETHEUS_MULTIPROC_DIR", str(tmp_path))
    assert isinstance(make_watcher(scheduler(), is_active=True), Nobody)
    assert "before the server starts" in caplog.text


def test_a_server_without_statistics_is_not_told_about_them(
    caplog: pytest.LogCaptureFixture,
) -> None:
    assert isinstance(make_watcher(scheduler(log_stats=False), is_active=True), Nobody)
    assert not caplog.records


EXPORT = """
import sys
from types import SimpleNamespace as Some
from scheduler_plugin.metrics import make_watcher

engine, is_active = sys.argv[1], sys.argv[2] != "off"
config = Some(parallel_config=Some(data_parallel_index=engine))
scheduler = Some(log_stats=True, vllm_config=config, running=[])
watcher = make_watcher(scheduler, is_active)
watcher.arrived(False)
watcher.chosen(2e-6)
watcher.turn_began("overtakes")
for waited_s in (0.5, 700):
    request = Some(num_prompt_tokens=100, num_computed_tokens=60)
    watcher.admitted(request, waited_s, 4)
watcher.turn_ended(2)
watcher.looked(5, Some(contexts=3))
if sys.argv[2] == "fails":
    watcher.arrived(False)
    watcher.failed()
    watcher.arrived(False)
watcher.looked(0, Some(contexts=0))
"""
TWO = """
from types import SimpleNamespace as Some
from scheduler_plugin.metrics import make_watcher

config = Some(parallel_config=Some(data_parallel_index=0))
scheduler = Some(log_stats=True, vllm_config=config, running=[])
first, second = make_watcher(scheduler, True), make_watcher(scheduler, True)
for watcher in (first, second, first):
    watcher.arrived(False)
    watcher.looked(0, Some(contexts=0))
"""
COLLECT = """
import json
from prometheus_client import CollectorRegistry, multiprocess
registry = CollectorRegistry()
multiprocess.MultiProcessCollector(registry)
samples = [s for metric in registry.collect() for s in metric.samples]
print(json.dumps([[s.name, dict(sorted(s.labels.items())), s.value] for s in samples]))
"""


def run(folder: Path, script: str, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        env={**os.environ, "PROMETHEUS_MULTIPROC_DIR": str(folder)},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        cwd=ROOT,
    )
    return done.stdout


def samples(folder: Path) -> dict[str, float]:
    """Value by name and labels, as another process sees them."""
    found = json.loads(run(folder, COLLECT))
    return {f"{name} {json.dumps(labels)}": value for name, labels, value in found}


def sample(name: str, **labels: str) -> str:
    return f"vllm:context_scheduler_{name} {json.dumps(dict(sorted(labels.items())))}"


def test_another_process_reads_what_two_engines_wrote(tmp_path: Path) -> None:
    run(tmp_path, EXPORT, "0", "active")
    run(tmp_path, EXPORT, "1", "active")
    found = samples(tmp_path)
    for engine in ("0", "1"):
        assert found[sample("active", engine=engine)] == 1
        assert found[sample("turns_total", engine=engine, reason="overtakes")] == 1
        assert found[sample("turns_total", engine=engine, reason="oldest")] == 0
        assert found[sample("prompt_tokens_total", engine=engine, state="resident")] == 120
        assert found[sample("prompt_tokens_total", engine=engine, state="cold")] == 80
        assert found[sample("unlabelled_requests_total", engine=engine)] == 1
        assert found[sample("overtakes_max", engine=engine)] == 4
        assert found[sample("waiting_requests", engine=engine)] == 0
        assert found[sample("waiting_contexts", engine=engine)] == 0
        assert found[sample("turn_requests_sum", engine=engine)] == 2
        assert found[sample("turn_requests_bucket", engine=engine, le="2.0")] == 1
        assert found[sample("queue_wait_seconds_count", engine=engine)] == 2
        assert found[sample("queue_wait_seconds_sum", engine=engine)] == 700.5
        assert found[sample("queue_wait_seconds_bucket", engine=engine, le="1.0")] == 1
        assert found[sample("queue_wait_seconds_bucket", engine=engine, le="600.0")] == 1
        assert found[sample("queue_wait_seconds_bucket", engine=engine, le="+Inf")] == 2
        assert found[sample("selection_seconds_count", engine=engine)] == 1


def test_two_engines_of_one_process_do_not_undo_each_others_counts(tmp_path: Path) -> None:
    run(tmp_path, TWO)
    assert samples(tmp_path)[sample("unlabelled_requests_total", engine="0")] == 3


def test_no_label_per_process_and_no_created(tmp_path: Path) -> None:
    run(tmp_path, EXPORT, "0", "active")
    found = samples(tmp_path)
    assert not [name for name in found if '"pid"' in name or "_created" in name]
    assert all(name.startswith("vllm:context_scheduler_") for name in found)


def test_a_plugin_that_failed_says_so_and_what_it_saw_before(tmp_path: Path) -> None:
    run(tmp_path, EXPORT, "0", "fails")
    found = samples(tmp_path)
    assert found[sample("active", engine="0")] == 0
    assert found[sample("waiting_requests", engine="0")] == 0
    assert found[sample("unlabelled_requests_total", engine="0")] == 2


def test_a_plugin_that_is_off_says_just_that(tmp_path: Path) -> None:
    run(tmp_path, EXPORT, "0", "off")
    assert samples(tmp_path) == {sample("active", engine="0"): 0}
