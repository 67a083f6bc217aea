"""Runs of a sweep or a search as `kvswarm run` would take them, checked before any is started."""

import difflib
import json
import re
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from loadgen.client.label_probe import probe_kv, probe_rag
from loadgen.errors import HostError, KvswarmError, UsageError
from loadgen.launch.arguments import (
    SHARED_FILES,
    RunArguments,
    find_locustfile,
    our_flags,
    parse_run,
    run_parser,
)
from loadgen.launch.configured import setting, value_of
from loadgen.launch.label_service import ServiceLabels
from loadgen.launch.locust_command import locust_argv
from loadgen.launch.swarm_process import checkable, labels_in, planned_facts
from loadgen.launch.target_run import TargetRun, plan_target_runs
from loadgen.scratch import scratch_folder
from loadgen.swarm.options.flags import SERVICE_LABELS
from loadgen.sweep.definition import Definition, text_of
from loadgen.sweep.matrix import CellEngine, CellPlan
from loadgen.targets.plan import uses_l1
from loadgen.targets.settings import TargetSettings
from loadgen.workload.corpus import load_corpus

NOT_OF_THE_LOAD = frozenset(
    {
        *("out", "seed", "swarm", "header", "extra_body", "foreign_host", "key_host"),
        *("metrics_port", "metrics_host", "web_allowed_host", "gate", "slo", "max_failures"),
        "require_proof",
    }
)
OF_LOCUST = ("tags", "exclude_tags", "processes", "stop_timeout")
"""Locust's own options that change what is sent; all others of the load are ours."""
LOAD = {"num_users": "--users", "spawn_rate": "--spawn-rate"}
"""Options in whose place a load shape says how many users there are."""


@dataclass(frozen=True, slots=True)
class CheckedRun:
    """A run that may begin. `target_run` is None on a host that is not ours, `labels` where no
    service of ours is asked for them, `run_time_s` without a `--run-time`. `options` are those that
    the swarm will see, whoever names them."""

    run: RunArguments
    target_run: TargetRun | None
    labels: ServiceLabels | None
    run_time_s: float | None
    options: Mapping[str, Any]

    def heard(self, said: Iterable[str]) -> dict[str, str]:
        """Options of load and engine beside those of a command or a file, as text: what a
        locustfile, the environment or Locust's files may say."""
        own = {name.replace("-", "_") for name in said} | NOT_OF_THE_LOAD
        own |= {"num_users"} if "users" in own else set()
        locust = {name: setting(self.run.rest, name.replace("_", "-")) or "" for name in OF_LOCUST}
        found = {**locust, **self._of_engine, **self.options}
        return {name: str(value) for name, value in found.items() if name not in own}

    @property
    def _of_engine(self) -> dict[str, str]:
        """How it is started, by the names of the options; empty on a host that is not ours."""
        if self.target_run is None:
            return {}
        told = asdict(self.run.target_arguments)
        told |= told.pop("context_scheduler") | {"targets": told.pop("catalog")}
        told["engine_arg"] = text_of("engine-arg", told.pop("engine_args"))
        del told["start_timeout_s"]
        return {name: "" if value is None else str(value) for name, value in told.items()}

    @property
    def engine(self) -> CellEngine:
        """What a cell shares with those that need no other start."""
        if self.target_run is None:
            return CellEngine(str(self.run.host), False, self.run.host)
        settings, catalog = _used_settings(self.target_run), self.run.target_arguments.catalog
        kv = "" if settings.kv_tokens is None else f"-{settings.kv_tokens}"
        key = (self.target_run.spec.name, settings, catalog, self.labels)
        return CellEngine(f"{self.target_run.spec.name}{kv}", True, key)


def check_run(words: Sequence[str], own: Sequence[str] = ()) -> CheckedRun:
    """What `kvswarm run` would say to these words, without a run. Raises UsageError.

    `own` are flags of the command that asks: a word that is none may have been meant to be.
    """
    run, target_run = _planned(words)
    (result,) = ask_locust(find_locustfile(run.file), [(run, target_run)], own)["results"]
    return _checked(run, target_run, result)


def _planned(words: Sequence[str], hint: str = "") -> tuple[RunArguments, TargetRun | None]:
    """As `kvswarm run` would, of one target. Raises UsageError, before Locust makes any file."""
    run = parse_run("run", list(words))
    if len(run.targets) > 1:
        raise UsageError(f"--target {','.join(run.targets)}: give one{hint}")
    for flag in SHARED_FILES:
        if name := value_of(run.rest, flag.removeprefix("--")):
            raise UsageError(f"{flag} {name}: each run would overwrite it, leave it out")
    return run, plan_target_runs(run)[0] if run.targets else None


async def require_services(runs: Iterable[CheckedRun]) -> None:
    """Ask each service of others that these runs are to ask for labels, once. Raises HostError."""
    names = ("labels", "rag_url", "corpus", "questions")
    asked = {tuple(each.options.get(name) for name in names) for each in runs}
    for labels, url, *files in asked:
        if labels not in SERVICE_LABELS or not url:
            continue
        corpus = load_corpus(*(Path(name) if name else None for name in files))
        is_rag = labels == "rag"
        try:
            await (probe_rag(url, corpus.documents, corpus.source) if is_rag else probe_kv(url))
        except HostError as error:
            raise HostError(f"{labels.upper()} service: {error}") from None


def run_words(definition: Definition, cell: CellPlan, seed: int, out: Path) -> list[str]:
    """The command line behind `kvswarm run` for a cell."""
    keep = ["--keep-cache"] if definition.keep_cache else []
    return [definition.locustfile, *cell.words(seed), *keep, f"--out={out}"]


def check_cells(
    definition: Definition, cells: Sequence[CellPlan], out: Path
) -> dict[str, CheckedRun]:
    """Every cell by its id. Raises UsageError for the first that `kvswarm run` would refuse, with
    the file, the key and its value."""
    try:
        file = find_locustfile(definition.locustfile)
    except UsageError as error:
        raise definition.error("", "locustfile", str(error)) from None
    runs = {}
    for cell in cells:
        try:
            words = run_words(definition, cell, cell.seed(1), out)
            runs[cell.cell_id] = _planned(words, ", or a list in [axes]")
        except UsageError as error:
            raise _refusal(definition, cell, str(error)) from None
    answer = ask_locust(file, list(runs.values()))
    _check_keys(definition, answer["flags"], answer["results"])
    return {
        cell.cell_id: _checked_cell(definition, cell, *runs[cell.cell_id], result)
        for cell, result in zip(cells, answer["results"], strict=False)
    }


def ask_locust(
    file: Path, runs: Sequence[tuple[RunArguments, TargetRun | None]], own: Sequence[str] = ()
) -> dict[str, Any]:
    """Have all command lines checked in one process: importing Locust takes a second."""
    facts = [(run, planned_facts(target) if target else {}) for run, target in runs]
    return ask_locust_of(file, facts, own)


def ask_locust_of(
    file: Path, runs: Sequence[tuple[RunArguments, Mapping[str, Any]]], own: Sequence[str] = ()
) -> dict[str, Any]:
    """The same by facts of targets that need not be there."""
    checks = [
        {"argv": locust_argv("run", checkable(run)), "facts": dict(facts)} for run, facts in runs
    ]
    job = {"argv": ["locust", "-f", str(file)], "ours": [*our_flags(), *own], "checks": checks}
    with scratch_folder() as scratch:
        asked, answered = scratch / "job.json", scratch / "answer.json"
        asked.write_text(json.dumps(job), encoding="utf-8")
        command = [sys.executable, "-m", "loadgen.swarm.many_checks", str(asked), str(answered)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise KvswarmError(f"the cells could not be checked: {last_line(done.stderr)}")
        return dict(json.loads(answered.read_text(encoding="utf-8")))


def _check_keys(
    definition: Definition, flags: Mapping[str, str], results: Sequence[Mapping[str, Any]]
) -> None:
    """Raise UsageError for a key that is no option by its full name, or the same as another."""
    if not flags:
        raise definition.error("", "locustfile", last_line(results[0]["said"]))
    own = {flag: each.dest for each in run_parser("run")._actions for flag in each.option_strings}
    all_flags = {**flags, **own}
    known = {flag[2:]: all_flags[flag] for flag in all_flags if flag.startswith("--")}
    tables: dict[str, Iterable[str]] = {"options": definition.options, "axes": definition.axes}
    tables |= {f"cells.{number}": cell for number, cell in enumerate(definition.cells, 1)}
    for table, options in tables.items():
        names: dict[str, str] = {}
        for key in options:
            if key not in known:
                near = difflib.get_close_matches(key, known, 3, 0.6)
                hint = f"did you mean {' or '.join(near)}?" if near else "see `kvswarm run --help`"
                raise definition.error(table, key, f"is no option of kvswarm run: {hint}")
            if known[key] in names:
                raise definition.error(table, key, f"says the same as {names[known[key]]}")
            names[known[key]] = key


def _checked_cell(
    definition: Definition,
    cell: CellPlan,
    run: RunArguments,
    target_run: TargetRun | None,
    result: Mapping[str, Any],
) -> CheckedRun:
    try:
        checked = _checked(run, target_run, result)
        _check_end(checked.options)
    except UsageError as error:
        raise _refusal(definition, cell, str(error)) from None
    return checked


def _check_end(options: Mapping[str, Any]) -> None:
    """Raise UsageError for a cell without an end, or whose load shape does not hear its users."""
    swarm = options["swarm"]
    shape = None if swarm["shape_hears"] else swarm["load_shape"]
    for name, flag in LOAD.items():
        if shape and options.get(name) is not None:
            raise UsageError(f"{flag} means nothing to load shape {shape}: leave one of them out")
    has_end = options.get("run_time") or options.get("trace")
    if not shape and not has_end and not (swarm["batched"] and options.get("batches")):
        raise UsageError("it would never end: give run-time (or batches)")


def options_in(result: Mapping[str, Any]) -> dict[str, Any]:
    """Those of a run, of what Locust's process said of it. Raises UsageError where none came."""
    if result["code"]:
        raise UsageError(last_line(result["said"]))
    if result["options"] is None:
        raise UsageError("no run would come of it, as with --list: leave that out")
    return dict(result["options"])


def _checked(
    run: RunArguments, target_run: TargetRun | None, result: Mapping[str, Any]
) -> CheckedRun:
    """By what Locust's process said of it. Raises UsageError."""
    options = options_in(result)
    labels = labels_in(options)
    if target_run is None and labels is not None:
        raise UsageError(f"--labels {labels.kind} on a host needs --rag-url: say which service")
    return CheckedRun(run, target_run, labels, options.get("run_time") or None, options)


def _refusal(definition: Definition, cell: CellPlan, said: str) -> UsageError:
    """What was said of a cell, behind the key that it is about."""
    key = _blamed(cell, said)
    if key is None:
        cell_named = f", cell {cell.title}" if cell.title else ""
        return UsageError(f"{definition.source}{cell_named}: {said}")
    table, value = definition.place(key, cell.options), text_of(key, cell.options[key])
    return UsageError(f"{definition.source} [{table}] {key} = {value}: {said}")


def _blamed(cell: CellPlan, said: str) -> str | None:
    """The option that stands first in it; else the one that it has as a word."""
    found = {key: re.search(rf"--{re.escape(key)}(?![\w-])", said) for key in cell.options}
    places = {key: match.start() for key, match in found.items() if match}
    words = (key for key in cell.options if re.search(rf"\b{re.escape(key)}\b", said))
    return min(places, key=lambda key: places[key]) if places else next(words, None)


def last_line(said: str) -> str:
    """What a refused command said in the end, without who said it."""
    lines = [line.strip() for line in said.splitlines() if line.strip()]
    last = lines[-1] if lines else "nothing was said"
    return re.sub(r"^(kvswarm|locust|[\w.]+: error): (error: )?", "", last)


def _used_settings(target_run: TargetRun) -> TargetSettings:
    """Without what means nothing to the target."""
    l1_gb = target_run.settings.l1_gb if uses_l1(target_run.spec) else 1.0
    return replace(target_run.settings, l1_gb=l1_gb)
