"""Nodes of a store that come and go, without any server."""

import asyncio
from collections.abc import AsyncIterator

from kv_tiers.store.nodes import StoreNode
from kv_tiers.store.sharded import ShardedStore


class SlowToClose(StoreNode):
    """Holds nothing, and takes a while to close."""

    async def names(self) -> AsyncIterator[list[bytes]]:
        yield []

    async def aclose(self) -> None:
        await asyncio.sleep(0.01)


async def test_a_node_that_is_taken_back_while_others_close_is_one_of_ours() -> None:
    kept, gone, back = (f"127.0.0.1:{port}" for port in (1, 2, 3))
    store = ShardedStore([kept, gone, back], connect=SlowToClose)
    store.set_nodes([kept])
    moving = asyncio.create_task(store.move())
    while gone in store._nodes:  # noqa: ASYNC110
        await asyncio.sleep(0)
    store.set_nodes([kept, back])
    await moving
    assert store.nodes == (kept, back)
    assert store._node(back).address == back
    await store.move()
    assert set(store._nodes) == {kept, back}
