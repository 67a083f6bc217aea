"""The metrics of an evaluation against ir-measures, tests and intervals against scipy."""

import random
import tracemalloc
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import ir_measures
import numpy as np
import pytest
from ir_measures import RR, Success, nDCG
from scipy.stats import binomtest, bootstrap

from rag_store.documents import Query
from rag_store.embedders import EmbedderSpec
from rag_store.errors import (
    EmbedderError,
    EmbedderRefusal,
    QueryError,
    RagError,
    RerankerRefusal,
)
from rag_store.evaluation import Evaluation, Outcome, Paired, QueryEstimate, evaluate
from rag_store.label import Label, Timings
from rag_store.library import Library, open_library
from rag_store.search import compare
from rag_store.settings import Settings

DOCUMENTS = [f"d{at}" for at in range(30)]


def outcome(number: int, gold: tuple[str, ...], ranked: tuple[str, ...]) -> Outcome:
    label = Label(None, 0.0, 0.0, 0.0, True, (), Timings(0, 0, 0, 0))
    return Outcome(Query(f"q{number}", "?", gold), label, ranked)


def random_outcomes(seed: int) -> list[Outcome]:
    """One to five gold documents, of which any number are among at most ten."""
    drawn = random.Random(seed)
    return [
        outcome(
            number,
            tuple(drawn.sample(DOCUMENTS, drawn.randint(1, 5))),
            tuple(drawn.sample(DOCUMENTS, drawn.choice((0, 1, 3, 10)))),
        )
        for number in range(60)
    ]


@pytest.mark.parametrize("seed", range(5))
def test_metrics_are_those_of_ir_measures(seed: int) -> None:
    outcomes = random_outcomes(seed)
    gold = {each.query.query_id: dict.fromkeys(each.query.doc_ids, 1) for each in outcomes}
    run = {
        each.query.query_id: {doc_id: 100.0 - at for at, doc_id in enumerate(each.ranked)}
        for each in outcomes
    }
    wanted = ir_measures.calc_aggregate([RR @ 10, nDCG @ 10, Success @ 1, Success @ 3], gold, run)
    found = Evaluation(tuple(outcomes), ())
    assert 0.05 < found.mrr.value < 0.95
    assert found.mrr.value == pytest.approx(wanted[RR @ 10])
    assert found.ndcg.value == pytest.approx(wanted[nDCG @ 10])
    assert found.top(1).value == pytest.approx(wanted[Success @ 1])
    assert found.top(3).value == pytest.approx(wanted[Success @ 3])


@pytest.mark.parametrize("hits", [0, 1, 37, 59, 60])
def test_intervals_of_shares_are_wilsons(hits: int) -> None:
    share = QueryEstimate.share([at < hits for at in range(60)])
    wanted = binomtest(hits, 60).proportion_ci(method="wilson")
    assert (share.low, share.high) == pytest.approx((wanted.low, wanted.high), abs=1e-6)


@pytest.mark.parametrize(("ours", "theirs"), [(0, 0), (1, 0), (5, 0), (12, 4), (4, 12), (400, 300)])
def test_p_is_that_of_the_exact_binomial_test(ours: int, theirs: int) -> None:
    wanted = binomtest(ours, ours + theirs).pvalue if ours + theirs else 1.0
    assert Paired(ours, theirs).p == pytest.approx(wanted)


def test_pairs_count_only_what_differs() -> None:
    assert Paired.of([True, True, False, False, True], [True, False, True, False, False]) == (
        Paired(only_first=2, only_second=1)
    )


def test_intervals_of_means_are_bootstrapped() -> None:
    drawn = random.Random(1)
    values = [drawn.choice((1.0, 1.0, 0.5, 1 / 3, 0.0)) for _ in range(80)]
    wanted = bootstrap((values,), lambda row, axis: row.mean(axis), method="percentile")
    found = QueryEstimate.mean(values)
    wanted_interval = tuple(wanted.confidence_interval)
    assert (found.low, found.high) == pytest.approx(wanted_interval, abs=0.01)
    assert QueryEstimate.mean(values) == found, "the same for the same values"
    assert QueryEstimate.mean([]) == QueryEstimate(0, 0, 0, 0)
    assert QueryEstimate.mean([0.5, 0.5]) == QueryEstimate(0.5, 0.5, 0.5, 2)


def test_intervals_of_many_values_take_little_memory() -> None:
    values = np.random.default_rng(1).random(5000)
    tracemalloc.start()
    try:
        found = QueryEstimate.mean(values.tolist())
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 50_000_000, "all resamples at once take eight times as much"
    half = 1.96 * values.std() / 5000**0.5
    assert (found.low, found.high) == pytest.approx(
        (values.mean() - half, values.mean() + half), abs=half / 10
    )


def test_two_ways_are_paired_by_question() -> None:
    ours = [outcome(1, ("a",), ("a",)), outcome(2, ("b",), ("b",)), outcome(3, ("c",), ("a",))]
    theirs = [outcome(1, ("a",), ("b",)), outcome(2, ("b",), ("b",)), outcome(3, ("c",), ("a",))]
    pairs = Evaluation(tuple(ours), ()).against(Evaluation(tuple(theirs), ()))
    assert pairs == Paired(1, 0)


@pytest.mark.parametrize("kind", [QueryError, EmbedderRefusal, RerankerRefusal])
async def test_a_question_that_is_refused_is_named(
    kind: type[RagError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(kind, match="question 'q7': too long"):
        await _evaluate_where_all_raise(kind("too long"), tmp_path, monkeypatch)


async def test_a_server_that_is_away_is_no_questions_fault(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(EmbedderError, match=r"^cannot reach it$"):
        await _evaluate_where_all_raise(EmbedderError("cannot reach it"), tmp_path, monkeypatch)


async def _evaluate_where_all_raise(
    error: RagError, path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def explain(library: Library, text: str) -> None:
        raise error

    monkeypatch.setattr(Library, "explain", explain)
    async with open_library(Settings(path=path, embedder=EmbedderSpec("hashing"))) as library:
        await evaluate(library, [Query("q7", "?", ("d",))])


def test_recall_is_the_share_of_the_ten_nearest_and_ties_count() -> None:
    nearness = np.array([*np.linspace(0.9, 0.1, 30), 0.9], np.float32)
    vectors = np.stack([nearness, np.sqrt(1 - nearness**2)], axis=1)
    snapshot = SimpleNamespace(vectors=vectors, row_of_id={f"r{at}": at for at in range(31)})

    def recall(*rows: int) -> float:
        found = [f"r{row}" for row in rows], np.zeros(len(rows), np.float32)
        nearest = cast(Any, lambda vector: found)
        return compare(cast(Any, snapshot), nearest, np.array([1, 0], np.float32)).recall

    assert recall(30, *range(9)) == 1, "rows 0 to 8, and 30, which is as near as row 0"
    assert recall(0, 1, 2, 3, 4, 20, 21, 22, 23, 24) == 0.5
    assert recall(20, 21, 22, 23, 24, 25, 26, 27, 28, 29, *range(9)) == 0, "the first ten count"
    assert recall() == 0
