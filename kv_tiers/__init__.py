"""vLLM's own offload of KV to host memory and disk, on engines that compute on the CPU.

vLLM's managers, policies, tiers, events and metrics stay as they are; only the worker that copies
blocks is ours. It is loaded by vLLM and imports nothing else of the product.
"""
