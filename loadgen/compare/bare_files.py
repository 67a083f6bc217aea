"""What is held against each other where a CSV file came without its `run.json`."""

from collections.abc import Collection, Iterator, Sequence

from loadgen.compare.facts import ARGUMENTS, TARGET
from loadgen.compare.run import Run
from loadgen.compare.stream import conflict, is_checked
from loadgen.errors import UsageError

SAME_REQUESTS = (TARGET, ARGUMENTS, "model", "cache_state")
"""What may be under test without another stream of requests."""


def check_bare(base: Sequence[Run], new: Sequence[Run], vary: Collection[str]) -> Iterator[str]:
    """Raise UsageError where the files themselves show that the sides are not comparable; tell
    what could not be checked."""
    _check_users(base, new, vary)
    is_same = all(name.partition(".")[0] in SAME_REQUESTS for name in vary)
    if is_same and (found := conflict(base, new)):
        raise UsageError(
            f"both sides are not comparable: workload or seed, as {found}"
            " (--vary workload allows it)"
        )
    yield from _other_rows(base, new)
    silent = ", ".join(run.name for run in (*base, *new) if run.facts is None)
    yield f"not told by {silent}, so not checked: {', '.join(_unchecked(base, new))}"


def _check_users(base: Sequence[Run], new: Sequence[Run], vary: Collection[str]) -> None:
    sides = [sorted({run.users for run in side if run.users}) for side in (base, new)]
    if sides[0] and sides[1] and sides[0] != sides[1] and "num_users" not in vary:
        before, after = (" and ".join(side) for side in sides)
        raise UsageError(
            f"both sides are not comparable: num_users {before} against {after}"
            " (--vary num_users allows it)"
        )


def _other_rows(base: Sequence[Run], new: Sequence[Run]) -> Iterator[str]:
    """Aggregated figures of other requests are not of the same thing."""
    told = [run.rows for run in (*base, *new) if run.rows]
    if lonely := sorted(frozenset().union(*told) - frozenset.intersection(*told)) if told else []:
        names = ", ".join(lonely[:8])
        yield f"Aggregated is not of the same requests: not every file has {names}"


def _unchecked(base: Sequence[Run], new: Sequence[Run]) -> Iterator[str]:
    if not is_checked(base, new):
        yield from ("workload", "seed")
    if not all(run.users for run in (*base, *new)):
        yield "num_users"
    yield from ("model", "target", "target arguments", "cache state")
