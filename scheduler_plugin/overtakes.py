"""How often waiting requests were overtaken by younger ones."""

from bisect import bisect_right, insort


class Overtakes:
    """The places of the admitted requests that came after the oldest waiting one.

    Every admitted request with a higher place than a waiting one has overtaken it, so of all
    waiting requests the oldest was overtaken most often. Exact up to `limit`, however long the
    oldest is kept waiting; `limit` is at least 1.
    """

    def __init__(self, limit: int = 10_000) -> None:
        self.limit = limit
        self._ahead: list[int] = []

    def admitted(self, seq: int) -> None:
        """A request was admitted."""
        insort(self._ahead, seq)
        if len(self._ahead) > 2 * self.limit:
            del self._ahead[: -self.limit]  # the highest have overtaken all that the others have

    def forget_before(self, oldest_seq: int | None) -> None:
        """The oldest waiting request is now this one, None when nobody waits."""
        if oldest_seq is None:
            self._ahead.clear()
        elif self._ahead and self._ahead[0] < oldest_seq:
            del self._ahead[: bisect_right(self._ahead, oldest_seq)]

    def of(self, seq: int) -> int:
        """How often the waiting request at this place was overtaken."""
        ahead = self._ahead
        return len(ahead) - bisect_right(ahead, seq) if ahead else 0
