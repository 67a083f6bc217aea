"""Which prompts can have a cached prefix at all."""

from collections import OrderedDict


class Roots(OrderedDict[object, None]):
    """The first blocks of the latest `most` admitted requests.

    A prefix is cached only after a request that begins with it was admitted, so most waiting
    requests need no look into the cache.
    """

    most = 4096

    def note(self, root: object) -> None:
        """A request was admitted; None has no full block and is passed over."""
        if root is None:
            return
        self[root] = None
        self.move_to_end(root)
        if len(self) > self.most:
            self.popitem(last=False)
