"""What can go wrong with stored KV."""


class KvError(Exception):
    """`str(error)` is one line for the user: the thing, the value and the next step."""
