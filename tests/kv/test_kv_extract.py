"""A recording becomes features: stored KV read exactly, short questions computed, faults told."""

import json
import random
import shutil
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from packed_chunks import as_bfloat16, file_name, packed

from kv_reading import KvError
from kv_reading.extract import extract
from kv_reading.features import pooled, read_features
from kv_reading.kv import ReferenceModel, read_shape
from kv_reading.recording import (
    CHUNKS,
    KV_JSON,
    Design,
    RunFacts,
    Source,
    cut_sources,
    make_requests,
    read_requests,
    write_requests,
)
from kv_reading.stored import ChunkName, chunk_digests

pytest.importorskip("torch")
CHUNK_TOKENS = 32
DESIGN = Design(passage_tokens=2 * CHUNK_TOKENS, questions=2, short_questions=1)


@pytest.fixture
def run(recorded: Path, tmp_path: Path) -> Path:
    """A recording to spoil."""
    return shutil.copytree(recorded, tmp_path / "run")


@pytest.fixture(scope="module")
def recorded(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """As `kvswarm kv record` leaves it, for an engine that packs as AMX machines do."""
    folder = tmp_path_factory.mktemp("recorded")
    rng = random.Random(1)
    sources = [
        Source(f"doc-{at}", tuple(rng.choices(range(3, 250), k=200)), ((f"q{at}", (5, 6, 7)),))
        for at in range(3)
    ]
    requests = make_requests(cut_sources(sources, DESIGN), DESIGN, str)
    write_requests(folder, requests)
    facts = RunFacts(str(model), True, CHUNK_TOKENS, 0)
    (folder / KV_JSON).write_text(json.dumps(asdict(facts)))
    (folder / CHUNKS).mkdir()
    reference = ReferenceModel(model)
    for request in requests:
        if not request.prompt.startswith("short"):
            kv = reference.kv(request.token_ids)
            for at, digest in enumerate(chunk_digests(request.token_ids, CHUNK_TOKENS)):
                part = kv.part(at * CHUNK_TOKENS, (at + 1) * CHUNK_TOKENS)
                name = file_name(ChunkName("toy", 1, 0, digest))
                (folder / CHUNKS / name).write_bytes(as_bfloat16(packed(part, "amx", 32)))
    return folder


def test_stored_kv_is_that_of_a_forward_pass(run: Path, model: Path) -> None:
    report = extract(run)
    assert "amx" in report.lines[0]
    found = read_features(report.path)
    reference = ReferenceModel(model)
    for request in read_requests(run):
        arm = found[f"{request.prompt}/question"]
        at = list(arm.question_ids).index(request.question_id)
        expected = pooled(reference.kv(request.token_ids).part(request.question_from))
        assert np.allclose(arm.pooled[at], expected, atol=0.02, rtol=0.02)
        assert (arm.topics[at], arm.contexts[at]) == (request.topic, request.context)
    assert found["alone/question"].source == "LMCache"
    assert found["short-alone/question"].source == "transformers"
    own = found["own/prompt"].pooled
    assert not np.allclose(own, found["own/question"].pooled, atol=0.02)


def test_the_reference_needs_no_chunks(run: Path) -> None:
    stored = read_features(extract(run).path)
    for path in (run / CHUNKS).iterdir():
        path.unlink()
    computed = read_features(extract(run, reference=True).path)
    assert computed["alone/question"].source == "transformers"
    pairs = (each["alone/question"].pooled for each in (stored, computed))
    assert np.allclose(*pairs, atol=0.02, rtol=0.02)
    with pytest.raises(KvError, match="holds no chunk"):
        extract(run)


def test_a_request_with_a_truncated_chunk_is_left_out(run: Path) -> None:
    requests = [each for each in read_requests(run) if each.prompt == "alone"]
    digest = chunk_digests(requests[1].token_ids, CHUNK_TOKENS)[1]
    path = run / CHUNKS / file_name(ChunkName("toy", 1, 0, digest))
    path.write_bytes(path.read_bytes()[:-10])
    report = extract(run)
    # It opens another request, whose context is this passage.
    assert any(line.startswith("left out 2: chunk 1 has") for line in report.lines)
    kept = read_features(report.path)["alone/question"].question_ids
    assert requests[1].question_id not in kept
    assert len(kept) == len(requests) - 1


def test_chunks_that_say_something_else_are_refused(run: Path) -> None:
    rng = np.random.default_rng(0)
    for path in (run / CHUNKS).iterdir():
        halves = np.frombuffer(path.read_bytes(), "<u2")
        path.write_bytes(rng.permutation(halves).tobytes())
    with pytest.raises(KvError, match="no known layout"):
        extract(run)


def test_a_damaged_recording_is_told(run: Path, tmp_path: Path) -> None:
    for line in ('{"prompt": "own", "token_ids": "none"}', "5"):
        (run / "requests.jsonl").write_text(f"{line}\n")
        with pytest.raises(KvError, match=r"requests\.jsonl is damaged"):
            extract(run)
    (run / KV_JSON).unlink()
    with pytest.raises(KvError, match="holds no complete recording"):
        extract(run)
    with pytest.raises(KvError, match=r"cannot read .*config\.json"):
        read_shape(tmp_path / "nowhere")
