"""Embedders behind one small protocol, and the choice between them."""

from dataclasses import dataclass

from rag_store.embedders.hashing import HashingEmbedder
from rag_store.embedders.openai import OpenAIEmbedder
from rag_store.embedders.protocol import Embedder
from rag_store.embedders.transformer import MAX_TOKENS, TransformerEmbedder, open_minilm
from rag_store.errors import RagUsageError

KINDS = ("minilm", "hf-encoder", "hf-causal-mean", "openai", "hashing")


@dataclass(frozen=True, slots=True)
class EmbedderSpec:
    """`model` is a folder or a name for the hf kinds and openai, `url` the server of openai."""

    kind: str = "minilm"
    model: str = ""
    url: str = ""
    api_key_env: str = "OPENAI_API_KEY"
    dim: int = 256
    max_tokens: int = MAX_TOKENS


def open_embedder(spec: EmbedderSpec) -> Embedder:
    """Load the embedder; blocks for seconds. Raises RagUsageError and EmbedderError."""
    match spec.kind:
        case "minilm":
            return open_minilm()
        case "hashing":
            return HashingEmbedder(spec.dim)
        case "hf-encoder" | "hf-causal-mean":
            model, states = _needed(spec, "model"), spec.kind == "hf-encoder"
            return TransformerEmbedder(spec.kind, model, spec.max_tokens, states)
        case "openai":
            url, model = _needed(spec, "url"), _needed(spec, "model")
            return OpenAIEmbedder(url, model, spec.api_key_env)
    raise RagUsageError(f"embedder {spec.kind!r} is unknown: choose one of {', '.join(KINDS)}")


def _needed(spec: EmbedderSpec, field: str) -> str:
    """What this kind of embedder cannot do without. Raises RagUsageError."""
    value = str(getattr(spec, field))
    if not value:
        raise RagUsageError(f"embedder {spec.kind!r} needs --embedder-{field}")
    return value
