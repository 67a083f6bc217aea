"""Token ids of many prompts behind few contexts: what they share is encoded once."""

import re
from array import array
from collections import OrderedDict
from dataclasses import dataclass
from functools import lru_cache

from loadgen.locality.trace import TokenIds
from loadgen.workload.contexts import QUESTION_MARKER

KEPT_CHARACTERS, KEPT_ENDS = 16_000_000, 1 << 16
"""Of contexts whose ids are kept, and how many ends of prompts, those used last."""
NEAR_CHARACTERS = (60, 400)
"""Of the end of a context that are encoded again, at most: the fewest that hold the beginning of a
word, where the cut lies."""
_WORD = re.compile(r" (?=[A-Za-z])")


@dataclass(frozen=True, slots=True)
class _Shared:
    """The ids of a context up to a place in it; without any where they depend on what follows."""

    ids: tuple[int, ...] = ()
    until: int = 0


class PromptIds:
    """The ids that `tokens` gives, exactly.

    A prompt is cut before a word near the end of its context. That the two parts have the ids of
    the whole is looked at once for each context; where they have not, prompts are encoded whole.
    """

    def __init__(self, tokens: TokenIds) -> None:
        self._tokens = tokens
        self._end_ids = lru_cache(KEPT_ENDS)(lambda end: array("q", tokens.plain_ids(end)))
        self._shared: OrderedDict[str, _Shared] = OrderedDict()
        self._characters = 0

    def ids(self, prompt: str) -> tuple[int, ...]:
        """Of a prompt, with the special tokens that a completion request gets."""
        context, marker, _ = prompt.rpartition(QUESTION_MARKER)
        if not marker:
            return tuple(self._tokens.ids(prompt))
        shared = self._shared.get(context)
        if shared is None:
            return self._first(context, prompt)
        self._shared.move_to_end(context)
        if not shared.until:
            return tuple(self._tokens.ids(prompt))
        return (*shared.ids, *self._end_ids(prompt[shared.until :]))

    def _first(self, context: str, prompt: str) -> tuple[int, ...]:
        whole = tuple(self._tokens.ids(prompt))
        self._shared[context] = self._cut(context, prompt, whole)
        self._characters += len(context)
        while self._characters > KEPT_CHARACTERS and len(self._shared) > 1:
            self._characters -= len(self._shared.popitem(last=False)[0])
        return whole

    def _cut(self, context: str, prompt: str, whole: tuple[int, ...]) -> _Shared:
        """Before the first word of the last characters."""
        starts = (max(0, len(context) - near) for near in NEAR_CHARACTERS)
        found = next(filter(None, (_WORD.search(context, start) for start in starts)), None)
        if found is None:
            return _Shared()
        rest = self._end_ids(prompt[found.start() :])
        ids = whole[: len(whole) - len(rest)]
        is_whole = (*ids, *rest) == whole
        return _Shared(ids, found.start()) if is_whole and ids else _Shared()
