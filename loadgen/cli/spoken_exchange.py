"""An exchange whose text is wanted too, not only its times."""

from collections.abc import Callable

from loadgen.client.exchange import Exchange
from loadgen.client.protocol import decode


class SpokenExchange(Exchange):
    """Hands the text of each event on as it arrives."""

    def __init__(self, speak: Callable[[str], None]) -> None:
        super().__init__()
        self._speak = speak

    def take(self, payload: bytes, received_at: float) -> None:
        """Take in one event of the stream. Raises Malformed."""
        super().take(payload, received_at)
        if text := text_of(payload):
            self._speak(text)


def text_of(payload: bytes) -> str:
    """What a reader sees of one event; "" for anything else. Raises Malformed."""
    choices = decode(payload).get("choices") or [{}]
    delta = choices[0].get("delta")
    text = delta.get("content") if isinstance(delta, dict) else choices[0].get("text")
    return text if isinstance(text, str) else ""
