"""What KV caches know: LMCache's stored chunks read, decoded, reduced and clustered."""
