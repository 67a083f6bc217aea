"""Rules of placement, a file each, by name."""

from collections.abc import Callable, Mapping

from kv_tiers.store.placement import Placement
from kv_tiers.store.placements.modulo import Modulo
from kv_tiers.store.placements.rendezvous import Rendezvous

PLACEMENTS: Mapping[str, Callable[[], Placement]] = {
    each.name: each for each in (Rendezvous, Modulo)
}
