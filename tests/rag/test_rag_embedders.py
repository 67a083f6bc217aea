"""Embedders: the packaged MiniLM, transformers models, servers, and their errors."""

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import numpy as np
import pytest

from rag_store.embedders import EmbedderSpec, HashingEmbedder, open_embedder
from rag_store.embedders.protocol import late_interaction, unit
from rag_store.embedders.transformer import TransformerEmbedder, model_folder, open_minilm
from rag_store.errors import EmbedderError, EmbedderRefusal, RagUsageError


@pytest.fixture(scope="module")
def minilm() -> TransformerEmbedder:
    return open_minilm()


def cosine(embedder: Any, first: str, second: str) -> float:
    a, b = embedder.embed([first, second])
    return float(a.vector @ b.vector)


def test_minilm_knows_what_is_alike(minilm: TransformerEmbedder) -> None:
    near = cosine(minilm, "The cat sat on the mat.", "A kitten rested on the rug.")
    assert near > cosine(minilm, "The cat sat on the mat.", "Interest rates rose.") + 0.3


def test_minilms_vectors_stay_the_same(minilm: TransformerEmbedder) -> None:
    # Another pooling or tokenization would move this cosine.
    [first, second] = minilm.embed(["That is a happy person", "That is a very happy person"])
    assert first.vector.shape == (384,)
    assert float(first.vector @ second.vector) == pytest.approx(0.9429, abs=2e-3)


def test_company_in_a_batch_does_not_change_a_vector(minilm: TransformerEmbedder) -> None:
    texts = ["short", "a text that is quite a bit longer than the other one " * 8, "", "three"]
    together = minilm.embed(texts)
    for text, found in zip(texts, together, strict=True):
        [alone] = minilm.embed([text])
        assert np.allclose(alone.vector, found.vector, atol=1e-5)
        assert alone.states.shape == found.states.shape


def test_every_state_knows_its_word(minilm: TransformerEmbedder) -> None:
    [found] = minilm.embed(["The Brisvik pump, too"])
    assert set(found.words) == {"the", "brisvik", "pump", ",", "too"}
    assert found.words.count("brisvik") > 1
    assert found.states.shape == (len(found.words), 384)
    assert late_interaction(found.states, found.states).diagonal() == pytest.approx(1, abs=0.02)


def test_the_same_weights_as_a_folder_are_another_kind_with_the_same_vectors(
    minilm: TransformerEmbedder,
) -> None:
    folder = open_embedder(EmbedderSpec("hf-encoder", str(model_folder())))
    assert folder.identity.weights == minilm.identity.weights
    assert folder.identity != minilm.identity
    [ours], [theirs] = minilm.embed(["a cold cabinet"]), folder.embed(["a cold cabinet"])
    assert np.allclose(ours.vector, theirs.vector, atol=1e-5)
    assert ours.words == theirs.words


def test_other_weights_are_refused(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(b"other")
    with pytest.raises(EmbedderError, match="not all-MiniLM-L6-v2"):
        open_minilm(tmp_path)


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> TransformerEmbedder:
    import torch
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast, Qwen2Config, Qwen2ForCausalLM

    folder = tmp_path_factory.mktemp("causal")
    words = {word: at for at, word in enumerate(["<end>", "<unk>", "pump", "valve", "red", "blue"])}
    tokenizer = Tokenizer(models.WordLevel(words, "<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<end>", unk_token="<unk>"
    ).save_pretrained(folder)
    torch.manual_seed(0)
    Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=64,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
        )
    ).save_pretrained(folder)
    embedder = open_embedder(EmbedderSpec("hf-causal-mean", str(folder)))
    assert isinstance(embedder, TransformerEmbedder)
    return embedder


def test_a_causal_models_mean_leaves_padding_out(causal: TransformerEmbedder) -> None:
    texts = ["pump", "pump valve red blue red blue pump", ""]
    together = causal.embed(texts)
    for text, found in zip(texts, together, strict=True):
        assert np.allclose(causal.embed([text])[0].vector, found.vector, atol=1e-5)
    assert together[0].states.size == 0
    assert causal.identity.dim == 16
    assert len(causal.identity.weights) == 64


def test_where_texts_are_cut_is_part_of_what_vectors_are(causal: TransformerEmbedder) -> None:
    folder = str(causal._model.config._name_or_path)
    short = open_embedder(EmbedderSpec("hf-causal-mean", folder, max_tokens=2))
    assert short.identity != causal.identity
    text = "pump valve red blue"
    assert np.allclose(short.embed([text])[0].vector, causal.embed(["pump valve"])[0].vector)


def test_a_text_is_cut_where_the_model_ends() -> None:
    long = " ".join(f"word{at}" for at in range(600))
    spec = EmbedderSpec("hf-encoder", str(model_folder()), max_tokens=1024)
    assert open_embedder(spec).embed([long])[0].vector.shape == (384,)


def test_a_model_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(EmbedderError, match="cannot load the model"):
        open_embedder(EmbedderSpec("hf-encoder", str(tmp_path / "nowhere")))


def test_specs_that_say_too_little() -> None:
    with pytest.raises(RagUsageError, match="--embedder-model"):
        open_embedder(EmbedderSpec("hf-encoder"))
    with pytest.raises(RagUsageError, match="--embedder-url"):
        open_embedder(EmbedderSpec("openai", model="m"))
    with pytest.raises(RagUsageError, match="choose one of minilm"):
        open_embedder(EmbedderSpec("word2vec"))


def test_hashing_is_stable_and_knows_shared_words() -> None:
    embedder = HashingEmbedder(128)
    assert cosine(embedder, "red pump", "red pumps") > cosine(embedder, "red pump", "moon") + 0.3
    [first, second] = embedder.embed(["", "x"])
    assert np.linalg.norm(first.vector) == pytest.approx(1)
    assert len(second.states) == 1


def test_rows_that_have_no_direction_are_refused() -> None:
    for row in ([0.0, 0.0], [np.nan, 1.0], [np.inf, 1.0]):
        with pytest.raises(EmbedderError, match="zero or not finite"):
            unit(np.array([row]))


class EmbeddingsServer(BaseHTTPRequestHandler):
    """Answers in OpenAI's form; the model's name says what goes wrong."""

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        texts = asked["input"]
        rows = [{"index": at, "embedding": [len(text), 1, 0]} for at, text in enumerate(texts)]
        if asked["model"] == "short" and texts != ["dimension"]:
            rows.pop()
        self.send_response(404 if asked["model"] == "unknown" else 200)
        self.end_headers()
        self.wfile.write(json.dumps({"data": rows[::-1]}).encode())

    def log_message(self, *args: object) -> None:
        """Silent."""


@pytest.fixture
def url() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), EmbeddingsServer)
    thread = Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()
    thread.join()


def test_a_server_in_openais_form(url: str) -> None:
    embedder = open_embedder(EmbedderSpec("openai", "good", f"{url}/v1"))
    found = embedder.embed(["a" * at for at in range(1, 101)])
    assert embedder.identity.dim == 3
    assert [round(each.vector[0] / each.vector[1]) for each in found] == list(range(1, 101))


def test_servers_that_fail(url: str) -> None:
    with pytest.raises(EmbedderRefusal, match="answered HTTP 404"):
        open_embedder(EmbedderSpec("openai", "unknown", url))
    with pytest.raises(EmbedderError, match="did not answer with 2 embeddings"):
        open_embedder(EmbedderSpec("openai", "short", url)).embed(["a", "b"])
    with pytest.raises(EmbedderError, match="cannot reach"):
        open_embedder(EmbedderSpec("openai", "good", "http://127.0.0.1:9"))
