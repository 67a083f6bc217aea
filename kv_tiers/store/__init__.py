"""Frames of KV on several nodes that speak redis' protocol, with copies and no trust in any node.

async with valkey_servers([None, None, None]) as servers:
    store = ShardedStore([address for address, _ in servers], copies=2)
    names = in_runs([b"first", b"second"])
    await store.put(names[0], pack(CODECS["int8"](), bits, names[0].key))
    frame = await store.get(names[0])
"""

from kv_tiers.store.central import CentralSync
from kv_tiers.store.nodes import CircuitBreaker, NodeFailure, StoreNode
from kv_tiers.store.placement import Placement, StoreKey, in_runs
from kv_tiers.store.placements import PLACEMENTS
from kv_tiers.store.placements.modulo import Modulo
from kv_tiers.store.placements.rendezvous import Rendezvous
from kv_tiers.store.regional import RegionalStore
from kv_tiers.store.server import ServerError, valkey_server, valkey_servers
from kv_tiers.store.sharded import ShardedStore, StoreTally

__all__ = [
    "PLACEMENTS",
    "CentralSync",
    "CircuitBreaker",
    "Modulo",
    "NodeFailure",
    "Placement",
    "RegionalStore",
    "Rendezvous",
    "ServerError",
    "ShardedStore",
    "StoreKey",
    "StoreNode",
    "StoreTally",
    "in_runs",
    "valkey_server",
    "valkey_servers",
]
