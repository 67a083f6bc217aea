"""How long a text is in the model's tokens: counted, measured beforehand, or estimated."""

import re
from collections.abc import Mapping
from threading import Thread
from typing import TYPE_CHECKING, Protocol, Self

from loadgen.errors import UsageError
from loadgen.scratch import expanded, without_device

if TYPE_CHECKING:
    from tokenizers import Tokenizer

CHARS_PER_TOKEN = 4
TOKENIZER_JSON = "tokenizer.json"
HUB_S = 5.0
"""How long the hub may take to say whether it has a model."""

_HUB_NAME = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")


class Tokens(Protocol):
    """Lengths in the model's tokens, special tokens not counted."""

    def count(self, text: str) -> int:
        """The number of tokens of the text."""

    def cut(self, text: str, tokens: int) -> str:
        """The longest prefix that ends with a token and counts at most `tokens`."""


class TokenizerTokens:
    """Exact lengths by the model's own tokenizer."""

    # A long text is cut by looking at this many characters for each token wanted, plus some.
    _CHARS_AHEAD = 6
    _TOKENS_AHEAD = 16

    def __init__(self, tokenizer: "Tokenizer") -> None:
        """Take the tokenizer over: its truncation and padding are switched off."""
        tokenizer.no_truncation()
        tokenizer.no_padding()
        self._tokenizer = tokenizer

    @classmethod
    def from_path_or_name(cls, source: str) -> Self:
        """A folder with tokenizer.json, such a file, or a name on the Hugging Face hub.

        Raises UsageError.
        """
        from tokenizers import Tokenizer  # not for runs that estimate: they must start fast

        path = expanded(source)
        try:
            if path.exists() or not _HUB_NAME.fullmatch(source):
                file = path / TOKENIZER_JSON if path.is_dir() else path
                return cls(Tokenizer.from_file(str(without_device(file))))
            cached = _loaded_before(source)
            return cls(Tokenizer.from_file(cached) if cached else Tokenizer.from_pretrained(source))
        except Exception as error:  # the library raises nothing more precise
            reason = " ".join(str(error).split())[:200]
            raise UsageError(
                f"--tokenizer {source} cannot be loaded ({reason}): "
                "name a tokenizer.json, its folder, or a model on the hub"
            ) from error

    def count(self, text: str) -> int:
        """The number of tokens of the text."""
        return len(self._tokenizer.encode(text, add_special_tokens=False))

    def cut(self, text: str, tokens: int) -> str:
        """A prefix that ends with a token and counts at most `tokens`, nearly always exactly."""
        head = text[: (max(tokens, 0) + self._TOKENS_AHEAD) * self._CHARS_AHEAD]
        ends = self._ends(head)
        if len(ends) < tokens + self._TOKENS_AHEAD and len(head) < len(text):
            ends = self._ends(text)
        if len(ends) <= tokens:
            return text
        # The prefix alone may split otherwise than within the text, and one character may take
        # several tokens: only counting again tells.
        prefixes = (text[: ends[kept - 1]] for kept in range(tokens, 0, -1))
        return next((prefix for prefix in prefixes if self.count(prefix) <= tokens), "")

    def _ends(self, text: str) -> list[int]:
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        return [end for _, end in encoding.offsets]


def _loaded_before(name: str) -> str | None:
    """The file of a model's tokenizer in the hub's cache, None where the hub has it.

    The hub's own client would try for half a minute. Raises LookupError.
    """
    from huggingface_hub import constants, get_token, try_to_load_from_cache

    cached = try_to_load_from_cache(name, TOKENIZER_JSON)
    if isinstance(cached, str):
        return cached
    token = get_token()
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    refused = "HF_HUB_OFFLINE is set"
    if not constants.HF_HUB_OFFLINE:
        url = f"{constants.ENDPOINT}/{name}/resolve/main/{TOKENIZER_JSON}"
        refused = _refusal_of(url, headers)
    if refused:
        raise LookupError(f"it is no file or folder, was not loaded before, and {refused}")
    return None


def _refusal_of(url: str, headers: Mapping[str, str]) -> str:
    """Why the hub does not give a file, "" where it does; looking for a name may hang."""
    from urllib.error import HTTPError  # a run that measures nothing starts without them
    from urllib.request import Request, urlopen

    found = ["the hub does not answer"]

    def ask() -> None:
        request = Request(url, headers=dict(headers), method="HEAD")
        try:
            with urlopen(request, timeout=HUB_S):
                found.append("")
        except HTTPError as error:
            found.append(f"the hub has no such tokenizer (HTTP {error.code})")
        except OSError as error:
            found.append(f"the hub cannot be reached ({getattr(error, 'reason', error)})")

    asking = Thread(target=ask, daemon=True)
    asking.start()
    asking.join(HUB_S)
    return found[-1]


class MeasuredTokens:
    """Lengths from a table, for hosts that count tokens only over HTTP.

    `counts` maps texts to their tokens and is a plain dict that can be sent to workers; the texts
    worth measuring are `passages.texts_to_measure(corpus)`. Every other text is estimated by the
    table's mean characters per token.
    """

    def __init__(self, counts: Mapping[str, int]) -> None:
        self.counts = dict(counts)
        characters, tokens = sum(map(len, self.counts)), sum(self.counts.values())
        known = characters > 0 and tokens > 0
        self._characters, self._tokens = (characters, tokens) if known else (CHARS_PER_TOKEN, 1)

    def count(self, text: str) -> int:
        """The measured tokens of the text, or an estimate rounded up."""
        known = self.counts.get(text)
        return -(-len(text) * self._tokens // self._characters) if known is None else known

    def cut(self, text: str, tokens: int) -> str:
        """A prefix whose estimate, at the text's own density, is at most `tokens`.

        Ends with a word where one ends in its second half.
        """
        whole = self.count(text)
        if whole <= tokens:
            return text
        if tokens <= 0:
            return ""
        length = min(len(text) * tokens // whole, tokens * self._characters // self._tokens)
        prefix = text[:length]
        word_end = prefix.rfind(" ") if text[len(prefix)] != " " else -1
        return prefix[:word_end] if word_end > length // 2 else prefix


class EstimatedTokens(MeasuredTokens):
    """Lengths where nothing is known about the model's tokenizer: four characters a token."""

    announcement = (
        f"context lengths are estimated at {CHARS_PER_TOKEN} characters a token: "
        "give --tokenizer PATH|NAME for exact ones"
    )

    def __init__(self) -> None:
        super().__init__({})
