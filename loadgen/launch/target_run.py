"""One target's part of a run: what is started, what is run on it, where that is kept."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from loadgen.errors import UsageError
from loadgen.launch.arguments import RunArguments, TargetArguments, find_locustfile
from loadgen.launch.terminal import say
from loadgen.runs.directory import check_directory
from loadgen.targets.catalog import TargetSpec, find_target, load_catalog
from loadgen.targets.demo_model import Size, build_model, default_model_dir
from loadgen.targets.hardware import CONTROL, require_short_tmpdir
from loadgen.targets.plan import uses
from loadgen.targets.settings import TargetSettings
from loadgen.targets.target import RunningTarget, check_target
from loadgen.targets.trained_model import TRAINED, is_made, trained_model, trained_model_dir
from loadgen.workload.corpus import load_corpus


@dataclass(frozen=True, slots=True)
class TargetRun:
    """`run` is the user's, its directory that of this target alone."""

    spec: TargetSpec
    settings: TargetSettings
    run: RunArguments

    @property
    def logs(self) -> Path:
        """Folder of the engine's logs."""
        return self.run.out / "engine"


def plan_target_runs(run: RunArguments) -> list[TargetRun]:
    """One for each target, in the order they were named; of several, each has a subdirectory.

    Makes the demo model where it is needed. Raises UsageError for whatever is wrong with any of
    them.
    """
    find_locustfile(run.file)
    require_short_tmpdir(CONTROL)
    specs = choose_targets(run.targets, run.target_arguments)
    settings = target_settings(run.target_arguments)
    planned = []
    for spec in specs:
        own = replace(run, out=run.out / spec.name) if len(specs) > 1 else run
        check_target(spec, settings)
        check_directory(own.out)
        planned.append(TargetRun(spec, settings, own))
    return planned


def choose_targets(names: Sequence[str], arguments: TargetArguments) -> list[TargetSpec]:
    """The targets of these names, from the shipped catalog or the user's.

    Raises UsageError for an unknown name, and for options that mean nothing to any of them.
    """
    catalog = load_catalog(arguments.catalog)
    specs = [find_target(catalog, name) for name in names]
    for option, means in _meanings(arguments).items():
        if not any(map(means, specs)):
            able = [name for name, spec in catalog.items() if means(spec)]
            raise UsageError(
                f"{option} means nothing to target {', '.join(names)}: choose {' or '.join(able)}"
            )
    return specs


def _meanings(arguments: TargetArguments) -> dict[str, Callable[[TargetSpec], bool]]:
    """Options that were given, and to which targets each means something."""
    fleet = {"--replicas": arguments.replicas, "--router": arguments.router}
    meanings: dict[str, Callable[[TargetSpec], bool]] = {
        option: lambda spec: spec.of_role("router") is not None
        for option, value in fleet.items()
        if value is not None
    }
    if arguments.l2_gb is not None:
        meanings["--l2-gb"] = lambda spec: uses(spec, "l2_gb")
    for option in arguments.context_scheduler.options[:1]:
        meanings[option] = lambda spec: uses(spec, "context_scheduler")
    return meanings


def target_settings(
    arguments: TargetArguments, host: str = "127.0.0.1", port: int | None = None
) -> TargetSettings:
    """The settings of a target; makes the model where it is one of ours."""
    return TargetSettings(
        model=model_named(arguments.model) or str(demo_model(arguments.size)),
        kv_tokens=arguments.kv_tokens,
        l1_gb=arguments.l1_gb,
        l2_dir=arguments.l2_dir,
        l2_gb=1.0 if arguments.l2_gb is None else arguments.l2_gb,
        kv_codec=arguments.kv_codec,
        host=host,
        port=port,
        args=arguments.engine_args,
        start_timeout_s=arguments.start_timeout_s,
        context_scheduler=arguments.context_scheduler,
        replicas=arguments.replicas,
        router=arguments.router,
    )


def swarm_facts(target: RunningTarget, settings: TargetSettings) -> dict[str, Any]:
    """What the swarm's process is told about the target."""
    return target.facts() | {"tokenizer": tokenizer_of(settings)}


def tokenizer_of(settings: TargetSettings) -> str | None:
    """The folder with the model's tokenizer, where the model is local."""
    directory = settings.model_dir
    has_one = directory is not None and (directory / "tokenizer.json").is_file()
    return str(directory) if has_one else None


def model_named(name: str | None) -> str | None:
    """What `--model` names: `trained` is the folder of that model, made now if it is not there."""
    if name != TRAINED:
        return name
    if not is_made(trained_model_dir()):
        say("making the trained model, once, in about a minute …")
    return str(trained_model(trained_model_dir()))


def build_demo_model(directory: Path, size: Size) -> Path:
    """Make the model; raises UsageError where it cannot be made."""
    texts = [document.text for document in load_corpus().documents]
    return build_model(directory, size, texts)


def demo_model(size: Size) -> Path:
    """The demo model in its usual place, made now if it is not there."""
    return build_demo_model(default_model_dir(size), size)
