"""The model that policies are measured on: a pass at a time, timed, with its memory."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, redirect_stderr
from dataclasses import dataclass
from hashlib import file_digest, sha256
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PretrainedConfig,
    PreTrainedModel,
)

from kv_policies.attention import policies_attend, read
from kv_policies.device import device_named
from kv_policies.policy import KvPolicy, PolicyCache, PolicyError


@dataclass(frozen=True, slots=True)
class Subject:
    """A model in evaluation with its tokenizer; its attention is that of policies."""

    model: PreTrainedModel
    tokenizer: Any
    device: torch.device

    def tokens(self, text: str) -> list[int]:
        """Of a text, without marks at its ends."""
        return list(self.tokenizer(text, add_special_tokens=False)["input_ids"])

    def require_positions(self, prompt_tokens: int, after: int, what: str) -> None:
        """Raises PolicyError for more tokens than the model has positions."""
        most = getattr(self.model.config, "max_position_embeddings", None)
        if most and prompt_tokens + after > most:
            raise PolicyError(
                f"{prompt_tokens} prompt tokens and {after} after them ({what}): the model has"
                f" {most} positions: give fewer"
            )

    def cache(self, policy: KvPolicy) -> PolicyCache:
        """An empty one. Raises PolicyError where the policy is not for this model."""
        return policy.cache(self.model.config)

    def read(self, tokens: Tensor, cache: PolicyCache, policy: KvPolicy, last: int = 0) -> Tensor:
        """As `kv_policies.attention.read`."""
        return read(self.model, policy, cache, tokens.to(self.device), last)


def config_of(model: Path) -> PretrainedConfig:
    """Of a model's folder. Raises PolicyError."""
    if not (model / "config.json").is_file():
        raise PolicyError(f"{model} holds no model: give a folder with a config.json")
    try:
        return AutoConfig.from_pretrained(model)
    except (OSError, ValueError) as error:
        raise PolicyError(f"{model} has no config of a model: {_first_line(error)}") from error


@contextmanager
def subject_of(model: Path, device: str | None = None) -> Iterator[Subject]:
    """Load a model's folder. Raises PolicyError for one that holds no causal language model."""
    chosen = device_named(device)
    loaded = loaded_model(model, chosen)
    tokenizer = tokenizer_of(model)
    with ExitStack() as stack:
        stack.enter_context(policies_attend(loaded))
        stack.enter_context(torch.inference_mode())
        yield Subject(loaded, tokenizer, chosen)


def weights_sha256(model: Path) -> str:
    """Of a folder's config and weights, with their names."""
    digest = sha256()
    for pattern in ("config.json", "*.safetensors", "*.bin"):
        for file in sorted(model.glob(pattern)):
            digest.update(file.name.encode())
            with file.open("rb") as stream:
                digest.update(file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def tokenizer_of(model: Path) -> Any:
    """That of a model's folder. Raises PolicyError."""
    with _refused(model):
        return AutoTokenizer.from_pretrained(model)


def loaded_model(
    model: Path, device: torch.device, dtype: torch.dtype | None = None
) -> PreTrainedModel:
    """The model of a folder, in evaluation, in a type of its own choice. Raises PolicyError."""
    config_of(model)
    with _refused(model), redirect_stderr(StringIO()):  # bars of progress: no switch ends them
        loaded = AutoModelForCausalLM.from_pretrained(model, dtype=dtype or "auto")
        found: PreTrainedModel = loaded.to(device).eval()
    return found


@contextmanager
def _refused(model: Path) -> Iterator[None]:
    try:
        yield
    except (OSError, ValueError, RuntimeError) as error:
        raise PolicyError(f"{model} is no causal language model: {_first_line(error)}") from error


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
