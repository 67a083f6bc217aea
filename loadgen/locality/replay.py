"""A trace served step by step at one cache size, with requests side by side."""

from collections import OrderedDict, deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count, islice

from loadgen.locality.trace import Chain, Trace

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


@dataclass(slots=True, eq=False)
class Running:
    """A request on its way: the names its full blocks have or will have, the blocks it holds, how
    many of them are named, and how many of its tokens are computed and known."""

    chain: Chain
    group: int
    names: list[int]
    blocks: list[int] = field(default_factory=list)
    named: int = 0
    computed: int = 0
    replied: int = 0
    admitted: bool = False

    @property
    def known_tokens(self) -> int:
        """Of the prompt and of the reply so far."""
        return self.chain.prompt_tokens + self.replied

    @property
    def is_done(self) -> bool:
        """Whether the reply has its length."""
        return self.replied >= max(self.chain.output_tokens, 1)


class CacheReplay:
    """What vLLM's scheduler does with a trace, without times: a step is the clock.

    In each step the requests at work go on, first those admitted first, then waiting ones are
    admitted in their order, until the step has the trace's `step_tokens`. The blocks of a prompt
    are known as soon as they are scheduled. Where a running request needs a block and none is left,
    the last admitted one is set back. A client's next request waits in the step after its last
    reply.

    Against vLLM's scheduler without a model this is exact but for one case: a request that is set
    back finds the reply of another with the same prompt. What a real engine has beside it is time:
    steps that are scheduled before the replies of the last one are known, and clients that need a
    moment; both change who ends first.
    """

    def __init__(self, trace: Trace, blocks: int) -> None:
        self._block_size = trace.block_size
        self._pool = BlockPool(blocks)
        self._step_tokens, self._most_running = trace.step_tokens, trace.most_running
        self._coming = iter(trace.chains)
        self._batch_size = trace.batch_size
        self._groups: dict[int, int] = {}
        self._group_numbers = count()
        self._reply_names = count(-1, -1)  # no prompt has a name below 0
        self._waiting: deque[Running] = deque()
        self._running: list[Running] = []
        self.cached: list[int] = []
        """Prompt tokens taken from the cache, of each request in the order of admission."""
        for _ in range(trace.users):
            self._send()

    @property
    def cached_tokens(self) -> int:
        """Of all requests."""
        return sum(self.cached)

    def run(self) -> "CacheReplay":
        """To the last reply. Raises ValueError where the longest request does not fit."""
        while self._running or self._waiting:
            self._step()
        return self

    def _send(self) -> None:
        """One client's next requests, all at once."""
        group = next(self._group_numbers)
        sent = [
            Running(chain, group, list(chain.blocks))
            for chain in islice(self._coming, self._batch_size)
        ]
        if sent:
            self._groups[group] = len(sent)
            self._waiting.extend(sent)

    def _step(self) -> None:
        worked, budget, all_fit = self._continue(self._step_tokens)
        if all_fit:
            worked += self._admit(budget)
        if not worked:
            raise ValueError(f"a cache of {self._pool.free} blocks does not hold the next request")
        for request in worked:
            if request.computed == request.known_tokens:
                request.replied += 1
        for request in [each for each in worked if each.is_done]:
            self._end(request)

    def _continue(self, budget: int) -> tuple[list[Running], int, bool]:
        """Those at work, the budget that is left, and whether none had to be set back."""
        worked: list[Running] = []
        all_fit = True
        at = 0
        while at < len(self._running) and budget:
            request = self._running[at]
            tokens = min(request.known_tokens - request.computed, budget)
            while not self._fits(request, tokens):
                all_fit = False
                if self._set_back() is request:
                    return worked, budget, all_fit
            self._compute(request, tokens)
            worked.append(request)
            budget -= tokens
            at += 1
        return worked, budget, all_fit

    def _admit(self, budget: int) -> list[Running]:
        admitted: list[Running] = []
        while self._waiting and budget and len(self._running) < self._most_running:
            request = self._waiting[0]
            found = self._pool.find(self._reusable(request))
            needed = -(-request.known_tokens // self._block_size) - len(found)
            if needed + self._pool.idle(found) > self._pool.free:
                break
            self._waiting.popleft()
            self._start(request, found)
            tokens = min(request.known_tokens - request.computed, budget)
            self._compute(request, tokens)
            self._running.append(request)
            admitted.append(request)
            budget -= tokens
        return admitted

    def _reusable(self, request: Running) -> list[int]:
        """The last token is computed in any case: its logits give the next one."""
        return request.names[: (request.known_tokens - 1) // self._block_size]

    def _start(self, request: Running, found: list[int]) -> None:
        self._pool.hold(found)
        request.blocks = found
        request.named = len(found)
        request.computed = len(found) * self._block_size
        if not request.admitted:
            request.admitted = True
            self.cached.append(request.computed)

    def _fits(self, request: Running, tokens: int) -> bool:
        return self._missing(request, tokens) <= self._pool.free

    def _missing(self, request: Running, tokens: int) -> int:
        return -(-(request.computed + tokens) // self._block_size) - len(request.blocks)

    def _compute(self, request: Running, tokens: int) -> None:
        request.blocks += self._pool.take(self._missing(request, tokens))
        request.computed += tokens
        for place in range(request.named, request.computed // self._block_size):
            if place == len(request.names):
                request.names.append(next(self._reply_names))
            self._pool.name(request.blocks[place], request.names[place])
            request.named += 1

    def _set_back(self) -> Running:
        request = self._running.pop()
        self._pool.give_back(request.blocks)
        request.blocks, request.named, request.computed = [], 0, 0
        self._waiting.appendleft(request)
        return request

    def _end(self, request: Running) -> None:
        self._running.remove(request)
        self._pool.give_back(request.blocks)
        self._groups[request.group] -= 1
        if not self._groups[request.group]:
            del self._groups[request.group]
            self._send()
