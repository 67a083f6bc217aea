"""A server without its model: vLLM's own scheduler and KV manager on a counted clock."""
