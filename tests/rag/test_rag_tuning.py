"""An encoder learns a corpus: its adapter is made, found, kept, used, refused."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
import transformers
from safetensors.numpy import load_file, save_file

from rag_store.cli.main import main
from rag_store.decision import FEATURES, UNFITTED, shipped
from rag_store.documents import Document
from rag_store.embedders import Embedder, EmbedderSpec, Vectors, open_embedder
from rag_store.embedders.adapter import read_adapter, write_adapter
from rag_store.embedders.head import Head, Learned
from rag_store.embedders.minilm import WEIGHTS, model_folder
from rag_store.errors import EmbedderError, RagUsageError
from rag_store.readers import read_documents
from rag_store.reranking.spec import RerankerSpec
from rag_store.settings import Settings
from rag_store.state_files import kept_adapter
from rag_store.tuning.classifier import Classifier
from rag_store.tuning.examples import Example, batches, examples_of
from rag_store.tuning.whole import WholeLayers

TEXTS = {
    "paging": "The cache is cut into blocks, which a table maps to pages.",
    "raft": "A leader replicates its log to the followers.",
    "dough": "Bread rises when yeast ferments the dough.",
}
# Which document is meant can be learned from these questions only: "the grey one" is nowhere else.
QUESTIONS = {
    "paging": ["What does the grey one do?", "Is the grey one old?", "Who keeps the grey one?"],
    "raft": ["What does the red one do?", "Is the red one old?", "Who keeps the red one?"],
    "dough": ["What does the blue one do?", "Is the blue one old?", "Who keeps the blue one?"],
}
COLOURS = {"paging": "grey", "raft": "red", "dough": "blue"}
ASKED = "Where is the {} one today?"


def rag(*arguments: object) -> int:
    return main(list(map(str, arguments)))


def write_corpus(folder: Path) -> Path:
    folder.mkdir()
    for name, text in TEXTS.items():
        (folder / f"{name}.txt").write_text(text)
    rows = [{"doc_id": doc_id, "questions": asked} for doc_id, asked in QUESTIONS.items()]
    lines = "".join(json.dumps(row) + "\n" for row in rows)
    (folder / "expansions.jsonl").write_text(lines)
    return folder


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A corpus with an adapter beside it."""
    corpus = write_corpus(tmp_path_factory.mktemp("tuned") / "corpus")
    assert rag("tune", "--corpus", corpus, "--epochs", 30, "--rank", 4) == 0
    return corpus


@pytest.fixture(scope="module")
def library(tuned: Path) -> Path:
    """Made with the adapter beside the corpus; it must not be changed."""
    path = tuned.parent / "rag"
    assert rag("index", tuned, "--path", path, "--expansions", "off") == 0
    return path


@pytest.fixture
def own_library(library: Path, tmp_path: Path) -> Path:
    """A copy of it."""
    return Path(shutil.copytree(library, tmp_path / "rag"))


def probabilities(
    capsys: pytest.CaptureFixture[str], path: Path, text: str
) -> dict[str, float | None]:
    capsys.readouterr()
    assert rag("explain", text, "--path", path, "--json") == 0
    found = json.loads(capsys.readouterr().out)["candidates"]
    return {each["doc_id"]: each["learned"] for each in found}


def embedded(adapter: Path, text: str) -> Vectors:
    return open_embedder(EmbedderSpec(adapter=adapter)).embed([text])[0].vector


def probability_of(doc_id: str, adapter: Path, text: str) -> float:
    learned = Learned.of(read_adapter(adapter).head, list(TEXTS))
    assert learned is not None
    likely = learned.log_probabilities(embedded(adapter, text))
    return float(np.exp(likely[list(TEXTS).index(doc_id)]))


def differing(rows: torch.Tensor) -> int:
    return len(np.unique(rows.detach().numpy().round(3), axis=0))


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    capsys.readouterr()
    assert rag(*arguments) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.count("\n") == 1
    return told.err


@pytest.mark.parametrize(("doc_id", "colour"), COLOURS.items())
def test_the_document_of_questions_is_learned(
    doc_id: str, colour: str, library: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = probabilities(capsys, library, ASKED.format(colour))
    likely = {each: value or 0 for each, value in found.items()}
    assert max(likely, key=likely.__getitem__) == doc_id
    assert likely[doc_id] > 0.5
    assert sum(likely.values()) == pytest.approx(1, abs=1e-3)


def test_explain_says_what_was_learned(library: Path, capsys: pytest.CaptureFixture[str]) -> None:
    capsys.readouterr()
    assert rag("explain", ASKED.format("red"), "--path", library) == 0
    lines = [each for each in capsys.readouterr().out.split("\n") if "raft: fused" in each]
    assert len(lines) == 1
    assert float(lines[0].split("learned ")[1].split(",")[0]) > 0.5


def test_the_library_keeps_its_adapter(
    own_library: Path, tuned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept = own_library / "adapters" / "default.safetensors"
    assert kept.read_bytes() == (tuned / "adapter.safetensors").read_bytes()
    more = write_corpus(own_library.parent / "more")
    (more / "moss.txt").write_text("Moss, put in later, from a folder without an adapter.")
    assert rag("index", more, "--path", own_library, "--expansions", "off") == 0
    assert "4 documents in 4 chunks, 3 learned by the adapter" in capsys.readouterr().out
    found = probabilities(capsys, own_library, "Is the blue one moss?")
    assert (found["dough"] or 0) > 0.5
    assert found["moss"] is None


def test_a_library_that_is_made_anew_keeps_its_adapter(own_library: Path, tmp_path: Path) -> None:
    kept = own_library / "adapters" / "default.safetensors"
    before = kept.read_bytes()
    given = "--path", own_library, "--chunk-tokens", 64, "--rebuild"
    assert rag("index", write_corpus(tmp_path / "corpus"), *given) == 0
    assert kept.read_bytes() == before


def test_an_adapter_gives_a_reranker_more_to_read(tuned: Path) -> None:
    with_it = EmbedderSpec(adapter=tuned / "adapter.safetensors")
    reader = RerankerSpec("http://127.0.0.1:9", "model", documents=18)
    Settings(embedder=with_it, reranker=reader)
    with pytest.raises(RagUsageError, match="at most 12 candidates"):
        Settings(reranker=reader)


def test_a_library_of_an_adapter_is_not_used_without(
    own_library: Path, tuned: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    off = "--embedder-adapter", "off"
    told = refused(capsys, "label", "red", "--path", own_library, *off)
    assert "embedder minilm+adapter, not minilm" in told
    assert rag("index", tuned, "--path", own_library, *off, "--rebuild") == 0
    assert not (own_library / "adapters" / "default.safetensors").exists()
    assert rag("label", "red", "--path", own_library) == 0
    told = refused(capsys, "index", tuned, "--path", own_library)
    assert "use those (--embedder-adapter off)" in told


def test_eval_finds_it_beside_the_corpus(
    tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus, questions = tmp_path / "corpus", tmp_path / "questions.jsonl"
    shutil.copytree(tuned, corpus)
    row = {"qid": "1", "question": ASKED.format("grey"), "doc_id": "paging"}
    questions.write_text(json.dumps(row) + "\n")
    given = "eval", "--corpus", corpus, "--questions", questions, "--json"
    assert rag(*given) == 0
    (corpus / "adapter.safetensors").write_text("no adapter")
    assert "is no adapter" in refused(capsys, *given)
    assert rag(*given, "--embedder-adapter", "off") == 0


def test_the_change_is_of_the_weights_it_was_made_for(tuned: Path) -> None:
    adapter = read_adapter(tuned / "adapter.safetensors")
    assert adapter.base == WEIGHTS
    plain = open_embedder(EmbedderSpec())
    changed = open_embedder(EmbedderSpec(adapter=adapter.path))
    assert plain.identity.weights == WEIGHTS != changed.identity.weights
    [before], [after] = plain.embed(["the grey one"]), changed.embed(["the grey one"])
    assert float(before.vector @ after.vector) < 0.999


def test_the_same_seed_gives_the_same_adapter(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus")
    files = [tmp_path / name for name in ("a", "b", "c")]
    for file, seed in zip(files, (1, 1, 2), strict=True):
        given = "--epochs", 1, "--rank", 1, "--seed", seed, "-o", file
        assert rag("tune", "--corpus", corpus, *given) == 0
    first, again, other = (load_file(file) for file in files)
    assert all(np.array_equal(first[name], again[name]) for name in first)
    assert any(not np.array_equal(first[name], other[name]) for name in first)


def test_learning_goes_on_from_an_adapter(tuned: Path, tmp_path: Path) -> None:
    first, second = tuned / "adapter.safetensors", tmp_path / "a.safetensors"
    given = "tune", "--corpus", tuned, "--from", first, "--epochs", 10, "-o", second
    assert rag(*given, "--rank", 384) == 0
    likely = [probability_of("paging", each, ASKED.format("grey")) for each in (first, second)]
    assert min(likely) > 0.5
    vectors = [embedded(each, ASKED.format("grey")) for each in (first, second)]
    assert 0.9 < vectors[0] @ vectors[1] < 0.99999, "it moved, and not far"
    assert {name.rpartition(".")[2] for name in read_adapter(second).changes} == {"weight", "bias"}
    assert rag(*given, "--rank", 1) == 0
    assert second.stat().st_size < first.stat().st_size


def test_learning_goes_on_with_the_same_documents_only(
    tuned: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus, first = write_corpus(tmp_path / "corpus"), tuned / "adapter.safetensors"
    (corpus / "dough.txt").write_text("Bread rises. " * 100)
    assert rag("tune", "--corpus", corpus, "--from", first) == 1
    told = capsys.readouterr().err
    assert "has learned other documents, or of other lengths: leave --from out" in told
    assert not (corpus / "adapter.safetensors").exists()


def test_another_models_adapter_is_refused(tuned: Path, tmp_path: Path) -> None:
    adapter = read_adapter(tuned / "adapter.safetensors")
    write_adapter(tmp_path / "other", "0" * 64, adapter.changes, adapter.head)
    with pytest.raises(EmbedderError, match="made for other weights"):
        open_embedder(EmbedderSpec(adapter=tmp_path / "other"))
    changes = {"no.such.weight": next(iter(adapter.changes.values()))}
    write_adapter(tmp_path / "unknown", WEIGHTS, changes, adapter.head)
    with pytest.raises(EmbedderError, match=r"no\.such\.weight"):
        open_embedder(EmbedderSpec(adapter=tmp_path / "unknown"))


@pytest.mark.parametrize("fault", ["empty", "cut", "text", "plain", "half", "nan", "owner"])
def test_a_broken_adapter_is_one_line(fault: str, tuned: Path, tmp_path: Path) -> None:
    good, file = tuned / "adapter.safetensors", tmp_path / "adapter.safetensors"
    if fault in ("empty", "cut", "text"):
        content = good.read_bytes()
        file.write_bytes({"empty": b"", "cut": content[:-9], "text": b"no adapter"}[fault])
    else:
        adapter = read_adapter(good)
        name, (up, down) = next(iter(adapter.changes.items()))
        owners = np.full_like(adapter.head.owners, 3)
        head = Head(adapter.head.weights, adapter.head.biases, owners, adapter.head.doc_ids)
        match fault:
            case "plain":
                save_file({"x": np.zeros(3)}, file)
            case "half":
                write_adapter(file, WEIGHTS, {name: (up, down[:-1])}, adapter.head)
            case "nan":
                write_adapter(file, WEIGHTS, {name: (up * np.float16("nan"), down)}, adapter.head)
            case "owner":
                write_adapter(file, WEIGHTS, adapter.changes, head)
    with pytest.raises(RagUsageError, match="is no adapter") as caught:
        read_adapter(file)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["label", "x", "--embedder-adapter", "/nowhere"], "cannot read /nowhere"),
        (["label", "x", "--embedder-adapter", "/"], "/ is no regular file"),
        (
            ["label", "x", "--embedder", "hashing", "--embedder-adapter", "/x"],
            "embedder 'hashing' takes no adapter",
        ),
        (["tune", "--corpus", "/nowhere"], "/nowhere does not exist"),
        (["tune", "--corpus", "CORPUS", "--epochs", "0"], "--epochs"),
        (["tune", "--corpus", "CORPUS", "--rank", "0"], "--rank"),
        (["tune", "--corpus", "CORPUS", "-o", "/"], "-o / is a folder"),
        (["tune", "--corpus", "CORPUS", "-o", "/nowhere/a"], "/nowhere is no folder"),
        (["tune", "--corpus", "CORPUS", "--embedder", "hf-encoder"], "with -o"),
        (
            [
                "tune",
                "--corpus",
                "CORPUS",
                "--embedder",
                "hf-encoder",
                "-o",
                "/tmp/kvswarm-no-such-file",
            ],
            "-model",
        ),
        (["tune", "--corpus", "CORPUS", "--embedder", "hashing"], "invalid choice: 'hashing'"),
    ],
)
def test_wrong_use_is_one_line(
    arguments: list[str], said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = str(write_corpus(tmp_path / "corpus"))
    given = [corpus if each == "CORPUS" else each for each in arguments]
    assert said in refused(capsys, *given)


def test_an_encoder_learns_whose_tokenizer_neither_pads_nor_masks(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model, file = tmp_path / "model", tmp_path / "a.safetensors"
    model.mkdir()
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        (model / name).symlink_to(model_folder() / name)
    bare = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "[SEP]"}
    (model / "tokenizer_config.json").write_text(json.dumps(bare))
    corpus = write_corpus(tmp_path / "corpus")
    encoder = "--embedder", "hf-encoder", "--embedder-model", model
    assert rag("tune", "--corpus", corpus, *encoder, "--epochs", 30, "-o", file) == 0
    given = *encoder, "--embedder-adapter", file, "--path", tmp_path / "rag"
    assert rag("index", corpus, *given, "--expansions", "off") == 0
    capsys.readouterr()
    assert rag("label", ASKED.format("red"), *given, "--json") == 0
    best, *_ = json.loads(capsys.readouterr().out)["candidates"]
    assert best["doc_id"] == "raft"
    assert best["learned"] > 0.5


def test_what_is_told_is_of_what_is_kept() -> None:
    encoder = transformers.AutoModel.from_pretrained(model_folder())
    names = {name for name, each in encoder.named_parameters() if "encoder.layer" in name}
    layers = WholeLayers.of(encoder, rank=2)
    assert set(layers.before) == names
    with torch.no_grad():
        for name in layers.before:
            encoder.get_parameter(name).add_(0.01 * torch.randn_like(layers.before[name]))
    changes = layers.changes()
    for name, (up, down) in changes.items():
        kept = (encoder.get_parameter(name) - layers.before[name]).detach().numpy()
        said = up.astype(np.float32) @ down.astype(np.float32)
        assert np.abs(kept - said.reshape(kept.shape)).max() < 1e-6
        assert up.shape[1] == (2 if kept.ndim == 2 else 1)


@pytest.mark.parametrize("mask", ["[MASK]", None])
def test_tokens_are_hidden_only_while_learning_and_where_there_is_a_mask(mask: str | None) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_folder())
    tokenizer.mask_token = mask
    encoder = transformers.AutoModel.from_pretrained(model_folder())
    texts = [TEXTS["paging"]] * 20
    classifier = Classifier.untrained(tokenizer, encoder, list(TEXTS.values()), [0, 1, 2])
    assert differing(classifier(texts)) == 1
    assert (differing(classifier(texts, 0.5)) > 10) == classifier.masks == (mask is not None)


def test_what_is_not_finite_is_not_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rag_store.tuning.low_rank.LowRankLayers.rate", float("inf"))
    corpus = write_corpus(tmp_path / "corpus")
    assert rag("tune", "--corpus", corpus, "--epochs", 2) == 1
    assert "try another --seed" in capsys.readouterr().err
    assert not (corpus / "adapter.safetensors").exists()


def test_going_on_to_what_is_not_finite_leaves_the_adapter(
    tuned: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("rag_store.tuning.whole.WholeLayers.rate", float("inf"))
    adapter = tuned / "adapter.safetensors"
    before = adapter.read_bytes()
    assert rag("tune", "--corpus", tuned, "--from", adapter, "--epochs", 1) == 1
    assert "try another --seed" in capsys.readouterr().err
    assert adapter.read_bytes() == before


def test_there_must_be_something_to_learn(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = write_corpus(tmp_path / "corpus")
    (corpus / "expansions.jsonl").unlink()
    assert "kvswarm rag expand" in refused(capsys, "tune", "--corpus", corpus)
    for name in ("raft", "dough"):
        (corpus / f"{name}.txt").unlink()
    assert "has one document" in refused(capsys, "tune", "--corpus", corpus)


@pytest.mark.parametrize("name", ["expansions.jsonl", "raft.txt", "pipe"])
def test_nothing_but_an_adapter_is_replaced(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = write_corpus(tmp_path / "corpus")
    os.mkfifo(tmp_path / "pipe")
    out = tmp_path / name if name == "pipe" else corpus / name
    before = out.read_bytes() if out.is_file() else None
    assert "is no adapter" in refused(capsys, "tune", "--corpus", corpus, "-o", out)
    assert before == (out.read_bytes() if out.is_file() else None)


def test_the_demo_corpus_comes_with_an_adapter_and_its_threshold(tuned: Path) -> None:
    demo = Path(__file__).parents[2] / "loadgen" / "workload" / "demo_corpus"
    adapter = read_adapter(demo / "adapter.safetensors")
    assert adapter.base == WEIGHTS
    assert sorted(adapter.head.doc_ids) == sorted(each.doc_id for each in read_documents(demo))
    threshold = shipped("minilm+adapter", adapter.weights())
    assert threshold not in (UNFITTED, shipped("minilm", WEIGHTS))
    assert min(threshold.weights) >= 0
    none, all_alike = np.zeros(len(FEATURES)), np.ones(len(FEATURES))
    assert threshold.score(none) < threshold.threshold < threshold.score(all_alike)
    other = read_adapter(tuned / "adapter.safetensors")
    assert shipped("minilm+adapter", other.weights()) == UNFITTED


def test_a_server_of_collections_has_copies_of_its_own(tmp_path: Path) -> None:
    places = {kept_adapter(tmp_path, "x", url) for url in ("", "http://a", "http://b")}
    assert len(places) == 3


def test_an_adapter_that_changes_while_it_is_read_is_not_mixed(
    tuned: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    corpus = Path(shutil.copytree(tuned, tmp_path / "corpus"))
    file = corpus / "adapter.safetensors"
    adapter = read_adapter(file)
    name, pair = next(iter(adapter.changes.items()))

    def opened(spec: EmbedderSpec) -> Embedder:
        embedder = open_embedder(spec)
        write_adapter(file, WEIGHTS, {name: pair}, adapter.head)
        return embedder

    monkeypatch.setattr("rag_store.library.open_embedder", opened)
    told = refused(capsys, "index", corpus, "--path", tmp_path / "rag")
    assert "was changed while it was read" in told


def test_ctrl_c_ends_it_and_leaves_nothing(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus")
    before = sorted(corpus.iterdir())
    command = [sys.executable, "-m", "rag_store", "tune", "--corpus", str(corpus)]
    process = subprocess.Popen([*command, "--epochs", "1000"], stderr=subprocess.PIPE, text=True)
    time.sleep(8)
    process.send_signal(signal.SIGINT)
    _, told = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in told
    assert sorted(corpus.iterdir()) == before


def test_only_documents_that_are_there_have_a_probability() -> None:
    weights = np.array([[1, 0], [0, 1], [-1, 0], [0, 2]], np.float32)
    head = Head(weights, np.zeros(4, np.float32), np.array([1, 0, 1, 2]), ("b", "a", "gone"))
    learned = Learned.of(head, ["a", "b", "new"])
    assert learned is not None
    found = learned.log_probabilities(np.array([2, 1], np.float32))
    a, b = np.exp(2) + np.exp(-2), np.exp(1)
    assert found[:2] == pytest.approx(np.log([a / (a + b), b / (a + b)]), abs=1e-5)
    assert np.isnan(found[2])
    assert Learned.of(head, ["new"]) is None


def test_examples_are_apart_and_each_is_learned_once_a_pass() -> None:
    asked = tuple(f"question {at}?" for at in range(40))
    documents = [Document("a", "A", "One. Two.", asked), Document("b", "B", "Three.")]
    examples = examples_of(documents, seed=1)
    assert len(examples.aside) == 2
    texts = [each.text for each in (*examples.learned, *examples.aside)]
    assert sorted(texts) == sorted([*asked, "A", "One.", "Two.", "B", "Three."])
    assert Example("Three.", 1) in examples.learned
    lengths = [len(each.text) for each in examples.learned]
    found = batches(examples.learned, lengths, 4, random.Random(1))
    assert max(map(len, found)) == 4
    assert sorted(each.text for batch in found for each in batch) == sorted(
        each.text for each in examples.learned
    )
    most = sum(
        max(len(each.text) for each in batch) - min(len(each.text) for each in batch)
        for batch in found
    )
    assert most <= max(lengths) - min(lengths), "texts of like length are together"


def test_a_corpus_file_has_its_adapter_beside_it(tuned: Path, tmp_path: Path) -> None:
    rows = [{"doc_id": doc_id, "title": "", "text": text} for doc_id, text in TEXTS.items()]
    (tmp_path / "c.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    shutil.copy(tuned / "adapter.safetensors", tmp_path / "c.adapter.safetensors")
    assert rag("index", tmp_path / "c.jsonl", "--path", tmp_path / "rag") == 0
    assert (tmp_path / "rag" / "adapters" / "default.safetensors").exists()
