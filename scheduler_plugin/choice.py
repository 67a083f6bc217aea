"""Whose turn is next: the oldest, or the one whose prefix is longest in the cache."""

from itertools import chain as concatenate
from typing import Generic

from scheduler_plugin.engine_view import EngineView, Reason
from scheduler_plugin.group import Group, R, Waiting
from scheduler_plugin.group_line import GroupLine
from scheduler_plugin.grouping import Grouping
from scheduler_plugin.overtakes import Overtakes
from scheduler_plugin.roots import Roots
from scheduler_plugin.settings import OrderSettings


class Choice(Generic[R]):
    """Chooses the next group of a line that is not empty.

    With policy `prefix-group` the context of the oldest request is next; with `lpm` the one whose
    prefix is longest in the cache, among the `window` oldest and the last served ones, unless the
    oldest request is overdue.
    """

    def __init__(
        self,
        *,
        settings: OrderSettings,
        engine: EngineView[R],
        line: GroupLine[R],
        grouping: Grouping[R],
        overtakes: Overtakes,
        roots: Roots,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._line = line
        self._grouping = grouping
        self._overtakes = overtakes
        self._roots = roots

    def admitted(self, entry: Waiting[R]) -> None:
        """From now on others that begin like this request may have a cached prefix."""
        self._roots.note(entry.root)

    def is_calm(self) -> bool:
        """Whether the cache has room, so that order gains nothing."""
        least = self._settings.min_kv_usage
        return least > 0 and self._engine.kv_usage() < least

    def next_group(self) -> tuple[Group[R], Reason]:
        """The group whose turn is next, and why."""
        oldest = self._line.oldest
        assert oldest is not None
        assert oldest.head is not None  # a group is in the line only while it has one
        if self._settings.policy != "lpm" or self.is_calm():
            return oldest, "oldest"
        overdue = self._overdue(oldest.head)
        if overdue is not None:
            return oldest, overdue
        return self._most_resident(oldest)

    def _overdue(self, entry: Waiting[R]) -> Reason | None:
        settings = self._settings
        if self._overtakes.of(entry.seq) >= settings.max_overtakes:
            return "overtakes"
        if settings.max_wait_s is None:
            return None
        waited_s = self._engine.now_s() - entry.arrived_s
        return "wait" if waited_s >= settings.max_wait_s else None

    def _most_resident(self, oldest: Group[R]) -> tuple[Group[R], Reason]:
        best, most = oldest, 0
        resident_blocks, roots = self._engine.resident_blocks, self._roots
        for group in concatenate(self._line, self._line.beyond(self._grouping.recent)):
            head = group.head
            if head is None or head.root not in roots:
                continue
            resident = resident_blocks(head.request, most)
            if resident:
                best, most = group, resident
        return best, "resident" if most else "oldest"
