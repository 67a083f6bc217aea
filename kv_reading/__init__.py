"""What KV caches know: LMCache's stored chunks read, decoded, reduced and clustered."""


class KvError(Exception):
    """`str(error)` is one line for the user: the thing, the value and the next step."""
