"""Terms, BM25, fusion, ranking, refusing, and the figures of an evaluation."""

import math
from unicodedata import normalize

import numpy as np
import pytest

from rag_store.catalog import Entry
from rag_store.chunking import Chunker
from rag_store.decision import UNFITTED, Threshold, coverage, fit
from rag_store.documents import Document, Query
from rag_store.embedders.hashing import HashingEmbedder
from rag_store.embedders.head import Head
from rag_store.evaluation import Evaluation, Outcome, Share
from rag_store.fusion import fuse
from rag_store.ingest import Writer
from rag_store.label import Label, Timings
from rag_store.lexical import LexicalIndex
from rag_store.ranking import rank
from rag_store.settings import FUSIONS, RETRIEVERS
from rag_store.signals import score_rows
from rag_store.snapshot import Snapshot
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
    head: Head | None = None,
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
        sentences = embedder.embed(entry.state_passages)
        entries.append(entry.with_states(tuple(each.states for each in sentences)))
    return Snapshot.of(entries, 64, head)


def test_terms_lose_inflection_and_identifiers_their_joints() -> None:
    assert terms("The caches were caching") == terms("cache cached")
    assert {"max", "model", "len"} <= set(terms("max_model_len"))
    assert "attention" in terms("MultiheadAttention")
    assert terms("of the and") == []


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


@pytest.mark.parametrize("method", FUSIONS)
def test_a_document_ahead_in_both_lists_is_ahead_in_the_fused_one(method: str) -> None:
    dense = np.array([0.2, 0.9, 0.4], np.float32)
    lexical = np.array([1.0, 7.0, 3.0], np.float32)
    fused = fuse(method, [dense, lexical], [1, 1])
    assert np.argsort(-fused).tolist() == [1, 2, 0]


def test_fusion_does_not_depend_on_the_unit_of_a_score() -> None:
    dense, lexical = np.float32([0.1, 0.5, 0.3]), np.float32([3, 1, 2])
    for method in FUSIONS:
        once = fuse(method, [dense, lexical], [1, 0.5])
        assert fuse(method, [dense * 10, lexical * 3], [1, 0.5]) == pytest.approx(once, abs=1e-5)


def test_equal_scores_say_nothing() -> None:
    assert fuse("zscore", [np.ones(3, np.float32)], [1]).tolist() == [0, 0, 0]


def test_reciprocal_ranks_are_as_published() -> None:
    fused = fuse("rrf", [np.float32([5, 9]), np.float32([1, 0])], [1, 1])
    assert fused.tolist() == pytest.approx([1 / 62 + 1 / 61, 1 / 61])


def ranked(
    snapshot: Snapshot, text: str, retriever: str = "hybrid", fusion: str = "zscore"
) -> list[str]:
    query, words = HashingEmbedder(64).embed([text])[0], terms(text)
    ranking = rank(snapshot, query, score_rows(snapshot, query, words, None), retriever, fusion)
    return [snapshot.entries[at].doc_id for at in ranking.documents]


def test_words_of_one_sentence_count_more_than_the_same_words_apart() -> None:
    apart = "The pump was bought here. The valve was sold there."
    together = "The pump was sold here. The valve was bought there."
    order = ranked(snapshot_of({"a": apart, "b": together, "c": "Nothing else."}), "pump sold")
    assert order[:2] == ["b", "a"]


def head_of(**logarithms: float) -> Head:
    """Of documents that are so likely whatever is asked."""
    count = len(logarithms)
    biases = np.array(list(logarithms.values()), np.float32)
    return Head(np.zeros((count, 64), np.float32), biases, np.arange(count), tuple(logarithms))


@pytest.mark.parametrize("fusion", ["zscore", "minmax"])
def test_what_was_learned_decides_between_equals(fusion: str) -> None:
    texts = dict.fromkeys("abc", "The pump was sold here.")
    likely = snapshot_of(texts, head=head_of(a=0.0, b=1.0, c=3.0))
    assert ranked(likely, "pump", fusion=fusion) == ["c", "b", "a"]
    for retriever in ("dense", "bm25"):
        unlearned = ranked(snapshot_of(texts), "pump", retriever, fusion)
        assert ranked(likely, "pump", retriever, fusion) == unlearned


def test_what_was_not_learned_is_neither_likely_nor_unlikely() -> None:
    texts = dict.fromkeys("abc", "The pump was sold here.")
    assert ranked(snapshot_of(texts, head=head_of(b=0.0, c=3.0)), "pump") == ["c", "a", "b"]
    assert ranked(snapshot_of(texts, head=head_of(gone=3.0)), "pump") == ["a", "b", "c"]


def test_a_likely_document_is_a_candidate_whatever_its_words() -> None:
    texts = {f"d{at:02}": "The pump was sold here." for at in range(30)} | {"z": "Rain fell."}
    logarithms = dict.fromkeys(texts, -20.0) | {"z": 0.0}
    assert "z" not in ranked(snapshot_of(texts), "pump")
    assert "z" in ranked(snapshot_of(texts, head=head_of(**logarithms)), "pump")


def test_words_found_apart_in_a_document_count_too() -> None:
    same = "The pump was sold here."
    texts = {"a": f"{same} Some rain fell.", "b": f"{same} Each valve shone.", "c": "Nothing else."}
    assert ranked(snapshot_of(texts, Chunker(6, 0)), "pump sold here valve")[:2] == ["b", "a"]


@pytest.mark.parametrize("retriever", RETRIEVERS)
def test_a_question_written_for_a_document_is_one_of_its_chunks(retriever: str) -> None:
    asked = "why does dough become bigger overnight"
    snapshot = snapshot_of(TEXTS, bread=("When was bread invented?", asked))
    query, words = HashingEmbedder(64).embed([asked])[0], terms(asked)
    ranking = rank(snapshot, query, score_rows(snapshot, query, words, None), retriever, "zscore")
    assert snapshot.entries[ranking.documents[0]].doc_id == "bread"
    row = snapshot.rows[ranking.rows[0]]
    assert (row.text, row.is_question, row.ordinal) == (asked, True, 2)
    assert ranking.cosines[0] == pytest.approx(1, abs=1e-3)
    assert ranking.late[0] == pytest.approx(1, abs=0.02)


def test_of_documents_with_a_question_alike_the_one_whose_text_is_nearer_is_first() -> None:
    asked = "who is in charge of all this"
    texts = {"a": "Bread rises overnight.", "b": "A leader is in charge.", "c": "Nothing else."}
    assert ranked(snapshot_of(texts, a=(asked,), b=(asked,)), asked)[:2] == ["b", "a"]
    swapped = {**texts, "a": texts["b"], "b": texts["a"]}
    assert ranked(snapshot_of(swapped, a=(asked,), b=(asked,)), asked)[:2] == ["a", "b"]


def test_a_question_counts_more_than_the_text_does() -> None:
    asked = "who is in charge of all this"
    texts = {"a": "A leader is in charge.", "b": "Bread rises overnight.", "c": "Nothing else."}
    assert ranked(snapshot_of(texts, b=(asked,)), asked)[0] == "b"


def test_without_its_questions_a_document_is_as_if_it_had_none() -> None:
    embedder = HashingEmbedder(64)
    writer = Writer(None, None, embedder, CHUNKER)  # type: ignore[arg-type]
    plain, asked = (
        next(iter(writer._embed([writer._rows(Document("a", "A", "One. Two.", questions))])))
        for questions in ((), ("Who?", "Why?"))
    )
    assert len(asked.rows) == len(plain.rows) + 2
    cut = asked.without_questions()
    assert [row.text for row in cut.rows] == [row.text for row in plain.rows]
    assert np.array_equal(cut.vectors, plain.vectors)
    assert asked.document().questions == ("Who?", "Why?")
    assert asked.document().digest == asked.digest != plain.digest


def test_rare_words_of_a_query_weigh_more() -> None:
    snapshot = snapshot_of({f"d{at}": "The pump of the house." for at in range(9)})
    query = HashingEmbedder(64).embed(["the pump valve"])[0]
    ranking = rank(snapshot, query, score_rows(snapshot, query, ["pump"], None), "dense", "zscore")
    the, pump, valve = ranking.weights
    assert the == pump < valve
    assert ranking.weights.sum() == pytest.approx(1)
    assert ranking.late == pytest.approx(ranking.words @ ranking.weights)


def test_words_that_nobody_has_find_nothing() -> None:
    snapshot = snapshot_of(TEXTS)
    query = HashingEmbedder(64).embed(["zeppelin"])[0]
    found = score_rows(snapshot, query, ["zeppelin"], None)
    assert rank(snapshot, query, found, "bm25", "zscore").documents.tolist() == []


def test_coverage_is_that_of_the_chunk_with_the_most_of_the_terms() -> None:
    index = LexicalIndex([["a", "b"], ["a"], ["c"]])
    assert index.coverage(["a", "b"]).tolist() == pytest.approx(
        [1, index.rarity("a") / (index.rarity("a") + index.rarity("b")), 0]
    )
    assert index.coverage([]).tolist() == [0, 0, 0]


@pytest.mark.parametrize("retriever", RETRIEVERS)
def test_every_retriever_finds_the_document_with_the_words(retriever: str) -> None:
    snapshot = snapshot_of(TEXTS)
    query = HashingEmbedder(64).embed(["where do bees dance in the hive"])[0]
    words = terms("where do bees dance in the hive")
    ranking = rank(snapshot, query, score_rows(snapshot, query, words, None), retriever, "zscore")
    assert snapshot.entries[ranking.documents[0]].doc_id == "bees"
    assert list(ranking.scores) == sorted(ranking.scores, reverse=True)


def test_the_approximate_search_gives_the_exact_order() -> None:
    snapshot = snapshot_of({f"d{at}": f"text number {at} about w{at % 7}" for at in range(60)})
    query, words = HashingEmbedder(64).embed(["number 33 about w5"])[0], terms("number 33 about w5")

    def nearest(vector: np.ndarray, count: int) -> tuple[list[str], np.ndarray]:
        cosines = snapshot.vectors @ vector
        order = np.argsort(-cosines)[:count]
        return [snapshot.rows[at].row_id for at in order] + ["gone"], np.append(cosines[order], 1.0)

    exact = rank(snapshot, query, score_rows(snapshot, query, words, None), "hybrid", "zscore")
    found = score_rows(snapshot, query, words, nearest)  # type: ignore[arg-type]
    asked = rank(snapshot, query, found, "hybrid", "zscore")
    assert asked.documents.tolist() == exact.documents.tolist()
    assert asked.scores == pytest.approx(exact.scores)


def test_coverage_weighs_words_by_rarity() -> None:
    snapshot = snapshot_of({"a": "pump valve", "b": "pump", "c": "pump motor"})
    common, rare = coverage(snapshot, 0, ["pump", "motor"]), coverage(snapshot, 0, terms("valve"))
    assert 0 < common < 0.5
    assert rare == 1
    assert coverage(snapshot, 0, []) == 0


def test_a_fitted_threshold_keeps_its_share_and_refuses_the_rest() -> None:
    random = np.random.default_rng(1)
    yes = list(random.normal([0.6, 0.6, 0.5, 0.8, 1.0], 0.05, (200, 5)))
    no = list(random.normal([0.6, 0.6, 0.2, 0.4, 1.0], 0.05, (200, 5)))
    fitted = fit(yes, no, UNFITTED)
    assert sum(fitted.score(each) >= fitted.threshold for each in yes) == 190
    assert sum(fitted.score(each) < fitted.threshold for each in no) > 195
    assert all(weight >= 0 for weight in fitted.weights)
    assert Threshold.from_json(fitted.as_json()) == fitted


@pytest.mark.parametrize(("keep", "kept"), [(0.9, 9), (0.8, 8), (1.0, 10), (1e-20, 1)])
def test_a_threshold_keeps_the_share_it_is_told_and_no_more(keep: float, kept: int) -> None:
    yes = [np.array([0.5, 0.5, 0.5, share / 10, 1.0]) for share in range(10)]
    fitted = fit(yes, [], UNFITTED, keep)
    assert sum(fitted.score(each) >= fitted.threshold for each in yes) == kept


def test_few_queries_move_the_threshold_only() -> None:
    yes = [np.array([0.5, 0.5, 0.5, share, 1.0]) for share in (0.2, 0.6, 0.9)]
    fitted = fit(yes, [], UNFITTED)
    assert fitted.weights == UNFITTED.weights
    assert fitted.threshold == fitted.score(yes[0])


def outcome(gold: str, *ranked: str, score: float = 1.0) -> Outcome:
    label = Label(None, score, 0.0, 0.0, True, (), Timings(1, 2, 3, 4))
    return Outcome(Query("q", "?", tuple(gold)), label, ranked)


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
    assert evaluation.latency_ms()["total_ms"][50] == 10


def test_wilsons_interval() -> None:
    share = Share.of([True] * 9 + [False])
    assert (share.low, share.high) == pytest.approx((0.5958, 0.9821), abs=1e-3)
    assert Share.of([]).count == 0
