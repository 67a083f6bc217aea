"""Everything as it is: the reference."""

from collections.abc import Iterable

from torch import Tensor

from kv_policies.policy import KeysValues, KvLayer, KvPolicy, ModelShape, tensors


class FullLayer(KvLayer):
    """All tokens, exactly."""

    def __init__(self) -> None:
        super().__init__()
        self.kv: KeysValues | None = None

    def append(self, new: KeysValues) -> KeysValues:
        self.kv = new if self.kv is None else self.kv.then(new)
        return self.kv

    def held(self) -> Iterable[Tensor]:
        return tensors(self.kv)

    @property
    def held_tokens(self) -> int:
        return 0 if self.kv is None else self.kv.tokens


class Full(KvPolicy):
    name = "full"
    summary = "all keys and values as they are"
    is_exact_in_pass = True

    def layer(self, index: int, shape: ModelShape, earlier: list[KvLayer]) -> KvLayer:
        return FullLayer()
