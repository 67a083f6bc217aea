"""The hub's work on results, in slices between which the loop's thread has the interpreter."""

from collections.abc import Iterator
from typing import TypeVar

from gevent.monkey import get_original

SLICE = 16
MOST_PAUSES = 40
PAUSE_S = 0.0005
"""Long enough for what has arrived during a slice to be read."""

T = TypeVar("T")

_sleep = get_original("time", "sleep")


def in_slices(items: list[T]) -> Iterator[list[T]]:
    """The items in lists of `SLICE`, with a pause of this native thread between two of them.

    uvloop takes the interpreter's lock anew for each connection that has something to read, and may
    wait `engine.SWITCH_S` for it each time while the hub is at work. Without pauses it would read
    next to nothing during a slice of hundreds, and all times taken then would be late. Of very many
    items the slices are longer, so that the hub gets on.
    """
    size = max(SLICE, len(items) // MOST_PAUSES)
    for start in range(0, len(items), size):
        if start:
            _sleep(PAUSE_S)
        yield items[start : start + size]
