"""Terms, BM25, ranking, refusing, and the figures of an evaluation."""

import math
from dataclasses import replace
from unicodedata import normalize

import numpy as np
import pytest

from rag_store.document_index import Writer
from rag_store.documents import Chunker, Document, Query
from rag_store.embedders import HashingEmbedder
from rag_store.evaluation import Evaluation, Outcome, QueryEstimate
from rag_store.label import Label, Threshold, Timings, fit, says_something
from rag_store.ranking import LexicalIndex, Ranking, RowScores, Snapshot, rank, score_rows
from rag_store.settings import RETRIEVERS
from rag_store.state_files import states_in_memory
from rag_store.store import Entry
from rag_store.terms import terms

TEXTS = {
    "bees": "Bees dance on the comb to tell where flowers are. They live in a hive.",
    "tides": "The moon pulls the water of the oceans, so tides rise twice a day.",
    "bread": "Sourdough bread rises slowly; the levain must be fed with flour.",
}
CHUNKER = Chunker()


def snapshot_of(
    texts: dict[str, str],
    chunker: Chunker = CHUNKER,
    **questions: tuple[str, ...],
) -> Snapshot:
    embedder = HashingEmbedder(64)
    entries = []
    for doc_id, text in texts.items():
        rows = Writer(None, None, embedder, chunker)._rows(  # type: ignore[arg-type]
            Document(doc_id, "", text, questions.get(doc_id, ()))
        )
        made = embedder.embed([row.passage for row in rows])
        entry = Entry(rows, np.stack([each.vector for each in made]))
        sentences = embedder.embed(list(entry.state_passages))
        states = states_in_memory([each.states for each in sentences])
        entries.append(replace(entry, states=states))
    return Snapshot.of(entries, 64)


def test_terms_lose_inflection_and_identifiers_their_joints() -> None:
    assert terms("The caches were caching") == terms("cache cached")
    assert {"max", "model", "len"} <= set(terms("max_model_len"))
    assert "attention" in terms("MultiheadAttention")
    assert terms("of the and") == []


def test_terms_of_chinese_and_japanese_are_pairs_of_signs() -> None:
    assert terms("数据库复制日志。") == ["数据", "据库", "库复", "复制", "制日", "日志"]
    assert set(terms("数据库复制日志")) & set(terms("日志复制")) == {"日志", "复制"}
    assert terms("GPU内存はデータ") == ["gpu", "内存", "存は", "はデ", "デー", "ータ"]


@pytest.mark.parametrize("word", ["第3章", "B型", "X線", "3月"])
def test_a_sign_beside_one_letter_or_digit_is_a_term_with_it(word: str) -> None:
    assert terms(f"{word} 人") == [word.lower()]


def test_terms_of_other_scripts_are_words() -> None:
    text = "Prefix caching saves 98% of max_model_len's time, naïvely: Привет, 한국어!"
    words = "prefix cach save 98 maxmodellen max model len time naïvely привет 한국어"
    assert terms(text) == words.split()


def test_terms_are_those_of_composed_letters() -> None:
    text = "Čeština_naïve in the café, 1 Ångström; 한국어"
    assert "café" in terms(text)
    assert terms(normalize("NFD", text)) == terms(normalize("NFC", text))


def test_bm25_follows_its_formula() -> None:
    index = LexicalIndex([["a", "b"], ["a", "a", "c", "c"], ["c"]], k1=1.5, b=0.75)
    average, held = 7 / 3, 2
    rarity = math.log(1 + (3 - held + 0.5) / (held + 0.5))
    expected = rarity * 2 / (2 + 1.5 * (1 - 0.75 + 0.75 * 4 / average))
    assert index.scores(["a"])[1] == pytest.approx(expected, rel=1e-5)
    assert index.scores(["a"])[2] == 0
    assert index.rarity("a") == pytest.approx(rarity)
    assert index.rarity("unknown") > index.rarity("a")


def test_bm25_of_nothing() -> None:
    assert LexicalIndex([]).scores(["a"]).shape == (0,)
    assert LexicalIndex([[], ["a"]]).scores([]).tolist() == [0, 0]


def ranked(snapshot: Snapshot, text: str, retriever: str = "hybrid") -> list[str]:
    query, words = HashingEmbedder(64).embed([text])[0], terms(text)
    ranking = rank(snapshot, query, score_rows(snapshot, query, words, None), retriever)
    return [snapshot.entries[at].doc_id for at in ranking.documents]


def ranking_of(snapshot: Snapshot, text: str, retriever: str = "hybrid") -> Ranking:
    query, words = HashingEmbedder(64).embed([text])[0], terms(text)
    return rank(snapshot, query, score_rows(snapshot, query, words, None), retriever)


def test_the_score_is_a_sum_that_is_at_most_one() -> None:
    snapshot, text = snapshot_of(TEXTS), "bread that rises"
    ranking, most = ranking_of(snapshot, text), sum(map(snapshot.chunks.rarity, terms(text)))
    parts = ranking.cosines + ranking.words + 0.5 * ranking.bm25 / most
    assert ranking.scores == pytest.approx(parts / 2.5, abs=1e-6)
    assert len(ranking.documents) == 3
    assert 0.3 < ranking.scores[0] < 1
    assert ranking_of(snapshot, text, "dense").scores[0] == ranking.cosines.max()
    assert ranking_of(snapshot, text, "bm25").scores[0] == pytest.approx(ranking.bm25.max() / most)


def test_what_hardly_differs_hardly_counts() -> None:
    texts = {"a": "The pump was sold here.", "b": "The pump was sold there."}
    found = RowScores(np.float32([0.9, 0.9]), np.float32([1.0, 1.001]), 10.0)
    snapshot = snapshot_of(texts)
    query = HashingEmbedder(64).embed(["sold here"])[0]
    assert rank(snapshot, query, found, "hybrid").documents[0] == 0, "by the words that are met"


def test_words_found_apart_in_a_document_count_too() -> None:
    same = "The pump was sold here."
    texts = {"a": f"{same} Some rain fell.", "b": f"{same} Each valve shone.", "c": "Nothing else."}
    assert ranked(snapshot_of(texts, Chunker(6, 0)), "pump sold here valve")[:2] == ["b", "a"]


@pytest.mark.parametrize("retriever", RETRIEVERS)
def test_a_question_written_for_a_document_is_one_of_its_chunks(retriever: str) -> None:
    asked = "why does dough become bigger overnight"
    snapshot = snapshot_of(TEXTS, bread=("When was bread invented?", asked))
    query, words = HashingEmbedder(64).embed([asked])[0], terms(asked)
    ranking = rank(snapshot, query, score_rows(snapshot, query, words, None), retriever)
    assert snapshot.entries[ranking.documents[0]].doc_id == "bread"
    row = snapshot.rows[ranking.rows[0]]
    assert (row.text, row.is_question, row.ordinal) == (asked, True, 2)
    assert ranking.cosines[0] == pytest.approx(1, abs=1e-3)
    assert ranking.words[0] == pytest.approx(1, abs=0.02)


def test_rare_words_of_a_query_weigh_more() -> None:
    texts = {f"d{at}": "The pump of the house." for at in range(9)}
    snapshot = snapshot_of({**texts, "motor": "A motor.", "pump": "A pump."})
    met = ranking_of(snapshot, "pump motor", "dense")
    by_id = dict(zip([snapshot.entries[at].doc_id for at in met.documents], met.words, strict=True))
    assert by_id["motor"] > by_id["pump"] + 0.1


def test_words_that_nobody_has_find_nothing() -> None:
    snapshot = snapshot_of(TEXTS)
    query = HashingEmbedder(64).embed(["zeppelin"])[0]
    found = score_rows(snapshot, query, ["zeppelin"], None)
    assert rank(snapshot, query, found, "bm25").documents.tolist() == []


@pytest.mark.parametrize("retriever", RETRIEVERS)
def test_every_retriever_finds_the_document_with_the_words(retriever: str) -> None:
    snapshot = snapshot_of(TEXTS)
    query = HashingEmbedder(64).embed(["where do bees dance in the hive"])[0]
    words = terms("where do bees dance in the hive")
    ranking = rank(snapshot, query, score_rows(snapshot, query, words, None), retriever)
    assert snapshot.entries[ranking.documents[0]].doc_id == "bees"
    assert list(ranking.scores) == sorted(ranking.scores, reverse=True)


def test_the_approximate_search_gives_the_exact_order() -> None:
    snapshot = snapshot_of({f"d{at}": f"text number {at} about w{at % 7}" for at in range(60)})
    query, words = HashingEmbedder(64).embed(["number 33 about w5"])[0], terms("number 33 about w5")

    def nearest(vector: np.ndarray) -> tuple[list[str], np.ndarray]:
        cosines = snapshot.vectors @ vector
        order = np.argsort(-cosines)
        return [snapshot.rows[at].row_id for at in order] + ["gone"], np.append(cosines[order], 1.0)

    exact = rank(snapshot, query, score_rows(snapshot, query, words, None), "hybrid")
    found = score_rows(snapshot, query, words, nearest)  # type: ignore[arg-type]
    asked = rank(snapshot, query, found, "hybrid")
    assert asked.documents.tolist() == exact.documents.tolist()
    assert asked.scores == pytest.approx(exact.scores)


@pytest.mark.parametrize(("keep", "kept"), [(0.9, 9), (0.8, 8), (1.0, 10), (1e-20, 1)])
def test_a_threshold_keeps_the_share_it_is_told_and_no_more(keep: float, kept: int) -> None:
    scores = [share / 10 for share in range(10)]
    fitted = fit(scores, 3, keep)
    assert sum(score >= fitted.threshold for score in scores) == kept
    assert Threshold.from_json(fitted.as_json()) == fitted
    assert fitted.fitted_on == (10, 3)


@pytest.mark.parametrize(
    ("query", "said"),
    [
        ("?!", False),
        ("404 + 17", False),
        ("the", False),
        ("The?", False),
        ("the the", False),
        ("what is it", True),
        ("raft", True),
        ("x86", True),
        ("何", True),
    ],
)
def test_what_has_no_letter_or_is_one_stop_word_says_nothing(query: str, said: bool) -> None:
    assert says_something(query) is said


def outcome(gold: str, *ranked: str, score: float = 1.0, text: str = "bees?") -> Outcome:
    label = Label(None, score, 0.0, 0.0, True, (), Timings(1, 2, 3, 4))
    return Outcome(Query("q", text, tuple(gold)), label, ranked)


def test_the_figures_of_an_evaluation() -> None:
    evaluation = Evaluation(
        (
            outcome("a", "a", "b", score=0.9),
            outcome("a", "b", "a", score=0.6),
            outcome("a", "b", "c", score=0.2),
            outcome("ab", "c", "b", "a", score=0.8),
        ),
        (outcome("", "a", score=0.7), outcome("", "a", score=0.1)),
    )
    assert evaluation.top(1).value == 0.25
    assert evaluation.top(3).value == 0.75
    assert evaluation.mrr.value == (1 + 0.5 + 0 + 0.5) / 4
    two = (1 / math.log2(3) + 1 / math.log2(4)) / (1 + 1 / math.log2(3))
    assert evaluation.ndcg.value == pytest.approx((1 + 1 / math.log2(3) + 0 + two) / 4)
    assert evaluation.confusions == {("a", "b"): 2, ("a", "c"): 1}
    point = evaluation.at_threshold(0.65)
    assert (point.kept, point.right, point.refused) == (0.5, 0.5, 0.5)
    assert evaluation.keeping(0.75).threshold == 0.6
    assert evaluation.auroc == (1 + 0.5 + 0.5 + 1) / 4
    assert evaluation.latency_ms()["total_ms"]["p50"] == 10


def test_what_says_nothing_is_refused_at_any_threshold() -> None:
    evaluation = Evaluation(
        (outcome("a", "a", score=0.0), outcome("a", "a", score=0.0, text="42?")),
        (outcome("", "a", score=0.0, text="?"), outcome("", score=0.0), outcome("", "a")),
    )
    point = evaluation.at_threshold(0.0)
    assert (point.kept, point.right) == (0.5, 1)
    assert point.refused == evaluation.refused(0.0).value == pytest.approx(2 / 3)


def test_wilsons_interval() -> None:
    share = QueryEstimate.share([True] * 9 + [False])
    assert (share.low, share.high) == pytest.approx((0.5958, 0.9821), abs=1e-3)
    assert QueryEstimate.share([]).count == 0
