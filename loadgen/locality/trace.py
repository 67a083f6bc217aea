"""What a prefix cache sees of a run: each prompt as a chain of blocks, in the order sent."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from loadgen.errors import UsageError
from loadgen.workload.lengths import TokenizerTokens

MAX_BLOCK_SIZE = 65536
SCOPE_NAMES = 1 << 40
"""Those of the next scope begin there; no trace has so many blocks."""
STEP_TOKENS, MOST_RUNNING = 2048, 128
"""What vLLM computes in one step, and how many requests run at once, unless told otherwise."""


@dataclass(frozen=True, slots=True)
class Chain:
    """One request. `blocks` names its prompt's full blocks from the first on; two blocks have the
    same name where all tokens up to their ends are the same. Lengths are in tokens.
    """

    blocks: tuple[int, ...]
    prompt_tokens: int
    output_tokens: int

    @property
    def kept_tokens(self) -> int:
        """Tokens whose keys and values exist at the end: nothing is computed of the last one."""
        return self.prompt_tokens + max(self.output_tokens, 1) - 1


@dataclass(frozen=True, slots=True)
class Trace:
    """Requests in the order sent. `block_size` is in tokens.

    `users` clients each keep `batch_size` requests in flight and send the next ones when the last
    reply is complete: 1 and 1 is one request after the other. `source` says in words what the
    chains were made from, `remarks` what the order sent does not tell about the order of service.
    The engine computes `step_tokens` in a step, of `most_running` requests.
    """

    chains: tuple[Chain, ...]
    block_size: int
    users: int = 1
    batch_size: int = 1
    source: str = ""
    remarks: tuple[str, ...] = ()
    step_tokens: int = STEP_TOKENS
    most_running: int = MOST_RUNNING

    @property
    def in_flight(self) -> int:
        """Requests that are under way together."""
        return self.users * self.batch_size

    @property
    def is_sequential(self) -> bool:
        """Whether each request begins after the one before it has ended."""
        return self.in_flight == 1

    @property
    def prompt_tokens(self) -> int:
        """Of all requests together."""
        return sum(chain.prompt_tokens for chain in self.chains)

    @property
    def least_blocks(self) -> int:
        """The longest request, reply included: an engine with fewer does not start."""
        return max((-(-chain.kept_tokens // self.block_size) for chain in self.chains), default=0)


class BlockNames:
    """Names a prompt's blocks by their tokens and those of all blocks before them, exactly: what
    vLLM does with hashes."""

    def __init__(self, block_size: int) -> None:
        """Raises UsageError for a size that is no number of tokens."""
        if not 1 <= block_size <= MAX_BLOCK_SIZE:
            raise UsageError(
                f"--block-size {block_size} is out of range: give 1 to {MAX_BLOCK_SIZE} tokens"
            )
        self.block_size = block_size
        self._names: dict[tuple[int, tuple[int, ...]], int] = {}

    def chain(self, token_ids: Sequence[int], output_tokens: int) -> Chain:
        """The chain of a prompt given as token ids. Raises UsageError for an empty one."""
        if not token_ids:
            raise UsageError(
                "a prompt without tokens cannot be served: the corpus has an empty one"
            )
        names: list[int] = []
        parent = 0
        for end in range(self.block_size, len(token_ids) + 1, self.block_size):
            key = parent, tuple(token_ids[end - self.block_size : end])
            parent = self._names.setdefault(key, len(self._names) + 1)
            names.append(parent)
        return Chain(tuple(names), len(token_ids), output_tokens)

    @staticmethod
    def apart(chains: Sequence[Chain], scopes: Sequence[str]) -> tuple[Chain, ...]:
        """Chains whose blocks have other names in another scope, of which each chain has one: alike
        modulo `SCOPE_NAMES` where the tokens are."""
        places = {scope: SCOPE_NAMES * n for n, scope in enumerate(dict.fromkeys(scopes))}
        if len(places) < 2:
            return tuple(chains)
        return tuple(
            replace(each, blocks=tuple(places[scope] + name for name in each.blocks))
            for each, scope in zip(chains, scopes, strict=True)
        )


class TokenIds(TokenizerTokens):
    """Lengths and ids by the model's own tokenizer."""

    def ids(self, prompt: str) -> list[int]:
        """Token ids of a prompt, with the special tokens that a completion request gets."""
        return self._tokenizer.encode(prompt).ids

    def plain_ids(self, text: str) -> list[int]:
        """Token ids without special tokens."""
        return self._tokenizer.encode(text, add_special_tokens=False).ids
