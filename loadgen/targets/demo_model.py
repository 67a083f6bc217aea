"""A Qwen2-architecture model with random weights, made in seconds and served like any other.

Its words mean nothing; what it costs to prefill, decode and cache is that of its size.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from loadgen.errors import UsageError
from loadgen.targets.hardware import home
from loadgen.targets.made_model import made_once
from rag_store.extras import install_command

VOCABULARY = 8192
END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
SPECIAL_IDS = {END_OF_TEXT: 0, TURN_START: 1, TURN_END: 2}
CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

# Transformers ignores tokenizer.json's splitting for a qwen2 model and puts this one in its
# place. Any other here, and the engine would count other tokens than the `tokenizers` library.
QWEN2_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
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


def write_tokenizer(directory: Path, texts: list[str], window_tokens: int) -> Tokenizer:
    """Train on `texts`, write tokenizer.json and tokenizer_config.json; deterministic.

    Raises UsageError when the texts are empty.
    """
    if not any(text.strip() for text in texts):
        raise UsageError("the demo model's tokenizer needs texts to learn from: none were given")
    tokenizer = _train(texts)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = json.dumps(_tokenizer_config(window_tokens), indent=2)
    (directory / "tokenizer_config.json").write_text(config + "\n")
    return tokenizer


def silent_ids(tokenizer: Tokenizer) -> list[int]:
    """Ids that carry no text of their own: special tokens and parts of a character."""
    decoded = (tokenizer.decode([token]) for token in range(tokenizer.get_vocab_size()))
    return [token for token, text in enumerate(decoded) if not text or "\ufffd" in text]


def _train(texts: list[str]) -> Tokenizer:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2_SPLIT), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL_IDS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _tokenizer_config(window_tokens: int) -> dict[str, Any]:
    return {
        "tokenizer_class": "Qwen2Tokenizer",
        "model_max_length": window_tokens,
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "additional_special_tokens": [TURN_START, TURN_END],
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }


def write_weights(path: Path, config: dict[str, Any], silent: list[int], seed: int) -> None:
    """Write `model.safetensors` in bfloat16 for a Qwen2 `config`.

    The output rows of `silent` token ids (special tokens, broken bytes) are zero, so that greedy
    decoding never picks them and each generated token carries text. Raises UsageError when torch
    or safetensors is missing.
    """
    try:
        import torch
        from safetensors.torch import save_file
    except ImportError as error:
        raise UsageError(
            f"the demo model needs {error.name}: {install_command('engine-cpu')}"
        ) from error
    generator = torch.Generator().manual_seed(seed)
    tensors = {}
    for name, shape, std in _tensors(config):
        values = torch.randn(shape, generator=generator) * std if std else torch.zeros(shape)
        tensors[name] = (values + 1 if name.endswith("norm.weight") else values).bfloat16()
    tensors["lm_head.weight"][silent] = 0
    save_file(tensors, str(path), metadata={"format": "pt"})
    path.chmod(0o644)


def _tensors(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...], float]]:
    """Name, shape and standard deviation of each tensor, in the order they are drawn."""
    hidden, vocabulary = config["hidden_size"], config["vocab_size"]
    yield "model.embed_tokens.weight", (vocabulary, hidden), 1.0
    for layer in range(config["num_hidden_layers"]):
        for name, shape, std in _layer(config):
            yield f"model.layers.{layer}.{name}", shape, std
    yield "model.norm.weight", (hidden,), 0.0
    yield "lm_head.weight", (vocabulary, hidden), hidden**-0.5


def _layer(config: dict[str, Any]) -> Iterator[tuple[str, tuple[int, ...], float]]:
    """Projections keep their input's scale; queries and keys are larger, so that attention picks
    single tokens and the reply depends on the context instead of on its average."""
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    kv = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    scale = hidden**-0.5
    yield "input_layernorm.weight", (hidden,), 0.0
    yield "post_attention_layernorm.weight", (hidden,), 0.0
    for name, rows, std in (("q", hidden, 2 * scale), ("k", kv, 2 * scale), ("v", kv, scale)):
        yield f"self_attn.{name}_proj.weight", (rows, hidden), std
        yield f"self_attn.{name}_proj.bias", (rows,), 0.0
    yield "self_attn.o_proj.weight", (hidden, hidden), scale
    yield "mlp.gate_proj.weight", (inner, hidden), scale
    yield "mlp.up_proj.weight", (inner, hidden), scale
    yield "mlp.down_proj.weight", (hidden, inner), inner**-0.5


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
    """Whether a demo model is there, whatever its size, seed and texts."""
    return all((directory / name).is_file() for name in FILES)


def build_model(directory: Path, size: Size, texts: Iterable[str], seed: int = 0) -> Path:
    """Make the model in `directory`, or keep it where the same one is already there.

    The same size, texts and seed give the same files. Raises UsageError for an unknown size,
    empty texts, a directory that holds something else, or missing packages.
    """
    if size not in SHAPES:
        raise UsageError(f"unknown model size {size!r}: choose one of {', '.join(SIZES)}")
    texts = list(texts)
    identity = {"recipe": RECIPE, "size": size, "seed": seed, "texts_sha256": _digest(texts)}
    return made_once(
        directory, MARK, identity, lambda made: _write(made, SHAPES[size], texts, seed)
    )


def _digest(texts: list[str]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        digest.update(hashlib.sha256(text.encode()).digest())
    return digest.hexdigest()


def _write(directory: Path, shape: Shape, texts: list[str], seed: int) -> None:
    tokenizer = write_tokenizer(directory, texts, WINDOW_TOKENS)
    config = _model_config(shape, tokenizer.get_vocab_size())
    _write_json(directory / "config.json", config)
    _write_json(directory / "generation_config.json", SPECIAL)
    write_weights(directory / "model.safetensors", config, silent_ids(tokenizer), seed)


def _model_config(shape: Shape, vocabulary: int) -> dict[str, Any]:
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
