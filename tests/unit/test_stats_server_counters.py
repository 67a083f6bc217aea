import json
from dataclasses import replace

import pytest

from loadgen.stats.server_counters import (
    NO_FIGURES,
    ServerAccumulator,
    ServerSample,
    server_figures,
)

FIRST = ServerSample(
    at_s=0.0,
    reachable=True,
    prompt_tokens=1000,
    computed_prompt_tokens=700,
    cached_prompt_tokens=200,
    external_prompt_tokens=100,
    generation_tokens=50,
    prefix_cache_hits=200,
    external_prefix_cache_hits=100,
    num_preemptions=1,
    running=0,
    engine_rss_mb=800.0,
)
MIDDLE = ServerSample(
    at_s=5.0, reachable=True, prompt_tokens=1500, running=7, waiting=9, kv_cache_usage=0.9
)
SILENT = ServerSample(at_s=6.0)
LAST = ServerSample(
    at_s=10.0,
    reachable=True,
    prompt_tokens=3000,
    computed_prompt_tokens=1200,
    cached_prompt_tokens=1200,
    external_prompt_tokens=600,
    generation_tokens=90,
    prefix_cache_hits=1200,
    external_prefix_cache_hits=600,
    num_preemptions=3,
    running=1,
    engine_rss_mb=900.0,
    gpu_memory_mb=11.0,
)


def test_the_figures_of_a_run_are_the_rise_of_its_counters() -> None:
    figures = server_figures(FIRST, LAST, [MIDDLE, SILENT])
    assert figures["computed_prompt_tokens"] == 500
    assert figures["cached_prompt_tokens"] == 1000
    assert figures["external_prompt_tokens"] == 500
    assert (figures["hit_rate"], figures["external_hit_rate"]) == (0.5, 0.25)
    assert (figures["generation_tokens"], figures["num_preemptions"]) == (40, 2)
    assert figures["counter_reset"] is False


def test_tokens_and_bytes_of_each_tier_are_told_though_bytes_begin_to_be_counted_late() -> None:
    first = replace(FIRST, host_prompt_tokens=10, disk_prompt_tokens=0)
    tiers = {"host_prompt_tokens": 410, "disk_prompt_tokens": 100, "offload_stored_bytes": 8192}
    figures = server_figures(first, replace(LAST, **tiers))
    assert (figures["host_prompt_tokens"], figures["disk_prompt_tokens"]) == (400, 100)
    assert (figures["offload_stored_bytes"], figures["offload_loaded_bytes"]) == (8192, 0)
    assert (figures["offload_failures"], figures["tier_read_failures"]) == (0, 0)
    without = server_figures(first, LAST)
    assert without["offload_loaded_bytes"] is None
    assert without["offload_failures"] is None


def test_where_vllm_does_not_tell_a_tier_it_is_not_told_as_none() -> None:
    first = replace(FIRST, host_prompt_tokens=0, disk_prompt_tokens=0, other_prompt_tokens=0)
    figures = server_figures(first, replace(LAST, other_prompt_tokens=500))
    tiers = ("host_prompt_tokens", "disk_prompt_tokens", "other_prompt_tokens")
    assert [figures[name] for name in tiers] == [None, None, 500]
    figures = server_figures(first, replace(LAST, host_prompt_tokens=500, disk_prompt_tokens=0))
    assert [figures[name] for name in tiers[:2]] == [500, 0]


def test_times_of_an_offload_are_means_over_its_copies_and_waits() -> None:
    first = replace(FIRST, offload_load_s=1.0, offload_loads=10)
    last = replace(LAST, offload_load_s=1.5, offload_loads=15, offload_wait_s=0.2, offload_waits=4)
    figures = server_figures(first, last)
    assert figures["offload_load_mean_s"] == pytest.approx(0.1)
    assert figures["offload_wait_mean_s"] == pytest.approx(0.05)
    assert server_figures(first, LAST)["offload_load_mean_s"] is None


def test_what_lmcache_counts_is_told_where_both_ends_tell_it_and_resets_no_engine() -> None:
    first = replace(FIRST, lmcache_lookup_hit_l1_tokens=128, lmcache_l1_written_chunks=4)
    middle = replace(MIDDLE, lmcache_l1_written_chunks=2)
    last = replace(LAST, lmcache_lookup_hit_l1_tokens=640, lmcache_l1_written_chunks=9)
    figures = server_figures(first, replace(last, lmcache_l1_read_chunks=3), [middle])
    assert (figures["lmcache_lookup_hit_l1_tokens"], figures["lmcache_l1_written_chunks"]) == (
        512,
        5,
    )
    assert figures["lmcache_l1_read_chunks"] is None, "its page was missed at the start"
    assert figures["counter_reset"] is False


def test_times_of_evicted_blocks_are_means_over_those_of_the_run() -> None:
    first = replace(FIRST, kv_blocks_evicted=10, kv_block_idle_s=50.0, kv_block_reuses=0)
    last = replace(LAST, kv_blocks_evicted=14, kv_block_idle_s=52.0, kv_block_reuses=0)
    figures = server_figures(
        replace(first, kv_block_reuse_gap_s=0.0), replace(last, kv_block_reuse_gap_s=0.0)
    )
    assert (figures["kv_blocks_evicted"], figures["kv_block_idle_mean_s"]) == (4, 0.5)
    assert figures["kv_block_reuse_gap_mean_s"] is None, "no block was used again"


def test_peaks_are_over_all_samples() -> None:
    figures = server_figures(FIRST, LAST, [MIDDLE, SILENT])
    assert (figures["peak_running"], figures["peak_waiting"]) == (7, 9)
    assert (figures["peak_kv_cache_usage"], figures["peak_engine_rss_mb"]) == (0.9, 900.0)
    assert (figures["peak_gpu_memory_mb"], figures["peak_lmcache_rss_mb"]) == (11.0, None)


def test_an_idle_server_has_zero_tokens_and_no_rate() -> None:
    figures = server_figures(FIRST, FIRST)
    assert (figures["computed_prompt_tokens"], figures["hit_rate"]) == (0, None)


def test_a_host_without_metrics_gives_nulls_only() -> None:
    figures = server_figures(ServerSample(0.0, reachable=True), ServerSample(9.0, reachable=True))
    assert figures == NO_FIGURES
    assert set(figures.values()) == {None}
    json.dumps(figures)


@pytest.mark.parametrize(
    ("last", "between"),
    [
        (ServerSample(10.0, prompt_tokens=900), []),
        (LAST, [MIDDLE, ServerSample(6.0, reachable=False), ServerSample(7.0, prompt_tokens=3)]),
    ],
)
def test_a_counter_that_went_down_marks_the_run(
    last: ServerSample, between: list[ServerSample]
) -> None:
    figures = server_figures(FIRST, last, between)
    assert figures["counter_reset"] is True
    assert figures["computed_prompt_tokens"] is None
    assert figures["hit_rate"] is None
    assert figures["peak_engine_rss_mb"] is not None


@pytest.mark.parametrize(
    ("first", "between", "last"), [(SILENT, [MIDDLE], LAST), (FIRST, [], SILENT)]
)
def test_a_missing_start_leaves_the_counters_unknown_and_the_peaks_known(
    first: ServerSample, between: list[ServerSample], last: ServerSample
) -> None:
    figures = server_figures(first, last, between)
    assert (figures["hit_rate"], figures["generation_tokens"]) == (None, None)
    assert figures["peak_running"] == (7 if between else 0)
    assert figures["counter_reset"] is None


def test_counters_end_at_the_last_sample_that_told_them() -> None:
    totals = ServerAccumulator()
    for sample in (FIRST, MIDDLE, LAST):
        totals.add(sample)
        assert totals.end_s is None
    totals.add(replace(SILENT, at_s=11.0, engine_cpu_s=9.0))
    assert totals.figures() == server_figures(FIRST, LAST, [MIDDLE])
    assert (totals.end_s, totals.begins_uncounted) == (10.0, False)


@pytest.mark.parametrize(("end_s", "hit_rate"), [(20.0, 0.5), (20.1, None), (600.0, None)])
def test_counters_that_end_long_before_the_run_are_not_those_of_it(
    end_s: float, hit_rate: float | None
) -> None:
    figures = server_figures(FIRST, replace(SILENT, at_s=end_s), [MIDDLE, LAST])
    assert (figures["hit_rate"], figures["peak_waiting"]) == (hit_rate, 9)
    assert figures["counter_reset"] is (None if hit_rate is None else False)


def test_after_a_reset_counters_go_on_from_the_last_sample_that_told_them() -> None:
    totals = ServerAccumulator()
    for sample in (replace(FIRST, at_s=-1.0, prompt_tokens=1), FIRST, SILENT):
        totals.add(sample)
    totals.restart()
    totals.add(LAST)
    assert not totals.begins_uncounted
    assert totals.figures() == server_figures(FIRST, LAST)


def test_an_engine_without_counters_by_source_is_read_by_its_hits() -> None:
    first = ServerSample(0.0, prompt_tokens=100, prefix_cache_hits=10)
    last = ServerSample(9.0, prompt_tokens=500, prefix_cache_hits=110)
    figures = server_figures(first, last)
    assert figures["computed_prompt_tokens"] == 300
    assert (figures["cached_prompt_tokens"], figures["external_prompt_tokens"]) == (100, 0)
    assert figures["hit_rate"] == 0.25


def test_what_happened_in_the_warm_up_is_only_the_state_before_the_rest() -> None:
    totals = ServerAccumulator(warmup_s=5.0)
    early = ServerSample(at_s=1.0, reachable=True, prompt_tokens=9000, running=50)
    for sample in (early, FIRST, MIDDLE, SILENT, LAST):
        totals.add(sample)
    assert totals.count == 3
    assert totals.figures() == server_figures(MIDDLE, LAST, [SILENT])
    assert totals.figures()["peak_running"] == 7


def test_a_run_that_ends_in_its_warm_up_has_no_course() -> None:
    totals = ServerAccumulator(warmup_s=60.0)
    for sample in (FIRST, MIDDLE, LAST):
        totals.add(sample)
    assert totals.count == 1


def test_a_scrape_without_an_answer_is_no_state_to_count_from() -> None:
    totals = ServerAccumulator(warmup_s=5.0)
    silent = ServerSample(4.0)
    for sample in (FIRST, silent, LAST):
        totals.add(sample)
    assert totals.figures() == server_figures(FIRST, LAST, [silent])
    assert totals.figures()["hit_rate"] is not None


@pytest.mark.parametrize(
    ("first_s", "last_s", "ms"),
    [(10.0, 15.4, 10.0), (None, 15.4, None), (10.0, None, None)],
)
def test_cpu_time_of_a_token_is_of_those_computed_and_written(
    first_s: float | None, last_s: float | None, ms: float | None
) -> None:
    first, last = replace(FIRST, engine_cpu_s=first_s), replace(LAST, engine_cpu_s=last_s)
    figures = server_figures(first, last, [replace(MIDDLE, engine_cpu_s=99.0)])
    assert figures["server_cpu_ms_per_token"] == (None if ms is None else pytest.approx(ms))
    idle = server_figures(first, replace(first, engine_cpu_s=last_s))
    assert idle["server_cpu_ms_per_token"] is None
