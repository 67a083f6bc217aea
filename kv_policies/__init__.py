"""KV cache policies on a causal language model of transformers, and their measurement.

A policy decides what is held of the keys and values that attention may read later. Positions: a
key is held with the rotary position at which it was computed, and the next query has the position
of its token in the text, however many tokens were evicted between them.

    from kv_policies import policy_named, run_policies
    cache = policy_named("sink-window:4+128").cache(model.config)
    rows = run_policies("path/of/a/model", texts, ["full", "sink-window:4+128"], "runs/policies")
"""

from kv_policies.catalog import known_policies, policy_named
from kv_policies.coding import Coded, CodedPolicy
from kv_policies.eviction import EvictionPolicy, HeldTokens
from kv_policies.measuring import PolicyPlan
from kv_policies.policy import KvPolicy, PolicyCache, PolicyError
from kv_policies.rows import PolicyRow, write_csv
from kv_policies.runner import ROWS_CSV, device_of, note_of, run_policies, usual_policies

__all__ = [
    "ROWS_CSV",
    "Coded",
    "CodedPolicy",
    "EvictionPolicy",
    "HeldTokens",
    "KvPolicy",
    "PolicyCache",
    "PolicyError",
    "PolicyPlan",
    "PolicyRow",
    "device_of",
    "known_policies",
    "note_of",
    "policy_named",
    "run_policies",
    "usual_policies",
    "write_csv",
]
