"""Hours of requests on a counted clock, on vLLM's scheduler with a tier, and what befalls them."""

import random
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from ask import Ask
from digest_engine import PAUSE_S, STALLED_S, DigestEngine
from virtual_load import tokens

STEP_S, BETWEEN_S = 0.05, 30.0
"""Of a step, and the mean between two moments at which some requests come at once."""
DEADLINE_S = 10.0
"""Of the counted time, for a request among six at once."""
CONTEXTS, SHARED_TOKENS = 60, 150
GOES_AWAY, EMPTIED, SPOILT = 0.05, 0.01, 0.1
"""How often that happens, for each of these moments."""


def cut(path: Path) -> None:
    """As a writer that was killed leaves it."""
    path.write_bytes(path.read_bytes()[:-8])


def flip(path: Path) -> None:
    """As a bad disk gives it back."""
    content = bytearray(path.read_bytes())
    content[17] ^= 1
    path.write_bytes(content)


FAULTS: tuple[Callable[[Path], None], ...] = (cut, Path.unlink)
OF_CHECKED_FILES = (*FAULTS, flip)
"""What files with a checksum bear."""


class TierSoak:
    """Some contexts are asked for often and most hardly ever. Clients go away, operators empty
    caches, and below `files` one of `faults` befalls some files. `longest_s` is the longest that a
    request took of the counted time, which stands while a tier's own threads are waited for."""

    def __init__(
        self,
        engine: DigestEngine,
        seed: int,
        files: Path | None = None,
        faults: Sequence[Callable[[Path], None]] = FAULTS,
    ) -> None:
        self._engine, self._files, self._faults = engine, files, faults
        self._dice = random.Random(seed)
        self._arrived_s: dict[str, float] = {}
        self.sent = self.spoilt = 0
        self.now_s = self.longest_s = 0.0

    def run(self, hours: float) -> None:
        """Until all that came within these hours is served."""
        next_s, until_s = self.now_s, self.now_s + 3600 * hours
        while next_s < until_s or self._arrived_s:
            if next_s < until_s and (next_s <= self.now_s or not self._arrived_s):
                self.now_s = max(self.now_s, next_s)
                self._arrive()
                self._befall()
                next_s += self._dice.expovariate(1 / BETWEEN_S)
            else:
                self._step()
        self._engine.settle()

    def _arrive(self) -> None:
        for _ in range(self._dice.choice([1, 1, 2, 6])):
            context = min(int(self._dice.paretovariate(0.6)), CONTEXTS)
            shared = tokens(SHARED_TOKENS + 16 * (context % 3), "soak", context)
            name, own = f"r{self.sent}", tokens(5, "own", self.sent)
            output_tokens = self._dice.choice([1, 2, 8])
            self._engine.submit(Ask(name, f"c{context}", shared + own, output_tokens=output_tokens))
            self._arrived_s[name] = self.now_s
            self.sent += 1

    def _befall(self) -> None:
        if self._dice.random() < GOES_AWAY:
            self._engine.abort(self._dice.choice([*self._arrived_s]))
        if self._dice.random() < EMPTIED:
            self._engine.reset(connector=self._dice.random() < 0.5)
        if self._files is not None and self._dice.random() < SPOILT:
            self._spoil(self._files)

    def _spoil(self, folder: Path) -> None:
        found = sorted(folder.rglob("*.bin"))
        for path in self._dice.sample(found, min(5, len(found))):
            with suppress(OSError):
                self._dice.choice(self._faults)(path)
                self.spoilt += 1

    def _step(self) -> None:
        """One that has something to compute."""
        deadline_s = time.monotonic() + STALLED_S
        while not self._engine.step() and self._engine.scheduler.has_unfinished_requests():
            time.sleep(PAUSE_S)
            assert time.monotonic() < deadline_s, self._engine.scheduler.get_request_counts()
        self.now_s += STEP_S
        for name in self._arrived_s.keys() - self._engine.scheduler.requests.keys():
            self.longest_s = max(self.longest_s, self.now_s - self._arrived_s.pop(name))
