"""Whether runs may be set against each other, and what they differ in."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from loadgen.compare.facts import ARGUMENTS, DIGESTS, SIZES, TARGET
from loadgen.compare.run import ComparedRun, Stream
from loadgen.errors import UsageError

SAME_REQUESTS = (TARGET, ARGUMENTS, "model", "cache_state")
"""What may be under test without another stream of requests."""
_SIZES = frozenset(f"{ARGUMENTS}.{name}" for name in SIZES)


@dataclass(frozen=True, slots=True)
class Difference:
    """One fact in which two runs differ; None where a run does not have it."""

    name: str
    base: str | None
    new: str | None

    def __str__(self) -> str:
        return f"{self.name} {_value(self.base)} against {_value(self.new)}"


def _value(value: str | None) -> str:
    return "nothing" if value is None else repr(value[:60])


def differences(base: Mapping[str, str], new: Mapping[str, str]) -> list[Difference]:
    """All facts that are not alike. The flags of two targets are what tells them apart, so of
    targets with different names only the sizes that both have are set against each other. A corpus
    or a trace is known by its digest, or by its path where a run is too old to have one."""
    other_target = base.get(TARGET) != new.get(TARGET)
    both_sizes = _SIZES & base.keys() & new.keys()
    same_texts = [
        name
        for digest, paths in DIGESTS.items()
        for name in (paths if digest in base and digest in new else (digest,))
    ]
    return [
        Difference(name, base.get(name), new.get(name))
        for name in sorted({*base, *new} - {*same_texts})
        if base.get(name) != new.get(name)
        and not (other_target and name.startswith(f"{ARGUMENTS}.") and name not in both_sizes)
    ]


def require_comparable(
    base: Sequence[ComparedRun], new: Sequence[ComparedRun], vary: Collection[str]
) -> tuple[str, ...]:
    """Raise UsageError naming what differs beyond `vary`; returns remarks on what is unknown.

    A name in `vary` also stands for what is below it: `target_arguments` for every argument. The
    runs of a side must be alike in all but their seed, and both sides must have the same seeds.
    Bare files are held against whatever they tell.
    """
    told = [[run for run in side if run.facts is not None] for side in (base, new)]
    for side in told:
        for other in side[1:]:
            _refuse(side[0], other, ("seed",), "repeats of one side")
    are_all_told = len(told[0]) + len(told[1]) == len(base) + len(new)
    if are_all_told:
        _require_same_seeds(base, new, vary)
    if told[0] and told[1]:
        _refuse(told[0][0], told[1][0], ("seed", *vary), "both sides")
    return () if are_all_told else tuple(_check_bare(base, new, vary))


def _refuse(one: ComparedRun, other: ComparedRun, vary: Collection[str], what: str) -> None:
    found = list(_beyond(vary, differences(one.facts or {}, other.facts or {})))
    if found:
        names = "; ".join(map(str, found[:8])) + ("; …" if len(found) > 8 else "")
        hint = " (--vary NAME names what is under test)" if what == "both sides" else ""
        raise UsageError(f"{what} are not comparable: {names}{hint}")


def _beyond(vary: Collection[str], found: Sequence[Difference]) -> Iterator[Difference]:
    for difference in found:
        if not any(
            difference.name == name or difference.name.startswith(f"{name}.") for name in vary
        ):
            yield difference


def _require_same_seeds(
    base: Sequence[ComparedRun], new: Sequence[ComparedRun], vary: Collection[str]
) -> None:
    seeds = [sorted({run.seed for run in side}) for side in (base, new)]
    if "seed" not in vary and seeds[0] != seeds[1]:
        raise UsageError(
            f"both sides are not comparable: seed {', '.join(seeds[0])} against"
            f" {', '.join(seeds[1])} (--vary NAME names what is under test)"
        )


def _check_bare(
    base: Sequence[ComparedRun], new: Sequence[ComparedRun], vary: Collection[str]
) -> Iterator[str]:
    """Raise UsageError where the files themselves show that the sides are not comparable; tell
    what could not be checked."""
    _check_users(base, new, vary)
    is_same = all(name.partition(".")[0] in SAME_REQUESTS for name in vary)
    if is_same and (found := _conflict(base, new)):
        raise UsageError(
            f"both sides are not comparable: workload or seed, as {found}"
            " (--vary workload allows it)"
        )
    yield from _other_rows(base, new)
    silent = ", ".join(run.name for run in (*base, *new) if run.facts is None)
    yield f"not told by {silent}, so not checked: {', '.join(_unchecked(base, new))}"


def _check_users(
    base: Sequence[ComparedRun], new: Sequence[ComparedRun], vary: Collection[str]
) -> None:
    sides = [sorted({run.users for run in side if run.users}) for side in (base, new)]
    if sides[0] and sides[1] and sides[0] != sides[1] and "num_users" not in vary:
        before, after = (" and ".join(side) for side in sides)
        raise UsageError(
            f"both sides are not comparable: num_users {before} against {after}"
            " (--vary num_users allows it)"
        )


def _other_rows(base: Sequence[ComparedRun], new: Sequence[ComparedRun]) -> Iterator[str]:
    """Aggregated figures of other requests are not of the same thing."""
    told = [run.rows for run in (*base, *new) if run.rows]
    if lonely := sorted(frozenset().union(*told) - frozenset.intersection(*told)) if told else []:
        names = ", ".join(lonely[:8])
        yield f"Aggregated is not of the same requests: not every file has {names}"


def _unchecked(base: Sequence[ComparedRun], new: Sequence[ComparedRun]) -> Iterator[str]:
    if not _is_checked(base, new):
        yield from ("workload", "seed")
    if not all(run.users for run in (*base, *new)):
        yield "num_users"
    yield from ("model", "target", "target arguments", "cache state")


def _conflict(base: Sequence[ComparedRun], new: Sequence[ComparedRun]) -> str | None:
    """Words for a request in which a run has nobody on the other side that agrees with it; None
    where all agree, or too little is known."""
    for side, other in ((base, new), (new, base)):
        for run in side:
            found = [_first(run.stream, each.stream) for each in other]
            if all(found):
                return found[0]
    return None


def _is_checked(base: Sequence[ComparedRun], new: Sequence[ComparedRun]) -> bool:
    """Whether each run has requests in common with one of the other side."""
    return all(
        any(run.stream.keys() & each.stream.keys() for each in other)
        for side, other in ((base, new), (new, base))
        for run in side
    )


def _first(one: Stream, other: Stream) -> str | None:
    for number, about in one.items():
        if other.get(number, about) != about:
            return f"request {number[:20]} is {_named(about)} against {_named(other[number])}"
    return None


def _named(about: tuple[str, str]) -> str:
    return repr("/".join(about)[:60])
