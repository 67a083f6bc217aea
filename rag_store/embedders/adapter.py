"""What an encoder learned about a corpus: changes of low rank to its layers, in a small file.

A layer's weights W become W + up · down (Hu et al., "LoRA: Low-Rank Adaptation of Large Language
Models", ICLR 2022), where a vector, such as its biases, counts as one column. The file has
safetensors' form: for each layer `<its weights' name>.up`, shape [outputs, rank], and `.down`,
shape [rank, inputs]; `head.weights`, `head.biases` and `head.owners`; and as metadata the documents
learned and whose weights are changed.
"""

import hashlib
import json
import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from rag_store.embedders.head import Head
from rag_store.errors import EmbedderError, RagUsageError

Half = npt.NDArray[np.float16]
Changes = Mapping[str, tuple[Half, Half]]
"""Up and down of each layer, by the name of its weights."""
_BASE, _DOCUMENTS = "base_weights", "documents"
_HINT = "name a file of kvswarm rag tune"
_HEAD = ("head.weights", "head.biases", "head.owners")


@dataclass(frozen=True, slots=True)
class Adapter:
    """`base` is the SHA-256 of the weights that it changes, `digest` that of its own file."""

    path: Path
    content: bytes
    base: str
    digest: str
    changes: Changes
    head: Head

    def weights(self) -> str:
        """SHA-256 that stands for the changed weights."""
        return hashlib.sha256(f"{self.base} {self.digest}".encode()).hexdigest()

    def check(self, weights: str) -> None:
        """Raises EmbedderError unless it was made for weights with this SHA-256."""
        if weights != self.base:
            raise EmbedderError(
                f"{self.path} was made for other weights ({self.base[:12]}…, not {weights[:12]}…):"
                " name the embedder it was made with, or make it anew with kvswarm rag tune"
            )

    def apply(self, model: Any, weights: str) -> None:
        """Change a model in place, whose `weights` have this SHA-256. Raises EmbedderError."""
        import torch

        self.check(weights)
        parameters = dict(model.named_parameters())
        with torch.no_grad():
            for name, (up, down) in self.changes.items():
                change = up.astype(np.float32) @ down.astype(np.float32)
                if name in parameters and parameters[name].dim() == 1 == change.shape[1]:
                    change = change[:, 0]
                if name not in parameters or parameters[name].shape != change.shape:
                    raise EmbedderError(f"{self.path} changes {name!r}, which the model has not")
                parameters[name] += torch.from_numpy(change)

    def keep(self, path: Path) -> None:
        """Copy its file to a path, unless that is it. Raises RagUsageError."""
        try:
            if path.is_file() and path.samefile(self.path):
                return
            path.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise RagUsageError(f"cannot write {path} ({error.strerror})") from error
        _write(path, self.content)


def read_adapter(path: Path) -> Adapter:
    """The adapter in a file. Raises RagUsageError."""
    from safetensors import SafetensorError
    from safetensors.numpy import load

    if path.exists() and not path.is_file():  # reading a pipe might never end
        raise RagUsageError(f"{path} is no regular file: {_HINT}")
    try:
        content = path.read_bytes()
        tensors = load(content)
        facts = _facts(content)
        _check(tensors)
        weights, biases, owners = (tensors.pop(name) for name in _HEAD)
        head = Head(weights, biases, owners, _doc_ids(facts))
        _check_head(head)
        digest = hashlib.sha256(content).hexdigest()
        return Adapter(path, content, facts[_BASE], digest, _paired(tensors), head)
    except OSError as error:
        raise RagUsageError(f"cannot read {path} ({error.strerror}): {_HINT}") from error
    except (SafetensorError, LookupError, ValueError, TypeError, AttributeError) as error:
        raise RagUsageError(f"{path} is no adapter ({error}): {_HINT}") from error


def write_adapter(path: Path, base: str, changes: Changes, head: Head) -> None:
    """Keep what was learned on weights with the SHA-256 `base`. Raises RagUsageError."""
    from safetensors.numpy import save

    tensors: dict[str, npt.NDArray[Any]] = {
        f"{name}.{part}": np.ascontiguousarray(values)
        for name, pair in changes.items()
        for part, values in zip(("up", "down"), pair, strict=True)
    }
    tensors |= zip(_HEAD, (head.weights, head.biases, head.owners), strict=True)
    facts = {_BASE: base, _DOCUMENTS: json.dumps(head.doc_ids)}
    _write(path, save(tensors, facts))


def _write(path: Path, content: bytes) -> None:
    partial = path.with_name(f"{path.name}.{os.getpid()}.partial")
    try:
        partial.write_bytes(content)
        partial.replace(path)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise RagUsageError(
            f"cannot write {path} ({error.strerror}): name a file that can be written"
        ) from error


def _facts(content: bytes) -> dict[str, str]:
    """The metadata in the header, which `load` has found sound: eight bytes say its length."""
    end = 8 + int.from_bytes(content[:8], "little")
    found: dict[str, str] = json.loads(content[8:end]).get("__metadata__", {})
    return found


def _doc_ids(facts: Mapping[str, str]) -> tuple[str, ...]:
    found = json.loads(facts[_DOCUMENTS])
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise ValueError("its documents are no list of ids")
    return tuple(found)


def _check(tensors: Mapping[str, Any]) -> None:
    for name, values in tensors.items():
        if not np.isfinite(values).all():
            raise ValueError(f"{name!r} holds numbers that are not finite")


def _check_head(head: Head) -> None:
    rows, owners = len(head.weights), head.owners
    fits = head.weights.ndim == 2 and head.biases.shape == owners.shape == (rows,)
    if not fits or not np.isin(owners, np.arange(len(head.doc_ids))).all() or not rows:
        raise ValueError("its head does not fit its documents")


def _paired(tensors: Mapping[str, Any]) -> Changes:
    names = sorted({name.rpartition(".")[0] for name in tensors})
    pairs = {name: (tensors[f"{name}.up"], tensors[f"{name}.down"]) for name in names}
    for name, (up, down) in pairs.items():
        if up.ndim != 2 or down.ndim != 2 or up.shape[1] != down.shape[0]:
            raise ValueError(f"{name!r} has shapes that do not fit")
    return pairs
