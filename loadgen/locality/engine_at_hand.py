"""What the engine of a run had already against computing a prompt again: order, router, tier."""

import json
import math
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from loadgen.locality.kv_format import run_told_bytes
from loadgen.locality.lmcache_replay import RATIO, TRIGGER
from loadgen.locality.tier_replay import leading
from loadgen.locality.trace_sources import USUAL_BLOCK_SIZE
from loadgen.runs.recorded import SIMULATED, RecordedRun, argument, flag_of
from loadgen.targets.plan import BYTES_PER_GB

AFFINE = ("cache_aware", "consistent_hash", "haproxy-hash", "kv_aware")
"""Routers that keep requests of one context on one engine."""


@dataclass(frozen=True, slots=True)
class TierAtHand:
    """Behind an engine's cache: at least `tokens` of KV stay in it, None where the run does not
    tell; all that was stored where it `has_files`. It has whole chunks."""

    tokens: int | None = None
    chunk_tokens: int = USUAL_BLOCK_SIZE
    has_files: bool = False

    @classmethod
    def of_run(cls, run: RecordedRun) -> "TierAtHand | None":
        """By what was simulated, or by the engine's command line; None without a tier."""
        tier = (run.target.get(SIMULATED) or {}).get("tier")
        flags = {flag_of(word).partition(".")[0] for word in run.engine_argv}
        if tier is None and not flags & {"--kv-transfer-config", "--kv-offloading-size"}:
            return None
        with suppress(ValueError, TypeError, KeyError, AttributeError):
            if tier is None:
                return _recorded(run, argument(run.engine_argv, "--kv-transfer-config") or "")
            return cls(int(tier["tokens"]), int(tier["chunk_tokens"]), tier["files"] is not None)
        return cls()

    def sure_blocks(
        self, prompts: Sequence[tuple[Sequence[int], int]], block_size: int
    ) -> Iterator[int]:
        """How many blocks from the start of each prompt were cached or are surely in it: computed
        since so many were used as it has room for. To come from the engine's own cache makes none
        younger there. Prompts, in the order served, are blocks and how many of these were cached.
        """
        each = max(1, self.chunk_tokens // block_size)
        room = math.inf if self.has_files else (self.tokens or 0) // block_size
        used, computed, first, held = dict[int, int](), dict[int, int](), 0, 0
        for turn, (blocks, hits) in enumerate(prompts):
            known = {block for block in blocks[hits:] if computed.get(block, -1) >= first}
            yield (hits + leading(blocks[hits:], known)) // each * each
            held += sum(used.get(block, -1) < first for block in blocks)
            used.update(dict.fromkeys(blocks, turn))
            computed.update(dict.fromkeys(blocks[hits:], turn))
            while held > room:
                held -= sum(used[block] == first for block in prompts[first][0])
                first += 1


def _recorded(run: RecordedRun, told: str) -> TierAtHand:
    """Of LMCache what its loop leaves in memory. Raises ValueError and the like without a size."""
    config, argv = json.loads(told), run.engine_argv
    extra = config["kv_connector_extra_config"]
    bytes_per_token = run_told_bytes(run.path, None).value or math.nan
    if "LMCache" in config["kv_connector"]:
        sure_bytes = TRIGGER * (1 - RATIO) * run.target["l1_gb"] * BYTES_PER_GB
        chunk_tokens = int(argument(argv, "--chunk-size") or "")
        is_all = argument(argv, "--l2-adapter") is None
        return TierAtHand(int(sure_bytes / bytes_per_token) if is_all else None, chunk_tokens)
    chunk_tokens = int(run.target["block_size"]) * int(extra.get("blocks_per_chunk") or 1)
    tokens = int(extra["cpu_bytes_to_use"] / bytes_per_token)
    return TierAtHand(tokens, chunk_tokens, bool(extra.get("secondary_tiers")))


@dataclass(frozen=True, slots=True)
class EngineAtHand:
    """What an engine had already: an order by context, something behind its cache, a router that
    keeps contexts together (its policy, "" without). Requests with `prompt_logprobs` find nothing
    in its cache."""

    by_context: bool = False
    tier: TierAtHand | None = None
    affine_router: str = ""
    prompt_logprobs: bool = False

    @classmethod
    def of_run(cls, run: RecordedRun) -> "EngineAtHand":
        """By its command lines, what was simulated, and the body of its requests."""
        router, body = str(run.target.get("router") or ""), {}
        with suppress(ValueError, TypeError):
            body = json.loads(run.options.get("extra_body") or "{}")
        return cls(
            (argument(run.engine_argv, "--scheduler-cls") or "").startswith("scheduler_plugin."),
            TierAtHand.of_run(run),
            router if router in AFFINE else "",
            isinstance(body, dict) and body.get("prompt_logprobs") is not None,
        )

    def cure(self, cause: str) -> str:
        """Of a cause whose usual cure it has already, with `{saved}` for tokens; else empty."""
        if cause == "order" and self.by_context:
            return (
                "Though the order is by context, others went before what was waiting: a larger"
                " cache would keep up to {saved}."
            )
        if cause == "replica" and self.affine_router:
            return (
                f"Router {self.affine_router} sent contexts to another engine than before:"
                " {saved}, of engines that were full or of new ones."
            )
        if cause == "off" and self.prompt_logprobs:
            return "Leave prompt_logprobs out of --extra-body: up to {saved}."
        return ""
