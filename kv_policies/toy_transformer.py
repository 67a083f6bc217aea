"""A small transformer over bytes whose attention has as many KV heads as one likes.

Pre-norm blocks of causal attention with rotary positions (Su et al., 2021) and a GELU layer of four
times the width; grouped queries as in Ainslie et al., 2023. Some 5 million parameters.
"""

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy, gelu, rms_norm, scaled_dot_product_attention

from kv_policies.policy import PolicyError

VOCABULARY = 256
ROTARY_BASE = 10_000.0


@dataclass(frozen=True, slots=True)
class ToyShape:
    """Sizes of a model; `kv_heads` divide `heads`, and `width` is `heads` times an even size."""

    kv_heads: int = 8
    heads: int = 8
    layers: int = 6
    width: int = 256

    def check(self) -> None:
        """Raise PolicyError for sizes that no model has."""
        if min(self.kv_heads, self.heads, self.layers) < 1 or self.heads % self.kv_heads:
            raise PolicyError(
                f"{self.heads} heads cannot share {self.kv_heads} KV heads: give a divisor"
            )
        if self.width % (2 * self.heads):
            raise PolicyError(f"width {self.width} is not {self.heads} heads of an even size")

    @property
    def head_dim(self) -> int:
        return self.width // self.heads

    def kv_bytes_per_token(self, bytes_per_value: int = 2) -> int:
        """Keys and values of all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * bytes_per_value


class _Attention(nn.Module):
    def __init__(self, shape: ToyShape) -> None:
        super().__init__()
        self.shape = shape
        kv_width = shape.kv_heads * shape.head_dim
        self.query = nn.Linear(shape.width, shape.width, bias=False)
        self.key = nn.Linear(shape.width, kv_width, bias=False)
        self.value = nn.Linear(shape.width, kv_width, bias=False)
        self.out = nn.Linear(shape.width, shape.width, bias=False)

    def forward(self, hidden: Tensor, past: "ToyCache | None", layer: int) -> Tensor:
        batch, tokens, _ = hidden.shape
        start = 0 if past is None else past.tokens
        query, key, value = (
            projected(hidden).view(batch, tokens, -1, self.shape.head_dim).transpose(1, 2)
            for projected in (self.query, self.key, self.value)
        )
        query, key = rotated(query, start), rotated(key, start)
        if past is not None:
            key, value = past.grown(layer, key, value)
        found = scaled_dot_product_attention(
            query, key, value, is_causal=tokens > 1, enable_gqa=True
        )
        return self.out(found.transpose(1, 2).reshape(batch, tokens, -1))  # type: ignore[no-any-return]


class _Block(nn.Module):
    def __init__(self, shape: ToyShape) -> None:
        super().__init__()
        self.attention = _Attention(shape)
        self.up = nn.Linear(shape.width, 4 * shape.width, bias=False)
        self.down = nn.Linear(4 * shape.width, shape.width, bias=False)

    def forward(self, hidden: Tensor, past: "ToyCache | None", layer: int) -> Tensor:
        hidden = hidden + self.attention(_normed(hidden), past, layer)
        return hidden + self.down(gelu(self.up(_normed(hidden))))  # type: ignore[no-any-return]


class ToyTransformer(nn.Module):
    """Logits of the next byte. Raises PolicyError for impossible sizes."""

    def __init__(self, shape: ToyShape) -> None:
        shape.check()
        super().__init__()
        self.shape = shape
        self.embedding = nn.Embedding(VOCABULARY, shape.width)
        self.blocks = nn.ModuleList(_Block(shape) for _ in range(shape.layers))
        self.head = nn.Linear(shape.width, VOCABULARY, bias=False)
        for parameter in self.parameters():
            nn.init.normal_(parameter, std=0.02)
        for block in self.blocks:  # as many additions as layers keep the size of one
            for last in (block.attention.out, block.down):  # type: ignore[union-attr]
                nn.init.normal_(last.weight, std=0.02 / math.sqrt(2 * shape.layers))  # type: ignore[union-attr, arg-type]

    def forward(self, tokens: Tensor, past: "ToyCache | None" = None) -> Tensor:
        """[batch, tokens] of bytes to [batch, tokens, 256]; `past` grows by these tokens. With one
        that is not empty, one token at a time."""
        hidden = self.embedding(tokens)
        for layer, block in enumerate(self.blocks):
            hidden = block(hidden, past, layer)
        if past is not None:
            past.tokens += tokens.shape[1]
        return self.head(_normed(hidden))  # type: ignore[no-any-return]

    def loss(self, tokens: Tensor) -> Tensor:
        """Mean nats a byte of [batch, tokens + 1], each after those before it."""
        logits = self(tokens[:, :-1])
        return cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


class ToyCache:
    """Keys and values so far, by layer."""

    def __init__(self) -> None:
        self.tokens = 0
        self._held: dict[int, tuple[Tensor, Tensor]] = {}

    def grown(self, layer: int, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        """All keys and values with the new ones last."""
        if layer in self._held:
            before = self._held[layer]
            key, value = torch.cat((before[0], key), -2), torch.cat((before[1], value), -2)
        self._held[layer] = key, value
        return key, value

    @property
    def held_bytes(self) -> int:
        return sum(
            each.numel() * each.element_size() for pair in self._held.values() for each in pair
        )


def averaged_heads(model: ToyTransformer, kv_heads: int) -> ToyTransformer:
    """The same model with the key and value projections of each group of heads averaged (the
    conversion of Ainslie et al., 2023). Raises PolicyError where the groups are not whole."""
    if kv_heads < 1 or model.shape.kv_heads % kv_heads:
        raise PolicyError(
            f"{model.shape.kv_heads} KV heads make no {kv_heads} groups: give a divisor"
        )
    made = ToyTransformer(replace(model.shape, kv_heads=kv_heads))
    known = {name: tensor.detach().cpu() for name, tensor in model.state_dict().items()}
    for name, tensor in known.items():
        if ".key." in name or ".value." in name:
            grouped = tensor.view(kv_heads, -1, model.shape.head_dim, tensor.shape[1])
            known[name] = grouped.mean(dim=1).reshape(-1, tensor.shape[1])
    made.load_state_dict(known)
    return made.to(next(model.parameters()).device)


def rotated(heads: Tensor, start: int) -> Tensor:
    """Rotary positions from `start` on, of [batch, heads, tokens, head dim]."""
    tokens, size = heads.shape[-2:]
    rates = ROTARY_BASE ** (-torch.arange(0, size, 2, device=heads.device) / size)
    angles = torch.arange(start, start + tokens, device=heads.device)[:, None] * rates
    cos, sin = angles.cos().to(heads.dtype), angles.sin().to(heads.dtype)
    even, odd = heads[..., ::2], heads[..., 1::2]
    turned = torch.stack((even * cos - odd * sin, even * sin + odd * cos), dim=-1)
    return turned.flatten(-2)


def _normed(hidden: Tensor) -> Tensor:
    return rms_norm(hidden, (hidden.shape[-1],))
