"""Names of targets as the catalog has them."""

PLAIN, NO_REUSE = "vllm", "vllm-no-prefix-cache"
ORDERED = "vllm-context"
OFFLOAD = "vllm-lmcache"
