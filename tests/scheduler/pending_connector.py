"""A KV connector without a store: it only behaves as slow ones do towards the scheduler."""

from collections import Counter
from typing import Any

from vllm.distributed.kv_transfer.kv_connector.v1.base import (
    KVConnectorBase_V1,
    KVConnectorMetadata,
    KVConnectorRole,
)
from vllm.v1.request import Request


class NoMetadata(KVConnectorMetadata):
    """Nothing to tell a worker."""


class PendingConnector(KVConnectorBase_V1):  # type: ignore[misc]
    """Leaves each lookup pending for a number of scans, then offers `external_tokens`.

    With `load_in_background` an offer is loaded while the request waits; `take_loads` gives the
    names of the requests whose load has begun since the last call. With `loads_fail` nothing of it
    arrives, and nothing more is offered; the next lookup is pending again.
    """

    def __init__(self, config: Any, role: KVConnectorRole, kv_cache_config: Any) -> None:
        super().__init__(config, role, kv_cache_config)
        extra = config.kv_transfer_config.kv_connector_extra_config
        self._pending_lookups: int = extra["pending_lookups"]
        self._external_tokens: int = extra["external_tokens"]
        self._in_background: bool = extra["load_in_background"]
        self.loads_fail: bool = extra["loads_fail"]
        self._failed: set[str] = set()
        self._block_size: int = config.cache_config.block_size
        self._loads: list[str] = []
        self.lookups: Counter[str] = Counter()

    def take_loads(self) -> list[str]:
        loads, self._loads = self._loads, []
        return loads

    def get_num_new_matched_tokens(
        self, request: Request, num_computed_tokens: int
    ) -> tuple[int | None, bool]:
        self.lookups[request.request_id] += 1
        if self.lookups[request.request_id] <= self._pending_lookups:
            return None, False
        if request.request_id in self._failed:
            return 0, False
        blocks = (request.num_tokens - 1 - num_computed_tokens) // self._block_size
        offer = min(self._external_tokens, max(blocks, 0) * self._block_size)
        return offer, self._in_background and offer > 0

    def update_state_after_alloc(
        self, request: Request, blocks: Any, num_external_tokens: int
    ) -> None:
        if self._in_background and num_external_tokens:
            self._loads.append(request.request_id)
            if self.loads_fail:
                self._failed.add(request.request_id)
                self.lookups[request.request_id] = 0

    def build_connector_meta(self, scheduler_output: Any) -> KVConnectorMetadata:
        return NoMetadata()

    def start_load_kv(self, forward_context: Any, **kwargs: Any) -> None:
        """Nothing: there is no worker."""

    def wait_for_layer_load(self, layer_name: str) -> None:
        """Nothing: there is no worker."""

    def save_kv_layer(
        self, layer_name: str, kv_layer: Any, attn_metadata: Any, **kwargs: Any
    ) -> None:
        """Nothing: there is no worker."""

    def wait_for_save(self) -> None:
        """Nothing: there is no worker."""
