"""What the study of tiers says, of runs made by hand."""

import json
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from random import Random
from types import SimpleNamespace

import pytest
from study_cells import Made, cell, noisy

from dashboards.studies.answer import StudyAnswer
from dashboards.studies.catalog import TIERS
from dashboards.studies.cell import Cells, StudyCell
from dashboards.studies.study import read_plan
from dashboards.studies.task1.caches import HitPrediction, hit_table
from dashboards.studies.tier_hits import _own_tokens, _shares, hit, how_far_off
from dashboards.studies.tiers import controls, enough, pays
from loadgen.locality.trace import Chain, Trace

SMALL, LARGE = 3072, 20480
REPEATS = (1, 2, 3)


@pytest.fixture(autouse=True)
def nothing_in_the_engines_own_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("dashboards.studies.tier_hits._own_tokens", lambda _: [0] * 60)


def said(answer: StudyAnswer) -> str:
    return " ".join(answer.sentences)


def made(
    folder: Path, part: str, target: str, ttft_ms: float, computed: float, **settings: object
) -> list[StudyCell]:
    """Three repeats; what is not computed of 60,000 tokens came from the tier, if any."""
    taken = 60_000 - computed if target != "vllm" else 0.0
    figures = {
        "computed_prompt_tokens": computed,
        "external_prompt_tokens": taken,
        "cached_prompt_tokens": float(str(settings.get("cached", 0))),
        "offload_stored_bytes": 4096 * computed if target == "vllm-offload" else None,
        "offload_loaded_bytes": 4096 * taken if target == "vllm-offload" else None,
        "peak_lmcache_l1_bytes": settings.get("peak_bytes"),
    }
    return [
        cell(
            folder,
            part,
            Made(
                noisy(ttft_ms, 0.02, seed),
                tpot_ms=noisy(float(str(settings.get("token_ms", 10.0))), 0.02, seed + 9),
                cached_tokens=[900 if computed < 30_000 else 0] * 60,
            ),
            seed,
            figures={
                name: float(str(value)) for name, value in figures.items() if value is not None
            },
            target=target,
            kv_tokens=settings.get("kv_tokens", SMALL),
            **({"l1_gb": settings["l1_gb"]} if "l1_gb" in settings else {}),
        )
        for seed in REPEATS
    ]


def equal(folder: Path, offload_ms: float = 100.0, computed: float = 15_000.0) -> Cells:
    """LMCache's hits cost twice as much as those of `vllm-offload`; 0.03 GB is too small."""
    return Cells(
        (
            *made(folder, "equal", "vllm", 400.0, 50_000),
            *made(folder, "equal", "vllm", 90.0, 15_000, kv_tokens=LARGE),
            *made(folder, "equal", "vllm-offload", 300.0, 40_000, l1_gb=0.03),
            *made(folder, "equal", "vllm-offload", offload_ms, computed, l1_gb=0.12),
            *made(folder, "equal", "vllm-lmcache", 200.0, 15_000, l1_gb=0.12),
            *made(folder, "equal", "vllm-lmcache-codec", 160.0, 20_000, l1_gb=0.03),
        )
    )


def test_a_tier_that_pays_is_told_with_counts_first_and_against_the_other(tmp_path: Path) -> None:
    answer = pays(equal(tmp_path))
    assert answer.short == (
        "Of the prompt tokens that are computed only because the cache is too small, a tier saves"
        " 100 % with 129 MB of LMCache's and 129 MB of vLLM's own; 86 % with 32 MB of LMCache's and"
        " valkey; 29 % with 32 MB of vLLM's own."
    )
    text = said(answer)
    assert "3,072 tokens a run computes 50,000 prompt tokens without a tier" in text
    assert "40,000 and 15,000 with 32 MB and 129 MB of vLLM's own" in text
    assert "20,000 with 32 MB of LMCache's and valkey" in text
    assert "15,000 with all in the engine's cache" in text
    assert "comes 1.3, 4.0, 2.0 and 2.5 times as fast with 32 MB of vLLM's own" in text
    assert "instead of LMCache's, the first token comes 2.0 times as fast with 129 MB" in text


@pytest.mark.parametrize(
    "kept",
    [
        {"target": "vllm"},
        {"kv_tokens": SMALL},
        {"kv_tokens": LARGE},
        {"l1_gb": 0.12},
        {"l1_gb": ""},
    ],
)
def test_of_a_study_that_was_stopped_nothing_wrong_is_said(
    kept: dict[str, object], tmp_path: Path
) -> None:
    part = equal(tmp_path).where(**kept)
    for question in (pays, enough, hit):
        assert question(part).sentences == ("Not measured.",)


def test_a_tier_that_costs_is_told_to(tmp_path: Path) -> None:
    text = said(pays(equal(tmp_path, offload_ms=800.0)))
    assert "takes 2.0 times as long with 129 MB of vLLM's own" in text


@pytest.mark.parametrize(
    ("peak_bytes", "computed", "stuck"),
    [
        (24_000_000, 20_000, True),
        (24_000_000, 15_000, False),
        (26_000_000, 20_000, False),
        (None, 20_000, False),
    ],
)
def test_a_memory_too_full_for_a_prompt_and_too_empty_to_free_any_is_told(
    peak_bytes: int | None, computed: float, stuck: bool, tmp_path: Path
) -> None:
    own = made(
        tmp_path,
        "equal",
        "vllm-lmcache-codec",
        160.0,
        computed,
        l1_gb=0.03,
        peak_bytes=peak_bytes,
    )
    others = [each for each in equal(tmp_path) if each.settings["target"] != "vllm-lmcache-codec"]
    text = said(pays(Cells((*others, *own))))
    told = "With 32 MB of LMCache's and valkey at most 75 % was, with no room for the next prompt"
    assert (told in text) is stuck


def test_the_size_that_is_enough_computes_no_more_than_one_large_cache(tmp_path: Path) -> None:
    text = said(enough(equal(tmp_path / "a")))
    assert "129 MB of vLLM's own are enough" in text
    assert "129 MB of LMCache's are enough" in text
    text = said(enough(equal(tmp_path / "b", computed=16_000)))
    assert "No size of vLLM's own that was tried is, up to 129 MB." in text


def test_a_hit_is_told_beside_computing_and_only_of_tiers_that_gave_some(tmp_path: Path) -> None:
    answer = hit(equal(tmp_path))
    assert answer.short.startswith("The first token comes after 40")
    assert "from vLLM's own, " in answer.short
    assert " from LMCache's and valkey:" in answer.short
    requests = {row[0]: row[1] for row in answer.tables[0].rows}
    assert (requests["computing it again"], requests["vLLM's own"]) == ("180", "180")
    few = hit(equal(tmp_path / "few", computed=45_000)).short
    assert "from vLLM's own" not in few
    assert "from LMCache's" in few


@pytest.mark.parametrize(("own", "told"), [(399, True), (400, False)])
def test_what_the_engines_own_cache_had_most_of_is_no_hit_of_a_tier(
    own: int, told: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dashboards.studies.tier_hits._own_tokens", lambda _: [own] * 60)
    answer = hit(equal(tmp_path))
    assert [row[0] for row in answer.tables[0].rows][:2] == [
        "computing it again",
        "the engine's cache",
    ]
    assert ("from vLLM's own" in answer.short) is told
    assert ("from LMCache's" in answer.short) is told


@pytest.mark.parametrize(("bytes_per_token", "closes"), [(4096, True), (8192, False)])
def test_the_ledger_of_loads_closes_or_is_told_not_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bytes_per_token: int, closes: bool
) -> None:
    name = "dashboards.studies.tier_arms.run_bytes_per_token"
    monkeypatch.setattr(name, lambda _: bytes_per_token)
    text = said(hit(equal(tmp_path)))
    assert "4,096 bytes for each of 45,000 tokens" in text
    assert ("ledger of loads closes" in text) is closes
    assert ("ledger of loads does not close" in text) is not closes


def test_where_no_ledger_is_kept_the_page_says_so(tmp_path: Path) -> None:
    cells = equal(tmp_path)
    said_of_lmcache = "No run counts the bytes that LMCache stores and loads"
    assert said_of_lmcache in said(hit(cells))
    without = Cells(tuple(each for each in cells if "lmcache" not in each.settings["target"]))
    assert said_of_lmcache not in said(hit(without))


@pytest.mark.parametrize(("kept", "closes"), [(12, True), (11, False)])
def test_the_ledger_of_lmcaches_memory_closes_or_is_told_not_to(
    kept: int, closes: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = "dashboards.studies.tier_ledger.run_bytes_per_token"
    monkeypatch.setattr(name, lambda _: 4096)
    chunks = {"lmcache_l1_written_chunks": 20.0, "lmcache_l1_read_chunks": 60.0}
    figures = {**chunks, "lmcache_l1_evicted_chunks": 8.0, "lmcache_lookup_hit_l1_tokens": 7680.0}
    cells = []
    for each in equal(tmp_path):
        if each.settings["target"] == "vllm-lmcache":
            told = json.loads((each.run / "run.json").read_text())
            told["target"] = {"argv": {"lmcache": ["--chunk-size", "128"]}}
            (each.run / "run.json").write_text(json.dumps(told))
            rows = f"at_s,lmcache_l1_memory_usage_bytes\n0,0\n9,{kept * 128 * 4096}\n"
            (each.run / "server_metrics.csv").write_text(rows)
            each = replace(each, figures={**each.figures, **figures})
        cells.append(each)
    text = said(hit(Cells(tuple(cells))))
    does = "is" if closes else "is not"
    assert f"129 MB of LMCache's: 10 MB were stored, which {does} what was evicted and" in text
    assert "31 MB read: 7,680 tokens were found there, of which the engine had all but" in text


@pytest.mark.parametrize("target", ["vllm-lmcache", "vllm-lmcache-files", "vllm-lmcache-codec"])
def test_lmcaches_log_settles_its_hits_whatever_lies_behind(
    target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng, start_unix_s = Random(3), 1_000_000.0
    contexts = [rng.randrange(6) for _ in range(60)]
    chains = [Chain(tuple(range(9 * each + 1, 9 * each + 5)), 33, 1) for each in contexts]
    trace = Trace(tuple(chains), 8)
    sent_s = [0.3 * number for number in range(60)]
    at = [SimpleNamespace(sent_s=s, first_token_s=s + 0.15, end_s=s + 0.24) for s in sent_s]
    argv, own = {"lmcache": ["--chunk-size", "8"]}, {"usable_tokens": 8 * trace.least_blocks}
    run = SimpleNamespace(
        path=tmp_path, target={"argv": argv, **own}, description={"start_unix_s": start_unix_s}
    )
    for name, found in (("trace_of_run", trace), ("recorded_run", run), ("sent_requests", at)):
        monkeypatch.setattr(f"dashboards.studies.tier_hits.{name}", lambda _, found=found: found)
    shares = _shares(tmp_path, target, 14 * 4096, 512)
    assert min(shares) < max(shares), "the moment of the loop decides something here"
    (tmp_path / "engine").mkdir()
    freed = [datetime.fromtimestamp(start_unix_s + each) for each in (3.25, 8.25)]
    lines = [f"[{each:%Y-%m-%d %H:%M:%S},250] INFO: triggering eviction.\n" for each in freed]
    (tmp_path / "engine" / "lmcache.log").write_text("".join(lines))
    assert len(_shares(tmp_path, target, 14 * 4096, 512)) == 1


def test_what_the_engines_own_cache_has_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    one, other = Chain((1, 2, 3), 25, 1), Chain((4, 5, 6), 25, 1)
    trace = Trace((one, one, other, one), 8)
    run = SimpleNamespace(target={"usable_tokens": 8 * 5})
    for name, found in (("trace_of_run", trace), ("recorded_run", run)):
        monkeypatch.setattr(f"dashboards.studies.tier_hits.{name}", lambda _, found=found: found)
    assert _own_tokens(Path()) == [0, 24, 0, 8]
    run.target = {}
    assert _own_tokens(Path()) == []


def test_a_memory_that_gave_something_up_is_not_told_to_have_stopped(tmp_path: Path) -> None:
    size = {"l1_gb": 0.03, "peak_bytes": 24_000_000}
    cells = [
        replace(each, figures={**each.figures, "lmcache_l1_evicted_chunks": 3.0})
        for each in made(tmp_path, "equal", "vllm-lmcache-codec", 160.0, 20_000, **size)
    ]
    others = [each for each in equal(tmp_path) if each.settings["target"] != "vllm-lmcache-codec"]
    assert "LMCache gives memory up" not in said(pays(Cells((*others, *cells))))


def test_what_a_hit_spares_tells_from_which_bandwidth_on_loading_pays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("dashboards.studies.tier_arms.run_bytes_per_token", lambda _: 4096)
    hits = [0.0, *[1000.0] * 19]
    made_of = Made([90.0] * 20, cached_tokens=hits), Made([490.0] * 20)
    large, small = (
        cell(tmp_path, "equal", each, target="vllm", kv_tokens=size)
        for each, size in zip(made_of, (LARGE, SMALL), strict=True)
    )
    tier = made(tmp_path, "equal", "vllm-offload", 95.0, 15_000, l1_gb=0.12)
    answer = hit(Cells((small, large, *tier)))
    assert answer.sentences[1] == (
        "A hit spares 1,000 tokens, which are 4 MB of KV, and 400 ms: loading them pays from 10 MB"
        " a second on."
    )
    rows = [row[:4] for row in answer.tables[0].rows]
    assert rows[:2] == [
        ("computing it again", "20", "490 ms", "+400 ms"),
        ("the engine's cache", "19", "90.0 ms", "+0 ms"),
    ]
    assert rows[2][0] == "vLLM's own"


def test_predictions_beyond_three_points_are_told_to_be() -> None:
    found = [
        HitPrediction("30 MB", 1, 0.52, 0.50, "vLLM's own"),
        HitPrediction("60 MB", 1, 0.70, 0.70, "vLLM's own"),
        HitPrediction("30 MB", 1, 0.50, 0.55, "LMCache's"),
    ]
    own, lmcache = how_far_off(found)
    assert "vLLM's own the predicted share" in own
    assert own.endswith("at most 2.0 points off in 2 runs.")
    assert lmcache.endswith("at most 5.0 points off in 1 run, more than the 3 it may be.")


def test_what_the_moment_of_lmcaches_loop_is_worth_is_told() -> None:
    found = [
        HitPrediction("30 MB", 1, 0.52, 0.50, "LMCache's", (0.45, 0.57)),
        HitPrediction("30 MB", 2, 0.52, 0.60, "LMCache's", (0.50, 0.55)),
        HitPrediction("60 MB", 1, 0.70, 0.70, "LMCache's", (0.70, 0.70)),
    ]
    settled, loop = how_far_off(found)
    assert settled.endswith("at most 0.0 points off in 1 run.")
    assert loop == (
        "For LMCache's the order does not tell it in 2 runs: the moment of LMCache's loop is worth"
        " up to 12.0 points. The measured share is in that range in 1 of 2, and at most 8.0 points"
        " from its mean."
    )
    spans = [row[2] for row in hit_table("", found).rows]
    assert spans == ["52 % (45 % to 57 %)", "52 % (50 % to 55 %)", "70 %"]
    assert len(list(how_far_off(found[2:]))) == 1


def alone_and_with(folder: Path, ms: float, token_ms: float, computed: float) -> Cells:
    with_it = {"kv_tokens": LARGE, "l1_gb": 0.12, "token_ms": token_ms}
    return Cells(
        (
            *made(folder, "fits", "vllm", 100.0, 15_000, kv_tokens=LARGE),
            *made(folder, "fits", "vllm-offload", ms, computed, **with_it),
        )
    )


@pytest.mark.parametrize(
    ("ms", "token_ms", "computed", "gains", "seen"),
    [
        (100.0, 10.0, 15_000, "seen in 0, of too few to hold against the 5 %", (0, 0, 0)),
        (50.0, 10.0, 15_000, "seen in 1, more than the 5 %", (0, 1, 0)),
        (100.0, 5.0, 15_000, "seen in 1, more than the 5 %", (0, 0, 1)),
        (100.0, 10.0, 12_000, "seen in 3, more than the 5 %", (3, 0, 0)),
        (200.0, 10.0, 15_000, "seen in 0, of too few to hold against the 5 %", (0, 0, 0)),
    ],
)
def test_a_gain_where_there_can_be_none_is_called_false(
    tmp_path: Path,
    ms: float,
    token_ms: float,
    computed: float,
    gains: str,
    seen: tuple[int, int, int],
) -> None:
    answer = controls(alone_and_with(tmp_path, ms, token_ms, computed))
    assert answer.short.startswith("In 5 comparisons in which no tier can be worth anything")
    assert gains in answer.short
    tokens, first, later = seen
    assert f"fewer tokens in {tokens} of 3 pairs of runs" in answer.short
    assert f"less time to first token in {first} of 1 and" in answer.short
    assert f"and for a further token in {later} of 1. A cost in time to" in answer.short
    assert answer.short.endswith(f"is seen in {int(ms > 100)} of 1.")
    assert ("no tier saves a token" in said(answer)) is not tokens


def test_the_definitions_make_enough_comparisons_to_tell_one_false_gain_in_twenty() -> None:
    plan = read_plan(TIERS, quick=False)
    made = [cell for name in ("fits", "unique") for cell in plan.parts[name].cells]
    pairs = plan.repeats * sum(cell["target"] != "vllm" for cell in made)
    assert pairs >= 40


def test_the_definitions_have_controls_beside_every_tier() -> None:
    plan = read_plan(TIERS, quick=False)
    assert set(plan.parts) == {"equal", "fits", "long", "unique"}
    targets = {name: {str(c["target"]) for c in part.cells} for name, part in plan.parts.items()}
    assert targets["equal"] == targets["fits"] == targets["unique"]
    assert read_plan(TIERS, quick=True).runs < plan.runs
