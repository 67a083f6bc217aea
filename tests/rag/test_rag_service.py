"""Every route of the service, and every way to use it wrongly, against a real process."""

import base64
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote

import numpy as np
import pytest
from service_process import Service, service

DOCUMENTS = [
    {"doc_id": "paging", "title": "Paged attention", "text": "Blocks of the cache are paged."},
    {"doc_id": "raft", "title": "Raft", "text": "A leader replicates its log to followers."},
    {"doc_id": "a/b c", "title": "", "text": "Bread rises when yeast ferments the dough."},
]


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Service]:
    with service(tmp_path_factory.mktemp("service"), "--batch", 8) as running:
        reply = running.post("/v1/documents", {"documents": DOCUMENTS})
        assert reply.body["added"] == 3
        yield running


def test_a_label_has_all_its_fields(served: Service) -> None:
    reply = served.post("/v1/label", {"query": "Who replicates the log?", "user": "ignored"})
    label = reply.body
    assert (reply.status, label["object"], label["doc_id"]) == (200, "label", "raft")
    assert {"score", "threshold", "margin", "agree"} < label.keys()
    assert label["timings"].keys() == {
        "queue_ms",
        "embed_ms",
        "search_ms",
        "fuse_ms",
        "rerank_ms",
        "total_ms",
    }
    first = label["candidates"][0]
    scores = {"score", "cosine", "bm25", "relevance"}
    assert first.keys() == {"doc_id", "title", "chunk", "question"} | scores
    assert first["title"] == "Raft"


def test_many_labels_come_in_order_and_a_bad_one_fails_alone(served: Service) -> None:
    queries = [
        "paged blocks?",
        " \n",
        7,
        "yeast\x00dough",
        "x" * 20_001,
        "\ud800",
        "a leader\udc00",
    ]
    reply = served.post("/v1/label", {"queries": queries})
    assert reply.status == 200
    data = reply.body["data"]
    assert [item["index"] for item in data] == list(range(7))
    assert [item.get("doc_id") for item in data] == [
        "paging", None, None, "a/b c", None, None, "raft"
    ]  # fmt: skip
    errors = {item["index"]: item["error"] for item in data if "error" in item}
    assert {at: error["param"] for at, error in errors.items()} == {
        at: f"queries[{at}]" for at in (1, 2, 4, 5)
    }
    codes = {at: error["code"] for at, error in errors.items()}
    assert codes == {1: "empty", 2: "wrong_type", 4: "too_long", 5: "empty"}


def test_retrieve_gives_the_document(served: Service) -> None:
    one = served.post("/v1/retrieve", {"query": "How are blocks of the cache paged?"}).body
    assert one["document"] == DOCUMENTS[0]
    assert one["label"]["doc_id"] == one["doc_id"] == "paging"
    many = served.post("/v1/retrieve", {"queries": ["yeast", ""]}).body["data"]
    assert many[0]["document"]["text"] == DOCUMENTS[2]["text"]
    assert many[1]["error"]["code"] == "empty"


def test_documents_are_added_updated_read_listed_and_removed(served: Service) -> None:
    document = {"doc_id": "x/ü", "title": "Clocks", "text": "Pendulums swing."}
    added = served.post("/v1/documents", document)
    assert (added.status, added.body["result"]) == (201, "added")
    again = served.post("/v1/documents", document)
    assert (again.status, again.body["result"]) == (200, "unchanged")
    document["text"] = "Quartz oscillates."
    assert served.post("/v1/documents", document).body["result"] == "updated"
    held = {"object": "document", **document, "questions": []}
    assert served.get("/v1/documents/x%2F%C3%BC").body == held
    assert served.post("/v1/label", {"query": "What oscillates?"}).body["doc_id"] == "x/ü"
    assert served.metric("kvswarm_rag_documents") == 4
    assert served.send("DELETE", "/v1/documents/x%2F%C3%BC").body["result"] == "removed"
    gone = served.get("/v1/documents/x%2F%C3%BC")
    assert (gone.status, gone.error["code"]) == (404, "unknown_document")
    assert served.send("DELETE", "/v1/documents/x%2F%C3%BC").status == 404


def test_the_list_of_documents_has_pages(served: Service) -> None:
    first = served.get("/v1/documents?limit=2").body
    assert [item["doc_id"] for item in first["data"]] == ["a/b c", "paging"]
    assert first["has_more"]
    rest = served.get("/v1/documents?limit=2&after=paging").body
    assert [item["doc_id"] for item in rest["data"]] == ["raft"]
    assert not rest["has_more"]
    assert rest["documents"] == 3
    for limit in ("0", "1001", "0000000019999", "1" * 5000, "-1", "²", ""):
        reply = served.get(f"/v1/documents?limit={quote(limit)}")
        assert (reply.status, reply.error["param"]) == (422, "limit"), limit


def test_a_bad_document_does_not_fail_the_others(served: Service) -> None:
    good = {"doc_id": "good", "text": "Volcanoes erupt."}
    documents = [good, {"doc_id": "a\nb", "text": "t"}, {"doc_id": "c"}, "d", good]
    documents.append({"doc_id": "e", "text": " \x00 "})
    reply = served.post("/v1/documents", {"documents": documents})
    assert (reply.status, reply.body["added"]) == (200, 1)
    params = [item.get("error", {}).get("param") for item in reply.body["data"]]
    assert params == [
        None,
        "documents[1].doc_id",
        "documents[2].text",
        "documents[3]",
        "documents[4].doc_id",
        "documents[5].text",
    ]
    assert served.send("DELETE", "/v1/documents/good").status == 200


def test_embeddings_have_openais_form(served: Service) -> None:
    one = served.post("/v1/embeddings", {"input": "yeast", "model": "hashing"}).body
    assert (one["object"], one["model"]) == ("list", "hashing")
    vector = np.array(one["data"][0]["embedding"])
    assert vector.shape == (256,)
    assert np.linalg.norm(vector) == pytest.approx(1)
    body = {"input": ["log", "yeast"], "encoding_format": "base64"}
    many = served.post("/v1/embeddings", body).body["data"]
    assert [item["index"] for item in many] == [0, 1]
    raw = base64.b64decode(many[1]["embedding"])
    assert struct.unpack("<256f", raw) == pytest.approx(vector)


@pytest.mark.parametrize(
    ("route", "body", "status", "param", "code"),
    [
        ("label", {}, 422, "query", "missing_field"),
        ("label", {"query": "a", "queries": ["b"]}, 422, "query", "missing_field"),
        ("label", {"query": None}, 422, "query", "missing_field"),
        ("label", {"query": ""}, 422, "query", "empty"),
        ("label", {"query": " \t\n"}, 422, "query", "empty"),
        ("label", {"query": "\x00"}, 422, "query", "empty"),
        ("label", {"query": "\ud800"}, 422, "query", "empty"),
        ("label", {"query": ["a"]}, 422, "query", "wrong_type"),
        ("label", {"query": "a" * 20_001}, 413, "query", "too_long"),
        ("label", {"queries": []}, 422, "queries", "wrong_type"),
        ("label", {"queries": "a"}, 422, "queries", "wrong_type"),
        ("label", {"queries": ["a"] * 9}, 422, "queries", "too_many_items"),
        ("label", {"query": "a", "collection": "other"}, 404, "collection", "unknown_collection"),
        ("retrieve", {"query": "a", "collection": {}}, 404, "collection", "unknown_collection"),
        ("label", {"query": "a", "collection": "o" * 9000}, 404, "collection",
         "unknown_collection"),
        ("embeddings", {}, 422, "input", "wrong_type"),
        ("embeddings", {"input": [1, 2]}, 422, "input[0]", "wrong_type"),
        ("embeddings", {"input": ["a", ""]}, 422, "input[1]", "empty"),
        ("embeddings", {"input": "a", "model": "x"}, 404, "model", "model_not_found"),
        ("embeddings", {"input": "a", "dimensions": 3}, 422, "dimensions", "invalid_value"),
        ("embeddings", {"input": "a", "encoding_format": []}, 422, "encoding_format",
         "invalid_value"),
        ("documents", {}, 422, "document.doc_id", "missing_field"),
        ("documents", {"doc_id": "a", "text": 3}, 422, "document.text", "wrong_type"),
        ("documents", {"doc_id": "a", "title": None, "text": "t"}, 422, "document.title",
         "wrong_type"),
        ("documents", {"doc_id": "\ud800", "text": "t"}, 422, "document.doc_id", "invalid_value"),
        ("documents", {"doc_id": "a" * 513, "text": "t"}, 422, "document.doc_id", "invalid_value"),
        ("documents", {"doc_id": "a", "title": "b" * 1001, "text": "t"}, 422, "document.title",
         "invalid_value"),
        ("documents", {"documents": {}}, 422, "documents", "wrong_type"),
        ("documents", {"documents": None}, 422, "documents", "wrong_type"),
    ],
)  # fmt: skip
def test_a_wrong_field_is_refused_in_one_sentence(
    served: Service, route: str, body: object, status: int, param: str, code: str
) -> None:
    reply = served.post(f"/v1/{route}", body)
    assert (reply.status, reply.error["param"], reply.error["code"]) == (status, param, code)
    assert reply.error["type"] == "invalid_request_error"
    assert len(reply.error["message"]) < 500
    assert "\n" not in reply.error["message"]


@pytest.mark.parametrize(
    ("route", "body", "status"),
    [
        ("label", "%s", 400),
        ("label", '{"query": %s}', 422),
        ("embeddings", '{"input": [%s]}', 422),
    ],
)
def test_a_deeply_nested_value_is_of_the_wrong_type(
    served: Service, route: str, body: str, status: int
) -> None:
    # What can still be read, and not be written, depends on how deep the calls are.
    deep = [body % ("[" * depth + "]" * depth) for depth in range(900, 1010)]
    found = [served.send("POST", f"/v1/{route}", each.encode()).status for each in deep]
    assert (found[0], found[-1]) == (status, 400)
    assert {*found} == {status, 400}


def test_the_longest_id_and_title_are_served(served: Service) -> None:
    document = {"doc_id": "ü" * 512, "title": "t" * 1000, "text": "Glaciers carve valleys."}
    assert served.post("/v1/documents", document).status == 201
    path = f"/v1/documents/{quote(document['doc_id'])}"
    assert served.get(path).body == {"object": "document", **document, "questions": []}
    assert served.send("DELETE", path).status == 200


@pytest.mark.parametrize(
    "raw",
    [b"", b"{", b"\xff", b"[1]", b"NaN", b'{"query": NaN}', b"[" * 100_000, b"1" * 5000],
)
def test_what_is_no_json_object_is_refused(served: Service, raw: bytes) -> None:
    reply = served.send("POST", "/v1/label", raw)
    assert (reply.status, reply.error["code"]) == (400, "malformed_body")


def test_a_body_that_claims_to_be_packed_and_is_not(served: Service) -> None:
    headers = {"Content-Encoding": "gzip"}
    reply = served.send("POST", "/v1/label", b'{"query": "a"}', **headers)
    assert reply.status == 400


def test_a_body_of_five_megabytes_is_refused(served: Service) -> None:
    reply = served.send("POST", "/v1/label", json.dumps({"query": "a" * 5_000_000}).encode())
    assert (reply.status, reply.error["code"]) == (413, "too_large")


def test_unknown_routes_and_methods(served: Service) -> None:
    unknown = served.get("/v1/nothing")
    assert (unknown.status, unknown.error["code"]) == (404, "unknown_route")
    wrong = served.get("/v1/label")
    assert (wrong.status, wrong.error["code"]) == (405, "wrong_method")
    assert wrong.headers["Allow"] == "POST"


def test_health_ready_and_metrics(served: Service) -> None:
    assert served.get("/health").body == {"status": "ok"}
    ready = served.get("/ready").body
    assert (ready["status"], ready["embedder"], ready["documents"]) == ("ready", "hashing", 3)
    answered = 'kvswarm_rag_labels_total{result="answered"}'
    failed = 'kvswarm_rag_labels_total{result="failed"}'
    requests = 'kvswarm_rag_requests_total{route="/v1/label",status="200"}'
    stage = 'kvswarm_rag_label_stage_seconds_count{stage="search"}'
    names = (answered, failed, requests, stage)
    before = [served.metric(name) if name in names[:2] else 0 for name in names]
    served.post("/v1/label", {"queries": ["yeast", "log", ""]})
    assert served.metric(answered) == before[0] + 2
    assert served.metric(failed) == before[1] + 1
    assert served.metric(requests) >= 1
    assert served.metric(stage) >= 2
    assert served.metric("kvswarm_rag_queue_depth") == 0
    assert served.metric("kvswarm_rag_chunks") == 3
    assert served.metric("kvswarm_rag_loop_lag_seconds_count") > 0
    served.get("/v1/x1")
    served.get("/v1/x2")
    unknown = 'kvswarm_rag_requests_total{route="unknown",status="404"}'
    assert served.metric(unknown) >= 2, "paths must not become labels"


def test_an_empty_library_labels_nothing(tmp_path: Path) -> None:
    with service(tmp_path) as running:
        label = running.post("/v1/label", {"query": "anything"}).body
        assert (label["doc_id"], label["candidates"]) == (None, [])
        assert running.post("/v1/retrieve", {"query": "anything"}).body["document"] is None
        refused = 'kvswarm_rag_labels_total{result="refused"}'
        assert running.metric(refused) == 2
        code, errors = running.stop()
    assert code == 0
    assert "the library is empty" in errors
    assert "POST" not in errors.replace("POST /v1/documents", ""), "no access log"
