"""Whether runs may be set against each other, and what they differ in."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass

from loadgen.compare.bare_files import check_bare
from loadgen.compare.facts import ARGUMENTS, CORPUS_PATHS, CORPUS_SHA256, SIZES, TARGET
from loadgen.compare.run import Run
from loadgen.errors import UsageError

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
    is known by its digest, or by its path where a run is too old to have one."""
    other_target = base.get(TARGET) != new.get(TARGET)
    same_texts = (
        CORPUS_PATHS if CORPUS_SHA256 in base and CORPUS_SHA256 in new else (CORPUS_SHA256,)
    )
    return [
        Difference(name, base.get(name), new.get(name))
        for name in sorted({*base, *new} - {*same_texts})
        if base.get(name) != new.get(name)
        and not (other_target and _belongs_to_target(name, base, new))
    ]


def _belongs_to_target(name: str, base: Mapping[str, str], new: Mapping[str, str]) -> bool:
    if not name.startswith(f"{ARGUMENTS}."):
        return False
    return name not in _SIZES or name not in base or name not in new


def require_comparable(
    base: Sequence[Run], new: Sequence[Run], vary: Collection[str]
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
    return () if are_all_told else tuple(check_bare(base, new, vary))


def _refuse(one: Run, other: Run, vary: Collection[str], what: str) -> None:
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


def _require_same_seeds(base: Sequence[Run], new: Sequence[Run], vary: Collection[str]) -> None:
    seeds = [sorted({run.seed for run in side}) for side in (base, new)]
    if "seed" not in vary and seeds[0] != seeds[1]:
        raise UsageError(
            f"both sides are not comparable: seed {', '.join(seeds[0])} against"
            f" {', '.join(seeds[1])} (--vary NAME names what is under test)"
        )
