"""A Qwen2-architecture model with random weights, made in seconds and served like any other.

Its words mean nothing; what it costs to prefill, decode and cache is that of its size.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Literal, get_args

from loadgen.errors import UsageError
from loadgen.targets.demo_tokenizer import (
    END_OF_TEXT,
    SPECIAL_IDS,
    TURN_END,
    silent_ids,
    write_tokenizer,
)
from loadgen.targets.demo_weights import write_weights
from loadgen.targets.home import home

Size = Literal["tiny", "small"]
SIZES: tuple[Size, ...] = get_args(Size)

WINDOW_TOKENS = 12288
SPECIAL = {"eos_token_id": SPECIAL_IDS[TURN_END], "pad_token_id": SPECIAL_IDS[END_OF_TEXT]}
MARK = "kvswarm.json"
RECIPE = 1  # goes up when the same size, texts and seed are to give other files
FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "model.safetensors",
    MARK,
)


@dataclass(frozen=True, slots=True)
class Shape:
    """The dimensions of one size."""

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    intermediate: int


SHAPES: dict[Size, Shape] = {
    "tiny": Shape(hidden=512, layers=8, heads=8, kv_heads=2, intermediate=1408),
    "small": Shape(hidden=768, layers=12, heads=12, kv_heads=4, intermediate=2048),
}


def default_model_dir(size: Size) -> Path:
    """Where the demo model of this size lives."""
    return home() / "models" / size


def is_complete(directory: Path) -> bool:
    """Whether a finished demo model is there."""
    return all((directory / name).is_file() for name in FILES)


def build_model(directory: Path, size: Size, texts: Iterable[str], seed: int = 0) -> Path:
    """Make the model in `directory`, or keep it where the same one is already there.

    The same size, texts and seed give the same files. Raises UsageError for an unknown size,
    empty texts, a directory that holds something else, or missing packages.
    """
    if size not in SHAPES:
        raise UsageError(f"unknown model size {size!r}: choose one of {', '.join(SIZES)}")
    texts = list(texts)
    mark = {"recipe": RECIPE, "size": size, "seed": seed, "texts_sha256": _digest(texts)}
    _refuse_foreign(directory)
    if is_complete(directory) and json.loads((directory / MARK).read_text()) == mark:
        return directory
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with TemporaryDirectory(prefix=".model-", dir=directory.parent) as scratch:
            made = Path(scratch) / "made"
            made.mkdir()
            _write(made, SHAPES[size], texts, seed, mark)
            _publish(made, directory, Path(scratch) / "old")
    except OSError as error:
        raise UsageError(f"cannot write a model to {directory}: {error.strerror}") from error
    return directory


def _digest(texts: list[str]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        digest.update(hashlib.sha256(text.encode()).digest())
    return digest.hexdigest()


def _refuse_foreign(directory: Path) -> None:
    if directory.exists() and not directory.is_dir():
        raise UsageError(f"{directory} is a file: name a directory for the model")
    if directory.is_dir() and any(directory.iterdir()) and not (directory / MARK).is_file():
        raise UsageError(f"{directory} holds other files: name a new or empty directory")


def _write(
    directory: Path, shape: Shape, texts: list[str], seed: int, mark: dict[str, Any]
) -> None:
    tokenizer = write_tokenizer(directory, texts, WINDOW_TOKENS)
    config = _config(shape, tokenizer.get_vocab_size())
    _write_json(directory / "config.json", config)
    _write_json(directory / "generation_config.json", SPECIAL)
    write_weights(directory / "model.safetensors", config, silent_ids(tokenizer), seed)
    _write_json(directory / MARK, mark)


def _config(shape: Shape, vocabulary: int) -> dict[str, Any]:
    return {
        "architectures": ["Qwen2ForCausalLM"],
        "model_type": "qwen2",
        "hidden_size": shape.hidden,
        "intermediate_size": shape.intermediate,
        "num_hidden_layers": shape.layers,
        "num_attention_heads": shape.heads,
        "num_key_value_heads": shape.kv_heads,
        "vocab_size": vocabulary,
        "max_position_embeddings": WINDOW_TOKENS,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "attention_dropout": 0.0,
        "use_cache": True,
        "torch_dtype": "bfloat16",
        **SPECIAL,
    }


def _write_json(path: Path, value: dict[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _publish(made: Path, directory: Path, old: Path) -> None:
    """Rename into place: readers see the old model, the new one, or for an instant none."""
    if directory.exists():
        directory.rename(old)
    made.rename(directory)
