"""One target's part of a run: what is started, what is run on it, where that is kept."""

from dataclasses import dataclass, replace
from pathlib import Path

from loadgen.cli.arguments import RunArguments
from loadgen.cli.locustfile import find_locustfile
from loadgen.cli.target import choose_targets, target_settings
from loadgen.runs.directory import check_directory
from loadgen.targets.catalog import TargetSpec
from loadgen.targets.settings import TargetSettings
from loadgen.targets.target import check_target


@dataclass(frozen=True, slots=True)
class Leg:
    """`run` is the user's, its directory that of this target alone."""

    spec: TargetSpec
    settings: TargetSettings
    run: RunArguments

    @property
    def logs(self) -> Path:
        """Folder of the engine's logs."""
        return self.run.out / "engine"


def plan_legs(run: RunArguments) -> list[Leg]:
    """A leg for each target, in the order they were named; of several, each has a subdirectory.

    Makes the demo model where it is needed. Raises UsageError for whatever is wrong with any of
    them.
    """
    find_locustfile(run.file)
    specs = choose_targets(run.targets, run.target_arguments)
    settings = target_settings(run.target_arguments)
    legs = [Leg(spec, settings, run) for spec in specs]
    if len(legs) > 1:
        legs = [replace(leg, run=replace(run, out=run.out / leg.spec.name)) for leg in legs]
    for leg in legs:
        check_target(leg.spec, leg.settings)
        check_directory(leg.run.out)
    return legs
