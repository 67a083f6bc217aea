"""The trials of `kvswarm study network` in small: real nodes and sockets, few keys."""

from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from kv_tiers.codecs import Bits, CacheGenProfile, to_bits
from kv_tiers.trials import NetworkFigure, NetworkFigures
from kv_tiers.trials.evicting import SCAN, SIZES, EvictionPlan, evict
from kv_tiers.trials.loading import ALONE, LoadingPlan, load_kv
from kv_tiers.trials.node_death import (
    ADDED,
    ADDING,
    BEFORE,
    FIRST_PASS,
    KILLED,
    SECOND_PASS,
    DeathPlan,
    kill_nodes,
    subject_of,
)
from kv_tiers.trials.placing import UNHASHED, place_keys
from kv_tiers.trials.regions import (
    AGAIN,
    CENTRAL,
    CENTRE_LOST,
    DELETED,
    EXCHANGES,
    FIRST,
    LATEST,
    PULLS,
    REGION_LOST,
    REGIONAL,
    ROUNDS,
    WAYS,
    WRITING,
    RegionsPlan,
    read_regions,
    stale_regions,
)
from kv_tiers.trials.sharing import (
    COUNTED,
    SOCKET,
    STREAM,
    SharingPlan,
    share_counted,
    share_sockets,
)
from kv_tiers.trials.streaming import (
    ANCHORS_FIRST,
    ANCHORS_LAST,
    BESIDE,
    FALLING,
    ORDERS,
    RATES_MBIT,
    WHOLE,
    links,
    send_parts,
    stream_levels,
)


async def gathered(rows: AsyncIterator[NetworkFigure]) -> NetworkFigures:
    return NetworkFigures(tuple([row async for row in rows]))


def test_rows_come_back_from_their_file(tmp_path: Path) -> None:
    rows = (
        NetworkFigure("link", "drr", "sockets", "jain", 0.9875),
        NetworkFigure("link", "drr", "sockets", "jain", 1.0, 1),
        NetworkFigure("death", "whole, 1 copy", "a node killed", "prefix_share", 0.5),
    )
    NetworkFigures(rows).write(tmp_path / "rows.csv")
    found = NetworkFigures.read(tmp_path / "rows.csv")
    assert found.rows == rows
    assert found.of("link").value("drr", "sockets", "jain") == pytest.approx(0.99375)
    assert found.value("fifo", "sockets", "jain") is None


def test_keys_are_counted_exactly() -> None:
    found = NetworkFigures(tuple(place_keys(3000, (3, 6, 8))))
    for count in (3, 6, 8):
        grown = f"{count} to {count + 1}"
        moved = found.value("rendezvous", grown, "moved_share")
        assert moved == pytest.approx(1 / (count + 1), abs=0.03)
        assert found.value("modulo", grown, "moved_share") == pytest.approx(
            count / (count + 1), abs=0.03
        )
        assert found.value("rendezvous", grown, "moved_keys") == pytest.approx(3000 * (moved or 0))
        assert 1 <= (found.value("rendezvous", f"{count} nodes", "fullest_to_mean") or 0) < 1.2
    assert found.value(UNHASHED, "3 nodes", "fullest_to_mean") == 1
    assert found.value(UNHASHED, "8 nodes", "used_nodes") == 1


async def test_a_node_dies_comes_back_empty_and_gets_a_fellow() -> None:
    plan = DeathPlan(contexts=12, chunks=6, runs=(1, 0))
    found = await gathered(kill_nodes(plan))

    def share(run: int, copies: int, setting: str, measure: str = "prefix_share") -> float:
        value = found.value(subject_of(run, copies), setting, measure)
        assert value is not None
        return value

    for run in plan.runs:
        for copies in plan.copies:
            for setting in (BEFORE, SECOND_PASS, ADDING, ADDED):
                assert share(run, copies, setting) == 1
        assert share(run, 2, KILLED) == 1
        assert share(run, 2, FIRST_PASS, "computed_chunks") == 0
        assert share(run, 2, FIRST_PASS, "repaired_copies") > 0
        assert share(run, 2, FIRST_PASS, "copies_share") == 1
        assert share(run, 1, FIRST_PASS, "computed_chunks") > 0
    # Each node in turn: what they hold adds up to all contexts.
    assert share(0, 1, KILLED) == pytest.approx(2 / 3)
    assert share(1, 1, KILLED) < share(0, 1, KILLED)


def test_on_the_counted_clock_clients_share_as_their_scheduler_has_it() -> None:
    found = NetworkFigures(tuple(share_counted(SharingPlan(counted_s=6))))
    p99 = {name: found.value(name, COUNTED, "light_p99_ms") or 0 for name in found.subjects()}
    assert p99["shortest"] < p99["drr"] < p99["lottery"] < p99["fifo"]
    for name in p99:
        assert found.value(name, COUNTED, "utilisation") == pytest.approx(1)
    assert (found.value("drr", COUNTED, "jain") or 0) > 0.99
    fair = {name: found.value(name, STREAM, "fair_share") or 0 for name in p99}
    assert fair["shortest"] == 0, "it starves whoever has most"
    assert fair["drr"] == pytest.approx(1, abs=0.1)
    assert found.value("lottery", "1 heavy", "drawn_ratio") == pytest.approx(2.718, abs=1e-3)


async def test_over_sockets_every_scheduler_carries_all_clients() -> None:
    plan = SharingPlan(rate_mbit=200, heavy=2, socket_s=1)
    found = await gathered(share_sockets(plan))
    for name in ("fifo", "drr", "shortest", "lottery"):
        for kind in ("light", "heavy"):
            assert (found.value(name, SOCKET, f"{kind}_exchanges") or 0) > 1
            assert (found.value(name, SOCKET, f"{kind}_p50_ms") or 0) > 0
        assert 0 < (found.value(name, SOCKET, "utilisation") or 0) <= 1


def test_policies_are_told_apart_by_traces() -> None:
    plan = EvictionPlan(requests=600, contexts=60, capacities=(0.3, 1.0), repeats=1)
    found = NetworkFigures(tuple(evict(plan)))

    def saved(policy: str, setting: str) -> float:
        return found.value(policy, setting, "saved_share") or 0

    assert saved("arc", f"{SCAN}, 30 %") > saved("lru", f"{SCAN}, 30 %")
    assert saved("cost", f"{SCAN}, 30 %") == saved("lru", f"{SCAN}, 30 %"), "all cost the same"
    whole = {saved(policy, f"{SIZES}, 100 %") for policy in found.subjects()}
    assert len(whole) == 1, "where all has room, nothing is given up"


async def test_loads_take_what_the_link_takes(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    bits = to_bits(rng.normal(size=(4, 2, 64, 64)).astype(np.float32))
    CacheGenProfile.fitted([bits]).write(tmp_path / "profile")
    plan = LoadingPlan(rates_mbit=(4, 40), chunks=4, chunk_tokens=16, most_repeats=2)
    found = await gathered(load_kv(plan, bits, tmp_path / "profile"))
    assert found.subjects() == ["raw", "lossless", "int8", "int4", "cachegen 1"]
    for name in found.subjects():
        size = (found.value(name, ALONE, "bytes_per_token") or 0) * plan.tokens
        least_s = size / 500_000 - 0.01
        assert min(found.values(name, "4 Mbit/s", "loaded_s")) >= least_s
        assert len(found.values(name, "40 Mbit/s", "loaded_s")) == 2
        assert (found.value(name, ALONE, "decode_s") or 0) > 0
    slow = {name: found.value(name, "4 Mbit/s", "loaded_s") or 0 for name in ("raw", "int4")}
    assert slow["int4"] < slow["raw"]


def kv(tokens: int) -> Bits:
    rng = np.random.default_rng(0)
    return to_bits(rng.normal(size=(4, 2, tokens, 64)).astype(np.float32))


async def test_levels_bring_what_one_codec_brings_and_finer_chunks_where_there_is_time() -> None:
    plan = LoadingPlan(chunks=6, chunk_tokens=16)
    deadline_s = 0.04  # of 98 kB before coding 50 kB come at 10 Mbit/s
    found = await gathered(stream_levels(plan, kv(plan.tokens), plan.tokens / deadline_s))

    def share(subject: str, rate: int, measure: str = "came") -> float:
        value = found.value(subject, f"{rate} Mbit/s", measure)
        assert value is not None
        return value

    for rate in RATES_MBIT:
        came = sum(share("adaptive", rate, level) for level in ("lossless", "int8", "int4"))
        assert came == pytest.approx(share("adaptive", rate))
        assert share("int4", rate, "lossless") == 0
    assert share("adaptive", 1000) == share("adaptive", 1000, "lossless") == 1
    assert share("lossless", 10) < share("adaptive", 10) == share("int4", 10) == 1
    assert share("adaptive", 10, "lossless") < share("lossless", 10)
    for subject in found.subjects():
        for setting in links(1.0):
            value = found.value(subject, setting, "ttft_s")
            assert value is not None
            assert 0 < value <= 2 * deadline_s


async def test_chunks_are_decoded_one_after_the_other(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kv_tiers.trials.streaming._weight", lambda name, chunk: (10, 1.0))
    plan, deadline_s = LoadingPlan(chunks=4, chunk_tokens=16), 2.5
    found = await gathered(stream_levels(plan, kv(plan.tokens), plan.tokens / deadline_s))
    for subject in ("lossless", "int8", "int4"):
        assert found.value(subject, "1000 Mbit/s", "came") == 2 / 4


def test_anchors_that_travel_apart_do_not_come_to_use_before_whole_groups_do() -> None:
    bits = kv(64)
    found = NetworkFigures(tuple(send_parts(bits, CacheGenProfile.fitted([bits], deltas=True))))

    def seconds(order: str, measure: str, setting: str = "10 Mbit/s") -> float:
        value = found.value(order, setting, f"link_{measure}")
        assert value is not None
        return value

    for setting in (FALLING, *(f"{rate} Mbit/s" for rate in RATES_MBIT)):
        first, mean, every = (
            {order: seconds(order, measure, setting) for order in ORDERS}
            for measure in ("first_s", "mean_s", "all_s")
        )
        assert min(first.values()) >= 0.99 * first[WHOLE], "a group of four is a quarter"
        assert max(first.values()) == first[ANCHORS_LAST]
        assert min(mean.values()) == mean[BESIDE] < min(mean[WHOLE], mean[ANCHORS_FIRST])
        assert max(every.values()) == pytest.approx(min(every.values()), rel=1e-6)
    assert 0 < (found.value(WHOLE, "alone", "anchor_share") or 0) < 0.5


async def test_a_regional_store_takes_the_link_out_of_what_is_read_again() -> None:
    plan = RegionsPlan(rate_mbit=100, latency_ms=30, chunks=4, chunk_bytes=64 * 1024)
    found = await gathered(read_regions(plan))

    def figure(subject: str, setting: str, measure: str = "chunk_ms") -> float:
        value = found.value(subject, setting, measure)
        assert value is not None
        return value

    for subject in (CENTRAL, REGIONAL, LATEST):
        for setting in (WRITING, FIRST, AGAIN):
            assert figure(subject, setting, "hit_share") == 1
        assert figure(subject, FIRST) >= 2 * plan.latency_ms, "there and back"
        assert figure(subject, FIRST, "link_bytes") > plan.chunk_bytes
    assert figure(CENTRAL, AGAIN, "link_bytes") > plan.chunk_bytes
    assert figure(LATEST, AGAIN) >= 2 * plan.latency_ms
    assert figure(LATEST, AGAIN, "link_bytes") < plan.chunk_bytes / 100
    assert figure(REGIONAL, AGAIN, "link_bytes") == 0
    assert figure(CENTRAL, CENTRE_LOST, "hit_share") == 0
    for subject in (REGIONAL, LATEST):
        assert figure(subject, CENTRE_LOST, "hit_share") == 1
        assert figure(subject, REGION_LOST, "hit_share") == 1


async def test_rounds_of_the_centre_bound_what_regions_alone_do_not() -> None:
    plan = RegionsPlan(deletions=30, period_s=10.0)
    found = await gathered(stale_regions(plan))
    longest, apart = (
        {way: found.value(way, DELETED, measure) or 0.0 for way in WAYS}
        for measure in ("longest_s", "apart_s")
    )
    assert 0 < longest[ROUNDS] <= plan.period_s
    assert 0 < longest[PULLS] <= plan.period_s
    assert plan.period_s < longest[EXCHANGES] <= 2 * plan.period_s
    assert apart[ROUNDS] == 0
    assert 0 < apart[PULLS] <= plan.period_s
    for way in WAYS:
        assert 0 < (found.value(way, DELETED, "mean_s") or 0) < longest[way]
