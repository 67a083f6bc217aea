"""What a policy is, and the cache that transformers' models read and write through it."""

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor
from transformers import Cache, PretrainedConfig, PreTrainedModel
from transformers.cache_utils import CacheLayerMixin


class PolicyError(ValueError):
    """A policy, or what it is asked to do, is not as it must be; `str(error)` is one line."""


MOST = 1_000_000
"""Nothing that is measured takes more tokens, texts, steps or repeats."""


def require_size(name: str, value: int, least: int = 1) -> None:
    """Raise PolicyError for a number of something of which nothing can be measured."""
    if not least <= value <= MOST:
        wanted = f"{least} or more" if value < least else f"{MOST:,} or less"
        raise PolicyError(f"{name} {value}: give {wanted}")


class KeysValues(NamedTuple):
    """Keys and values, each of shape [batch, KV heads, tokens, head dim]."""

    keys: Tensor
    values: Tensor

    @property
    def tokens(self) -> int:
        return int(self.keys.shape[-2])

    def part(self, start: int, stop: int | None = None) -> "KeysValues":
        """Some of the tokens, in storage of their own: a view would hold on to the rest."""
        return KeysValues(*(each[..., start:stop, :].clone() for each in self))

    def then(self, *others: "KeysValues") -> "KeysValues":
        """These tokens and, after them, those of the others."""
        parts = [each for each in (self, *others) if each.tokens]
        if len(parts) < 2:
            return parts[0] if parts else self
        return KeysValues(
            torch.cat([each.keys for each in parts], dim=-2),
            torch.cat([each.values for each in parts], dim=-2),
        )


@dataclass(frozen=True, slots=True)
class ModelShape:
    """What a policy may have to know of the model before it sees a token."""

    layers: int
    kv_heads: int
    head_dim: int

    @classmethod
    def of(cls, config: PretrainedConfig) -> "ModelShape":
        """Of the text part of a model. Raises PolicyError where layers do not all attend to all."""
        text = config.get_text_config(decoder=True)
        kinds = set(getattr(text, "layer_types", None) or ())
        if kinds - {"full_attention"}:
            named = ", ".join(sorted(kinds))
            raise PolicyError(f"the model's layers are {named}: give one of full attention only")
        if not kinds and getattr(text, "sliding_window", None):
            raise PolicyError(
                f"the model's layers see a window of {text.sliding_window:,} tokens: give one of"
                " full attention only"
            )
        heads = text.num_attention_heads
        return cls(
            layers=text.num_hidden_layers,
            kv_heads=getattr(text, "num_key_value_heads", None) or heads,
            head_dim=getattr(text, "head_dim", None) or text.hidden_size // heads,
        )


@dataclass(frozen=True, slots=True)
class Traffic:
    """What was fetched from a slower tier so far: blocks of one KV head of one text, their bytes,
    and the seconds that it took."""

    blocks: int = 0
    moved_bytes: int = 0
    seconds: float = 0.0

    def __add__(self, other: "Traffic") -> "Traffic":
        return Traffic(
            self.blocks + other.blocks,
            self.moved_bytes + other.moved_bytes,
            self.seconds + other.seconds,
        )

    @property
    def block_ms(self) -> float | None:
        """Of one block, None where none was fetched."""
        return 1000 * self.seconds / self.blocks if self.blocks else None

    def since(self, earlier: "Traffic") -> "Traffic":
        """What came after an earlier count."""
        return self + Traffic(-earlier.blocks, -earlier.moved_bytes, -earlier.seconds)


class KvLayer(CacheLayerMixin):
    """The KV of one layer under a policy; a subclass has `append`, `held_tokens` and `held`.

    Batches are of texts of one length: there is no padding.
    """

    is_sliding = False

    def __init__(self) -> None:
        super().__init__()
        self.seen_tokens = 0

    @abstractmethod
    def append(self, new: KeysValues) -> KeysValues:
        """Take the KV of new tokens; returns what these tokens attend to, themselves last."""

    @abstractmethod
    def held(self) -> Iterable[Tensor]:
        """All tensors that are kept for later passes."""

    @property
    @abstractmethod
    def held_tokens(self) -> int:
        """How many tokens before the new ones the next query will read."""

    def fetched(self, query: Tensor) -> KeysValues | None:
        """What a query of [batch, heads, 1, head dim] reads beside what `append`
        returned, from a slower tier; asked of policies that say `fetches`."""
        return None

    def held_slowly(self) -> Iterable[Tensor]:
        """All tensors of a slower tier, of which `held` has none."""
        return ()

    @property
    def traffic(self) -> Traffic:
        return Traffic()

    @property
    def disk_bytes(self) -> int:
        """What is in a file, in neither tier."""
        return 0

    @property
    def disk_traffic(self) -> Traffic:
        """As `traffic`, from the file."""
        return Traffic()

    def attended(self, sums: Tensor) -> None:
        """What attention gave the tokens that `append` returned: [batch, KV heads, tokens], summed
        over the queries of the pass and over the query heads that share the KV head."""

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """As transformers calls it, once in each pass."""
        self.lazy_initialization(key_states, value_states)
        new = KeysValues(key_states, value_states)
        read = self.append(new)
        self._check(new, read)
        self.seen_tokens += new.tokens
        return read.keys, read.values

    def _check(self, new: KeysValues, read: KeysValues) -> None:
        """Raise PolicyError for what attention cannot read."""
        tokens = read.keys.shape[-2]
        for name, given, found in zip(KeysValues._fields, new, read, strict=True):
            wanted = (*given.shape[:2], tokens, given.shape[-1])
            if found.shape != wanted or tokens < new.tokens or found.dtype != given.dtype:
                raise PolicyError(
                    f"{type(self).__name__}.append gives {name} of shape {tuple(found.shape)} in"
                    f" {found.dtype}: give {wanted} in {given.dtype}, the new tokens last"
                )

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        self.is_initialized = True

    def get_seq_length(self) -> int:
        """Tokens seen, held or not: the position of the next one."""
        return self.seen_tokens

    def get_mask_sizes(self, query_length: int) -> tuple[int, int]:
        """Tokens that the next pass reads, and the place of the first as masks count."""
        return self.held_tokens + query_length, self.seen_tokens - self.held_tokens

    def get_max_length(self) -> int:
        return -1

    def reset(self) -> None:
        raise NotImplementedError("a cache under a policy is made anew for each text")

    def reorder_cache(self, beam_idx: Tensor) -> None:
        raise NotImplementedError("beam search has no policies here")


class PolicyCache(Cache):
    """A cache of transformers whose layers are a policy's: `model(…, past_key_values=cache)`."""

    layers: list[KvLayer]

    def __init__(self, layers: list[KvLayer]) -> None:
        super().__init__(layers=layers)

    @property
    def held_bytes(self) -> int:
        """Bytes of the storage behind all tensors held; what layers share counts once."""
        return storage_bytes(tensor for layer in self.layers for tensor in layer.held())

    @property
    def slow_bytes(self) -> int:
        """The same of a slower tier, 0 where there is none."""
        return storage_bytes(tensor for layer in self.layers for tensor in layer.held_slowly())

    @property
    def traffic(self) -> Traffic:
        """Of all layers."""
        return sum((layer.traffic for layer in self.layers), start=Traffic())

    @property
    def disk_bytes(self) -> int:
        """Of all layers."""
        return sum(layer.disk_bytes for layer in self.layers)

    @property
    def disk_traffic(self) -> Traffic:
        """Of all layers."""
        return sum((layer.disk_traffic for layer in self.layers), start=Traffic())

    def fetched(self, layer: int, query: Tensor) -> KeysValues | None:
        """See `KvLayer.fetched`."""
        return self.layers[layer].fetched(query)

    def attended(self, layer: int, sums: Tensor) -> None:
        """What attention gave each token that this layer read; see `KvLayer.attended`."""
        self.layers[layer].attended(sums)


class KvPolicy(ABC):
    """What is held of KV. A subclass that is a dataclass takes its fields from the policy's name:
    `sink-window:4+128` is the policy named `sink-window` with these two fields."""

    name: ClassVar[str] = ""
    summary: ClassVar[str] = ""
    sees_attention: ClassVar[bool] = False
    """Whether `attended` is to be told. Fused kernels do not have these weights: attention is then
    computed by hand, block by block, which takes longer."""
    fetches: ClassVar[bool] = False
    """Whether `fetched` is to be asked, with the query of each token after the first pass."""
    needs: ClassVar[str] = ""
    """A package that is not of kvswarm, without which the policy is not in the catalogue."""
    needs_whole_prompt: ClassVar[bool] = False
    """Whether it acts once, on a first pass that has the whole prompt."""
    is_exact_in_pass: ClassVar[bool] = False
    """Whether a pass reads its own tokens as the full cache would, so that what a prompt computed
    in one pass leaves is what the full cache has, and can be taken from there."""

    @abstractmethod
    def layer(self, index: int, shape: ModelShape, earlier: list[KvLayer]) -> KvLayer:
        """The empty KV of layer `index`; `earlier` are those below it."""

    def check(self, shape: ModelShape) -> None:  # noqa: B027 - most policies are for all models
        """Raise PolicyError where a model of this shape cannot have the policy."""

    def cache(self, config: PretrainedConfig) -> PolicyCache:
        """An empty cache for one batch of texts. Raises PolicyError for models it is not for.

        Read through `kv_policies.attention`; where a policy neither sees attention nor fetches, and
        holds as many tokens in each layer, transformers' own attention and generation do as well.
        """
        shape = ModelShape.of(config)
        self.check(shape)
        layers: list[KvLayer] = []
        for index in range(shape.layers):
            layers.append(self.layer(index, shape, layers))
        return PolicyCache(layers)

    def first_pass(
        self, model: PreTrainedModel, tokens: int
    ) -> AbstractContextManager[Mapping[str, Any]]:
        """Entered around the first pass of so many tokens; gives arguments for the model."""
        return nullcontext({})

    @classmethod
    def variants(cls) -> Mapping[str, Mapping[str, Any]]:
        """Names of this class in the catalogue, each with the fields that no `+` tells."""
        return {cls.name or cls.__name__: {}}

    @property
    def label(self) -> str:
        """The name with which `policy_named` makes this policy again."""
        numbers = "+".join(str(getattr(self, each)) for each in parameters_of(type(self)))
        return f"{self.family}:{numbers}" if numbers else self.family

    @property
    def family(self) -> str:
        """The part of the name before the parameters."""
        return self.name or type(self).__name__


def parameters_of(policy: type[KvPolicy]) -> tuple[str, ...]:
    """The fields that a name's numbers are for, in this order."""
    if not is_dataclass(policy):
        return ()
    return tuple(each.name for each in fields(policy) if not each.kw_only)


def at_least(least: int, policy: KvPolicy, *names: str) -> None:
    """Raise PolicyError unless each of these fields is a whole number from `least` on."""
    for name in names:
        value = getattr(policy, name)
        if not isinstance(value, int) or value < least:
            said = name.replace("_", " ")
            raise PolicyError(f"{policy.family}: {value} {said}: give {least} or more")


def tensors(*parts: KeysValues | None) -> Iterator[Tensor]:
    """Of those that are there."""
    for part in parts:
        if part is not None:
            yield from part


def storage_bytes(held: Iterable[Tensor]) -> int:
    """Of what these tensors keep alive, each storage once."""
    sizes: dict[int, int] = {}
    for tensor in held:
        storage = tensor.untyped_storage()
        sizes[storage.data_ptr()] = storage.nbytes()
    return sum(sizes.values())
