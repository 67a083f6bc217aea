"""Which group a request belongs to: by its label, or by the prefix it shares."""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from typing import Generic, cast

from scheduler_plugin.group import Group, R
from scheduler_plugin.prefix_tree import Node, PrefixTree

SHARED_SHARE = 3 / 4
"""Requests are of one context when they share this much of the newcomer's full blocks.

More would let a long question fall out of its context, less would let a long common system prompt
make one group of all contexts.
"""


class Grouping(Generic[R]):
    """The groups that have members, and the `recent` last served ones, which may have none.

    A request never changes its group while it waits. Raises nothing: a request without label and
    without a full block is a group of its own.
    """

    def __init__(self, key: str, recent: int) -> None:
        self._by_label = key in ("label", "auto")
        self._by_prefix = key in ("prefix", "auto")
        self._most_recent = recent
        self._labels: dict[str, Group[R]] = {}
        self._tree: PrefixTree[Group[R]] = PrefixTree()
        self._recent: OrderedDict[Group[R], None] = OrderedDict()
        self._awaited: dict[Group[R], None] = {}

    @property
    def recent(self) -> Iterable[Group[R]]:
        """Those of the last served groups that have members."""
        return self._awaited

    def group_of(self, label: str | None, chain: Sequence[object]) -> Group[R]:
        """The group a new request joins; a new one where it shares with none."""
        if label is not None and self._by_label:
            group = self._labelled(label)
        elif self._by_prefix and chain:
            group = self._sharing(chain)
        else:
            return Group()
        if group.is_recent:
            self._awaited[group] = None
        return group

    def served(self, group: Group[R]) -> None:
        """Keep a group, for requests of its context that are still to come."""
        if group.key is None and group.anchor is None:
            return  # nobody can join it
        group.is_recent = True
        self._recent[group] = self._awaited[group] = None
        self._recent.move_to_end(group)
        if len(self._recent) > self._most_recent:
            oldest, _ = self._recent.popitem(last=False)
            oldest.is_recent = False
            self._awaited.pop(oldest, None)
            self.drop_if_empty(oldest)

    def drop_if_empty(self, group: Group[R]) -> None:
        """Forget a group that has no members and was not served of late."""
        if group.members:
            return
        self._awaited.pop(group, None)
        if group.is_recent:
            return
        if group.key is not None:
            self._labels.pop(cast(str, group.key), None)
        if group.anchor is not None:
            self._tree.remove(cast("Node[Group[R]]", group.anchor))
            group.anchor = None

    def _labelled(self, label: str) -> Group[R]:
        group = self._labels.get(label)
        if group is None:
            group = self._labels[label] = Group(label)
        return group

    def _sharing(self, chain: Sequence[object]) -> Group[R]:
        nearest, shared = self._tree.nearest(chain)
        if nearest is not None and shared >= SHARED_SHARE * len(chain):
            return nearest
        group: Group[R] = Group()
        group.anchor = self._tree.insert(chain, group)
        return group
