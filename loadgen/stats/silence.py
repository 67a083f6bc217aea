"""Whether a host still answers anything at all."""

from dataclasses import dataclass

MOST_STEP_S = 5.0
"""Looks are a second apart, or three where `/metrics` hangs. A longer pause is one of ours."""


@dataclass(frozen=True, slots=True)
class HostContact:
    """What a process knows of the host: when anything last came from it (seconds of the run, None
    for never), and whether a request waits for it."""

    worker: str
    heard_s: float | None
    is_waited_for: bool


class HostSilence:
    """Adds up for how long requests have waited while nothing came, neither for them nor from
    `/metrics`. What one process hears holds for all."""

    def __init__(self, limit_s: float) -> None:
        """Silence for longer than `limit_s` is too long; 0: it never is."""
        self.limit_s = limit_s
        self._contacts: dict[str, HostContact] = {}
        self._heard_s = float("-inf")
        self._looked_s = float("inf")
        self._silent_s = 0.0

    def hear(self, contact: HostContact) -> None:
        """What a process knows now."""
        self._contacts[contact.worker] = contact

    @property
    def heard_s(self) -> float:
        """When any process last heard something, far back for never."""
        heard = [each.heard_s for each in tuple(self._contacts.values())]
        return max((each for each in heard if each is not None), default=self._heard_s)

    def is_too_long(self, at_s: float, answers_metrics: bool) -> bool:
        """Look again: true once the host has been silent for too long."""
        heard_s = self.heard_s
        if answers_metrics or heard_s > self._heard_s:
            self._silent_s = 0.0
        elif any(each.is_waited_for for each in self._contacts.values()):
            self._silent_s += min(max(at_s - self._looked_s, 0.0), MOST_STEP_S)
        self._heard_s, self._looked_s = heard_s, at_s
        return 0 < self.limit_s < self._silent_s
