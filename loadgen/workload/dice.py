"""Chance that every worker throws alike."""

from hashlib import blake2b


def roll(seed: int, purpose: str, index: int) -> int:
    """64 random bits that depend on the arguments alone, not on what was rolled before."""
    key = f"{seed}/{purpose}/{index}".encode()
    return int.from_bytes(blake2b(key, digest_size=8).digest(), "big")
