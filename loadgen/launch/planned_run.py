"""A run that is simulated and not sent: the command line of `kvswarm run`, checked as such, as a
load for a twin."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from loadgen.errors import UsageError
from loadgen.launch.arguments import RunArguments, find_locustfile, is_given, parse_run
from loadgen.launch.checking import ask_locust_of, options_in
from loadgen.locality.trace import TokenIds
from loadgen.stats.slo import CutOffRule
from loadgen.swarm.options.replay import check_replay, pacer_of, trace_workload
from loadgen.swarm.options.swarm_options import SwarmOptions
from loadgen.targets.context_scheduler import ContextSchedulerSettings
from loadgen.twin.planned import PlannedLoad
from loadgen.twin.prompt_ids import PromptIds
from loadgen.twin.sending import Pace
from loadgen.workload.corpus import load_corpus
from loadgen.workload.workload import Workload

OF_THE_ENGINE = ("model", "size", "targets", "engine_arg", "l2_dir", "start_timeout")
"""Options of `kvswarm run` that a twin has from the runs that it was made of."""
UNMODELLED: Mapping[str, tuple[Any, str]] = {
    "endpoint": ("completions", "the host's chat template is not known"),
    "extra_body": ("", "what it does to a request is not known"),
    "warmup": ("0", "leave it to who reads the figures"),
    "gate": (None, "give it to a real run, or compare the directory"),
    "keep_cache": (False, "a twin's cache is empty at the start"),
}
"""Options that would change a run and not its simulation: what they may be, and why."""
REFUSED: Mapping[str, str] = {
    "--processes": "a simulation sends as one process does",
    "--kv-codec": "no tier of a twin packs its KV",
    "--l2-gb": "no tier of a twin is on nodes",
    **dict.fromkeys(("--replicas", "--router"), "advice is about one engine, try several by hand"),
}
"""Options that are none of a simulation's, and why."""


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A run that was checked and not made. `words` are those behind `kvswarm run`, `options` its
    options by name, `targets` and `context_scheduler` the engine that they ask for. Requests are
    given up after `timeout_s`."""

    load: PlannedLoad
    words: tuple[str, ...]
    options: Mapping[str, Any]
    target: str
    kv_tokens: int | None
    l1_gb: float
    context_scheduler: ContextSchedulerSettings
    rule: CutOffRule
    timeout_s: float
    user_class: str
    corpus_sha256: str
    trace_sha256: str | None
    notes: tuple[str, ...]

    @property
    def plugin_settings(self) -> dict[str, Any]:
        """Of the context scheduler, as they were given. Raises UsageError where the target has no
        such."""
        options = self.context_scheduler.options
        if options and not self.target.endswith("-context"):
            raise UsageError(
                f"{options[0]} means nothing to target {self.target}: choose vllm-context"
            )
        told = asdict(self.context_scheduler)
        return {name: value for name, value in told.items() if value is not None}

    @property
    def source(self) -> str:
        """Where its requests are from, in words."""
        return " ".join(("kvswarm run", *self.words))


def plan_run(
    words: Sequence[str], tokenizer: str | None, window_tokens: int, cache_tokens: int
) -> PlannedRun:
    """What `kvswarm run` would send by these words to an engine of this window and cache, with this
    tokenizer where the words name no other. Raises UsageError."""
    run = _parsed(words)
    file = find_locustfile(run.file)
    kv_tokens = run.target_arguments.kv_tokens
    usable = cache_tokens if kv_tokens is None else kv_tokens
    facts = {
        "tokenizer": tokenizer,
        "usable_tokens": usable,
        "max_model_len": min(window_tokens, usable),
    }
    (result,) = ask_locust_of(file, [(run, facts)])["results"]
    return _planned(words, run, options_in(result), tokenizer)


def _parsed(words: Sequence[str]) -> RunArguments:
    if is_given(words, "--host", "-H"):
        raise UsageError("--host: a simulation loads no host, leave it out")
    has_target = is_given(words, "--target")
    run = parse_run("run", [*words, *([] if has_target else ["--target", "vllm"])])
    if len(run.targets) > 1:
        raise UsageError(f"--target {','.join(run.targets)}: a simulation is of one, give one")
    for name in OF_THE_ENGINE:
        flag = "--" + name.replace("_", "-")
        if is_given(words, flag):
            raise UsageError(f"{flag} is the engine's, which the twin knows: leave it out")
    for flag, reason in REFUSED.items():
        if is_given(words, flag):
            raise UsageError(f"{flag} is not modelled: {reason}")
    return run


def _planned(
    words: Sequence[str], run: RunArguments, raw: dict[str, Any], tokenizer: str | None
) -> PlannedRun:
    swarm = raw.pop("swarm")
    options = SwarmOptions.read(raw)
    _require_modelled(options, raw, swarm)
    corpus = load_corpus(options.corpus, options.questions)
    told = options.tokenizer or tokenizer
    if told is None:
        raise UsageError("no tokenizer is known: give --tokenizer PATH|NAME, the model's own")
    tokens = TokenIds.from_path_or_name(told)
    (user,) = swarm["classes"]
    workload = _workload(options, corpus, tokens)
    has_end = options.trace is not None or (swarm["batched"] and bool(options.batching.limit))
    load = PlannedLoad(
        workload=workload,
        ids=PromptIds(tokens).ids,
        make_pacer=partial(pacer_of, options),
        pace=_pace(options, raw, user["waits_s"], has_end),
        batching=options.batching if swarm["batched"] else None,
        as_list=options.batch_as == "list",
        labels=options.labels,
        rag_wrong=options.rag_wrong,
    )
    return PlannedRun(
        load=load,
        words=tuple(words),
        options=raw,
        target=run.targets[0],
        kv_tokens=run.target_arguments.kv_tokens,
        l1_gb=run.target_arguments.l1_gb,
        context_scheduler=run.target_arguments.context_scheduler,
        rule=CutOffRule.of(options.drain_s, options.max_silence_s, options.slo),
        timeout_s=options.timeout_s,
        user_class=user["name"],
        corpus_sha256=corpus.sha256,
        trace_sha256=options.trace.sha256 if options.trace else None,
        notes=tuple(_notes(run, options, user["name"])),
    )


def _require_modelled(options: SwarmOptions, raw: Mapping[str, Any], swarm: Any) -> None:
    """Raise UsageError for what would be otherwise in a run."""
    for name, (usual, reason) in UNMODELLED.items():
        if (raw.get(name) or usual) != usual:
            flag = "--" + name.replace("_", "-")
            raise UsageError(f"{flag} is not modelled: {reason}")
    if options.labels == "kv":
        raise UsageError("--labels kv is not modelled: give oracle, none, shuffled or rag")
    if swarm["load_shape"]:
        raise UsageError(
            f"load shape {swarm['load_shape']} is not modelled: give -u, or an open loop's --rate"
        )
    names = [each["name"] for each in swarm["classes"]]
    if len(names) != 1:
        raise UsageError(
            f"users of several classes are not modelled: name one behind the locustfile's options,"
            f" {' or '.join(names)}"
        )
    (user,) = swarm["classes"]
    if not user["is_ours"]:
        raise UsageError(f"{user['name']} is no ContextUser: what it sends is not known here")
    if not user["waits_s"]:
        raise UsageError(
            f"wait_time of {user['name']} is not modelled: give between, constant or another that"
            " needs no run around it"
        )


def _workload(options: SwarmOptions, corpus: Any, tokens: TokenIds) -> Any:
    replay = check_replay(options, batched=False)
    if replay is not None:
        return trace_workload(options, corpus, tokens, replay.survey.common, 0, 1)
    wrong = options.labels == "shuffled"
    return Workload(corpus, options.workload, tokens, wrong_labels=wrong)


def _pace(
    options: SwarmOptions, raw: Mapping[str, Any], waits_s: Sequence[float], has_end: bool
) -> Pace:
    """Raises UsageError for a run without an end."""
    run_time_s = float(raw.get("run_time") or math.inf)
    if math.isinf(run_time_s) and not has_end:
        raise UsageError("it would never end: give -t TIME, --batches or a --trace")
    is_open = options.arrivals != "closed"
    users = int(raw.get("num_users") or 0)
    starts_s = tuple(_starts_s(users, float(raw.get("spawn_rate") or 1)))
    return Pace(
        is_open=is_open,
        starts_s=starts_s,
        gaps_s=tuple(waits_s),
        end_s=run_time_s,
        cut_s=run_time_s + options.drain_s,
    )


def _starts_s(users: int, spawn_rate: float) -> Iterator[float]:
    """As Locust starts users: so many at once, then a pause, that the rate is kept."""
    together = max(1, math.floor(spawn_rate))
    for number in range(users):
        yield number // together * together / spawn_rate


def _notes(run: RunArguments, options: SwarmOptions, user: str) -> Iterator[str]:
    if Path(run.file).is_file():
        yield f"each task of {user} is taken to send what is next as it is"
    if options.labels == "rag":
        yield (
            f"a service finds the right context but for --rag-wrong {options.rag_wrong:g} of the"
            " requests, and takes no time"
        )
