"""Wrong contexts on purpose: the same for a request and its repeats, in any worker."""

from loadgen.workload.dice import roll

_SIDES = 2**64


def is_mistaken(seed: int, share: float, root: int) -> bool:
    """Whether the request with this root is one of a share (0 to 1) of all."""
    return roll(seed, "mistake", root) < share * _SIDES


def other_context(seed: int, contexts: int, root: int, index: int) -> int:
    """Any of `contexts`, two at least, but the one with this index; all equally likely."""
    other = roll(seed, "other", root) % (contexts - 1)
    return other + (other >= index)
