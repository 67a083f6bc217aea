"""The centre tells each of its regions what has changed in the others, in rounds."""

import asyncio
import logging
from collections.abc import Mapping

from kv_tiers.store.regional import FrameStore, JournalReader, StoreChange, remember

CENTRE = "the centre"
_LOG = logging.getLogger(__name__)


class CentralSync:
    """Rounds of the centre over the regions that it knows. A round reads what each of them was
    told, and brings it to all others and to the centre.

    So a region is stale for a period and the length of a round at most, whatever became of its
    clients' own writes. A store that does not answer is owed its changes: it is `behind`.
    """

    def __init__(self, centre: FrameStore, regions: Mapping[str, FrameStore]) -> None:
        self._stores = {**regions, CENTRE: centre}
        self.journals = {name: JournalReader(store) for name, store in self._stores.items()}
        self._latest: dict[bytes, StoreChange] = {}
        self._owed: dict[str, dict[bytes, tuple[StoreChange, str]]] = {
            name: {} for name in self._stores
        }
        """To each store, by chunk: a change, and whose journal told it."""
        self._silent: set[str] = set()

    @property
    def behind(self) -> list[str]:
        """Stores that the last round did not hear of, or that did not take all of it."""
        return [name for name in self._stores if name in self._silent or self._owed[name]]

    async def round(self) -> int:
        """The changes that were new."""
        found = await asyncio.gather(*map(self._collect, self._stores))
        await self._bring(CENTRE)  # before regions, which ask it whether what they read still holds
        await asyncio.gather(*(self._bring(name) for name in self._stores if name != CENTRE))
        return sum(found)

    async def keep(self, every_s: float) -> None:
        """A round in each period, until it is cancelled."""
        while True:
            await asyncio.gather(self.round(), asyncio.sleep(every_s))
            if self.behind:
                _LOG.warning("behind: %s", ", ".join(self.behind))

    async def _collect(self, source: str) -> int:
        changes, new = await self.journals[source].new(), 0
        self._silent.discard(source)
        if changes is None:
            self._silent.add(source)
        for change in changes or ():
            wire = change.name.wire
            known = self._latest.get(wire)
            if known is None or known.version < change.version:
                remember(self._latest, wire, change)
                self._owe(change, source)
                new += 1
            elif known.is_deletion != change.is_deletion and change.version < known.version:
                # A late write must not bring back what was deleted after it was made, nor a late
                # deletion take away what was written after it.
                remember(self._owed[source], wire, (known, source))
        return new

    def _owe(self, change: StoreChange, source: str) -> None:
        for name, owed in self._owed.items():
            if name == source:
                owed.pop(change.name.wire, None)
            else:
                remember(owed, change.name.wire, (change, source))

    async def _bring(self, name: str) -> None:
        owed = self._owed[name]
        for wire, told in [*owed.items()]:
            if await self._done(name, *told) and owed.get(wire) is told:
                del owed[wire]

    async def _done(self, name: str, change: StoreChange, source: str) -> bool:
        store = self._stores[name]
        if change.is_deletion:
            return await store.delete(change.name)
        if name != CENTRE:
            return True  # it is found by reading through
        (is_there,) = await store.known([change.name])
        if is_there is not False:
            return is_there is True
        places = dict.fromkeys((source, *self._stores))
        del places[CENTRE]
        for place in places:
            if (frame := await self._stores[place].get(change.name)) is not None:
                return await store.put(change.name, frame) > 0
        return True
