"""A set of small whole numbers at a bit each: a soak sends millions of prompts."""


class IndexSet:
    """Holds numbers from 0 on; its size grows with the largest of them."""

    def __init__(self) -> None:
        self._bits = bytearray()

    def __contains__(self, index: int) -> bool:
        byte = index >> 3
        return byte < len(self._bits) and bool(self._bits[byte] >> (index & 7) & 1)

    def add(self, index: int) -> None:
        """Put a number in."""
        missing = (index >> 3) + 1 - len(self._bits)
        if missing > 0:
            self._bits.extend(bytes(missing))
        self._bits[index >> 3] |= 1 << (index & 7)

    def discard(self, index: int) -> None:
        """Take a number out if it is in."""
        if index in self:
            self._bits[index >> 3] &= ~(1 << (index & 7))
