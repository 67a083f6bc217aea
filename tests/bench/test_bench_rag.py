"""The pure parts of `make bench-rag`: made documents and embeddings, loop lag, musts, tables."""

from dataclasses import replace
from itertools import islice
from pathlib import Path

import pytest

pytest.importorskip("bm25s", reason="needs the extra rag")


import rag_evals
from rag_bench import endless, keep
from rag_corpus import made_documents, queries, split_sentences
from rag_made_embedder import MadeEmbedder
from rag_report import Rows, musts, report
from rag_rows import LabelRow, SwarmRow
from rag_service import lag_of
from run_folder import MACHINE_FILE
from scheduler_rows import read_rows, write_rows

from rag_store.documents import Chunker, passage
from rag_store.embedders import HashingEmbedder

ROW = LabelRow(
    chunks=10_000,
    search="exact",
    way="HTTP",
    load="idle",
    clients=1,
    embedding="kept",
    labels=100,
    rest_p50_ms=3.0,
    rest_p95_ms=4.0,
    rest_p99_ms=9.9,
    search_p99_ms=2.0,
    fuse_p99_ms=2.0,
    embed_p50_ms=0.0,
    answer_p50_ms=4.0,
    answer_p95_ms=6.0,
    answer_p99_ms=11.0,
    labels_per_s=200.0,
    lag_p50_ms=0.3,
    lag_p95_ms=1.2,
    lag_p99_ms=4.5,
    others_cpu=0.01,
)


def test_the_trained_model_embeds_by_its_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rag_evals, "model_named", lambda name: name and f"/models/{name}")
    monkeypatch.setattr(rag_evals, "demo_model", "/models/{}".format)
    (_, demo, causal, _) = rag_evals.embedders("", "trained")
    assert causal.name == "hf-causal-mean: trained"
    assert causal.options[-1] == "/models/trained"
    assert demo.name == "hf-causal-mean: the demo model, random weights"


def test_made_documents_have_exactly_the_chunks_and_begin_alike() -> None:
    few, many = made_documents(50), made_documents(400)
    cut = Chunker().cut
    assert sum(len(cut(document.text)) for document in few) == 50
    assert sum(len(cut(document.text)) for document in many) == 400
    assert {document.digest for document in few} <= {document.digest for document in many}
    assert made_documents(50) == few


def test_a_made_embedding_has_the_words_of_its_chunk() -> None:
    (document,) = [each for each in made_documents(40) if len(Chunker().cut(each.text)) > 3][:1]
    real = HashingEmbedder(64)
    made = MadeEmbedder(real, [document])
    for chunk in Chunker().cut(document.text):
        text = passage(document.title, chunk.text)
        (ours,), (theirs,) = made.embed([text]), real.embed([text])
        assert ours.vector @ theirs.vector > 0.8
        assert len(ours.states) == pytest.approx(len(theirs.states), abs=8)
    assert made.identity == real.identity


def test_sentences_end_before_a_capital() -> None:
    text = "It is 1.5 m long, e.g. here. Is it?  Yes."
    assert split_sentences(text) == ["It is 1.5 m long, e.g. here.", "Is it?", "Yes."]


def test_no_text_is_asked_twice() -> None:
    texts = list(islice(endless(queries()), 10_000))
    assert len(set(texts)) == 10_000


def test_loop_lag_between_two_pages() -> None:
    name = "kvswarm_rag_loop_lag_seconds_bucket"
    pages = [
        "# TYPE kvswarm_rag_loop_lag_seconds histogram\n"
        + "".join(f'{name}{{le="{limit}"}} {held}\n' for limit, held in rows.items())
        for rows in (
            {"0.001": 10, "0.002": 10, "+Inf": 10},
            {"0.001": 60, "0.002": 110, "+Inf": 110},
        )
    ]
    lag = lag_of(pages[1]).since(lag_of(pages[0]))
    assert lag.percentile_ms(0.25) == pytest.approx(0.5)
    assert lag.percentile_ms(0.75) == pytest.approx(1.5)
    assert lag_of(pages[0]).since(lag_of(pages[0])).percentile_ms(0.5) == 0


def test_musts_are_about_one_client_and_the_default_search() -> None:
    http = [must for must in musts(Rows((ROW,))) if must.worst == "HTTP"]
    assert [must.measured for must in http] == [None, 9.9]
    assert [must.met for must in http] == [False, True]
    slow = replace(ROW, rest_p99_ms=10.1)
    assert not any(must.met for must in musts(Rows((slow,))))
    for other in (replace(ROW, clients=4), replace(ROW, load="vLLM"), replace(ROW, search="HNSW")):
        assert all(must.measured is None for must in musts(Rows((other,))))


def test_rows_of_a_case_are_replaced_and_the_report_is_made_of_files(tmp_path: Path) -> None:
    loaded = replace(ROW, load="vLLM", rest_p99_ms=33.3)
    keep([ROW, loaded], tmp_path)
    keep([replace(ROW, rest_p99_ms=8.8)], tmp_path)
    assert [row.rest_p99_ms for row in read_rows(LabelRow, tmp_path)] == [33.3, 8.8]
    write_rows([SwarmRow(300, 0, 250.0, 400.0, 500.0)], tmp_path)
    (tmp_path / MACHINE_FILE).write_text("2 cores.\n")
    text = report(tmp_path)
    assert "| vLLM | 1 | kept | 3.0 / 4.0 / 33.3 |" in text
    assert "| 10,000 | exact | HTTP | 1 | kept | 3.0 / 4.0 / 8.8 |" in text
    assert "TTFT 250 / 400 / 500 ms" in text
    assert "A causal model" not in text, "a part that was not measured has no table"
