"""A target from the command line to running services, with the facts a swarm asks for."""

from collections.abc import Sequence
from typing import Any

from loadgen.cli.arguments import TargetArguments
from loadgen.cli.demo_model import demo_model
from loadgen.errors import UsageError
from loadgen.targets.catalog import TargetSpec, find_target, load_catalog
from loadgen.targets.plan import uses
from loadgen.targets.settings import TargetSettings
from loadgen.targets.target import RunningTarget


def choose_targets(names: Sequence[str], arguments: TargetArguments) -> list[TargetSpec]:
    """The targets of these names, from the shipped catalog or the user's.

    Raises UsageError for an unknown name, and for options that mean nothing to any of them.
    """
    catalog = load_catalog(arguments.catalog)
    specs = [find_target(catalog, name) for name in names]
    options = arguments.context_scheduler.options
    if options and not any(uses(spec, "context_scheduler") for spec in specs):
        able = [name for name, spec in catalog.items() if uses(spec, "context_scheduler")]
        raise UsageError(
            f"{options[0]} means nothing to target {', '.join(names)}: choose {' or '.join(able)}"
        )
    return specs


def target_settings(
    arguments: TargetArguments, host: str = "127.0.0.1", port: int | None = None
) -> TargetSettings:
    """The settings of a target; builds the demo model when no model is named."""
    return TargetSettings(
        model=arguments.model or str(demo_model(arguments.size)),
        kv_tokens=arguments.kv_tokens,
        l1_gb=arguments.l1_gb,
        host=host,
        port=port,
        args=arguments.engine_args,
        start_timeout_s=arguments.start_timeout_s,
        context_scheduler=arguments.context_scheduler,
    )


def swarm_facts(target: RunningTarget, settings: TargetSettings) -> dict[str, Any]:
    """What the swarm's process is told about the target."""
    facts = target.facts()
    metrics, pids = facts["metrics_urls"], facts["pids"]
    lmcache_url = metrics.get("lmcache")
    return facts | {
        "engine_pid": _first(pids.get("vllm")),
        "lmcache_pid": _first(pids.get("lmcache")),
        "lmcache_url": lmcache_url.removesuffix("/metrics") if lmcache_url else None,
        "tokenizer": tokenizer_of(settings),
    }


def tokenizer_of(settings: TargetSettings) -> str | None:
    """The folder with the model's tokenizer, where the model is local."""
    directory = settings.model_dir
    has_one = directory is not None and (directory / "tokenizer.json").is_file()
    return str(directory) if has_one else None


def _first(pids: list[int] | None) -> int | None:
    return pids[0] if pids else None
