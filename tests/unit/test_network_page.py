"""Sentences of the page of `kvswarm study network`, from rows made by hand."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from dashboards.network.page import CSV, network_answers, write_network_page
from dashboards.network.served import crossing_mbit, predicted_mbit
from dashboards.studies.answer import StudyAnswer
from dashboards.studies.page import Provenance
from kv_tiers.trials import (
    NetworkFigure,
    NetworkFigures,
    evicting,
    loading,
    node_death,
    placing,
    regions,
    sharing,
    streaming,
)
from loadgen.cli.main import main

MADE = Provenance("kvswarm study network", "today", "a machine", "versions")
KEYS = 10_000


def placed(even: float = 1.01) -> Iterator[NetworkFigure]:
    for name, moved in (("rendezvous", 0.25), ("modulo", 0.75), (placing.UNHASHED, 0.75)):
        for n in (3, 8):
            unhashed = name == placing.UNHASHED and n == 8
            share = moved if n == 3 else (1 / 9 if name == "rendezvous" else 8 / 9)
            for setting, measure, value in (
                (f"{n} to {n + 1}", "moved_share", share),
                (f"{n} nodes", "fullest_to_mean", 8.0 if unhashed else even),
                (f"{n} nodes", "used_nodes", 1.0 if unhashed else float(n)),
                (f"{n} nodes", "keys", float(KEYS)),
            ):
                yield NetworkFigure(placing.QUESTION, name, setting, measure, value)


def died() -> Iterator[NetworkFigure]:
    for run, copies, kept, computed in ((1, 1, 0.1, 90), (0, 1, 2 / 3, 30), (0, 2, 1.0, 0)):
        subject = node_death.subject_of(run, copies)
        for setting in (
            node_death.KILLED,
            node_death.FIRST_PASS,
            node_death.SECOND_PASS,
            node_death.ADDING,
            node_death.ADDED,
        ):
            is_hurt = setting in (node_death.KILLED, node_death.FIRST_PASS)
            for measure, value in (
                ("prefix_share", kept if is_hurt else 1.0),
                ("computed_chunks", float(computed)),
                ("repaired_copies", 40.0 if copies == 2 else 0.0),
                ("moved_copies", 12.0),
            ):
                yield NetworkFigure(node_death.QUESTION, subject, setting, measure, value)


def shared(fair_of_shortest: float = 0.0) -> Iterator[NetworkFigure]:
    for name, p99, jain, fair in (
        ("fifo", 330.0, 0.9, 5.0),
        ("drr", 30.0, 0.99, 1.0),
        ("shortest", 5.0, 0.5, fair_of_shortest),
        ("lottery", 60.0, 0.98, 0.7),
    ):
        for measure, value in (
            ("light_p50_ms", p99 / 2),
            ("light_p99_ms", p99),
            ("heavy_p50_ms", 300.0),
            ("heavy_p99_ms", 400.0),
            ("jain", jain),
            ("utilisation", 0.97),
        ):
            yield NetworkFigure(sharing.QUESTION, name, sharing.SOCKET, measure, value)
        yield NetworkFigure(sharing.QUESTION, name, sharing.STREAM, "fair_share", fair)
    for setting, value in (("1 heavy", 2.718), ("8 heavy", 1.133)):
        yield NetworkFigure(sharing.QUESTION, "lottery", setting, "drawn_ratio", value)


def evicted(cost: float = 0.3) -> Iterator[NetworkFigure]:
    policies = (("lru", 0.4), ("arc", 0.45), ("cost", cost))
    for setting in (f"{evicting.SCAN}, 10 %", f"{evicting.SIZES}, 10 %"):
        for name, saved in policies:
            for measure, value in (("saved_share", saved), ("byte_hit_share", saved - 0.01)):
                yield NetworkFigure(evicting.QUESTION, name, setting, measure, value)


def loaded(tokens_per_s: float = 1000.0) -> Iterator[NetworkFigure]:
    """1,000 tokens: 20 MB as they are, 5 MB in four bits, both sent at the link's rate."""
    yield from loading.computing(loading.LoadingPlan(chunks=10, chunk_tokens=100), tokens_per_s)
    for name, bytes_per_token, decode_s in (("raw", 20_000, 0.01), ("int4", 5_000, 0.1)):
        alone = {"bytes_per_token": float(bytes_per_token), "decode_s": decode_s}
        for measure, value in alone.items():
            yield NetworkFigure(loading.QUESTION, name, loading.ALONE, measure, value)
        for rate in (10, 100, 1000):
            loaded_s = bytes_per_token * 1000 / (rate * 125_000)
            setting = f"{rate} Mbit/s"
            yield NetworkFigure(loading.QUESTION, name, setting, "loaded_s", loaded_s)


def apart(kept: float = 1.0) -> Iterator[NetworkFigure]:
    for store, again_ms, link_bytes in (
        (regions.CENTRAL, 31.0, 262_300.0),
        (regions.REGIONAL, 0.8, 0.0),
        (regions.LATEST, 21.0, 4.0),
    ):
        for setting, took_ms in (
            (regions.WRITING, again_ms),
            (regions.FIRST, 32.0),
            (regions.AGAIN, again_ms),
            (regions.CENTRE_LOST, again_ms),
            (regions.REGION_LOST, 32.0),
        ):
            if (store, setting) == (regions.CENTRAL, regions.REGION_LOST):
                continue
            for measure, value in (
                ("chunk_ms", took_ms),
                ("link_bytes", link_bytes),
                ("hit_share", 0.0 if store == regions.CENTRAL else kept),
            ):
                yield NetworkFigure(regions.QUESTION, store, setting, measure, value)
    for way, longest_s, apart_s in (
        (regions.ROUNDS, 9.9, 0.0),
        (regions.PULLS, 9.8, 8.0),
        (regions.EXCHANGES, 19.5, 9.7),
    ):
        for measure, value in (
            ("longest_s", longest_s),
            ("mean_s", longest_s / 2),
            ("apart_s", apart_s),
            ("period_s", 10.0),
        ):
            yield NetworkFigure(regions.QUESTION, way, regions.DELETED, measure, value)


def levelled(ttft_s: float = 0.9, coarsest_s: float | None = None) -> Iterator[NetworkFigure]:
    question = streaming.LEVELS_QUESTION
    yield NetworkFigure(question, "adaptive", streaming.ALONE, "deadline_s", 0.5)
    for name, came, exact in (
        ("adaptive", 0.8, 0.4),
        ("lossless", 0.4, 0.4),
        ("int8", 0.6, 0.0),
        ("int4", 0.9, 0.0),
    ):
        for setting, share in (("10 Mbit/s", 0.5), (streaming.FALLING, 1.0)):
            slow_s = ttft_s if coarsest_s is None or name != "int4" else coarsest_s
            for measure, value in (
                ("ttft_s", slow_s if share < 1 else 0.45),
                ("came", came * share),
                ("lossless", exact * share),
                ("int8", 0.0),
                ("int4", (came - exact) * share),
            ):
                yield NetworkFigure(question, name, setting, measure, value)


def parted(last_all_s: float = 2.0) -> Iterator[NetworkFigure]:
    """Each anchor before its deltas is best for the mean token, and nothing for the rest."""
    question = streaming.PARTS_QUESTION
    for measure, value in (
        ("tokens", 400.0),
        ("anchor_share", 0.1),
        ("bytes_per_token", 8024.0),
        ("frame_bytes_per_token", 7992.0),
    ):
        yield NetworkFigure(question, streaming.WHOLE, streaming.ALONE, measure, value)
    for order, first_s, mean_s, all_s in (
        (streaming.WHOLE, 0.6, 1.2, 2.0),
        (streaming.BESIDE, 0.6, 1.0, 2.0),
        (streaming.ANCHORS_FIRST, 0.7, 1.2, 2.0),
        (streaming.ANCHORS_LAST, 1.9, 1.9, last_all_s),
    ):
        for setting in ("10 Mbit/s", streaming.FALLING):
            for prefix in ("", "link_"):
                times = {"first_s": first_s, "mean_s": mean_s, "all_s": all_s}
                for measure, value in times.items():
                    each = 2.0 if prefix and measure == "all_s" else value
                    yield NetworkFigure(question, order, setting, prefix + measure, each)


def answer(rows: Iterator[NetworkFigure]) -> StudyAnswer:
    ((_, found),) = network_answers(NetworkFigures(tuple(rows)))
    return found


def test_what_moves_and_whether_primes_help() -> None:
    first, *others = answer(placed()).sentences
    assert first == (
        "Of 10,000 keys move 25 % with rendezvous hashing and 75 % with modulo from 3 nodes to 4."
    )
    assert others[0] == (
        "With `rendezvous` the fullest node has 1.010 times the mean at prime numbers and 1.010 at"
        " composite ones: no more than by chance, prime or not."
    )
    assert "N in N + 1" in others[2]
    assert others[3].endswith("use 1 of 8 nodes.")
    uneven = answer(placed(even=1.5)).sentences
    assert "more than by chance." in uneven[1]


def test_what_a_death_leaves() -> None:
    first, back, second, adding = answer(died()).sentences
    assert "keep 10 % of their prefixes with one copy" in first
    assert "whole contexts on a node 67 %, and two copies 100 %" in first
    assert "computes 0 chunks again and writes 40 missing copies" in back
    assert "With one copy 90 chunks are computed where each lies alone, 30 where" in back
    assert second == "The second pass finds 100 % of the prefixes."
    assert adding == "While a fourth node is added, readers find 100 % of them."


def test_the_best_scheduler_starves_nobody() -> None:
    found = answer(shared()).sentences
    assert found[0].startswith("`drr` is best: beside heavy clients a light one has a p99 of 30.0")
    assert found[1].startswith("`shortest` starves: a heavy client beside many light ones has 0 %")
    assert "2.72 times as often as 1 heavy one, and only 1.13 times as often" in found[2]
    assert "is 2.0 times that of `drr`" in found[2]
    fair = answer(shared(fair_of_shortest=0.9)).sentences
    assert fair[0].startswith("`shortest` is best")
    assert not any("starves" in each for each in fair)


def test_what_to_give_up() -> None:
    found = answer(evicted()).sentences
    assert found[0] == (
        "`arc` saves most computing: 45 % on average over 2 settings, `lru` 40 %, and `cost` least,"
        " 30 %."
    )
    assert found[-1] == "Beside `lru`, `cost` saves more in 0 of 2 settings and less in 2."
    more = answer(evicted(cost=0.5)).sentences
    assert more[-1] == "Beside `lru`, `cost` saves more in 2 of 2 settings and less in 0."
    assert more[0].endswith("over 2 settings, and `lru` least, 40 %.")


def test_from_which_bandwidth_on_loading_pays() -> None:
    rows = NetworkFigures(tuple(loaded()))
    # Loads take as long as the link says: the line between two of them is exact.
    for name, mbit in (("raw", 160.0), ("int4", 40.0)):
        assert predicted_mbit(rows, name) == pytest.approx(mbit)
        assert crossing_mbit(rows, name, 1.0) == pytest.approx(mbit)
    assert crossing_mbit(rows, "int4", 10.0) == 10, "at the lowest rate already"
    assert crossing_mbit(rows, "int4", 1e-6) is None
    first = answer(loaded()).sentences[0]
    assert first == (
        "A prompt of 1,000 tokens, computed at 1,000 a second in 1.00 s, is loaded sooner from"
        " 40 Mbit/s on with `int4`, and as it is from 160 Mbit/s."
    )
    fast = answer(loaded(tokens_per_s=20_000.0)).sentences
    assert "Decoding alone takes longer here than computing with `int4`" in fast[2]


def test_what_a_store_near_the_engine_saves_and_how_stale_it_is() -> None:
    found = answer(apart())
    assert found.sentences[0] == (
        "A regional store reads a chunk again in 0.8 ms, the centre alone in 31.0 ms. A deletion"
        " elsewhere is known after 9.90 s at most with rounds of the centre every 10.0 s, and after"
        " up to 19.5 s with exchanges of each region."
    )
    assert "for up to 9.70 s with exchanges, 8.00 s with pulls and 0.0 ms" in found.sentences[1]
    assert "21.0 ms a chunk, with 4 bytes over the link instead of 262,300." in found.sentences[2]
    assert "still finds 100 % of the chunks" in found.sentences[4]
    assert "still finds 50 % of the chunks" in answer(apart(kept=0.5)).sentences[4]
    stores, ways = found.tables
    assert [line[0] for line in stores.rows] == [f"`{each}`" for each in regions.STORES]
    assert [line[0] for line in ways.rows] == [f"`{each}`" for each in regions.WAYS]


def test_what_levels_bring_before_a_deadline() -> None:
    found = answer(levelled()).sentences
    assert found[0] == (
        "By a deadline of 500 ms, in which all could be computed, `adaptive` brings 60 % of the"
        " chunks on average over 2 links, 30 % as they were; `int4` brings 68 %, none as it was,"
        " and `lossless` 30 %."
    )
    assert found[1].startswith("With the rest computed, the first token takes 1.00 times as long")
    assert found[2].startswith("Computing all is faster than `adaptive` over 10 Mbit/s; than `loss")
    assert found[3].startswith("Over 10 Mbit/s it is faster than any of them: there lookups should")
    *_, last = answer(levelled(coarsest_s=0.4)).sentences
    assert last == (
        "Computing all is faster than `adaptive` over 10 Mbit/s; than `lossless` over 10 Mbit/s;"
        " than `int8` over 10 Mbit/s."
    )
    assert len(answer(levelled(ttft_s=0.4)).sentences) == 2


def test_which_order_of_parts_wins_where() -> None:
    found = answer(parted())
    beside = "`each anchor before its deltas` wins for the mean token over all 2 links"
    assert found.sentences[0] == (
        f"`whole groups` wins nowhere; {beside}; `all anchors first` wins nowhere;"
        " `all anchors last` wins nowhere."
    )
    assert found.sentences[2] == (
        "Anchors are 10 % of the bytes. In parts a token takes 8,024 bytes, in one frame 7,992."
    )
    assert [table.rows[0][0] for table in found.tables] == ["10 Mbit/s"] * 3
    soon = answer(parted(last_all_s=1.9)).sentences
    assert soon[0].endswith("`all anchors last` wins for all tokens over all 2 links.")
    assert soon[1].startswith("Where decoding takes no time, `whole groups` wins nowhere")
    assert soon[1].endswith("`all anchors last` wins nowhere.")
    assert soon[3] == (
        "Engines take whole chunks: no order has one there more than 5.0 % sooner than"
        " `whole groups`, and no store here keeps parts."
    )


def test_a_page_of_all_questions(tmp_path: Path) -> None:
    streamed = (*levelled(), *parted())
    rows = NetworkFigures(
        (*placed(), *died(), *shared(), *evicted(), *loaded(), *streamed, *apart())
    )
    page = write_network_page(rows, MADE, tmp_path).read_text()
    again = NetworkFigures.read(tmp_path / CSV)
    for (_, told), (_, found) in zip(network_answers(rows), network_answers(again), strict=True):
        assert (found.sentences, found.tables) == (told.sentences, told.tables)
    for name in ("moved", "death", "link", "eviction", "loading", "levels", "parts", "regions"):
        assert f"(network-{name}.svg)" in page
        assert (tmp_path / f"network-{name}.svg").read_text().startswith("<?xml")
    assert page.count("\n## ") == 9
    assert "for trying" not in page
    quick = replace(MADE, command=f"{MADE.command} --quick")
    assert "for trying" in write_network_page(rows, quick, tmp_path).read_text()


def test_the_command_measures_what_it_is_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["study", "network", "--quick", "--only", "placement", "--out", str(tmp_path / "out")]
    assert main(words) == 0
    assert "Of 5,000 keys move" in capsys.readouterr().out
    assert (
        "kvswarm study network --quick --only placement"
        in (tmp_path / "out/network.md").read_text()
    )
    assert main([*words, "--prefill-rate", "0"]) == 2
    assert "--prefill-rate 0 must be more than 0" in capsys.readouterr().err


def test_an_interrupted_study_writes_nothing_and_leaves_no_node(tmp_path: Path) -> None:
    import psutil

    words = ("study", "network", "--quick", "--only", "death", "--out", str(tmp_path / "out"))
    command = (sys.executable, "-m", "loadgen.cli.main", *words)
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    nodes: list[psutil.Process] = []
    until_s = time.monotonic() + 60
    while len(nodes) < 3 and time.monotonic() < until_s:
        nodes = psutil.Process(process.pid).children()
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 128 + signal.SIGINT
    assert "stopped: nothing is written" in told
    assert not (tmp_path / "out").exists()
    assert psutil.wait_procs(nodes, 10)[1] == []
