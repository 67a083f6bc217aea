"""The blocks of one cache size and the order in which they are reused, as vLLM 0.32 keeps them."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence

UNNAMED = 0


class BlockPool:
    """Blocks are numbers; a full one has the name of its tokens and is found by it.

    Free blocks wait in a queue and keep their names until they are taken from its front. What a
    request gives back goes to the end, its last block first, but blocks without a name go to the
    front. Several blocks may have one name; the oldest is found (vllm/v1/core/block_pool.py).
    """

    def __init__(self, blocks: int) -> None:
        self._free = OrderedDict.fromkeys(range(blocks))
        self._name = [UNNAMED] * blocks
        self._holders = [0] * blocks
        self._known: dict[int, dict[int, None]] = {}

    @property
    def free(self) -> int:
        """Blocks that no request holds."""
        return len(self._free)

    def find(self, names: Iterable[int]) -> list[int]:
        """The blocks of the longest run of names, from the first on, that is known."""
        found = []
        for name in names:
            blocks = self._known.get(name)
            if not blocks:
                break
            found.append(next(iter(blocks)))
        return found

    def idle(self, blocks: Iterable[int]) -> int:
        """How many of these blocks no request holds."""
        return sum(not self._holders[block] for block in blocks)

    def hold(self, blocks: Iterable[int]) -> None:
        """Keep known blocks for one more request."""
        for block in blocks:
            if not self._holders[block]:
                del self._free[block]
            self._holders[block] += 1

    def take(self, count: int) -> list[int]:
        """The next blocks to be reused; what they held is forgotten. `count` of them are free."""
        taken = [self._free.popitem(last=False)[0] for _ in range(count)]
        for block in taken:
            self._forget(block)
            self._holders[block] = 1
        return taken

    def name(self, block: int, name: int) -> None:
        """From now on the block is found by this name."""
        self._name[block] = name
        self._known.setdefault(name, {})[block] = None

    def give_back(self, blocks: Sequence[int]) -> None:
        """A request ends, with these blocks from its first token to its last."""
        for block in blocks:
            self._holders[block] -= 1
        released = [block for block in reversed(blocks) if not self._holders[block]]
        self._free.update(dict.fromkeys(block for block in released if self._name[block]))
        for block in reversed([block for block in released if not self._name[block]]):
            self._free[block] = None
            self._free.move_to_end(block, last=False)

    def _forget(self, block: int) -> None:
        name = self._name[block]
        if name == UNNAMED:
            return
        self._name[block] = UNNAMED
        blocks = self._known[name]
        del blocks[block]
        if not blocks:
            del self._known[name]
