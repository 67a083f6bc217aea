"""The demo model's tokenizer: byte-level BPE trained on the texts it is to serve."""

import json
from pathlib import Path
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from loadgen.errors import UsageError

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


def write_tokenizer(directory: Path, texts: list[str], window_tokens: int) -> Tokenizer:
    """Train on `texts`, write tokenizer.json and tokenizer_config.json; deterministic.

    Raises UsageError when the texts are empty.
    """
    if not any(text.strip() for text in texts):
        raise UsageError("the demo model's tokenizer needs texts to learn from: none were given")
    tokenizer = _train(texts)
    tokenizer.save(str(directory / "tokenizer.json"))
    config = json.dumps(_config(window_tokens), indent=2)
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


def _config(window_tokens: int) -> dict[str, Any]:
    return {
        "tokenizer_class": "Qwen2Tokenizer",
        "model_max_length": window_tokens,
        "eos_token": TURN_END,
        "pad_token": END_OF_TEXT,
        "additional_special_tokens": [TURN_START, TURN_END],
        "clean_up_tokenization_spaces": False,
        "chat_template": CHAT_TEMPLATE,
    }
