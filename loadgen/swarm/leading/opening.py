"""How a run begins: its plan, its directory, and the first entries there."""

import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

from loadgen.client.failures import with_keys_hidden
from loadgen.runs.machine import hide_headers, hide_keys, machine, versions, without_secrets
from loadgen.swarm.leading.preparation import Preparation
from loadgen.swarm.leading.supervisor import Supervisor
from loadgen.swarm.leading.worker_registry import WorkerRegistry
from loadgen.swarm.sending.plan import Plan

OPEN_LOOP_LEAD_S = 0.5
"""An open loop's first arrival is that far ahead, so that every process is there in time."""


def make_plan(environment: Any, registry: WorkerRegistry | None, ready: Preparation) -> Plan:
    """What every process of the swarm has to know; the run begins now."""
    runner = environment.runner
    workers = registry.present() if registry else [runner.client_id]
    trace = ready.replay.to_wire(len(workers)) if ready.replay else {}
    lead_s = OPEN_LOOP_LEAD_S if ready.options.arrivals != "closed" else 0.0
    return Plan(
        start_unix_s=time.time() + lead_s,
        url=ready.facts.url,
        model=ready.facts.model,
        is_vllm=ready.facts.is_vllm,
        options=ready.raw_options,
        workers={client: index for index, client in enumerate(workers)},
        lengths=asdict(ready.lengths),
        uncapped=ready.options.arrivals != "closed" and runner.target_user_count == 0,
        batched=ready.batched,
        trace=trace,
        body=ready.body,
        corpus_sha256=ready.corpus_sha256,
        user_classes={each.__name__: each.weight for each in environment.user_classes},
    )


def swarm_directory(environment: Any, out: Path | None, swarm: int) -> Path | None:
    """A headless run owns `--out`; each swarm of the web UI gets its own folder inside it."""
    if out is None or environment.web_ui is None:
        return out
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return out / f"{stamp}-{swarm:03d}"


def describe_run(
    ready: Preparation, plan: Plan, supervisor: Supervisor, users: int
) -> dict[str, Any]:
    """The content of `run.json` at the start of a run."""
    options = {name: with_keys_hidden(value, []) for name, value in plan.options.items()}
    options["header"] = hide_headers(ready.options.headers)
    if options.get("extra_body"):
        options["extra_body"] = hide_keys(options["extra_body"])
    return {
        "command_line": without_secrets(supervisor.command_line),
        "options": options,
        "seed": ready.options.workload.seed,
        "corpus_sha256": ready.corpus_sha256,
        "trace_sha256": ready.trace_sha256,
        "users": users,
        "host": plan.url,
        "model": plan.model,
        "host_facts": {
            "is_vllm": ready.facts.is_vllm,
            "version": ready.facts.version,
            "max_model_len": ready.facts.max_model_len,
        },
        "rag": asdict(ready.rag) if ready.rag else None,
        "target": supervisor.facts or None,
        "cache_state": ready.cache_state,
        "notes": list(ready.notes),
        "workers": len(plan.workers),
        "versions": versions(),
        "machine": machine(),
        "start_unix_s": plan.start_unix_s,
    }
