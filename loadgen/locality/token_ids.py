"""The tokens of a prompt as the engine sees them."""

from loadgen.workload.lengths import TokenizerTokens


class TokenIds(TokenizerTokens):
    """Lengths and ids by the model's own tokenizer."""

    def ids(self, prompt: str) -> list[int]:
        """Token ids of a prompt, with the special tokens that a completion request gets."""
        return self._tokenizer.encode(prompt).ids
